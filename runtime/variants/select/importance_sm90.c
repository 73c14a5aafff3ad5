/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/select/importance_row.h"
#include "variants/select/scores_sm90.h"

#include <string.h>

#define MOST_OVERLAP 4 /* the kernel's KernelTraits */

/* ---- tiles ---- */

static nsai_tiles make_tiles(int32_t rows) { return (nsai_tiles){ { [NSAI_TILE_ROWS] = rows } }; }

/* Every row of a CTA reads the same keys: the more of them, the fewer bytes L2 gives. It is little:
 * select/importance_sm90.cuh has times. */
static nsai_tiles choose(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  int32_t rows = 256;
  *by = NSAI_BY_ARCHITECTURE;
  while (rows > 128 && nsai_scores_sm90_bytes(p, rows) > t->shared_bytes) rows -= 64;
  return make_tiles(rows);
}

static void fit(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                nsai_reasons *reasons) {
  nsai_fit_cta(t, nsai_scores_sm90_bytes(p, s->of[NSAI_TILE_ROWS]), reasons);
}

static double cost(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  const int32_t rows = s->of[NSAI_TILE_ROWS];
  return 1 + 32.0 / rows + (nsai_scores_sm90_stages(p, t, rows) < 3 ? 0.05 : 0);
}

static const nsai_space space = {
  1,      { { NSAI_TILE_ROWS, { 128, 192, 256 }, "the more, the fewer bytes L2 gives" } },
  choose, fit,
  cost,
};

/* ---- the row ---- */

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  const nsai_model *m = &p->model;
  const int32_t ratio = m->select_block / m->stride, overlap = m->block / m->stride;
  nsai_importance_legal(p, reasons);
  if (strcmp(t->arch, "sm_90a"))
    nsai_refuse(reasons, "needs wgmma of sm_90a, the target is %s", t->arch);
  if (nsai_ranks_by_step(p))
    nsai_refuse(reasons, "splits no keys, as a decode step needs it: importance_sm80 does");
  if (nsai_padded_group(m) != 8 && nsai_padded_group(m) != 16)
    nsai_refuse(reasons, "takes groups of 5 to 16 query heads, this model has %d",
                m->heads / m->kv_heads);
  if (ratio > 32 || 32 % ratio)
    nsai_refuse(reasons,
                "selection blocks of %d strides: a thread holds 32 adjacent compressed keys, which "
                "must be whole blocks",
                ratio);
  if (overlap > MOST_OVERLAP)
    nsai_refuse(reasons, "compression blocks of %d strides: at most %d are taken", overlap,
                MOST_OVERLAP);
}

/* It has no smaller tiles for compilers that need more registers. */
static bool sensible(const nsai_problem *p, const nsai_target *t) {
  (void)p;
  return !t->register_fallback;
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const int32_t rows = r->tiles->of[NSAI_TILE_ROWS];
  const nsai_tiles probe = nsai_importance_tiles(p, r->target);
  nsai_importance_specify_rest(r, &probe, rows, kernel);
  if (!nsai_importance_ranks(r)) return;
  nsai_kernel_spec *spec = &kernel[NSAI_IMPORTANCE];
  nsai_scores_sm90_specify(p, r->target, rows, "select_importance_sm90", spec);
  nsai_pooling_add(spec, p, false);
  nsai_source_add(spec, p, p->model.stride);
}

const nsai_variant nsai_importance_sm90 = {
  .name = "importance_sm90",
  .stage = NSAI_STAGE_IMPORTANCE,
  .why = "importance_sm80's pass on wgmma",
  .kernels = NSAI_IMPORTANCE_KERNELS,
  .buffers = NSAI_NORMALIZER_BUFFERS,
  .stands_alone = true,
  .legal = legal,
  .sensible = sensible,
  .space = &space,
  .specify = specify,
  .workspace = nsai_importance_workspace,
  .enqueue = nsai_importance_run,
};
