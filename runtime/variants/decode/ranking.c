/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/decode/ranking.h"

#include "variants/select/index_scores.h"

static bool has_index(const nsai_problem *p) { return p->model.by == NSAI_BY_INDEX; }

void nsai_step_scores_specify(const nsai_request *r, bool probe, nsai_kernel_spec *spec) {
  const nsai_problem *p = r->problem;
  const nsai_tiles tiles =
      has_index(p) ? nsai_index_step_tiles(p, r->target) : nsai_importance_tiles(p, r->target);
  if (has_index(p))
    nsai_index_scores_specify(p, &tiles, probe, spec);
  else
    nsai_importance_specify(p, &tiles, probe, spec);
}

nsa_status nsai_step_scores_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                                    const nsai_split_lse *lse, const nsai_span *span) {
  return has_index(&run->plan->problem) ? nsai_index_scores_enqueue(run, kernel, span)
                                        : nsai_importance_enqueue(run, kernel, lse, span);
}
