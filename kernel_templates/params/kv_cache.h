/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Parameter structs that the host passes to the kernels that read or write a KV cache; conventions:
 * params/attention.h.
 */
#ifndef NSAI_PARAMS_KV_CACHE_H
#define NSAI_PARAMS_KV_CACHE_H

#include "params/attention.h"
#include "params/smem.h"

/* K, V or compressed entries of a cache: [pages, rows of a page, Hkv, dim]. Ring buffers and caches
 * without pages: [rows, tokens, Hkv, dim]. The last stride is 1. Strides count 16-bit elements or, in
 * E4M3, words of two codes. */
typedef struct NsaiCacheTensor {
  void *data;
  long long page_stride;
  long long row_stride;
  long long head_stride;
} NsaiCacheTensor;

/* K and V of one pair of a cache. */
typedef struct NsaiCachePair {
  NsaiCacheTensor k, v;
  int ring;  /* tokens of a row if the pair lies in ring buffers; otherwise 0 */
  int pages; /* pages, or rows, that exist; of compressed entries 0 */
} NsaiCachePair;

/* How new tokens belong to the sequences of a cache, and where the sequences lie
 * (data/cache_rows.cuh). */
typedef struct NsaiCacheBatch {
  const int *cu_q;        /* [num_seqs + 1]; NULL: each sequence has q_each new tokens */
  const int *kv_len;      /* [num_seqs]: tokens including the new ones; 0: a padded row */
  const int *pages;       /* block tables, one sequence after the other; NULL: no pages */
  const int *page_starts; /* [num_seqs + 1], begins of the tables; NULL: page_list_stride apart */
  const int *slots; /* [num_seqs]: rows of ring buffers and of caches without pages; NULL: row s */
  long long page_list_stride; /* ints */
  int num_seqs;
  int q_tokens; /* rows of q, or new tokens */
  int q_each;
  int max_kv_len; /* as in NsaiSequences; a block table has pages for as many tokens */
  int page_size;  /* tokens */
  int reserved;
} NsaiCacheBatch;

/* Structs that add a cache to a packed struct. The packed struct's seq, k and v are unused, but for
 * seq.max_kv_len in NsaiCompressedTopn. */
typedef struct NsaiCachedAttend {
  NsaiCacheBatch batch;
  NsaiCachePair pair; /* attend_compressed_sm80: the compressed entries */
  NsaiAttend packed;
} NsaiCachedAttend;

typedef struct NsaiCachedAttendSelected {
  NsaiCacheBatch batch;
  NsaiCachePair pair;
  NsaiAttendSelected packed;
} NsaiCachedAttendSelected;

/* Rows of the boxes by which these kernels read a cache: of a window, which begins anywhere, and of
 * stages of `keys` keys on a grid. page_rows 0: no pages. */
#define NSAI_WINDOW_BOX_ROWS 16
NSAI_SIZE nsai_list_box_rows(int page_rows, int keys) {
  return page_rows && page_rows < keys ? page_rows : keys;
}

/* The kernels of sm_90 over a cache. Maps of K and V are those of nsai_tensor_map_pages(); kernels
 * that read compressed entries have none. */
typedef struct NsaiCachedAttendTma {
  NsaiAttendTma packed;
  NsaiCacheBatch batch;
  NsaiCachePair pair;
  int reserved[12];
} NsaiCachedAttendTma;

typedef struct NsaiCachedCompressedTopn {
  NsaiCompressedTopn packed; /* without maps of K and V */
  NsaiCacheBatch batch;
  NsaiCachePair pair; /* the compressed entries */
  int reserved[12];
} NsaiCachedCompressedTopn;

typedef struct NsaiCachedAttendSelectedTma {
  NsaiAttendSelectedTma packed;
  NsaiCacheBatch batch;
  NsaiCachePair pair;
  int reserved[12];
} NsaiCachedAttendSelectedTma;

typedef struct NsaiCachedSelectedWindow {
  NsaiSelectedWindow packed;
  NsaiCacheBatch batch;
  NsaiCachePair pair; /* of the selected branch */
  NsaiCachePair window;
  int reserved[10];
} NsaiCachedSelectedWindow;

