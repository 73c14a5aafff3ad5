/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/compressed.h"
#include "variants/attend/flash_sm90.h"

enum { COMPRESSED, KERNELS };

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_flash_sm90_specify(r, "attend_compressed_sm90", &kernel[COMPRESSED]);
  nsai_source_add(&kernel[COMPRESSED], r->problem, r->problem->model.stride);
  nsai_codes_add(&kernel[COMPRESSED], r->problem->cmp_dtype);
  nsai_compressed_specify(r->problem, &kernel[COMPRESSED]);
}

const nsai_variant nsai_attend_compressed_sm90 = {
  .name = "attend_compressed_sm90",
  .stage = NSAI_STAGE_ATTEND_COMPRESSED,
  .why = "flash attention over compressed tokens, wgmma and tensor maps",
  .kernels = KERNELS,
  .takes_codes = true,
  .legal = nsai_flash_sm90_legal,
  .sensible = nsai_flash_sm90_sensible,
  .space = &nsai_flash_sm90_space,
  .specify = specify,
  .enqueue = nsai_compressed_enqueue,
};
