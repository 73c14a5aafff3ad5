/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Selection: the top-n of one row, and the token ranges that a row attends to.
 */
#include "base/math.h"
#include "reference/internal.h"
#include "reference/tensor.h"

#include <math.h>

static double rank_of(double importance) { return isnan(importance) ? -INFINITY : importance; }

/* Inserts block j into the list of the best `capacity` ones, in descending order. Blocks arrive
 * in ascending order, so an equal one already in the list stays ahead. Returns the new count. */
static int64_t enter(int32_t *best, int64_t count, int64_t capacity, const double *importance,
                     int64_t j) {
  double rank = rank_of(importance[j]);
  if (count == capacity) {
    if (count == 0 || !(rank > rank_of(importance[best[count - 1]]))) return count;
    count--;
  }
  int64_t at = count;
  for (; at > 0 && rank > rank_of(importance[best[at - 1]]); at--) best[at] = best[at - 1];
  best[at] = (int32_t)j;
  return count + 1;
}

static void sort_ascending(int32_t *idx, int64_t count) {
  for (int64_t i = 1; i < count; i++) {
    int32_t value = idx[i];
    int64_t at = i;
    for (; at > 0 && idx[at - 1] > value; at--) idx[at] = idx[at - 1];
    idx[at] = value;
  }
}

void nsai_reference_select_row(const nsai_model *model, int64_t t, const double *importance,
                               int32_t *idx) {
  int64_t n = model->select_count, count = 0;
  if (t >= 0) {
    int64_t blocks = t / model->select_block + 1;
    int64_t first = nsai_smaller(model->select_init, blocks);
    int64_t last = blocks - model->select_local; /* blocks from here on are forced */
    if (last < first) last = first;              /* blocks forced for both reasons count once */
    int64_t free_places = n - first - (blocks - last);
    for (int64_t j = first; j < last; j++) count = enter(idx, count, free_places, importance, j);
    for (int64_t j = 0; j < first; j++) idx[count++] = (int32_t)j;
    for (int64_t j = last; j < blocks; j++) idx[count++] = (int32_t)j;
    sort_ascending(idx, count);
  }
  for (; count < n; count++) idx[count] = -1;
}

/* Entry i of the row as a token range; empty when it is to be skipped. */
static nsai_ref_range entry(const nsai_ref_problem *problem, const nsai_ref_scratch *scratch,
                            int64_t row, int64_t t, int64_t i) {
  const nsa_io *io = problem->io;
  nsai_ref_range range;
  if (problem->selection == NSA_SELECT_RANGES) {
    int64_t at = row + i * io->ranges.stride[io->ranges.ndim - 2];
    range.begin = nsai_ref_load_i32(&io->ranges, at);
    range.end = nsai_ref_load_i32(&io->ranges, at + 1);
  } else {
    int64_t block = problem->select ? scratch->idx[i] : nsai_ref_load_i32(&io->block_idx, row + i);
    range.begin = block * problem->model->select_block;
    range.end = block < 0 ? range.begin : range.begin + problem->model->select_block;
  }
  if (range.begin < 0) range.begin = 0;
  if (range.end > t + 1) range.end = t + 1;
  return range;
}

/* The offset of the caller's row of (token, group); without the Hkv axis all groups share it. */
static int64_t row_offset(const nsa_tensor *tensor, int with_heads, int64_t token, int64_t group) {
  return tensor->ndim == with_heads ? nsai_ref_offset2(tensor, token, group)
                                    : token * tensor->stride[0];
}

/* Inserts a range by its begin, nearly always at the end: most callers give ascending lists. */
static void insert(nsai_ref_range *ranges, int64_t count, nsai_ref_range range) {
  int64_t at = count;
  for (; at > 0 && ranges[at - 1].begin > range.begin; at--) ranges[at] = ranges[at - 1];
  ranges[at] = range;
}

int64_t nsai_ref_selected_ranges(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                                 int64_t token, int64_t t, int64_t group) {
  const nsa_io *io = problem->io;
  int64_t count = 0, merged = 0, row = 0;
  if (problem->selection == NSA_SELECT_RANGES)
    row = row_offset(&io->ranges, 4, token, group);
  else if (!problem->select)
    row = row_offset(&io->block_idx, 3, token, group);
  for (int64_t i = 0; i < problem->model->select_count; i++) {
    nsai_ref_range range = entry(problem, scratch, row, t, i);
    if (range.begin < range.end && nsai_ref_owns(problem, range.begin))
      insert(scratch->ranges, count++, range);
  }
  /* Merges ranges that touch or overlap, so that each token counts once and tiles stay long. */
  for (int64_t i = 0; i < count; i++) {
    nsai_ref_range *last = merged ? &scratch->ranges[merged - 1] : NULL;
    if (last && scratch->ranges[i].begin <= last->end) {
      if (scratch->ranges[i].end > last->end) last->end = scratch->ranges[i].end;
    } else {
      scratch->ranges[merged++] = scratch->ranges[i];
    }
  }
  return merged;
}

typedef struct selection {
  const nsai_ref_problem *problem;
  nsai_ref_scratch *scratch;
  const nsa_tensor *importance;
  int64_t tokens;
} selection;

static void select_token(const selection *self, nsai_ref_scratch *scratch, int64_t token) {
  const nsai_ref_problem *problem = self->problem;
  const nsai_model *g = problem->model;
  nsai_ref_position position = nsai_ref_sequences_find(&problem->sequences, token);
  int64_t blocks = position.t < 0 ? 0 : position.t / g->select_block + 1;
  for (int64_t group = 0; group < g->kv_heads; group++) {
    int64_t at = nsai_ref_offset2(self->importance, token, group);
    for (int64_t j = 0; j < blocks; j++)
      scratch->importance[j] = nsai_ref_load(self->importance, at + j);
    nsai_reference_select_row(g, position.t, scratch->importance, scratch->idx);
    nsai_ref_store_idx(problem, scratch, token, group);
  }
}

static void run_item(void *context, int worker, int64_t item) {
  const selection *self = context;
  int64_t end =
      (item + 1) * NSAI_REF_SLAB < self->tokens ? (item + 1) * NSAI_REF_SLAB : self->tokens;
  for (int64_t token = item * NSAI_REF_SLAB; token < end; token++)
    select_token(self, &self->scratch[worker], token);
}

void nsai_ref_store_idx(const nsai_ref_problem *problem, const nsai_ref_scratch *scratch,
                        int64_t token, int64_t group) {
  const nsa_tensor *out = &problem->io->block_idx;
  int32_t *row = (int32_t *)out->data + nsai_ref_offset2(out, token, group);
  for (int64_t i = 0; i < problem->model->select_count; i++) row[i] = scratch->idx[i];
}

nsa_status nsai_reference_select(const nsai_model *model, const nsa_batch *batch, const nsa_io *io,
                                 const nsa_tensor *importance, int threads) {
  nsai_ref_problem problem = { 0 };
  selection self = { .problem = &problem, .importance = importance };
  nsa_status status;
  NSAI_TRY_TO(done, nsai_ref_problem_init(&problem, model, batch, io, threads));
  self.tokens = problem.sequences.q[problem.sequences.count];
  int64_t items = (self.tokens + NSAI_REF_SLAB - 1) / NSAI_REF_SLAB;
  int workers = nsai_ref_worker_count(threads, items);
  NSAI_TRY_TO(done, nsai_ref_scratch_create(&problem, 0, workers, &self.scratch));
  nsai_ref_parallel(workers, items, run_item, &self);
done:
  nsai_ref_scratch_destroy(self.scratch);
  nsai_ref_problem_fini(&problem);
  return status;
}
