/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Gradients of a dense layer and of the activations.
 */
#include "reference/internal.h"
#include "reference/tensor.h"

#include <math.h>
#include <string.h>

static void add_bias(const nsai_ref_projection_back *p, int64_t columns) {
  for (int64_t r = 0; r < p->rows; r++)
    for (int64_t c = 0; c < p->out; c++) p->d_bias[c] += p->d_y[r * columns + c];
}

void nsai_ref_project_back(const nsai_ref_projection_back *p) {
  int64_t columns = nsai_ref_lanes(p->out), wide = nsai_ref_lanes(p->in);
  if (p->d_bias) add_bias(p, columns);
  if (p->d_weights)
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
  if (!p->d_x) return;
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

void nsai_ref_transpose(const nsa_tensor *w, int64_t head, double *out) {
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

void nsai_ref_activate_back(nsai_activation activation, const double *inputs, double *gradient,
                            int64_t count) {
  for (int64_t i = 0; i < count; i++) gradient[i] *= slope(activation, inputs[i]);
}
