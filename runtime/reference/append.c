/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Appends new tokens to a cache: first the raw rows, then every compressed block whose last
 * token is among them, computed from the cache's contents at that point. A block is written
 * again whenever its last token is, so rejecting a draft needs no call of its own. In a cache of
 * codes the rows are codes before any entry is computed, so that entries depend on codes alone.
 */
#include "reference/internal.h"
#include "reference/tensor.h"

#include <string.h>

/* State of one call. */
typedef struct append {
  nsai_ref_problem problem;
} append;

/* Whether the caller wants a new token to be written. */
static bool is_kept(const append *self, int64_t token) {
  const nsa_tensor *slots = &self->problem.batch->slot_mapping;
  return !slots->data || ((const int64_t *)slots->data)[token] >= 0;
}

/* The codes of the row of `source`, whose third dimension is that of a row, at `from`. */
static void store_codes(const append *self, const nsa_tensor *source, int64_t from,
                        const nsa_tensor *target, int64_t to, int64_t head) {
  const double scale = nsai_ref_scale(&self->problem, target, head);
  for (int64_t e = 0; e < source->shape[2]; e++)
    ((uint8_t *)target->data)[to + e] = nsai_ref_code(nsai_ref_load(source, from + e), scale);
}

/* Copies one row of every head from `source` [T, Hkv, D] to `target`, K or V of pair `pair` in
 * the cache. */
static void copy_row(const append *self, const nsa_tensor *source, const nsa_tensor *target,
                     int pair, int64_t token, nsai_ref_position position) {
  size_t bytes = (size_t)(source->shape[2] * nsai_ref_size(source));
  for (int64_t head = 0; head < self->problem.model->kv_heads; head++) {
    int64_t to =
        nsai_ref_token_at(&self->problem, target, pair, position.sequence, position.t, head);
    int64_t from = nsai_ref_offset2(source, token, head);
    if (target->dtype == NSA_E4M3)
      store_codes(self, source, from, target, to, head);
    else
      memcpy((char *)target->data + to * nsai_ref_size(target), nsai_ref_at(source, from), bytes);
  }
}

/* The index key of a new token. */
static void copy_index_key(const append *self, int64_t token, nsai_ref_position position) {
  const nsa_tensor *from = &self->problem.io->new_k_idx, *to = &self->problem.io->k_idx;
  const int64_t at = nsai_ref_index_key_at(&self->problem, to, position.sequence, position.t);
  const int64_t row = token * from->stride[0];
  if (to->dtype == NSA_E4M3)
    store_codes(self, from, row, to, at, 0);
  else
    memcpy((char *)to->data + at * nsai_ref_size(to), nsai_ref_at(from, row),
           (size_t)(self->problem.model->index_dim * nsai_ref_size(to)));
}

static void copy_tokens(const append *self) {
  const nsai_ref_sequences *sequences = &self->problem.sequences;
  const nsa_kv *new_kv = &self->problem.io->new_kv, *kv = &self->problem.io->kv;
  for (int64_t token = 0; token < sequences->q[sequences->count]; token++) {
    nsai_ref_position position = nsai_ref_sequences_find(sequences, token);
    if (position.t < 0 || !is_kept(self, token)) continue;
    for (int pair = 0; pair < NSA_BRANCHES; pair++) {
      if (!nsai_reads_pair(self->problem.model, pair)) continue;
      copy_row(self, &new_kv->k[pair], &kv->k[pair], pair, token, position);
      copy_row(self, &new_kv->v[pair], &kv->v[pair], pair, token, position);
    }
    if (self->problem.model->by == NSAI_BY_INDEX) copy_index_key(self, token, position);
  }
}

/* Rounds `values` [Hkv, blocks, dim] into `target`, K or V of the cache. Means of codes, from the pair
 * `source`, have been divided by the scale of the entries. What phi linear and mlp give has the model's
 * dtype before it becomes codes. */
