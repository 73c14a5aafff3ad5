/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Times the complete call: with the winners, with the heuristic's choices, and the baselines, in
 * turn. Winners of the single stages can be faster while the complete call is not.
 */
#include "tune/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LONG_MS 100.0 /* for runs of this length the noise is far smaller than the differences */

/* A plan whose complete runs are compared with those of others. */
typedef struct entrant {
  nsai_trial_plan plan;
  nsai_baseline base;
  bool optional; /* skipped when the device has no memory for it */
  int rounds;    /* 0: skipped */
  double samples[TUNE_FINAL_ROUNDS];
} entrant;

#define MOST_ENTRANTS 4

static nsa_status warm_up(tuner *t, entrant *e) {
  double warm = 0;
  nsa_status status = nsai_tune_run_whole_call(t, &e->plan, &warm);
  if (status == NSA_E_CUDA && e->optional && nsai_tune_survived(t)) return NSA_OK;
  e->rounds = warm > LONG_MS ? TUNE_LEAST_ROUNDS : TUNE_FINAL_ROUNDS;
  return status;
}

/* Runs all in turn, forwards and then backwards. No plan always follows the same other one,
 * which may leave the device warm or its clocks low. All share one workspace, as large as the
 * largest needs. */
static nsa_status time_entrants(tuner *t, entrant *e, int count) {
  /* The optional ones first: one that fails leaves no workspace behind. */
  for (int i = count; i-- > 0;) NSAI_TRY(warm_up(t, &e[i]));
  for (int r = 0; r < TUNE_FINAL_ROUNDS; r++)
    for (int i = 0; i < count; i++) {
      entrant *next = &e[r % 2 ? count - 1 - i : i];
      if (r >= next->rounds) continue;
      NSAI_TRY(nsai_tune_step(t, "timing whole calls"));
      NSAI_TRY(nsai_tune_run_whole_call(t, &next->plan, &next->samples[r]));
    }
  for (int i = 0; i < count; i++)
    if (e[i].rounds)
      nsai_tune_summarise(e[i].samples, e[i].rounds, &e[i].base.ms, &e[i].base.spread);
  return NSA_OK;
}

static void winners(const tune_task *task, bool chosen, nsai_decisions *out) {
  *out = (nsai_decisions){ .why = "the tuner" };
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *c = &task->candidates[i];
    out->stage[c->stage] = c->item[0].what;
    for (int k = 0; k < c->count && chosen; k++)
      if (c->item[k].timing.chosen) out->stage[c->stage] = c->item[k].what;
  }
}

static void emit_baseline(tuner *t, tune_task *task, const nsai_baseline *base) {
  measured_candidate emitted = { .timing = { .ms = base->ms, .spread = base->spread } };
  snprintf(emitted.timing.candidate, sizeof emitted.timing.candidate, "%s", base->name);
  nsai_tune_emit(t, NSA_TUNE_BASELINE, task, &emitted, "");
}

/* Adds the unfused baseline on the same tensors, where it can run. */
static nsa_status add_gemm(tuner *t, const nsai_problem *dense, entrant *e, int *count) {
  nsai_decisions decisions = { .why = "the tuner" };
  nsai_candidate *gemm = &decisions.stage[NSAI_STAGE_DENSE];
  nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
  if (!nsai_candidate_parse("dense_gemm", NSAI_STAGE_DENSE, gemm)) return NSA_OK;
  nsai_variant_reasons(t->ctx->config, dense, &t->ctx->target, gemm->variant, &reasons);
  if (reasons.count) return NSA_OK;
  nsa_status status = nsai_tune_plan(t, dense, &decisions, &e[*count].plan);
  if (status) return status == NSA_E_NO_CUBLASLT ? NSA_OK : status;
  e[*count].base = (nsai_baseline){ .name = "dense_gemm" };
  e[(*count)++].optional = true;
  return NSA_OK;
}

/* Adds dense attention as its record decides, and the unfused baseline. */
static nsa_status add_baselines(tuner *t, const tune_task *task, entrant *e, int *count) {
  nsai_problem dense = task->problem;
  nsai_decisions decisions;
  dense.op = NSA_OP_DENSE;
  dense.selection = NSA_SELECT_TOPN;
  dense.max_probe_rows = 0;
  nsai_records_decide(t->ctx, &dense, &decisions);
  NSAI_TRY(nsai_tune_plan(t, &dense, &decisions, &e[*count].plan));
  e[(*count)++].base = (nsai_baseline){ .name = "dense" };
  return add_gemm(t, &dense, e, count);
}

