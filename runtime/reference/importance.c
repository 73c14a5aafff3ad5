/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Importance of selection blocks: the probabilities of the compressed blocks, summed over the heads
 * of the group. With the pool `sum` each compressed block counts once for every stride that it shares
 * with a selection block; with `max` the greatest of those that share one counts.
 *
 *   strides of d      0   1   2   3   4   5   6   7
 *   compressed 0     [-----]                            l/d = 2 strides
 *   compressed 3                 [-----]                half in selection block 0, half in 1
 *   selection        [------0------] [------1------]    l'/d = 4 strides
 */
#include "base/math.h"
#include "reference/internal.h"
#include "reference/tensor.h"

#include <math.h>
#include <string.h>

nsai_ref_keys nsai_ref_compressed_keys(const nsai_ref_problem *problem, int64_t sequence,
                                       int64_t group) {
  const nsai_model *g = problem->model;
  const nsai_ref_sequences *sequences = &problem->sequences;
  int64_t row = group * sequences->blocks[sequences->count] + sequences->blocks[sequence];
  nsai_ref_keys keys = { .k64 = problem->k_cmp + row * g->head_dim_qk };
  if (problem->v_cmp) keys.v64 = problem->v_cmp + row * g->head_dim_v;
  return keys;
}

int64_t nsai_ref_visible_blocks(const nsai_ref_problem *problem, nsai_ref_position position) {
  const int64_t *blocks = &problem->sequences.blocks[position.sequence];
  int64_t visible = nsai_block_count(problem->model, position.t + 1);
  return visible < blocks[1] - blocks[0] ? visible : blocks[1] - blocks[0];
}

/* The sum over the group's heads of compressed block i's probability: exp(score - LSE of the coarse
 * keys), or that of the compressed branch. Whoever sees no coarse key ranks nothing. */
static double group_sum(const nsai_ref_problem *problem, const nsai_ref_scratch *scratch,
                        int64_t i) {
  const nsai_model *g = problem->model;
  const double *row = scratch->scores + i * problem->lanes;
  double sum = 0;
  for (int64_t h = 0; h < g->heads / g->kv_heads; h++)
    if (!g->norm_block)
      sum += row[h] * scratch->inverse[h];
    else if (scratch->norm[h] != -INFINITY)
      sum += exp(row[h] - scratch->norm[h]);
  return sum;
}

/* Computes scratch->importance [t / l' + 1] from `visible` blocks in scratch->scores: scores where the
 * model has a normaliser, else probabilities. */
static void pool(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int64_t t,
                 int64_t visible) {
  const nsai_model *g = problem->model;
  int64_t blocks = t / g->select_block + 1;
  int64_t strides = g->block / g->stride, per_block = g->select_block / g->stride;
  memset(scratch->importance, 0, (size_t)blocks * sizeof(double));
  for (int64_t i = 0; i < visible; i++) {
    const double sum = group_sum(problem, scratch, i);
    /* A visible block ends at or before t, so its last stride is in a candidate. */
    for (int64_t s = 0; s < strides; s++) {
      double *at = &scratch->importance[(i + s) / per_block];
      *at = g->pool == NSAI_POOL_SUM ? *at + sum : sum > *at ? sum : *at;
    }
  }
}

void nsai_ref_rank(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                   nsai_ref_position position, int64_t group, bool ranks) {
  const bool normalized = ranks && problem->model->norm_block;
  const nsai_ref_keys keys = nsai_ref_compressed_keys(problem, position.sequence, group);
  const int64_t visible = nsai_ref_visible_blocks(problem, position);
  if (normalized) {
    nsai_ref_normalize(problem, scratch, position, group);
    scratch->ranges[0] = (nsai_ref_range){ 0, visible };
    nsai_ref_scores(problem, scratch, &keys, 1);
    pool(problem, scratch, position.t, visible);
    if (!problem->run[NSA_CMP]) return;
  }
  scratch->ranges[0] = (nsai_ref_range){ 0, visible };
  nsai_ref_probabilities(problem, scratch, &keys, 1, scratch->lse[NSA_CMP]);
  if (ranks && !normalized) pool(problem, scratch, position.t, visible);
}

/* A request for importance rows, as float64 or in io->probe_importance. */
typedef struct probe {
  const nsai_ref_problem *problem;
  nsai_ref_scratch *scratch;
  const int64_t *tokens; /* NULL: io->probe_rows */
  int64_t blocks;        /* of a row of the result */
  double *out;           /* [count, Hkv, blocks]; NULL: io->probe_importance */
} probe;

static void store_row(const probe *self, const double *importance, int64_t known, int64_t row,
                      int64_t group) {
  const nsa_tensor *tensor = &self->problem->io->probe_importance;
  int64_t heads = self->problem->model->kv_heads;
  for (int64_t j = 0; j < self->blocks; j++) {
    double value = j < known ? importance[j] : 0;
    if (self->out)
      self->out[(row * heads + group) * self->blocks + j] = value;
    else
      nsai_ref_store(tensor, nsai_ref_offset2(tensor, row, group) + j, value);
  }
}

static void run_item(void *context, int worker, int64_t row) {
  const probe *self = context;
  const nsai_ref_problem *problem = self->problem;
  nsai_ref_scratch *scratch = &self->scratch[worker];
  int64_t token =
      self->tokens ? self->tokens[row] : nsai_ref_load_i32(&problem->io->probe_rows, row);
  nsai_ref_position position = nsai_ref_sequences_find(&problem->sequences, token);
  for (int64_t group = 0; group < problem->model->kv_heads; group++) {
    int64_t known = 0;
    if (position.t >= 0) {
      if (problem->model->by == NSAI_BY_INDEX) {
        nsai_ref_index_rank(problem, scratch, token, position, group);
      } else {
        nsai_ref_load_query(problem, scratch, token, group);
        nsai_ref_rank(problem, scratch, position, group, true);
      }
      known = position.t / problem->model->select_block + 1;
    }
    store_row(self, scratch->importance, known, row, group);
  }
}

void nsai_ref_probe(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int workers) {
  const nsa_io *io = problem->io;
  probe self = { .problem = problem, .scratch = scratch, .blocks = io->probe_importance.shape[2] };
  nsai_ref_parallel(workers, io->probe_rows.shape[0], run_item, &self);
}

nsa_status nsai_reference_importance(const nsai_model *model, const nsa_batch *batch,
                                     const nsa_io *io, int64_t count, const int64_t *tokens,
                                     int64_t blocks, double *out, int threads) {
  nsai_ref_problem problem = { 0 };
  probe self = { .problem = &problem, .tokens = tokens, .blocks = blocks, .out = out };
  int workers = nsai_ref_worker_count(threads, count);
  nsa_status status;
  NSAI_TRY_TO(done, nsai_ref_problem_init(&problem, model, batch, io, threads));
  if (model->by == NSAI_BY_INDEX) {
    NSAI_TRY_TO(done, nsai_ref_index_open(&problem));
  } else {
    NSAI_TRY_TO(done, nsai_ref_compress(&problem, false));
    NSAI_TRY_TO(done, nsai_ref_normalizer_open(&problem));
  }
  const int64_t keys = nsai_larger(problem.sequences.max_cmp, problem.sequences.max_norm);
  NSAI_TRY_TO(done, nsai_ref_scratch_create(&problem, keys, workers, &self.scratch));
  nsai_ref_parallel(workers, count, run_item, &self);
done:
  nsai_ref_scratch_destroy(self.scratch);
  nsai_ref_problem_fini(&problem);
  return status;
}
