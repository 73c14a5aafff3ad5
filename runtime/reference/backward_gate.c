/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Gradients of the gates: of weights, of logits, or through the gate MLP.
 */
#include "reference/backward.h"

#include <string.h>

/* Memory of the gate MLP; rows are rounded up to lanes, except those of x. */
typedef struct buffers {
  double *x;                 /* [SLAB, C] */
  double *inputs, *hidden;   /* [SLAB, H]: before and after the activation */
  double *d_hidden, *d_x;    /* [SLAB, H], [SLAB, C] */
  double *weights;           /* [WEIGHT_ROWS, H] */
  double *w1_back, *w2_back; /* [H, C], [Hq * 3, H or C] */
  double *d_w1, *d_b1;       /* [C, H], [H] */
  double *d_w2, *d_b2;       /* [H or C, Hq * 3], [Hq * 3] */
} buffers;

static int64_t lay_out(const nsai_model *g, double *memory, buffers *b) {
  int64_t out = (int64_t)g->heads * NSA_BRANCHES, used = 0;
  int64_t c = g->gate_channels, h = g->gate_hidden, last = h ? h : c;
  int64_t c_row = nsai_ref_lanes(c), h_row = nsai_ref_lanes(h), out_row = nsai_ref_lanes(out);
  b->x = nsai_ref_take(memory, &used, NSAI_REF_SLAB * c);
  b->inputs = nsai_ref_take(memory, &used, NSAI_REF_SLAB * h_row);
  b->hidden = nsai_ref_take(memory, &used, NSAI_REF_SLAB * h_row);
  b->d_hidden = nsai_ref_take(memory, &used, NSAI_REF_SLAB * h_row);
  b->d_x = nsai_ref_take(memory, &used, NSAI_REF_SLAB * c_row);
  b->weights = nsai_ref_take(memory, &used, NSAI_REF_WEIGHT_ROWS * h_row);
  b->w1_back = nsai_ref_take(memory, &used, h * c_row);
  b->w2_back = nsai_ref_take(memory, &used, out * nsai_ref_lanes(last));
  b->d_w1 = nsai_ref_take(memory, &used, c * h_row);
  b->d_b1 = nsai_ref_take(memory, &used, h);
  b->d_w2 = nsai_ref_take(memory, &used, last * out_row);
  b->d_b2 = nsai_ref_take(memory, &used, out);
  return used;
}

nsa_status nsai_ref_gate_back_prepare(nsai_ref_back *back) {
  buffers sizes;
  if (back->problem->model->gate != NSAI_GATE_MLP) return NSA_OK;
  int64_t size = lay_out(back->problem->model, NULL, &sizes);
  back->gate = nsai_ref_doubles(size);
  if (back->gate) return NSA_OK;
  return nsai_fail_nomem("gradients of the gate MLP", (size_t)size * sizeof(double));
}

/* The first layer's values before and after its activation. */
static void run_hidden(const nsai_ref_problem *problem, const buffers *b, int64_t count) {
  const nsai_model *g = problem->model;
  const nsa_gate *gate = &problem->io->gate;
  int64_t values = count * nsai_ref_lanes(g->gate_hidden);
  nsai_ref_project(&(nsai_ref_projection){ .ops = problem->ops,
                                           .weights = &gate->w1,
                                           .bias = &gate->b1,
                                           .rows = count,
                                           .in = g->gate_channels,
                                           .out = g->gate_hidden,
                                           .x = b->x,
                                           .x_row = g->gate_channels,
                                           .y = b->inputs,
                                           .buffer = b->weights });
  memcpy(b->hidden, b->inputs, (size_t)values * sizeof *b->hidden);
  nsai_ref_activate(g->gate_activation, b->hidden, values);
}

