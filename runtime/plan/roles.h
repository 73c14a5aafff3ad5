/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Kernels of the rows that do not own theirs yet.
 */
#ifndef NSAI_PLAN_ROLES_H
#define NSAI_PLAN_ROLES_H

#include "model/model.h"

/* Kernels a plan can hold, by what they do in it. */
typedef enum nsai_role {
  NSAI_KERNEL_COMPRESS,
  NSAI_KERNEL_GATHER_K,
  NSAI_KERNEL_GATHER_V,
  NSAI_KERNEL_PHI_ACTIVATION,
  NSAI_KERNEL_PHI_BIAS,
  NSAI_KERNEL_GATE_ACTIVATION,
  NSAI_KERNEL_GATE_BIAS,
  NSAI_KERNEL_ATTEND_COMPRESSED,
  NSAI_KERNEL_IMPORTANCE,
  NSAI_KERNEL_PROBE,
  NSAI_KERNEL_SELECT,
  NSAI_KERNEL_SORT,
  NSAI_KERNEL_INVERT_COUNT,
  NSAI_KERNEL_INVERT_SCAN,
  NSAI_KERNEL_INVERT_FILL,
  NSAI_KERNEL_ATTEND_SELECTED,
  NSAI_KERNEL_COMBINE,
  NSAI_KERNEL_ATTEND_WINDOW,
  NSAI_KERNEL_DENSE,
  NSAI_KERNEL_SOFTMAX,
  NSAI_KERNEL_KV_APPEND,
  NSAI_KERNEL_SCATTER,
  NSAI_KERNEL_DECODE_SCAN,
  NSAI_KERNEL_DECODE_SELECT,
  NSAI_KERNEL_DECODE_ATTEND,
  NSAI_KERNEL_DECODE_COMBINE,
  NSAI_KERNEL_DECODE_TWO_PER_SM,
  NSAI_KERNEL_DECODE_ONE_PER_SM,
  NSAI_KERNEL_DECODE_CLUSTER_2,
  NSAI_KERNEL_DECODE_CLUSTER_4,
  NSAI_KERNEL_BACKWARD_ROUND,
  NSAI_KERNEL_DECODE_CLUSTER,
  NSAI_KERNEL_BACKWARD_SAVED,
  NSAI_KERNEL_BACKWARD_STATISTICS,
  NSAI_KERNEL_BACKWARD_Q,
  NSAI_KERNEL_BACKWARD_COMPRESSED,
  NSAI_KERNEL_BACKWARD_SELECTED,
  NSAI_KERNEL_BACKWARD_WINDOW,
  NSAI_KERNEL_BACKWARD_SUM,
  NSAI_KERNEL_PHI_OUT_BACK,
  NSAI_KERNEL_PHI_HIDDEN_BACK,
  NSAI_KERNEL_GATE_OUT_BACK,
  NSAI_KERNEL_GATE_HIDDEN_BACK,
  NSAI_KERNEL_COLUMN_SUMS,
  NSAI_KERNEL_STORE_GRADIENT,
  NSAI_KERNEL_PRESENT_ROWS,
  NSAI_ROLES
} nsai_role;

/* Blocks whose entries one block of threads counts; beyond, others read the lists again: 73,000 tokens
 * of 64. Four blocks of 16 warps fit on a multiprocessor. */
#define NSAI_KV_COUNTERS 1152

/* Most tokens whose lists are inverted at once: kEntryTokenBits of data/inverted_lists.cuh. */
#define NSAI_KV_MOST_TOKENS ((int64_t)1 << 24)

/* Whether dK and dV of a tile of keys are made by a block of threads each. 16 keys of a warp have (Dk +
 * Dv) / 2 floats in every thread; up to 128 of them fit beside the scores. */
static inline bool nsai_backward_is_split(const nsai_model *m) {
  return m->head_dim_qk + m->head_dim_v > 256;
}

/* Whether backward_dkv_window_tma may do the selected branch within the window: backward/pipelines/dkv.cuh. */
static inline bool nsai_backward_joins(const nsai_model *m) {
  return !m->per_branch && m->window && m->select_count > 0 && m->select_block % 64 == 0 &&
         m->gate != NSAI_GATE_WEIGHTS && m->heads / m->kv_heads >= 8;
}

/* Rows of k and v that a thread of backward_dkv_sum adds up: as many as follow each other under the same
 * compressed blocks, at most 8, whose sums it holds. */
static inline int32_t nsai_sum_run(const nsai_model *m) { return m->stride < 8 ? m->stride : 8; }

#endif /* NSAI_PLAN_ROLES_H */
