/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/compressed.h"

void nsai_compressed_specify(const nsai_problem *p, nsai_kernel_spec *spec) {
  nsai_constant_add(spec, "kBlock", p->model.block);
  nsai_constant_add(spec, "kStride", p->model.stride);
}

void nsai_tile_order_add(const nsai_problem *p, nsai_kernel_spec *spec) {
  if (p->ranks && p->max_pieces > 1 && !nsai_problem_is_cached(p))
    nsai_constant_add(spec, "kHeadsAlternate", 1);
}

NsaiAttend nsai_compressed_params(const nsai_run *run, const nsai_kernel *kernel) {
  return (NsaiAttend){ .seq = nsai_compressed_sequences(run),
                       .q = nsai_view(&run->io->q),
                       .k = nsai_compressed_view(run, 0),
                       .v = nsai_compressed_view(run, 1),
                       .out = nsai_branch_epilogue(run, NSA_CMP),
                       .scale_log2 = nsai_run_scale_log2(run),
                       .kv_heads = run->plan->problem.model.kv_heads,
                       .tiles = (int)nsai_grid_tiles(run, kernel),
                       .early = nsai_run_is_behind(run, NSAI_STAGE_ATTEND_WINDOW) };
}

nsa_status nsai_compressed_enqueue(const nsai_run *run, const nsai_form *form,
                                   const nsai_span *span) {
  const nsai_kernel *kernel = &form->kernel[0];
  NsaiAttend p = nsai_compressed_params(run, kernel);
  (void)span;
  if (nsai_problem_is_cached(&run->plan->problem))
    return nsai_launch_cached_attend(run, kernel, NSA_CMP, &p);
  return nsai_launch_attend(run, kernel, &p, nsai_present_blocks(run));
}
