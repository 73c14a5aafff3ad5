/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the host hands to the kernels of the backward pass; conventions: params/attention.h.
 */
#ifndef NSAI_PARAMS_BACKWARD_H
#define NSAI_PARAMS_BACKWARD_H

#include "params/attention.h"

/* A gradient that a kernel writes or adds to. */
typedef struct NsaiGradient {
  NsaiView view; /* data NULL: not wanted */
  int is_float;  /* 1: f32, 0: dtype */
  int accumulate;
} NsaiGradient;

/* backward_row_stats, backward_dq: a tile of query rows over the keys of every branch. */
typedef struct NsaiBackwardQ {
  NsaiSequences seq; /* with cu_cmp of the compressed storage */
  NsaiView q;        /* dtype [T, Hq, Dk] */
  NsaiView d_o;      /* dtype [T, Hq, Dv] */
  NsaiView k[3];     /* of each branch: dtype [rows, Hkv, Dk] */
  NsaiView v[3];
  NsaiView gate;    /* [T, Hq, 3] */
  const int *lists; /* as in NsaiAttendSelected */
  long long list_token_stride;
  long long list_head_stride; /* 0: shared by all KV heads */
  void *statistics;           /* RowStatistics [3, T, Hq]: backward/products.cuh */
  NsaiGradient d_q;
  NsaiGradient d_gate; /* of weights or logits */
  float scale, scale_log2;
  int kv_heads;
  int gate_float;    /* 1: the gates are f32, 0: dtype */
  unsigned branches; /* bit b: branch b is processed */
  /* Bit b: branch b does not run, and this kernel sets the gradients of its gates to 0. */
  unsigned absent;
} NsaiBackwardQ;

/* backward_row_stats_tma, backward_dq_tma: the same with keys loaded by TMA, in persistent CTAs. */
typedef struct NsaiBackwardQTma {
  NsaiTensorMap k[3]; /* of each branch: boxes of one head, kKeys tokens */
  NsaiTensorMap v[3];
  NsaiTensorMap q; /* boxes of kGroupPadded heads, 64 rows */
  NsaiTensorMap d_o;
  NsaiBackwardQ rows;
  int tiles;  /* tiles of query tokens, times Hkv */
  int joined; /* 1: window and selected branch both run and share k and v */
} NsaiBackwardQTma;

/* backward_row_stats_saved: statistics of branches whose o_branch and lse were saved. */
typedef struct NsaiBackwardSaved {
  NsaiSequences seq;
  NsaiView d_o;         /* dtype [T, Hq, Dv] */
  NsaiView o_branch[3]; /* dtype [T, Hq, Dv] */
  const float *lse[3];  /* f32 [T, Hq], natural log */
  long long lse_token_stride[3], lse_head_stride[3];
  NsaiView gate;    /* [T, Hq, 3] */
  void *statistics; /* RowStatistics [3, T, Hq] */
  NsaiGradient d_gate;
  int heads;       /* Hq */
  int gate_float;  /* 1: the gates are f32, 0: dtype */
  unsigned saved;  /* bit b: branch b is given */
  unsigned absent; /* as in NsaiBackwardQ */
} NsaiBackwardSaved;

/* backward_dkv_compressed, backward_dkv_selected, backward_dkv_ranges, backward_dkv_window: a tile
 * of keys over the query rows that see them, for the KV heads [head_begin, head_begin + heads). */
typedef struct NsaiBackwardKv {
  NsaiSequences seq; /* with cu_cmp of the compressed storage */
  NsaiView q, d_o;
  NsaiView k, v;
  const void *statistics;  /* RowStatistics [3, T, Hq] */
  const NsaiKvItem *items; /* backward_dkv_selected: as in NsaiInvert, of all heads */
  const int *item_counts;
  const unsigned *entries;
  const int *lists; /* backward_dkv_ranges: [T, Hkv, n, 2], as in NsaiAttendSelected */
  long long list_token_stride;
  long long list_head_stride; /* 0: shared by all KV heads */
  /* f32 [heads, rows, Dk + Dv], where rows are those of k and v, or l' of each item. With splits
   * (backward_dkv_compressed, backward_dkv_ranges) [heads, splits, rows, ...]. */
  float *partial;
  long long entry_capacity;
  long long rows; /* of `partial` per head (and split), if they follow k and v */
  int item_capacity;
  int shared_lists; /* 1: all KV heads share one list */
  int head_begin, heads, kv_heads;
  int tiles; /* tiles of keys; backward_dkv_selected: per block */
  /* Splits of a tile's query rows: backward_dkv_compressed, backward_dkv_ranges. */
  int splits;
  float scale, scale_log2;
  /* backward_dkv_window_persistent: 1: the kernel also computes the selected branch of blocks that
   * begin within the window, which shares k and v; `lists` holds blocks. */
  int joined;
} NsaiBackwardKv;

