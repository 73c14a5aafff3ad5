/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The index branch: a query head for each KV head, and one key for each token, which all heads share.
 * A block's importance is the greatest score of its tokens that the query sees, scale * qi . ki with
 * the scale Di^-1/2, and of keys in codes theirs. A score that is NaN counts as -inf.
 */
#include "base/math.h"
#include "reference/internal.h"
#include "reference/tensor.h"

#include <math.h>
#include <string.h>

#define CHUNK 32 /* keys of a work item */

static void load_chunk(void *context, int worker, int64_t item) {
  const nsai_ref_problem *problem = context;
  const nsai_ref_sequences *sequences = &problem->sequences;
  const nsa_tensor *k = &problem->io->k_idx;
  const int64_t total = sequences->kv[sequences->count], dim = problem->model->index_dim;
  (void)worker;
  for (int64_t at = item * CHUNK; at < nsai_smaller((item + 1) * CHUNK, total); at++) {
    const int64_t s = nsai_ref_sequence_of(sequences->kv, sequences->count, at);
    const int64_t from = nsai_ref_index_key_at(problem, k, s, at - sequences->kv[s]);
    problem->ops->widen(k->dtype, nsai_ref_at(k, from), dim, problem->k_idx + at * dim);
    nsai_ref_count_reads(problem, &(nsai_ref_reads){ .source = k,
                                                     .is_k = true,
                                                     .branch = NSA_CMP,
                                                     .sequence = s,
                                                     .head = 0,
                                                     .rows = 1,
                                                     .dim = dim });
  }
}

nsa_status nsai_ref_index_open(nsai_ref_problem *problem) {
  const nsai_ref_sequences *sequences = &problem->sequences;
  const int64_t total = sequences->kv[sequences->count], dim = problem->model->index_dim;
  const int64_t items = nsai_ceil_div(total, CHUNK);
  /* The sequences of a cache may share memory, so no tensor bounds the sum of their tokens. */
  if (total > INT64_MAX / 16 / dim) return nsai_fail_nomem("index keys in float64", SIZE_MAX);
  problem->k_idx = nsai_ref_doubles(total * dim);
  if (!problem->k_idx)
    return nsai_fail_nomem("index keys in float64", (size_t)(total * dim) * sizeof(double));
  nsai_ref_parallel(nsai_ref_worker_count(problem->threads, items), items, load_chunk, problem);
  return NSA_OK;
}

static void load_query(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int64_t token,
                       int64_t head) {
  const nsa_tensor *q = &problem->io->index_q;
  const int64_t at = nsai_ref_offset2(q, token, head);
  for (int64_t e = 0; e < problem->model->index_dim; e++)
    scratch->index_q[e * NSAI_REF_LANES] = nsai_ref_load(q, at + e);
}

/* The greatest score of the keys [begin, end), not scaled: products of 16-bit values are exact. */
static double greatest(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int64_t begin,
                       int64_t end) {
  const int64_t dim = problem->model->index_dim;
  double out = -INFINITY;
  for (int64_t first = begin; first < end; first += NSAI_REF_TILE) {
    double *scores = scratch->index_scores;
    const int64_t count = nsai_smaller(NSAI_REF_TILE, end - first);
    memset(scores, 0, (size_t)(count * NSAI_REF_LANES) * sizeof *scores);
    problem->ops->multiply(&(nsai_ref_product){ .m = count,
                                                .k = dim,
                                                .n = NSAI_REF_LANES,
                                                .a = problem->k_idx + first * dim,
                                                .a_row = dim,
                                                .a_column = 1,
                                                .b = scratch->index_q,
                                                .b_row = NSAI_REF_LANES,
                                                .c = scores,
                                                .c_row = NSAI_REF_LANES });
    for (int64_t i = 0; i < count; i++) {
      const double score = scores[i * NSAI_REF_LANES];
      if (score > out) out = score;
    }
  }
  return out;
}

