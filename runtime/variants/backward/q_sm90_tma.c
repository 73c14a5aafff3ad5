/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * backward_q_sm90_tma: persistent kernels with a producer (backward/pipelines/dq.cuh).
 */
#include "variants/backward/backward.h"
#include "variants/backward/q.h"

#define ROWS 128
#define KEYS 64
#define MOST_STAGES 4 /* one held, one read, two on their way */
#define LEAST_STAGES 3
/* Of one head a tile has 128 tokens, whose lists have 180 blocks together at 64k tokens with correlated
 * inputs: 16 are read by each token, and half of them by one warpgroup alone. dQ took 55 ms, 61 before
 * the producer took blocks whole, and the statistics 56; backward_q_sm90 takes 51 and 48. */
#define LEAST_GROUP 2
/* Below this padded group a lane of the producer has two tokens, for lists of blocks. dQ of groups of
 * two takes 36.2 ms there, by backward_q_sm90 40.2. */
#define LANE_GROUP 4

static uint32_t shared_bytes(const nsai_model *m, int32_t stages) {
  return nsai_smem_dq_tma(stages, ROWS / nsai_padded_group(m), m->head_dim_qk, m->head_dim_v);
}

static int32_t choose_stages(const nsai_model *m, const nsai_target *t) {
  int32_t stages = MOST_STAGES;
  while (stages >= LEAST_STAGES && shared_bytes(m, stages) > t->shared_bytes) stages--;
  return stages;
}

/* dQ, scores and dU of a row are in registers together, beside the cursors of a lane's tokens. At 192 the
 * kernel spills where tokens share a warp or gates are weights. Another row then serves without a spill;
 * a plan that falls back would take smaller tiles of all kernels. */
static int32_t most_head_dim_qk(const nsai_model *m) {
  const int32_t group = nsai_padded_group(m);
  if (group < LANE_GROUP) return 128;
  return group < 16 || m->gate == NSAI_GATE_WEIGHTS ? 176 : 192;
}

void nsai_q_tma_legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  const nsai_model *m = &p->model;
  nsai_q_tma_legal_ranges(p, t, reasons);
  if (nsai_padded_group(m) < LEAST_GROUP)
    nsai_refuse(reasons, "a KV head has %d query heads: it takes at least %d",
                m->heads / m->kv_heads, LEAST_GROUP);
  if (p->selection == NSA_SELECT_RANGES && nsai_padded_group(m) < LANE_GROUP)
    nsai_refuse(reasons, "a KV head has %d query heads: with ranges it takes at least %d",
                m->heads / m->kv_heads, LANE_GROUP / 2 + 1);
}

void nsai_q_tma_legal_ranges(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  const nsai_model *m = &p->model;
  const int32_t most = most_head_dim_qk(m);
  nsai_backward_legal_sm90(p, t, reasons);
  if (m->head_dim_qk > most)
    nsai_refuse(reasons, "model.head_dim_qk is %d: of this group and gate it takes at most %d",
                m->head_dim_qk, most);
  if (choose_stages(m, t) < LEAST_STAGES)
    nsai_refuse(reasons, "%d pipeline stages need %u bytes of shared memory, a CTA has %u here",
                LEAST_STAGES, shared_bytes(m, LEAST_STAGES), t->shared_bytes);
}

void nsai_q_tma_specify(const nsai_request *r, const char *entry, int32_t cost,
                        nsai_kernel_spec *spec) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  int32_t stages = choose_stages(m, r->target), group = nsai_padded_group(m);
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = m->dtype,
                              .threads = NSAI_BACKWARD_TMA_THREADS,
                              .shared_bytes = shared_bytes(m, stages),
                              .tile_tokens = ROWS / group,
                              .ctas_per_sm = 1,
                              .tma_box_heads = group,
                              .tma_box_tokens = ROWS / 2 / group,
                              .tma_box_keys = KEYS,
                              .compile_cost = cost };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_backward_branches_add(spec, p);
  nsai_backward_lists_add(spec, p);
  nsai_constant_add(spec, "kKeys", KEYS);
  nsai_constant_add(spec, "kStages", stages);
  nsai_constant_add(spec, "kMinBlocks", 1);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_q_specify(r->problem, kernel);
  if (r->problem->recompute != NSAI_RECOMPUTE_NEVER)
    nsai_q_tma_specify(r, "backward_row_stats_tma", NSAI_Q_STATISTICS_COST,
                       &kernel[NSAI_Q_STATISTICS]);
  nsai_q_tma_specify(r, "backward_dq_tma", NSAI_Q_COST, &kernel[NSAI_Q_DQ]);
}

const nsai_variant nsai_backward_q_sm90_tma = {
  .name = "backward_q_sm90_tma",
  .stage = NSAI_STAGE_BACKWARD_Q,
  .why = "statistics of rows and dQ, row-stationary over all branches, wgmma and tensor maps",
  .kernels = NSAI_Q_KERNELS,
  .legal = nsai_q_tma_legal,
  .sensible = nsai_backward_sensible_sm90,
  .specify = specify,
  .enqueue = nsai_q_enqueue,
};
