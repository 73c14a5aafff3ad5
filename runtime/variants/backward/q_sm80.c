/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/backward/backward.h"
#include "variants/backward/q.h"

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_q_specify(r->problem, kernel);
  nsai_q_mainloop_specify(r, false, kernel);
}

const nsai_variant nsai_backward_q_sm80 = {
  .name = "backward_q_sm80",
  .stage = NSAI_STAGE_BACKWARD_Q,
  .why = "statistics of rows and dQ, row-stationary over all branches, mma.sync",
  .kernels = NSAI_Q_KERNELS,
  .legal = nsai_backward_legal,
  .specify = specify,
  .enqueue = nsai_q_enqueue,
};
