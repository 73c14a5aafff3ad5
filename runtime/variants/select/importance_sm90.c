/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/select/importance_row.h"

#include <string.h>

/* The kernel's KernelTraits. */
#define ROWS 128
#define KEYS 128
#define THREADS 288
#define MOST_STAGES 4
#define MOST_OVERLAP 4

/* Two CTAs of a multiprocessor, of whose threads each then has 112 registers, if two stages of each fit;
 * and the stages that fit. */
static int32_t ctas_per_sm(const nsai_problem *p, const nsai_target *t) {
  return nsai_holds_ctas(t, nsai_smem_importance_sm90(2, p->model.head_dim_qk), 2) ? 2 : 1;
}

static int32_t key_stages(const nsai_problem *p, const nsai_target *t) {
  int32_t stages = MOST_STAGES;
  while (stages > 2 && !nsai_holds_ctas(t, nsai_smem_importance_sm90(stages, p->model.head_dim_qk),
                                        ctas_per_sm(p, t)))
    stages--;
  return stages;
}

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  const nsai_model *m = &p->model;
  const int32_t ratio = m->select_block / m->stride, overlap = m->block / m->stride;
  nsai_legal_common(p, reasons);
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
  nsai_fit_cta(t, nsai_smem_importance_sm90(2, m->head_dim_qk), reasons);
}

/* It has no smaller tiles for compilers that need more registers. */
static bool sensible(const nsai_problem *p, const nsai_target *t) {
  (void)p;
  return !t->register_fallback;
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const nsai_tiles probe = nsai_importance_tiles(p, r->target);
  nsai_importance_specify_rest(r, &probe, kernel);
  if (!nsai_importance_ranks(r)) return;
  const int32_t stages = key_stages(p, r->target);
  nsai_kernel_spec *spec = &kernel[NSAI_IMPORTANCE];
  *spec =
      (nsai_kernel_spec){ .entry = "select_importance_sm90",
                          .dtype = p->model.dtype,
                          .threads = THREADS,
                          .shared_bytes = nsai_smem_importance_sm90(stages, p->model.head_dim_qk),
                          .tile_tokens = ROWS / nsai_padded_group(&p->model),
                          .compile_cost = 400 };
  nsai_constant_add(spec, "kHeadDimQk", p->model.head_dim_qk);
  nsai_group_add(spec, p);
  nsai_constant_add(spec, "kRows", ROWS);
  nsai_constant_add(spec, "kKeys", KEYS);
  nsai_constant_add(spec, "kStages", stages);
  nsai_constant_add(spec, "kMinBlocks", ctas_per_sm(p, r->target));
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
  .specify = specify,
  .workspace = nsai_importance_workspace,
  .enqueue = nsai_importance_run,
};
