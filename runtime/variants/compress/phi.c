/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Products that a bias or an activation follows are kept in fp32. phi rounds nothing but the
 * result: (x + pe) W is taken as x W + pe W, and the second product takes the hidden activations in
 * two halves. Where a block has few of them, or few columns, or is the only one of its sequence, no
 * average makes up for their rounding.
 */
#include "variants/compress/phi.h"

#include "base/math.h"

void nsai_bias_specify(const nsai_problem *p, nsai_bias_use use, nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = "compress_bias_activation",
                              .dtype = p->model.dtype,
                              .threads = NSAI_ELEMENTWISE_THREADS };
  nsai_constant_add(spec, "kActivation", use.activation);
  nsai_constant_add(spec, "kOutFloat", use.out_float);
  nsai_constant_add(spec, "kBlocks", use.blocks);
  nsai_constant_add(spec, "kBlock", p->model.block);
  nsai_constant_add(spec, "kStride", p->model.stride);
  nsai_constant_add(spec, "kMinBlocks", 4);
}

nsa_status nsai_bias_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                             const NsaiBiasActivation *p) {
  return nsai_launch_elements(run, kernel, (int64_t)p->batch * p->rows * p->columns, p);
}

void nsai_phi_specify(const nsai_problem *p, bool all_exist, nsai_kernel_spec kernel[]) {
  const nsai_bias_use bias = { NSAI_NO_ACTIVATION, false, !all_exist };
  const nsai_bias_use activation = { (int)p->model.phi_activation, false, false };
  nsai_bias_specify(p, bias, &kernel[NSAI_PHI_BIAS]);
  if (p->model.phi == NSAI_PHI_MLP) nsai_bias_specify(p, activation, &kernel[NSAI_PHI_ACTIVATION]);
}

void nsai_phi_workspace(const nsai_model *m, int64_t rows, int64_t bytes[NSAI_PHI_BUFFERS]) {
  const int64_t dim = nsai_larger(m->head_dim_qk, m->head_dim_v);
  const int64_t hidden = m->phi == NSAI_PHI_MLP ? m->phi_hidden : 0;
  bytes[NSAI_PHI_ROWS] = NSAI_PRODUCT(rows + 1, m->kv_heads, m->block, dim, 2);
  bytes[NSAI_PHI_PRODUCT] = NSAI_PRODUCT(rows + 1, m->kv_heads, nsai_larger(hidden, dim), 4);
  bytes[NSAI_PHI_HIDDEN] = NSAI_PRODUCT(2, rows, m->kv_heads, hidden, 2);
}

/* rows[g, r, :] = vec(x), zero where there is no block; behind the last row, vec(pe). */
static nsa_status gather(const nsai_run *run, const nsai_form *form, const nsai_phi_pass *side) {
  const nsai_kernel *kernel = &form->kernel[side->gather];
  const int32_t heads = run->plan->problem.model.kv_heads;
  const uint64_t grid = (uint64_t)((side->rows + 1) * heads);
  const nsa_tensor *pe = &side->weights->pe;
  void *out = nsai_buffer_at(run, form->buffer[NSAI_PHI_ROWS]);
  if (side->append) {
    const NsaiPairScales scales = nsai_pair_scales(run, 0);
    /* A kernel without codes takes the first member alone. */
    NsaiCodedGatherEntries p = { .gather = { .batch = side->append->batch,
                                             .slot_mapping = side->append->slot_mapping,
                                             .x = nsai_cache_tensor(side->x),
                                             .pe = pe->data,
                                             .pe_head_stride = pe->stride[0],
                                             .pe_token_stride = pe->stride[1],
                                             .out = out,
                                             .rows = (int)side->rows,
                                             .kv_heads = heads },
                                 .scale = side->gather == NSAI_PHI_GATHER_K ? scales.k : scales.v };
    return nsai_launch(run->queue, kernel, grid, 1, &p);
  }
  NsaiGatherRows p = { .seq = nsai_compressed_sequences(run),
                       .x = nsai_view(side->x),
                       .pe = pe->data,
                       .pe_head_stride = pe->stride[0],
                       .pe_token_stride = pe->stride[1],
                       .out = out,
                       .rows = (int)side->rows,
                       .kv_heads = heads };
  return nsai_launch(run->queue, kernel, grid, 1, &p);
}

