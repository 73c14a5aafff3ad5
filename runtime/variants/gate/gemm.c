/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * gate_gemm: logits = act(x W1 + b1) W2 + b2. The branches' kernels apply the sigmoid.
 */
#include "variants/gate/gemm.h"

#include "base/math.h"

#include "variants/compress/phi.h"

enum { ACTIVATION, BIAS, KERNELS };

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_model *m = &r->problem->model;
  const nsai_bias_use activation = { (int)m->gate_activation, false, false };
  const nsai_bias_use bias = { NSAI_NO_ACTIVATION, true, false };
  if (m->gate_hidden) nsai_bias_specify(r->problem, activation, &kernel[ACTIVATION]);
  nsai_bias_specify(r->problem, bias, &kernel[BIAS]);
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  const int64_t elements = NSAI_PRODUCT(r->problem->max_tokens, r->problem->model.gate_hidden);
  (void)kernel;
  out->bytes[NSAI_GATE_PRODUCT] = NSAI_PRODUCT(elements, 4);
  out->bytes[NSAI_GATE_HIDDEN] = NSAI_PRODUCT(elements, 2);
}

/* [T, k] of rows `x_row` apart times w [k, n], in fp32. */
static nsa_status multiply(const nsai_run *run, const void *x, int64_t x_row, int64_t k, int64_t n,
                           const nsa_tensor *w, float *out) {
  const nsai_gemm gemm = { .m = run->sizes.tokens,
                           .n = n,
                           .k = k,
                           .a_row = x_row,
                           .b_row = w->stride[0],
                           .c_row = n,
                           .batch = 1,
                           .dtype = run->plan->problem.model.dtype,
                           .c_dtype = NSA_F32 };
  return nsai_run_gemm(run, &gemm, x, w->data, out);
}

/* out = act(x + bias) of [T, columns]. */
static nsa_status finish(const nsai_run *run, const nsai_kernel *kernel, const float *x,
                         const nsa_tensor *bias, int64_t columns, void *out) {
  const NsaiBiasActivation p = { .x = x,
                                 .bias = bias->data,
                                 .out = out,
                                 .out_row_stride = columns,
                                 .batch = 1,
                                 .rows = (int)run->sizes.tokens,
                                 .columns = (int)columns };
  return nsai_bias_enqueue(run, kernel, &p);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_gate *g = &run->io->gate;
  const int64_t h = m->gate_hidden, columns = (int64_t)m->heads * 3;
  float *product = nsai_buffer_at(run, form->buffer[NSAI_GATE_PRODUCT]);
  float *logits = nsai_buffer_at(run, run->plan->workspace.gate_logits);
  void *hidden = nsai_buffer_at(run, form->buffer[NSAI_GATE_HIDDEN]);
  (void)span;
  if (h) {
    NSAI_TRY(multiply(run, g->x.data, g->x.stride[0], m->gate_channels, h, &g->w1, product));
    NSAI_TRY(finish(run, &form->kernel[ACTIVATION], product, &g->b1, h, hidden));
    NSAI_TRY(multiply(run, hidden, h, h, columns, &g->w2, logits));
  } else {
    NSAI_TRY(multiply(run, g->x.data, g->x.stride[0], m->gate_channels, columns, &g->w2, logits));
  }
  if (!nsai_present(&g->b2)) return NSA_OK;
  return finish(run, &form->kernel[BIAS], logits, &g->b2, columns, logits);
}

const nsai_variant nsai_gate_gemm = {
  .name = "gate_gemm",
  .stage = NSAI_STAGE_GATE,
  .why = "the layers of the gate MLP through cuBLASLt",
  .kernels = KERNELS,
  .buffers = NSAI_GATE_BUFFERS,
  .needs_gemm = true,
  .takes_codes = true,
  .legal = legal,
  .specify = specify,
  .workspace = workspace,
  .enqueue = enqueue,
};
