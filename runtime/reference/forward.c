/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The complete forward and the dense baseline. One computation has two kinds of output: tensors
 * for all rows, or float64 for a list of rows.
 */
#include "base/math.h"
#include "reference/internal.h"
#include "reference/tensor.h"

#include <math.h>

/* State of one call. A work item is a slab of NSAI_REF_SLAB tokens, or of as many rows of the
 * list. */
typedef struct run {
  nsai_ref_problem *problem;
  const nsai_reference_rows *rows; /* NULL: all tokens, into io's tensors */
  bool dense;
  nsai_ref_scratch *scratch;   /* of the workers */
  int64_t count;               /* tokens or rows */
  nsai_ref_partials *partials; /* of a decode over ranks; NULL: one pass is enough */
} run;

/* Element e of head h's output: dense attention, or the gated sum of the branches that ran. */
static double output_of(const run *self, const nsai_ref_scratch *scratch, const double *gates,
                        int64_t h, int64_t e) {
  const nsai_ref_problem *problem = self->problem;
  int64_t at = e * problem->lanes + h;
  if (self->dense) return scratch->out[0][at];
  double sum = 0;
  /* a row without keys may be padding whose gate has any value */
  for (int b = 0; b < NSA_BRANCHES; b++)
    if (problem->run[b] && scratch->lse[b][h] != -INFINITY) sum += gates[b] * scratch->out[b][at];
  return sum;
}

static void compute(const run *self, nsai_ref_scratch *scratch, int64_t token, int64_t group) {
  nsai_ref_position position = nsai_ref_sequences_find(&self->problem->sequences, token);
  if (self->dense)
    nsai_ref_attend_dense(self->problem, scratch, token, position, group);
  else
    nsai_ref_attend(self->problem, scratch, token, position, group);
}

/* Rounds one group's results into io's tensors. `gates` are the token's. */
static void store_tensors(const run *self, const nsai_ref_scratch *scratch, const double *gates,
                          int64_t token, int64_t group) {
  const nsai_ref_problem *problem = self->problem;
  const nsa_io *io = problem->io;
  int64_t heads = problem->model->heads / problem->model->kv_heads;
  int64_t dim = problem->model->head_dim_v, lanes = problem->lanes;
  int branches = self->dense ? 1 : NSA_BRANCHES;
  for (int64_t h = 0; h < heads; h++) {
    int64_t head = group * heads + h;
    if (io->o.data)
      for (int64_t e = 0; e < dim; e++)
        nsai_ref_store(&io->o, nsai_ref_offset2(&io->o, token, head) + e,
                       output_of(self, scratch, gates + head * NSA_BRANCHES, h, e));
    for (int b = 0; b < branches; b++) {
      const nsa_tensor *o = &io->o_branch[b], *lse = &io->lse[b];
      if (lse->data) nsai_ref_store(lse, nsai_ref_offset2(lse, token, head), scratch->lse[b][h]);
      if (!o->data || self->dense) continue;
      for (int64_t e = 0; e < dim; e++)
        nsai_ref_store(o, nsai_ref_offset2(o, token, head) + e, scratch->out[b][e * lanes + h]);
    }
  }
}

/* Copies one head's results into row r of the list. */
static void store_row(const run *self, const nsai_ref_scratch *scratch, const double *gates,
                      int64_t r) {
  const nsai_ref_problem *problem = self->problem;
  const nsai_reference_rows *rows = self->rows;
  int64_t heads = problem->model->heads / problem->model->kv_heads;
  int64_t dim = problem->model->head_dim_v, lanes = problem->lanes, h = rows->head[r] % heads;
  int branches = self->dense ? 1 : NSA_BRANCHES;
  if (rows->o)
    for (int64_t e = 0; e < dim; e++)
      rows->o[r * dim + e] = output_of(self, scratch, gates + rows->head[r] * NSA_BRANCHES, h, e);
  for (int b = 0; b < branches; b++) {
    if (rows->lse[b]) rows->lse[b][r] = scratch->lse[b][h];
    if (!rows->o_branch[b] || self->dense) continue;
    for (int64_t e = 0; e < dim; e++)
      rows->o_branch[b][r * dim + e] = scratch->out[b][e * lanes + h];
  }
}

