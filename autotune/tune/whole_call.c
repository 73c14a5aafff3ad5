/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Times the complete call: with the winners, with the heuristic's choices, with one winner among
 * the heuristic's choices, and the baselines, in turn. The kernels of a call overlap: the next one
 * begins while the last CTAs of the previous one run. A stage that is faster by itself can
 * therefore make the complete call slower. The complete calls decide.
 */
#include "tune/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LONG_MS 100.0 /* for runs of this length the noise is far smaller than the differences */
#define TIE 0.01      /* complete calls that differ by more never count as equally fast */

/* A plan whose complete runs are compared with those of others. */
typedef struct entrant {
  nsai_trial_plan plan;
  nsai_baseline base;
  uint32_t winners; /* 1 << stage: takes the winner of the stage, else the heuristic's choice */
  bool optional;    /* skipped when the device has no memory for it */
  int rounds;       /* 0: skipped */
  double samples[TUNE_FINAL_ROUNDS];
} entrant;

/* In the order in which they are preferred: with all winners, with none, with one; baselines. */
enum {
  ALL,
  HEURISTIC,
  SINGLE,
  BASELINES = 2,
  MOST_ENTRANTS = SINGLE + NSAI_STAGE_COUNT + BASELINES
};

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

/* The winners of some stages, and the heuristic's choices of the others. */
static void decide(const tune_task *task, uint32_t winners, nsai_decisions *out) {
  *out = (nsai_decisions){ .why = "the tuner" };
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *c = &task->candidates[i];
    const measured_candidate *winner = nsai_tune_winner(c);
    bool takes = winners >> c->stage & 1 && winner;
    out->stage[c->stage] = takes ? winner->what : c->item[0].what;
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

/* The stages whose winner is not the heuristic's choice, of those that run with these. */
static uint32_t differing(const tune_task *task) {
  uint32_t stages = 0;
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *c = &task->candidates[i];
    const measured_candidate *winner = nsai_tune_winner(c);
    if (winner && winner != &c->item[0] && !is_fused(task, c->stage, true))
      stages |= 1u << c->stage;
  }
  return stages;
}

/* Whether x takes longer than y by more than the noise. Compared round by round, which cancels
 * drift between rounds. */
static bool is_slower(const entrant *x, const entrant *y) {
  double ratios[TUNE_FINAL_ROUNDS], median, spread;
  int rounds = x->rounds < y->rounds ? x->rounds : y->rounds;
  for (int i = 0; i < rounds; i++) ratios[i] = x->samples[i] / y->samples[i];
  nsai_tune_summarise(ratios, rounds, &median, &spread);
  return median > 1 + fmin(TUNE_NOISE * spread, TIE);
}

/* The first entrant that is as fast as the fastest. */
static const entrant *first_of_best(const entrant *e, int count) {
  const entrant *best = e, *first = e;
  for (int i = 1; i < count; i++)
    if (e[i].rounds && e[i].base.ms < best->base.ms) best = &e[i];
  while (first < best && (!first->rounds || is_slower(first, best))) first++;
  return first;
}

/* Gives the stages whose winners the complete call does not take back to the heuristic's choices.
 * `lost` gets the former winner of each, by the index of the stage in the task. Stages that the
 * heuristic's choices fuse have not run by themselves; their winners stay. */
static void follow(tune_task *task, uint32_t taken,
                   const measured_candidate *lost[NSAI_STAGE_COUNT]) {
  uint32_t back = differing(task) & ~taken;
  for (int i = 0; i < task->stage_count; i++) {
    candidates *c = &task->candidates[i];
    lost[i] = NULL;
    if (!(back >> c->stage & 1) || !c->item[0].timing.rounds) continue;
    lost[i] = nsai_tune_winner(c);
    for (int k = 0; k < c->count; k++) c->item[k].timing.chosen = !k;
  }
  nsai_tune_fused_times(task);
}

/* There are fewer names than entries in the array. */
static void set_baselines(tune_task *task, const nsai_baseline *base, int count) {
  for (int i = 0; i < count; i++)
    (void)nsai_record_set_baseline(task->record, base[i].name, base[i].ms, base[i].spread);
}

