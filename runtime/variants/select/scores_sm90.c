/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/select/scores_sm90.h"

#define KEYS 128 /* the kernels' ScoreTraits */
#define MOST_STAGES 4
#define LEAST_STAGES 2

static uint32_t shared_bytes(const nsai_problem *p, int32_t rows, int32_t stages) {
  return nsai_smem_scores_sm90(rows, stages, p->model.head_dim_qk);
}

uint32_t nsai_scores_sm90_bytes(const nsai_problem *p, int32_t rows) {
  return shared_bytes(p, rows, LEAST_STAGES);
}

/* Of few rows two CTAs share a multiprocessor, where they fit; each thread then has 112 registers. */
static int32_t ctas_per_sm(const nsai_problem *p, const nsai_target *t, int32_t rows) {
  return rows == 128 && nsai_holds_ctas(t, shared_bytes(p, rows, LEAST_STAGES), 2) ? 2 : 1;
}

int32_t nsai_scores_sm90_stages(const nsai_problem *p, const nsai_target *t, int32_t rows) {
  int32_t stages = MOST_STAGES;
  while (stages > LEAST_STAGES &&
         !nsai_holds_ctas(t, shared_bytes(p, rows, stages), ctas_per_sm(p, t, rows)))
    stages--;
  return stages;
}

void nsai_scores_sm90_specify(const nsai_problem *p, const nsai_target *t, int32_t rows,
                              const char *entry, nsai_kernel_spec *spec) {
  const int32_t stages = nsai_scores_sm90_stages(p, t, rows);
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = p->model.dtype,
                              .threads = 2 * rows + 32,
                              .shared_bytes = shared_bytes(p, rows, stages),
                              .tile_tokens = rows / nsai_padded_group(&p->model),
                              .compile_cost = 400 };
  nsai_constant_add(spec, "kHeadDimQk", p->model.head_dim_qk);
  nsai_group_add(spec, p);
  nsai_constant_add(spec, "kRows", rows);
  nsai_constant_add(spec, "kKeys", KEYS);
  nsai_constant_add(spec, "kStages", stages);
  nsai_constant_add(spec, "kMinBlocks", ctas_per_sm(p, t, rows));
}