void nsai_ref_index_rank(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int64_t token,
                         nsai_ref_position position, int64_t group) {
  const nsai_model *g = problem->model;
  const int64_t *kv = &problem->sequences.kv[position.sequence];
  const int64_t seen = nsai_smaller(position.t + 1, kv[1] - kv[0]);
  /* Keys in codes have one scale, which is positive: the order of their scores is that of the codes'. */
  const double scale = nsai_ref_scale(problem, &problem->io->k_idx, 0) * (1.0 / sqrt(g->index_dim));
  load_query(problem, scratch, token, group);
  for (int64_t j = 0; j <= position.t / g->select_block; j++) {
    const int64_t begin = j * g->select_block, end = nsai_smaller(begin + g->select_block, seen);
    scratch->importance[j] = scale * greatest(problem, scratch, kv[0] + begin, kv[0] + end);
  }
}

/* ---- the log-sum-exp over chosen blocks ---- */

typedef struct index_lse {
  const nsai_ref_problem *problem;
  nsai_ref_scratch *scratch; /* of the workers */
  int64_t tokens;
} index_lse;

/* Of the keys in the first `ranges` ranges of scratch, in which each key is once. */
static double sum_keys(const nsai_ref_problem *problem, const nsai_ref_scratch *scratch,
                       int64_t first_key, int64_t ranges) {
  const int64_t dim = problem->model->index_dim;
  const double scale = nsai_ref_scale(problem, &problem->io->k_idx, 0) / sqrt(dim);
  double most = -INFINITY, sum = 0;
  for (int64_t r = 0; r < ranges; r++)
    for (int64_t p = scratch->ranges[r].begin; p < scratch->ranges[r].end; p++) {
      const double *key = problem->k_idx + (first_key + p) * dim;
      double score = 0;
      for (int64_t e = 0; e < dim; e++) score += scratch->index_q[e * NSAI_REF_LANES] * key[e];
      score *= scale;
      if (score > most) {
        sum *= exp(most - score);
        most = score;
      }
      sum += exp(score - most);
    }
  return sum > 0 ? most + log(sum) : -INFINITY;
}

static void sum_slab(void *context, int worker, int64_t item) {
  const index_lse *self = context;
  const nsai_ref_problem *problem = self->problem;
  const nsa_tensor *out = &problem->io->index_lse;
  nsai_ref_scratch *scratch = &self->scratch[worker];
  const int64_t end = nsai_smaller((item + 1) * NSAI_REF_SLAB, self->tokens);
  for (int64_t token = item * NSAI_REF_SLAB; token < end; token++) {
    const nsai_ref_position position = nsai_ref_sequences_find(&problem->sequences, token);
    for (int64_t group = 0; group < problem->model->index_heads; group++) {
      double lse = -INFINITY;
      const int64_t ranges =
          position.t < 0 ? 0 : nsai_ref_selected_ranges(problem, scratch, token, position.t, group);
      if (ranges) {
        load_query(problem, scratch, token, group);
        lse = sum_keys(problem, scratch, problem->sequences.kv[position.sequence], ranges);
      }
      nsai_ref_store(out, nsai_ref_offset2(out, token, group), lse);
    }
  }
}

static nsa_status sum_all(index_lse *self, nsai_ref_problem *problem) {
  const int64_t items = nsai_ceil_div(self->tokens, NSAI_REF_SLAB);
  const int workers = nsai_ref_worker_count(problem->threads, items);
  NSAI_TRY(nsai_ref_index_open(problem));
  NSAI_TRY(nsai_ref_scratch_create(problem, 1, workers, &self->scratch));
  nsai_ref_parallel(workers, items, sum_slab, self);
  return NSA_OK;
}

nsa_status nsai_reference_index_lse(const nsai_model *model, const nsai_reference_cache *cache,
                                    const nsa_batch *batch, const nsa_io *io, int threads) {
  nsa_io own = *io;
  nsai_ref_problem problem = { .cache = cache };
  index_lse self = { .problem = &problem };
  nsa_status status;
  own.kv_reads = (nsa_tensor){ 0 }; /* those of the attention alone are counted */
  NSAI_TRY_TO(done, nsai_ref_problem_init(&problem, model, batch, &own, threads));
  problem.selection = NSA_SELECT_BLOCKS;
  self.tokens = problem.sequences.q[problem.sequences.count];
  NSAI_TRY_TO(done, sum_all(&self, &problem));
done:
  nsai_ref_scratch_destroy(self.scratch);
  nsai_ref_problem_fini(&problem);
  return status;
}