static void emit_winners(tuner *t, const tune_task *task,
                         const measured_candidate *const lost[NSAI_STAGE_COUNT]) {
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *c = &task->candidates[i];
    char note[256] = "";
    if (!nsai_tune_winner(c) || is_fused(task, c->stage, false)) continue;
    if (lost[i])
      snprintf(note, sizeof note, "whole calls were slower with %s", lost[i]->timing.candidate);
    nsai_tune_emit(t, NSA_TUNE_CHOSEN, task, nsai_tune_winner(c), note);
  }
}

static nsa_status add_entrant(tuner *t, const tune_task *task, uint32_t winners, entrant *e,
                              int *count) {
  nsai_decisions decisions;
  decide(task, winners, &decisions);
  NSAI_TRY(nsai_tune_plan(t, &task->problem, &decisions, &e[*count].plan));
  e[*count].winners = winners;
  e[*count].optional = *count >= SINGLE;
  ++*count;
  return NSA_OK;
}

/* Adds the problem itself: with the winners and, where these are others, with the heuristic's
 * choices; and where several stages differ, with the winner of each alone. A stage that the
 * heuristic's choice fuses takes its winner where that choice gives way. */
static nsa_status add_own(tuner *t, const tune_task *task, entrant *e, int *count) {
  uint32_t differ = differing(task);
  NSAI_TRY(add_entrant(t, task, UINT32_MAX, e, count));
  if (!differ) return NSA_OK;
  NSAI_TRY(add_entrant(t, task, 0, e, count));
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *c = &task->candidates[i];
    uint32_t own = 1u << c->stage;
    if (differ & own && differ != own)
      NSAI_TRY(add_entrant(t, task, own | c->item[0].what.variant->fuses, e, count));
  }
  return NSA_OK;
}

/* The times of the call as it is chosen, and by the heuristic's choices. */
static void name_both(const tune_task *task, const entrant *chosen, const entrant *heuristic,
                      nsai_baseline both[2]) {
  static const char *const names[] = { [NSA_OP_FORWARD] = "forward",
                                       [NSA_OP_DENSE] = "dense",
                                       [NSA_OP_PREFILL] = "prefill",
                                       [NSA_OP_DECODE] = "decode",
                                       [NSA_OP_BACKWARD] = "backward" };
  both[0] = chosen->base;
  both[1] = heuristic->base;
  snprintf(both[0].name, sizeof both[0].name, "%s", names[task->problem.op]);
  snprintf(both[1].name, sizeof both[1].name, "%s.default", names[task->problem.op]);
}

nsa_status nsai_tune_whole_call(tuner *t, tune_task *task) {
  entrant e[MOST_ENTRANTS] = { 0 };
  const measured_candidate *lost[NSAI_STAGE_COUNT];
  nsai_baseline both[2];
  int count = 0;
  bool compares = task->problem.op == NSA_OP_FORWARD && !t->no_baselines;
  nsa_status status = NSA_OK;
  NSAI_TRY_TO(done, add_own(t, task, e, &count));
  const int own = count;
  if (compares && t->base_tokens != task->tokens)
    NSAI_TRY_TO(done, add_baselines(t, task, e, &count));
  NSAI_TRY_TO(done, time_entrants(t, e, count));
  if (count > own) take_baselines(t, task, e + own, count - own);
  const entrant *chosen = first_of_best(e, own);
  name_both(task, chosen, own > 1 ? &e[HEURISTIC] : &e[ALL], both);
  follow(task, chosen->winners, lost);
  set_baselines(task, both, 2);
  if (compares) set_baselines(task, t->base, t->base_count);
  NSAI_TRY_TO(done, nsai_tune_keep(t, task)); /* results are saved before they are reported */
  emit_winners(t, task, lost);
  for (int i = 0; i < 2; i++) emit_baseline(t, task, &both[i]);
  for (int i = 0; compares && i < t->base_count; i++) emit_baseline(t, task, &t->base[i]);
done:
  for (int i = 0; i < count; i++) nsa_plan_destroy(e[i].plan.plan);
  return status;
}