typedef struct NsaiCachedImportance {
  NsaiCacheBatch batch;
  NsaiCacheTensor k;
  NsaiImportance packed;
} NsaiCachedImportance;

typedef struct NsaiCachedIndexScoresTma {
  NsaiTensorMap q;
  NsaiTensorMap k; /* of nsai_tensor_map_pages() */
  NsaiImportance packed;
  NsaiCacheBatch batch;
  int pages; /* pages, or rows, that exist */
  int reserved;
  const float *k_scale; /* Config::kScaled: of the codes that the keys were; NULL: 1 */
} NsaiCachedIndexScoresTma;

/* Partial results of a split-KV decode kernel, f32: for each (work item, split, row) the
 * unnormalised O and the reference and sum of its softmax; a sum of 0 means that O was not
 * written. */
typedef struct NsaiDecodeSplits {
  float *o;     /* [work items, splits, rows, Dv] */
  float *stats; /* [work items, splits, rows, 2] */
  int splits;
  /* decode_split_kv_compressed: fewest granules of keys per consumer group, if there are enough. */
  int min_granules;
} NsaiDecodeSplits;

/* Counters of reads from the cache, i64 [num_seqs, Hkv, branches, 2]: tokens, bytes. */
typedef struct NsaiKvReads {
  void *data; /* NULL: not counted */
  long long sequence_stride;
  long long head_stride;
  long long branch_stride;
} NsaiKvReads;

/* decode_split_kv_*, decode_single_cta, decode_pipelined, decode_cluster (decode/work.cuh). */
typedef struct NsaiDecode {
  NsaiCacheBatch batch;
  NsaiView q;
  NsaiCachePair entries;  /* compressed */
  NsaiCachePair selected; /* raw tokens of the selected branch */
  NsaiCachePair window;
  NsaiEpilogue out[3];   /* per branch: lse, o_branch and gate; o is in the first */
  NsaiDecodeSplits scan; /* work items: (tile of tokens, KV head); rows: kScanRows */
  NsaiDecodeSplits
      /* Work items: (token, KV head); rows: kGroup; the splits of the window come first. */
      attend;
  float *pooled;  /* f32 [scan's work items, kScanRows / 16, pooled_blocks, 16], log2 */
  float *carries; /* f32 [scan's work items, scan.splits, consumer groups, kScanRows], log2 */
  int *idx;       /* [T, Hkv, n] ascending, then -1; or ranges [T, Hkv, n, 2] */
  long long idx_token_stride;
  long long idx_head_stride;
  float scale_log2;
  int kv_heads;
  int tiles;     /* tiles of tokens in decode_split_kv_compressed */
  int seq_tiles; /* tiles per sequence; 0: they follow from cu_q */
  int pooled_blocks;
  int window_splits; /* splits of `attend` that belong to the window */
  int branches;      /* bit b: branch b is part of the sum */
  int row_warps;     /* decode_split_kv_combine: 1, 2, 4 or 8 warps share a row's splits */
  int probes;        /* the compressed branch's lse is wanted even if it is not part of the sum */
  int reserved;
  NsaiKvReads kv_reads; /* Config::kCountReads */
} NsaiDecode;

/* kv_cache_append: writes new tokens and the compressed entries that they complete. */
typedef struct NsaiAppend {
  NsaiCacheBatch batch;
  const long long *slot_mapping; /* [T]; -1: the token is not written; NULL: all are */
  NsaiCachePair cache[3];        /* the pairs that the model reads, see `pairs` */
  NsaiView k[3], v[3];           /* the new tokens of each pair */
  NsaiCachePair entries;
  int kv_heads;
  int pairs; /* bit i: pair i is written */
} NsaiAppend;

/* kv_cache_gather_entries: vec(x) of each entry that an append completes, zero in left-over rows,
 * and vec(pe). */
