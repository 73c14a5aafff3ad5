/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/backward/backward.h"
#include "variants/backward/q.h"

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_q_specify(r->problem, kernel);
  nsai_q_mainloop_specify(r, true, kernel);
}

const nsai_variant nsai_backward_q_sm90 = {
  .name = "backward_q_sm90",
  .stage = NSAI_STAGE_BACKWARD_Q,
  .why = "statistics of rows and dQ, row-stationary over all branches, wgmma",
  .kernels = NSAI_Q_KERNELS,
  .legal = nsai_backward_legal_sm90,
  .sensible = nsai_backward_sensible_sm90,
  .specify = specify,
  .enqueue = nsai_q_enqueue,
};
