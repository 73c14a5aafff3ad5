/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Sets up what every call of the CPU device needs.
 */
#include "base/math.h"
#include "reference/internal.h"

#include <math.h>
#include <stdlib.h>

void nsai_ref_problem_begin(nsai_ref_problem *problem, const nsai_model *model,
                            const nsa_batch *batch, const nsa_io *io, int threads) {
  problem->model = model;
  problem->batch = batch;
  problem->io = io;
  problem->ops = nsai_ref_ops_get(0);
  problem->threads = threads;
  problem->lanes = nsai_ref_lanes(model->heads / model->kv_heads);
  problem->scale = io->softmax_scale != 0 ? io->softmax_scale : 1.0 / sqrt(model->head_dim_qk);
}

nsa_status nsai_ref_problem_init(nsai_ref_problem *problem, const nsai_model *model,
                                 const nsa_batch *batch, const nsa_io *io, int threads) {
  nsai_ref_problem_begin(problem, model, batch, io, threads);
  if (problem->cache)
    return nsai_ref_sequences_init_cached(&problem->sequences, model, batch, io->q.shape[0], false);
  return nsai_ref_sequences_init(&problem->sequences, model, batch, io);
}

int64_t nsai_ref_most_keys(const nsai_ref_problem *problem) {
  const nsai_model *g = problem->model;
  int64_t longest = problem->sequences.max_kv;
  int64_t most = nsai_larger(problem->sequences.max_cmp, problem->sequences.max_norm);
  int64_t selected = (int64_t)g->select_count * g->select_block;
  if (problem->selection == NSA_SELECT_RANGES || selected > longest) selected = longest;
  if (problem->run[NSA_SEL] && selected > most) most = selected;
  int64_t window = nsai_smaller(g->window, longest);
  if (problem->run[NSA_WIN] && window > most) most = window;
  return most;
}

void nsai_ref_problem_run(nsai_ref_problem *problem, uint32_t branches) {
  uint32_t mask = branches ? branches : ~0u;
  for (int b = 0; b < NSA_BRANCHES; b++)
    problem->run[b] = (mask >> b & 1) && nsai_has_branch(problem->model, b);
}

void nsai_ref_problem_fini(nsai_ref_problem *problem) {
  nsai_ref_sequences_fini(&problem->sequences);
  free(problem->k_cmp);
  free(problem->v_cmp);
  free(problem->k_norm);
  free(problem->k_idx);
}
