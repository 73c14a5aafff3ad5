/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Dense layers of phi and of the gates: x . W + b with W in storage dtype, and their activations.
 */
#include "reference/internal.h"
#include "reference/tensor.h"

#include <math.h>
#include <string.h>

static void load_bias(const nsai_ref_projection *p, int64_t columns) {
  int64_t at = p->bias->ndim == 2 ? p->head * p->bias->stride[0] : 0;
  for (int64_t r = 0; r < p->rows; r++) {
    double *y = p->y + r * columns;
    memset(y, 0, (size_t)columns * sizeof *y);
    if (p->bias->data) p->ops->widen(p->bias->dtype, nsai_ref_at(p->bias, at), p->out, y);
  }
}

void nsai_ref_project(const nsai_ref_projection *p) {
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

void nsai_ref_activate(nsai_activation activation, double *values, int64_t count) {
  for (int64_t i = 0; i < count; i++) values[i] = activate(activation, values[i]);
}
