/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * How fast: rounds over all columns in turn, each a run of run.c, so that clocks and temperature
 * drift for all alike. Candidates are compared by their weights. A final among the best may find other
 * clocks than the rounds before it, where slow candidates let the device rest; what was measured
 * before is told at the final's clocks.
 *
 * Events tell times apart to 0.5 us (CUDA's documentation of cuEventElapsedTime), and what differs by
 * less than TICK_MS counts as equal, so that for the shortest stages the heuristic's choice stays.
 */
#include "tune/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROUNDS 3 /* then the slow ones are dropped */
#define ROUNDS 4       /* of the others */
#define FINALISTS 3
#define DROP 1.25     /* times the best after the first rounds */
#define TIE 0.01      /* of the fastest: as fast */
#define TICK_MS 0.001 /* two events' uncertainty of 0.5 us each */

/* ---- statistics ---- */

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

void nsai_tune_summarise(const double *samples, int count, double *median, double *spread) {
  double v[TUNE_MAX_ROUNDS];
  memcpy(v, samples, (size_t)count * sizeof *v);
  qsort(v, (size_t)count, sizeof *v, ascending);
  *median = count % 2 ? v[count / 2] : (v[count / 2 - 1] + v[count / 2]) / 2;
  *spread = *median > 0 ? (v[3 * count / 4] - v[count / 4]) / 2 / *median : 0;
}

static void take_median(measured_candidate *c) {
  if (!c->rounds) return;
  nsai_tune_summarise(c->samples, c->rounds, &c->timing.ms, &c->timing.spread);
  c->timing.rounds = c->rounds;
  c->timing.state = NSAI_TIMING_OK;
}

/* ---- rounds ---- */

/* A stage that launched nothing (importance, where every block is chosen) has no time. */
static void keep_sample(measured_candidate *c, double ms) {
  if (ms > 0 && c->rounds < TUNE_MAX_ROUNDS) c->samples[c->rounds++] = ms;
}

/* Makes the plans of all columns. */
static nsa_status make_plans(tuner *t, tune_task *task, int combinations, nsai_trial_plan *plans) {
  for (int i = 0; i < combinations; i++) {
    nsai_decisions decisions;
    measured_candidate *taken[NSAI_STAGE_COUNT];
    nsai_tune_combination(task, i, &decisions, taken);
    NSAI_TRY(nsai_tune_plan(t, &task->problem, &decisions, &plans[i]));
  }
  return NSA_OK;
}

static void take_medians(tune_task *task) {
  for (int i = 0; i < task->stage_count; i++)
    for (int k = 0; k < task->candidates[i].count; k++)
      if (task->candidates[i].item[k].alive) take_median(&task->candidates[i].item[k]);
  nsai_tune_fused_times(task);
}

/* Widens a range by a reading; 0 is unknown. */
static void widen(int32_t range[2], int32_t value) {
  if (!value) return;
  if (!range[0] || value < range[0]) range[0] = value;
  if (value > range[1]) range[1] = value;
}

static void read_sensors(const tuner *t, nsai_record *record) {
  nsai_reading now = nsai_sensors_read(t->sensors);
  widen(record->clock_mhz, now.sm_mhz);
  widen(record->temperature_c, now.temperature_c);
}

/* The heuristic's choices stay whatever they take. */
static bool is_kept(const candidates *c, int index) { return !index || index == c->unfused; }

/* Bytes of workspace with one contender, and the heuristic's choices around it. */
static nsa_status ask_room(tuner *t, const tune_task *task, const measured_candidate *one,
                           uint64_t *bytes) {
  nsai_decisions decisions;
  nsai_trial_plan plan;
  nsai_tune_around(task, one, &decisions);
  NSAI_TRY(nsai_tune_plan(t, &task->problem, &decisions, &plan));
  *bytes = plan.caps.workspace_bytes;
  nsa_plan_destroy(plan.plan);
  return NSA_OK;
}

/* The device has no room for a column's workspace: contenders that want more of it than the heuristic's
 * choices are out, or all if none does by itself. Where there is nobody to blame the task has no room. */
static nsa_status refuse_roomless(tuner *t, tune_task *task,
                                  measured_candidate *const taken[NSAI_STAGE_COUNT],
                                  bool *refused) {
  uint64_t usual = 0, wanted[NSAI_STAGE_COUNT] = { 0 };
  bool larger = false;
  char why[512];
  snprintf(why, sizeof why, "%s", nsa_last_error());
  t->no_room = false;
  NSAI_TRY(ask_room(t, task, &task->candidates[0].item[0], &usual));
  for (int k = 0; k < task->stage_count; k++) {
    const candidates *c = &task->candidates[k];
    if (!taken[k] || is_kept(c, (int)(taken[k] - c->item))) continue;
    NSAI_TRY(ask_room(t, task, taken[k], &wanted[k]));
    larger |= wanted[k] > usual;
  }
  for (int k = 0; k < task->stage_count; k++) {
    if (!wanted[k] || (larger && wanted[k] <= usual)) continue;
    nsai_tune_refuse(t, task, taken[k], why);
    *refused = true;
  }
  t->no_room = !*refused;
  return *refused ? NSA_OK : nsai_fail_text(NSA_E_CUDA, why);
}

/* Times one run of a column. A contender whose launch the device refuses, or for whose workspace it
 * has no room, at this length as it was not when it was verified, is out, and `*refused` says so; the
 * heuristic's choices are needed. */
static nsa_status time_combination(tuner *t, tune_task *task, int combination,
                                   const nsai_trial_plan *plan, bool keeps, bool *refused) {
  nsai_decisions decisions;
  measured_candidate *taken[NSAI_STAGE_COUNT];
  double ms[NSAI_STAGE_COUNT];
  nsai_tune_combination(task, combination, &decisions, taken);
  nsa_status status = nsai_tune_room(t, nsai_tune_workspace(t, plan->caps.workspace_bytes));
  if (t->no_room) return refuse_roomless(t, task, taken, refused);
  if (status && (status != NSA_E_CUDA || nsai_tune_survived(t)))
    return status; /* of no candidate */
  if (!status) status = nsai_tune_run_stages(t, plan, ms);
  if (status == NSA_E_CUDA && !nsai_tune_survived(t)) return nsai_tune_lost(t, task, taken);
  for (int k = 0; k < task->stage_count; k++) {
    const candidates *c = &task->candidates[k];
    if (!taken[k]) continue;
    if (!status && keeps) keep_sample(taken[k], ms[c->stage]);
    bool needed = is_kept(c, (int)(taken[k] - c->item));
    if (status != NSA_E_CUDA || c->stage != t->at || needed) continue;
    nsai_tune_refuse(t, task, taken[k], nsa_last_error());
    *refused = true;
  }
  return *refused ? NSA_OK : status;
}

/* One try of run_rounds; `*refused`: a contender is out now, so that the columns are others. */
static nsa_status try_rounds(tuner *t, tune_task *task, int rounds, const char *what,
                             bool *refused) {
  int combinations = nsai_tune_combinations(task);
  nsai_trial_plan *plans = calloc((size_t)combinations, sizeof *plans);
  nsa_status status = NSA_OK;
  if (!plans) return nsai_fail_nomem("plans", (size_t)combinations * sizeof *plans);
  NSAI_TRY_TO(done, make_plans(t, task, combinations, plans));
  for (int i = 0; i < combinations && !*refused; i++)
    NSAI_TRY_TO(done, time_combination(t, task, i, &plans[i], false, refused));
  for (int round = 0; round < rounds && !*refused; round++) {
    if (round && nsai_tune_spent(t)) break;
    for (int i = 0; i < combinations && !*refused; i++) {
      int combination = (i + round) % combinations;
      NSAI_TRY_TO(done, nsai_tune_step(t, what));
      NSAI_TRY_TO(done, time_combination(t, task, combination, &plans[combination], true, refused));
    }
    read_sensors(t, task->record);
  }
done:
  take_medians(task); /* also what an interrupted round has */
  for (int i = 0; i < combinations; i++) nsa_plan_destroy(plans[i].plan);
  free(plans);
  return status;
}

/* `rounds` rounds over all columns, each beginning one further; the first run of each column only
 * warms up. Ends early, after a whole round, when the budget does. */
static nsa_status run_rounds(tuner *t, tune_task *task, int rounds, const char *what) {
  bool refused;
  do {
    refused = false;
    NSAI_TRY(try_rounds(t, task, rounds, what, &refused));
  } while (refused);
  return NSA_OK;
}

static double best_of(const candidates *c) {
  double best = INFINITY;
  for (int k = 0; k < c->count; k++)
    if (c->item[k].alive && c->item[k].fused_time.ms < best) best = c->item[k].fused_time.ms;
  return best;
}

static void drop_slow(tune_task *task) {
  for (int i = 0; i < task->stage_count; i++) {
    candidates *c = &task->candidates[i];
    double best = best_of(c);
    for (int k = 0; k < c->count; k++) {
      measured_candidate *one = &c->item[k];
      bool slow = isfinite(one->fused_time.ms) && one->fused_time.ms > DROP * best;
      if (!one->alive || is_kept(c, k) || one->timing.rounds < TUNE_LEAST_ROUNDS || !slow) continue;
      one->alive = false;
      one->timing.state = NSAI_TIMING_DROPPED;
    }
  }
}

static int faster(const void *a, const void *b) {
  const measured_candidate *x = *(measured_candidate *const *)a,
                           *y = *(measured_candidate *const *)b;
  if (x->fused_time.ms != y->fused_time.ms) return x->fused_time.ms < y->fused_time.ms ? -1 : 1;
  return strcmp(x->timing.candidate, y->timing.candidate);
}

/* Leaves the best of each stage and the heuristic's choices, with fresh samples to come: the best of
 * many noisy samples is partly the luckiest. */
static nsa_status leave_finalists(tune_task *task) {
  for (int i = 0; i < task->stage_count; i++) {
    candidates *c = &task->candidates[i];
    measured_candidate **order = calloc((size_t)c->count + 1, sizeof *order);
    int count = 0;
    if (!order) return nsai_fail_nomem("finalists", (size_t)c->count * sizeof *order);
    for (int k = 0; k < c->count; k++)
      if (c->item[k].alive && c->item[k].timing.rounds) order[count++] = &c->item[k];
    qsort(order, (size_t)count, sizeof(measured_candidate *), faster);
    for (int k = 0; k < count; k++) {
      bool stays = k < FINALISTS || is_kept(c, (int)(order[k] - c->item));
      order[k]->alive = stays;
      if (!stays) continue;
      order[k]->before_ms = order[k]->rounds ? order[k]->timing.ms : 0;
      order[k]->rounds = 0;
    }
    free(order);
  }
  return NSA_OK;
}

/* How much longer the finalists took than in the rounds before: the median; 1: nothing is known. */
static double final_ratio(const candidates *c) {
  double ratios[TUNE_MAX_ROUNDS], median = 1, spread;
  int count = 0;
  for (int k = 0; k < c->count; k++) {
    const measured_candidate *one = &c->item[k];
    if (one->alive && one->rounds && one->before_ms > 0 && count < TUNE_MAX_ROUNDS)
      ratios[count++] = one->timing.ms / one->before_ms;
  }
  if (count) nsai_tune_summarise(ratios, count, &median, &spread);
  return median;
}

/* What was measured in this call before the final, at the final's clocks. */
static void restate_others(tune_task *task) {
  for (int i = 0; i < task->stage_count; i++) {
    candidates *c = &task->candidates[i];
    double ratio = final_ratio(c);
    for (int k = 0; k < c->count; k++)
      if (!c->item[k].alive && c->item[k].rounds) c->item[k].timing.ms *= ratio;
  }
}

static bool takes_part(const measured_candidate *c) { return c->alive && c->timing.rounds; }

/* The first, in the order of the contest, that is as fast as the fastest: two runs that measure the
 * same must choose the same. */
static measured_candidate *first_of_best(const candidates *c) {
  double best = INFINITY;
  for (int k = 0; k < c->count; k++)
    if (takes_part(&c->item[k])) best = fmin(best, c->item[k].fused_time.ms);
  double limit = fmax(best * (1 + TIE), best + TICK_MS);
  for (int k = 0; k < c->count; k++)
    if (takes_part(&c->item[k]) && c->item[k].fused_time.ms <= limit) return &c->item[k];
  return &c->item[0];
}

/* By how much x is faster than y, and how sure that is. Where both stand for the same stages, the two of
 * each round are compared: what drifts between rounds drifts for both. */
static double measure_gain(const measured_candidate *x, const measured_candidate *y,
                           double *spread) {
  double ratios[TUNE_MAX_ROUNDS], median;
  const nsai_fused_time *a = &x->fused_time, *b = &y->fused_time;
  *spread = hypot(a->spread, b->spread);
  if (x->rounds != y->rounds || x->rounds < TUNE_LEAST_ROUNDS || a->fuses != b->fuses || a->rest)
    return 1 - a->ms / b->ms;
  for (int i = 0; i < x->rounds; i++) ratios[i] = x->samples[i] / y->samples[i];
  nsai_tune_summarise(ratios, x->rounds, &median, spread);
  return 1 - median;
}

/* The winner must be faster than the heuristic's choice by more than the noise and min_gain. */
static void choose_winner(const tuner *t, candidates *c) {
  measured_candidate *first = &c->item[0], *best = first_of_best(c);
  if (!isfinite(first->fused_time.ms)) return;
  double spread, gain = measure_gain(best, first, &spread);
  double noise = fmax(TUNE_NOISE * spread, TICK_MS / first->fused_time.ms);
  bool thin = best->timing.rounds < TUNE_LEAST_ROUNDS || first->timing.rounds < TUNE_LEAST_ROUNDS;
  if (best != first && (thin || gain <= fmax(noise, t->ctx->config->tuning.min_gain))) best = first;
  for (int k = 0; k < c->count; k++) c->item[k].timing.chosen = &c->item[k] == best;
}

/* What is covered lies behind what covers it, and is weighed by its winner. */
static void choose_winners(const tuner *t, tune_task *task) {
  for (int i = task->stage_count - 1; i >= 0; i--) {
    nsai_tune_fused_times(task);
    choose_winner(t, &task->candidates[i]);
  }
  nsai_tune_fused_times(task);
}

const measured_candidate *nsai_tune_winner(const candidates *c) {
  for (int k = 0; k < c->count; k++)
    if (c->item[k].timing.chosen) return &c->item[k];
  return NULL;
}

/* Candidates that are no contenders any more, of another library's record, win no longer. */
static nsa_status copy_timings(tune_task *task) {
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *c = &task->candidates[i];
    int32_t count = 0;
    nsai_timing *known = nsai_record_stage(task->record, nsai_stage_name(c->stage), &count);
    for (int32_t k = 0; k < count; k++) {
      known[k].is_default = false;
      if (nsai_tune_winner(c)) known[k].chosen = false;
    }
    for (int k = 0; k < c->count; k++) {
      nsai_timing timing = c->item[k].timing;
      const nsai_timing *old = nsai_record_find(task->record, timing.stage, timing.candidate);
      if (!timing.rounds && timing.state == NSAI_TIMING_OK) continue;
      if (!nsai_tune_winner(c)) timing.chosen = old && old->chosen;
      NSAI_TRY(nsai_record_add(task->record, &timing));
    }
  }
  return NSA_OK;
}

