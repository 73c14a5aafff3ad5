/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * phi linear and mlp, and the gate MLP: a gather kernel, cuBLASLt products, bias and activation
 * between them. Products that a bias or an activation follows are kept in fp32. phi rounds nothing
 * but the result: (x + pe) W is taken as x W + pe W, and the second product takes the hidden
 * activations in two halves, for where a block has few of them, or few columns, or is the only one
 * of its sequence, no average makes up for their rounding.
 */
#include "run/cached.h"

/* One of K and V on its way through phi. */
typedef struct phi_side {
  const nsa_phi_side *weights;
  const nsa_tensor *x;
  const NsaiAppend
      *append;  /* x lies in a cache, and rows are what this completes; NULL: x is packed */
  NsaiView out; /* compressed storage */
  int64_t dim, rows;
  nsai_role gather;
} phi_side;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

nsa_status nsai_run_gemm(const nsai_run *run, const nsai_gemm *gemm, const void *a, const void *b,
                         void *c) {
  nsai_gemm_operands o = { a, b, c, nsai_buffer_at(run, run->plan->workspace.gemm),
                           run->queue->stream };
  nsai_queue_break(run->queue);
  return nsai_gemm_run(run->plan->lt, run->plan->lt_handle, gemm, &o);
}

static nsa_status run_bias(const nsai_run *run, nsai_role role, const NsaiBiasActivation *p) {
  const nsai_kernel *kernel = &run->plan->kernels[role];
  int64_t count = (int64_t)p->batch * p->rows * p->columns;
  return nsai_launch(run->queue, kernel, (uint64_t)ceil_div(count, kernel->threads), 1, p);
}

static nsa_status gather_entries(const nsai_run *run, const phi_side *side) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_tensor *pe = &side->weights->pe;
  NsaiGatherEntries p = { .batch = side->append->batch,
                          .slot_mapping = side->append->slot_mapping,
                          .x = nsai_cache_tensor(side->x),
                          .pe = pe->data,
                          .pe_head_stride = pe->stride[0],
                          .pe_token_stride = pe->stride[1],
                          .out = nsai_buffer_at(run, run->plan->workspace.phi_rows),
                          .rows = (int)side->rows,
                          .kv_heads = m->kv_heads };
  return nsai_launch(run->queue, &run->plan->kernels[side->gather],
                     (uint64_t)((side->rows + 1) * m->kv_heads), 1, &p);
}

/* rows[g, r, :] = vec(x), zero where there is no block; behind the last row, vec(pe). */
static nsa_status gather(const nsai_run *run, const phi_side *side) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_tensor *pe = &side->weights->pe;
  if (side->append) return gather_entries(run, side);
  NsaiGatherRows p = { .seq = nsai_compressed_sequences(run),
                       .x = nsai_view(side->x),
                       .pe = pe->data,
                       .pe_head_stride = pe->stride[0],
                       .pe_token_stride = pe->stride[1],
                       .out = nsai_buffer_at(run, run->plan->workspace.phi_rows),
                       .rows = (int)side->rows,
                       .kv_heads = m->kv_heads };
  return nsai_launch(run->queue, &run->plan->kernels[side->gather],
                     (uint64_t)((side->rows + 1) * m->kv_heads), 1, &p);
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

/* phi_product [Hkv, rows + 1, n] = the gathered rows times w; the last row is pe's. */
static nsa_status multiply_rows(const nsai_run *run, const phi_side *side, const nsa_tensor *w) {
  const nsai_workspace *l = &run->plan->workspace;
  nsai_gemm gemm = product(run, side->rows + 1, w);
  return nsai_run_gemm(run, &gemm, nsai_buffer_at(run, l->phi_rows), w->data,
                       nsai_buffer_at(run, l->phi_product));
}

/* What becomes of phi_product: [Hkv, rows, columns], followed by the row of pe's product where it
 * is multiply_rows'. */