/* phi_product [Hkv, rows, n] = a [Hkv, rows, k] times w [Hkv, k, n]. */
static nsai_gemm product(const nsai_run *run, int64_t rows, const nsa_tensor *w) {
  const nsai_model *m = &run->plan->problem.model;
  int64_t k = w->shape[1], n = w->shape[2];
  return (nsai_gemm){ .m = rows,
                      .n = n,
                      .k = k,
                      .a_row = k,
                      .b_row = w->stride[1],
                      .c_row = n,
                      .batch = m->kv_heads,
                      .a_batch = rows * k,
                      .b_batch = w->stride[0],
                      .c_batch = rows * n,
                      .dtype = m->dtype,
                      .c_dtype = NSA_F32 };
}

/* The product of the gathered rows and w, [Hkv, rows + 1, n]; its last row is pe's. */
static nsa_status multiply_rows(const nsai_run *run, const nsai_form *form,
                                const nsai_phi_pass *side, const nsa_tensor *w) {
  nsai_gemm gemm = product(run, side->rows + 1, w);
  return nsai_run_gemm(run, &gemm, nsai_buffer_at(run, form->buffer[NSAI_PHI_ROWS]), w->data,
                       nsai_buffer_at(run, form->buffer[NSAI_PHI_PRODUCT]));
}

/* What follows a product [Hkv, rows, columns], or one of multiply_rows, behind which pe's row
 * lies. */
static NsaiBiasActivation after_product(const nsai_run *run, const nsai_form *form,
                                        const nsai_phi_pass *side, int64_t columns, bool has_pe) {
  float *x = nsai_buffer_at(run, form->buffer[NSAI_PHI_PRODUCT]);
  const NsaiSequences none = { 0 };
  return (NsaiBiasActivation){ .seq = side->append ? none : nsai_compressed_sequences(run),
                               .x = x,
                               .shift = has_pe ? x + side->rows * columns : NULL,
                               .x_batch_stride = (side->rows + has_pe) * columns,
                               .batch = run->plan->problem.model.kv_heads,
                               .rows = (int)side->rows,
                               .columns = (int)columns };
}

/* The last product, and the bias where there is one, into compressed storage. */
static nsa_status store_side(const nsai_run *run, const nsai_form *form, const nsai_phi_pass *side,
                             const nsa_tensor *bias, bool has_pe) {
  NsaiBiasActivation p = after_product(run, form, side, side->dim, has_pe);
  p.bias = bias->data;
  p.bias_batch_stride = bias->stride[0];
  p.out = side->out.data;
  p.out_batch_stride = side->out.head_stride;
  p.out_row_stride = side->out.token_stride;
  return nsai_bias_enqueue(run, &form->kernel[NSAI_PHI_BIAS], &p);
}

static nsa_status linear_side(const nsai_run *run, const nsai_form *form,
                              const nsai_phi_pass *side) {
  const nsa_tensor no_bias = { 0 };
  NSAI_TRY(multiply_rows(run, form, side, &side->weights->w));
  return store_side(run, form, side, &no_bias, true);
}

static nsa_status mlp_side(const nsai_run *run, const nsai_form *form, const nsai_phi_pass *side) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_phi_side *w = side->weights;
  int64_t h = m->phi_hidden;
  uint16_t *hidden = nsai_buffer_at(run, form->buffer[NSAI_PHI_HIDDEN]); /* [2, Hkv, rows, H] */
  uint16_t *rest = hidden + m->kv_heads * side->rows * h;
  NSAI_TRY(multiply_rows(run, form, side, &w->w1));
  NsaiBiasActivation act = after_product(run, form, side, h, true);
  act.bias = w->b1.data;
  act.bias_batch_stride = w->b1.stride[0];
  act.out = hidden;
  act.rest = rest;
  act.out_batch_stride = side->rows * h;
  act.out_row_stride = h;
  NSAI_TRY(nsai_bias_enqueue(run, &form->kernel[NSAI_PHI_ACTIVATION], &act));
  nsai_gemm gemm = product(run, side->rows, &w->w2);
  void *c = nsai_buffer_at(run, form->buffer[NSAI_PHI_PRODUCT]);
  NSAI_TRY(nsai_run_gemm(run, &gemm, hidden, w->w2.data, c));
  gemm.adds = true;
  NSAI_TRY(nsai_run_gemm(run, &gemm, rest, w->w2.data, c));
  return store_side(run, form, side, &w->b2, false);
}

nsa_status nsai_phi_enqueue(const nsai_run *run, const nsai_form *form, const nsai_phi_pass *side) {
  NSAI_TRY(gather(run, form, side));
  return run->plan->problem.model.phi == NSAI_PHI_LINEAR ? linear_side(run, form, side)
                                                         : mlp_side(run, form, side);
}
