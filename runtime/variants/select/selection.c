/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Variants of the stages importance and select.
 */
#include "plan/spec.h"

#include <math.h>

/* Bytes of the kernel's SharedStorage: two tiles of keys, and per warp the head sums of one tile with
 * their history (the keys before a tile that still weigh in its first block, where tiles end on
 * block ends) and four carried sums. */
static uint32_t importance_shared(const nsai_model *m, const nsai_tiles *s) {
  int32_t ratio = m->select_block / m->stride, overlap = m->block / m->stride,
          group = nsai_padded_group(m), keys = s->of[NSAI_TILE_KEYS];
  int32_t tokens = group >= 32 ? 1 : 32 / group;
  int32_t history = keys % ratio == 0 && overlap <= 8 ? overlap - 1 : 0;
  return 2 * nsai_tile_bytes(keys, m->head_dim_qk) +
         4 * (uint32_t)(s->of[NSAI_TILE_WARPS] * tokens * (((history + keys) | 1) + 4));
}

static nsai_tiles importance_tiles(int32_t keys, int32_t warps, int32_t blocks) {
  return (nsai_tiles){
    { [NSAI_TILE_KEYS] = keys, [NSAI_TILE_WARPS] = warps, [NSAI_TILE_CTAS] = blocks }
  };
}

/* Two blocks per multiprocessor fit everywhere: at D 128 the scores and Q of two m16 tiles take 178
 * registers. With NVRTC 13.0 the H200's third block, at most 168, is the faster choice at every
 * length (tuned: 0.062 against 0.069 ms at 4k, 6.7 against 7.7 at 64k tokens). */
static nsai_tiles choose_importance(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  *by = NSAI_BY_DEFAULT;
  if (t->register_fallback) return importance_tiles(32, 4, 1);
  if (p->model.head_dim_qk == 128 && nsai_target_is(t, NSAI_H200)) {
    *by = NSAI_BY_DEVICE;
    return importance_tiles(64, 4, 3);
  }
  if (p->model.head_dim_qk > 192) return importance_tiles(32, 4, 2);
  return importance_tiles(64, 4, 2);
}

static void fit_importance(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                           nsai_reasons *reasons) {
  int32_t rows = 32 * s->of[NSAI_TILE_WARPS], group = nsai_padded_group(&p->model);
  if (rows < group) nsai_refuse(reasons, "%d rows do not hold a token of %d heads", rows, group);
  nsai_fit_shared(t, importance_shared(&p->model, s), reasons);
}

/* Q of two m16 tiles and their scores of 32 keys, and what else the loop holds. */
static double cost_importance(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  int32_t warps = s->of[NSAI_TILE_WARPS], blocks = s->of[NSAI_TILE_CTAS];
  int32_t registers = (p->model.head_dim_qk + 15) / 16 * 16 / 2 + 32 + 56;
  if (registers > nsai_register_limit(32 * warps * blocks) ||
      !nsai_holds_blocks(t, importance_shared(&p->model, s), blocks))
    return INFINITY;
  return 1 + 6.0 / s->of[NSAI_TILE_KEYS] + (warps * blocks < 8 ? 0.3 : 0);
}

const nsai_space nsai_space_importance = {
  3,
  { { NSAI_TILE_KEYS, { 32, 64, 128 }, "barriers against shared memory" },
    { NSAI_TILE_WARPS, { 2, 4, 8 }, "each has 32 rows and all keys of a tile" },
    { NSAI_TILE_CTAS, { 1, 2, 3, 4 }, "others fill the waits of one; registers are divided" } },
  choose_importance,
  fit_importance,
  cost_importance,
};

