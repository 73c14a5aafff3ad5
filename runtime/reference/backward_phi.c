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

/* One worker's doubles; rows are rounded up to lanes, except those of x. */
typedef struct buffers {
  double *x, *d_x;           /* [CHUNK, l * D] */
  double *inputs, *hidden;   /* [CHUNK, H]: before and after the activation */
  double *d_hidden;          /* [CHUNK, H] */
  double *weights;           /* [WEIGHT_ROWS, H] */
  double *w1_back, *w2_back; /* [H or D, l * D], [D, H]; a linear phi has w instead of w1 */
  double *d_w1, *d_w2;       /* [l * D, H or D], [H, D] */
  double *d_b1, *d_b2;       /* [H or D], [D] */
  double *d_pe, *pe;         /* [l, D], [D] */
} buffers;

static int64_t lay_out(const nsai_model *g, int64_t dim, double *memory, buffers *b) {
  int64_t flat = g->block * dim, h = g->phi == NSAI_PHI_MLP ? g->phi_hidden : 0, used = 0;
  int64_t first = h ? h : dim, flat_row = nsai_ref_lanes(flat), h_row = nsai_ref_lanes(h);
  b->x = nsai_ref_take(memory, &used, CHUNK * flat);
  b->d_x = nsai_ref_take(memory, &used, CHUNK * flat_row);
  b->inputs = nsai_ref_take(memory, &used, CHUNK * h_row);
  b->hidden = nsai_ref_take(memory, &used, CHUNK * h_row);
  b->d_hidden = nsai_ref_take(memory, &used, CHUNK * h_row);
  b->weights = nsai_ref_take(memory, &used, NSAI_REF_WEIGHT_ROWS * h_row);
  b->w1_back = nsai_ref_take(memory, &used, first * flat_row);
  b->w2_back = nsai_ref_take(memory, &used, dim * h_row);
  b->d_w1 = nsai_ref_take(memory, &used, flat * nsai_ref_lanes(first));
  b->d_w2 = nsai_ref_take(memory, &used, h * nsai_ref_lanes(dim));
  b->d_b1 = nsai_ref_take(memory, &used, first);
  b->d_b2 = nsai_ref_take(memory, &used, dim);
  b->d_pe = nsai_ref_take(memory, &used, flat);
  b->pe = nsai_ref_take(memory, &used, dim);
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
  back->phi_size = lay_out(g, widest, NULL, &sizes);
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

/* Computes d_hidden of a chunk (before the activation) and the gradients of the second layer's
 * weights. */
static void second_layer_back(const side *s, const buffers *b, int64_t first, int64_t count) {
  const nsai_ref_problem *problem = s->back->problem;
  const nsai_model *g = problem->model;
  int64_t flat = g->block * s->input.dim, h_row = nsai_ref_lanes(g->phi_hidden);
  nsai_ref_project(&(nsai_ref_projection){ .ops = problem->ops,
                                           .weights = &s->input.phi->w1,
                                           .head = s->head,
                                           .bias = &s->input.phi->b1,
                                           .rows = count,
                                           .in = flat,
                                           .out = g->phi_hidden,
                                           .x = b->x,
                                           .x_row = flat,
                                           .y = b->inputs,
                                           .buffer = b->weights });
  memcpy(b->hidden, b->inputs, (size_t)(count * h_row) * sizeof *b->hidden);
  nsai_ref_activate(g->phi_activation, b->hidden, count * h_row);
  nsai_ref_project_back(&(nsai_ref_projection_back){ .ops = problem->ops,
                                                     .rows = count,
                                                     .in = g->phi_hidden,
                                                     .out = s->input.dim,
                                                     .x = b->hidden,
                                                     .x_row = h_row,
                                                     .d_y = s->d_cmp + first * s->row,
                                                     .transposed = b->w2_back,
                                                     .d_x = b->d_hidden,
                                                     .d_weights = b->d_w2,
                                                     .d_bias = b->d_b2 });
  nsai_ref_activate_back(g->phi_activation, b->inputs, b->d_hidden, count * h_row);
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

static void chunk_back(const side *s, const buffers *b, int64_t first, int64_t count) {
  const nsai_ref_problem *problem = s->back->problem;
  const nsai_model *g = problem->model;
  bool mlp = g->phi == NSAI_PHI_MLP;
  int64_t flat = g->block * s->input.dim;
  for (int64_t i = 0; i < count; i++)
    nsai_ref_gather_block(problem, &s->input, nsai_ref_find_block(problem, first + i), s->head,
                          b->x + i * flat, b->pe);
  if (mlp) second_layer_back(s, b, first, count);
  nsai_ref_project_back(
      &(nsai_ref_projection_back){ .ops = problem->ops,
                                   .rows = count,
                                   .in = flat,
                                   .out = mlp ? g->phi_hidden : s->input.dim,
                                   .x = b->x,
                                   .x_row = flat,
                                   .d_y = mlp ? b->d_hidden : s->d_cmp + first * s->row,
                                   .transposed = b->w1_back,
                                   .d_x = b->d_x,
                                   .d_weights = b->d_w1,
                                   .d_bias = mlp ? b->d_b1 : NULL });
  for (int64_t i = 0; i < count; i++)
    add_block(s, b, nsai_ref_find_block(problem, first + i), b->d_x + i * nsai_ref_lanes(flat));
}

/* Rounds the weights' gradients of this head into the outputs. */
static void store_weights(const side *s, const buffers *b) {
  const nsai_model *g = s->back->problem->model;
  int64_t h_row = nsai_ref_lanes(g->phi_hidden);
  const struct {
    const nsa_tensor *out;
    const double *values;
    int64_t row;
  } all[] = { { &s->out->pe, b->d_pe, s->input.dim }, { &s->out->w, b->d_w1, s->row },
              { &s->out->w1, b->d_w1, h_row },        { &s->out->b1, b->d_b1, h_row },
              { &s->out->w2, b->d_w2, s->row },       { &s->out->b2, b->d_b2, s->row } };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    const nsa_tensor *out = all[i].out;
    nsai_ref_grad_rows(s->back, out, s->head * out->stride[0], out->ndim == 3 ? out->shape[1] : 1,
                       all[i].values, all[i].row);
  }
}

static void dense_back(const side *s, double *memory) {
  const nsai_model *g = s->back->problem->model;
  buffers b;
  memset(memory, 0, (size_t)s->back->phi_size * sizeof *memory);
  lay_out(g, s->input.dim, memory, &b);
  bool mlp = g->phi == NSAI_PHI_MLP;
  nsai_ref_transpose(mlp ? &s->input.phi->w1 : &s->input.phi->w, s->head, b.w1_back);
  if (mlp) nsai_ref_transpose(&s->input.phi->w2, s->head, b.w2_back);
  for (int64_t first = 0; first < s->blocks; first += CHUNK)
    chunk_back(s, &b, first, s->blocks - first < CHUNK ? s->blocks - first : CHUNK);
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
