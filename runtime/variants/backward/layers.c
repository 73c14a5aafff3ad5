/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the passes through phi and through the gate share: specs, workspace, and steps.
 */
#include "variants/backward/layers.h"

#include "base/math.h"

#include "variants/backward/backward.h"

/* ---- specs ---- */

/* Config::kActivation of backward_activation: the values of nsai_activation, and none. */
#define ACTIVATION_NONE 3

/* Config::kRowsOf of backward_activation. */
enum { ROWS_OF_BLOCKS, ROWS_OF_TOKENS };

static void specify(const nsai_problem *p, const char *entry, nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = p->model.dtype,
                              .threads = NSAI_BACKWARD_ELEMENT_THREADS,
                              .compile_cost = 100 };
  nsai_constant_add(spec, "kMinBlocks", 4);
}

static void specify_back(const nsai_problem *p, int activation, int rows_of,
                         nsai_kernel_spec *spec) {
  specify(p, "backward_activation", spec);
  nsai_constant_add(spec, "kActivation", activation);
  nsai_constant_add(spec, "kRowsOf", rows_of);
  nsai_constant_add(spec, "kBlock", p->model.block);
  nsai_constant_add(spec, "kStride", p->model.stride);
}

void nsai_layers_specify(const nsai_problem *p, nsai_kernel_spec kernel[NSAI_LAYERS_KERNELS]) {
  const nsai_model *m = &p->model;
  const bool phi = nsai_phi_has_weights(m), gate = m->gate == NSAI_GATE_MLP;
  if (phi) specify_back(p, ACTIVATION_NONE, ROWS_OF_BLOCKS, &kernel[NSAI_LAYERS_PHI_OUT]);
  if (m->phi == NSAI_PHI_MLP)
    specify_back(p, (int)m->phi_activation, ROWS_OF_BLOCKS, &kernel[NSAI_LAYERS_PHI_HIDDEN]);
  if (gate) specify_back(p, ACTIVATION_NONE, ROWS_OF_TOKENS, &kernel[NSAI_LAYERS_GATE_OUT]);
  if (gate && m->gate_hidden)
    specify_back(p, (int)m->gate_activation, ROWS_OF_TOKENS, &kernel[NSAI_LAYERS_GATE_HIDDEN]);
  if (gate) specify(p, "backward_present_rows", &kernel[NSAI_LAYERS_PRESENT_ROWS]);
  if (!phi && !gate) return;
  specify(p, "backward_column_sums", &kernel[NSAI_LAYERS_COLUMN_SUMS]);
  specify(p, "backward_store_gradient", &kernel[NSAI_LAYERS_STORE]);
}

/* ---- workspace ---- */

/* Features of tokens and their gradients on their way through the gate's first layer. */
#define GATE_CHUNK_BYTES ((int64_t)256 << 20)

#define PART_ROWS 256 /* of a column sum: enough to fill the device from 64k rows on */

/* What one pass through layers needs. */
typedef struct layers_need {
  int64_t batch, rows;         /* of results; of phi the row of sums counts */
  int64_t in, hidden, columns; /* of the layers; hidden 0: one layer */
} layers_need;

/* A buffer that serves several passes. */
static void enlarge(int64_t *bytes, int64_t to) { *bytes = nsai_larger(*bytes, to); }

static void need_layers(const layers_need *n, int64_t bytes[NSAI_LAYERS_BUFFERS]) {
  int64_t rows = NSAI_PRODUCT(n->batch, n->rows), first = n->hidden ? n->hidden : n->columns;
  int64_t widest = nsai_larger(n->hidden, n->columns);
  enlarge(&bytes[NSAI_LAYERS_D_OUT], NSAI_PRODUCT(rows, nsai_operand(n->columns), 2));
  enlarge(&bytes[NSAI_LAYERS_D_HIDDEN], NSAI_PRODUCT(rows, n->hidden, 4));
  enlarge(&bytes[NSAI_LAYERS_D_INNER], NSAI_PRODUCT(rows, nsai_operand(n->hidden), 2));
  enlarge(&bytes[NSAI_LAYERS_HIDDEN], NSAI_PRODUCT(rows, nsai_operand(n->hidden), 2));
  enlarge(&bytes[NSAI_LAYERS_D_WEIGHTS],
          NSAI_PRODUCT(n->batch,
                       nsai_larger(NSAI_PRODUCT(n->in, first), NSAI_PRODUCT(n->hidden, n->columns)),
                       4));
  enlarge(&bytes[NSAI_LAYERS_PARTS], NSAI_PRODUCT(n->batch, n->rows / PART_ROWS + 1, widest, 4));
  enlarge(&bytes[NSAI_LAYERS_SUMS], NSAI_PRODUCT(n->batch, widest, 4));
}