static void store_entries(const append *self, const nsa_tensor *source, const nsa_tensor *target,
                          int64_t dim, double *values) {
  const bool divide = target->dtype == NSA_E4M3 &&
                      (self->problem.model->phi != NSAI_PHI_MEAN || source->dtype != NSA_E4M3);
  const nsai_model *g = self->problem.model;
  const nsai_ref_sequences *sequences = &self->problem.sequences;
  int64_t total = sequences->blocks[sequences->count];
  for (int64_t at = 0; at < total; at++) {
    int64_t s = nsai_ref_sequence_of(sequences->blocks, sequences->count, at);
    int64_t block = sequences->first[s] + at - sequences->blocks[s];
    int64_t behind = sequences->kv[s + 1] - sequences->kv[s] - (block * g->stride + g->block - 1);
    if (!is_kept(self, sequences->q[s + 1] - behind)) continue;
    for (int64_t head = 0; head < g->kv_heads; head++) {
      int64_t to = nsai_ref_entry_at(&self->problem, target, s, block, head);
      double *row = values + (head * total + at) * dim;
      const double scale = nsai_ref_scale(&self->problem, target, head);
      if (divide && g->phi != NSAI_PHI_MEAN)
        nsai_ref_round((nsai_ref_rounding){ .dtype = g->dtype }, dim, row);
      for (int64_t e = 0; e < dim; e++)
        if (divide)
          ((uint8_t *)target->data)[to + e] = nsai_ref_code(row[e], scale);
        else
          nsai_ref_store(target, to + e, row[e]);
    }
  }
}

/* Rounds the coarse keys that end among the new tokens into the cache. */
static void store_norms(const append *self) {
  const nsai_ref_problem *problem = &self->problem;
  const nsai_model *g = problem->model;
  const nsai_ref_sequences *sequences = &problem->sequences;
  const nsa_tensor *target = &problem->io->k_norm;
  const int64_t total = sequences->norms[sequences->count], dim = g->head_dim_qk;
  for (int64_t at = 0; problem->k_norm && at < total; at++) {
    int64_t s = nsai_ref_sequence_of(sequences->norms, sequences->count, at);
    int64_t block = sequences->first_norm[s] + at - sequences->norms[s];
    int64_t end = block * g->norm_stride + g->norm_block - 1;
    if (!is_kept(self, sequences->q[s + 1] - (sequences->kv[s + 1] - sequences->kv[s] - end)))
      continue;
    for (int64_t head = 0; head < g->kv_heads; head++) {
      int64_t to = nsai_ref_norm_at(problem, target, s, block, head);
      for (int64_t e = 0; e < dim; e++)
        nsai_ref_store(target, to + e, problem->k_norm[(head * total + at) * dim + e]);
    }
  }
}

/* Rows of the first pair that the model reads. */
static int64_t count_tokens(const nsai_model *g, const nsa_kv *new_kv) {
  for (int pair = 0; pair < NSA_BRANCHES; pair++)
    if (nsai_reads_pair(g, pair)) return new_kv->k[pair].shape[0];
  return 0;
}

static nsa_status run(append *self) {
  nsai_ref_problem *problem = &self->problem;
  const nsai_model *g = problem->model;
  const int64_t tokens = count_tokens(g, &problem->io->new_kv);
  if (!tokens)
    return NSA_OK; /* the batch may have those of a decode whose entries the caller writes */
  NSAI_TRY(nsai_ref_sequences_init_cached(&problem->sequences, g, problem->batch, tokens, true));
  copy_tokens(self);
  NSAI_TRY(nsai_ref_normalizer_make(problem));
  store_norms(self);
  if (!nsai_phi_runs(g)) return NSA_OK; /* there are none, or the caller writes the entries */
  NSAI_TRY(nsai_ref_compress(problem, !g->keys_only));
  const nsa_kv *kv = &problem->io->kv;
  store_entries(self, &kv->k[0], &kv->k_cmp, g->head_dim_qk, problem->k_cmp);
  if (problem->v_cmp) store_entries(self, &kv->v[0], &kv->v_cmp, g->head_dim_v, problem->v_cmp);
  return NSA_OK;
}

nsa_status nsai_reference_append(const nsai_model *model, const nsai_reference_cache *cache,
                                 const nsa_batch *batch, const nsa_io *io, int threads) {
  append self = { .problem = { .cache = cache } };
  nsa_status status;
  nsai_ref_problem_begin(&self.problem, model, batch, io, threads);
  NSAI_TRY_TO(done, run(&self));
done:
  nsai_ref_problem_fini(&self.problem);
  return status;
}
