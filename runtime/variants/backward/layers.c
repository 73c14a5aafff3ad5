/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/backward/layers.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

nsa_status nsai_store(const nsai_layers_pass *b, const nsai_store_of *s) {
  NsaiStoreGradient p = { .seq = nsai_run_sequences(b->run),
                          .x = s->x,
                          .out = { .view = nsai_view(s->out),
                                   .is_float = s->out->dtype == NSA_F32,
                                   .accumulate = (int)b->grads->accumulate },
                          .x_batch_stride = s->x_batch,
                          .batch = (int)b->batch,
                          .rows = (int)s->rows,
                          .columns = (int)s->columns,
                          .first_token = (int)s->first_token };
  int64_t size = s->out->dtype == NSA_F32 ? 4 : 2;
  p.out.view.token_stride = s->row_stride;
  p.out.view.head_stride = s->batch_stride;
  p.out.view.data = (char *)p.out.view.data + b->first_head * s->batch_stride * size;
  return nsai_launch_elements(b->run, &b->run->plan->kernels[NSAI_KERNEL_STORE_GRADIENT],
                              b->batch * s->rows * s->columns, &p);
}

nsa_status nsai_store_matrix(const nsai_layers_pass *b, const nsa_tensor *out, const float *x,
                             int64_t x_batch) {
  bool batched = out->ndim == 3;
  nsai_store_of s = { .out = out,
                      .x = x,
                      .x_batch = x_batch,
                      .rows = out->shape[batched],
                      .columns = out->shape[batched + 1],
                      .row_stride = out->stride[batched],
                      .batch_stride = batched ? out->stride[0] : 0,
                      .first_token = -1 };
  return nsai_present(out) ? nsai_store(b, &s) : NSA_OK;
}

nsa_status nsai_store_bias(const nsai_layers_pass *b, const nsa_tensor *out, const float *x) {
  bool batched = out->ndim == 2;
  nsai_store_of s = { .out = out,
                      .x = x,
                      .x_batch = out->shape[batched],
                      .rows = 1,
                      .columns = out->shape[batched],
                      .batch_stride = batched ? out->stride[0] : 0,
                      .first_token = -1 };
  return nsai_present(out) ? nsai_store(b, &s) : NSA_OK;
}

nsa_status nsai_sum_columns(const nsai_layers_pass *b, const nsai_columns_of *c) {
  const nsai_run *run = b->run;
  int64_t groups = ceil_div(c->columns, 32);
  NsaiColumnSums p = { .x = c->x,
                       .x_batch_stride = c->batch_stride,
                       .x_row_stride = c->row_stride,
                       .sums = nsai_buffer_at(run, nsai_layers_of(run)->parts),
                       .batch = (int)b->batch,
                       .rows = (int)b->rows,
                       .columns = (int)c->columns,
                       .part_rows = NSAI_COLUMN_SUM_ROWS,
                       .parts = (int)ceil_div(b->rows, NSAI_COLUMN_SUM_ROWS) };
  const nsai_kernel *kernel = &run->plan->kernels[NSAI_KERNEL_COLUMN_SUMS];
  NSAI_TRY(nsai_launch(run->queue, kernel, (uint64_t)(b->batch * p.parts * groups), 1, &p));
  p.x = p.sums;
  p.x_batch_stride = p.parts * c->columns;
  p.x_row_stride = c->columns;
  p.sums = nsai_buffer_at(run, nsai_layers_of(run)->sums);
  p.row = c->row;
  p.row_batch_stride = c->row_batch_stride;
  p.rows = p.part_rows = p.parts;
  p.parts = 1;
  return nsai_launch(run->queue, kernel, (uint64_t)(b->batch * groups), 1, &p);
}

nsai_gemm nsai_batched_gemm(const nsai_layers_pass *b, int64_t m, int64_t n, int64_t k) {
  return (nsai_gemm){ .m = m,
                      .n = n,
                      .k = k,
                      .c_row = n,
                      .batch = (int32_t)b->batch,
                      .c_batch = m * n,
                      .ordered = true,
                      .dtype = b->run->plan->problem.model.dtype,
                      .c_dtype = NSA_F32 };
}

nsai_matrix nsai_weights_of(const nsai_layers_pass *b, const nsa_tensor *w) {
  bool batch = w->ndim == 3;
  int64_t stride = batch ? w->stride[0] : 0;
  return (nsai_matrix){ (const uint16_t *)w->data + b->first_head * stride, w->stride[batch],
                        stride };
}

nsa_status nsai_multiply_back(const nsai_layers_pass *b, int64_t rows, int64_t in, int64_t out,
                              nsai_matrix d, nsai_matrix w, float *c) {
  nsai_gemm gemm = nsai_batched_gemm(b, rows, in, out);
  gemm.a_row = d.row;
  gemm.a_batch = d.batch;
  gemm.b_row = w.row;
  gemm.b_batch = w.batch;
  gemm.b_transposed = true;
  return nsai_run_gemm(b->run, &gemm, d.data, w.data, c);
}

nsa_status nsai_multiply_weights(const nsai_layers_pass *b, int64_t rows, int64_t in, int64_t out,
                                 nsai_matrix x, nsai_matrix d, bool adds) {
  nsai_gemm gemm = nsai_batched_gemm(b, in, out, rows);
  gemm.a_row = x.row;
  gemm.a_batch = x.batch;
  gemm.a_transposed = true;
  gemm.b_row = d.row;
  gemm.b_batch = d.batch;
  gemm.adds = adds;
  return nsai_run_gemm(b->run, &gemm, x.data, d.data,
                       nsai_buffer_at(b->run, nsai_layers_of(b->run)->d_weights));
}