typedef struct NsaiGatherEntries {
  NsaiCacheBatch batch;
  const long long *slot_mapping; /* as in NsaiAppend */
  NsaiCacheTensor x;             /* raw K or V, including the new tokens */
  const void *pe;                /* as in NsaiGatherRows, up to `rows` */
  long long pe_head_stride;
  long long pe_token_stride;
  void *out;
  int rows; /* GEMM rows: data/new_entries.cuh */
  int kv_heads;
} NsaiGatherEntries;

/* kv_cache_scatter_entries: copies phi's rows into the cache. */
typedef struct NsaiScatterEntries {
  NsaiCacheBatch batch;
  const long long *slot_mapping;
  NsaiCachePair entries;
  const void *k, *v; /* dtype [rows, Hkv, D] contiguous */
  int kv_heads;
  int reserved;
} NsaiScatterEntries;

/* A scale of a cache in E4M3: value = code * scale. */
typedef struct NsaiScale {
  const float *data;     /* f32 [1] or [Hkv]; NULL: 1 */
  long long head_stride; /* 0: one for all KV heads */
} NsaiScale;
typedef struct NsaiPairScales {
  NsaiScale k, v;
} NsaiPairScales;

/* Structs of the kernels that read or write codes, or, with Config::kScaled, elements that need the
 * scales of the codes that they were. */
typedef struct NsaiCodedAttend {
  NsaiCachedAttend cached;
  NsaiPairScales scales;
} NsaiCodedAttend;

typedef struct NsaiCodedAttendSelected {
  NsaiCachedAttendSelected cached;
  NsaiPairScales scales;
} NsaiCodedAttendSelected;

typedef struct NsaiCodedAttendTma {
  NsaiCachedAttendTma cached;
  NsaiPairScales scales;
  int reserved[8];
} NsaiCodedAttendTma;

typedef struct NsaiCodedCompressedTopn {
  NsaiCachedCompressedTopn cached;
  NsaiPairScales scales;
  int reserved[8];
} NsaiCodedCompressedTopn;

/* Entries of a cache in codes that lie in the workspace as fp16, without their scales: those of the
 * sequences with at least `least_tokens` new tokens (data/expanded_entries.cuh). */
typedef struct NsaiExpanded {
  NsaiCacheTensor k, v; /* fp16 [slots, Hkv, entries, dim]; a slot is a page of as many rows */
  int least_tokens;
  int by_tokens; /* 1: the slot of a sequence is its first new token / least_tokens, 0: its number */
} NsaiExpanded;

/* kv_cache_expand_entries: writes them, a CTA so many of a KV head. */
#define NSAI_EXPANDED_AT_ONCE 64
typedef struct NsaiExpandEntries {
  NsaiCacheBatch batch;
  NsaiCachePair entries; /* codes */
  NsaiExpanded to;
  int kv_heads;
  int reserved;
} NsaiExpandEntries;

/* kv_cache_expand_tokens: writes raw tokens in codes to the workspace as elements, a CTA so many of a
 * KV head. Of a sequence those from `behind` tokens before its first new one on. */
#define NSAI_EXPANDED_TOKENS 64
typedef struct NsaiExpandTokens {
  NsaiCacheBatch batch;
  NsaiCachePair from; /* codes */
  NsaiCachePair to;   /* elements, rows or rings: sequence s lies in row s */
  int kv_heads;
  int behind;
} NsaiExpandTokens;

/* With Config::kExpanded. They begin like NsaiCodedAttendTma and NsaiCodedCompressedTopn. */
typedef struct NsaiExpandedAttendTma {
  NsaiCachedAttendTma cached;
  NsaiPairScales scales;
  NsaiExpanded expanded;
  int reserved[6];
} NsaiExpandedAttendTma;

typedef struct NsaiExpandedCompressedTopn {
  NsaiCachedCompressedTopn cached;
  NsaiPairScales scales;
  NsaiExpanded expanded;
  int reserved[6];
} NsaiExpandedCompressedTopn;

typedef struct NsaiCodedAttendSelectedTma {
  NsaiCachedAttendSelectedTma cached;
  NsaiPairScales scales;
  int reserved[8];
} NsaiCodedAttendSelectedTma;

