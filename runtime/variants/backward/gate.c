/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The backward pass through the gate MLP: from the gradients of the logits, which backward_q has
 * left, to those of its weights and of the tokens' features. The layer that reads the features
 * works in chunks of tokens.
 */
#include "variants/backward/backward.h"
#include "variants/backward/layers.h"
#include "variants/gate/gemm.h"

/* An operand of all tokens in a buffer. */
static nsai_matrix of_tokens(const nsai_layers_pass *b, int buffer, int64_t columns) {
  return (nsai_matrix){ nsai_layers_at(b, buffer), nsai_operand(columns), 0 };
}

/* The gradient of the logits, which backward_q left, as an operand; and its sums. */
static nsa_status gate_out(const nsai_layers_pass *b, nsai_matrix d_out, int64_t columns) {
  const nsai_run *run = b->run;
  NsaiActivationBack p = { .seq = nsai_run_sequences(run),
                           .d_y = nsai_buffer_at(run, run->plan->workspace.d_logits),
                           .out = (void *)(uintptr_t)d_out.data,
                           .d_row_stride = columns,
                           .out_row_stride = d_out.row,
                           .batch = 1,
                           .rows = (int)b->rows,
                           .columns = (int)columns,
                           .parts = 1 };
  NSAI_TRY(nsai_launch_elements(run, &b->kernel[NSAI_LAYERS_GATE_OUT], b->rows * columns, &p));
  if (!nsai_present(&b->run->grads->d_gate.b2)) return NSA_OK;
  nsai_columns_of sums = { .x = p.d_y, .row_stride = columns, .columns = columns };
  NSAI_TRY(nsai_sum_columns(b, &sums));
  return nsai_store_bias(b, &b->run->grads->d_gate.b2, nsai_layers_at(b, NSAI_LAYERS_SUMS));
}

/* dZ and act(z) of all tokens; z before the bias lies in gate_product. */
static nsa_status gate_inner(const nsai_layers_pass *b, nsai_matrix inner, nsai_matrix hidden,
                             int64_t h) {
  const nsai_run *run = b->run;
  NsaiActivationBack p = {
    .seq = nsai_run_sequences(run),
    .d_y = nsai_layers_at(b, NSAI_LAYERS_D_HIDDEN),
    .x = nsai_buffer_at(run, nsai_plan_form(run->plan, NSAI_STAGE_GATE)->buffer[NSAI_GATE_PRODUCT]),
    .bias = run->io->gate.b1.data,
    .out = (void *)(uintptr_t)inner.data,
    .hidden = (void *)(uintptr_t)hidden.data,
    .d_row_stride = h,
    .out_row_stride = inner.row,
    .batch = 1,
    .rows = (int)b->rows,
    .columns = (int)h,
    .parts = 1
  };
  NSAI_TRY(nsai_launch_elements(run, &b->kernel[NSAI_LAYERS_GATE_HIDDEN], b->rows * h, &p));
  if (!nsai_present(&b->run->grads->d_gate.b1)) return NSA_OK;
  nsai_columns_of sums = { .x = p.d_y, .row_stride = h, .columns = h };
  NSAI_TRY(nsai_sum_columns(b, &sums));
  return nsai_store_bias(b, &b->run->grads->d_gate.b1, nsai_layers_at(b, NSAI_LAYERS_SUMS));
}

/* The features of the tokens [begin, begin + rows), finite. */
static nsa_status gate_features(const nsai_layers_pass *b, int64_t begin, int64_t rows,
                                nsai_matrix *out) {
  const nsai_run *run = b->run;
  const nsa_tensor *x = &run->io->gate.x;
  *out = (nsai_matrix){ (const uint16_t *)x->data + begin * x->stride[0], x->stride[0], 0 };
  if (!run->batch) return NSA_OK;
  NsaiPresentRows p = { .seq = nsai_run_sequences(run),
                        .x = x->data,
                        .x_row_stride = x->stride[0],
                        .out = nsai_layers_at(b, NSAI_LAYERS_X),
                        .first_token = (int)begin,
                        .rows = (int)rows,
                        .columns = (int)x->shape[1] };
  *out = (nsai_matrix){ p.out, x->shape[1], 0 };
  return nsai_launch_elements(run, &b->kernel[NSAI_LAYERS_PRESENT_ROWS], rows * x->shape[1], &p);
}

