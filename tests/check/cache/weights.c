/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The weights of a world: of phi, and of its gates. They are written once.
 */
#include "internal.h"

#include <math.h>

#define SHAPE(...) ((const int64_t[]){ __VA_ARGS__ })

/* A weight's elements of the variance that keeps products at unit variance. */
static nsa_status make_weight(chk_kv_scenario *w, int what, int64_t a, int64_t b, int64_t c) {
  int64_t heads = w->opts.model.kv_heads;
  NSAI_TRY(
      chk_kv_make(w, what, w->opts.model.dtype, c ? 3 : 2, SHAPE(heads, c ? a : b, c ? b : 0)));
  chk_kv_fill_scaled(w, what, heads, 1 / sqrt((double)a));
  return chk_kv_upload(w, what);
}

/* pe, then linear's W or mlp's W1, b1, W2, b2, of one of K and V. */
static nsa_status make_side(chk_kv_scenario *w, int first, int64_t dim) {
  const nsai_model *g = &w->opts.model;
  int64_t h = g->phi_hidden, all = g->block * dim;
  NSAI_TRY(make_weight(w, first + CHK_KV_PE, g->block, dim, 1));
  if (g->phi == NSAI_PHI_LINEAR) return make_weight(w, first + CHK_KV_W, all, dim, 1);
  NSAI_TRY(make_weight(w, first + CHK_KV_W1, all, h, 1));
  NSAI_TRY(make_weight(w, first + CHK_KV_B1, 16, h, 0));
  NSAI_TRY(make_weight(w, first + CHK_KV_W2, h, dim, 1));
  return make_weight(w, first + CHK_KV_B2, 16, dim, 0);
}

static nsa_status make_phi(chk_kv_scenario *w) {
  const nsai_model *g = &w->opts.model;
  if (!nsai_phi_has_weights(g)) return NSA_OK;
  NSAI_TRY(make_side(w, CHK_KV_PHI_K, g->head_dim_qk));
  return make_side(w, CHK_KV_PHI_V, g->head_dim_v);
}

/* C x H, or H wide alone, of the gates' layers. */
static nsa_status make_layer(chk_kv_scenario *w, int what, int64_t in, int64_t out) {
  const int32_t dtype = w->opts.model.dtype;
  NSAI_TRY(chk_kv_make(w, what, dtype, 2, SHAPE(in, out)));
  NSAI_TRY(chk_kv_make(w, what + 1, dtype, 1, SHAPE(out)));
  chk_kv_fill_scaled(w, what, in, 1 / sqrt((double)in));
  chk_kv_fill_scaled(w, what + 1, out, 0.3);
  NSAI_TRY(chk_kv_upload(w, what));
  return chk_kv_upload(w, what + 1);
}

nsa_status chk_kv_make_weights(chk_kv_scenario *w) {
  const nsai_model *g = &w->opts.model;
  NSAI_TRY(make_phi(w));
  if (g->gate != NSAI_GATE_MLP) return NSA_OK;
  NSAI_TRY(make_layer(w, CHK_KV_GATE_W1, g->gate_channels, g->gate_hidden));
  return make_layer(w, CHK_KV_GATE_W2, g->gate_hidden, (int64_t)g->heads * NSA_BRANCHES);
}

nsa_gate chk_kv_gate(const chk_kv_scenario *w, bool gpu, int64_t rows) {
  nsa_tensor first = chk_kv_view(w, CHK_KV_GATE, gpu);
  first.shape[0] = rows;
  if (w->opts.model.gate != NSAI_GATE_MLP) return (nsa_gate){ .value = first };
  return (nsa_gate){ .x = first,
                     .w1 = chk_kv_view(w, CHK_KV_GATE_W1, gpu),
                     .b1 = chk_kv_view(w, CHK_KV_GATE_W1 + 1, gpu),
                     .w2 = chk_kv_view(w, CHK_KV_GATE_W2, gpu),
                     .b2 = chk_kv_view(w, CHK_KV_GATE_W2 + 1, gpu) };
}

static nsa_phi_side side_of(const chk_kv_scenario *w, int first, bool gpu) {
  return (nsa_phi_side){ .pe = chk_kv_view(w, first + CHK_KV_PE, gpu),
                         .w = chk_kv_view(w, first + CHK_KV_W, gpu),
                         .w1 = chk_kv_view(w, first + CHK_KV_W1, gpu),
                         .b1 = chk_kv_view(w, first + CHK_KV_B1, gpu),
                         .w2 = chk_kv_view(w, first + CHK_KV_W2, gpu),
                         .b2 = chk_kv_view(w, first + CHK_KV_B2, gpu) };
}

nsa_phi chk_kv_phi(const chk_kv_scenario *w, bool gpu) {
  return (nsa_phi){ side_of(w, CHK_KV_PHI_K, gpu), side_of(w, CHK_KV_PHI_V, gpu) };
}