/* The tokens of a slab; returns their number. */
static int64_t slab_of(const run *self, int64_t item, int64_t tokens[NSAI_REF_SLAB]) {
  const int64_t begin = item * NSAI_REF_SLAB;
  int64_t count = 0;
  for (; count < NSAI_REF_SLAB && begin + count < self->count; count++)
    tokens[count] = begin + count;
  return count;
}

static void run_tokens(void *context, int worker, int64_t item) {
  const run *self = context;
  const nsai_model *g = self->problem->model;
  nsai_ref_scratch *scratch = &self->scratch[worker];
  int64_t tokens[NSAI_REF_SLAB] = { 0 };
  const int64_t count = slab_of(self, item, tokens);
  if (self->problem->gated && !self->partials)
    nsai_ref_gates(self->problem, scratch, count, tokens);
  for (int64_t group = 0; group < g->kv_heads; group++)
    for (int64_t i = 0; i < count; i++) {
      compute(self, scratch, tokens[i], group);
      if (self->problem->select && self->problem->io->block_idx.data)
        nsai_ref_store_idx(self->problem, scratch, tokens[i], group);
      if (self->partials)
        nsai_ref_partials_store(self->partials, self->problem, scratch, tokens[i], group);
      else
        store_tensors(self, scratch, scratch->gates + i * nsai_ref_gate_row(g), tokens[i], group);
    }
}

/* The second pass over ranks. */
static void merge_tokens(void *context, int worker, int64_t item) {
  const run *self = context;
  const nsai_model *g = self->problem->model;
  nsai_ref_scratch *scratch = &self->scratch[worker];
  int64_t tokens[NSAI_REF_SLAB] = { 0 };
  const int64_t count = slab_of(self, item, tokens);
  if (self->problem->gated) nsai_ref_gates(self->problem, scratch, count, tokens);
  for (int64_t group = 0; group < g->kv_heads; group++)
    for (int64_t i = 0; i < count; i++) {
      nsai_ref_partials_load(self->partials, self->problem, scratch, tokens[i], group);
      store_tensors(self, scratch, scratch->gates + i * nsai_ref_gate_row(g), tokens[i], group);
    }
}

/* Behind the first pass. */
static nsa_status merge_ranks(run *self, int workers, int64_t items) {
  if (!self->partials) return NSA_OK;
  NSAI_TRY(nsai_ref_partials_gather(self->partials, self->problem));
  nsai_ref_parallel(workers, items, merge_tokens, self);
  return NSA_OK;
}

static void run_rows(void *context, int worker, int64_t item) {
  const run *self = context;
  const nsai_model *g = self->problem->model;
  const nsai_reference_rows *rows = self->rows;
  nsai_ref_scratch *scratch = &self->scratch[worker];
  int64_t begin = item * NSAI_REF_SLAB, heads = g->heads / g->kv_heads;
  int64_t count = self->count - begin < NSAI_REF_SLAB ? self->count - begin : NSAI_REF_SLAB;
  if (self->problem->gated) nsai_ref_gates(self->problem, scratch, count, rows->token + begin);
  for (int64_t i = 0; i < count; i++) {
    int64_t r = begin + i;
    bool same = i > 0 && rows->token[r] == rows->token[r - 1] &&
                rows->head[r] / heads == rows->head[r - 1] / heads;
    if (!same) compute(self, scratch, rows->token[r], rows->head[r] / heads);
    store_row(self, scratch, scratch->gates + i * nsai_ref_gate_row(g), r);
  }
}

