/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * backward_q_kv_slots_sm90: backward_q_kv_sm90 for small groups, with the selected branch's dK, dV and dQ
 * in one kernel, too (backward/dkv_dq_selected.cuh). What each block adds to dQ of a row waits in the
 * workspace for a group of KV heads, and is added up before the next group.
 */
#include "base/math.h"
#include "params/smem.h"
#include "variants/backward/backward.h"
#include "variants/backward/q_kv.h"

enum {
  ADD_SLOTS = NSAI_Q_KV_KERNELS, /* backward_dq_slots */
  KERNELS
};

enum {
  SLOTS = NSAI_Q_KV_BUFFERS, /* f32, then fp16: the steps and rows of NsaiBackwardDkvSlots */
  BUFFERS
};

#define MOST_GROUP 4
#define KEYS NSAI_DKV_TILE_KEYS
#define ROWS 64
#define STAGES 2
#define LIST_GROUP 2 /* from here on backward_row_stats_tma walks lists */
#define ADD_THREADS 256

static uint32_t shared_bytes(const nsai_model *m) {
  return nsai_smem_dkv_slots(STAGES, NSAI_DKV_ITEM_TOKENS, m->head_dim_qk, m->head_dim_v);
}

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  const nsai_model *m = &p->model;
  const int32_t group = m->heads / m->kv_heads;
  nsai_q_tma_legal_ranges(p, t, reasons);
  nsai_q_kv_legal(p, reasons);
  if (group > MOST_GROUP)
    nsai_refuse(reasons, "a KV head has %d query heads: it takes at most %d", group, MOST_GROUP);
  if (!m->select_count) nsai_refuse(reasons, "the model has no selected branch");
  if (p->selection == NSA_SELECT_RANGES)
    nsai_refuse(reasons, "the caller brings ranges: only blocks have lists of tokens");
  if (m->select_count && m->select_block > KEYS)
    nsai_refuse(reasons, "model.select.block is %d: it takes at most %d", m->select_block, KEYS);
  nsai_fit_cta(t, shared_bytes(m), reasons);
}

/* What a tile of rows multiplies in vain grows with the tokens of the tile, and with the sequence: H200,
 * 64 heads, D 128, saved outputs, correlated inputs, ms of the whole backward pass by CUDA events in
 * PyTorch, beside the rows that served before (backward_q_sm90, backward_q_sm90_tma, of four heads
 * backward_q_kv_sm90):
 *
 *   tokens        one head        two heads       four heads
 *   4k            3.20   3.38
 *   8k            6.62   7.42     5.61   5.46
 *   16k          14.06  16.59    11.66  12.36
 *   32k          29.5   39.8
 *   64k          70.2  101.2     61.3   76.2     57.1   61.2
 *   64k, random  71.5  212.5
 *
 * Of one head and 64k tokens backward_dkv_dq_selected takes 15.8 ms, 13.5 if dQ is not stored, and 15.4
 * if all rows lie in L2; backward_dkv_selected takes 12.0 and makes no dQ. backward_dq_slots takes 6.8.
 * No gain: stores of dQ by evict_first, and copies of rows by evict_last, too (15.8); dU issued before
 * the copies of the next rows (16.2). The compressed branch takes 23.7; in the order of the keys, runs of
 * 64 stages and 4 heads at a time it took 27.7. */
static int64_t least_kv_len(int32_t group) {
  return group == 1 ? 4096 : group == 2 ? 16384 : 65536;
}

/* Rows that the entries of a KV head have, at most. */
static int64_t slot_rows(const nsai_problem *p) {
  const nsai_model *m = &p->model;
  return NSAI_PRODUCT(p->max_tokens, m->select_count, m->heads / m->kv_heads);
}

/* Bytes of dQ of a KV head's entries, which are never cut, up to which the memory is worth the time. */
#define MOST_SLOT_BYTES ((int64_t)4 << 30)

static bool sensible(const nsai_problem *p, const nsai_target *t) {
  const nsai_model *m = &p->model;
  return nsai_backward_sensible_sm90(p, t) && m->select_block == KEYS &&
         p->max_kv_len >= least_kv_len(m->heads / m->kv_heads) &&
         NSAI_PRODUCT(slot_rows(p), 2 * m->head_dim_qk + 4) <= MOST_SLOT_BYTES;
}

static void specify_selected(const nsai_request *r, nsai_kernel_spec *spec) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  *spec = (nsai_kernel_spec){ .entry = "backward_dkv_dq_selected",
                              .dtype = m->dtype,
                              .threads = 128,
                              .shared_bytes = shared_bytes(m),
                              .tile_tokens = NSAI_DKV_ITEM_TOKENS,
                              .compile_cost = NSAI_DKV_COST };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_backward_branches_add(spec, p);
  nsai_constant_add(spec, "kWgmma", 1);
  nsai_constant_add(spec, "kKeys", KEYS);
  nsai_constant_add(spec, "kRows", ROWS);
  nsai_constant_add(spec, "kWarps", 4);
  nsai_constant_add(spec, "kStages", STAGES);
  nsai_constant_add(spec, "kSplit", 0);
  nsai_constant_add(spec, "kEntries", NSAI_DKV_ITEM_TOKENS);
  nsai_constant_add(spec, "kMinBlocks", nsai_backward_min_ctas(r->target));
}

