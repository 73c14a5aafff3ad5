/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The loss of an index branch and its gradients, by the formulas of include/nsa/index_kl.h. A work
 * item is one KV head of a sequence: it alone adds to its sums over the index keys, which the head
 * shares with the others. Those sums and the losses of rows are added up in a fixed order, so results do
 * not depend on the number of threads. Everything is allocated before the first output is written.
 */
#include "base/math.h"
#include "reference/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One thread's memory in addition to nsai_ref_scratch. */
typedef struct kl_scratch {
  double *teacher; /* [most keys]: Pm */
  double *scores;  /* [most keys]: si qi . ki, then dS */
  double *q;       /* [Di]: qi */
  double *d_q;     /* [Di] */
} kl_scratch;

typedef struct kl {
  nsai_ref_problem problem;
  bool all; /* NSA_SELECT_ALL: of what nsa_dense reads and writes, else of the selected branch */
  const nsa_index_grads *grads;
  nsai_ref_scratch *scratch; /* one per worker */
  kl_scratch *own;           /* one per worker */
  double *memory;            /* what `own` points into */
  double *loss;              /* [T, Hi]: of each row, without the factor */
  double *d_k;               /* [Hi, KV tokens, Di]; NULL: not needed */
  double scale, factor;      /* si, c / (T Hi) */
} kl;

/* The pair of K. */
static int pair_of(bool all, const nsai_model *model) {
  return model->per_branch && !all ? NSA_SEL : 0;
}

static int64_t tokens_of(const kl *self) {
  const nsai_ref_sequences *sequences = &self->problem.sequences;
  return sequences->q[sequences->count];
}

static int64_t kv_tokens_of(const kl *self) {
  const nsai_ref_sequences *sequences = &self->problem.sequences;
  return sequences->kv[sequences->count];
}

/* ---- one (token, index head) ---- */

/* Pm of the chosen keys, whose scores of all heads are in scratch->scores. */
static void teach(const kl *self, const nsai_ref_scratch *scratch, kl_scratch *own, int64_t token,
                  int64_t group, int64_t keys) {
  const nsai_ref_problem *problem = &self->problem;
  const nsa_tensor *lse = &problem->io->lse[self->all ? 0 : NSA_SEL];
  const int64_t heads = problem->model->heads / problem->model->kv_heads;
  memset(own->teacher, 0, (size_t)keys * sizeof *own->teacher);
  for (int64_t h = 0; h < heads; h++) {
    const double norm = nsai_ref_load(lse, nsai_ref_offset2(lse, token, group * heads + h));
    for (int64_t i = 0; i < keys; i++)
      own->teacher[i] += exp(scratch->scores[i * problem->lanes + h] - norm);
  }
  for (int64_t i = 0; i < keys; i++) own->teacher[i] /= (double)heads;
}

/* The index key of a token of a sequence. */
static const double *key_of(const kl *self, int64_t sequence, int64_t position) {
  const nsai_ref_problem *problem = &self->problem;
  const int64_t at = problem->sequences.kv[sequence] + position;
  return problem->k_idx + at * problem->model->index_dim;
}

/* The scores of the index, si qi . ki, and their log-sum-exp. */
static double score(const kl *self, const nsai_ref_scratch *scratch, kl_scratch *own,
                    int64_t sequence, int64_t ranges) {
  const int64_t dim = self->problem.model->index_dim;
  double largest = -INFINITY, sum = 0;
  int64_t count = 0;
  for (int64_t r = 0; r < ranges; r++)
    for (int64_t p = scratch->ranges[r].begin; p < scratch->ranges[r].end; p++) {
      const double *key = key_of(self, sequence, p);
      double dot = 0;
      for (int64_t e = 0; e < dim; e++) dot += own->q[e] * key[e];
      own->scores[count] = self->scale * dot;
      if (own->scores[count] > largest) largest = own->scores[count];
      count++;
    }
  for (int64_t i = 0; i < count; i++) sum += exp(own->scores[i] - largest);
  return largest + log(sum);
}

/* Turns the scores into dS, and returns the row's sum of Pm log(Pm / Pi), in which Pm = 0 is 0. */
static double compare(const kl *self, kl_scratch *own, double lse, int64_t keys) {
  double loss = 0;
  for (int64_t i = 0; i < keys; i++) {
    const double log_student = own->scores[i] - lse, teacher = own->teacher[i];
    if (teacher > 0) loss += teacher * (log(teacher) - log_student);
    own->scores[i] = self->factor * (exp(log_student) - teacher);
  }
  return loss;
}

