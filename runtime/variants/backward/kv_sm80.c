/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/backward/backward.h"
#include "variants/backward/kv.h"

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_dkv_specify(r, false, kernel);
}

const nsai_variant nsai_backward_kv_sm80 = {
  .name = "backward_kv_sm80",
  .stage = NSAI_STAGE_BACKWARD_KV,
  .why = "dK and dV, KV-stationary over windows and inverted lists, mma.sync",
  .kernels = NSAI_DKV_KERNELS,
  .buffers = NSAI_DKV_BUFFERS,
  .numbers = NSAI_DKV_NUMBERS,
  .legal = nsai_backward_legal,
  .specify = specify,
  .workspace = nsai_dkv_workspace,
  .enqueue = nsai_dkv_enqueue,
};
