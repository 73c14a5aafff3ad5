/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Gradients of dense layers and of the activations.
 */
#include "reference/internal.h"
#include "reference/tensor.h"

#include <math.h>
#include <string.h>

/* Inputs and outputs of a layer's gradients. Sums are added to the outputs. */
typedef struct projection_back {
  const nsai_ref_ops *ops;
  int64_t rows, in, out;
  const double *x; /* [rows, in], row stride x_row */
  int64_t x_row;
  const double *d_y, *transposed;   /* [rows, out], [out, in], rows rounded up to lanes */
  double *d_x, *d_weights, *d_bias; /* [rows, in], [in, out], rows rounded up to lanes; [out] */
} projection_back;

static void add_bias(const projection_back *p, int64_t columns) {
  for (int64_t r = 0; r < p->rows; r++)
    for (int64_t c = 0; c < p->out; c++) p->d_bias[c] += p->d_y[r * columns + c];
}

/* d_x = d_y . weights^T, d_weights += x^T . d_y, d_bias += sum of d_y's rows */
static void project_back(const projection_back *p) {
  int64_t columns = nsai_ref_lanes(p->out), wide = nsai_ref_lanes(p->in);
  add_bias(p, columns);
  p->ops->multiply(&(nsai_ref_product){ .m = p->in,
                                        .k = p->rows,
                                        .n = columns,
                                        .a = p->x,
                                        .a_row = 1,
                                        .a_column = p->x_row,
                                        .b = p->d_y,
                                        .b_row = columns,
                                        .c = p->d_weights,
                                        .c_row = columns });
  memset(p->d_x, 0, (size_t)(p->rows * wide) * sizeof *p->d_x);
  p->ops->multiply(&(nsai_ref_product){ .m = p->rows,
                                        .k = p->out,
                                        .n = wide,
                                        .a = p->d_y,
                                        .a_row = columns,
                                        .a_column = 1,
                                        .b = p->transposed,
                                        .b_row = wide,
                                        .c = p->d_x,
                                        .c_row = wide });
}

/* Widens weights [.., in, out] to [out, in rounded up to lanes]. */
static void transpose(const nsa_tensor *w, int64_t head, double *out) {
  int64_t rows = w->shape[w->ndim - 2], columns = w->shape[w->ndim - 1];
  int64_t wide = nsai_ref_lanes(rows), start = w->ndim == 3 ? head * w->stride[0] : 0;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++)
      out[c * wide + r] = nsai_ref_load(w, start + r * w->stride[w->ndim - 2] + c);
}

static double slope(nsai_activation activation, double x) {
  double s;
  switch (activation) {
  case NSAI_ACT_SILU: s = nsai_ref_sigmoid(x); return s * (1.0 + x * (1.0 - s));
  case NSAI_ACT_GELU: /* Phi(x) + x Phi'(x) of the normal distribution */
    return 0.5 * (1.0 + erf(x * 0.70710678118654752440)) +
           x * exp(-0.5 * x * x) * 0.39894228040143267794; /* 1 / sqrt(2), 1 / sqrt(2 pi) */
  default: return x > 0 ? 1 : 0;
  }
}

int64_t nsai_ref_layers_lay_out(const nsai_ref_layers *layers, int64_t rows, double *memory,
                                nsai_ref_layers_memory *out) {
  int64_t in = layers->in, h = layers->hidden, last = h ? h : in, used = 0;
  int64_t in_row = nsai_ref_lanes(in), h_row = nsai_ref_lanes(h);
  out->x = nsai_ref_take(memory, &used, rows * in);
  out->d_x = nsai_ref_take(memory, &used, rows * in_row);
  out->inputs = nsai_ref_take(memory, &used, rows * h_row);
  out->hidden = nsai_ref_take(memory, &used, rows * h_row);
  out->d_hidden = nsai_ref_take(memory, &used, rows * h_row);
  out->weights = nsai_ref_take(memory, &used, NSAI_REF_WEIGHT_ROWS * h_row);
  out->w1_back = nsai_ref_take(memory, &used, h * in_row);
  out->w2_back = nsai_ref_take(memory, &used, layers->out * nsai_ref_lanes(last));
  out->d_w1 = nsai_ref_take(memory, &used, in * h_row);
  out->d_b1 = nsai_ref_take(memory, &used, h);
  out->d_w2 = nsai_ref_take(memory, &used, last * nsai_ref_lanes(layers->out));
  out->d_b2 = nsai_ref_take(memory, &used, layers->out);
  return used;
}

void nsai_ref_layers_transpose(const nsai_ref_layers *layers, const nsai_ref_layers_memory *m) {
  if (layers->hidden) transpose(layers->w1, layers->head, m->w1_back);
  transpose(layers->w2, layers->head, m->w2_back);
}

void nsai_ref_layers_back(const nsai_ref_layers *layers, const nsai_ref_layers_memory *m,
                          int64_t rows, double *d_y) {
  int64_t in = layers->in, h = layers->hidden, h_row = nsai_ref_lanes(h);
  if (h) {
    nsai_ref_run_first_layer(layers, rows, m->x, m->weights, m->inputs);
    memcpy(m->hidden, m->inputs, (size_t)(rows * h_row) * sizeof *m->hidden);
    nsai_ref_activate(layers, rows, m->hidden);
    nsai_ref_round(layers->stored, rows * h_row, m->hidden);
  }
  nsai_ref_round(layers->stored, rows * nsai_ref_lanes(layers->out), d_y);
  project_back(&(projection_back){ .ops = layers->ops,
                                   .rows = rows,
                                   .in = h ? h : in,
                                   .out = layers->out,
                                   .x = h ? m->hidden : m->x,
                                   .x_row = h ? h_row : in,
                                   .d_y = d_y,
                                   .transposed = m->w2_back,
                                   .d_x = h ? m->d_hidden : m->d_x,
                                   .d_weights = m->d_w2,
                                   .d_bias = m->d_b2 });
  if (!h) return;
  for (int64_t i = 0; i < rows * h_row; i++)
    m->d_hidden[i] *= slope(layers->activation, m->inputs[i]);
  nsai_ref_round(layers->stored, rows * h_row, m->d_hidden);
  project_back(&(projection_back){ .ops = layers->ops,
                                   .rows = rows,
                                   .in = in,
                                   .out = h,
                                   .x = m->x,
                                   .x_row = in,
                                   .d_y = m->d_hidden,
                                   .transposed = m->w1_back,
                                   .d_x = m->d_x,
                                   .d_weights = m->d_w1,
                                   .d_bias = m->d_b1 });
}
