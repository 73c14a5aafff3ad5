/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * phi: from raw keys and values to compressed ones. Block i of a sequence contains its tokens
 * [i*d, i*d + l). The result is float64 [Hkv, blocks of all sequences, D], not rounded.
 * Compressed keys that the caller supplies, packed or in a cache, are widened to the same form.
 */
#include "base/math.h"
#include "reference/internal.h"
#include "reference/tensor.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK 32 /* blocks per work item: weights are widened once for all of them */

/* One of K and V. */
typedef struct side {
  const nsai_ref_problem *problem;
  bool load;                         /* read from `stored` instead of computing phi */
  const nsa_tensor *source, *stored; /* raw tokens; compressed ones of the caller */
  const nsa_phi_side *phi;
  int64_t dim;
  double *out;     /* [Hkv, blocks, dim] */
  double *scratch; /* of all workers */
  int64_t scratch_size;
} side;

/* A chunk of blocks of one KV head. */
typedef struct chunk {
  int64_t head, first, count; /* blocks over all sequences */
  double *out;                /* [count, dim] */
} chunk;

/* One worker's doubles. */
typedef struct buffers {
  double *x;       /* [CHUNK, l * D]: vec(x + pe) */
  double *hidden;  /* [CHUNK, H rounded up] */
  double *y;       /* [CHUNK, D rounded up] */
  double *weights; /* [WEIGHT_ROWS, the larger of the two] */
  double *pe;      /* [D] */
} buffers;

/* Lays out one worker's doubles and returns how many there are. */
static int64_t lay_out(const nsai_model *g, int64_t dim, double *memory, buffers *b) {
  int64_t columns = nsai_ref_lanes(dim), used = 0;
  int64_t hidden = g->phi == NSAI_PHI_MLP ? nsai_ref_lanes(g->phi_hidden) : 0;
  b->x = nsai_ref_take(memory, &used, CHUNK * g->block * dim);
  b->hidden = nsai_ref_take(memory, &used, CHUNK * hidden);
  b->y = nsai_ref_take(memory, &used, CHUNK * columns);
  b->weights = nsai_ref_take(memory, &used, NSAI_REF_WEIGHT_ROWS * nsai_larger(hidden, columns));
  b->pe = nsai_ref_take(memory, &used, dim);
  return used;
}

nsai_ref_block nsai_ref_find_block(const nsai_ref_problem *problem, int64_t at) {
  const nsai_ref_sequences *sequences = &problem->sequences;
  int64_t s = nsai_ref_sequence_of(sequences->blocks, sequences->count, at);
  return (nsai_ref_block){ s, sequences->first[s] + at - sequences->blocks[s] };
}

/* The offset of token r of a block in the source. */
static int64_t token_at(const side *self, nsai_ref_block block, int64_t r, int64_t head) {
  int64_t position = block.index * self->problem->model->stride + r;
  return nsai_ref_token_at(self->problem, self->source, NSA_CMP, block.sequence, position, head);
}

static void load_stored(const side *self, const chunk *c) {
  const nsai_ref_problem *problem = self->problem;
  for (int64_t i = 0; i < c->count; i++) {
    nsai_ref_block block = nsai_ref_find_block(problem, c->first + i);
    int64_t row = problem->sequences.stored[block.sequence] + block.index;
    int64_t at = problem->cache ? nsai_ref_entry_at(problem, self->stored, block.sequence,
                                                    block.index, c->head)
                                : nsai_ref_offset2(self->stored, row, c->head);
    nsai_ref_widen_scaled(problem, self->stored, at, c->head, self->dim, c->out + i * self->dim);
    nsai_ref_count_reads(problem, &(nsai_ref_reads){ .source = self->stored,
                                                     .is_k = self->stored == &problem->io->kv.k_cmp,
                                                     .branch = NSA_CMP,
                                                     .sequence = block.sequence,
                                                     .head = c->head,
                                                     .rows = 1,
                                                     .dim = self->dim });
  }
}

/* The mean of codes, by the formula that every implementation has in float32: a sum, exact up to 73
 * tokens, times one factor. For entries in codes the result is in units of their scale. */
static void run_mean_of_codes(const side *self, const chunk *c) {
  const nsai_ref_problem *problem = self->problem;
  const int64_t length = problem->model->block;
  float factor = (float)nsai_ref_scale(problem, self->source, c->head);
  factor /= (float)length * (float)nsai_ref_scale(problem, self->stored, c->head);
  for (int64_t i = 0; i < c->count; i++) {
    nsai_ref_block block = nsai_ref_find_block(problem, c->first + i);
    for (int64_t e = 0; e < self->dim; e++) {
      float sum = 0;
      for (int64_t r = 0; r < length; r++)
        sum += (float)nsai_ref_load(self->source, token_at(self, block, r, c->head) + e);
      c->out[i * self->dim + e] = sum * factor;
    }
  }
}