typedef struct NsaiCodedSelectedWindow {
  NsaiCachedSelectedWindow cached;
  NsaiPairScales scales[NSAI_FUSED_BRANCHES];
} NsaiCodedSelectedWindow;

typedef struct NsaiCodedImportance {
  NsaiCachedImportance cached;
  NsaiScale k_scale;
} NsaiCodedImportance;

typedef struct NsaiCachedIndexLse {
  NsaiCacheBatch batch;
  NsaiCacheTensor k; /* the index keys, which may be codes */
  NsaiScale k_scale;
  NsaiIndexLse packed;
} NsaiCachedIndexLse;

/* select_importance, select_normalizer and select_index_scores with Config::kStep: of a decode step,
 * whose keys are split over CTAs. */
typedef struct NsaiStepImportance {
  NsaiCodedImportance coded;
  NsaiKvReads kv_reads; /* Config::kCountReads */
  /* select_normalizer has a part of the LSE for each of its splits, which select_importance adds up. */
  long long lse_split_stride; /* elements from one to the next */
  int lse_splits;
  int reserved;
} NsaiStepImportance;

typedef struct NsaiCodedDecode {
  NsaiDecode decode;
  NsaiPairScales scales[NSAI_BRANCH_COUNT]; /* of entries, selected and window */
} NsaiCodedDecode;

/* decode_split_kv_attend, _partial and _combine over ranks (Config::kRanks): this rank attends to those
 * selected blocks whose raw tokens it holds, and all ranks' partial results become the branch. */
typedef struct NsaiRanksDecode {
  NsaiCodedDecode coded;
  /* f32, of each rank O [T, Hq, Dv], not normalised, then the reference and the sum of its softmax
   * [T, Hq, 2]; decode_split_kv_partial writes this rank's. */
  float *gathered;
  long long rank_stride; /* floats from one rank's to the next, a multiple of 4 */
  int rank, ranks;
  int unit_blocks; /* successive blocks of a sequence on one rank */
  int reserved;
} NsaiRanksDecode;

/* decode_select_attend: a decode step behind the importance of the tokens [token_begin, token_end). */
typedef struct NsaiSelectAttend {
  NsaiCodedDecode coded;
  const float *importance; /* as in NsaiSelect */
  long long importance_token_stride;
  long long importance_head_stride;
  int token_begin, token_end;
} NsaiSelectAttend;

/* With Config::kScores: of compressed keys in coded.decode.entries and coarse keys; `importance` is unused. */
typedef struct NsaiScoredAttend {
  NsaiSelectAttend attend;
  NsaiCacheTensor coarse;
} NsaiScoredAttend;

typedef struct NsaiCodedAppend {
  NsaiAppend append;
  NsaiPairScales scales[3]; /* as in `cache` */
  NsaiPairScales entry_scales;
} NsaiCodedAppend;

/* kv_cache_append with coarse keys. The scales are unused unless the cache holds codes. */
typedef struct NsaiNormedAppend {
  NsaiCodedAppend coded;
  NsaiCacheTensor norms; /* coarse keys, never in codes */
} NsaiNormedAppend;

/* kv_cache_append with index keys. The coarse keys are unused: a model has one or the other. */
typedef struct NsaiIndexedAppend {
  NsaiNormedAppend normed;
  NsaiCacheTensor index; /* index keys, one for each token */
  NsaiView new_index;
} NsaiIndexedAppend;

/* The same where the index keys are stored in codes. */
typedef struct NsaiIndexCodedAppend {
  NsaiIndexedAppend indexed;
  NsaiScale scale; /* of the index keys */
} NsaiIndexCodedAppend;

/* The same over ranks (Config::kRanks): entries, coarse keys and index keys have pages of their own. */
typedef struct NsaiRanksAppend {
  NsaiIndexCodedAppend append;
  const int *entry_pages;      /* block tables, one sequence after the other */
  long long entry_page_stride; /* ints */
} NsaiRanksAppend;

