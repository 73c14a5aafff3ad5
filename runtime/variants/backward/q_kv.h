/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the rows of both backward stages share: the compressed branch's dK, dV and dQ in one kernel
 * (backward/pipelines/dkv_dq.cuh), and dQ of that branch, which waits in the workspace for all KV
 * heads: T * Hq * Dk * 4 bytes, 2.1 GB of 64k tokens, 64 heads and D 128.
 */
#ifndef NSAI_VARIANTS_BACKWARD_Q_KV_H
#define NSAI_VARIANTS_BACKWARD_Q_KV_H

#include "variants/backward/kv.h"
#include "variants/backward/q.h"

enum {
  NSAI_Q_KV_ROWS = NSAI_DKV_KERNELS, /* NSAI_Q_KERNELS */
  NSAI_Q_KV_CLEAR = NSAI_Q_KV_ROWS + NSAI_Q_KERNELS,
  NSAI_Q_KV_KERNELS
};

enum {
  NSAI_Q_KV_SUMS = NSAI_DKV_BUFFERS, /* f32: NsaiBackwardDkvDq */
  NSAI_Q_KV_ORDER,                   /* i32: likewise */
  NSAI_Q_KV_BUFFERS
};

#define NSAI_Q_KV_BLOCK_ROWS 64

/* What forbids the compressed branch's kernel. */
void nsai_q_kv_legal(const nsai_problem *problem, nsai_reasons *reasons);

/* It, and backward_clear; all kernels over keys are specified. `later_first`: its kLaterFirst. */
void nsai_q_kv_specify(const nsai_request *request, bool later_first,
                       nsai_kernel_spec kernel[NSAI_Q_KV_KERNELS]);

/* Bytes of NSAI_Q_KV_SUMS and _ORDER. */
void nsai_q_kv_workspace(const nsai_problem *problem, nsai_form_sizes *out);

/* Where the compressed branch's dQ goes, with cleared counters if the branch runs. */
nsa_status nsai_q_kv_open(const nsai_run *run, const nsai_form *form, nsai_dkv_dq *dq);

#endif /* NSAI_VARIANTS_BACKWARD_Q_KV_H */