/* Backpropagates through both layers for `count` rows, whose gradient at the logits is d_y. */
static void layers_back(const nsai_ref_problem *problem, const buffers *b, int64_t count,
                        const double *d_y) {
  const nsai_model *g = problem->model;
  int64_t c = g->gate_channels, h = g->gate_hidden, h_row = nsai_ref_lanes(h);
  nsai_ref_project_back(&(nsai_ref_projection_back){ .ops = problem->ops,
                                                     .rows = count,
                                                     .in = h ? h : c,
                                                     .out = (int64_t)g->heads * NSA_BRANCHES,
                                                     .x = h ? b->hidden : b->x,
                                                     .x_row = h ? h_row : c,
                                                     .d_y = d_y,
                                                     .transposed = b->w2_back,
                                                     .d_x = h ? b->d_hidden : b->d_x,
                                                     .d_weights = b->d_w2,
                                                     .d_bias = b->d_b2 });
  if (!h) return;
  nsai_ref_activate_back(g->gate_activation, b->inputs, b->d_hidden, count * h_row);
  nsai_ref_project_back(&(nsai_ref_projection_back){ .ops = problem->ops,
                                                     .rows = count,
                                                     .in = c,
                                                     .out = h,
                                                     .x = b->x,
                                                     .x_row = c,
                                                     .d_y = b->d_hidden,
                                                     .transposed = b->w1_back,
                                                     .d_x = b->d_x,
                                                     .d_weights = b->d_w1,
                                                     .d_bias = b->d_b1 });
}

static void slab_back(const nsai_ref_back *back, const buffers *b, int64_t first, int64_t count) {
  const nsai_ref_problem *problem = back->problem;
  const nsai_model *g = problem->model;
  const nsa_tensor *x = &problem->io->gate.x, *d_x = &back->grads->d_gate.x;
  int64_t c = g->gate_channels;
  for (int64_t i = 0; i < count; i++)
    problem->ops->widen(x->dtype, nsai_ref_at(x, (first + i) * x->stride[0]), c, b->x + i * c);
  if (g->gate_hidden) run_hidden(problem, b, count);
  layers_back(problem, b, count, back->d_gates + first * nsai_ref_gate_row(g));
  for (int64_t i = 0; i < count && d_x->data; i++)
    for (int64_t e = 0; e < c; e++)
      nsai_ref_grad(back, d_x, (first + i) * d_x->stride[0] + e, b->d_x[i * nsai_ref_lanes(c) + e]);
}

static void mlp_back(const nsai_ref_back *back, int64_t tokens) {
  const nsai_model *g = back->problem->model;
  const nsa_gate *gate = &back->problem->io->gate, *out = &back->grads->d_gate;
  int64_t h_row = nsai_ref_lanes(g->gate_hidden);
  buffers b;
  lay_out(g, back->gate, &b);
  if (g->gate_hidden) nsai_ref_transpose(&gate->w1, 0, b.w1_back);
  nsai_ref_transpose(&gate->w2, 0, b.w2_back);
  for (int64_t first = 0; first < tokens; first += NSAI_REF_SLAB)
    slab_back(back, &b, first, tokens - first < NSAI_REF_SLAB ? tokens - first : NSAI_REF_SLAB);
  nsai_ref_grad_rows(back, &out->w1, 0, g->gate_channels, b.d_w1, h_row);
  nsai_ref_grad_rows(back, &out->b1, 0, 1, b.d_b1, h_row);
  nsai_ref_grad_rows(back, &out->w2, 0, out->w2.shape[0], b.d_w2, nsai_ref_gate_row(g));
  nsai_ref_grad_rows(back, &out->b2, 0, 1, b.d_b2, nsai_ref_gate_row(g));
}

static void store_values(const nsai_ref_back *back, int64_t tokens) {
  const nsai_model *g = back->problem->model;
  const nsa_tensor *value = &back->grads->d_gate.value;
  for (int64_t token = 0; token < tokens && value->data; token++)
    for (int64_t h = 0; h < g->heads; h++)
      for (int b = 0; b < NSA_BRANCHES; b++)
        nsai_ref_grad(back, value, nsai_ref_offset2(value, token, h) + b,
                      back->d_gates[token * nsai_ref_gate_row(g) + h * NSA_BRANCHES + b]);
}

void nsai_ref_gate_back(nsai_ref_back *back) {
  const nsai_model *g = back->problem->model;
  const nsai_ref_sequences *sequences = &back->problem->sequences;
  int64_t tokens = sequences->q[sequences->count], count = tokens * nsai_ref_gate_row(g);
  /* Through the sigmoid. The logit of a row without keys may be any value. */
  if (g->gate != NSAI_GATE_WEIGHTS)
    for (int64_t i = 0; i < count; i++)
      if (back->d_gates[i] != 0) back->d_gates[i] *= back->gates[i] * (1 - back->gates[i]);
  if (g->gate == NSAI_GATE_MLP)
    mlp_back(back, tokens);
  else
    store_values(back, tokens);
}
