/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * attend_selected_dense_sm90 and attend_selected_dense_sm80: the selected branch while it is
 * ordinary causal attention, because every block is chosen.
 */
#include "run/params.h"
#include "variants/attend/flash_sm80.h"
#include "variants/attend/flash_sm90.h"

enum { DENSE, KERNELS };

/* Blocks may be left out. */
static void refuse_lists(const nsai_problem *p, nsai_reasons *reasons) {
  if (nsai_problem_is_cached(p))
    nsai_legal_packed(p, reasons);
  else if (p->selection != NSA_SELECT_TOPN)
    nsai_refuse(reasons, "the caller brings the selection: it may leave blocks out");
  else if (!nsai_problem_selects_all(p))
    nsai_refuse(reasons,
                "max_kv_len %lld is beyond %lld tokens (thresholds.select_dense_below, at most "
                "count * block): "
                "blocks are left out",
                (long long)p->max_kv_len, (long long)p->select_dense_below);
}

static void legal_sm80(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  nsai_legal_common(p, reasons);
  refuse_lists(p, reasons);
}

static void legal_sm90(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  nsai_flash_sm90_legal(p, t, reasons);
  refuse_lists(p, reasons);
}

static void specify_sm80(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_flash_sm80_specify(r, "attend_dense_sm80", &kernel[DENSE]);
}

static void specify_sm90(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_flash_sm90_specify(r, "attend_dense_sm90", &kernel[DENSE]);
  nsai_source_add(&kernel[DENSE], r->problem, 1);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *kernel = &form->kernel[DENSE];
  const NsaiAttend p = nsai_attend_params(run, NSA_SEL, kernel);
  (void)span;
  return nsai_launch_attend(run, kernel, &p, run->sizes.kv_tokens);
}

const nsai_variant nsai_attend_selected_dense_sm90 = {
  .name = "attend_selected_dense_sm90",
  .stage = NSAI_STAGE_ATTEND_SELECTED,
  .why = "dense causal attention, exact while every block is chosen, wgmma",
  .kernels = KERNELS,
  .reads_no_lists = true,
  .legal = legal_sm90,
  .sensible = nsai_flash_sm90_sensible,
  .space = &nsai_flash_sm90_space,
  .specify = specify_sm90,
  .enqueue = enqueue,
};

const nsai_variant nsai_attend_selected_dense_sm80 = {
  .name = "attend_selected_dense_sm80",
  .stage = NSAI_STAGE_ATTEND_SELECTED,
  .why = "dense causal attention, exact while every block is chosen",
  .kernels = KERNELS,
  .reads_no_lists = true,
  .legal = legal_sm80,
  .space = &nsai_flash_sm80_space,
  .specify = specify_sm80,
  .enqueue = enqueue,
};