/* The layer that reads the features, in chunks of tokens; `d`: of its result. */
static nsa_status gate_first(const nsai_layers_pass *b, const nsa_tensor *w, const nsa_tensor *d_w,
                             nsai_matrix d) {
  const nsa_tensor *d_x = &b->run->grads->d_gate.x;
  int64_t columns = w->shape[1], in = w->shape[0];
  float *x_at = nsai_layers_at(b, NSAI_LAYERS_D_X);
  for (int64_t begin = 0; begin < b->rows; begin += b->gate_tokens) {
    int64_t rows = nsai_smaller(b->gate_tokens, b->rows - begin);
    nsai_matrix part = { (const uint16_t *)d.data + begin * d.row, d.row, 0 }, x;
    if (nsai_present(d_w)) {
      NSAI_TRY(gate_features(b, begin, rows, &x));
      NSAI_TRY(nsai_multiply_weights(b, rows, in, columns, x, part, begin > 0));
    }
    if (!nsai_present(d_x)) continue;
    NSAI_TRY(nsai_multiply_back(b, rows, in, columns, part, nsai_weights_of(b, w), x_at));
    nsa_tensor to = *d_x;
    int64_t size = to.dtype == NSA_F32 ? 4 : 2;
    to.data = (char *)to.data + begin * to.stride[0] * size;
    nsai_store_of s = { .out = &to,
                        .x = x_at,
                        .rows = rows,
                        .columns = in,
                        .row_stride = to.stride[0],
                        .first_token = begin };
    NSAI_TRY(nsai_store(b, &s));
  }
  return nsai_store_matrix(b, d_w, nsai_layers_at(b, NSAI_LAYERS_D_WEIGHTS), 0);
}

static nsa_status gate_layers(const nsai_layers_pass *b) {
  const nsai_run *run = b->run;
  const nsai_model *m = &run->plan->problem.model;
  const nsa_gate *w = &run->io->gate, *out = &b->run->grads->d_gate;
  int64_t h = m->gate_hidden, columns = (int64_t)m->heads * 3;
  nsai_matrix d_out = of_tokens(b, NSAI_LAYERS_D_OUT, columns),
              inner = of_tokens(b, NSAI_LAYERS_D_INNER, h),
              hidden = of_tokens(b, NSAI_LAYERS_HIDDEN, h);
  NSAI_TRY(gate_out(b, d_out, columns));
  if (!h) return gate_first(b, &w->w2, &out->w2, d_out);
  NSAI_TRY(nsai_multiply_back(b, b->rows, h, columns, d_out, nsai_weights_of(b, &w->w2),
                              nsai_layers_at(b, NSAI_LAYERS_D_HIDDEN)));
  NSAI_TRY(gate_inner(b, inner, hidden, h));
  if (nsai_present(&out->w2)) {
    NSAI_TRY(nsai_multiply_weights(b, b->rows, h, columns, hidden, d_out, false));
    NSAI_TRY(nsai_store_matrix(b, &out->w2, nsai_layers_at(b, NSAI_LAYERS_D_WEIGHTS), 0));
  }
  return gate_first(b, &w->w1, &out->w1, inner);
}

nsa_status nsai_gate_back_enqueue(const nsai_layers_pass *b) {
  const nsa_gate *out = &b->run->grads->d_gate;
  if (!nsai_wants_gate(out)) return NSA_OK;
  if (b->rows) return gate_layers(b);
  NSAI_TRY(nsai_store_matrix(b, &out->w1, NULL, 0));
  NSAI_TRY(nsai_store_matrix(b, &out->w2, NULL, 0));
  NSAI_TRY(nsai_store_bias(b, &out->b1, NULL));
  return nsai_store_bias(b, &out->b2, NULL);
}
