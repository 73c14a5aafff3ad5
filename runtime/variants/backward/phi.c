/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The backward pass through phi linear and mlp: from the partial sums of the compressed branch to
 * the gradients of its weights, and to what each block passes on to its tokens (backward_dkv_sum
 * adds that up).
 *
 * pe goes through phi as a row of its own behind the blocks' (variants/compress/phi.c). The
 * gradient of its product is the sum of the blocks', so that one product over rows and this sum
 * gives dX and, as its last row, d_pe; and one gives dW of x and pe together.
 */
#include "variants/compress/phi.h"
#include "variants/backward/layers.h"

/* A buffer of compress_gemm, which has ended. */
static nsai_buffer phi_buffer(const nsai_run *run, int buffer) {
  return nsai_plan_form(run->plan, NSAI_STAGE_COMPRESS)->buffer[buffer];
}

/* K or V on its way back. */
typedef struct side_back {
  const nsa_tensor *x;
  const nsa_phi_side *weights, *out;
  int gather;
  int64_t dim, column; /* of the compressed sums */
  int d_rows;          /* NSAI_LAYERS_K_ROWS or _V_ROWS */
  bool raw;            /* the gradient of the tokens is wanted */
} side_back;

static side_back open_side(const nsai_layers_pass *b, int side) {
  const nsai_model *m = &b->run->plan->problem.model;
  const nsa_io *io = b->run->io;
  const nsa_grads *grads = b->run->grads;
  return side ? (side_back){ .x = &io->kv.v[0],
                             .weights = &io->phi.v,
                             .out = &grads->d_phi.v,
                             .gather = NSAI_PHI_GATHER_V,
                             .dim = m->head_dim_v,
                             .column = m->head_dim_qk,
                             .d_rows = NSAI_LAYERS_V_ROWS,
                             .raw = nsai_present(&grads->d_kv.v[0]) }
              : (side_back){ .x = &io->kv.k[0],
                             .weights = &io->phi.k,
                             .out = &grads->d_phi.k,
                             .gather = NSAI_PHI_GATHER_K,
                             .dim = m->head_dim_qk,
                             .d_rows = NSAI_LAYERS_K_ROWS,
                             .raw = nsai_present(&grads->d_kv.k[0]) };
}

bool nsai_wants_phi(const nsa_phi_side *out) {
  const nsa_tensor *const all[] = { &out->pe, &out->w, &out->w1, &out->b1, &out->w2, &out->b2 };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (nsai_present(all[i])) return true;
  return false;
}

/* phi_rows [batch, rows + 1, l * D], as in the forward. */
static nsa_status gather(const nsai_layers_pass *b, const side_back *s) {
  const nsai_run *run = b->run;
  const nsa_tensor *pe = &s->weights->pe;
  NsaiGatherRows p = { .seq = nsai_run_sequences(run),
                       .x = nsai_view(s->x),
                       .pe_head_stride = pe->stride[0],
                       .pe_token_stride = pe->stride[1],
                       .out = nsai_buffer_at(run, phi_buffer(run, NSAI_PHI_ROWS)),
                       .rows = (int)b->rows,
                       .kv_heads = (int)b->batch };
  p.x.data = (uint16_t *)p.x.data + b->first_head * p.x.head_stride;
  if (nsai_present(pe)) p.pe = (const uint16_t *)pe->data + b->first_head * pe->stride[0];
  return nsai_launch(run->queue, &nsai_plan_form(run->plan, NSAI_STAGE_COMPRESS)->kernel[s->gather],
                     (uint64_t)((b->rows + 1) * b->batch), 1, &p);
}

static int64_t flat_of(const nsai_layers_pass *b, const side_back *s) {
  return b->run->plan->problem.model.block * s->dim;
}

static nsai_matrix gathered(const nsai_layers_pass *b, const side_back *s) {
  int64_t flat = flat_of(b, s);
  return (nsai_matrix){ nsai_buffer_at(b->run, phi_buffer(b->run, NSAI_PHI_ROWS)), flat,
                        (b->rows + 1) * flat };
}

/* An operand of rows + 1 rows, the last for the sums, in a buffer. */
static nsai_matrix with_sums(const nsai_layers_pass *b, int buffer, int64_t columns) {
  return (nsai_matrix){ nsai_layers_at(b, buffer), nsai_operand(columns),
                        (b->rows + 1) * nsai_operand(columns) };
}

static void *sums_row(const nsai_layers_pass *b, nsai_matrix of) {
  return (uint16_t *)(uintptr_t)of.data + b->rows * of.row;
}