/* backward_dkv_compressed_tma: the same with TMA. */
typedef struct NsaiBackwardKvTma {
  NsaiTensorMap q; /* boxes of G heads of tma_box tokens */
  NsaiTensorMap d_o;
  NsaiTensorMap k; /* boxes of one head, kKeys tokens */
  NsaiTensorMap v;
  NsaiBackwardKv kv;
} NsaiBackwardKvTma;

/* backward_dkv_selected_persistent, backward_dkv_window_persistent: with TMA and persistent CTAs. */
typedef struct NsaiBackwardDkvPersistent {
  NsaiBackwardKvTma keys;
  int *tickets; /* i32: tiles that CTAs have taken; 0 when the kernel begins */
  /* backward_dkv_selected_persistent: [heads or 1, item_capacity], as in NsaiInvertOrder; NULL: in the order
   * of their numbers. */
  const int *item_order;
} NsaiBackwardDkvPersistent;

/* backward_dkv_dq_compressed_tma: the same of the compressed branch with its dQ. */
typedef struct NsaiBackwardDkvDq {
  NsaiBackwardKvTma keys;
  float *sums; /* f32 [Hkv, blocks, 2, Dk / 16, 128, 4]: dQ, backward/pipelines/dq_sums.cuh */
  int *order;  /* [Hkv]: CTAs that have begun; [Hkv, blocks, 2]: key tiles that have added; zeros */
  long long blocks; /* of 64 rows per KV head */
} NsaiBackwardDkvDq;

/* backward_dkv_dq_selected: backward_dkv_selected with dQ of each entry of the inverted lists,
 * backward/pipelines/dq_slots.cuh. */
typedef struct NsaiBackwardDkvSlots {
  NsaiBackwardKv keys;
  void *slots;       /* fp16 [heads, entry_capacity, G, Dk]; NULL: not wanted */
  float *slot_steps; /* f32 [heads, entry_capacity, G] */
} NsaiBackwardDkvSlots;

/* backward_dq_slots: adds those of the KV heads [head_begin, ..) up, row by row. */
typedef struct NsaiBackwardDqSlots {
  NsaiSequences seq;
  const int *entry_indices; /* as in NsaiInvert */
  const void *slots;        /* as in NsaiBackwardDkvSlots */
  const float *slot_steps;
  float *sums; /* as in NsaiBackwardDkvDq */
  long long entry_capacity;
  long long blocks;
  int shared_lists;
  int head_begin;
  int tiles; /* of 64 rows per KV head */
  int adds;  /* 1: the compressed branch has written the blocks that see its keys */
} NsaiBackwardDqSlots;

/* backward_dq_sums_tma: backward_dq_tma over the other branches, beginning with those sums. */
typedef struct NsaiBackwardDqSums {
  NsaiBackwardQTma q;
  const float *sums; /* NULL: no other kernel makes dQ of a branch */
  long long blocks;
  int all; /* 1: of every block, 0: of those that see keys of the compressed branch */
  int reserved;
} NsaiBackwardDqSums;

/* backward_clear: sets words to 0. */
typedef struct NsaiBackwardClear {
  int *words;
  long long count;
} NsaiBackwardClear;

/* backward_dkv_sum: dK and dV of one pair of K and V from the partial sums of NsaiBackwardKv, in a
 * fixed order. */
typedef struct NsaiBackwardSum {
  NsaiSequences seq; /* with cu_cmp of the compressed storage */
  NsaiGradient d_k, d_v;
  const float *compressed; /* f32 [heads, splits, compressed_rows, Dk + Dv]; NULL: absent */
  const float *selected;   /* f32 [heads, item_capacity, l', Dk + Dv]; NULL: absent */
  const float *window;     /* f32 [heads, window_rows, Dk + Dv]; NULL: absent */
  const float *k_rows;     /* f32 [heads, compressed_rows + 1, l, Dk], phi linear and mlp; NULL */
  const float *v_rows;     /* f32 [heads, compressed_rows + 1, l, Dv]; NULL */
  const int *item_starts;  /* [heads or 1, blocks]: a block's first item */
  const int *item_counts;  /* [heads or 1] */
  long long compressed_rows, window_rows;
  int item_capacity, blocks, shared_lists;
  int splits;
  int rows; /* of d_k and d_v */
  int head_begin, heads;
  int is_external; /* 1: d_k and d_v are those of the compressed blocks */
  /* Ranges: `selected` is [heads, range_splits, window_rows, Dk + Dv]. */
  int range_splits;
  int reserved;
} NsaiBackwardSum;

