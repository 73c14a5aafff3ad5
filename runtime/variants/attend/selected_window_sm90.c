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

static nsa_status enqueue_cached(const nsai_run *run, const nsai_form *form,
                                 const NsaiSelectedWindow *p) {
  /* A kernel without codes takes the first member alone. */
  NsaiCodedSelectedWindow coded = { .cached = { .packed = *p, .batch = nsai_cache_batch(run) } };
  NsaiCachedSelectedWindow *cached = &coded.cached;
  NsaiSelectedWindow *to = &cached->packed;
  if (nsai_run_has(run, NSA_WIN)) {
    coded.scales[NSAI_FUSED_WINDOW] = nsai_pair_scales(run, NSA_WIN);
    cached->window = nsai_cache_pair(run, &run->io->kv, NSA_WIN);
    NSAI_TRY(
        nsai_map_pages(run, NSA_WIN, NSAI_WINDOW_BOX_ROWS, &to->window_k_map, &to->window_v_map));
  }
  if (nsai_run_has(run, NSA_SEL)) {
    coded.scales[NSAI_FUSED_SELECTED] = nsai_pair_scales(run, NSA_SEL);
    cached->pair = nsai_cache_pair(run, &run->io->kv, NSA_SEL);
    NSAI_TRY(
        nsai_map_pages(run, NSA_SEL,
                       nsai_list_box_rows((int)run->plan->problem.page_size, NSAI_SELECTED_KEYS),
                       &to->selected.k, &to->selected.v));
    NSAI_TRY(nsai_selected_find_lists(run, form, &to->selected.attend));
  }
  return nsai_launch_tiles(run, &form->kernel[NSAI_SELECTED], &coded);
}

static nsa_status enqueue(const nsai_run *run, const nsai_form *form, const nsai_span *span) {
  const nsai_kernel *kernel = &form->kernel[NSAI_SELECTED];
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
  (void)span;
  p.out[NSAI_FUSED_WINDOW] = window.out;
  p.out[NSAI_FUSED_SELECTED] = p.selected.attend.out;
  if (nsai_problem_is_cached(&run->plan->problem)) return enqueue_cached(run, form, &p);
  NSAI_TRY(nsai_map_keys(run, kernel, window_kv, rows, &p.window_k_map, &p.window_v_map));
  NSAI_TRY(nsai_map_keys(run, kernel, kv, rows, &p.selected.k, &p.selected.v));
  if (nsai_run_has(run, NSA_SEL)) NSAI_TRY(nsai_selected_find_lists(run, form, &p.selected.attend));
  return nsai_launch_tiles(run, kernel, &p);
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
