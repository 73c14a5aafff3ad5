/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/compressed.h"
#include "variants/attend/flash_sm80.h"

enum { COMPRESSED, KERNELS };

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_flash_sm80_specify(r, "attend_compressed_sm80", &kernel[COMPRESSED]);
  nsai_source_add(&kernel[COMPRESSED], r->problem, r->problem->model.stride);
  nsai_codes_add(&kernel[COMPRESSED], r->problem->cmp_dtype);
  nsai_compressed_specify(r->problem, &kernel[COMPRESSED]);
}

const nsai_variant nsai_attend_compressed_sm80 = {
  .name = "attend_compressed_sm80",
  .stage = NSAI_STAGE_ATTEND_COMPRESSED,
  .why = "flash attention over compressed tokens, mma.sync",
  .kernels = KERNELS,
  .takes_codes = true,
  .legal = legal,
  .space = &nsai_flash_sm80_space,
  .specify = specify,
  .enqueue = nsai_compressed_enqueue,
};
