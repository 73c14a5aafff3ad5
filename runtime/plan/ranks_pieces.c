/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "plan/ranks_pieces.h"

#include "base/math.h"

/* No kernel may look up the sequence of a key. A normaliser's coarse keys are made in each run, sequence by
 * sequence. */
bool nsai_takes_pieces(const nsai_problem *problem, const nsai_choice *choice) {
  for (int stage = 0; stage < NSAI_STAGE_COUNT; stage++) {
    const nsai_variant *row = choice->variant[stage];
    if (row && row->finds_sequences_of_keys) return false;
  }
  return !problem->model.norm_block;
}

const char *nsai_no_overlap(const nsai_problem *problem, const nsai_choice *choice) {
  const nsai_model *m = &problem->model;
  if (problem->op != NSA_OP_FORWARD) return "only a forward computes meanwhile";
  if (!nsai_takes_pieces(problem, choice)) return "a kernel takes pieces one after the other";
  if (nsai_phi_runs(m) && m->phi != NSAI_PHI_MEAN)
    return "cuBLASLt makes the compressed entries, and their bits depend on the number of rows";
  if (m->phi == NSAI_PHI_NONE && m->by != NSAI_BY_INDEX)
    return "the model has neither compressed entries nor an index to exchange first";
  return NULL;
}

static bool has_window_kernel(const nsai_problem *problem, const nsai_choice *choice) {
  return problem->model.window && !nsai_is_fused(choice, NSAI_STAGE_ATTEND_WINDOW);
}

bool nsai_awaits_pair(const nsai_problem *problem, const nsai_choice *choice, int pair) {
  const bool window = problem->model.window && !has_window_kernel(problem, choice);
  return nsai_attends_pair(&problem->model, window, pair);
}

int64_t nsai_halo_tokens(const nsai_problem *problem, const nsai_choice *choice, int pair) {
  const nsai_model *m = &problem->model;
  int64_t tokens = 0;
  if (nsai_phi_runs(m) && pair == 0) tokens = m->block - m->stride;
  /* A tile of keys begins where the window of its first query does (mainloop_sm80.cuh, key_range of
   * mainloop_sm90_tiles.cuh). */
  if (has_window_kernel(problem, choice) && pair == (m->per_branch ? NSA_WIN : 0))
    tokens = nsai_larger(tokens, m->window - 1);
  return tokens;
}
