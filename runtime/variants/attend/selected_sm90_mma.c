/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/selected_pipeline.h"

/* O, 16 scores, and KernelTraits::kOthers. */
static int32_t registers(const nsai_problem *p) {
  int32_t columns = nsai_padded_dim(p->model.head_dim_v);
  return columns / 2 + 16 + (columns <= 128 ? 48 : nsai_problem_is_cached(p) ? 68 : 60);
}

/* KernelTraits::kQueryInRegisters. */
static int32_t query_bytes(const nsai_problem *p, const nsai_tiles *s) {
  const nsai_model *m = &p->model;
  int32_t held = registers(p) + nsai_padded_dim(m->head_dim_qk) / 4;
  if (held <= nsai_selected_consumer_registers(m, s)) return 0;
  return nsai_panel_bytes(16 * s->of[NSAI_TILE_WARPS], m->head_dim_qk);
}

static const nsai_selected_products products = { registers, query_bytes, false };

static void fit(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                nsai_reasons *reasons) {
  nsai_selected_fit(p, t, s, reasons, &products);
}

static double cost(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  (void)t;
  return nsai_selected_cost(p, s, &products);
}

/* Eight warps and the deepest pipeline. Twelve, whose scores have room for 32 keys at a time, share
 * more of what is read where lists differ: forwards of random lists take 1.60 against 1.69 ms at 8k
 * tokens, 3.67 against 3.88 at 16k, the same at 64k; with correlated ones the stage is 5 % slower
 * (H200). */
static nsai_tiles choose(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  const nsai_tiles s = nsai_selected_deepest(p, t, 12, &products);
  *by = NSAI_BY_ARCHITECTURE;
  if (p->overlap != NSA_OVERLAP_HIGH && p->max_kv_len <= 32768 && !t->register_fallback &&
      s.of[NSAI_TILE_STAGES] >= 3 && cost(p, t, &s) < INFINITY)
    return s;
  return nsai_selected_deepest(p, t, 8, &products);
}

static const nsai_space space = { 2, NSAI_SELECTED_RANGES, choose, fit, cost };

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  nsai_selected_legal(p, t, reasons, &products);
}

/* With a compiler that needs more registers than any tiles leave, the portable kernel serves. */
static bool sensible(const nsai_problem *p, const nsai_target *t) {
  (void)p;
  return t->register_fallback < NSAI_SMALLEST_TILES;
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_selected_specify(r, "attend_selected_sm90_mma", 0, &products, kernel);
}

const nsai_variant nsai_attend_selected_sm90_mma = {
  .name = "attend_selected_sm90_mma",
  .stage = NSAI_STAGE_ATTEND_SELECTED,
  .why = "merged list of adjacent tokens' blocks, mma.sync and tensor maps",
  .kernels = NSAI_SELECTED_KERNELS,
  .takes_codes = true,
  .legal = legal,
  .sensible = sensible,
  .space = &space,
  .specify = specify,
  .enqueue = nsai_selected_enqueue,
};

/* ---- the row that expands raw tokens first ---- */

static void legal_expanded(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  legal(p, t, reasons);
  nsai_legal_expanded_tokens(p, NSA_SEL, reasons);
}

static void specify_expanded(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_selected_specify_expanded(r, &nsai_attend_selected_sm90_mma, kernel);
}

const nsai_variant nsai_attend_selected_expanded_sm90_mma = {
  .name = "attend_selected_expanded_sm90_mma",
  .stage = NSAI_STAGE_ATTEND_SELECTED,
  .why = "merged lists, mma.sync, of e4m3 tokens expanded before",
  .kernels = NSAI_SELECTED_EXPANDED_KERNELS,
  .takes_codes = true,
  .goes_ahead = true,
  .expands_tokens = true,
  .legal = legal_expanded,
  .sensible = sensible,
  .space = &space,
  .specify = specify_expanded,
  .enqueue = nsai_selected_enqueue_expanded,
};