static void run_mean(const side *self, const chunk *c) {
  int64_t length = self->problem->model->block;
  for (int64_t i = 0; i < c->count; i++) {
    nsai_ref_block block = nsai_ref_find_block(self->problem, c->first + i);
    double *out = c->out + i * self->dim;
    memset(out, 0, (size_t)self->dim * sizeof *out);
    for (int64_t r = 0; r < length; r++) {
      int64_t at = token_at(self, block, r, c->head);
      for (int64_t e = 0; e < self->dim; e++) out[e] += nsai_ref_load(self->source, at + e);
    }
    for (int64_t e = 0; e < self->dim; e++) out[e] /= (double)length;
  }
}

/* Codes become values of the model's dtype, in which phi's products are: a product in float32, rounded
 * once more. */
static void round_values(const nsai_ref_problem *problem, const nsa_tensor *source, int64_t head,
                         int64_t dim, double *x) {
  const float scale = (float)nsai_ref_scale(problem, source, head);
  for (int64_t e = 0; e < dim; e++) x[e] = (float)x[e] * scale;
  nsai_ref_round((nsai_ref_rounding){ .dtype = problem->model->dtype }, dim, x);
}

void nsai_ref_gather_block(const nsai_ref_problem *problem, const nsai_ref_phi_input *input,
                           nsai_ref_block block, int64_t head, double *x, double *pe) {
  const nsai_ref_ops *ops = problem->ops;
  const nsa_tensor *source = input->source, *added = &input->phi->pe;
  int64_t length = problem->model->block, dim = input->dim;
  for (int64_t r = 0; r < length; r++, x += dim) {
    int64_t position = block.index * problem->model->stride + r;
    int64_t at = nsai_ref_token_at(problem, source, NSA_CMP, block.sequence, position, head);
    ops->widen(source->dtype, nsai_ref_at(source, at), dim, x);
    if (source->dtype == NSA_E4M3) round_values(problem, source, head, dim, x);
    if (!added->data) continue;
    ops->widen(added->dtype, nsai_ref_at(added, nsai_ref_offset2(added, head, r)), dim, pe);
    for (int64_t e = 0; e < dim; e++) x[e] += pe[e];
  }
}

/* x [count, l * D] = vec(tokens + pe), token-major. */
static void gather(const side *self, const chunk *c, const buffers *b) {
  nsai_ref_phi_input input = { self->source, self->phi, self->dim };
  int64_t flat = self->problem->model->block * self->dim;
  for (int64_t i = 0; i < c->count; i++)
    nsai_ref_gather_block(self->problem, &input, nsai_ref_find_block(self->problem, c->first + i),
                          c->head, b->x + i * flat, b->pe);
}

nsai_ref_layers nsai_ref_phi_layers(const nsai_ref_problem *problem, const nsa_phi_side *phi,
                                    int64_t dim, int64_t head) {
  static const nsa_tensor absent;
  const nsai_model *g = problem->model;
  bool mlp = g->phi == NSAI_PHI_MLP;
  return (nsai_ref_layers){ .ops = problem->ops,
                            .w1 = &phi->w1,
                            .w2 = mlp ? &phi->w2 : &phi->w,
                            .b1 = &phi->b1,
                            .b2 = mlp ? &phi->b2 : &absent,
                            .head = head,
                            .in = g->block * dim,
                            .hidden = mlp ? g->phi_hidden : 0,
                            .out = dim,
                            .activation = g->phi_activation,
                            .stored = problem->stored };
}

static void run_dense(const side *self, const chunk *c, const buffers *b) {
  const nsai_ref_layers layers = nsai_ref_phi_layers(self->problem, self->phi, self->dim, c->head);
  int64_t columns = nsai_ref_lanes(self->dim);
  gather(self, c, b);
  nsai_ref_run_layers(&layers, c->count, b->x, b->hidden, b->weights, b->y);
  for (int64_t i = 0; i < c->count; i++)
    memcpy(c->out + i * self->dim, b->y + i * columns, (size_t)self->dim * sizeof(double));
}

static int64_t chunks_of(const nsai_ref_problem *problem) {
  return (problem->sequences.blocks[problem->sequences.count] + CHUNK - 1) / CHUNK;
}

static void run_item(void *context, int worker, int64_t item) {
  const side *self = context;
  const nsai_ref_problem *problem = self->problem;
  int64_t chunks = chunks_of(problem), total = problem->sequences.blocks[problem->sequences.count];
  chunk c = { .head = item / chunks, .first = item % chunks * CHUNK };
  c.count = total - c.first < CHUNK ? total - c.first : CHUNK;
  c.out = self->out + (c.head * total + c.first) * self->dim;
  if (self->load) {
    load_stored(self, &c);
    return;
  }
  if (problem->model->phi == NSAI_PHI_MEAN) {
    (self->source->dtype == NSA_E4M3 ? run_mean_of_codes : run_mean)(self, &c);
    return;
  }
  buffers b;
  lay_out(problem->model, self->dim, self->scratch + worker * self->scratch_size, &b);
  run_dense(self, &c, &b);
}

