/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The model's dimensions: section `model` of the configuration, typed and checked. Shared by
 * configuration, problems, the CPU reference and the kernels' constants.
 */
#ifndef NSAI_MODEL_MODEL_H
#define NSAI_MODEL_MODEL_H

#include <stdint.h>

typedef enum nsai_phi_kind {
  NSAI_PHI_MEAN,
  NSAI_PHI_LINEAR,
  NSAI_PHI_MLP,
  NSAI_PHI_EXTERNAL,
  NSAI_PHI_NONE /* no compressed keys, values and branch */
} nsai_phi_kind;
typedef enum nsai_gate_kind {
  NSAI_GATE_WEIGHTS,
  NSAI_GATE_LOGITS,
  NSAI_GATE_MLP,
  NSAI_GATE_NONE /* the branches are added up as they are */
} nsai_gate_kind;
/* What ranks the blocks of a selection: compressed keys, or queries and keys of an index branch. */
typedef enum nsai_ranked_by { NSAI_BY_COMPRESSED, NSAI_BY_INDEX } nsai_ranked_by;
/* How the compressed blocks of a selection block, or its tokens' index scores, make its importance. */
typedef enum nsai_pool_kind { NSAI_POOL_SUM, NSAI_POOL_MAX } nsai_pool_kind;
typedef enum nsai_activation { NSAI_ACT_RELU, NSAI_ACT_SILU, NSAI_ACT_GELU } nsai_activation;

/* Limits of the kernels. The configuration refuses larger values and names the key. */
/* Rows are counted in int32 on the device, with reserve for a tile and for one more tile per
 * sequence after the last row. The tiles of a launch (at most rows + sequences) fit as well. */
#define NSAI_MAX_ROWS INT64_C(2000000000)
#define NSAI_MAX_SEQS 1000000

#define NSAI_MAX_GROUP 64 /* query heads per KV head */
#define NSAI_MAX_HEAD_DIM 256
#define NSAI_MIN_HEAD_DIM 16
#define NSAI_HEAD_DIM_STEP 8   /* 16 bytes of bf16: the granularity of cp.async */
#define NSAI_CODES_DIM_STEP 16 /* of a cache in NSA_E4M3: 16 bytes of codes */
#define NSAI_MAX_SELECTED 256
#define NSAI_MIN_PAGE_SIZE 16
#define NSAI_MAX_PAGE_SIZE 128

typedef struct nsai_model {
  int32_t heads, kv_heads;           /* Hq, Hkv; Hkv divides Hq */
  int32_t head_dim_qk, head_dim_v;   /* Dk, Dv */
  int32_t block, stride;             /* d divides l */
  int32_t select_block;              /* d divides l', l <= l' */
  int32_t select_count;              /* n, including the forced ones; 0: branch off */
  int32_t select_init, select_local; /* forced blocks: n_init + n_local <= n */
  int32_t window;                    /* w; 0: branch off */
  int32_t per_branch;                /* 1: three K/V pairs, 0: one shared */
  int32_t dtype;                     /* NSA_BF16, NSA_F16; NSA_F32 on the CPU device only */
  nsai_phi_kind phi;
  int32_t phi_hidden; /* H of phi mlp */
  nsai_activation phi_activation;
  nsai_gate_kind gate;
  int32_t gate_channels, gate_hidden; /* C; H, 0: one layer */
  nsai_activation gate_activation;
  nsai_pool_kind pool;
  /* Of the coarse keys that normalise the selection's probabilities: the stride divides the block. 0:
   * the compressed keys do. */
  int32_t norm_block, norm_stride;
  int32_t keys_only; /* 1: compressed keys serve the selection alone; there are no compressed values
                        and no compressed branch */
  nsai_ranked_by by;
  int32_t index_heads, index_dim; /* Hi, one query head for each KV head; Di; 0 without an index */
} nsai_model;

/* Whether phi has weights, that is a product for every compressed block. With `external` the
 * caller computes the compressed blocks. */
