/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Parameter structs that the host passes to kernels on packed tensors. kv_cache.h has those for KV
 * caches, backward.h those for gradients, smem.h the sizes of shared memory. Host and kernels share
 * only these headers: plain C without system headers, so that NVRTC accepts them. Both sides assert
 * the sizes at the end.
 *
 * Conventions: strides count elements; pointers are device addresses; NULL means "not wanted" or
 * "absent". Letters as in include/nsa/attention.h: T query tokens, Hq, Hkv, G = Hq / Hkv, Dk, Dv,
 * l, d, l', n, w.
 */
#ifndef NSAI_PARAMS_ATTENTION_H
#define NSAI_PARAMS_ATTENTION_H

/* A [tokens, heads, dim] tensor; the last stride is 1. */
typedef struct NsaiView {
  void *data;
  long long token_stride;
  long long head_stride;
} NsaiView;

/* A TMA tensor map of such a tensor; runtime/driver/tensor_map.h creates it. */
typedef struct __attribute__((aligned(64))) NsaiTensorMap {
  unsigned long long opaque[16];
} NsaiTensorMap;

/* How tokens belong to sequences. cu_q NULL: one sequence of q_tokens queries over kv_tokens
 * keys. */
typedef struct NsaiSequences {
  const int *cu_q;  /* [num_seqs + 1] */
  const int *cu_kv; /* [num_seqs + 1]; equals cu_q if the caller gave none */
  /* [num_seqs + 1], rows of compressed storage; NULL: sequence s begins at row cu_kv[s] / d. */
  const int *cu_cmp;
  int num_seqs;
  int q_tokens;  /* rows of q */
  int kv_tokens; /* rows of k */
  /* The plan's longest sequence; longer ones are cut, so that no row of importance overflows. */
  int max_kv_len;
} NsaiSequences;

/* The branches, in the order of NSA_CMP, NSA_SEL, NSA_WIN. */
enum { NSAI_BRANCH_COMPRESSED, NSAI_BRANCH_SELECTED, NSAI_BRANCH_WINDOW, NSAI_BRANCH_COUNT };

/* What an attention kernel does with its branch's normalised output O_b (core/epilogue.cuh):
 *   o_branch = O_b;  lse = log sum exp;  sum = gate_b * O_b (+ partial if add_partial);
 *   o = sum, rounded once, if o.data is given; otherwise partial = sum. */
typedef struct NsaiEpilogue {
  NsaiView o;        /* dtype [T, Hq, Dv] */
  NsaiView o_branch; /* dtype [T, Hq, Dv] */
  float *lse;        /* f32 [T, Hq], natural log, -inf for an empty row */
  long long lse_token_stride;
  long long lse_head_stride;
  void *partial;        /* fp16 [T, Hq, Dv] contiguous: gated sum so far, in units of its row */
  float *partial_units; /* f32 [T, Hq] contiguous: powers of two */
  NsaiView gate;        /* [T, Hq, 3], of which this branch uses column gate_branch */
  int gate_branch;
  int gate_float; /* 1: the gates are f32, 0: dtype */
  int add_partial;
  int reserved;
} NsaiEpilogue;

/* attend_compressed_*, attend_window_*, attend_dense_*: attention over contiguous key ranges. */
typedef struct NsaiAttend {
  NsaiSequences seq;
  NsaiView q; /* dtype [T, Hq, Dk] */
  NsaiView k; /* dtype [rows, Hkv, Dk]: raw tokens or compressed blocks */
  NsaiView v; /* dtype [rows, Hkv, Dv] */
  NsaiEpilogue out;
  float scale_log2; /* softmax scale * log2(e) */
  int kv_heads;
  /* Tiles of query tokens, times Hkv. One CTA per tile; persistent kernels have fewer CTAs. */
  int tiles;
  /* 1: of the previous kernel's results, this one reads only the partial sum, so that everything
   * else may begin before that kernel has ended (core/launch.cuh). */
  int early;
} NsaiAttend;

/* attend_compressed_sm90, attend_window_sm90, attend_dense_sm90: the same with tensor maps. */
typedef struct NsaiAttendTma {
  NsaiTensorMap q; /* boxes of kGroupPadded heads, 64 rows */
  NsaiTensorMap k; /* boxes of one head, kKeys tokens */
  NsaiTensorMap v;
  NsaiAttend attend;
} NsaiAttendTma;

/* attend_compressed_topn_sm90: the compressed branch, and for each token the top-n blocks by the
 * importance that follows from its scores. */
