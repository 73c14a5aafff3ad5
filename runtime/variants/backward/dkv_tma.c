/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernels over keys through tensor maps (backward/pipelines/dkv.cuh, dkv_items.cuh).
 */
#include "base/math.h"
#include "variants/backward/backward.h"
#include "variants/backward/kv.h"

#define LEAST_STAGES 3
#define MOST_HEAD_DIM 192
#define MOST_COLUMNS 320 /* of dK and dV together, padded */

bool nsai_dkv_may_join(const nsai_model *m) {
  return !m->per_branch && m->window && m->select_count > 0 && m->select_block % 64 == 0 &&
         m->gate != NSAI_GATE_WEIGHTS && m->heads / m->kv_heads >= 8;
}

/* Rows of a stage, and the most stages: one held, one read, two on their way; of half as many rows
 * one more is held and read. Wide dK and dV leave registers for the scores of 32 rows. */
static bool is_wide(const nsai_model *m) { return m->head_dim_qk > 128 || m->head_dim_v > 128; }
static int32_t stage_rows(const nsai_model *m) { return is_wide(m) ? 32 : 64; }
static int32_t most_stages(const nsai_model *m) { return is_wide(m) ? 6 : 4; }

static uint32_t shared_bytes(const nsai_model *m, const nsai_dkv_use *use, int32_t stages) {
  const int32_t rows = stage_rows(m), tokens = rows * m->kv_heads / m->heads;
  const int32_t dk = m->head_dim_qk, dv = m->head_dim_v;
  return use->persistent ? nsai_smem_dkv_items(use->keys, rows, stages, use->joins, tokens, dk, dv)
                         : nsai_smem_dkv_tma(use->keys, rows, stages, 0, tokens, dk, dv);
}

/* Warpgroups that share keys need an even number: backward/pipelines/dkv_items.cuh. */
static int32_t stage_step(const nsai_dkv_use *use) {
  return use->keys == NSAI_DKV_TILE_KEYS ? 2 : 1;
}

static int32_t least_stages(const nsai_dkv_use *use) {
  return nsai_ceil_div(LEAST_STAGES, stage_step(use)) * stage_step(use);
}

static int32_t choose_stages(const nsai_model *m, const nsai_target *t, const nsai_dkv_use *use) {
  const int32_t least = least_stages(use);
  int32_t stages = most_stages(m);
  while (stages >= least && shared_bytes(m, use, stages) > t->shared_bytes)
    stages -= stage_step(use);
  return stages;
}

/* The least group of a list's tokens: each token is a box, and a stage must have few of them. At 64k tokens
 * and D 128 a kernel with boxes, of a CTA for each tile, took 7.6, 10.8 and 20.3 ms for groups of 16, 8 and 4;
 * one without boxes took 7.9, 7.9 and 9.6. */
static int32_t least_group(const nsai_model *m) { return is_wide(m) ? 8 : 16; }

/* A stage holds whole tokens. dK, dV and scores of 64 keys fit into a warpgroup's registers. */
bool nsai_dkv_tma_fits(const nsai_request *r, const nsai_dkv_use *use) {
  const nsai_model *m = &r->problem->model;
  const int32_t group = m->heads / m->kv_heads, least = use->entries ? least_group(m) : 1;
  const int32_t columns = nsai_padded_dim(m->head_dim_qk) + nsai_padded_dim(m->head_dim_v);
  if (r->target->register_fallback || group != nsai_padded_group(m)) return false;
  if (group < least || group > stage_rows(m)) return false;
  if (m->head_dim_qk > MOST_HEAD_DIM || m->head_dim_v > MOST_HEAD_DIM || columns > MOST_COLUMNS)
    return false;
  return choose_stages(m, r->target, use) >= least_stages(use);
}

void nsai_dkv_tma_specify(const nsai_request *r, const nsai_dkv_use *use, nsai_kernel_spec *spec) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  int32_t stages = choose_stages(m, r->target, use), group = m->heads / m->kv_heads;
  *spec = (nsai_kernel_spec){ .entry = use->entry,
                              .dtype = m->dtype,
                              .threads = NSAI_BACKWARD_TMA_THREADS,
                              .shared_bytes = shared_bytes(m, use, stages),
                              .tile_tokens = use->entries,
                              .ctas_per_sm = use->persistent,
                              .tma_box_heads = group,
                              .tma_box_tokens = use->entries ? 1 : stage_rows(m) / group,
                              .tma_box_keys = use->keys,
                              .compile_cost = NSAI_DKV_COST };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_backward_branches_add(spec, p);
  nsai_constant_add(spec, "kRows", stage_rows(m));
  nsai_constant_add(spec, "kKeys", use->keys);
  nsai_constant_add(spec, "kStages", stages);
  nsai_constant_add(spec, "kEntries", use->entries);
  nsai_constant_add(spec, "kJoins", use->joins);
  nsai_constant_add(spec, "kMinBlocks", 1);
}
