/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * dense_gemm: the unfused baseline. For each group of heads and chunk of query rows it runs a
 * product, a softmax and a product, with the scores in memory.
 */
#include "base/math.h"
#include "plan/spec.h"
#include "run/params.h"

enum { SOFTMAX, KERNELS };
enum { SCORES, PROBS, BUFFERS }; /* f32 and dtype [G, chunk tokens, max_kv_len] */
enum { CHUNK_TOKENS, NUMBERS };

/* Scores of a chunk of query rows and a group of heads. */
#define SCORES_CHUNK_BYTES ((int64_t)1 << 30)

#define PITCH 8 /* elements: rows of 16 bytes for cuBLASLt */

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  if (p->max_seqs > 1)
    nsai_refuse(
        reasons,
        "max_seqs is %d: lengths are read on the device, its products need them on the host",
        p->max_seqs);
}

static bool sensible(const nsai_problem *p, const nsai_target *t) {
  (void)p;
  (void)t;
  return false; /* a baseline to measure against, never the choice */
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  kernel[SOFTMAX] = (nsai_kernel_spec){ .entry = "attend_causal_softmax",
                                        .dtype = r->problem->model.dtype,
                                        .threads = 256 };
  nsai_constant_add(&kernel[SOFTMAX], "kMinBlocks", 1);
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  const nsai_problem *p = r->problem;
  int64_t group = p->model.heads / p->model.kv_heads;
  int64_t chunk = nsai_chunk_tokens(SCORES_CHUNK_BYTES, group * p->max_kv_len * 4, p->max_tokens);
  int64_t scores = NSAI_PRODUCT(group, chunk, nsai_round_up(p->max_kv_len, PITCH));
  (void)kernel;
  out->number[CHUNK_TOKENS] = chunk;
  out->bytes[SCORES] = NSAI_PRODUCT(scores, 4);
  out->bytes[PROBS] = NSAI_PRODUCT(scores, 2);
}

/* The products of `rows` query tokens and the heads of one KV head. */
static nsai_gemm score_product(const nsai_run *run, int64_t rows, int64_t pitch) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_io *io = run->io;
  return (nsai_gemm){ .m = rows,
                      .n = run->sizes.kv_tokens,
                      .k = m->head_dim_qk,
                      .a_row = io->q.stride[0],
                      .b_row = io->kv.k[0].stride[0],
                      .c_row = pitch,
                      .batch = m->heads / m->kv_heads,
                      .a_batch = io->q.stride[1],
                      .c_batch = rows * pitch,
                      .b_transposed = true,
                      .dtype = m->dtype,
                      .c_dtype = NSA_F32 };
}

static nsai_gemm output_product(const nsai_run *run, int64_t rows, int64_t pitch) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_io *io = run->io;
  return (nsai_gemm){ .m = rows,
                      .n = m->head_dim_v,
                      .k = run->sizes.kv_tokens,
                      .a_row = pitch,
                      .b_row = io->kv.v[0].stride[0],
                      .c_row = io->o.stride[0],
                      .batch = m->heads / m->kv_heads,
                      .a_batch = rows * pitch,
                      .c_batch = io->o.stride[1],
                      .whole_k = true,
                      .dtype = m->dtype,
                      .c_dtype = m->dtype };
}

/* Element [token, head, 0] of a tensor of 16-bit elements. */
static uint16_t *at(const nsa_tensor *t, int64_t token, int64_t head) {
  return (uint16_t *)t->data + token * t->stride[0] + head * t->stride[1];
}

static nsa_status run_chunk(const nsai_run *run, const nsai_form *form, int64_t begin, int64_t rows,
                            int32_t group) {
  const nsai_model *m = &run->plan->problem.model;
  const nsa_io *io = run->io;
  const nsa_tensor *lse = &io->lse[0];
  const int32_t heads = m->heads / m->kv_heads, head = group * heads;
  const int64_t keys = run->sizes.kv_tokens, pitch = nsai_round_up(keys, PITCH);
  const nsai_gemm qk = score_product(run, rows, pitch), pv = output_product(run, rows, pitch);
  float *scores = nsai_buffer_at(run, form->buffer[SCORES]);
  uint16_t *probs = nsai_buffer_at(run, form->buffer[PROBS]);
  NsaiCausalSoftmax softmax = { .scores = scores,
                                .probs = probs,
                                .scale_log2 = nsai_run_scale_log2(run),
                                .heads = heads,
                                .rows = (int)rows,
                                .keys = (int)pitch,
                                .first_position = (int)(keys - run->sizes.tokens + begin) };
  if (nsai_present(lse)) {
    softmax.lse = (float *)lse->data + begin * lse->stride[0] + head * lse->stride[1];
    softmax.lse_token_stride = lse->stride[0];
    softmax.lse_head_stride = lse->stride[1];
  }
  NSAI_TRY(nsai_run_gemm(run, &qk, at(&io->q, begin, head), at(&io->kv.k[0], 0, group), scores));
  NSAI_TRY(
      nsai_launch(run->queue, &form->kernel[SOFTMAX], (uint64_t)rows, (uint32_t)heads, &softmax));
  return nsai_run_gemm(run, &pv, probs, at(&io->kv.v[0], 0, group), at(&io->o, begin, head));
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const int64_t step = form->number[CHUNK_TOKENS], tokens = run->sizes.tokens;
  (void)span;
  if (run->batch)
    return nsai_fail(
        NSA_E_UNSUPPORTED,
        "dense_gemm takes one sequence without a batch: its products need the lengths on "
        "the host. Pass batch NULL, or let dense_sm90 or dense_sm80 serve the plan");
  for (int32_t group = 0; group < run->plan->problem.model.kv_heads; group++)
    for (int64_t begin = 0; begin < tokens; begin += step)
      NSAI_TRY(run_chunk(run, form, begin, nsai_smaller(step, tokens - begin), group));
  return NSA_OK;
}

const nsai_variant nsai_dense_gemm = {
  .name = "dense_gemm",
  .stage = NSAI_STAGE_DENSE,
  .why = "unfused baseline: q k^T, softmax and p v through cuBLASLt",
  .kernels = KERNELS,
  .buffers = BUFFERS,
  .numbers = NUMBERS,
  .needs_gemm = true,
  .legal = legal,
  .sensible = sensible,
  .specify = specify,
  .workspace = workspace,
  .enqueue = enqueue,
};