typedef struct NsaiCompressedTopn {
  NsaiAttendTma attend; /* k, v: boxes of 128 interleaved tokens, tma_load_interleaved() */
  int *idx;             /* [T, Hkv, n] ascending, then -1; NULL: no selection */
  long long idx_token_stride;
  long long idx_head_stride;
  void *scratch; /* workspace: scratch_bytes per CTA */
  long long scratch_bytes;
  long long reserved[3];
} NsaiCompressedTopn;

/* attend_selected_sm80: attention over each token's own sorted list of disjoint key ranges. */
typedef struct NsaiAttendSelected {
  NsaiSequences seq;
  NsaiView q;
  NsaiView k;
  NsaiView v;
  NsaiEpilogue out;
  /* Blocks: [T, Hkv, n] ascending, then -1. Ranges: [T, Hkv, n, 2] ascending, disjoint, end >
   * start, end <= t + 1, then -1, -1. */
  const int *lists;
  long long list_token_stride; /* ints */
  long long list_head_stride;  /* ints; 0: shared by all KV heads */
  float scale_log2;
  int kv_heads;
  int tiles; /* as in NsaiAttend */
  int reserved;
} NsaiAttendSelected;

/* attend_selected_sm90_mma, attend_selected_sm90: the same with keys loaded by TMA, in persistent
 * CTAs. */
typedef struct NsaiAttendSelectedTma {
  NsaiTensorMap k; /* boxes of one head, kKeys tokens */
  NsaiTensorMap v;
  NsaiAttendSelected attend;
  int reserved[10];
} NsaiAttendSelectedTma;

/* attend_selected_window_sm90: the window branch and the selected branch in one kernel, or only one
 * of them if the call has no other. */
enum { NSAI_FUSED_WINDOW, NSAI_FUSED_SELECTED, NSAI_FUSED_BRANCHES };
typedef struct NsaiSelectedWindow {
  NsaiAttendSelectedTma selected; /* seq, q, scale and tiles of both; `out` is unused */
  NsaiTensorMap window_k_map;     /* like selected.k, for the window */
  NsaiTensorMap window_v_map;
  NsaiView window_k, window_v;
  NsaiEpilogue out[NSAI_FUSED_BRANCHES]; /* as for two kernels, the window first */
  /* The branches that run; the fields of the other branch are unused. */
  int first_branch, end_branch;
  int reserved[2];
} NsaiSelectedWindow;

/* A part of one block's inverted list (data/inverted_lists.cuh). Tokens count from row 0 of q. */
typedef struct NsaiKvItem {
  int kv_row; /* row of k and v where the block begins */
  int keys;   /* keys of the block, 1 .. l'; fewer at its sequence's end */
  int shift;  /* token t of the list sees key i of the block if i <= t + shift */
  int begin;  /* first entry, among the head's entries */
  int count;
  int reserved[3];
} NsaiKvItem;

/* data_invert_count, data_invert_scan, data_invert_fill: turn lists of blocks into lists of tokens,
 * for the tokens [token_begin, token_end). `heads`: Hkv, or 1 if all heads share one list. */
typedef struct NsaiInvert {
  NsaiSequences seq;
  const int *lists; /* as in NsaiAttendSelected */
  long long list_token_stride;
  long long list_head_stride;
  int *counts;        /* [heads, parts, blocks] */
  int *starts;        /* [heads, blocks] */
  unsigned *entries;  /* [heads, entry_capacity] */
  int *entry_indices; /* [heads, tokens of the chunk, n]: index among the head's entries */
  NsaiKvItem *items;  /* [heads, item_capacity] */
  int *item_counts;   /* [heads] */
  long long entry_capacity;
  int item_capacity;
  int heads;
  int token_begin, token_end;
  int part_tokens, parts; /* tokens that are counted together; number of such parts */
  int blocks;             /* block numbers */
  int head_begin;         /* data_invert_fill: the first head of this launch */
  int *item_starts;       /* [heads, blocks]: each block's first item; NULL: not wanted */
  /* Entries of blocks that begin less than `near` keys before their token are left out. */
  int near;
  int reserved;
} NsaiInvert;

/* data_invert_order: the items of those lists by their first tokens. */
typedef struct NsaiInvertOrder {
  const NsaiKvItem *items;
  const int *item_counts;
  const unsigned *entries;
  int *order; /* [heads, item_capacity] */
  long long entry_capacity;
  int item_capacity;
  int tokens; /* of the chunk */
} NsaiInvertOrder;

/* attend_selected_kv_stationary_sm90: each item's rows of Q over its block, for the query heads
 * [head_begin, head_begin + heads) and the tokens from token_begin on. */
