/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "run/params.h"
#include "variants/attend/flash_sm90.h"

enum { WINDOW, KERNELS };

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_flash_sm90_specify(r, "attend_window_sm90", &kernel[WINDOW]);
  nsai_window_source_add(&kernel[WINDOW], r->problem);
  nsai_codes_add(&kernel[WINDOW], r->problem->kv_dtype);
  nsai_constant_add(&kernel[WINDOW], "kWindow", r->problem->model.window);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *kernel = &form->kernel[WINDOW];
  NsaiAttend p = nsai_attend_params(run, NSA_WIN, kernel);
  (void)span;
  if (nsai_problem_is_cached(&run->plan->problem))
    return nsai_launch_cached_attend(run, kernel, NSA_WIN, &p);
  p.early = nsai_run_is_behind(run, NSAI_STAGE_COMPRESS);
  return nsai_launch_attend(run, kernel, &p, run->sizes.kv_tokens);
}

const nsai_variant nsai_attend_window_sm90 = {
  .name = "attend_window_sm90",
  .stage = NSAI_STAGE_ATTEND_WINDOW,
  .why = "flash attention over a sliding window, wgmma and tensor maps",
  .kernels = KERNELS,
  .takes_codes = true,
  .legal = nsai_flash_sm90_legal,
  .sensible = nsai_flash_sm90_sensible,
  .space = &nsai_flash_sm90_space,
  .specify = specify,
  .enqueue = enqueue,
};
