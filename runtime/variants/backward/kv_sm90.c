/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * backward_kv_sm90. Each branch has a kernel with tensor maps where that fits, else one without, by
 * wgmma or, of small blocks and wide heads, by mma.sync.
 */
#include "variants/backward/backward.h"
#include "variants/backward/kv.h"

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_dkv_specify(r, true, kernel);
}

const nsai_variant nsai_backward_kv_sm90 = {
  .name = "backward_kv_sm90",
  .stage = NSAI_STAGE_BACKWARD_KV,
  .why = "dK and dV, KV-stationary over windows and inverted lists, wgmma",
  .kernels = NSAI_DKV_KERNELS,
  .buffers = NSAI_DKV_BUFFERS,
  .numbers = NSAI_DKV_NUMBERS,
  .legal = nsai_backward_legal_sm90,
  .sensible = nsai_backward_sensible_sm90,
  .specify = specify,
  .workspace = nsai_dkv_workspace,
  .enqueue = nsai_dkv_enqueue,
};
