/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "plan/expand.h"
#include "variants/attend/expanded_tokens.h"
#include "variants/attend/flash_sm90.h"

enum { WINDOW, KERNELS, CODED = KERNELS, EXPAND, EXPANDED_KERNELS };

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

/* ---- the row that expands raw tokens first ---- */

static void legal_expanded(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  nsai_flash_sm90_legal(p, t, reasons);
  nsai_legal_expanded_tokens(p, NSA_WIN, reasons);
}

static void specify_expanded(const nsai_request *r, nsai_kernel_spec kernel[]) {
  const nsai_tiles tiles =
      nsai_variant_tiles(&nsai_attend_window_sm90, r->problem, r->target, NULL);
  const nsai_request over_codes = { r->problem, r->target, &tiles, r->standalone };
  const nsai_problem seen = nsai_expanded_problem(r->problem);
  const nsai_request over_elements = { &seen, r->target, r->tiles, r->standalone };
  specify(&over_codes, &kernel[CODED]);
  specify(&over_elements, &kernel[WINDOW]);
  nsai_expanded_reader_add(&kernel[WINDOW]);
  nsai_expand_tokens_specify(r->problem, NSA_WIN, &kernel[EXPAND]);
}

/* Whether the selected branch's row expands the pair that both read, in this run and before any kernel
 * reads it. */
static bool is_expanded(const nsai_run *run, const nsai_span *span) {
  const nsai_form *selected = nsai_plan_form(run->plan, NSAI_STAGE_ATTEND_SELECTED);
  return span->ahead && !run->plan->problem.model.per_branch && nsai_run_has(run, NSA_SEL) &&
         selected && selected->variant->expands_tokens;
}

static nsa_status attend_expanded(const nsai_run *run, const nsai_kernel *kernel) {
  const nsai_cache_source source = nsai_find_source(run, NSA_WIN, true);
  /* The kernel takes the first two members alone. */
  NsaiExpandedAttendTma p = { .cached = { .packed.attend = nsai_attend_params(run, NSA_WIN, kernel),
                                          .batch = source.batch,
                                          .pair = source.pair },
                              .scales = nsai_pair_scales(run, NSA_WIN) };
  NsaiAttendTma *maps = &p.cached.packed;
  NSAI_TRY(nsai_map_rows(run, kernel, "q", &maps->attend.q, run->plan->problem.model.head_dim_qk,
                         &maps->q));
  NSAI_TRY(nsai_map_source(run, &source, NSAI_WINDOW_BOX_ROWS, &maps->k, &maps->v));
  return nsai_launch_tiles(run, kernel, &p);
}

static nsa_status enqueue_expanded(const nsai_run *run, const nsai_form *form,
                                   const nsai_span *span) {
  const bool expands = nsai_run_expands(run, NSA_WIN);
  if (expands && !span->done_ahead && !is_expanded(run, span))
    NSAI_TRY(nsai_expand_tokens_enqueue(run, &form->kernel[EXPAND], NSA_WIN));
  if (span->ahead) return NSA_OK;
  if (expands) return attend_expanded(run, &form->kernel[WINDOW]);
  const NsaiAttend p = nsai_attend_params(run, NSA_WIN, &form->kernel[CODED]);
  return nsai_launch_cached_attend(run, &form->kernel[CODED], NSA_WIN, &p);
}

const nsai_variant nsai_attend_window_expanded_sm90 = {
  .name = "attend_window_expanded_sm90",
  .stage = NSAI_STAGE_ATTEND_WINDOW,
  .why = "flash attention over a sliding window, of e4m3 tokens expanded before",
  .kernels = EXPANDED_KERNELS,
  .takes_codes = true,
  .goes_ahead = true,
  .expands_tokens = true,
  .legal = legal_expanded,
  .sensible = nsai_flash_sm90_sensible,
  .space = &nsai_flash_sm90_space,
  .specify = specify_expanded,
  .enqueue = enqueue_expanded,
};
