/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * phi linear and mlp, and the gate MLP: a gather kernel, cuBLASLt products, bias and activation
 * between them. Products that a bias or an activation follows are kept in fp32, so that each stored
 * value is rounded once.
 */
#include "common/params.h"
#include "forward.h"

/* One of K and V on its way through phi. */
typedef struct phi_side {
  const nsa_phi_side *weights;
  const nsa_tensor *x;
  NsaiView out; /* compressed storage */
  int64_t dim, rows;
  nsai_role gather;
} phi_side;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static nsa_status run_gemm(const nsai_run *run, const nsai_gemm *gemm, const void *a, const void *b,
                           void *c) {
  nsai_gemm_operands o = { a, b, c, nsai_piece_at(run, run->plan->layout.gemm), run->stream };
  return nsai_gemm_run(run->plan->lt, run->plan->lt_handle, gemm, &o);
}

static nsa_status run_bias(const nsai_run *run, nsai_role role, const NsaiBiasActivation *p) {
  const nsai_kernel *kernel = &run->plan->kernels[role];
  int64_t count = (int64_t)p->batch * p->rows * p->columns;
  return nsai_launch(run->driver, kernel, (uint64_t)ceil_div(count, kernel->threads), 1, p,
                     run->stream);
}

/* rows[g, r, :] = vec(x + pe), zero where there is no block. */
static nsa_status gather(const nsai_run *run, const phi_side *side) {
  const nsai_geometry *m = &run->plan->problem.model;
  const nsa_tensor *pe = &side->weights->pe;
  NsaiGatherRows p = { .seq = nsai_compressed_sequences(run),
                       .x = nsai_view(side->x),
                       .pe = pe->data,
                       .pe_head_stride = pe->stride[0],
                       .pe_token_stride = pe->stride[1],
                       .out = nsai_piece_at(run, run->plan->layout.phi_rows),
                       .rows = (int)side->rows,
                       .kv_heads = m->kv_heads };
  return nsai_launch(run->driver, &run->plan->kernels[side->gather],
                     (uint64_t)(side->rows * m->kv_heads), 1, &p, run->stream);
}

/* A product [rows, D] per KV head, and the bias where there is one, into compressed storage. */
static nsa_status store_side(const nsai_run *run, const phi_side *side, const nsa_tensor *bias) {
  const nsai_geometry *m = &run->plan->problem.model;
  NsaiBiasActivation p = { .seq = nsai_compressed_sequences(run),
                           .x = nsai_piece_at(run, run->plan->layout.phi_product),
                           .bias = bias->data,
                           .bias_batch_stride = bias->stride[0],
                           .out = side->out.data,
                           .out_batch_stride = side->out.head_stride,
                           .out_row_stride = side->out.token_stride,
                           .batch = m->kv_heads,
                           .rows = (int)side->rows,
                           .columns = (int)side->dim };
  return run_bias(run, NSAI_KERNEL_PHI_BIAS, &p);
}

/* phi_product = a [Hkv, rows, k] times w [Hkv, k, n]. */
static nsa_status multiply_side(const nsai_run *run, const phi_side *side, const void *a,
                                const nsa_tensor *w) {
  const nsai_geometry *m = &run->plan->problem.model;
  int64_t k = w->shape[1], n = w->shape[2];
  nsai_gemm gemm = { .m = side->rows,
                     .n = n,
                     .k = k,
                     .a_row = k,
                     .b_row = w->stride[1],
                     .c_row = n,
                     .batch = m->kv_heads,
                     .a_batch = side->rows * k,
                     .b_batch = w->stride[0],
                     .c_batch = side->rows * n,
                     .dtype = m->dtype,
                     .c_dtype = NSA_F32 };
  return run_gemm(run, &gemm, a, w->data, nsai_piece_at(run, run->plan->layout.phi_product));
}

static nsa_status linear_side(const nsai_run *run, const phi_side *side) {
  const nsa_tensor no_bias = { 0 };
  void *rows = nsai_piece_at(run, run->plan->layout.phi_rows);
  NSAI_TRY(multiply_side(run, side, rows, &side->weights->w));
  return store_side(run, side, &no_bias);
}