void nsai_layers_workspace(const nsai_problem *p, int64_t heads, int64_t bytes[NSAI_LAYERS_BUFFERS],
                           int64_t *gate_tokens) {
  const nsai_model *m = &p->model;
  const int64_t rows = p->max_kv_tokens / m->stride + 2; /* with the row of sums */
  const int64_t channels = m->gate_channels;
  *gate_tokens = 0;
  if (nsai_phi_has_weights(m)) {
    int64_t dim = nsai_larger(m->head_dim_qk, m->head_dim_v);
    int64_t hidden = m->phi == NSAI_PHI_MLP ? m->phi_hidden : 0;
    need_layers(&(layers_need){ heads, rows, NSAI_PRODUCT(m->block, dim), hidden, dim }, bytes);
    bytes[NSAI_LAYERS_K_ROWS] = NSAI_PRODUCT(heads, rows, m->block, m->head_dim_qk, 4);
    bytes[NSAI_LAYERS_V_ROWS] = NSAI_PRODUCT(heads, rows, m->block, m->head_dim_v, 4);
  }
  if (m->gate != NSAI_GATE_MLP) return;
  need_layers(&(layers_need){ 1, p->max_tokens, channels, m->gate_hidden, (int64_t)m->heads * 3 },
              bytes);
  *gate_tokens = nsai_chunk_tokens(GATE_CHUNK_BYTES, channels * 6, p->max_tokens);
  bytes[NSAI_LAYERS_X] = NSAI_PRODUCT(*gate_tokens, channels, 2);
  bytes[NSAI_LAYERS_D_X] = NSAI_PRODUCT(*gate_tokens, channels, 4);
}

/* ---- steps of a pass ---- */

nsa_status nsai_store(const nsai_layers_pass *b, const nsai_store_of *s) {
  NsaiStoreGradient p = { .seq = nsai_run_sequences(b->run),
                          .x = s->x,
                          .out = s->first_token < 0 ? nsai_backward_weight_gradient(b->run, s->out)
                                                    : nsai_backward_gradient(b->run, s->out),
                          .x_batch_stride = s->x_batch,
                          .batch = (int)b->batch,
                          .rows = (int)s->rows,
                          .columns = (int)s->columns,
                          .first_token = (int)s->first_token };
  int64_t size = s->out->dtype == NSA_F32 ? 4 : 2;
  p.out.view.token_stride = s->row_stride;
  p.out.view.head_stride = s->batch_stride;
  p.out.view.data = (char *)p.out.view.data + b->first_head * s->batch_stride * size;
  return nsai_launch_elements(b->run, &b->kernel[NSAI_LAYERS_STORE],
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
  int64_t groups = nsai_ceil_div(c->columns, 32);
  NsaiColumnSums p = { .x = c->x,
                       .x_batch_stride = c->batch_stride,
                       .x_row_stride = c->row_stride,
                       .sums = nsai_layers_at(b, NSAI_LAYERS_PARTS),
                       .batch = (int)b->batch,
                       .rows = (int)b->rows,
                       .columns = (int)c->columns,
                       .part_rows = PART_ROWS,
                       .parts = (int)nsai_ceil_div(b->rows, PART_ROWS) };
  const nsai_kernel *kernel = &b->kernel[NSAI_LAYERS_COLUMN_SUMS];
  NSAI_TRY(nsai_launch(run->queue, kernel, (uint64_t)(b->batch * p.parts * groups), 1, &p));
  p.x = p.sums;
  p.x_batch_stride = p.parts * c->columns;
  p.x_row_stride = c->columns;
  p.sums = nsai_layers_at(b, NSAI_LAYERS_SUMS);
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
                      .whole_k = true,
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
  return nsai_run_gemm(b->run, &gemm, x.data, d.data, nsai_layers_at(b, NSAI_LAYERS_D_WEIGHTS));
}