void nsai_legal_importance_sm80(const nsai_problem *p, const nsai_target *t,
                                nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

static void specify_importance(const nsai_problem *p, const nsai_tiles *s, bool probe,
                               nsai_kernel_spec *spec) {
  const nsai_model *m = &p->model;
  int32_t warps = s->of[NSAI_TILE_WARPS], rows = 32 * warps;
  *spec = (nsai_kernel_spec){ .entry = "select_importance",
                              .dtype = m->dtype,
                              .threads = 32 * warps,
                              .shared_bytes = importance_shared(m, s),
                              .tile_tokens = rows / nsai_padded_group(m) };
  nsai_constant_add(spec, "kHeadDimQk", m->head_dim_qk);
  nsai_constant_add(spec, "kGroup", m->heads / m->kv_heads);
  nsai_constant_add(spec, "kGroupPadded", nsai_padded_group(m));
  nsai_constant_add(spec, "kRows", rows);
  nsai_constant_add(spec, "kKeys", s->of[NSAI_TILE_KEYS]);
  nsai_constant_add(spec, "kWarps", warps);
  nsai_constant_add(spec, "kMinBlocks", s->of[NSAI_TILE_CTAS]);
  nsai_constant_add(spec, "kBlock", m->block);
  nsai_constant_add(spec, "kStride", m->stride);
  nsai_constant_add(spec, "kSelectBlock", m->select_block);
  nsai_constant_add(spec, "kProbe", probe);
  nsai_source_add(spec, p, m->stride);
}

void nsai_specify_importance_sm80(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                                  nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)t;
  bool selects = p->model.select_count && p->selection == NSA_SELECT_OWN;
  if (selects && !nsai_problem_selects_all(p))
    specify_importance(p, s, false, &specs[NSAI_KERNEL_IMPORTANCE]);
  if (p->max_probe_rows) specify_importance(p, s, true, &specs[NSAI_KERNEL_PROBE]);
}

void nsai_legal_select_topn(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  (void)reasons; /* works on fp32 importance whatever the storage type; count is bounded by the
                    configuration */
  (void)p;
}

static nsai_tiles choose_select(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  /* The H200 at 8k to 32k tokens: 5 to 10 % faster with four warps. */
  bool four = nsai_target_is(t, NSAI_H200);
  (void)p;
  *by = four ? NSAI_BY_DEVICE : NSAI_BY_DEFAULT;
  return (nsai_tiles){ { [NSAI_TILE_WARPS] = four ? 4 : 8, [NSAI_TILE_CTAS] = 4 } };
}

static void fit_select(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                       nsai_reasons *reasons) {
  (void)p;
  (void)t;
  nsai_fit_threads(s, reasons);
}

static double cost_select(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  (void)p;
  (void)t;
  return 1 + 4.0 / (s->of[NSAI_TILE_WARPS] * s->of[NSAI_TILE_CTAS]);
}

const nsai_space nsai_space_select = {
  2,
  { { NSAI_TILE_WARPS, { 2, 4, 8, 16 }, "rows of different length wait for each other in a block" },
    { NSAI_TILE_CTAS, { 1, 2, 4, 8 }, "registers of the running best against loads in flight" } },
  choose_select,
  fit_select,
  cost_select,
};

void nsai_specify_select_topn(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                              nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)t;
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_SELECT];
  *spec = (nsai_kernel_spec){ .entry = "select_topn",
                              .dtype = p->model.dtype,
                              .threads = 32 * s->of[NSAI_TILE_WARPS] };
  nsai_constant_add(spec, "kSelectBlock", p->model.select_block);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kSelectInit", p->model.select_init);
  nsai_constant_add(spec, "kSelectLocal", p->model.select_local);
  nsai_constant_add(spec, "kCached", nsai_problem_is_cached(p));
  nsai_constant_add(spec, "kMinBlocks", s->of[NSAI_TILE_CTAS]);
}

void nsai_specify_standalone(const nsai_problem *p, const nsai_target *t,
                             nsai_kernel_spec specs[NSAI_ROLES]) {
  nsai_decider by;
  nsai_tiles tiles = choose_select(p, t, &by);
  nsai_specify_select_topn(p, t, &tiles, specs);
  if (p->max_probe_rows) nsai_specify_probe(p, t, &specs[NSAI_KERNEL_PROBE]);
}

void nsai_specify_probe(const nsai_problem *p, const nsai_target *t, nsai_kernel_spec *spec) {
  nsai_decider by;
  nsai_tiles tiles = choose_importance(p, t, &by);
  specify_importance(p, &tiles, true, spec);
}