/* Adds the row's products of dS to d_q and to the head's sums over keys. */
static void propagate(const kl *self, const nsai_ref_scratch *scratch, kl_scratch *own,
                      int64_t sequence, int64_t group, int64_t ranges) {
  const int64_t dim = self->problem.model->index_dim;
  double *sums = self->d_k ? self->d_k + group * kv_tokens_of(self) * dim : NULL;
  int64_t count = 0;
  for (int64_t r = 0; r < ranges; r++)
    for (int64_t p = scratch->ranges[r].begin; p < scratch->ranges[r].end; p++) {
      const double *key = key_of(self, sequence, p);
      const double d_score = self->scale * own->scores[count++];
      double *d_key = sums ? sums + (self->problem.sequences.kv[sequence] + p) * dim : NULL;
      for (int64_t e = 0; e < dim; e++) own->d_q[e] += d_score * key[e];
      for (int64_t e = 0; d_key && e < dim; e++) d_key[e] += d_score * own->q[e];
    }
}

/* Rounds a result into an output, or adds it to the output's value and rounds. */
static void put(const kl *self, const nsa_tensor *x, int64_t offset, double value) {
  nsai_ref_store(x, offset, self->grads->accumulate ? nsai_ref_load(x, offset) + value : value);
}

static void store_d_q(const kl *self, const kl_scratch *own, int64_t token, int64_t group) {
  const nsa_tensor *out = &self->grads->d_index_q;
  if (!out->data) return;
  const int64_t at = nsai_ref_offset2(out, token, group);
  for (int64_t e = 0; e < self->problem.model->index_dim; e++) put(self, out, at + e, own->d_q[e]);
}

/* The tokens that a row compares: ranges in scratch. None where the row has no block, or stands before the
 * sequence's start. */
static int64_t find_ranges(const kl *self, nsai_ref_scratch *scratch, int64_t token, int64_t t,
                           int64_t group) {
  if (!self->all) return nsai_ref_selected_ranges(&self->problem, scratch, token, t, group);
  scratch->ranges[0] = (nsai_ref_range){ 0, t + 1 };
  return t >= 0;
}

static void run_row(const kl *self, int worker, int64_t token, int64_t group) {
  const nsai_ref_problem *problem = &self->problem;
  const nsai_model *g = problem->model;
  const nsai_ref_position position = nsai_ref_sequences_find(&problem->sequences, token);
  const int pair = pair_of(self->all, g);
  const nsai_ref_keys keys = { .k = &problem->io->kv.k[pair],
                               .branch = NSA_SEL,
                               .pair = pair,
                               .sequence = position.sequence,
                               .head = group };
  const nsa_tensor *q = &problem->io->index_q;
  nsai_ref_scratch *scratch = &self->scratch[worker];
  kl_scratch *own = &self->own[worker];
  memset(own->d_q, 0, (size_t)g->index_dim * sizeof *own->d_q);
  const int64_t ranges = find_ranges(self, scratch, token, position.t, group);
  if (ranges) {
    nsai_ref_load_query(problem, scratch, token, group);
    const int64_t count = nsai_ref_scores(problem, scratch, &keys, ranges);
    teach(self, scratch, own, token, group, count);
    problem->ops->widen(q->dtype, nsai_ref_at(q, nsai_ref_offset2(q, token, group)), g->index_dim,
                        own->q);
    const double lse = score(self, scratch, own, position.sequence, ranges);
    self->loss[token * g->kv_heads + group] = compare(self, own, lse, count);
    propagate(self, scratch, own, position.sequence, group, ranges);
  }
  store_d_q(self, own, token, group);
}

static void run_item(void *context, int worker, int64_t item) {
  const kl *self = context;
  const nsai_ref_problem *problem = &self->problem;
  const int64_t s = item / problem->model->kv_heads, group = item % problem->model->kv_heads;
  for (int64_t token = problem->sequences.q[s]; token < problem->sequences.q[s + 1]; token++)
    run_row(self, worker, token, group);
}

/* ---- the call ---- */

static int64_t lay_out(const kl *self, int64_t keys, double *memory, kl_scratch *own) {
  const int64_t dim = self->problem.model->index_dim;
  int64_t used = 0;
  own->teacher = nsai_ref_take(memory, &used, keys);
  own->scores = nsai_ref_take(memory, &used, keys);
  own->q = nsai_ref_take(memory, &used, dim);
  own->d_q = nsai_ref_take(memory, &used, dim);
  return used;
}

