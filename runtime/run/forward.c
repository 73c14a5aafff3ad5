/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Order of the stages of a forward: gates, compress, attend_window where no other row fuses it,
 * attend_compressed, importance and select in chunks of tokens, attend_selected. Where importance has
 * an LSE of its own, that comes before the chunks. So attend_window runs beside the end of compress,
 * and attend_compressed, whose keys are there by then, beside the end of attend_window
 * (driver/launch.h). Each branch's kernel adds its gated output in fp32 to a partial sum, which goes
 * from one to the next in 16 bits and a unit for each row (core/epilogue.cuh). The last branch that
 * runs rounds the sum into o.
 *
 * nsa_prefill is the same over a cache, without compress: the cache has the entries. Rows that first
 * expand codes do so before all attention, so that the branches' kernels still overlap. nsa_dense,
 * nsa_decode, nsa_kv_append and nsa_index_kl run one stage, behind the gates.
 */
#include "base/math.h"
#include "plan/context.h"
#include "run/params.h"

nsa_status nsai_run_stage_event(const nsai_run *run, nsai_stage stage, bool begins) {
  if (!run->callbacks) return NSA_OK;
  nsai_queue_break(run->queue);
  return run->callbacks->on_stage(run->callbacks->user, stage, begins);
}

/* The form that takes as many items as the run has. */
static const nsai_form *form_for(const nsai_run *run, nsai_stage stage) {
  const nsa_plan *plan = run->plan;
  const nsai_step step = nsai_run_step(run);
  const nsai_chosen_form *form =
      nsai_choice_form_for(&plan->choice, stage, &plan->problem, &plan->ctx->target, &step);
  return &plan->forms[form - plan->choice.forms];
}

nsa_status nsai_enqueue_stage(const nsai_run *run, nsai_stage stage, const nsai_span *span) {
  const nsai_form *form = form_for(run, stage);
  NSAI_TRY(nsai_run_stage_event(run, stage, true));
  NSAI_TRY(form->variant->enqueue(run, form, span));
  return nsai_run_stage_event(run, stage, false);
}

/* Whether the stage's row does a part of it before all attention: where rows expand codes. The tuner
 * times a stage in one piece. */
static bool goes_ahead(const nsai_run *run, nsai_stage stage) {
  return !run->callbacks && form_for(run, stage)->variant->goes_ahead;
}

static nsa_status do_ahead(const nsai_run *run, nsai_stage stage) {
  const nsai_span ahead = { .token_end = run->sizes.tokens, .ahead = true };
  return goes_ahead(run, stage) ? nsai_enqueue_stage(run, stage, &ahead) : NSA_OK;
}

/* The whole of a stage, or what do_ahead() has left of it. */
static nsa_status whole(const nsai_run *run, nsai_stage stage) {
  const nsai_span all = { .token_end = run->sizes.tokens, .done_ahead = goes_ahead(run, stage) };
  return nsai_enqueue_stage(run, stage, &all);
}

nsa_status nsai_enqueue_gates(const nsai_run *run) {
  return run->plan->problem.model.gate == NSAI_GATE_MLP ? whole(run, NSAI_STAGE_GATE) : NSA_OK;
}

/* Importance and top-n, one chunk of tokens after the other through the same workspace. */
static nsa_status select_blocks(const nsai_run *run) {
  const int64_t tokens = run->sizes.tokens, step = run->plan->workspace.chunk_tokens;
  if (!run->plan->workspace.importance.bytes)
    return whole(run, NSAI_STAGE_SELECT); /* every block is chosen: the positions alone say which */
  for (int64_t begin = 0; begin < tokens; begin += step) {
    const nsai_span chunk = { .token_begin = begin,
                              .token_end = nsai_smaller(begin + step, tokens) };
    NSAI_TRY(nsai_enqueue_stage(run, NSAI_STAGE_IMPORTANCE, &chunk));
    NSAI_TRY(nsai_enqueue_stage(run, NSAI_STAGE_SELECT, &chunk));
  }
  return NSA_OK;
}

/* Importance of the rows that io.probe_rows names. It is outside of the stage's events: the tuner
 * times none. */
static nsa_status probe_rows(const nsai_run *run) {
  const nsai_form *form = nsai_plan_form(run->plan, NSAI_STAGE_IMPORTANCE);
  const nsai_span probe = { .probe = true };
  return form->variant->enqueue(run, form, &probe);
}

