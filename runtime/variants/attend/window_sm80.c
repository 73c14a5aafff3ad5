/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "run/params.h"
#include "variants/attend/flash_sm80.h"

enum { WINDOW, KERNELS };

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_flash_sm80_specify(r, "attend_window_sm80", &kernel[WINDOW]);
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

const nsai_variant nsai_attend_window_sm80 = {
  .name = "attend_window_sm80",
  .stage = NSAI_STAGE_ATTEND_WINDOW,
  .why = "flash attention over a sliding window, mma.sync",
  .kernels = KERNELS,
  .takes_codes = true,
  .legal = legal,
  .space = &nsai_flash_sm80_space,
  .specify = specify,
  .enqueue = enqueue,
};