/* The sums of the runs of rows that backward_dkv_compressed left: in the first of them, and
 * d_out. */
static nsa_status phi_out(const nsai_layers_pass *b, const side_back *s, nsai_matrix d_out,
                          nsai_columns_of *sums) {
  const nsai_run *run = b->run;
  const nsai_model *m = &run->plan->problem.model;
  int64_t width = m->head_dim_qk + m->head_dim_v;
  NsaiActivationBack p = { .seq = nsai_run_sequences(run),
                           .d_y = (float *)nsai_buffer_at(run, b->compressed) + s->column,
                           .out = (void *)(uintptr_t)d_out.data,
                           .d_batch_stride = b->splits * b->rows * width,
                           .d_part_stride = b->rows * width,
                           .d_row_stride = width,
                           .out_batch_stride = d_out.batch,
                           .out_row_stride = d_out.row,
                           .batch = (int)b->batch,
                           .rows = (int)b->rows,
                           .columns = (int)s->dim,
                           .parts = (int)b->splits };
  *sums = (nsai_columns_of){ .x = p.d_y,
                             .batch_stride = p.d_batch_stride,
                             .row_stride = p.d_row_stride,
                             .columns = s->dim,
                             .row = sums_row(b, d_out),
                             .row_batch_stride = d_out.batch };
  return nsai_launch_elements(run, &b->kernel[NSAI_LAYERS_PHI_OUT], b->batch * b->rows * s->dim,
                              &p);
}

/* The first layer's weights, pe and the tokens; `d`: of its result, the sums in its last row. */
static nsa_status phi_first(const nsai_layers_pass *b, const side_back *s, const nsa_tensor *w,
                            const nsa_tensor *d_w, nsai_matrix d) {
  const nsai_run *run = b->run;
  const nsai_model *m = &run->plan->problem.model;
  int64_t flat = flat_of(b, s), columns = w->shape[2], rows = b->rows + 1;
  float *d_x = nsai_layers_at(b, s->d_rows);
  if (nsai_present(d_w)) {
    NSAI_TRY(nsai_multiply_weights(b, rows, flat, columns, gathered(b, s), d, false));
    NSAI_TRY(nsai_store_matrix(b, d_w, nsai_layers_at(b, NSAI_LAYERS_D_WEIGHTS), flat * columns));
  }
  if (!s->raw && !nsai_present(&s->out->pe)) return NSA_OK;
  NSAI_TRY(nsai_multiply_back(b, rows, flat, columns, d, nsai_weights_of(b, w), d_x));
  if (!nsai_present(&s->out->pe)) return NSA_OK;
  nsai_store_of pe = { .out = &s->out->pe,
                       .x = d_x + b->rows * flat,
                       .x_batch = rows * flat,
                       .rows = m->block,
                       .columns = s->dim,
                       .row_stride = s->out->pe.stride[1],
                       .batch_stride = s->out->pe.stride[0],
                       .first_token = -1 };
  return nsai_store(b, &pe);
}

static nsa_status linear_back(const nsai_layers_pass *b, const side_back *s) {
  nsai_matrix d_out = with_sums(b, NSAI_LAYERS_D_OUT, s->dim);
  nsai_columns_of sums;
  NSAI_TRY(gather(b, s));
  NSAI_TRY(phi_out(b, s, d_out, &sums));
  NSAI_TRY(nsai_sum_columns(b, &sums));
  return phi_first(b, s, &s->weights->w, &s->out->w, d_out);
}

/* z before the bias, [batch, rows + 1, H] in phi_product; its last row is pe's. */
static nsa_status phi_hidden(const nsai_layers_pass *b, const side_back *s) {
  const nsai_run *run = b->run;
  const nsa_tensor *w1 = &s->weights->w1;
  nsai_matrix x = gathered(b, s), w = nsai_weights_of(b, w1);
  nsai_gemm gemm = nsai_batched_gemm(b, b->rows + 1, w1->shape[2], w1->shape[1]);
  gemm.a_row = x.row;
  gemm.a_batch = x.batch;
  gemm.b_row = w.row;
  gemm.b_batch = w.batch;
  return nsai_run_gemm(run, &gemm, x.data, w.data,
                       nsai_buffer_at(run, phi_buffer(run, NSAI_PHI_PRODUCT)));
}