/* Whether the run has a kernel of the selected branch, which may do the window's as well; and one of the
 * window alone. */
static bool attends_last(const nsai_run *run) {
  bool window = nsai_run_fuses(run, NSAI_STAGE_ATTEND_WINDOW) && nsai_run_has(run, NSA_WIN);
  return nsai_run_has(run, NSA_SEL) || window;
}

static bool attends_window(const nsai_run *run) {
  return nsai_run_has(run, NSA_WIN) && !nsai_run_fuses(run, NSAI_STAGE_ATTEND_WINDOW);
}

/* The LSE of importance, where the compressed branch does not give it. */
static nsa_status normalize(const nsai_run *run, bool selecting, bool probes) {
  const nsai_span all = { .token_end = run->sizes.tokens, .prepare = true };
  const bool ranks = selecting && run->plan->workspace.importance.bytes;
  if (!nsai_normalizes_apart(&run->plan->problem.model) || !(ranks || probes)) return NSA_OK;
  return nsai_enqueue_stage(run, NSAI_STAGE_IMPORTANCE, &all);
}

/* The LSE of the index, once the blocks are chosen. It reads what several kernels before wrote. */
static nsa_status index_lse(const nsai_run *run) {
  if (!nsai_present(&run->io->index_lse) || !run->sizes.tokens) return NSA_OK;
  nsai_queue_break(run->queue);
  return whole(run, NSAI_STAGE_INDEX_LSE);
}

nsa_status nsai_enqueue_forward(const nsai_run *run) {
  const nsai_model *m = &run->plan->problem.model;
  bool probes = nsai_present(&run->io->probe_rows), selecting = nsai_run_selects(run);
  bool ranking = selecting || probes, branch = nsai_run_has(run, NSA_CMP);
  bool made = run->piece || !nsai_phi_runs(m) || nsai_problem_is_cached(&run->plan->problem);
  NSAI_TRY(nsai_enqueue_gates(run));
  if (!made && (branch || ranking || nsai_present(&run->io->kv.k_cmp)))
    NSAI_TRY(whole(run, NSAI_STAGE_COMPRESS));
  const bool compressed = branch || (ranking && nsai_ranks_by_branch_lse(m));
  if (attends_last(run)) NSAI_TRY(do_ahead(run, NSAI_STAGE_ATTEND_SELECTED));
  if (attends_window(run)) NSAI_TRY(do_ahead(run, NSAI_STAGE_ATTEND_WINDOW));
  if (compressed) NSAI_TRY(do_ahead(run, NSAI_STAGE_ATTEND_COMPRESSED));
  if (attends_window(run)) NSAI_TRY(whole(run, NSAI_STAGE_ATTEND_WINDOW));
  if (compressed) NSAI_TRY(whole(run, NSAI_STAGE_ATTEND_COMPRESSED));
  NSAI_TRY(normalize(run, selecting, probes));
  if (selecting && !nsai_run_fuses(run, NSAI_STAGE_SELECT)) NSAI_TRY(select_blocks(run));
  if (probes) NSAI_TRY(probe_rows(run));
  if (attends_last(run)) {
    NSAI_TRY(nsai_await_keys(run));
    NSAI_TRY(whole(run, NSAI_STAGE_ATTEND_SELECTED));
  }
  return index_lse(run);
}

nsa_status nsai_enqueue_compress(const nsai_run *run) { return whole(run, NSAI_STAGE_COMPRESS); }

nsa_status nsai_enqueue_select(const nsai_run *run) { return whole(run, NSAI_STAGE_SELECT); }

nsa_status nsai_enqueue_dense(const nsai_run *run) { return whole(run, NSAI_STAGE_DENSE); }

nsa_status nsai_enqueue_index_kl(const nsai_run *run) { return whole(run, NSAI_STAGE_INDEX_KL); }

nsa_status nsai_enqueue_append(const nsai_run *run) {
  return run->sizes.tokens ? whole(run, NSAI_STAGE_APPEND) : NSA_OK;
}

nsa_status nsai_enqueue_decode(const nsai_run *run) {
  if (!run->sizes.tokens) return NSA_OK;
  NSAI_TRY(nsai_enqueue_gates(run));
  NSAI_TRY(whole(run, NSAI_STAGE_DECODE));
  return index_lse(run);
}
