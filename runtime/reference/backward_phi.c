/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Gradients through phi: from the compressed blocks to the raw tokens, which blocks share, and
 * to the weights.
 */
#include "base/math.h"
#include "reference/backward.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK 32 /* blocks whose layers are computed together */
#define SIDES 2

/* One KV head of K or V. */
typedef struct side {
  const nsai_ref_back *back;
  nsai_ref_phi_input input;
  const nsa_phi_side *out;    /* requested gradients */
  const nsa_tensor *external; /* the same with phi external */
  double *d_cmp, *d_raw;      /* rows of this head; NULL: none */
  int64_t head, row;          /* row: D rounded up to lanes */
  int64_t blocks;             /* 0 where d_cmp is NULL */
} side;

/* One worker's doubles. */
typedef struct buffers {
  nsai_ref_layers_memory layers;
  double *d_pe, *pe; /* [l, D], [D] */
} buffers;

static int64_t lay_out(const nsai_ref_layers *layers, double *memory, buffers *b) {
  int64_t used = nsai_ref_layers_lay_out(layers, CHUNK, memory, &b->layers);
  b->d_pe = nsai_ref_take(memory, &used, layers->in);
  b->pe = nsai_ref_take(memory, &used, layers->out);
  return used;
}

static bool wants_weights(const nsa_phi_side *out) {
  return out->pe.data || out->w.data || out->w1.data || out->b1.data || out->w2.data ||
         out->b2.data;
}

bool nsai_ref_phi_needs(const nsai_ref_back *back, int which) {
  const nsa_grads *grads = back->grads;
  if (!back->problem->run[NSA_CMP]) return false;
  if (back->problem->model->phi == NSAI_PHI_EXTERNAL)
    return which ? grads->d_kv.v_cmp.data : grads->d_kv.k_cmp.data;
  if (which ? grads->d_kv.v[0].data : grads->d_kv.k[0].data) return true;
  return wants_weights(which ? &grads->d_phi.v : &grads->d_phi.k);
}

nsa_status nsai_ref_phi_back_prepare(nsai_ref_back *back) {
  const nsai_model *g = back->problem->model;
  int64_t widest = nsai_larger(g->head_dim_qk, g->head_dim_v);
  buffers sizes;
  back->phi_workers = nsai_ref_worker_count(back->problem->threads, SIDES * (int64_t)g->kv_heads);
  if (!nsai_phi_has_weights(g)) return NSA_OK;
  const nsai_ref_layers layers =
      nsai_ref_phi_layers(back->problem, &back->problem->io->phi.k, widest, 0);
  back->phi_size = lay_out(&layers, NULL, &sizes);
  int64_t size = back->phi_size * back->phi_workers;
  back->phi = nsai_ref_doubles(size);
  if (back->phi) return NSA_OK;
  return nsai_fail_nomem("gradients of phi", (size_t)size * sizeof(double));
}

static side open_side(const nsai_ref_back *back, int which, int64_t head) {
  const nsai_ref_problem *problem = back->problem;
  const nsai_model *g = problem->model;
  const nsa_io *io = problem->io;
  int64_t dim = which ? g->head_dim_v : g->head_dim_qk, row = nsai_ref_lanes(dim);
  double *const *sums = which ? back->d_v : back->d_k;
  int64_t blocks = nsai_ref_sum_rows(problem, NSAI_REF_CMP_SUM);
  side s = { .back = back,
             .input = { which ? &io->kv.v[0] : &io->kv.k[0], which ? &io->phi.v : &io->phi.k, dim },
             .out = which ? &back->grads->d_phi.v : &back->grads->d_phi.k,
             .external = which ? &back->grads->d_kv.v_cmp : &back->grads->d_kv.k_cmp,
             .head = head,
             .row = row };
  if (sums[NSAI_REF_CMP_SUM]) {
    s.blocks = blocks;
    s.d_cmp = sums[NSAI_REF_CMP_SUM] + head * blocks * row;
  }
  if (sums[0]) s.d_raw = sums[0] + head * nsai_ref_sum_rows(problem, 0) * row;
  return s;
}

/* The raw row of token r of a block. */
static double *raw_row(const side *s, nsai_ref_block block, int64_t r) {
  const nsai_ref_problem *problem = s->back->problem;
  int64_t position = block.index * problem->model->stride + r;
  return s->d_raw + (problem->sequences.kv[block.sequence] + position) * s->row;
}

static void mean_back(const side *s) {
  const nsai_ref_problem *problem = s->back->problem;
  int64_t length = problem->model->block;
  for (int64_t i = 0; i < s->blocks && s->d_raw; i++) {
    nsai_ref_block block = nsai_ref_find_block(problem, i);
    for (int64_t r = 0; r < length; r++) {
      double *raw = raw_row(s, block, r);
      for (int64_t e = 0; e < s->input.dim; e++)
        raw[e] += s->d_cmp[i * s->row + e] / (double)length;
    }
  }
}

