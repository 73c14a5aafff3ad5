/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/dense.h"
#include "variants/attend/flash_sm90.h"

enum { DENSE, KERNELS };

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  nsai_flash_sm90_legal(p, t, reasons);
  nsai_legal_packed(p, reasons);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_flash_sm90_specify(r, "attend_dense_sm90", &kernel[DENSE]);
  nsai_source_add(&kernel[DENSE], r->problem, 1);
}

const nsai_variant nsai_dense_sm90 = {
  .name = "dense_sm90",
  .stage = NSAI_STAGE_DENSE,
  .why = "flash attention over all earlier tokens, wgmma and tensor maps",
  .kernels = KERNELS,
  .legal = legal,
  .sensible = nsai_flash_sm90_sensible,
  .space = &nsai_flash_sm90_space,
  .specify = specify,
  .enqueue = nsai_dense_enqueue,
};
