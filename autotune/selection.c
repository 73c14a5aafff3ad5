/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Variants of the stages importance and select.
 */
#include "stages.h"

typedef struct importance_shape {
  int32_t rows, keys, warps, blocks;
} importance_shape;

/* Bytes of the kernel's SharedPlan: two tiles of keys, and per warp the head sums of one tile with
 * their history (the keys before a tile that still weigh in its first block, where tiles end on
 * block ends) and four carried sums. */
static uint32_t importance_shared(const nsai_geometry *m, const importance_shape *s) {
  int32_t ratio = m->select_block / m->stride, overlap = m->block / m->stride,
          group = nsai_padded_group(m);
  int32_t tokens = group >= 32 ? 1 : 32 / group;
  int32_t history = s->keys % ratio == 0 && overlap <= 8 ? overlap - 1 : 0;
  return 2 * nsai_tile_bytes(s->keys, m->head_dim_qk) +
         4 * (uint32_t)(s->warps * tokens * (((history + s->keys) | 1) + 4));
}

/* Two blocks per multiprocessor: at D 128 the scores and Q of two m16 tiles take 178 registers, and
 * a third block's limit of 168 costs more than it hides (H200, 64k: 10.7 against 6.6 ms). */
static importance_shape choose_importance(const nsai_geometry *m, const nsai_target *t) {
  if (t->caution) return (importance_shape){ 128, 32, 4, 1 };
  if (m->head_dim_qk > 192) return (importance_shape){ 128, 32, 4, 2 };
  return (importance_shape){ 128, 64, 4, 2 };
}

void nsai_legal_importance_mma(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

static void specify_importance(const nsai_problem *p, const nsai_target *t, bool probe,
                               nsai_kernel_spec *spec) {
  const nsai_geometry *m = &p->model;
  importance_shape s = choose_importance(m, t);
  *spec = (nsai_kernel_spec){ .entry = "importance_mma",
                              .dtype = m->dtype,
                              .threads = 32 * s.warps,
                              .shared_bytes = importance_shared(m, &s),
                              .tokens = s.rows / nsai_padded_group(m) };
  nsai_constant_add(spec, "kHeadDimQk", m->head_dim_qk);
  nsai_constant_add(spec, "kGroup", m->heads / m->kv_heads);
  nsai_constant_add(spec, "kGroupPadded", nsai_padded_group(m));
  nsai_constant_add(spec, "kRows", s.rows);
  nsai_constant_add(spec, "kKeys", s.keys);
  nsai_constant_add(spec, "kWarps", s.warps);
  nsai_constant_add(spec, "kMinBlocks", s.blocks);
  nsai_constant_add(spec, "kBlock", m->block);
  nsai_constant_add(spec, "kStride", m->stride);
  nsai_constant_add(spec, "kSelectBlock", m->select_block);
  nsai_constant_add(spec, "kProbe", probe);
}

void nsai_specify_importance_mma(const nsai_problem *p, const nsai_target *t,
                                 nsai_kernel_spec specs[NSAI_ROLES]) {
  bool selects = p->model.select_count && p->selection == NSA_SELECT_OWN;
  if (selects && !nsai_problem_selects_all(p))
    specify_importance(p, t, false, &specs[NSAI_KERNEL_IMPORTANCE]);
  if (p->max_probe_rows) specify_importance(p, t, true, &specs[NSAI_KERNEL_PROBE]);
}

void nsai_legal_select_topn(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  (void)reasons; /* works on fp32 importance whatever the storage type; count is bounded by the
                    configuration */
  (void)p;
}

void nsai_specify_select_topn(const nsai_problem *p, const nsai_target *t,
                              nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)t;
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_SELECT];
  *spec = (nsai_kernel_spec){ .entry = "select_topn", .dtype = p->model.dtype, .threads = 256 };
  nsai_constant_add(spec, "kSelectBlock", p->model.select_block);
  nsai_constant_add(spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(spec, "kSelectInit", p->model.select_init);
  nsai_constant_add(spec, "kSelectLocal", p->model.select_local);
  nsai_constant_add(spec, "kMinBlocks", 4);
}
