/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * backward_q_kv_sm90: backward_q_sm90_tma and backward_kv_sm90 with the compressed branch's dK, dV and dQ
 * in one kernel (backward/pipelines/dkv_dq.cuh). dQ of the other branches is added to its dQ.
 */
#include "variants/backward/q_kv.h"

#include "base/math.h"
#include "params/smem.h"
#include "variants/backward/backward.h"

#define ROWS NSAI_Q_KV_BLOCK_ROWS
#define LEAST_GROUP 4
#define KEYS 128
#define STAGES 3 /* one held, one read, one on its way */

/* ---- the compressed branch's kernel ---- */

static uint32_t shared_bytes(const nsai_model *m) {
  return nsai_smem_dkv_dq(STAGES, ROWS * m->kv_heads / m->heads, m->head_dim_qk, m->head_dim_v);
}

void nsai_q_kv_legal(const nsai_problem *p, nsai_reasons *reasons) {
  const nsai_model *m = &p->model;
  const int32_t group = m->heads / m->kv_heads;
  if (!nsai_compresses(m)) nsai_refuse(reasons, "the model has no compressed branch");
  if (group != nsai_padded_group(m))
    nsai_refuse(reasons, "a KV head has %d query heads: it takes powers of two", group);
  if (m->head_dim_qk != 64 && m->head_dim_qk != 128)
    nsai_refuse(reasons, "model.head_dim_qk is %d: it takes 64 and 128", m->head_dim_qk);
  if (m->head_dim_v > m->head_dim_qk) /* Dk 64 and Dv 128 would serialise (C7511) */
    nsai_refuse(reasons, "model.head_dim_v is %d: it takes at most head_dim_qk, %d", m->head_dim_v,
                m->head_dim_qk);
  if (group == ROWS && m->head_dim_qk == 64) /* likewise */
    nsai_refuse(reasons,
                "a KV head has %d query heads of %d numbers: it takes at most %d such heads", group,
                m->head_dim_qk, ROWS / 2);
}

void nsai_q_kv_specify(const nsai_request *r, bool later_first,
                       nsai_kernel_spec kernel[NSAI_Q_KV_KERNELS]) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  const int32_t group = m->heads / m->kv_heads;
  nsai_kernel_spec *spec = &kernel[NSAI_DKV_COMPRESSED];
  nsai_dkv_specify(r, true, kernel);
  *spec = (nsai_kernel_spec){ .entry = "backward_dkv_dq_compressed_tma",
                              .dtype = m->dtype,
                              .threads = NSAI_BACKWARD_TMA_THREADS,
                              .shared_bytes = shared_bytes(m),
                              .tma_box_heads = group,
                              .tma_box_tokens = ROWS / group,
                              .tma_box_keys = KEYS,
                              .compile_cost = NSAI_DKV_COST };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_backward_branches_add(spec, p);
  nsai_constant_add(spec, "kRows", ROWS);
  nsai_constant_add(spec, "kKeys", KEYS);
  nsai_constant_add(spec, "kStages", STAGES);
  nsai_constant_add(spec, "kEntries", 0);
  nsai_constant_add(spec, "kJoins", 0);
  nsai_constant_add(spec, "kLaterFirst", later_first);
  nsai_constant_add(spec, "kMinBlocks", 1);
  nsai_backward_clear_specify(p, &kernel[NSAI_Q_KV_CLEAR]);
}

/* Blocks of a KV head: backward/pipelines/dq_sums.cuh. */
static int64_t block_count(const nsai_model *m, int64_t tokens, int64_t seqs) {
  return tokens / (ROWS * m->kv_heads / m->heads) + seqs;
}

static int64_t order_words(const nsai_model *m, int64_t blocks) {
  return m->kv_heads * (1 + 2 * blocks);
}

void nsai_q_kv_workspace(const nsai_problem *p, nsai_form_sizes *out) {
  const nsai_model *m = &p->model;
  const int64_t blocks = block_count(m, p->max_tokens, p->max_seqs);
  out->bytes[NSAI_Q_KV_SUMS] = NSAI_PRODUCT(m->kv_heads, blocks, ROWS * 4, m->head_dim_qk);
  out->bytes[NSAI_Q_KV_ORDER] = NSAI_PRODUCT(order_words(m, blocks), 4);
}

nsa_status nsai_q_kv_open(const nsai_run *run, const nsai_form *form, nsai_dkv_dq *dq) {
  const nsai_model *m = &run->plan->problem.model;
  *dq = (nsai_dkv_dq){ .sums = (float *)nsai_buffer_at(run, form->buffer[NSAI_Q_KV_SUMS]),
                       .order = (int *)nsai_buffer_at(run, form->buffer[NSAI_Q_KV_ORDER]),
                       .blocks = block_count(m, run->sizes.tokens, run->sizes.num_seqs) };
  if (!nsai_run_has(run, NSA_CMP)) return NSA_OK;
  /* Without a token, too: the kernel numbers its CTAs by the order. */
  return nsai_backward_clear_enqueue(run, &form->kernel[NSAI_Q_KV_CLEAR], dq->order,
                                     order_words(m, dq->blocks));
}