typedef struct NsaiAttendKv {
  NsaiView q;
  NsaiView k;
  NsaiView v;
  const NsaiKvItem *items;
  const int *item_counts;
  const unsigned *entries;
  void *partial;      /* dtype [heads, chunk_tokens, n, Dv]: O of one block, normalised */
  float *partial_lse; /* f32 [heads, entry_capacity], ordered as entries, base 2 */
  long long entry_capacity;
  int item_capacity;
  int shared_lists; /* 1: all KV heads share one list */
  int token_begin, chunk_tokens;
  int head_begin, heads;
  float scale_log2;
  int reserved;
} NsaiAttendKv;

/* attend_selected_combine: combines the partial results of a token's blocks into its output. */
typedef struct NsaiCombine {
  const int *entry_indices; /* as in NsaiInvert */
  const void *partial;      /* as in NsaiAttendKv */
  const float *partial_lse; /* as in NsaiAttendKv */
  NsaiEpilogue out;
  long long entry_capacity;
  int shared_lists;
  int token_begin, chunk_tokens;
  int head_begin, heads;
  int kv_heads;
} NsaiCombine;

/* attend_window_combine_sm90: attend_selected_combine for the query heads [head_begin, head_begin +
 * heads), whole groups, and the window branch for the same heads. */
typedef struct NsaiWindowCombine {
  NsaiAttendTma window; /* kv_heads and tiles: of these heads */
  NsaiCombine combine;
  int runs_window, runs_selected; /* the branches that run; the fields of the other are unused */
} NsaiWindowCombine;

/* select_importance: I[t, g, j] of the tokens [token_begin, token_end), or of the tokens in
 * `rows`. select_normalizer: the LSE over the keys k, coarse ones among them. select_index_scores: I of
 * index queries q and index keys k. */
typedef struct NsaiImportance {
  NsaiSequences seq;
  NsaiView q;
  NsaiView k; /* compressed keys, or index keys of one head */
  float *lse; /* f32 [T, Hq] of the compressed branch, or select_normalizer's output; natural log */
  long long lse_token_stride;
  long long lse_head_stride;
  float *importance; /* f32 [token - token_begin, or index in rows; Hkv; >= blocks] */
  long long importance_token_stride;
  long long importance_head_stride;
  const int *rows; /* Config::kProbe: token rows */
  int num_rows;    /* Config::kProbe */
  int token_begin, token_end;
  float scale;  /* of products: softmax scale * log2(e); select_index_scores: Di^-1/2 */
  int kv_heads; /* select_index_scores: groups of index heads */
  /* Config::kProbe: columns of `importance`; those beyond the candidates are set to 0. */
  int columns;
} NsaiImportance;

/* select_index_scores_sm90: the same with tensor maps. */
typedef struct NsaiIndexScoresTma {
  NsaiTensorMap q; /* boxes of kGroupPadded heads, 64 / kGroupPadded tokens */
  NsaiTensorMap k; /* boxes of one head, kKeys tokens */
  NsaiImportance packed;
  int reserved[6];
} NsaiIndexScoresTma;

/* select_index_lse: the LSE of index queries q and index keys k over chosen blocks. */
typedef struct NsaiIndexLse {
  NsaiSequences seq;
  NsaiView q;       /* dtype [T, Hi, Di] */
  NsaiView k;       /* dtype [rows, 1, Di] */
  const int *lists; /* [T, Hi, n] */
  long long list_token_stride;
  long long list_head_stride; /* 0: all heads share one list */
  float *lse;                 /* f32 [T, Hi], natural log */
  long long lse_token_stride;
  long long lse_head_stride;
  int heads;        /* Hi */
  float scale_log2; /* Di^-1/2 * log2(e) */
} NsaiIndexLse;

/* select_topn: top-n by importance, with forced blocks. */
typedef struct NsaiSelect {
  NsaiSequences seq;
  const float *importance; /* as in NsaiImportance, tokens [token_begin, token_end) */
  long long importance_token_stride;
  long long importance_head_stride;
  int *idx; /* [T, Hkv, n] ascending, then -1 */
  long long idx_token_stride;
  long long idx_head_stride;
  int token_begin, token_end;
  int kv_heads;
  int reserved;
} NsaiSelect;

/* data_sort_blocks, data_sort_ranges: sort a caller's selection into the lists that the selected
 * branch reads. */
typedef struct NsaiSortSelection {
  NsaiSequences seq;
  const int *in; /* blocks [T, heads, n] or ranges [T, heads, n, 2] */
  long long in_token_stride;
  long long in_head_stride;
  long long in_entry_stride; /* ints from one range (or index) to the next */
  int *out;                  /* [T, heads, n] or [T, heads, n, 2], contiguous */
  int heads;                 /* 1 or Hkv */
  int reserved;
} NsaiSortSelection;