static nsa_status execute(run *self) {
  nsai_ref_problem *problem = self->problem;
  const nsa_io *io = problem->io;
  bool probed = !self->dense && !self->rows && io->probe_rows.data && io->probe_importance.data;
  bool want_v = problem->run[NSA_CMP];
  /* The caller's k_cmp and v_cmp are filled whatever branches run; those of a cache are inputs. */
  bool stored = !self->dense && !self->rows && !problem->cache && nsai_phi_runs(problem->model) &&
                (io->kv.k_cmp.data || io->kv.v_cmp.data);
  if (stored && io->kv.v_cmp.data) want_v = true;
  const bool ranks = problem->select || probed;
  const bool by_index = problem->model->by == NSAI_BY_INDEX;
  if (problem->run[NSA_CMP] || (ranks && !by_index) || stored)
    NSAI_TRY(problem->cache ? nsai_ref_compress_load(problem, want_v)
                            : nsai_ref_compress(problem, want_v));
  if (ranks) NSAI_TRY(by_index ? nsai_ref_index_open(problem) : nsai_ref_normalizer_open(problem));
  self->count = self->rows ? self->rows->count : problem->sequences.q[problem->sequences.count];
  int64_t items = (self->count + NSAI_REF_SLAB - 1) / NSAI_REF_SLAB;
  int64_t probes = probed ? io->probe_rows.shape[0] : 0;
  int workers = nsai_ref_worker_count(problem->threads, nsai_larger(items, probes));
  int64_t keys = self->dense ? problem->sequences.max_kv : nsai_ref_most_keys(problem);
  NSAI_TRY(nsai_ref_scratch_create(problem, keys, workers, &self->scratch));
  if (stored) nsai_ref_compress_store(problem);
  if (self->partials) NSAI_TRY(nsai_ref_partials_init(self->partials, problem));
  nsai_ref_parallel(workers, items, self->rows ? run_rows : run_tokens, self);
  NSAI_TRY(merge_ranks(self, workers, items));
  if (probed) nsai_ref_probe(problem, self->scratch, workers);
  return NSA_OK;
}

static nsa_status run_and_release(run *self) {
  nsa_status status;
  NSAI_TRY_TO(done, execute(self));
done:
  nsai_ref_scratch_destroy(self->scratch);
  nsai_ref_problem_fini(self->problem);
  return status;
}

static nsa_status forward(const nsai_model *model, int32_t selection, uint32_t branches,
                          const nsa_batch *batch, const nsa_io *io, run *self) {
  nsai_ref_problem *problem = self->problem;
  NSAI_TRY(nsai_ref_problem_init(problem, model, batch, io, problem->threads));
  problem->selection = selection;
  nsai_ref_problem_run(problem, branches);
  bool wanted = problem->run[NSA_SEL] || (!self->rows && io->block_idx.data);
  problem->select = selection == NSA_SELECT_TOPN && model->select_count > 0 && wanted;
  problem->gated = self->rows ? self->rows->o != NULL : io->o.data != NULL;
  NSAI_TRY(run_and_release(self));
  return NSA_OK;
}

nsa_status nsai_reference_forward(const nsai_model *model, int32_t selection, uint32_t branches,
                                  const nsa_batch *batch, const nsa_io *io, int threads) {
  nsai_ref_problem problem = { .threads = threads };
  run self = { .problem = &problem };
  return forward(model, selection, branches, batch, io, &self);
}

nsa_status nsai_reference_cached(const nsai_model *model, const nsai_reference_cache *cache,
                                 int32_t selection, uint32_t branches, const nsa_batch *batch,
                                 const nsa_io *io, int threads) {
  nsai_ref_problem problem = { .cache = cache, .threads = threads };
  nsai_ref_partials partials = { 0 };
  const bool selected = nsai_has_branch(model, NSA_SEL) && (!branches || branches >> NSA_SEL & 1);
  run self = { .problem = &problem, .partials = cache->ranks && selected ? &partials : NULL };
  const nsa_status status = forward(model, selection, branches, batch, io, &self);
  nsai_ref_partials_fini(&partials);
  return status;
}

nsa_status nsai_reference_forward_rows(const nsai_model *model, int32_t selection,
                                       uint32_t branches, const nsa_batch *batch, const nsa_io *io,
                                       const nsai_reference_rows *rows, int threads) {
  nsai_ref_problem problem = { .threads = threads };
  run self = { .problem = &problem, .rows = rows };
  return forward(model, selection, branches, batch, io, &self);
}

nsa_status nsai_reference_dense_rows(const nsai_model *model, const nsa_batch *batch,
                                     const nsa_io *io, const nsai_reference_rows *rows,
                                     int threads) {
  nsai_ref_problem problem = { 0 };
  run self = { .problem = &problem, .rows = rows, .dense = true };
  NSAI_TRY(nsai_ref_problem_init(&problem, model, batch, io, threads));
  NSAI_TRY(run_and_release(&self));
  return NSA_OK;
}

nsa_status nsai_reference_dense(const nsai_model *model, const nsa_batch *batch, const nsa_io *io,
                                int threads) {
  return nsai_reference_dense_rows(model, batch, io, NULL, threads);
}
