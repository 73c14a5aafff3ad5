/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the rows of backward_q share: kernels and launches. Each row specifies its own kernels over
 * tiles of query rows.
 */
#ifndef NSAI_VARIANTS_BACKWARD_Q_H
#define NSAI_VARIANTS_BACKWARD_Q_H

#include "params/backward.h"
#include "plan/spec.h"
#include "run/run.h"

enum {
  NSAI_Q_ROUND,      /* an f32 d_o to the model's dtype */
  NSAI_Q_SAVED,      /* statistics of the branches whose o_branch and lse the caller has kept */
  NSAI_Q_STATISTICS, /* those of the other branches */
  NSAI_Q_DQ,
  NSAI_Q_KERNELS
};

#define NSAI_Q_COST 750            /* compile_cost of a kernel for dQ */
#define NSAI_Q_STATISTICS_COST 500 /* and of one for the statistics */

/* The kernels that all rows have: the rounding, and the saved statistics. */
void nsai_q_specify(const nsai_problem *problem, nsai_kernel_spec kernel[NSAI_Q_KERNELS]);

/* Statistics and dQ by backward/dq_mainloop.cuh. */
void nsai_q_mainloop_specify(const nsai_request *request, bool wgmma,
                             nsai_kernel_spec kernel[NSAI_Q_KERNELS]);

/* A kernel of backward/pipelines/dq.cuh, and what forbids it. */
void nsai_q_tma_legal(const nsai_problem *problem, const nsai_target *target,
                      nsai_reasons *reasons);
/* The same of a kernel that walks no lists. */
void nsai_q_tma_legal_ranges(const nsai_problem *problem, const nsai_target *target,
                             nsai_reasons *reasons);
void nsai_q_tma_specify(const nsai_request *request, const char *entry, int32_t cost,
                        nsai_kernel_spec *spec);

/* The parts of the launches. `from`: of a kernel that takes sums, what it begins with; NULL: dQ of all
 * branches is made here. */
nsa_status nsai_q_prepare(const nsai_run *run, const nsai_kernel kernel[NSAI_Q_KERNELS]);
nsa_status nsai_q_statistics(const nsai_run *run, const nsai_kernel kernel[NSAI_Q_KERNELS]);
nsa_status nsai_q_dq(const nsai_run *run, const nsai_kernel *kernel,
                     const NsaiBackwardDqSums *from);
nsa_status nsai_q_enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span);

#endif /* NSAI_VARIANTS_BACKWARD_Q_H */