static nsa_status take(double **out, int64_t count) {
  *out = nsai_ref_doubles(count);
  return *out ? NSA_OK
              : nsai_fail_nomem("the loss of an index in float64", (size_t)count * sizeof(double));
}

static nsa_status take_all(kl *self, int workers) {
  const nsai_model *g = self->problem.model;
  const int64_t keys =
      self->all ? self->problem.sequences.max_kv : nsai_ref_most_keys(&self->problem);
  kl_scratch sizes;
  const int64_t size = lay_out(self, keys, NULL, &sizes);
  NSAI_TRY(nsai_ref_index_open(&self->problem));
  NSAI_TRY(nsai_ref_scratch_create(&self->problem, keys, workers, &self->scratch));
  NSAI_TRY(take(&self->loss, tokens_of(self) * g->kv_heads));
  if (self->grads->d_k_idx.data)
    NSAI_TRY(take(&self->d_k, kv_tokens_of(self) * g->kv_heads * g->index_dim));
  self->own = calloc((size_t)workers, sizeof *self->own);
  if (!self->own) return nsai_fail_nomem("threads", (size_t)workers * sizeof *self->own);
  NSAI_TRY(take(&self->memory, size * workers));
  for (int i = 0; i < workers; i++) lay_out(self, keys, self->memory + size * i, &self->own[i]);
  return NSA_OK;
}

/* The sums of all heads, in their order. */
static void store_sums(const kl *self) {
  const nsai_model *g = self->problem.model;
  const nsa_tensor *out = &self->grads->d_k_idx;
  const int64_t rows = kv_tokens_of(self), dim = g->index_dim;
  double loss = 0;
  for (int64_t i = 0; i < tokens_of(self) * g->kv_heads; i++) loss += self->loss[i];
  if (self->grads->loss.data) put(self, &self->grads->loss, 0, self->factor * loss);
  for (int64_t p = 0; out->data && p < rows; p++)
    for (int64_t e = 0; e < dim; e++) {
      double sum = 0;
      for (int64_t r = 0; r < g->kv_heads; r++) sum += self->d_k[(r * rows + p) * dim + e];
      put(self, out, nsai_ref_offset2(out, p, 0) + e, sum);
    }
}

static nsa_status execute(kl *self) {
  const nsai_model *g = self->problem.model;
  const int64_t items = self->problem.sequences.count * g->kv_heads;
  const int workers = nsai_ref_worker_count(self->problem.threads, items);
  const double c = self->grads->coefficient != 0 ? self->grads->coefficient : 1;
  self->scale = 1.0 / sqrt(g->index_dim);
  self->factor = tokens_of(self) ? c / ((double)tokens_of(self) * g->kv_heads) : 0;
  NSAI_TRY(take_all(self, workers));
  nsai_ref_parallel(workers, items, run_item, self);
  store_sums(self);
  return NSA_OK;
}

/* The tensors of io that the loss reads: what else the caller left there means nothing. */
static nsa_io read_tensors(const nsai_model *model, bool all, const nsa_io *io) {
  const int pair = pair_of(all, model), branch = all ? 0 : NSA_SEL;
  nsa_io own = {
    .softmax_scale = io->softmax_scale, .q = io->q, .index_q = io->index_q, .k_idx = io->k_idx
  };
  own.kv.k[pair] = io->kv.k[pair];
  own.lse[branch] = io->lse[branch];
  if (!all) own.block_idx = io->block_idx;
  return own;
}

nsa_status nsai_reference_index_kl(const nsai_model *model, int32_t selection,
                                   const nsa_batch *batch, const nsa_io *io,
                                   const nsa_index_grads *grads, int threads) {
  const bool all = selection == NSA_SELECT_ALL;
  const nsa_io own = read_tensors(model, all, io);
  kl self = { .all = all, .grads = grads };
  nsa_status status;
  NSAI_TRY_TO(done, nsai_ref_problem_init(&self.problem, model, batch, &own, threads));
  self.problem.selection = NSA_SELECT_BLOCKS; /* what the forward chose is given */
  nsai_ref_problem_run(&self.problem, 1u << NSA_SEL);
  NSAI_TRY_TO(done, execute(&self));
done:
  nsai_ref_scratch_destroy(self.scratch);
  free(self.own);
  free(self.memory);
  free(self.loss);
  free(self.d_k);
  nsai_ref_problem_fini(&self.problem);
  return status;
}
