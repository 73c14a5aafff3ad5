/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the host hands to the kernels of nsa_index_kl; conventions: params/attention.h. Hi index heads,
 * one for each KV head; Di their dimension.
 */
#ifndef NSAI_PARAMS_INDEX_KL_H
#define NSAI_PARAMS_INDEX_KL_H

#include "params/attention.h"
#include "params/backward.h"

/* Kernels multiply probabilities by this before they round them: those of thousands of keys are small
 * for fp16. */
#define NSAI_INDEX_KL_UNIT 256

/* backward_index_kl_*: the tokens [token_begin, token_begin + chunk_tokens) and the KV heads
 * [head_begin, head_begin + heads). Lists and items: NsaiInvert of the chunk, of all heads. */
typedef struct NsaiIndexKl {
  NsaiSequences seq;
  NsaiView q;       /* dtype [T, Hq, Dk] */
  NsaiView k;       /* dtype [rows, Hkv, Dk], of the selected branch */
  NsaiView index_q; /* dtype [T, Hi, Di] */
  NsaiView k_idx;   /* dtype [rows, 1, Di] */
  const float *lse; /* f32 [T, Hq], natural log */
  long long lse_token_stride, lse_head_stride;
  const NsaiKvItem *items;
  const int *item_counts, *item_starts;
  const unsigned *entries;
  const int *entry_indices;
  long long entry_capacity;
  float *entry_lse; /* f32 [heads, entry_capacity]: log2 of the sum over a block of 2^score */
  float *row_lse;   /* f32 [heads, chunk_tokens]: over all blocks of a row; of backward_index_lse
                        io.index_lse [T, Hi], by the strides of lse */
  float *q_partial; /* f32 [heads, entry_capacity, Di]: sums of UNIT dS ki; NULL: not wanted */
  float *k_partial; /* f32 [heads, item_capacity, l', Di]: sums of UNIT dS qi; NULL: not wanted */
  float *k_sum;     /* f32 [rows, Di]: of the launches before */
  float *item_loss; /* f32 [heads, item_capacity]: UNIT times the loss in base 2 */
  double *loss_sum; /* f64 [1]: of the launches before */
  NsaiGradient d_index_q, d_k_idx;
  float *loss; /* f32 [1]; NULL: not wanted */
  int item_capacity, blocks;
  int shared_lists; /* 1: all KV heads share one list */
  int token_begin, chunk_tokens;
  int head_begin, heads, index_heads;
  int first, last;        /* 1: no launches before, behind: k_sum and loss_sum begin, end */
  float scale_log2;       /* softmax scale * log2(e) */
  float index_scale;      /* Di^-1/2 */
  float index_scale_log2; /* times log2(e) */
  float teacher_shift;    /* log2(UNIT / G) */
  float coefficient;
  int loss_accumulate;
} NsaiIndexKl;

/* backward_index_kl_pipelined */
typedef struct NsaiIndexKlTma {
  NsaiTensorMap q; /* boxes of G heads of one token */
  NsaiIndexKl kl;
} NsaiIndexKlTma;

NSAI_SIZE_IS(NsaiIndexKl, 400);
NSAI_SIZE_IS(NsaiIndexKlTma, 576);

#endif /* NSAI_PARAMS_INDEX_KL_H */