static inline int nsai_phi_has_weights(const nsai_model *g) {
  return g->phi == NSAI_PHI_LINEAR || g->phi == NSAI_PHI_MLP;
}

/* Whether there are compressed keys. */
static inline int nsai_compresses(const nsai_model *g) { return g->phi != NSAI_PHI_NONE; }

/* Whether there are compressed values, and with them the compressed branch. */
static inline int nsai_compresses_values(const nsai_model *g) {
  return nsai_compresses(g) && !g->keys_only;
}

/* Whether phi makes compressed keys of raw ones. */
static inline int nsai_phi_runs(const nsai_model *g) {
  return nsai_compresses(g) && g->phi != NSAI_PHI_EXTERNAL;
}

/* Whether the model has this branch. */
static inline int nsai_has_branch(const nsai_model *g, int branch) {
  const int has[3] = { nsai_compresses_values(g), g->select_count > 0, g->window > 0 };
  return has[branch];
}

/* The branches that the model has: bit b is branch b. */
static inline uint32_t nsai_branches(const nsai_model *g) {
  uint32_t bits = 0;
  for (int b = 0; b < 3; b++) bits |= nsai_has_branch(g, b) ? 1u << b : 0;
  return bits;
}

/* Whether importance takes its log-sum-exp from a pass of its own: over coarse keys or, where there is
 * no compressed branch, over the compressed keys. The scores of an index need none. */
static inline int nsai_normalizes_apart(const nsai_model *g) {
  return g->norm_block || g->keys_only;
}

/* Whether importance takes it from the compressed branch. */
static inline int nsai_ranks_by_branch_lse(const nsai_model *g) {
  return g->by == NSAI_BY_COMPRESSED && !nsai_normalizes_apart(g);
}

/* Whether importance is a weighted sum of the compressed branch's own probabilities. */
static inline int nsai_ranks_by_branch(const nsai_model *g) {
  return nsai_ranks_by_branch_lse(g) && g->pool == NSAI_POOL_SUM;
}

/* Whether the gates are a tensor of the caller's: weights or logits [T, Hq, 3]. */
static inline int nsai_gate_is_given(const nsai_model *g) {
  return g->gate == NSAI_GATE_WEIGHTS || g->gate == NSAI_GATE_LOGITS;
}

/* Whether the selected branch, or the window if `window` says so, reads raw K and V of pair 0, 1 or 2. */
static inline int nsai_attends_pair(const nsai_model *g, int window, int pair) {
  int reads[3] = { 0, g->select_count > 0, window };
  return g->per_branch ? reads[pair] : !pair && (reads[1] || reads[2]);
}

/* Whether the model reads raw K and V of a pair: phi reads pair 0. */
static inline int nsai_reads_pair(const nsai_model *g, int pair) {
  return (!pair && nsai_phi_runs(g)) || nsai_attends_pair(g, g->window > 0, pair);
}

/* Whether the pages of a KV cache can have this many tokens; 0: no pages. */
static inline int nsai_page_size_exists(int32_t size) {
  return !size ||
         (size >= NSAI_MIN_PAGE_SIZE && size <= NSAI_MAX_PAGE_SIZE && !(size & (size - 1)));
}

/* N(L): compressed blocks of a sequence of `len` tokens. */
static inline int64_t nsai_block_count(const nsai_model *g, int64_t len) {
  return !nsai_compresses(g) || len < g->block ? 0 : (len - g->block) / g->stride + 1;
}

/* Coarse keys of a sequence of `len` tokens. */
static inline int64_t nsai_norm_count(const nsai_model *g, int64_t len) {
  return !g->norm_block || len < g->norm_block ? 0 : (len - g->norm_block) / g->norm_stride + 1;
}

/* Selection blocks of a sequence of `len` tokens, including the incomplete last one. */
static inline int64_t nsai_select_block_count(const nsai_model *g, int64_t len) {
  return (len + g->select_block - 1) / g->select_block;
}

#endif /* NSAI_MODEL_MODEL_H */
