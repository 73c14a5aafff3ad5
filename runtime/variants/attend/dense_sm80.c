/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/dense.h"
#include "variants/attend/flash_sm80.h"

enum { DENSE, KERNELS };

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_flash_sm80_specify(r, "attend_dense_sm80", &kernel[DENSE]);
}

nsa_status nsai_dense_enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *kernel = &form->kernel[DENSE];
  const NsaiEpilogue out = { .o = nsai_view(&run->io->o),
                             .lse = run->io->lse[0].data,
                             .lse_token_stride = run->io->lse[0].stride[0],
                             .lse_head_stride = run->io->lse[0].stride[1] };
  const NsaiAttend p = { .seq = nsai_run_sequences(run),
                         .q = nsai_view(&run->io->q),
                         .k = nsai_view(&run->io->kv.k[0]),
                         .v = nsai_view(&run->io->kv.v[0]),
                         .out = out,
                         .scale_log2 = nsai_run_scale_log2(run),
                         .kv_heads = run->plan->problem.model.kv_heads,
                         .tiles = (int)nsai_grid_tiles(run, kernel) };
  (void)span;
  return nsai_launch_attend(run, kernel, &p, run->sizes.kv_tokens);
}

const nsai_variant nsai_dense_sm80 = {
  .name = "dense_sm80",
  .stage = NSAI_STAGE_DENSE,
  .why = "flash attention over all earlier tokens, mma.sync",
  .kernels = KERNELS,
  .legal = legal,
  .space = &nsai_flash_sm80_space,
  .specify = specify,
  .enqueue = nsai_dense_enqueue,
};