/* Whether saving would put timings without winners in the place of another environment's winners,
 * which still serve. */
static bool would_lose(const tuner *t, const tune_task *task) {
  const nsai_record *r = task->record;
  nsai_record *old = NULL;
  bool loses = false;
  for (int i = 0; i < task->stage_count; i++)
    if (nsai_tune_winner(&task->candidates[i])) return false;
  if (!nsai_records_find(nsai_context_records(t->ctx), r->device, r->arch, r->sms, r->problem,
                         &old))
    return false;
  if (!nsai_record_same_environment(r, old))
    for (int32_t i = 0; i < old->timing_count; i++) loses |= old->timings[i].chosen;
  nsai_record_destroy(old);
  return loses;
}

nsa_status nsai_tune_keep(tuner *t, tune_task *task) {
  NSAI_TRY(copy_timings(task));
  if (!task->record->timing_count || would_lose(t, task)) return NSA_OK;
  /* Where the old one stays, in a folder that cannot be written, it is merged with the new. */
  if (task->replaces) (void)nsai_records_remove(nsai_context_records(t->ctx), task->record);
  task->replaces = false;
  return nsai_records_save(nsai_context_records(t->ctx), task->record);
}

static void emit_timed(tuner *t, tune_task *task) {
  for (int i = 0; i < task->stage_count; i++)
    for (int k = 0; k < task->candidates[i].count; k++) {
      const measured_candidate *c = &task->candidates[i].item[k];
      if (c->timing.rounds) nsai_tune_emit(t, NSA_TUNE_TIMED, task, c, c->timing.note);
    }
}

