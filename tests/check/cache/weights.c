/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The weights of a scenario's phi and gates. They are written once.
 */
#include "scenario.h"

#include <math.h>

#define SHAPE(...) ((const int64_t[]){ __VA_ARGS__ })

/* Scales a weight's elements so that products have unit variance. */
static nsa_status make_weight(chk_scenario *sc, int what, int64_t a, int64_t b, int64_t c) {
  int64_t heads = sc->options.model.kv_heads;
  NSAI_TRY(chk_cache_make(sc, what, sc->options.model.dtype, c ? 3 : 2,
                          SHAPE(heads, c ? a : b, c ? b : 0)));
  chk_cache_fill_scaled(sc, what, heads, 1 / sqrt((double)a));
  return chk_cache_upload(sc, what);
}

/* pe, then linear's W or mlp's W1, b1, W2, b2, for K or V. */
static nsa_status make_side(chk_scenario *sc, int first, int64_t dim) {
  const nsai_model *g = &sc->options.model;
  int64_t h = g->phi_hidden, all = g->block * dim;
  NSAI_TRY(make_weight(sc, first + CHK_CACHE_PE, g->block, dim, 1));
  if (g->phi == NSAI_PHI_LINEAR) return make_weight(sc, first + CHK_CACHE_W, all, dim, 1);
  NSAI_TRY(make_weight(sc, first + CHK_CACHE_W1, all, h, 1));
  NSAI_TRY(make_weight(sc, first + CHK_CACHE_B1, 16, h, 0));
  NSAI_TRY(make_weight(sc, first + CHK_CACHE_W2, h, dim, 1));
  return make_weight(sc, first + CHK_CACHE_B2, 16, dim, 0);
}

static nsa_status make_phi(chk_scenario *sc) {
  const nsai_model *g = &sc->options.model;
  if (!nsai_phi_has_weights(g)) return NSA_OK;
  NSAI_TRY(make_side(sc, CHK_CACHE_PHI_K, g->head_dim_qk));
  return make_side(sc, CHK_CACHE_PHI_V, g->head_dim_v);
}

/* A layer of the gates: C x H, or a bias of width H. */
static nsa_status make_layer(chk_scenario *sc, int what, int64_t in, int64_t out) {
  const int32_t dtype = sc->options.model.dtype;
  NSAI_TRY(chk_cache_make(sc, what, dtype, 2, SHAPE(in, out)));
  NSAI_TRY(chk_cache_make(sc, what + 1, dtype, 1, SHAPE(out)));
  chk_cache_fill_scaled(sc, what, in, 1 / sqrt((double)in));
  chk_cache_fill_scaled(sc, what + 1, out, 0.3);
  NSAI_TRY(chk_cache_upload(sc, what));
  return chk_cache_upload(sc, what + 1);
}

nsa_status chk_cache_make_weights(chk_scenario *sc) {
  const nsai_model *g = &sc->options.model;
  NSAI_TRY(make_phi(sc));
  if (g->gate != NSAI_GATE_MLP) return NSA_OK;
  if (g->gate_hidden) NSAI_TRY(make_layer(sc, CHK_CACHE_GATE_W1, g->gate_channels, g->gate_hidden));
  return make_layer(sc, CHK_CACHE_GATE_W2, g->gate_hidden ? g->gate_hidden : g->gate_channels,
                    (int64_t)g->heads * NSA_BRANCHES);
}

nsa_gate chk_cache_gate(const chk_scenario *sc, bool gpu, int64_t rows) {
  nsa_tensor first = chk_cache_view(sc, CHK_CACHE_GATE, gpu);
  first.shape[0] = rows;
  if (sc->options.model.gate == NSAI_GATE_NONE) return (nsa_gate){ 0 };
  if (sc->options.model.gate != NSAI_GATE_MLP) return (nsa_gate){ .value = first };
  return (nsa_gate){ .x = first,
                     .w1 = chk_cache_view(sc, CHK_CACHE_GATE_W1, gpu),
                     .b1 = chk_cache_view(sc, CHK_CACHE_GATE_W1 + 1, gpu),
                     .w2 = chk_cache_view(sc, CHK_CACHE_GATE_W2, gpu),
                     .b2 = chk_cache_view(sc, CHK_CACHE_GATE_W2 + 1, gpu) };
}

static nsa_phi_side side_of(const chk_scenario *sc, int first, bool gpu) {
  return (nsa_phi_side){ .pe = chk_cache_view(sc, first + CHK_CACHE_PE, gpu),
                         .w = chk_cache_view(sc, first + CHK_CACHE_W, gpu),
                         .w1 = chk_cache_view(sc, first + CHK_CACHE_W1, gpu),
                         .b1 = chk_cache_view(sc, first + CHK_CACHE_B1, gpu),
                         .w2 = chk_cache_view(sc, first + CHK_CACHE_W2, gpu),
                         .b2 = chk_cache_view(sc, first + CHK_CACHE_B2, gpu) };
}

nsa_phi chk_cache_phi(const chk_scenario *sc, bool gpu) {
  return (nsa_phi){ side_of(sc, CHK_CACHE_PHI_K, gpu), side_of(sc, CHK_CACHE_PHI_V, gpu) };
}
