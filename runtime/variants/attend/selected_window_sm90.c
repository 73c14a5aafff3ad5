/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * attend_selected_window_sm90: the selected branch and the window in one pass.
 */
#include "variants/attend/selected_sm90.h"

#define MOST_WINDOW_DIM_V 136 /* found by compiling (NVRTC 13.0) */

static void legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  nsai_selected_legal(p, t, reasons, &nsai_selected_sm90_products);
  if (p->model.head_dim_v > MOST_WINDOW_DIM_V)
    nsai_refuse(reasons,
                "head_dim_v %d: O beside the window's scores and P takes more registers than there "
                "are, at most %d is taken",
                p->model.head_dim_v, MOST_WINDOW_DIM_V);
}

/* Where lists are alike, and for short sequences, of which most lists are. (H200, forwards, G 16,
 * by two kernels / by this: correlated lists 4k 0.67 / 0.63 ms, 8k 1.28 / 1.23, 64k 17.5 / 17.3;
 * random ones 4k 0.80 / 0.74, 8k 1.60 / 1.61, 16k 3.67 / 3.80.) */
static bool sensible(const nsai_problem *p, const nsai_target *t) {
  return nsai_selected_sm90_sensible(p, t) ||
         (p->max_kv_len <= 6144 && nsai_padded_group(&p->model) >= 16 &&
          t->register_fallback < NSAI_SMALLEST_TILES);
}

static void specify(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_selected_specify(r, "attend_selected_window_sm90", r->problem->model.window,
                        &nsai_selected_sm90_products, kernel);
  if (nsai_problem_is_cached(r->problem))
    nsai_constant_add(&kernel[NSAI_SELECTED], "kWindowPageRows", nsai_window_page_rows(r->problem));
}

/* `expanded`: over the cache's tokens in the workspace. */
static nsa_status attend_cached(const nsai_run *run, const nsai_form *form,
                                const nsai_kernel *kernel, const NsaiSelectedWindow *p,
                                bool expanded) {
  /* A kernel that applies no scales takes the first member alone. */
  NsaiCodedSelectedWindow coded = { .cached.packed = *p };
  NsaiCachedSelectedWindow *cached = &coded.cached;
  NsaiSelectedWindow *to = &cached->packed;
  if (nsai_run_has(run, NSA_WIN)) {
    const nsai_cache_source source = nsai_find_source(run, NSA_WIN, expanded);
    coded.scales[NSAI_FUSED_WINDOW] = nsai_pair_scales(run, NSA_WIN);
    cached->batch = source.batch;
    cached->window = source.pair;
    NSAI_TRY(
        nsai_map_source(run, &source, NSAI_WINDOW_BOX_ROWS, &to->window_k_map, &to->window_v_map));
  }
  if (nsai_run_has(run, NSA_SEL)) {
    const nsai_cache_source source = nsai_find_source(run, NSA_SEL, expanded);
    coded.scales[NSAI_FUSED_SELECTED] = nsai_pair_scales(run, NSA_SEL);
    cached->batch = source.batch;
    cached->pair = source.pair;
    NSAI_TRY(nsai_map_source(run, &source, nsai_list_box_rows(source.page_rows, NSAI_SELECTED_KEYS),
                             &to->selected.k, &to->selected.v));
    NSAI_TRY(nsai_selected_find_lists(run, form, &to->selected.attend));
  }
  return nsai_launch_tiles(run, kernel, &coded);
}

static nsa_status attend(const nsai_run *run, const nsai_form *form, const nsai_kernel *kernel,
                         bool expanded) {
  const int64_t rows = run->sizes.kv_tokens;
  const NsaiAttend window = nsai_attend_params(run, NSA_WIN, kernel);
  NsaiSelectedWindow p = {
    .selected.attend = nsai_selected_params(run, kernel),
    .window_k = window.k,
    .window_v = window.v,
    .first_branch = nsai_run_has(run, NSA_WIN) ? NSAI_FUSED_WINDOW : NSAI_FUSED_SELECTED,
    .end_branch = nsai_run_has(run, NSA_SEL) ? NSAI_FUSED_BRANCHES : NSAI_FUSED_SELECTED
  };
  const NsaiView window_kv[2] = { window.k, window.v };
  const NsaiView kv[2] = { p.selected.attend.k, p.selected.attend.v };
  p.out[NSAI_FUSED_WINDOW] = window.out;
  p.out[NSAI_FUSED_SELECTED] = p.selected.attend.out;
  if (nsai_problem_is_cached(&run->plan->problem))
    return attend_cached(run, form, kernel, &p, expanded);
  NSAI_TRY(nsai_map_keys(run, kernel, window_kv, rows, &p.window_k_map, &p.window_v_map));
  NSAI_TRY(nsai_map_keys(run, kernel, kv, rows, &p.selected.k, &p.selected.v));
  if (nsai_run_has(run, NSA_SEL)) NSAI_TRY(nsai_selected_find_lists(run, form, &p.selected.attend));
  return nsai_launch_tiles(run, kernel, &p);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  (void)span;
  return attend(run, form, &form->kernel[NSAI_SELECTED], false);
}

