/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Appends new tokens to a cache: first the raw rows, then every compressed block whose last
 * token is among them, computed from the cache's contents at that point. A block is written
 * again whenever its last token is, so rejecting a draft needs no call of its own.
 */
#include "reference/internal.h"
#include "reference/tensor.h"

#include <string.h>

/* State of one call. */
typedef struct append {
  nsai_ref_problem problem;
  /* the cache's tensors and phi, in the form that the other files of the CPU device expect */
  nsa_io io;
  const nsa_kv *new_kv;
} append;

/* Whether the caller wants a new token to be written. */
static bool is_kept(const append *self, int64_t token) {
  const nsa_tensor *slots = &self->problem.batch->slot_mapping;
  return !slots->data || ((const int64_t *)slots->data)[token] >= 0;
}

/* Copies one row of every head from `source` [T, Hkv, D] to `target`, K or V of pair `pair` in
 * the cache. */
static void copy_row(const append *self, const nsa_tensor *source, const nsa_tensor *target,
                     int pair, int64_t token, nsai_ref_position position) {
  size_t bytes = (size_t)(source->shape[2] * nsai_ref_size(source));
  for (int64_t head = 0; head < self->problem.model->kv_heads; head++) {
    int64_t to =
        nsai_ref_token_at(&self->problem, target, pair, position.sequence, position.t, head);
    memcpy((char *)target->data + to * nsai_ref_size(target),
           nsai_ref_at(source, nsai_ref_offset2(source, token, head)), bytes);
  }
}

static void copy_tokens(const append *self) {
  const nsai_ref_sequences *sequences = &self->problem.sequences;
  const nsa_kv *new_kv = self->new_kv, *kv = &self->io.kv;
  for (int64_t token = 0; token < sequences->q[sequences->count]; token++) {
    nsai_ref_position position = nsai_ref_sequences_find(sequences, token);
    if (position.t < 0 || !is_kept(self, token)) continue;
    for (int pair = 0; pair < NSA_BRANCHES; pair++) {
      if (!nsai_reads_pair(self->problem.model, pair)) continue;
      copy_row(self, &new_kv->k[pair], &kv->k[pair], pair, token, position);
      copy_row(self, &new_kv->v[pair], &kv->v[pair], pair, token, position);
    }
  }
}

/* Rounds `values` [Hkv, blocks, dim] into `target`, K or V of the cache. */
static void store_entries(const append *self, const nsa_tensor *target, int64_t dim,
                          const double *values) {
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
      for (int64_t e = 0; e < dim; e++)
        nsai_ref_store(target, to + e, values[(head * total + at) * dim + e]);
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
  NSAI_TRY(nsai_ref_sequences_init_cached(&problem->sequences, g, problem->batch,
                                          count_tokens(g, self->new_kv), true));
  copy_tokens(self);
  if (g->phi == NSAI_PHI_EXTERNAL) return NSA_OK; /* the caller writes the compressed entries */
  NSAI_TRY(nsai_ref_compress(problem, true));
  store_entries(self, &self->io.kv.k_cmp, g->head_dim_qk, problem->k_cmp);
  store_entries(self, &self->io.kv.v_cmp, g->head_dim_v, problem->v_cmp);
  return NSA_OK;
}

nsa_status nsai_reference_append(const nsai_model *model, const nsai_reference_cache *cache,
                                 const nsa_batch *batch, const nsa_kv *kv, const nsa_kv *new_kv,
                                 const nsa_phi *phi, int threads) {
  append self = { .problem = { .cache = cache }, .new_kv = new_kv };
  nsa_status status;
  self.io = (nsa_io)NSA_IO_INIT;
  self.io.kv = *kv;
  if (phi) self.io.phi = *phi;
  nsai_ref_problem_begin(&self.problem, model, batch, &self.io, threads);
  NSAI_TRY_TO(done, run(&self));
done:
  nsai_ref_problem_fini(&self.problem);
  return status;
}
