/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the backward pass through phi linear and mlp (phi.c) and through the gate MLP (gate.c)
 * share. With y = act(x W1 + b1) W2 + b2, or x W2 + b2:
 *
 *   d_b2 = sum of rows of dY     dW2 = act(z)^T dY     dZ = dY W2^T * act'(z), z = x W1 + b1
 *   d_b1 = sum of rows of dZ     dW1 = x^T dZ          dX = dZ W1^T
 *
 * dY and dZ are sums in fp32, rounded to the model's dtype once, as operands of cuBLASLt; what comes out of
 * a product is fp32 until it is stored. Nothing is added by atomics.
 */
#ifndef NSAI_VARIANTS_BACKWARD_LAYERS_H
#define NSAI_VARIANTS_BACKWARD_LAYERS_H

#include "params/backward.h"
#include "run/params.h"

/* One pass through one or two layers, for a batch of weights. */
typedef struct nsai_layers_pass {
  const nsai_run *run;
  const nsa_grads *grads;
  int64_t batch, first_head; /* KV heads of phi; 1 of the gate */
  int64_t rows;              /* without the row of sums */
} nsai_layers_pass;

static inline const nsai_layers_workspace *nsai_layers_of(const nsai_run *run) {
  return &run->plan->workspace.backward.layers;
}

/* Columns of an operand with their padding. */
static inline int64_t nsai_operand(int64_t columns) {
  return (columns + NSAI_OPERAND_STEP - 1) / NSAI_OPERAND_STEP * NSAI_OPERAND_STEP;
}

/* out [batch] = x, or plus x. */
typedef struct nsai_store_of {
  const nsa_tensor *out;
  const float *x; /* f32 [batch, rows, columns], x_batch apart; NULL: zeros */
  int64_t x_batch;
  int64_t rows, columns;            /* of a batch entry */
  int64_t row_stride, batch_stride; /* of out, elements */
  int64_t first_token;              /* as in NsaiStoreGradient */
} nsai_store_of;

nsa_status nsai_store(const nsai_layers_pass *b, const nsai_store_of *s);
/* A gradient of weights [batch, rows, columns], or [rows, columns] of the gate's; absent ones are fine. */
nsa_status nsai_store_matrix(const nsai_layers_pass *b, const nsa_tensor *out, const float *x,
                             int64_t x_batch);
/* Of a bias [batch, columns], or [columns]. */
nsa_status nsai_store_bias(const nsai_layers_pass *b, const nsa_tensor *out, const float *x);

/* f32 [batch, rows, columns] to be summed over its rows. */
typedef struct nsai_columns_of {
  const float *x;
  int64_t batch_stride, row_stride, columns; /* elements */
  void *row;                                 /* dtype: receives the sums, too; NULL */
  int64_t row_batch_stride;
} nsai_columns_of;

/* Sums into layers.sums [batch, columns], by way of layers.parts. */
nsa_status nsai_sum_columns(const nsai_layers_pass *b, const nsai_columns_of *c);

/* A matrix operand: elements from row to row, and from one batch entry to the next. */
typedef struct nsai_matrix {
  const void *data;
  int64_t row, batch;
} nsai_matrix;

/* The weights [in, out] of a layer, from the pass's first head on. */
nsai_matrix nsai_weights_of(const nsai_layers_pass *b, const nsa_tensor *w);

/* A product of the batch into fp32 [m, n] without gaps; all but the operands' strides. */
nsai_gemm nsai_batched_gemm(const nsai_layers_pass *b, int64_t m, int64_t n, int64_t k);

/* c [rows, in] = d [rows, out] w^T. */
nsa_status nsai_multiply_back(const nsai_layers_pass *b, int64_t rows, int64_t in, int64_t out,
                              nsai_matrix d, nsai_matrix w, float *c);

/* layers.d_weights [in, out] = x^T [in, rows] d [rows, out], or plus it. */
nsa_status nsai_multiply_weights(const nsai_layers_pass *b, int64_t rows, int64_t in, int64_t out,
                                 nsai_matrix x, nsai_matrix d, bool adds);

/* Of rows that do not own their kernels yet: the backward pass through phi, for the KV heads [head, head +
 * heads), and through the gate MLP; and whether any of these gradients is wanted. */
nsa_status nsai_enqueue_phi_back(const nsai_run *run, const nsa_grads *grads, int head, int heads);
nsa_status nsai_enqueue_gate_back(const nsai_run *run, const nsa_grads *grads);
bool nsai_wants_phi(const nsa_phi_side *out);
bool nsai_wants_gate(const nsa_gate *out);

#endif /* NSAI_VARIANTS_BACKWARD_LAYERS_H */
