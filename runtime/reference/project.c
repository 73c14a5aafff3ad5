/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Dense layers of phi and of the gates: x . W + b with W in storage dtype, and their activations.
 */
#include "reference/internal.h"
#include "reference/tensor.h"

#include <math.h>
#include <string.h>

typedef struct projection {
  const nsai_ref_ops *ops;
  const nsa_tensor *weights, *bias; /* [.., in, out], [.., out] */
  int64_t head, rows, in, out;
  const double *x; /* [rows, in], row stride x_row */
  int64_t x_row;
  double *y, *buffer; /* [rows, out], [WEIGHT_ROWS, out], rows rounded up to lanes */
} projection;

static void load_bias(const projection *p, int64_t columns) {
  int64_t at = p->bias->ndim == 2 ? p->head * p->bias->stride[0] : 0;
  for (int64_t r = 0; r < p->rows; r++) {
    double *y = p->y + r * columns;
    memset(y, 0, (size_t)columns * sizeof *y);
    if (p->bias->data) p->ops->widen(p->bias->dtype, nsai_ref_at(p->bias, at), p->out, y);
  }
}

/* y = x . weights + bias */
static void project(const projection *p) {
  int64_t columns = nsai_ref_lanes(p->out);
  const nsa_tensor *w = p->weights;
  int64_t head = w->ndim == 3 ? p->head * w->stride[0] : 0;
  int64_t step = w->stride[w->ndim - 2];
  load_bias(p, columns);
  for (int64_t begin = 0; begin < p->in; begin += NSAI_REF_WEIGHT_ROWS) {
    int64_t count = p->in - begin < NSAI_REF_WEIGHT_ROWS ? p->in - begin : NSAI_REF_WEIGHT_ROWS;
    for (int64_t r = 0; r < count; r++) {
      double *row = p->buffer + r * columns;
      p->ops->widen(w->dtype, nsai_ref_at(w, head + (begin + r) * step), p->out, row);
      memset(row + p->out, 0, (size_t)(columns - p->out) * sizeof *row);
    }
    p->ops->multiply(&(nsai_ref_product){ .m = p->rows,
                                          .k = count,
                                          .n = columns,
                                          .a = p->x + begin,
                                          .a_row = p->x_row,
                                          .a_column = 1,
                                          .b = p->buffer,
                                          .b_row = columns,
                                          .c = p->y,
                                          .c_row = columns });
  }
}

double nsai_ref_sigmoid(double value) { return 1.0 / (1.0 + exp(-value)); }

static double activate(nsai_activation activation, double x) {
  switch (activation) {
  case NSAI_ACT_SILU: return x * nsai_ref_sigmoid(x);
  case NSAI_ACT_GELU: return 0.5 * x * (1.0 + erf(x * 0.70710678118654752440)); /* 1 / sqrt(2) */
  default: return x > 0 ? x : 0;
  }
}

void nsai_ref_run_first_layer(const nsai_ref_layers *layers, int64_t rows, const double *x,
                              double *buffer, double *y) {
  project(&(projection){ .ops = layers->ops,
                         .weights = layers->w1,
                         .bias = layers->b1,
                         .head = layers->head,
                         .rows = rows,
                         .in = layers->in,
                         .out = layers->hidden,
                         .x = x,
                         .x_row = layers->in,
                         .y = y,
                         .buffer = buffer });
}

void nsai_ref_activate(const nsai_ref_layers *layers, int64_t rows, double *values) {
  int64_t count = rows * nsai_ref_lanes(layers->hidden);
  for (int64_t i = 0; i < count; i++) values[i] = activate(layers->activation, values[i]);
}

void nsai_ref_run_layers(const nsai_ref_layers *layers, int64_t rows, const double *x,
                         double *hidden, double *buffer, double *y) {
  bool two = layers->hidden > 0;
  if (two) {
    nsai_ref_run_first_layer(layers, rows, x, buffer, hidden);
    nsai_ref_activate(layers, rows, hidden);
    nsai_ref_round(layers->stored, rows * nsai_ref_lanes(layers->hidden), hidden);
  }
  project(&(projection){ .ops = layers->ops,
                         .weights = layers->w2,
                         .bias = layers->b2,
                         .head = layers->head,
                         .rows = rows,
                         .in = two ? layers->hidden : layers->in,
                         .out = layers->out,
                         .x = two ? hidden : x,
                         .x_row = two ? nsai_ref_lanes(layers->hidden) : layers->in,
                         .y = y,
                         .buffer = buffer });
}