/* backward_round_do: rounds d_o from f32 to the model's dtype. */
typedef struct NsaiBackwardRound {
  NsaiView d_o; /* f32 [T, Hq, Dv] */
  void *out;    /* dtype [T, Hq, Dv] contiguous */
  int tokens, heads;
} NsaiBackwardRound;

/* backward_activation: the gradient of a layer's result through its activation, in f32 and as a
 * GEMM operand. */
typedef struct NsaiActivationBack {
  NsaiSequences seq;  /* which rows exist; no cu_cmp */
  float *d_y;         /* f32 [batch, parts, rows, columns]; the first part receives the result */
  const float *x;     /* f32 [batch, rows, columns], before shift, bias and activation */
  const float *shift; /* f32 [batch, columns], x_batch_stride apart; NULL: zeros */
  const void *bias;   /* dtype [batch, columns]; NULL: zeros */
  void *out;          /* dtype [batch, .., columns] */
  void *hidden;       /* dtype [batch, .., columns]: act(x + shift + bias); NULL: not wanted */
  long long d_batch_stride, d_part_stride, d_row_stride; /* elements, as the next five */
  long long x_batch_stride;
  long long bias_batch_stride;
  long long out_batch_stride, hidden_batch_stride;
  long long out_row_stride; /* of out and hidden */
  int batch, rows, columns;
  int parts;
} NsaiActivationBack;

/* backward_column_sums: sums over rows, by parts of part_rows rows. */
typedef struct NsaiColumnSums {
  const float *x;                         /* f32 [batch, rows, columns] */
  long long x_batch_stride, x_row_stride; /* elements */
  float *sums;                            /* f32 [batch, parts, columns] */
  void *row; /* dtype [batch, columns]: the sums if there is one part; NULL: not wanted */
  long long row_batch_stride;
  int batch, rows, columns;
  int part_rows, parts;
  int reserved;
} NsaiColumnSums;

/* backward_store_gradient: stores a gradient from the workspace in the caller's tensor. */
typedef struct NsaiStoreGradient {
  NsaiSequences seq;
  const float *x;   /* f32 [batch, rows, columns]; NULL: zeros */
  NsaiGradient out; /* token_stride: between rows; head_stride: between batches */
  long long x_batch_stride;
  int batch, rows, columns;
  int first_token; /* -1: rows are not tokens */
} NsaiStoreGradient;

/* backward_present_rows: rows of tokens, with zeros for those behind the last sequence. */
typedef struct NsaiPresentRows {
  NsaiSequences seq;
  const void *x; /* dtype [T, columns] */
  long long x_row_stride;
  void *out; /* dtype [rows, columns] contiguous */
  int first_token, rows, columns;
  int reserved;
} NsaiPresentRows;

/* backward_ranks_sum: a gradient from the partial sums of ranks, in their order. */
#define NSAI_RANKS_SUM_PARTS 64
typedef struct NsaiRanksSum {
  const float *part[NSAI_RANKS_SUM_PARTS]; /* f32 [part_rows, heads, columns] contiguous */
  int part_rows[NSAI_RANKS_SUM_PARTS];     /* the first rows of `out` */
  NsaiGradient out;                        /* [rows, heads, columns] */
  int parts, rows, heads, columns;
} NsaiRanksSum;

NSAI_SIZE_IS(NsaiGradient, 32);
NSAI_SIZE_IS(NsaiBackwardQ, 376);
NSAI_SIZE_IS(NsaiBackwardQTma, 1408);
NSAI_SIZE_IS(NsaiBackwardSaved, 288);
NSAI_SIZE_IS(NsaiBackwardKv, 256);
NSAI_SIZE_IS(NsaiBackwardKvTma, 768);
NSAI_SIZE_IS(NsaiBackwardDkvPersistent, 832);
NSAI_SIZE_IS(NsaiBackwardDkvDq, 832);
NSAI_SIZE_IS(NsaiBackwardDkvSlots, 272);
NSAI_SIZE_IS(NsaiBackwardDqSlots, 104);
NSAI_SIZE_IS(NsaiBackwardDqSums, 1472);
NSAI_SIZE_IS(NsaiBackwardClear, 16);
NSAI_SIZE_IS(NsaiBackwardSum, 216);
NSAI_SIZE_IS(NsaiBackwardRound, 40);
NSAI_SIZE_IS(NsaiActivationBack, 168);
NSAI_SIZE_IS(NsaiColumnSums, 72);
NSAI_SIZE_IS(NsaiStoreGradient, 104);
NSAI_SIZE_IS(NsaiPresentRows, 80);
NSAI_SIZE_IS(NsaiRanksSum, 816);

#endif /* NSAI_PARAMS_BACKWARD_H */
