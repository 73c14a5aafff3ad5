/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/selected_sm90.h"

/* KernelTraits::kOthers: O, the scores, the rest of P, and 44 more. */
static int32_t registers(const nsai_problem *p) {
  const nsai_model *m = &p->model;
  bool split = m->dtype == NSA_BF16 && m->head_dim_v < 64; /* core/softmax.cuh: kSplitP */
  return nsai_padded_dim(m->head_dim_v) / 2 + NSAI_SELECTED_KEYS / 2 + (split ? 16 : 0) + 44;
}

/* KernelTraits::kHeldPanels: 16 registers a panel. */
static int32_t query_bytes(const nsai_problem *p, const nsai_tiles *s) {
  const nsai_model *m = &p->model;
  int32_t left = nsai_selected_consumer_registers(m, s) - registers(p);
  int32_t others = nsai_panels(m->head_dim_qk) - (left < 0 ? 0 : left / 16);
  return others > 0 ? 16 * s->of[NSAI_TILE_WARPS] * others * NSAI_PANEL_PITCH : 0;
}

const nsai_selected_products nsai_selected_sm90_products = { registers, query_bytes, true };

static void fit(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                nsai_reasons *reasons) {
  nsai_selected_fit(p, t, s, reasons, &nsai_selected_sm90_products);
}

static double cost(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  (void)t;
  return nsai_selected_cost(p, s, &nsai_selected_sm90_products);
}

/* Twelve warps where their registers do: a third warpgroup fills the waits of two (5.5 against 6.8
 * ms, H200, 64k, G 16, correlated). */
static nsai_tiles choose(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  const nsai_tiles s = nsai_selected_deepest(p, t, 12, &nsai_selected_sm90_products);
  *by = NSAI_BY_ARCHITECTURE;
  if (!t->register_fallback && s.of[NSAI_TILE_STAGES] >= 3 && cost(p, t, &s) < INFINITY) return s;
  return nsai_selected_deepest(p, t, 8, &nsai_selected_sm90_products);
}

const nsai_space nsai_selected_sm90_space = { 2, NSAI_SELECTED_RANGES, choose, fit, cost };

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  nsai_selected_legal(p, t, reasons, &nsai_selected_sm90_products);
}

/* Where the lists of adjacent tokens differ, most of what a warpgroup multiplies is for one of its
 * tokens; and of a small group it holds many. (H200, 64k, correlated: G 16 5.5 against 6.6 ms of
 * attend_selected_sm90_mma, G 8 7.4 against 8.5, G 4 11.6 against 11.4, G 2 18.7 against 16.8;
 * random, G 16: 12.9 against 11.1.) */
bool nsai_selected_sm90_sensible(const nsai_problem *p, const nsai_target *t) {
  return p->overlap == NSA_OVERLAP_HIGH && nsai_padded_group(&p->model) >= 8 &&
         t->register_fallback < NSAI_SMALLEST_TILES;
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_selected_specify(r, "attend_selected_sm90", 0, &nsai_selected_sm90_products, kernel);
}

const nsai_variant nsai_attend_selected_sm90 = {
  .name = "attend_selected_sm90",
  .stage = NSAI_STAGE_ATTEND_SELECTED,
  .why = "merged list of adjacent tokens' blocks, wgmma and tensor maps",
  .kernels = NSAI_SELECTED_KERNELS,
  .takes_codes = true,
  .legal = legal,
  .sensible = nsai_selected_sm90_sensible,
  .space = &nsai_selected_sm90_space,
  .specify = specify,
  .enqueue = nsai_selected_enqueue,
};

/* ---- the row that expands raw tokens first ---- */

static void legal_expanded(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  legal(p, t, reasons);
  nsai_legal_expanded_tokens(p, NSA_SEL, reasons);
}

static void specify_expanded(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_selected_specify_expanded(r, &nsai_attend_selected_sm90, kernel);
}

const nsai_variant nsai_attend_selected_expanded_sm90 = {
  .name = "attend_selected_expanded_sm90",
  .stage = NSAI_STAGE_ATTEND_SELECTED,
  .why = "merged lists, wgmma, of e4m3 tokens expanded before",
  .kernels = NSAI_SELECTED_EXPANDED_KERNELS,
  .takes_codes = true,
  .goes_ahead = true,
  .expands_tokens = true,
  .legal = legal_expanded,
  .sensible = nsai_selected_sm90_sensible,
  .space = &nsai_selected_sm90_space,
  .specify = specify_expanded,
  .enqueue = nsai_selected_enqueue_expanded,
};