static NsaiBiasActivation after_product(const nsai_run *run, const phi_side *side, int64_t columns,
                                        bool has_pe) {
  float *x = nsai_buffer_at(run, run->plan->workspace.phi_product);
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
static nsa_status store_side(const nsai_run *run, const phi_side *side, const nsa_tensor *bias,
                             bool has_pe) {
  NsaiBiasActivation p = after_product(run, side, side->dim, has_pe);
  p.bias = bias->data;
  p.bias_batch_stride = bias->stride[0];
  p.out = side->out.data;
  p.out_batch_stride = side->out.head_stride;
  p.out_row_stride = side->out.token_stride;
  return run_bias(run, NSAI_KERNEL_PHI_BIAS, &p);
}

static nsa_status linear_side(const nsai_run *run, const phi_side *side) {
  const nsa_tensor no_bias = { 0 };
  NSAI_TRY(multiply_rows(run, side, &side->weights->w));
  return store_side(run, side, &no_bias, true);
}

static nsa_status mlp_side(const nsai_run *run, const phi_side *side) {
  const nsai_model *m = &run->plan->problem.model;
  const nsai_workspace *l = &run->plan->workspace;
  const nsa_phi_side *w = side->weights;
  int64_t h = m->phi_hidden;
  uint16_t *hidden = nsai_buffer_at(run, l->phi_hidden); /* [2, Hkv, rows, H] */
  uint16_t *rest = hidden + m->kv_heads * side->rows * h;
  NSAI_TRY(multiply_rows(run, side, &w->w1));
  NsaiBiasActivation act = after_product(run, side, h, true);
  act.bias = w->b1.data;
  act.bias_batch_stride = w->b1.stride[0];
  act.out = hidden;
  act.rest = rest;
  act.out_batch_stride = side->rows * h;
  act.out_row_stride = h;
  NSAI_TRY(run_bias(run, NSAI_KERNEL_PHI_ACTIVATION, &act));
  nsai_gemm gemm = product(run, side->rows, &w->w2);
  void *c = nsai_buffer_at(run, l->phi_product);
  NSAI_TRY(nsai_run_gemm(run, &gemm, hidden, w->w2.data, c));
  gemm.adds = true;
  NSAI_TRY(nsai_run_gemm(run, &gemm, rest, w->w2.data, c));
  return store_side(run, side, &w->b2, false);
}

static nsa_status run_side(const nsai_run *run, const phi_side *side) {
  NSAI_TRY(gather(run, side));
  return run->plan->problem.model.phi == NSAI_PHI_LINEAR ? linear_side(run, side)
                                                         : mlp_side(run, side);
}

nsa_status nsai_enqueue_phi(const nsai_run *run) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_io *io = run->io;
  int64_t rows = nsai_compressed_rows(run);
  phi_side k = {
    &io->phi.k, &io->kv.k[0],        NULL, nsai_compressed_view(run, 0), m->head_dim_qk,
    rows,       NSAI_KERNEL_GATHER_K
  };
  phi_side v = { &io->phi.v, &io->kv.v[0],        NULL, nsai_compressed_view(run, 1), m->head_dim_v,
                 rows,       NSAI_KERNEL_GATHER_V };
  NSAI_TRY(run_side(run, &k));
  return run_side(run, &v);
}

nsa_status nsai_enqueue_phi_append(const nsai_run *run, const nsa_kv *cache, const nsa_phi *phi,
                                   const NsaiAppend *append) {
  const nsai_model *m = &run->plan->problem.model;
  const nsai_workspace *l = &run->plan->workspace;
  int64_t rows = run->sizes.tokens / m->stride + run->sizes.num_seqs;
  NsaiView k_rows = nsai_buffer_view(run, l->k_cmp, m->kv_heads, m->head_dim_qk);
  NsaiView v_rows = nsai_buffer_view(run, l->v_cmp, m->kv_heads, m->head_dim_v);
  phi_side k = {
    &phi->k, &cache->k[0], append, k_rows, m->head_dim_qk, rows, NSAI_KERNEL_GATHER_K
  };
  phi_side v = { &phi->v, &cache->v[0], append, v_rows, m->head_dim_v, rows, NSAI_KERNEL_GATHER_V };
  NsaiScatterEntries scatter = { .batch = append->batch,
                                 .slot_mapping = append->slot_mapping,
                                 .entries = nsai_cache_entries(cache),
                                 .k = k_rows.data,
                                 .v = v_rows.data,
                                 .kv_heads = m->kv_heads };
  NSAI_TRY(run_side(run, &k));
  NSAI_TRY(run_side(run, &v));
  return nsai_launch(run->queue, &run->plan->kernels[NSAI_KERNEL_SCATTER], (uint64_t)rows, 1,
                     &scatter);
}

/* logits = act(x W1 + b1) W2 + b2; the branches' kernels apply the sigmoid. */
nsa_status nsai_enqueue_gate(const nsai_run *run) {
  const nsai_model *m = &run->plan->problem.model;
  const nsai_workspace *l = &run->plan->workspace;
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
    NsaiBiasActivation act = { .x = nsai_buffer_at(run, l->gate_product),
                               .bias = g->b1.data,
                               .out = nsai_buffer_at(run, l->gate_hidden),
                               .out_row_stride = h,
                               .batch = 1,
                               .rows = (int)tokens,
                               .columns = (int)h };
    NSAI_TRY(nsai_run_gemm(run, &first, x, g->w1.data, nsai_buffer_at(run, l->gate_product)));
    NSAI_TRY(run_bias(run, NSAI_KERNEL_GATE_ACTIVATION, &act));
    x = nsai_buffer_at(run, l->gate_hidden);
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
  float *logits = nsai_buffer_at(run, l->gate_logits);
  NSAI_TRY(nsai_run_gemm(run, &last, x, g->w2.data, logits));
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
