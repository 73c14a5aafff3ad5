/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The memory of the threads of one call. It is allocated before they start, so that they cannot
 * fail.
 */
#include "base/math.h"
#include "reference/internal.h"

#include <stdlib.h>
#include <string.h>

#define LINE 64 /* bytes: a cache line, and the widest vector */

double *nsai_ref_doubles(int64_t count) {
  size_t bytes = ((size_t)count * sizeof(double) + LINE) / LINE * LINE;
  double *memory = aligned_alloc(LINE, bytes);
  if (memory) memset(memory, 0, bytes);
  return memory;
}

double *nsai_ref_take(double *memory, int64_t *used, int64_t count) {
  double *piece = memory ? memory + *used : NULL;
  *used += nsai_ref_lanes(count);
  return piece;
}

/* Divides one thread's doubles into arrays and returns how many there are. */
static int64_t lay_out(const nsai_ref_problem *problem, int64_t keys, double *memory,
                       nsai_ref_scratch *scratch) {
  const nsai_model *g = problem->model;
  int64_t lanes = problem->lanes, used = 0;
  int64_t widest = nsai_larger(g->head_dim_qk, g->head_dim_v);
  scratch->q = nsai_ref_take(memory, &used, g->head_dim_qk * lanes);
  scratch->scores = nsai_ref_take(memory, &used, keys * lanes);
  scratch->tile = nsai_ref_take(memory, &used, NSAI_REF_TILE * widest);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    scratch->out[b] = nsai_ref_take(memory, &used, g->head_dim_v * lanes);
    scratch->lse[b] = nsai_ref_take(memory, &used, lanes);
  }
  scratch->inverse = nsai_ref_take(memory, &used, lanes);
  scratch->norm = nsai_ref_take(memory, &used, lanes);
  scratch->index_q = nsai_ref_take(memory, &used, (int64_t)g->index_dim * NSAI_REF_LANES);
  scratch->index_scores = nsai_ref_take(memory, &used, NSAI_REF_TILE * NSAI_REF_LANES);
  scratch->importance =
      nsai_ref_take(memory, &used, nsai_select_block_count(g, problem->sequences.max_kv) + 1);
  int64_t gate_row = nsai_ref_gate_row(g), hidden = nsai_ref_lanes(g->gate_hidden);
  bool mlp = problem->gated && g->gate == NSAI_GATE_MLP;
  scratch->gates = nsai_ref_take(memory, &used, NSAI_REF_SLAB * gate_row);
  scratch->gate_x =
      nsai_ref_take(memory, &used, mlp ? (int64_t)NSAI_REF_SLAB * g->gate_channels : 0);
  scratch->gate_hidden = nsai_ref_take(memory, &used, mlp ? NSAI_REF_SLAB * hidden : 0);
  scratch->gate_weights =
      nsai_ref_take(memory, &used, mlp ? NSAI_REF_WEIGHT_ROWS * nsai_larger(gate_row, hidden) : 0);
  return used;
}

nsa_status nsai_ref_scratch_create(const nsai_ref_problem *problem, int64_t keys, int workers,
                                   nsai_ref_scratch **out) {
  int64_t n = problem->model->select_count > 0 ? problem->model->select_count : 1;
  nsai_ref_scratch sizes;
  int64_t doubles = lay_out(problem, keys, NULL, &sizes);
  /* Two allocations: the array of structs followed by its integers, and the doubles of all
   * threads. */
  size_t integers = (size_t)n * (sizeof(nsai_ref_range) + sizeof(int32_t));
  size_t head = (size_t)workers * (sizeof(nsai_ref_scratch) + integers);
  nsai_ref_scratch *all = calloc(1, head);
  if (!all) return nsai_fail_nomem("the threads' scratch of the CPU device", head);
  double *memory = nsai_ref_doubles(doubles * workers);
  if (!memory) {
    free(all);
    return nsai_fail_nomem("the threads' scratch of the CPU device",
                           (size_t)(doubles * workers) * sizeof(double));
  }
  nsai_ref_range *ranges = (nsai_ref_range *)(all + workers);
  int32_t *idx = (int32_t *)(ranges + n * workers);
  for (int i = 0; i < workers; i++) {
    lay_out(problem, keys, memory + doubles * i, &all[i]);
    all[i].ranges = ranges + n * i;
    all[i].idx = idx + n * i;
  }
  *out = all;
  return NSA_OK;
}

void nsai_ref_scratch_destroy(nsai_ref_scratch *scratch) {
  if (!scratch) return;
  free(scratch[0].q); /* the start of the second allocation */
  free(scratch);
}