typedef struct NsaiCodedGatherEntries {
  NsaiGatherEntries gather;
  NsaiScale scale; /* of x */
} NsaiCodedGatherEntries;

typedef struct NsaiCodedScatterEntries {
  NsaiScatterEntries scatter;
  NsaiPairScales scales;
} NsaiCodedScatterEntries;

typedef struct NsaiCachedSelect {
  NsaiCacheBatch batch;
  NsaiSelect packed;
} NsaiCachedSelect;

typedef struct NsaiCachedSortSelection {
  NsaiCacheBatch batch;
  NsaiSortSelection packed;
} NsaiCachedSortSelection;

NSAI_SIZE_IS(NsaiCacheTensor, 32);
NSAI_SIZE_IS(NsaiCachePair, 72);
NSAI_SIZE_IS(NsaiCacheBatch, 72);
NSAI_SIZE_IS(NsaiCachedAttend, 400);
NSAI_SIZE_IS(NsaiCachedAttendSelected, 424);
NSAI_SIZE_IS(NsaiCachedAttendTma, 832);
NSAI_SIZE_IS(NsaiCachedCompressedTopn, 896);
NSAI_SIZE_IS(NsaiCachedAttendSelectedTma, 768);
NSAI_SIZE_IS(NsaiCachedSelectedWindow, 1408);
NSAI_SIZE_IS(NsaiCachedImportance, 272);
NSAI_SIZE_IS(NsaiCachedIndexScoresTma, 512);
NSAI_SIZE_IS(NsaiDecodeSplits, 24);
NSAI_SIZE_IS(NsaiKvReads, 32);
NSAI_SIZE_IS(NsaiDecode, 856);
NSAI_SIZE_IS(NsaiAppend, 520);
NSAI_SIZE_IS(NsaiGatherEntries, 152);
NSAI_SIZE_IS(NsaiScatterEntries, 176);
NSAI_SIZE_IS(NsaiPairScales, 32);
NSAI_SIZE_IS(NsaiCodedAttend, 432);
NSAI_SIZE_IS(NsaiCodedAttendSelected, 456);
NSAI_SIZE_IS(NsaiCodedAttendTma, 896);
NSAI_SIZE_IS(NsaiCodedCompressedTopn, 960);
NSAI_SIZE_IS(NsaiExpanded, 72);
NSAI_SIZE_IS(NsaiExpandEntries, 224);
NSAI_SIZE_IS(NsaiExpandTokens, 224);
NSAI_SIZE_IS(NsaiExpandedAttendTma, 960);
NSAI_SIZE_IS(NsaiExpandedCompressedTopn, 1024);
NSAI_SIZE_IS(NsaiCodedAttendSelectedTma, 832);
NSAI_SIZE_IS(NsaiCodedSelectedWindow, 1472);
NSAI_SIZE_IS(NsaiCodedImportance, 288);
NSAI_SIZE_IS(NsaiCachedIndexLse, 264);
NSAI_SIZE_IS(NsaiStepImportance, 336);
NSAI_SIZE_IS(NsaiCodedDecode, 952);
NSAI_SIZE_IS(NsaiRanksDecode, 984);
NSAI_SIZE_IS(NsaiSelectAttend, 984);
NSAI_SIZE_IS(NsaiScoredAttend, 1016);
NSAI_SIZE_IS(NsaiCodedAppend, 648);
NSAI_SIZE_IS(NsaiNormedAppend, 680);
NSAI_SIZE_IS(NsaiIndexedAppend, 736);
NSAI_SIZE_IS(NsaiIndexCodedAppend, 752);
NSAI_SIZE_IS(NsaiRanksAppend, 768);
NSAI_SIZE_IS(NsaiCodedGatherEntries, 168);
NSAI_SIZE_IS(NsaiCodedScatterEntries, 208);
NSAI_SIZE_IS(NsaiCachedSelect, 176);
NSAI_SIZE_IS(NsaiCachedSortSelection, 160);

#endif /* NSAI_PARAMS_KV_CACHE_H */