/* compress_mean: phi mean of K and V. */
typedef struct NsaiCompress {
  NsaiSequences seq;
  NsaiView k, v;         /* raw */
  NsaiView k_cmp, v_cmp; /* compressed, [rows, Hkv, D] */
  int rows;              /* rows of compressed storage */
  int kv_heads;
} NsaiCompress;

/* compress_gather_rows: vec(x) of each compressed block, zero beyond the true count, and
 * vec(pe). */
typedef struct NsaiGatherRows {
  NsaiSequences seq;
  NsaiView x;                /* raw K or V */
  const void *pe;            /* dtype [Hkv, l, D]; NULL: zeros */
  long long pe_head_stride;  /* elements */
  long long pe_token_stride; /* elements */
  void *out;                 /* dtype [Hkv, rows + 1, l*D] contiguous; the last row: pe */
  int rows;
  int kv_heads;
} NsaiGatherRows;

/* compress_bias_activation: out = act(x + shift + bias), applied to the fp32 results of
 * cuBLASLt. */
typedef struct NsaiBiasActivation {
  NsaiSequences seq;  /* Config::kBlocks */
  const float *x;     /* f32 [batch, rows, columns] */
  const float *shift; /* f32 [batch, columns], x_batch_stride apart; NULL: zeros */
  const void *bias;   /* dtype [batch, columns]; NULL: zeros */
  void *out;          /* Config::kOutFloat ? f32 : dtype, [batch, rows, columns]; f32 may be x */
  void *rest;         /* dtype, like out: rounding error of the result; NULL: not wanted */
  long long x_batch_stride; /* elements, as the next three */
  long long bias_batch_stride;
  long long out_batch_stride;
  long long out_row_stride;
  int batch, rows, columns;
  int reserved;
} NsaiBiasActivation;

/* attend_causal_softmax: turns rows of fp32 scores into probabilities in dtype, for dense_gemm. */
typedef struct NsaiCausalSoftmax {
  const float *scores; /* f32 [heads, rows, keys], natural units before scaling */
  void *probs;         /* dtype [heads, rows, keys] */
  float *lse;          /* f32 [T, Hq] from this call's first row and head on; NULL */
  long long lse_token_stride;
  long long lse_head_stride;
  float scale_log2;
  int heads, rows, keys; /* keys: leading dimension of scores and probs */
  int first_position;    /* position t of row 0: row r sees keys 0 .. first_position + r */
  int reserved;
} NsaiCausalSoftmax;

#ifdef __cplusplus
#define NSAI_SIZE_IS(type, bytes)                                                                  \
  static_assert(sizeof(type) == bytes, "host and device disagree on " #type)
#else
#define NSAI_SIZE_IS(type, bytes)                                                                  \
  _Static_assert(sizeof(type) == bytes, "host and device disagree on " #type)
#endif
NSAI_SIZE_IS(NsaiView, 24);
NSAI_SIZE_IS(NsaiSequences, 40);
NSAI_SIZE_IS(NsaiEpilogue, 128);
NSAI_SIZE_IS(NsaiAttend, 256);
NSAI_SIZE_IS(NsaiTensorMap, 128);
NSAI_SIZE_IS(NsaiAttendTma, 640);
NSAI_SIZE_IS(NsaiCompressedTopn, 704);
NSAI_SIZE_IS(NsaiAttendSelected, 280);
NSAI_SIZE_IS(NsaiAttendSelectedTma, 576);
NSAI_SIZE_IS(NsaiSelectedWindow, 1152);
NSAI_SIZE_IS(NsaiKvItem, 32);
NSAI_SIZE_IS(NsaiInvert, 168);
NSAI_SIZE_IS(NsaiInvertOrder, 48);
NSAI_SIZE_IS(NsaiAttendKv, 152);
NSAI_SIZE_IS(NsaiCombine, 184);
NSAI_SIZE_IS(NsaiWindowCombine, 832);
NSAI_SIZE_IS(NsaiImportance, 168);
NSAI_SIZE_IS(NsaiIndexScoresTma, 448);
NSAI_SIZE_IS(NsaiIndexLse, 144);
NSAI_SIZE_IS(NsaiSelect, 104);
NSAI_SIZE_IS(NsaiSortSelection, 88);
NSAI_SIZE_IS(NsaiCompress, 144);
NSAI_SIZE_IS(NsaiGatherRows, 104);
NSAI_SIZE_IS(NsaiBiasActivation, 128);
NSAI_SIZE_IS(NsaiCausalSoftmax, 64);

#endif /* NSAI_PARAMS_ATTENTION_H */
