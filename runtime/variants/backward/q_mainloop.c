/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tiles of the kernels over query rows without tensor maps (backward/dq_mainloop.cuh).
 */
#include "variants/backward/backward.h"
#include "variants/backward/q.h"

#define WARPS 4
#define ROWS 64 /* of the largest group: a tile holds whole tokens */

typedef struct rows_tiles {
  bool wgmma;
  int32_t keys, stages;
} rows_tiles;

static uint32_t rows_shared(const nsai_model *m, const rows_tiles *s) {
  return nsai_smem_dq(s->wgmma, ROWS, s->keys, WARPS, s->stages, m->head_dim_qk, m->head_dim_v);
}

/* The scores of so many keys fit beside dQ in registers. */
static int32_t choose_keys(const nsai_model *m, const nsai_target *t, bool wgmma) {
  if (wgmma) return m->head_dim_qk > 128 ? 32 : 64;
  return m->head_dim_qk > 192 || t->register_fallback ? 16 : 32;
}

static void specify_rows(const nsai_request *r, bool wgmma, const char *entry, int32_t cost,
                         nsai_kernel_spec *spec) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  rows_tiles s = { wgmma, choose_keys(m, r->target, wgmma), 2 };
  if (rows_shared(m, &s) > nsai_backward_most_shared(wgmma, r->target)) s.stages = 1;
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = m->dtype,
                              .threads = 32 * WARPS,
                              .shared_bytes = rows_shared(m, &s),
                              .tile_tokens = ROWS / nsai_padded_group(m),
                              .compile_cost = cost };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_backward_branches_add(spec, p);
  nsai_backward_lists_add(spec, p);
  nsai_constant_add(spec, "kWgmma", wgmma);
  nsai_constant_add(spec, "kRows", ROWS);
  nsai_constant_add(spec, "kKeys", s.keys);
  nsai_constant_add(spec, "kWarps", WARPS);
  nsai_constant_add(spec, "kStages", s.stages);
  nsai_constant_add(spec, "kMinBlocks", nsai_backward_min_ctas(r->target));
}

void nsai_q_mainloop_specify(const nsai_request *r, bool wgmma,
                             nsai_kernel_spec kernel[NSAI_Q_KERNELS]) {
  if (r->problem->recompute != NSAI_RECOMPUTE_NEVER)
    specify_rows(r, wgmma, "backward_row_stats", NSAI_Q_STATISTICS_COST,
                 &kernel[NSAI_Q_STATISTICS]);
  specify_rows(r, wgmma, "backward_dq", NSAI_Q_COST, &kernel[NSAI_Q_DQ]);
}