static nsa_status run_side(side *self, double **out) {
  const nsai_ref_problem *problem = self->problem;
  const nsai_model *g = problem->model;
  int64_t blocks = problem->sequences.blocks[problem->sequences.count];
  int64_t row = g->kv_heads * self->dim;
  /* The sequences of a cache may share memory, so no tensor size bounds the sum of their blocks. */
  if (blocks > INT64_MAX / 16 / row) return nsai_fail_nomem("compressed keys in float64", SIZE_MAX);
  int64_t size = row * blocks, items = g->kv_heads * chunks_of(problem);
  int workers = nsai_ref_worker_count(problem->threads, items);
  *out = self->out = nsai_ref_doubles(size);
  if (!self->out)
    return nsai_fail_nomem("compressed keys in float64", (size_t)size * sizeof(double));
  if (!self->load && g->phi != NSAI_PHI_MEAN) {
    buffers sizes;
    self->scratch_size = lay_out(g, self->dim, NULL, &sizes);
    self->scratch = nsai_ref_doubles(self->scratch_size * workers);
    if (!self->scratch)
      return nsai_fail_nomem("the threads' scratch of phi",
                             (size_t)(self->scratch_size * workers) * sizeof(double));
  }
  nsai_ref_parallel(workers, items, run_item, self);
  free(self->scratch);
  nsai_ref_round(self->problem->stored, size, self->out);
  return NSA_OK;
}

static nsa_status run_sides(nsai_ref_problem *problem, bool load, bool want_v) {
  const nsai_model *g = problem->model;
  const nsa_io *io = problem->io;
  side k = { .problem = problem,
             .load = load,
             .source = &io->kv.k[0],
             .stored = &io->kv.k_cmp,
             .phi = &io->phi.k,
             .dim = g->head_dim_qk };
  NSAI_TRY(run_side(&k, &problem->k_cmp));
  if (!want_v) return NSA_OK;
  side v = { .problem = problem,
             .load = load,
             .source = &io->kv.v[0],
             .stored = &io->kv.v_cmp,
             .phi = &io->phi.v,
             .dim = g->head_dim_v };
  NSAI_TRY(run_side(&v, &problem->v_cmp));
  return NSA_OK;
}

nsa_status nsai_ref_compress(nsai_ref_problem *problem, bool want_v) {
  return run_sides(problem, problem->model->phi == NSAI_PHI_EXTERNAL, want_v);
}

nsa_status nsai_ref_compress_load(nsai_ref_problem *problem, bool want_v) {
  return run_sides(problem, true, want_v);
}

/* Rounds what `values` [Hkv, blocks, dim] holds into `stored` [rows, Hkv, dim]. */
static void store_side(const nsai_ref_problem *problem, const nsa_tensor *stored, int64_t dim,
                       const double *values) {
  const nsai_ref_sequences *sequences = &problem->sequences;
  int64_t total = sequences->blocks[sequences->count];
  for (int64_t at = 0; at < total; at++) {
    int64_t s = nsai_ref_sequence_of(sequences->blocks, sequences->count, at);
    int64_t row = sequences->stored[s] + at - sequences->blocks[s];
    if (row >= stored->shape[0]) continue;
    for (int64_t head = 0; head < problem->model->kv_heads; head++)
      for (int64_t e = 0; e < dim; e++)
        nsai_ref_store(stored, nsai_ref_offset2(stored, row, head) + e,
                       values[(head * total + at) * dim + e]);
  }
}

void nsai_ref_compress_store(const nsai_ref_problem *problem) {
  const nsai_model *g = problem->model;
  const nsa_kv *kv = &problem->io->kv;
  if (kv->k_cmp.data && problem->k_cmp)
    store_side(problem, &kv->k_cmp, g->head_dim_qk, problem->k_cmp);
  if (kv->v_cmp.data && problem->v_cmp)
    store_side(problem, &kv->v_cmp, g->head_dim_v, problem->v_cmp);
}

nsa_status nsai_reference_compress(const nsai_model *model, const nsa_batch *batch,
                                   const nsa_io *io, int threads) {
  nsai_ref_problem problem = { 0 };
  nsa_status status;
  NSAI_TRY_TO(done, nsai_ref_problem_init(&problem, model, batch, io, threads));
  NSAI_TRY_TO(done, nsai_ref_compress(&problem, io->kv.v_cmp.data != NULL));
  nsai_ref_compress_store(&problem);
done:
  nsai_ref_problem_fini(&problem);
  return status;
}