/* ---- the row ---- */

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  const int32_t group = p->model.heads / p->model.kv_heads;
  nsai_q_tma_legal(p, t, reasons);
  if (group < LEAST_GROUP)
    nsai_refuse(reasons, "a KV head has %d query heads: it takes at least %d", group, LEAST_GROUP);
  nsai_q_kv_legal(p, reasons);
}

/* The compressed branch's share grows with the sequences: H200, 64/4 heads, D 128, saved outputs, burst and
 * sustained ms of the whole backward pass, beside the two rows by themselves; inputs correlated unless said:
 *
 *   tokens         this row          two rows
 *    4k            1.48 / 1.47       1.49 / 1.46
 *    8k            3.13 / 3.24       3.15 / 3.32
 *   16k            6.84 / 7.31       6.95 / 7.49
 *   16k, random    8.74 / 9.17       8.85 / 9.39
 *   24k           11.28 / 12.2      11.54 / 12.6
 *   32k           16.2 / 17.7       16.9 / 18.4
 *   64k           45.2 / 47.8       47.9 / 51.4
 *   64k, G 4      68.0 / 68.2       68.9 / 70.2
 *   128k         136.6 / 141.3     152.9 / 156.1
 *
 * Up to 32k: bench/results/h200-2026-11-28-backward-rows.txt; the longer ones were timed before both became
 * faster. Below 16k a burst gains 1 % for twice the workspace, and with recompute sustained runs lose as much. D 64 at
 * 16k was not timed. On an H100 nobody has timed this row at 16k; the memory, into which dQ is added, has 0.7 of an
 * H200's bandwidth (3.35 and 4.8 TB/s, data sheets).
 *
 * At 64k the five products take 20.3 ms, 20.0 in no order, 18.95 if dQ is not added anywhere; the four
 * products without dQ take 14.5, and what is left of dQ 10.2 of 19.0. No gain: dK issued before the wait
 * for the other warpgroup's dS (20.5), dQ brought to L2 at a tile's beginning (10.2). */
static bool sensible(const nsai_problem *p, const nsai_target *t) {
  const int64_t least_kv_len = nsai_target_is(t, NSAI_H200) ? 16384 : 32768;
  return nsai_backward_sensible_sm90(p, t) && p->max_kv_len >= least_kv_len;
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_kernel_spec *rows = &kernel[NSAI_Q_KV_ROWS];
  nsai_q_kv_specify(r, false, kernel);
  nsai_q_specify(r->problem, rows);
  if (r->problem->recompute != NSAI_RECOMPUTE_NEVER)
    nsai_q_tma_specify(r, "backward_row_stats_tma", NSAI_Q_STATISTICS_COST,
                       &rows[NSAI_Q_STATISTICS]);
  nsai_q_tma_specify(r, "backward_dq_sums_tma", NSAI_Q_COST, &rows[NSAI_Q_DQ]);
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  nsai_dkv_workspace(r, kernel, out);
  nsai_q_kv_workspace(r->problem, out);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *rows = &form->kernel[NSAI_Q_KV_ROWS];
  const nsai_span prepare = { .prepare = true };
  nsai_dkv_dq dq = { 0 };
  if (span->prepare) return nsai_q_prepare(run, rows);
  if (span->gate || span->ranks_sum) return nsai_dkv_enqueue(run, form, span);
  NSAI_TRY(nsai_dkv_enqueue(run, form, &prepare));
  if (run->sizes.tokens) NSAI_TRY(nsai_q_statistics(run, rows));
  if (nsai_run_has(run, NSA_CMP)) NSAI_TRY(nsai_q_kv_open(run, form, &dq));
  NSAI_TRY(nsai_await_keys(run));
  NSAI_TRY(nsai_dkv_heads_enqueue(run, form, &dq));
  NSAI_TRY(nsai_send_sums(run));
  const NsaiBackwardDqSums from = { .sums = dq.sums, .blocks = dq.blocks };
  return run->sizes.tokens ? nsai_q_dq(run, &rows[NSAI_Q_DQ], &from) : NSA_OK;
}

const nsai_variant nsai_backward_q_kv_sm90 = {
  .name = "backward_q_kv_sm90",
  .stage = NSAI_STAGE_BACKWARD_Q,
  .why = "compressed dQ, dK, dV in one kernel, wgmma",
  .fuses = 1u << NSAI_STAGE_BACKWARD_KV,
  .awaits_keys = true,
  .kernels = NSAI_Q_KV_KERNELS,
  .buffers = NSAI_Q_KV_BUFFERS,
  .numbers = NSAI_DKV_NUMBERS,
  .legal = legal,
  .sensible = sensible,
  .specify = specify,
  .workspace = workspace,
  .enqueue = enqueue,
};