/* The baselines of a length are measured once, together with its first forward. */
static void take_baselines(tuner *t, const tune_task *task, const entrant *e, int count) {
  t->base_count = 0;
  t->base_tokens = task->tokens;
  for (int i = 0; i < count; i++)
    if (e[i].rounds) t->base[t->base_count++] = e[i].base;
}

/* Whether another stage's winner fuses this one; with `first`, whether the heuristic's choice
 * does. */
static bool is_fused(const tune_task *task, nsai_stage stage, bool first) {
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *c = &task->candidates[i];
    const measured_candidate *runs = first ? &c->item[0] : nsai_tune_winner(c);
    if (runs && nsai_fuses(runs->what.variant, stage)) return true;
  }
  return false;
}

/* Whether the winners are the heuristic's choices, so that both calls are the same. */
static bool all_first(const tune_task *task) {
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *c = &task->candidates[i];
    if (nsai_tune_winner(c) && nsai_tune_winner(c) != &c->item[0] &&
        !is_fused(task, c->stage, true))
      return false;
  }
  return true;
}

/* Single stages can be faster with the winners while the complete call is slower. Then the
 * heuristic's choices stay, and the call's time is theirs. Stages that they fuse have not run by
 * themselves; the winners of those stages stay. */
static bool prefer_whole_call(tune_task *task, nsai_baseline both[2]) {
  double noise = TUNE_NOISE * hypot(both[0].spread, both[1].spread);
  if (all_first(task) || both[0].ms <= both[1].ms * (1 + noise)) return false;
  both[0].ms = both[1].ms;
  both[0].spread = both[1].spread;
  for (int i = 0; i < task->stage_count; i++) {
    candidates *c = &task->candidates[i];
    if (!c->item[0].timing.rounds || is_fused(task, c->stage, true)) continue;
    for (int k = 0; k < c->count; k++) c->item[k].timing.chosen = !k;
  }
  nsai_tune_fused_times(task);
  return true;
}

/* There are fewer names than entries in the array. */
static void set_baselines(tune_task *task, const nsai_baseline *base, int count) {
  for (int i = 0; i < count; i++)
    (void)nsai_record_set_baseline(task->record, base[i].name, base[i].ms, base[i].spread);
}

static void emit_winners(tuner *t, const tune_task *task, const char *note) {
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *c = &task->candidates[i];
    if (nsai_tune_winner(c) && !is_fused(task, c->stage, false))
      nsai_tune_emit(t, NSA_TUNE_CHOSEN, task, nsai_tune_winner(c), note);
  }
}

/* Adds the problem itself, with the winners and with the heuristic's choices. */
static nsa_status add_both(tuner *t, const tune_task *task, entrant *e, int *count) {
  static const char *const names[][2] = { [NSA_OP_FORWARD] = { "forward", "forward.default" },
                                          [NSA_OP_DENSE] = { "dense", "dense.default" },
                                          [NSA_OP_PREFILL] = { "prefill", "prefill.default" },
                                          [NSA_OP_DECODE] = { "decode", "decode.default" },
                                          [NSA_OP_BACKWARD] = { "backward", "backward.default" } };
  for (int i = 0; i < 2; i++) {
    nsai_decisions decisions;
    winners(task, i == 0, &decisions);
    snprintf(e[i].base.name, sizeof e[i].base.name, "%s", names[task->problem.op][i]);
    NSAI_TRY(nsai_tune_plan(t, &task->problem, &decisions, &e[i].plan));
    ++*count;
  }
  return NSA_OK;
}

nsa_status nsai_tune_whole_call(tuner *t, tune_task *task) {
  entrant e[MOST_ENTRANTS] = { 0 };
  int count = 0;
  bool compares = task->problem.op == NSA_OP_FORWARD && !t->no_baselines;
  nsa_status status = NSA_OK;
  NSAI_TRY_TO(done, add_both(t, task, e, &count));
  if (compares && t->base_tokens != task->tokens)
    NSAI_TRY_TO(done, add_baselines(t, task, e, &count));
  NSAI_TRY_TO(done, time_entrants(t, e, count));
  if (count > 2) take_baselines(t, task, e + 2, count - 2);
  nsai_baseline both[2] = { e[0].base, e[1].base };
  bool back = prefer_whole_call(task, both);
  set_baselines(task, both, 2);
  if (compares) set_baselines(task, t->base, t->base_count);
  NSAI_TRY_TO(done, nsai_tune_keep(t, task)); /* results are saved before they are reported */
  emit_winners(t, task, back ? "whole calls were slower with the winners" : "");
  for (int i = 0; i < 2; i++) emit_baseline(t, task, &both[i]);
  for (int i = 0; compares && i < t->base_count; i++) emit_baseline(t, task, &t->base[i]);
done:
  for (int i = 0; i < count; i++) nsa_plan_destroy(e[i].plan.plan);
  return status;
}