/* Rows of the output that contain no block become 0. */
static void external_back(const side *s) {
  const nsa_tensor *out = s->external;
  const nsai_ref_sequences *sequences = &s->back->problem->sequences;
  if (!out->data) return;
  for (int64_t i = 0; i < out->shape[0] && !s->back->grads->accumulate; i++)
    for (int64_t e = 0; e < s->input.dim; e++)
      nsai_ref_store(out, nsai_ref_offset2(out, i, s->head) + e, 0);
  for (int64_t i = 0; i < s->blocks; i++) {
    nsai_ref_block block = nsai_ref_find_block(s->back->problem, i);
    int64_t at = nsai_ref_offset2(out, sequences->stored[block.sequence] + block.index, s->head);
    for (int64_t e = 0; e < s->input.dim; e++)
      nsai_ref_grad(s->back, out, at + e, s->d_cmp[i * s->row + e]);
  }
}

/* Adds a block's d_x to the raw tokens and to pe. */
static void add_block(const side *s, const buffers *b, nsai_ref_block block, const double *d_x) {
  int64_t dim = s->input.dim;
  for (int64_t r = 0; r < s->back->problem->model->block; r++) {
    double *raw = s->d_raw ? raw_row(s, block, r) : NULL;
    for (int64_t e = 0; e < dim; e++) {
      b->d_pe[r * dim + e] += d_x[r * dim + e];
      if (raw) raw[e] += d_x[r * dim + e];
    }
  }
}

static void chunk_back(const side *s, const nsai_ref_layers *layers, const buffers *b,
                       int64_t first, int64_t count) {
  const nsai_ref_problem *problem = s->back->problem;
  const nsai_ref_layers_memory *m = &b->layers;
  for (int64_t i = 0; i < count; i++)
    nsai_ref_gather_block(problem, &s->input, nsai_ref_find_block(problem, first + i), s->head,
                          m->x + i * layers->in, b->pe);
  nsai_ref_layers_back(layers, m, count, s->d_cmp + first * s->row);
  for (int64_t i = 0; i < count; i++)
    add_block(s, b, nsai_ref_find_block(problem, first + i),
              m->d_x + i * nsai_ref_lanes(layers->in));
}

/* Rounds the weights' gradients of this head into the outputs. */
static void store_weights(const side *s, const buffers *b) {
  const nsai_model *g = s->back->problem->model;
  const nsai_ref_layers_memory *m = &b->layers;
  int64_t h_row = nsai_ref_lanes(g->phi_hidden);
  const struct {
    const nsa_tensor *out;
    const double *values;
    int64_t row;
  } all[] = { { &s->out->pe, b->d_pe, s->input.dim }, { &s->out->w, m->d_w2, s->row },
              { &s->out->w1, m->d_w1, h_row },        { &s->out->b1, m->d_b1, h_row },
              { &s->out->w2, m->d_w2, s->row },       { &s->out->b2, m->d_b2, s->row } };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    const nsa_tensor *out = all[i].out;
    nsai_ref_grad_rows(s->back, out, s->head * out->stride[0], out->ndim == 3 ? out->shape[1] : 1,
                       all[i].values, all[i].row);
  }
}

static void dense_back(const side *s, double *memory) {
  const nsai_ref_layers layers =
      nsai_ref_phi_layers(s->back->problem, s->input.phi, s->input.dim, s->head);
  buffers b;
  memset(memory, 0, (size_t)s->back->phi_size * sizeof *memory);
  lay_out(&layers, memory, &b);
  nsai_ref_layers_transpose(&layers, &b.layers);
  for (int64_t first = 0; first < s->blocks; first += CHUNK)
    chunk_back(s, &layers, &b, first, nsai_smaller(s->blocks - first, CHUNK));
  store_weights(s, &b);
}

static void run_item(void *context, int worker, int64_t item) {
  const nsai_ref_back *back = context;
  const nsai_model *g = back->problem->model;
  side s = open_side(back, (int)(item / g->kv_heads), item % g->kv_heads);
  if (g->phi == NSAI_PHI_MEAN)
    mean_back(&s);
  else if (g->phi == NSAI_PHI_EXTERNAL)
    external_back(&s);
  else if (s.blocks || wants_weights(s.out))
    dense_back(&s, back->phi + worker * back->phi_size);
}

void nsai_ref_phi_back(nsai_ref_back *back) {
  nsai_ref_parallel(back->phi_workers, SIDES * (int64_t)back->problem->model->kv_heads, run_item,
                    back);
}
