/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "models.h"

#include "base/math.h"
#include "verify/parallel.h"

#include <nsa/nsa.h>
#include <stdbool.h>
#include <string.h>

/* Limits for the cost of the float64 reference, not of the library. */
#define MOST_HEADS 64
#define MOST_BLOCK 192         /* tokens of a compressed block */
#define MOST_SELECT_BLOCK 256  /* tokens of a selected block, unless the compressed one is larger */
#define MOST_WINDOW 1000       /* random lengths are mostly below 600 tokens */
#define MOST_PRODUCT (1 << 14) /* inputs of phi's product: tokens of a block times Dk or Dv */

#define CHOOSE(random, table)                                                                      \
  ((table)[nsai_verify_pick(random, 0, (int64_t)(sizeof(table) / sizeof *(table)) - 1)])

static int32_t pick(nsai_verify_random *random, int32_t least, int32_t most) {
  return (int32_t)nsai_verify_pick(random, least, most);
}

static bool usual(nsai_verify_random *random) { return pick(random, 0, 3) > 0; }

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

static void draw_heads(nsai_verify_random *random, nsai_model *g) {
  static const int32_t groups[] = { 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64 };
  const int32_t group = usual(random) ? CHOOSE(random, groups) : pick(random, 1, NSAI_MAX_GROUP);
  g->kv_heads = pick(random, 1, smaller(MOST_HEADS / group, usual(random) ? 4 : 8));
  g->heads = g->kv_heads * group;
}

static int32_t draw_head_dim(nsai_verify_random *random) {
  static const int32_t dims[] = { 64, 128, 192, 256 };
  if (pick(random, 0, 1)) return CHOOSE(random, dims);
  return NSAI_HEAD_DIM_STEP * pick(random, NSAI_MIN_HEAD_DIM / NSAI_HEAD_DIM_STEP,
                                   NSAI_MAX_HEAD_DIM / NSAI_HEAD_DIM_STEP);
}

/* Stride, compressed block and selected block: each a multiple of the stride, and the third not
 * below the second. */
static void draw_blocks(nsai_verify_random *random, nsai_model *g) {
  static const int32_t strides[] = { 8, 16, 16, 32 }, others[] = { 1, 2, 4, 12, 24, 48, 64 };
  g->stride = usual(random) ? CHOOSE(random, strides) : CHOOSE(random, others);
  g->block = g->stride * pick(random, 1, smaller(usual(random) ? 4 : 16, MOST_BLOCK / g->stride));
  const int32_t least = g->block / g->stride;
  const int32_t most = (usual(random) ? 128 : MOST_SELECT_BLOCK) / g->stride;
  g->select_block = g->stride * pick(random, least, most < least ? least : most);
  /* Kernels have their tiles for 16, 32 and 64. */
  if (pick(random, 0, 1) && g->block <= 64 && 64 % g->stride == 0) g->select_block = 64;
}

/* Chosen blocks, and how many of them are the first and the last; 0 blocks: no such branch. */
static void draw_selection(nsai_verify_random *random, nsai_model *g) {
  static const int32_t others[] = { 0, 1, 2, 40, 64, NSAI_MAX_SELECTED };
  const int32_t n = usual(random) ? pick(random, 3, 32) : CHOOSE(random, others);
  g->select_count = n;
  g->select_init = pick(random, 0, usual(random) ? smaller(2, n) : n);
  const int32_t rest = n - g->select_init;
  g->select_local = pick(random, 0, usual(random) ? smaller(3, rest) : rest);
}

/* phi and the gate. The product of a long block of wide heads would cost the reference minutes:
 * such a model has the mean. */
static void draw_layers(nsai_verify_random *random, nsai_model *g) {
  static const nsai_phi_kind kinds[] = { NSAI_PHI_MEAN, NSAI_PHI_LINEAR, NSAI_PHI_MLP, NSAI_PHI_MLP,
                                         NSAI_PHI_EXTERNAL };
  g->phi = CHOOSE(random, kinds);
  if (g->block * g->head_dim_qk > MOST_PRODUCT || g->block * g->head_dim_v > MOST_PRODUCT)
    if (nsai_phi_has_weights(g)) g->phi = NSAI_PHI_MEAN;
  if (g->phi == NSAI_PHI_MLP) {
    g->phi_hidden = 8 * pick(random, 1, usual(random) ? 12 : 32);
    g->phi_activation = (nsai_activation)pick(random, 0, 2);
  }
  g->gate = (nsai_gate_kind)pick(random, 0, 3);
  if (g->gate == NSAI_GATE_MLP) {
    g->gate_channels = 8 * pick(random, 1, usual(random) ? 16 : 64);
    g->gate_hidden = 8 * (pick(random, 0, 2) ? pick(random, 1, usual(random) ? 8 : 32) : 0);
    g->gate_activation = (nsai_activation)pick(random, 0, 2);
  }
}

/* How blocks are ranked. Drawn last: the rest of a seed's model is what it would be without. Coarse
 * keys are 1 to 4 times as long as compressed ones, and as far apart, in powers of two: pages hold them
 * evenly where they hold those. */
static void draw_ranking(nsai_verify_random *random, nsai_model *g) {
  const bool is_max = pick(random, 0, 3) == 0, keys_only = pick(random, 0, 5) == 0;
  const bool normalized = pick(random, 0, 4) == 0;
  const int32_t stride = 1 << pick(random, 0, 2), overlap = pick(random, 1, 4);
  if (!g->select_count) return;
  if (is_max) g->pool = NSAI_POOL_MAX;
  if (keys_only && !g->per_branch) g->keys_only = 1;
  if (!normalized || g->phi == NSAI_PHI_EXTERNAL) return;
  g->norm_stride = g->stride * stride;
  g->norm_block = g->norm_stride * overlap;
}

/* One model in six has an index that chooses its blocks, and no compressed keys. Drawn last, too. */
static void draw_index(nsai_verify_random *random, nsai_model *g) {
  const bool indexed = pick(random, 0, 5) == 0;
  const int32_t dim = draw_head_dim(random);
  if (!indexed || !g->select_count) return;
  g->by = NSAI_BY_INDEX;
  g->phi = NSAI_PHI_NONE;
  g->phi_hidden = 0;
  g->phi_activation = NSAI_ACT_RELU;
  g->pool = NSAI_POOL_MAX;
  g->keys_only = g->norm_block = g->norm_stride = 0;
  g->index_heads = g->kv_heads;
  g->index_dim = dim;
}

void chk_model_random(uint64_t seed, nsai_model *out) {
  nsai_verify_random random = { nsai_verify_key(seed, 0x6d6f64656c), 0 }; /* "model" */
  memset(out, 0, sizeof *out);
  draw_heads(&random, out);
  out->head_dim_qk = draw_head_dim(&random);
  out->head_dim_v = pick(&random, 0, 1) ? out->head_dim_qk : draw_head_dim(&random);
  draw_blocks(&random, out);
  draw_selection(&random, out);
  out->window = pick(&random, 0, 7) ? pick(&random, 1, usual(&random) ? 300 : MOST_WINDOW) : 0;
  out->dtype = pick(&random, 0, 2) ? NSA_BF16 : NSA_F16;
  out->per_branch = pick(&random, 0, 1);
  draw_layers(&random, out);
  draw_ranking(&random, out);
  draw_index(&random, out);
}