/* The last kernel of dQ walks the window alone. */
static void specify_rows(const nsai_request *r, nsai_kernel_spec rows[NSAI_Q_KERNELS]) {
  nsai_problem window = *r->problem;
  nsai_request without_lists = *r;
  without_lists.problem = &window;
  window.model.select_count = 0;
  nsai_q_specify(r->problem, rows);
  if (nsai_padded_group(&r->problem->model) < LIST_GROUP)
    nsai_q_mainloop_specify(r, true, rows);
  else if (r->problem->recompute != NSAI_RECOMPUTE_NEVER)
    nsai_q_tma_specify(r, "backward_row_stats_tma", NSAI_Q_STATISTICS_COST,
                       &rows[NSAI_Q_STATISTICS]);
  nsai_q_tma_specify(&without_lists, "backward_dq_sums_tma", NSAI_Q_COST, &rows[NSAI_Q_DQ]);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  nsai_kernel_spec *add = &kernel[ADD_SLOTS];
  nsai_q_kv_specify(r, true, kernel);
  specify_selected(r, &kernel[NSAI_DKV_SELECTED]);
  specify_rows(r, &kernel[NSAI_Q_KV_ROWS]);
  *add = (nsai_kernel_spec){ .entry = "backward_dq_slots",
                             .dtype = m->dtype,
                             .threads = ADD_THREADS,
                             .tile_tokens = NSAI_Q_KV_BLOCK_ROWS * m->kv_heads / m->heads,
                             .compile_cost = 100 };
  nsai_heads_add(add, p);
  nsai_backward_branches_add(add, p);
  nsai_constant_add(add, "kMinBlocks", 2);
}

/* dQ of the entries of all KV heads would take 17 GB at 64k tokens, 64 heads and D 128. In pieces of this
 * many bytes the launches last milliseconds. */
#define SLOT_CHUNK_BYTES ((int64_t)1 << 30)

/* Bytes of the steps of `heads` KV heads. */
static int64_t step_bytes(const nsai_problem *p, int64_t heads) {
  return nsai_round_up(NSAI_PRODUCT(heads, slot_rows(p), 4), 256);
}

static void workspace(const nsai_request *r, const nsai_kernel_spec kernel[],
                      nsai_form_sizes *out) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  const int64_t head = nsai_larger(NSAI_PRODUCT(slot_rows(p), m->head_dim_qk, 2), 1);
  const int64_t most = nsai_larger(SLOT_CHUNK_BYTES / head, 1);
  nsai_dkv_workspace_ordered(r, kernel, nsai_smaller(most, m->kv_heads), out);
  nsai_q_kv_workspace(p, out);
  const int64_t heads = out->number[NSAI_DKV_HEADS];
  out->bytes[SLOTS] = nsai_size_add(step_bytes(p, heads), NSAI_PRODUCT(heads, head));
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *rows = &form->kernel[NSAI_Q_KV_ROWS];
  const bool selected = run->sizes.tokens && nsai_run_has(run, NSA_SEL);
  nsai_dkv_dq dq = { 0 };
  if (span->prepare) return nsai_q_prepare(run, rows);
  if (span->gate || span->ranks_sum) return nsai_dkv_enqueue(run, form, span);
  NSAI_TRY(nsai_dkv_lists_enqueue(run, form, selected && nsai_present(&run->grads->d_q)));
  if (run->sizes.tokens) NSAI_TRY(nsai_q_statistics(run, rows));
  if (selected || nsai_run_has(run, NSA_CMP)) NSAI_TRY(nsai_q_kv_open(run, form, &dq));
  if (selected && nsai_present(&run->grads->d_q)) {
    dq.slot_steps = (float *)nsai_buffer_at(run, form->buffer[SLOTS]);
    dq.slots =
        (char *)dq.slot_steps + step_bytes(&run->plan->problem, form->number[NSAI_DKV_HEADS]);
  }
  dq.add_slots = &form->kernel[ADD_SLOTS];
  NSAI_TRY(nsai_await_keys(run));
  NSAI_TRY(nsai_dkv_heads_enqueue(run, form, &dq));
  NSAI_TRY(nsai_send_sums(run));
  const NsaiBackwardDqSums from = { .sums = dq.sums, .blocks = dq.blocks, .all = selected };
  return run->sizes.tokens ? nsai_q_dq(run, &rows[NSAI_Q_DQ], &from) : NSA_OK;
}

const nsai_variant nsai_backward_q_kv_slots_sm90 = {
  .name = "backward_q_kv_slots_sm90",
  .stage = NSAI_STAGE_BACKWARD_Q,
  .why = "compressed and selected dQ, dK, dV in one kernel each, wgmma: small groups",
  .fuses = 1u << NSAI_STAGE_BACKWARD_KV,
  .awaits_keys = true,
  .kernels = KERNELS,
  .buffers = BUFFERS,
  .numbers = NSAI_DKV_NUMBERS,
  .legal = legal,
  .sensible = sensible,
  .specify = specify,
  .workspace = workspace,
  .enqueue = enqueue,
};
