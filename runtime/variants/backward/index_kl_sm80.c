/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/backward/index_kl.h"

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_index_kl_specify(r, false, kernel);
}

const nsai_variant nsai_index_kl_sm80 = {
  .name = "index_kl_sm80",
  .stage = NSAI_STAGE_INDEX_KL,
  .why = "loss and gradients of an index, KV-stationary over inverted lists, mma.sync",
  .kernels = NSAI_KL_KERNELS,
  .buffers = NSAI_KL_BUFFERS,
  .numbers = NSAI_KL_NUMBERS,
  .legal = nsai_index_kl_legal,
  .specify = specify,
  .workspace = nsai_index_kl_workspace,
  .enqueue = nsai_index_kl_enqueue,
  .describe = nsai_index_kl_describe,
};
