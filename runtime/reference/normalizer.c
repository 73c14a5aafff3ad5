/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The selection's normaliser: coarse keys, and their log-sum-exp in the place of the compressed
 * branch's. Coarse key m of a sequence is the mean of its raw keys [m*s, m*s + b), for the block b and
 * the stride s of model.select.normalizer. It has the model's dtype, also where it is not stored, so
 * that a forward selects what a cache makes it select. A query sees it when the block is whole.
 */
#include "base/math.h"
#include "reference/internal.h"
#include "reference/tensor.h"

#include <string.h>

#define CHUNK 32 /* coarse keys of a work item */

/* Makes or loads the coarse keys of one call. */
typedef struct coarse {
  const nsai_ref_problem *problem;
  bool load; /* from io->k_norm, not from the raw keys */
  double *out;
} coarse;

/* The mean of `length` raw keys from `position` on. That of codes is a float32 sum in ascending order,
 * times one factor, as of compressed keys. */
static void mean(const nsai_ref_problem *problem, int64_t sequence, int64_t position, int64_t head,
                 double *out) {
  const nsa_tensor *k = &problem->io->kv.k[0];
  const int64_t length = problem->model->norm_block, dim = problem->model->head_dim_qk;
  const bool codes = k->dtype == NSA_E4M3;
  memset(out, 0, (size_t)dim * sizeof *out);
  for (int64_t r = 0; r < length; r++) {
    int64_t at = nsai_ref_token_at(problem, k, NSA_CMP, sequence, position + r, head);
    for (int64_t e = 0; e < dim; e++) {
      const double x = nsai_ref_load(k, at + e);
      out[e] = codes ? (double)((float)out[e] + (float)x) : out[e] + x;
    }
  }
  const float factor = (float)nsai_ref_scale(problem, k, head) / (float)length;
  for (int64_t e = 0; e < dim; e++)
    out[e] = codes ? (double)((float)out[e] * factor) : out[e] / (double)length;
  nsai_ref_round((nsai_ref_rounding){ .dtype = problem->model->dtype }, dim, out);
}

static void load(const nsai_ref_problem *problem, int64_t sequence, int64_t block, int64_t head,
                 double *out) {
  const nsa_tensor *k = &problem->io->k_norm;
  const int64_t dim = problem->model->head_dim_qk;
  nsai_ref_widen_scaled(problem, k, nsai_ref_norm_at(problem, k, sequence, block, head), head, dim,
                        out);
  nsai_ref_count_reads(problem, &(nsai_ref_reads){ .source = k,
                                                   .is_k = true,
                                                   .branch = NSA_CMP,
                                                   .sequence = sequence,
                                                   .head = head,
                                                   .rows = 1,
                                                   .dim = dim });
}

static int64_t total_of(const nsai_ref_problem *problem) {
  return problem->sequences.norms[problem->sequences.count];
}

static void run_item(void *context, int worker, int64_t item) {
  const coarse *self = context;
  const nsai_ref_problem *problem = self->problem;
  const nsai_ref_sequences *sequences = &problem->sequences;
  const int64_t total = total_of(problem), chunks = nsai_ceil_div(total, CHUNK);
  const int64_t head = item / chunks, first = item % chunks * CHUNK;
  const int64_t dim = problem->model->head_dim_qk, stride = problem->model->norm_stride;
  (void)worker;
  for (int64_t at = first; at < nsai_smaller(first + CHUNK, total); at++) {
    int64_t s = nsai_ref_sequence_of(sequences->norms, sequences->count, at);
    int64_t block = sequences->first_norm[s] + at - sequences->norms[s];
    double *out = self->out + (head * total + at) * dim;
    if (self->load)
      load(problem, s, block, head, out);
    else
      mean(problem, s, block * stride, head, out);
  }
}

static nsa_status run(nsai_ref_problem *problem, bool load_them) {
  const int64_t total = total_of(problem), heads = problem->model->kv_heads;
  const int64_t row = heads * problem->model->head_dim_qk,
                items = heads * nsai_ceil_div(total, CHUNK);
  /* The sequences of a cache may share memory, so no tensor bounds the sum of their blocks. */
  if (total > INT64_MAX / 16 / row) return nsai_fail_nomem("coarse keys in float64", SIZE_MAX);
  problem->k_norm = nsai_ref_doubles(row * total);
  if (!problem->k_norm)
    return nsai_fail_nomem("coarse keys in float64", (size_t)(row * total) * sizeof(double));
  coarse self = { problem, load_them, problem->k_norm };
  nsai_ref_parallel(nsai_ref_worker_count(problem->threads, items), items, run_item, &self);
  return NSA_OK;
}

nsa_status nsai_ref_normalizer_make(nsai_ref_problem *problem) {
  return problem->model->norm_block ? run(problem, false) : NSA_OK;
}

nsa_status nsai_ref_normalizer_open(nsai_ref_problem *problem) {
  return problem->model->norm_block ? run(problem, problem->cache != NULL) : NSA_OK;
}

void nsai_ref_normalize(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                        nsai_ref_position position, int64_t group) {
  const nsai_ref_sequences *sequences = &problem->sequences;
  const int64_t *norms = &sequences->norms[position.sequence];
  const int64_t row = group * total_of(problem) + norms[0];
  const nsai_ref_keys keys = { .k64 = problem->k_norm + row * problem->model->head_dim_qk };
  const int64_t seen = nsai_norm_count(problem->model, position.t + 1);
  scratch->ranges[0] = (nsai_ref_range){ 0, nsai_smaller(seen, norms[1] - norms[0]) };
  nsai_ref_probabilities(problem, scratch, &keys, 1, scratch->norm);
}