const nsai_variant nsai_attend_selected_window_sm90 = {
  .name = "attend_selected_window_sm90",
  .stage = NSAI_STAGE_ATTEND_SELECTED,
  .why =
      "merged list of adjacent tokens' blocks and their window in one pass, wgmma and tensor maps",
  .fuses = 1u << NSAI_STAGE_ATTEND_WINDOW,
  .kernels = NSAI_SELECTED_KERNELS,
  .takes_codes = true,
  .legal = legal,
  .sensible = sensible,
  .space = &nsai_selected_sm90_space,
  .specify = specify,
  .enqueue = enqueue,
};

/* ---- the row that expands raw tokens first ---- */

static void legal_expanded(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  legal(p, t, reasons);
  nsai_legal_expanded_tokens(p, NSA_SEL, reasons);
}

static void specify_expanded(const nsai_request *r, nsai_kernel_spec kernel[]) {
  nsai_selected_specify_expanded(r, &nsai_attend_selected_window_sm90, kernel);
  nsai_expand_tokens_specify(r->problem, NSA_WIN, &kernel[NSAI_SELECTED_EXPAND_WINDOW]);
}

/* Where the branches share a pair, the selected branch reads all of it. */
static nsa_status expand(const nsai_run *run, const nsai_form *form) {
  const bool selected = nsai_run_has(run, NSA_SEL),
             own = run->plan->problem.model.per_branch || !selected;
  const nsai_kernel *window = &form->kernel[NSAI_SELECTED_EXPAND_WINDOW];
  if (selected)
    NSAI_TRY(nsai_expand_tokens_enqueue(run, &form->kernel[NSAI_SELECTED_EXPAND], NSA_SEL));
  return nsai_run_has(run, NSA_WIN) && own ? nsai_expand_tokens_enqueue(run, window, NSA_WIN)
                                           : NSA_OK;
}

/* One kernel reads both pairs. */
static bool expands(const nsai_run *run) {
  for (int b = NSA_SEL; b <= NSA_WIN; b++)
    if (nsai_run_has(run, b) && !nsai_run_expands(run, b)) return false;
  return true;
}

static nsa_status enqueue_expanded(const nsai_run *run, const nsai_form *form,
                                   const nsai_span *span) {
  const bool expanded = expands(run);
  if (expanded && !span->done_ahead) NSAI_TRY(expand(run, form));
  if (span->ahead) return NSA_OK;
  /* The window's keys are read before the previous kernel has ended. */
  if (run->queue->last == &form->kernel[NSAI_SELECTED_EXPAND] ||
      run->queue->last == &form->kernel[NSAI_SELECTED_EXPAND_WINDOW])
    nsai_queue_break(run->queue);
  return attend(run, form, &form->kernel[expanded ? NSAI_SELECTED : NSAI_SELECTED_CODED], expanded);
}

const nsai_variant nsai_attend_selected_window_expanded_sm90 = {
  .name = "attend_selected_window_expanded_sm90",
  .stage = NSAI_STAGE_ATTEND_SELECTED,
  .why = "merged lists and their window, of e4m3 tokens expanded before",
  .fuses = 1u << NSAI_STAGE_ATTEND_WINDOW,
  .kernels = NSAI_SELECTED_EXPANDED_KERNELS,
  .takes_codes = true,
  .goes_ahead = true,
  .expands_tokens = true,
  .legal = legal_expanded,
  .sensible = sensible,
  .space = &nsai_selected_sm90_space,
  .specify = specify_expanded,
  .enqueue = enqueue_expanded,
};