/* dZ and act(z) from dY W2^T. */
static nsa_status phi_inner(const nsai_layers_pass *b, const side_back *s, nsai_matrix inner,
                            nsai_matrix hidden) {
  const nsai_run *run = b->run;
  const nsa_tensor *b1 = &s->weights->b1;
  int64_t h = s->weights->w1.shape[2];
  float *z = nsai_buffer_at(run, phi_buffer(run, NSAI_PHI_PRODUCT));
  NsaiActivationBack p = { .seq = nsai_run_sequences(run),
                           .d_y = nsai_layers_at(b, NSAI_LAYERS_D_HIDDEN),
                           .x = z,
                           .shift = z + b->rows * h,
                           .out = (void *)(uintptr_t)inner.data,
                           .hidden = (void *)(uintptr_t)hidden.data,
                           .d_batch_stride = b->rows * h,
                           .d_row_stride = h,
                           .x_batch_stride = (b->rows + 1) * h,
                           .bias_batch_stride = b1->stride[0],
                           .out_batch_stride = inner.batch,
                           .hidden_batch_stride = hidden.batch,
                           .out_row_stride = inner.row,
                           .batch = (int)b->batch,
                           .rows = (int)b->rows,
                           .columns = (int)h,
                           .parts = 1 };
  if (nsai_present(b1)) p.bias = (const uint16_t *)b1->data + b->first_head * b1->stride[0];
  NSAI_TRY(
      nsai_launch_elements(run, &b->kernel[NSAI_LAYERS_PHI_HIDDEN], b->batch * b->rows * h, &p));
  nsai_columns_of sums = { .x = p.d_y,
                           .batch_stride = p.d_batch_stride,
                           .row_stride = h,
                           .columns = h,
                           .row = sums_row(b, inner),
                           .row_batch_stride = inner.batch };
  return nsai_sum_columns(b, &sums);
}

static nsa_status mlp_back(const nsai_layers_pass *b, const side_back *s) {
  const nsa_phi_side *w = s->weights;
  int64_t h = w->w1.shape[2];
  nsai_matrix d_out = with_sums(b, NSAI_LAYERS_D_OUT, s->dim),
              inner = with_sums(b, NSAI_LAYERS_D_INNER, h),
              hidden = with_sums(b, NSAI_LAYERS_HIDDEN, h);
  float *sums_at = nsai_layers_at(b, NSAI_LAYERS_SUMS);
  nsai_columns_of sums;
  NSAI_TRY(gather(b, s));
  NSAI_TRY(phi_hidden(b, s));
  NSAI_TRY(phi_out(b, s, d_out, &sums));
  if (nsai_present(&s->out->b2)) {
    NSAI_TRY(nsai_sum_columns(b, &sums));
    NSAI_TRY(nsai_store_bias(b, &s->out->b2, sums_at));
  }
  NSAI_TRY(nsai_multiply_back(b, b->rows, h, s->dim, d_out, nsai_weights_of(b, &w->w2),
                              nsai_layers_at(b, NSAI_LAYERS_D_HIDDEN)));
  NSAI_TRY(phi_inner(b, s, inner, hidden));
  NSAI_TRY(nsai_store_bias(b, &s->out->b1, sums_at));
  if (nsai_present(&s->out->w2)) {
    NSAI_TRY(nsai_multiply_weights(b, b->rows, h, s->dim, hidden, d_out, false));
    NSAI_TRY(
        nsai_store_matrix(b, &s->out->w2, nsai_layers_at(b, NSAI_LAYERS_D_WEIGHTS), h * s->dim));
  }
  return phi_first(b, s, &w->w1, &s->out->w1, inner);
}

/* Zeros, or nothing added, where the compressed branch does not run. */
static nsa_status no_weights(const nsai_layers_pass *b, const nsa_phi_side *out) {
  const nsa_tensor *const all[] = { &out->pe, &out->w, &out->w1, &out->w2 };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    NSAI_TRY(nsai_store_matrix(b, all[i], NULL, 0));
  NSAI_TRY(nsai_store_bias(b, &out->b1, NULL));
  return nsai_store_bias(b, &out->b2, NULL);
}

nsa_status nsai_phi_back_enqueue(const nsai_layers_pass *b) {
  const nsai_run *run = b->run;
  bool is_linear = run->plan->problem.model.phi == NSAI_PHI_LINEAR;
  for (int which = 0; which < 2; which++) {
    side_back side = open_side(b, which);
    if (!nsai_run_has(run, NSA_CMP))
      NSAI_TRY(no_weights(b, side.out));
    else if (side.raw || nsai_wants_phi(side.out))
      NSAI_TRY(is_linear ? linear_back(b, &side) : mlp_back(b, &side));
  }
  return NSA_OK;
}
