/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * How fast candidates are. A round runs all combinations in turn (run.c), so that changes of
 * clocks and temperature affect all alike. Candidates are compared by their fused times. The
 * best then run a final. Slow candidates no longer let the device rest there, so its clocks may
 * differ; times measured before are rescaled to the final's clocks.
 *
 * Events resolve 0.5 us (CUDA's documentation of cuEventElapsedTime). Differences below TICK_MS
 * count as equal, so the heuristic's choice stays for the shortest stages.
 */
#include "tune/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROUNDS 3 /* rounds before slow candidates are dropped */
#define ROUNDS 4       /* rounds after that */
#define FINALISTS 3
#define DROP 1.25     /* dropped: slower than the best by this factor after the first rounds */
#define TIE 0.01      /* within this share of the fastest, a candidate counts as equally fast */
#define TICK_MS 0.001 /* two events with an uncertainty of 0.5 us each */

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

/* A stage without launches (importance, when every block is selected) has no time. */
static void keep_sample(measured_candidate *c, double ms) {
  if (ms > 0 && c->rounds < TUNE_MAX_ROUNDS) c->samples[c->rounds++] = ms;
}

/* Makes the plans of all combinations. */
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

/* Extends a range to include a reading; 0 is unknown. */
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

/* The heuristic's choices stay, however slow they are. */
static bool is_kept(const candidates *c, int index) { return !index || index == c->unfused; }

/* Bytes of workspace with one candidate and the heuristic's choices for the other stages. */
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

/* The device has no memory for a combination's workspace. Drops the candidates that need more of
 * it than the heuristic's choices do, or all of them if none needs more by itself. If there is
 * no candidate to drop, the task fails for lack of memory. */
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

/* Times one run of a combination. A candidate that passed verification may still fail at this
 * length: the device refuses its launch or has no memory for its workspace. It is then dropped
 * and `*refused` is set. The heuristic's choices are required to run. */
static nsa_status time_combination(tuner *t, tune_task *task, int combination,
                                   const nsai_trial_plan *plan, bool keeps, bool *refused) {
  nsai_decisions decisions;
  measured_candidate *taken[NSAI_STAGE_COUNT];
  double ms[NSAI_STAGE_COUNT];
  nsai_tune_combination(task, combination, &decisions, taken);
  nsa_status status = nsai_tune_room(t, nsai_tune_workspace(t, plan->caps.workspace_bytes));
  if (t->no_room) return refuse_roomless(t, task, taken, refused);
  if (status && (status != NSA_E_CUDA || nsai_tune_survived(t)))
    return status; /* not the fault of a candidate */
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

/* One attempt at run_rounds. `*refused`: a candidate was dropped, so the combinations have
 * changed. */
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
  take_medians(task); /* includes the samples of an interrupted round */
  for (int i = 0; i < combinations; i++) nsa_plan_destroy(plans[i].plan);
  free(plans);
  return status;
}

/* Runs `rounds` rounds over all combinations; each round begins one combination later. The first
 * run of each combination is only a warm-up. Stops early, after a complete round, when the
 * budget is spent. */
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

/* Keeps the best of each stage and the heuristic's choices, and clears their samples: the best
 * of many noisy samples is partly the luckiest. */
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

/* Median ratio of the finalists' times in the final to those before it; 1: nothing is known. */
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

/* Rescales the times measured in this call before the final to the final's clocks. */
static void restate_others(tune_task *task) {
  for (int i = 0; i < task->stage_count; i++) {
    candidates *c = &task->candidates[i];
    double ratio = final_ratio(c);
    for (int k = 0; k < c->count; k++)
      if (!c->item[k].alive && c->item[k].rounds) c->item[k].timing.ms *= ratio;
  }
}

static bool takes_part(const measured_candidate *c) { return c->alive && c->timing.rounds; }

/* The first candidate, in list order, that is as fast as the fastest. Two runs with equal
 * measurements must choose the same. */
static measured_candidate *first_of_best(const candidates *c) {
  double best = INFINITY;
  for (int k = 0; k < c->count; k++)
    if (takes_part(&c->item[k])) best = fmin(best, c->item[k].fused_time.ms);
  double limit = fmax(best * (1 + TIE), best + TICK_MS);
  for (int k = 0; k < c->count; k++)
    if (takes_part(&c->item[k]) && c->item[k].fused_time.ms <= limit) return &c->item[k];
  return &c->item[0];
}

/* By how much x is faster than y, and how certain that is. Candidates that stand for the same
 * stages are compared round by round, which cancels drift between rounds. */
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

/* A fused stage comes after the stage that fuses it, whose fused time uses the winner of that
 * stage. */
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

/* Timings in the record whose candidates no longer exist (it was made by another version of the
 * library) lose their winner mark. */
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

/* Whether saving would replace another environment's winners, which are still usable, by timings
 * without winners. */
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
  /* If the old record cannot be removed (its folder is read-only), it is merged with the new
   * one. */
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
  /* Candidates that an earlier call measured are not measured again. The heuristic's choices
   * are, because later rounds compare with them. */
  for (int i = 0; i < task->stage_count; i++)
    for (int k = 0; k < task->candidates[i].count; k++)
      if (task->candidates[i].item[k].timing.rounds && !is_kept(&task->candidates[i], k))
        task->candidates[i].item[k].alive = false;
  NSAI_TRY(run_rounds(t, task, FIRST_ROUNDS, "timing"));
  drop_slow(task);
  NSAI_TRY(nsai_tune_keep(t, task));
  if (!nsai_tune_spent(t)) NSAI_TRY(run_rounds(t, task, ROUNDS, "timing"));
  /* Candidates measured by earlier calls return for the final. */
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
