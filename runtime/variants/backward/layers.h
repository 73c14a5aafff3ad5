/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The backward passes through phi linear and mlp (phi.c) and through the gate MLP (gate.c), for the
 * rows of backward_kv. With y = act(x W1 + b1) W2 + b2, or x W2 + b2:
 *
 *   d_b2 = sum of rows of dY     dW2 = act(z)^T dY     dZ = dY W2^T * act'(z), z = x W1 + b1
 *   d_b1 = sum of rows of dZ     dW1 = x^T dZ          dX = dZ W1^T
 *
 * dY and dZ are sums in fp32, rounded to the model's dtype once, as operands of cuBLASLt. The
 * result of a product is fp32 until it is stored. Nothing is added by atomics.
 *
 * A row has the kernels as consecutive kernels, and what they fill as consecutive buffers.
 */
#ifndef NSAI_VARIANTS_BACKWARD_LAYERS_H
#define NSAI_VARIANTS_BACKWARD_LAYERS_H

#include "base/math.h"
#include "params/backward.h"
#include "plan/spec.h"
#include "run/params.h"

enum {
  NSAI_LAYERS_PHI_OUT,    /* the gradient of phi, as an operand: backward_activation */
  NSAI_LAYERS_PHI_HIDDEN, /* through the activation: likewise */
  NSAI_LAYERS_GATE_OUT,   /* the same two of the gate MLP */
  NSAI_LAYERS_GATE_HIDDEN,
  NSAI_LAYERS_COLUMN_SUMS,
  NSAI_LAYERS_STORE,
  NSAI_LAYERS_PRESENT_ROWS, /* features of the tokens that exist */
  NSAI_LAYERS_KERNELS
};

/* phi and the gate run one after the other in the same buffers. Rows m are R + 1 compressed blocks,
 * the last row for their sums, in a batch of KV heads; or T tokens. Columns of operands are padded
 * to a multiple of NSAI_OPERAND_STEP. */
enum {
  NSAI_LAYERS_D_OUT,     /* dtype [heads, m, D or Hq*3]: of the last layer's result */
  NSAI_LAYERS_D_HIDDEN,  /* f32 [heads, m, H]: before rounding */
  NSAI_LAYERS_D_INNER,   /* dtype [heads, m, H]: before the activation */
  NSAI_LAYERS_HIDDEN,    /* dtype [heads, m, H]: behind it */
  NSAI_LAYERS_D_WEIGHTS, /* f32 [heads, in, out] of the largest layer */
  NSAI_LAYERS_K_ROWS,    /* f32 [heads, R + 1, l*Dk]; the last row: of pe */
  NSAI_LAYERS_V_ROWS,    /* f32 [heads, R + 1, l*Dv] */
  NSAI_LAYERS_X,         /* dtype [gate tokens, C]: the gate's features, of tokens that exist */
  NSAI_LAYERS_D_X,       /* f32 [gate tokens, C] */
  NSAI_LAYERS_PARTS,     /* f32 [heads, parts, columns]: of backward_column_sums */
  NSAI_LAYERS_SUMS,      /* f32 [heads, columns] */
  NSAI_LAYERS_BUFFERS
};

#define NSAI_OPERAND_STEP 8 /* elements: 16 bytes, below which cuBLASLt has slower algorithms */

/* What the problem's phi and gate need. */
void nsai_layers_specify(const nsai_problem *problem, nsai_kernel_spec kernel[NSAI_LAYERS_KERNELS]);

/* Bytes for `heads` KV heads of phi at a time, and tokens that go through the gate's first layer at
 * once; 0 where the gate is no MLP. */
void nsai_layers_workspace(const nsai_problem *problem, int64_t heads,
                           int64_t bytes[NSAI_LAYERS_BUFFERS], int64_t *gate_tokens);

/* One pass through one or two layers, for a batch of weights. */
typedef struct nsai_layers_pass {
  const nsai_run *run;
  const nsai_kernel *kernel; /* NSAI_LAYERS_KERNELS of the row */
  const nsai_buffer *buffer; /* NSAI_LAYERS_BUFFERS */
  int64_t batch, first_head; /* KV heads of phi; 1 of the gate */
  int64_t rows;              /* without the row of sums */
  nsai_buffer compressed;    /* phi: f32 [batch, splits, rows, Dk + Dv], dK and dV of blocks */
  int64_t splits;            /* phi */
  int64_t gate_tokens;       /* gate: tokens through the first layer at once */
} nsai_layers_pass;

/* Gradients of the weights of phi, and of what its blocks pass on to their tokens:
 * NSAI_LAYERS_K_ROWS and _V_ROWS. */
nsa_status nsai_phi_back_enqueue(const nsai_layers_pass *pass);

/* Gradients of the gate MLP, from those of its logits. */
nsa_status nsai_gate_back_enqueue(const nsai_layers_pass *pass);

/* Whether the caller asks for any gradient of one side of phi. */
bool nsai_wants_phi(const nsa_phi_side *out);

/* ---- steps of a pass ---- */

/* A buffer of the pass. */
static inline void *nsai_layers_at(const nsai_layers_pass *b, int buffer) {
  return nsai_buffer_at(b->run, b->buffer[buffer]);
}

/* Columns of an operand with their padding. */
static inline int64_t nsai_operand(int64_t columns) {
  return nsai_round_up(columns, NSAI_OPERAND_STEP);
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
/* A gradient of weights [batch, rows, columns], or [rows, columns] of the gate's; absent ones are
 * fine. */
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

/* Sums into NSAI_LAYERS_SUMS [batch, columns], by way of NSAI_LAYERS_PARTS. */
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

/* NSAI_LAYERS_D_WEIGHTS [in, out] = x^T [in, rows] d [rows, out], or plus it. */
nsa_status nsai_multiply_weights(const nsai_layers_pass *b, int64_t rows, int64_t in, int64_t out,
                                 nsai_matrix x, nsai_matrix d, bool adds);

#endif /* NSAI_VARIANTS_BACKWARD_LAYERS_H */