static nsa_status mlp_side(const nsai_run *run, const phi_side *side) {
  const nsai_geometry *m = &run->plan->problem.model;
  const nsai_layout *l = &run->plan->layout;
  const nsa_phi_side *w = side->weights;
  int64_t h = m->phi_hidden;
  NsaiBiasActivation hidden = { .x = nsai_piece_at(run, l->phi_product),
                                .bias = w->b1.data,
                                .bias_batch_stride = w->b1.stride[0],
                                .out = nsai_piece_at(run, l->phi_hidden),
                                .out_batch_stride = side->rows * h,
                                .out_row_stride = h,
                                .batch = m->kv_heads,
                                .rows = (int)side->rows,
                                .columns = (int)h };
  NSAI_TRY(multiply_side(run, side, nsai_piece_at(run, l->phi_rows), &w->w1));
  NSAI_TRY(run_bias(run, NSAI_KERNEL_PHI_ACTIVATION, &hidden));
  NSAI_TRY(multiply_side(run, side, hidden.out, &w->w2));
  return store_side(run, side, &w->b2);
}

nsa_status nsai_enqueue_phi(const nsai_run *run) {
  const nsai_geometry *m = &run->plan->problem.model;
  const nsa_io *io = run->io;
  phi_side sides[2] = {
    { &io->phi.k, &io->kv.k[0], nsai_compressed_view(run, 0), m->head_dim_qk,
      nsai_compressed_rows(run), NSAI_KERNEL_GATHER_K },
    { &io->phi.v, &io->kv.v[0], nsai_compressed_view(run, 1), m->head_dim_v,
      nsai_compressed_rows(run), NSAI_KERNEL_GATHER_V },
  };
  for (int i = 0; i < 2; i++) {
    NSAI_TRY(gather(run, &sides[i]));
    if (m->phi == NSAI_PHI_LINEAR)
      NSAI_TRY(linear_side(run, &sides[i]));
    else
      NSAI_TRY(mlp_side(run, &sides[i]));
  }
  return NSA_OK;
}

/* logits = act(x W1 + b1) W2 + b2; the branches' kernels apply the sigmoid. */
nsa_status nsai_enqueue_gate(const nsai_run *run) {
  const nsai_geometry *m = &run->plan->problem.model;
  const nsai_layout *l = &run->plan->layout;
  const nsa_gate *g = &run->io->gate;
  int64_t tokens = run->sizes.tokens, h = m->gate_hidden, columns = (int64_t)m->heads * 3;
  const void *x = g->x.data;
  int64_t x_row = g->x.stride[0], width = m->gate_channels;
  if (h) {
    nsai_gemm first = { .m = tokens,
                        .n = h,
                        .k = width,
                        .a_row = x_row,
                        .b_row = g->w1.stride[0],
                        .c_row = h,
                        .batch = 1,
                        .dtype = m->dtype,
                        .c_dtype = NSA_F32 };
    NsaiBiasActivation act = { .x = nsai_piece_at(run, l->gate_product),
                               .bias = g->b1.data,
                               .out = nsai_piece_at(run, l->gate_hidden),
                               .out_row_stride = h,
                               .batch = 1,
                               .rows = (int)tokens,
                               .columns = (int)h };
    NSAI_TRY(run_gemm(run, &first, x, g->w1.data, nsai_piece_at(run, l->gate_product)));
    NSAI_TRY(run_bias(run, NSAI_KERNEL_GATE_ACTIVATION, &act));
    x = nsai_piece_at(run, l->gate_hidden);
    x_row = width = h;
  }
  nsai_gemm last = { .m = tokens,
                     .n = columns,
                     .k = width,
                     .a_row = x_row,
                     .b_row = g->w2.stride[0],
                     .c_row = columns,
                     .batch = 1,
                     .dtype = m->dtype,
                     .c_dtype = NSA_F32 };
  float *logits = nsai_piece_at(run, l->gate_logits);
  NSAI_TRY(run_gemm(run, &last, x, g->w2.data, logits));
  if (!nsai_present(&g->b2)) return NSA_OK;
  NsaiBiasActivation bias = { .x = logits,
                              .bias = g->b2.data,
                              .out = logits,
                              .out_row_stride = columns,
                              .batch = 1,
                              .rows = (int)tokens,
                              .columns = (int)columns };
  return run_bias(run, NSAI_KERNEL_GATE_BIAS, &bias);
}