nsa_status nsai_tune_time(tuner *t, tune_task *task) {
  /* What an earlier call measured is not measured again, but for the heuristic's choices, which
   * later rounds compare with. */
  for (int i = 0; i < task->stage_count; i++)
    for (int k = 0; k < task->candidates[i].count; k++)
      if (task->candidates[i].item[k].timing.rounds && !is_kept(&task->candidates[i], k))
        task->candidates[i].item[k].alive = false;
  NSAI_TRY(run_rounds(t, task, FIRST_ROUNDS, "timing"));
  drop_slow(task);
  NSAI_TRY(nsai_tune_keep(t, task));
  if (!nsai_tune_spent(t)) NSAI_TRY(run_rounds(t, task, ROUNDS, "timing"));
  /* Those of earlier calls are back for the final. */
  for (int i = 0; i < task->stage_count; i++)
    for (int k = 1; k < task->candidates[i].count; k++) {
      measured_candidate *c = &task->candidates[i].item[k];
      c->alive |= c->timing.rounds && c->timing.state == NSAI_TIMING_OK;
    }
  NSAI_TRY(nsai_tune_keep(t, task));
  emit_timed(t, task);
  NSAI_TRY(leave_finalists(task));
  NSAI_TRY(run_rounds(t, task, TUNE_FINAL_ROUNDS, "confirming"));
  restate_others(task);
  choose_winners(t, task);
  return nsai_tune_keep(t, task);
}
