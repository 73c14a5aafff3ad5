/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * How fast: whole forwards with an event on either side of every stage, so that each stage has the
 * inputs and the neighbours of real runs, and one run times a candidate of every stage at once.
 * Before each stage the L2 is flushed, outside the timed span. Rounds go over all columns in turn,
 * so that clocks and temperature drift for all alike. Candidates are compared by their weights. A
 * final among the best may find other clocks than the rounds before it, where slow candidates let the
 * device rest; what was measured before is told at the final's clocks.
 *
 * A sample is one launch of a stage, however short. Launching it again within the span would measure
 * another thing: the second launch finds in the L2 what the first has read, and attention adds to a
 * partial sum that must be added to once. The floor is met from the other side: events tell times
 * apart to 0.5 us (CUDA's documentation of cuEventElapsedTime), and what differs by less than
 * TICK_MS counts as equal, so that for the shortest stages the heuristic's choice stays.
 */
#include "forward.h"
#include "tune_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROUNDS 3 /* then the slow ones are dropped */
#define ROUNDS 4       /* of the others */
#define FINAL_ROUNDS 5 /* of the best and the heuristic's choice */
#define FINALISTS 3
#define DROP 1.25 /* times the best after the first rounds */
#define NOISE 1.5 /* spreads that a winner must be ahead: of the rounds' ratios, or of both times */
#define TIE 0.01  /* of the fastest: as fast */
#define TICK_MS 0.001  /* two events' uncertainty of 0.5 us each */
#define MOST_CHUNKS 64 /* of importance and select that are timed, evenly spread */
#define LEAST_ROUNDS 3 /* that decide anything */
#define LONG_MS 100.0  /* runs of this length are noisy by far less than their differences */

/* ---- data ---- */

void nsai_tune_data_free(tuner *t) {
  int threads = t->bench.threads;
  if (t->has_data) nsai_trial_bench_destroy(&t->bench);
  t->bench.threads = threads;
  t->has_data = false;
}

/* Whether the tensors that are there serve the task: dense attention reads those of any forward. */
static bool data_serves(const tuner *t, const tune_task *task) {
  if (!t->has_data || t->c.kv_len[0] != task->tokens) return false;
  if (memcmp(&t->c.geometry, &task->problem.model, sizeof t->c.geometry)) return false;
  if (task->problem.op == NSA_OP_DENSE) return true;
  return t->c.kind == NSAI_TRIAL_FORWARD && t->c.fill == task->fill &&
         t->c.selection == task->problem.selection;
}

static void drop_slot(nsai_trial_data *d, int slot) {
  if (d->buffer[slot].device) nsai_trial_buffer_destroy(d->device, &d->buffer[slot]);
  d->view[slot].ndim = 0;
}

/* How much the selections overlap, by one run. */
static nsa_status measure_overlap(tuner *t) {
  nsai_trial_data *d = &t->bench.data;
  nsai_trial_overlap overlap = { 0 };
  if (!nsai_trial_data_has(d, NSAI_TRIAL_INDEX)) return NSA_OK;
  NSAI_TRY(nsai_trial_bench_enqueue(&t->bench, 0, NULL));
  NSAI_TRY(nsai_trial_device_wait(&t->device, NULL));
  NSAI_TRY(nsai_trial_buffer_fetch(&t->device, &d->buffer[NSAI_TRIAL_INDEX]));
  nsa_tensor index = nsai_trial_data_view(d, NSAI_TRIAL_INDEX, NSAI_TRIAL_HOST);
  nsai_trial_overlap_measure(&t->c.geometry, &index, 0, &overlap);
  t->overlap = overlap;
  return NSA_OK;
}

nsa_status nsai_tune_data(tuner *t, const tune_task *task) {
  nsai_decisions decisions;
  contender *taken[NSAI_STAGE_COUNT];
  nsai_trial_plan plan;
  nsa_status status = NSA_OK;
  if (data_serves(t, task)) return NSA_OK;
  nsai_tune_data_free(t);
  t->overlap = (nsai_trial_overlap){ 0 };
  nsai_tune_case(&task->problem, task->tokens, task->fill, &t->c);
  nsai_tune_column(task, 0, &decisions, taken);
  NSAI_TRY(nsai_tune_plan(t, &task->problem, &decisions, &plan));
  t->has_data = true;
  NSAI_TRY_TO(done,
              nsai_trial_bench_prepare(&t->device, &t->c, &plan, t->bench.threads, &t->bench));
  drop_slot(&t->bench.data, NSAI_TRIAL_PROBE_ROWS);
  drop_slot(&t->bench.data, NSAI_TRIAL_PROBE);
  if (task->problem.op == NSA_OP_FORWARD) NSAI_TRY_TO(done, measure_overlap(t));
  nsai_trial_data_drop_optional(&t->bench.data);
done:
  t->bench.plan = (nsai_trial_plan){ 0 }; /* each run brings its own */
  nsa_plan_destroy(plan.plan);
  return status;
}

/* ---- one run ---- */

/* Spans of one run: events come in pairs. */
typedef struct spans {
  tuner *t;
  int used; /* events */
  nsai_stage stage[TUNE_MAX_EVENTS / 2];
  bool flushed[NSAI_STAGE_COUNT];
  int64_t every;                    /* of a stage's pieces, one so often is timed */
  int64_t pieces[NSAI_STAGE_COUNT]; /* begun so far */
} spans;

static nsa_status record_event(tuner *t, int index) {
  return NSAI_CUDA(t->device.driver, cuEventRecord(t->events[index], t->device.stream));
}

static nsa_status flush(tuner *t) {
  return NSAI_CUDA(t->device.driver, cuMemsetD8Async((nsai_cu_ptr)(uintptr_t)t->flush, 0,
                                                     NSAI_TRIAL_FLUSH_BYTES, t->device.stream));
}

static nsa_status mark(void *user, nsai_stage stage, bool begins) {
  spans *s = user;
  s->t->at = NSAI_STAGE_COUNT;
  if (begins) s->pieces[stage]++;
  if (begins) s->t->at = stage;
  if ((s->pieces[stage] - 1) % s->every) return NSA_OK;
  if (s->used >= s->t->event_count)
    return nsai_fail(NSA_E_INTERNAL, "a run has more pieces than the tuner has events");
  if (begins && !s->flushed[stage]) NSAI_TRY(flush(s->t));
  s->flushed[stage] |= begins;
  if (begins) s->stage[s->used / 2] = stage;
  return record_event(s->t, s->used++);
}

static nsa_status elapsed(const tuner *t, int first, double *ms) {
  float value = 0;
  NSAI_TRY(NSAI_CUDA(t->device.driver,
                     cuEventElapsedTime(&value, t->events[first], t->events[first + 1])));
  *ms = (double)value;
  return NSA_OK;
}

/* Enqueues the plan's call on the tensors that are there. */
static nsa_status enqueue(tuner *t, const nsai_trial_plan *plan, const nsai_marks *marks) {
  nsai_trial_data *d = &t->bench.data;
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_batch batch;
  nsa_io io;
  NSAI_TRY(nsai_trial_data_workspace(d, plan->caps.workspace_bytes));
  exec.workspace = d->workspace;
  exec.workspace_bytes = d->workspace_bytes;
  exec.stream = t->device.stream;
  nsai_trial_data_io(d, NSAI_TRIAL_ON_DEVICE, &batch, &io);
  return nsai_run_marked(plan->plan, &exec, NULL, &io, marks);
}

/* Milliseconds of every stage in one run. */
static nsa_status time_stages(tuner *t, const nsai_trial_plan *plan, double ms[NSAI_STAGE_COUNT]) {
  int64_t chunk = plan->plan->layout.chunk_tokens, tokens = t->c.kv_len[0];
  int64_t chunks = chunk ? (tokens + chunk - 1) / chunk : 1;
  spans s = { .t = t, .every = chunks / MOST_CHUNKS + 1 };
  nsai_marks marks = { mark, &s };
  memset(ms, 0, NSAI_STAGE_COUNT * sizeof *ms);
  t->at = NSAI_STAGE_COUNT;
  NSAI_TRY(enqueue(t, plan, &marks));
  NSAI_TRY(nsai_trial_device_wait(&t->device, NULL));
  for (int i = 0; i + 1 < s.used; i += 2) {
    double span = 0;
    NSAI_TRY(elapsed(t, i, &span));
    ms[s.stage[i / 2]] += span;
  }
  return NSA_OK;
}

/* Milliseconds of one whole run. */
static nsa_status time_whole(tuner *t, const nsai_trial_plan *plan, double *ms) {
  NSAI_TRY(flush(t));
  NSAI_TRY(record_event(t, 0));
  NSAI_TRY(enqueue(t, plan, NULL));
  NSAI_TRY(record_event(t, 1));
  NSAI_TRY(nsai_trial_device_wait(&t->device, NULL));
  return elapsed(t, 0, ms);
}

/* ---- statistics ---- */

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Median, and half the distance of the quartiles relative to it. */
static void summarise(const double *samples, int count, double *median, double *spread) {
  double v[TUNE_MAX_ROUNDS];
  memcpy(v, samples, (size_t)count * sizeof *v);
  qsort(v, (size_t)count, sizeof *v, ascending);
  *median = count % 2 ? v[count / 2] : (v[count / 2 - 1] + v[count / 2]) / 2;
  *spread = *median > 0 ? (v[3 * count / 4] - v[count / 4]) / 2 / *median : 0;
}

static void settle(contender *c) {
  if (!c->rounds) return;
  summarise(c->samples, c->rounds, &c->timing.ms, &c->timing.spread);
  c->timing.rounds = c->rounds;
  c->timing.state = NSAI_TIMING_OK;
}

/* ---- rounds ---- */

/* A stage that launched nothing (importance, where every block is chosen) has no time. */
static void keep_sample(contender *c, double ms) {
  if (ms > 0 && c->rounds < TUNE_MAX_ROUNDS) c->samples[c->rounds++] = ms;
}

/* Makes the plans of all columns. */
static nsa_status make_columns(tuner *t, tune_task *task, int columns, nsai_trial_plan *plans) {
  for (int i = 0; i < columns; i++) {
    nsai_decisions decisions;
    contender *taken[NSAI_STAGE_COUNT];
    nsai_tune_column(task, i, &decisions, taken);
    NSAI_TRY(nsai_tune_plan(t, &task->problem, &decisions, &plans[i]));
  }
  return NSA_OK;
}

static void settle_all(tune_task *task) {
  for (int i = 0; i < task->contests; i++)
    for (int k = 0; k < task->contest[i].count; k++)
      if (task->contest[i].item[k].alive) settle(&task->contest[i].item[k]);
  nsai_tune_weigh(task);
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
static bool is_kept(const contest *c, int index) { return !index || index == c->apart; }

/* Bytes of workspace with one contender, and the heuristic's choices around it. */
static nsa_status ask_room(tuner *t, const tune_task *task, const contender *one, uint64_t *bytes) {
  nsai_decisions decisions;
  nsai_trial_plan plan;
  nsai_tune_around(task, one, &decisions);
  NSAI_TRY(nsai_tune_plan(t, &task->problem, &decisions, &plan));
  *bytes = plan.caps.workspace_bytes;
  nsa_plan_destroy(plan.plan);
  return NSA_OK;
}

/* The device has no room for a column's workspace: contenders that want more of it than the heuristic's
 * choices are out, or all if none does by itself. Fails where there is nobody to blame. */
static nsa_status refuse_roomless(tuner *t, tune_task *task,
                                  contender *const taken[NSAI_STAGE_COUNT], bool *refused) {
  uint64_t usual = 0, wanted[NSAI_STAGE_COUNT] = { 0 };
  bool larger = false;
  char why[512];
  snprintf(why, sizeof why, "%s", nsa_last_error());
  NSAI_TRY(ask_room(t, task, &task->contest[0].item[0], &usual));
  for (int k = 0; k < task->contests; k++) {
    const contest *c = &task->contest[k];
    if (!taken[k] || is_kept(c, (int)(taken[k] - c->item))) continue;
    NSAI_TRY(ask_room(t, task, taken[k], &wanted[k]));
    larger |= wanted[k] > usual;
  }
  for (int k = 0; k < task->contests; k++) {
    if (!wanted[k] || (larger && wanted[k] <= usual)) continue;
    nsai_tune_refuse(t, task, taken[k], why);
    *refused = true;
  }
  return *refused ? NSA_OK : nsai_fail_text(NSA_E_CUDA, why);
}

/* Times one run of a column. A contender whose launch the device refuses, or for whose workspace it
 * has no room, at this length as it was not when it was verified, is out, and `*refused` says so; the
 * heuristic's choices are needed. */
static nsa_status time_column(tuner *t, tune_task *task, int column, const nsai_trial_plan *plan,
                              bool keeps, bool *refused) {
  nsai_decisions decisions;
  contender *taken[NSAI_STAGE_COUNT];
  double ms[NSAI_STAGE_COUNT];
  nsai_tune_column(task, column, &decisions, taken);
  nsa_status status = nsai_trial_data_workspace(&t->bench.data, plan->caps.workspace_bytes);
  if (status == NSA_E_CUDA && nsai_tune_survived(t))
    return refuse_roomless(t, task, taken, refused);
  if (!status) status = time_stages(t, plan, ms);
  if (status == NSA_E_CUDA && !nsai_tune_survived(t)) return nsai_tune_lost(t, task, taken);
  for (int k = 0; k < task->contests; k++) {
    const contest *c = &task->contest[k];
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
  int columns = nsai_tune_columns(task);
  nsai_trial_plan *plans = calloc((size_t)columns, sizeof *plans);
  nsa_status status = NSA_OK;
  if (!plans) return nsai_fail_nomem("plans", (size_t)columns * sizeof *plans);
  NSAI_TRY_TO(done, make_columns(t, task, columns, plans));
  for (int i = 0; i < columns && !*refused; i++)
    NSAI_TRY_TO(done, time_column(t, task, i, &plans[i], false, refused));
  for (int round = 0; round < rounds && !*refused; round++) {
    if (round && nsai_tune_spent(t)) break;
    for (int i = 0; i < columns && !*refused; i++) {
      int column = (i + round) % columns;
      NSAI_TRY_TO(done, nsai_tune_step(t, what));
      NSAI_TRY_TO(done, time_column(t, task, column, &plans[column], true, refused));
    }
    read_sensors(t, task->record);
  }
done:
  settle_all(task); /* also what an interrupted round has */
  for (int i = 0; i < columns; i++) nsa_plan_destroy(plans[i].plan);
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

static double best_of(const contest *c) {
  double best = INFINITY;
  for (int k = 0; k < c->count; k++)
    if (c->item[k].alive && c->item[k].weight.ms < best) best = c->item[k].weight.ms;
  return best;
}

static void drop_slow(tune_task *task) {
  for (int i = 0; i < task->contests; i++) {
    contest *c = &task->contest[i];
    double best = best_of(c);
    for (int k = 0; k < c->count; k++) {
      contender *one = &c->item[k];
      bool slow = isfinite(one->weight.ms) && one->weight.ms > DROP * best;
      if (!one->alive || is_kept(c, k) || one->timing.rounds < LEAST_ROUNDS || !slow) continue;
      one->alive = false;
      one->timing.state = NSAI_TIMING_DROPPED;
    }
  }
}

static int faster(const void *a, const void *b) {
  const contender *x = *(contender *const *)a, *y = *(contender *const *)b;
  if (x->weight.ms != y->weight.ms) return x->weight.ms < y->weight.ms ? -1 : 1;
  return strcmp(x->timing.candidate, y->timing.candidate);
}

/* Leaves the best of each stage and the heuristic's choices, with fresh samples to come: the best of
 * many noisy samples is partly the luckiest. */
static nsa_status leave_finalists(tune_task *task) {
  for (int i = 0; i < task->contests; i++) {
    contest *c = &task->contest[i];
    contender **order = calloc((size_t)c->count + 1, sizeof *order);
    int count = 0;
    if (!order) return nsai_fail_nomem("finalists", (size_t)c->count * sizeof *order);
    for (int k = 0; k < c->count; k++)
      if (c->item[k].alive && c->item[k].timing.rounds) order[count++] = &c->item[k];
    qsort(order, (size_t)count, sizeof(contender *), faster);
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
static double final_ratio(const contest *c) {
  double ratios[TUNE_MAX_ROUNDS], median = 1, spread;
  int count = 0;
  for (int k = 0; k < c->count; k++) {
    const contender *one = &c->item[k];
    if (one->alive && one->rounds && one->before_ms > 0 && count < TUNE_MAX_ROUNDS)
      ratios[count++] = one->timing.ms / one->before_ms;
  }
  if (count) summarise(ratios, count, &median, &spread);
  return median;
}

/* What was measured in this call before the final, at the final's clocks. */
static void restate_others(tune_task *task) {
  for (int i = 0; i < task->contests; i++) {
    contest *c = &task->contest[i];
    double ratio = final_ratio(c);
    for (int k = 0; k < c->count; k++)
      if (!c->item[k].alive && c->item[k].rounds) c->item[k].timing.ms *= ratio;
  }
}

static bool takes_part(const contender *c) { return c->alive && c->timing.rounds; }

/* The first, in the order of the contest, that is as fast as the fastest: two runs that measure the
 * same must choose the same. */
static contender *first_of_best(const contest *c) {
  double best = INFINITY;
  for (int k = 0; k < c->count; k++)
    if (takes_part(&c->item[k])) best = fmin(best, c->item[k].weight.ms);
  double limit = fmax(best * (1 + TIE), best + TICK_MS);
  for (int k = 0; k < c->count; k++)
    if (takes_part(&c->item[k]) && c->item[k].weight.ms <= limit) return &c->item[k];
  return &c->item[0];
}

/* By how much x is faster than y, and how sure that is. Where both stand for the same stages, the two of
 * each round are compared: what drifts between rounds drifts for both. */
static double measure_gain(const contender *x, const contender *y, double *spread) {
  double ratios[TUNE_MAX_ROUNDS], median;
  const nsai_weight *a = &x->weight, *b = &y->weight;
  *spread = hypot(a->spread, b->spread);
  if (x->rounds != y->rounds || x->rounds < LEAST_ROUNDS || a->covers != b->covers || a->rest)
    return 1 - a->ms / b->ms;
  for (int i = 0; i < x->rounds; i++) ratios[i] = x->samples[i] / y->samples[i];
  summarise(ratios, x->rounds, &median, spread);
  return 1 - median;
}

/* The winner must be faster than the heuristic's choice by more than the noise and min_gain. */
static void choose_winner(const tuner *t, contest *c) {
  contender *first = &c->item[0], *best = first_of_best(c);
  if (!isfinite(first->weight.ms)) return;
  double spread, gain = measure_gain(best, first, &spread);
  double noise = fmax(NOISE * spread, TICK_MS / first->weight.ms);
  bool thin = best->timing.rounds < LEAST_ROUNDS || first->timing.rounds < LEAST_ROUNDS;
  if (best != first && (thin || gain <= fmax(noise, t->ctx->config->tuning.min_gain))) best = first;
  for (int k = 0; k < c->count; k++) c->item[k].timing.chosen = &c->item[k] == best;
}

/* What is covered lies behind what covers it, and is weighed by its winner. */
static void choose_winners(const tuner *t, tune_task *task) {
  for (int i = task->contests - 1; i >= 0; i--) {
    nsai_tune_weigh(task);
    choose_winner(t, &task->contest[i]);
  }
  nsai_tune_weigh(task);
}

static const contender *winner(const contest *c) {
  for (int k = 0; k < c->count; k++)
    if (c->item[k].timing.chosen) return &c->item[k];
  return NULL;
}

/* Candidates that are no contenders any more, of another library's record, win no longer. */
static nsa_status copy_timings(tune_task *task) {
  for (int i = 0; i < task->contests; i++) {
    const contest *c = &task->contest[i];
    int32_t count = 0;
    nsai_timing *known = nsai_record_stage(task->record, nsai_stage_name(c->stage), &count);
    for (int32_t k = 0; k < count; k++) {
      known[k].is_default = false;
      if (winner(c)) known[k].chosen = false;
    }
    for (int k = 0; k < c->count; k++) {
      nsai_timing timing = c->item[k].timing;
      const nsai_timing *old = nsai_record_find(task->record, timing.stage, timing.candidate);
      if (!timing.rounds && timing.state == NSAI_TIMING_OK) continue;
      if (!winner(c)) timing.chosen = old && old->chosen;
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
  for (int i = 0; i < task->contests; i++)
    if (winner(&task->contest[i])) return false;
  if (!nsai_records_find(t->ctx->records, r->device, r->arch, r->sms, r->problem, &old))
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
  if (task->replaces) (void)nsai_records_remove(t->ctx->records, task->record);
  task->replaces = false;
  return nsai_records_save(t->ctx->records, task->record);
}

static void tell_timed(tuner *t, tune_task *task) {
  for (int i = 0; i < task->contests; i++)
    for (int k = 0; k < task->contest[i].count; k++) {
      const contender *c = &task->contest[i].item[k];
      if (c->timing.rounds) nsai_tune_tell(t, NSA_TUNE_TIMED, task, c, c->timing.note);
    }
}

nsa_status nsai_tune_time(tuner *t, tune_task *task) {
  /* What an earlier call measured is not measured again, but for the heuristic's choices, which
   * later rounds compare with. */
  for (int i = 0; i < task->contests; i++)
    for (int k = 0; k < task->contest[i].count; k++)
      if (task->contest[i].item[k].timing.rounds && !is_kept(&task->contest[i], k))
        task->contest[i].item[k].alive = false;
  NSAI_TRY(run_rounds(t, task, FIRST_ROUNDS, "timing"));
  drop_slow(task);
  NSAI_TRY(nsai_tune_keep(t, task));
  if (!nsai_tune_spent(t)) NSAI_TRY(run_rounds(t, task, ROUNDS, "timing"));
  /* Those of earlier calls are back for the final. */
  for (int i = 0; i < task->contests; i++)
    for (int k = 1; k < task->contest[i].count; k++) {
      contender *c = &task->contest[i].item[k];
      c->alive |= c->timing.rounds && c->timing.state == NSAI_TIMING_OK;
    }
  NSAI_TRY(nsai_tune_keep(t, task));
  tell_timed(t, task);
  NSAI_TRY(leave_finalists(task));
  NSAI_TRY(run_rounds(t, task, FINAL_ROUNDS, "confirming"));
  restate_others(task);
  choose_winners(t, task);
  return nsai_tune_keep(t, task);
}

/* ---- the whole ---- */

/* A plan whose whole runs are compared with those of others. */
typedef struct entrant {
  nsai_trial_plan plan;
  nsai_baseline base;
  bool optional; /* where the device has no room for it, it is left out */
  int rounds;    /* 0: left out */
  double samples[FINAL_ROUNDS];
} entrant;

#define MOST_ENTRANTS 4

static nsa_status warm_up(tuner *t, entrant *e) {
  double warm = 0;
  nsa_status status = time_whole(t, &e->plan, &warm);
  if (status == NSA_E_CUDA && e->optional && nsai_tune_survived(t)) return NSA_OK;
  e->rounds = warm > LONG_MS ? LEAST_ROUNDS : FINAL_ROUNDS;
  return status;
}

/* All in turn, and back: none of them always follows the same other, which may leave the device warm
 * or its clocks low. They share one workspace, which is that of the largest. */
static nsa_status time_entrants(tuner *t, entrant *e, int count) {
  /* The optional ones first: one that has failed leaves no workspace. */
  for (int i = count; i-- > 0;) NSAI_TRY(warm_up(t, &e[i]));
  for (int r = 0; r < FINAL_ROUNDS; r++)
    for (int i = 0; i < count; i++) {
      entrant *next = &e[r % 2 ? count - 1 - i : i];
      if (r >= next->rounds) continue;
      NSAI_TRY(nsai_tune_step(t, "timing the whole"));
      NSAI_TRY(time_whole(t, &next->plan, &next->samples[r]));
    }
  for (int i = 0; i < count; i++)
    if (e[i].rounds) summarise(e[i].samples, e[i].rounds, &e[i].base.ms, &e[i].base.spread);
  return NSA_OK;
}

static void winners(const tune_task *task, bool chosen, nsai_decisions *out) {
  *out = (nsai_decisions){ .why = "the tuner" };
  for (int i = 0; i < task->contests; i++) {
    const contest *c = &task->contest[i];
    out->stage[c->stage] = c->item[0].what;
    for (int k = 0; k < c->count && chosen; k++)
      if (c->item[k].timing.chosen) out->stage[c->stage] = c->item[k].what;
  }
}

static void tell_baseline(tuner *t, tune_task *task, const nsai_baseline *base) {
  contender told = { .timing = { .ms = base->ms, .spread = base->spread } };
  snprintf(told.timing.candidate, sizeof told.timing.candidate, "%s", base->name);
  nsai_tune_tell(t, NSA_TUNE_BASELINE, task, &told, "");
}

/* Adds the unfused baseline on the same tensors; where it cannot serve, there is none. */
static nsa_status add_gemm(tuner *t, const nsai_problem *dense, entrant *e, int *count) {
  nsai_decisions decisions = { .why = "the tuner" };
  nsai_candidate *gemm = &decisions.stage[NSAI_STAGE_DENSE];
  nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
  if (!nsai_candidate_parse("sdpa_gemm", NSAI_STAGE_DENSE, gemm)) return NSA_OK;
  nsai_variant_judge(t->ctx->config, dense, &t->ctx->target, gemm->variant, &reasons);
  if (reasons.count) return NSA_OK;
  nsa_status status = nsai_tune_plan(t, dense, &decisions, &e[*count].plan);
  if (status) return status == NSA_E_NO_CUBLASLT ? NSA_OK : status;
  e[*count].base = (nsai_baseline){ .name = "sdpa_gemm" };
  e[(*count)++].optional = true;
  return NSA_OK;
}

/* Adds dense attention by its record, and unfused. */
static nsa_status add_baselines(tuner *t, const tune_task *task, entrant *e, int *count) {
  nsai_problem dense = task->problem;
  nsai_decisions decisions;
  dense.op = NSA_OP_DENSE;
  dense.selection = NSA_SELECT_OWN;
  dense.max_probe_rows = 0;
  nsai_decisions_recall(t->ctx, &dense, &decisions);
  NSAI_TRY(nsai_tune_plan(t, &dense, &decisions, &e[*count].plan));
  e[(*count)++].base = (nsai_baseline){ .name = "dense" };
  return add_gemm(t, &dense, e, count);
}

/* The baselines of a length are measured once, beside its first forward. */
static void take_baselines(tuner *t, const tune_task *task, const entrant *e, int count) {
  t->base_count = 0;
  t->base_tokens = task->tokens;
  for (int i = 0; i < count; i++)
    if (e[i].rounds) t->base[t->base_count++] = e[i].base;
}

/* Whether another stage's winner covers this one, or with `first` the heuristic's choice for it. */
static bool is_covered(const tune_task *task, nsai_stage stage, bool first) {
  for (int i = 0; i < task->contests; i++) {
    const contest *c = &task->contest[i];
    const contender *runs = first ? &c->item[0] : winner(c);
    if (runs && nsai_covers(runs->what.variant, stage)) return true;
  }
  return false;
}

/* Whether the winners are the heuristic's choices, and the two wholes one. */
static bool all_first(const tune_task *task) {
  for (int i = 0; i < task->contests; i++) {
    const contest *c = &task->contest[i];
    if (winner(c) && winner(c) != &c->item[0] && !is_covered(task, c->stage, true)) return false;
  }
  return true;
}

/* The parts may be faster and the whole not: then the heuristic's choices stay, and their time is
 * the forward's. What they cover has not run; its winners stay. */
static bool prefer_whole(tune_task *task, nsai_baseline both[2]) {
  double noise = NOISE * hypot(both[0].spread, both[1].spread);
  if (all_first(task) || both[0].ms <= both[1].ms * (1 + noise)) return false;
  both[0].ms = both[1].ms;
  both[0].spread = both[1].spread;
  for (int i = 0; i < task->contests; i++) {
    contest *c = &task->contest[i];
    if (!c->item[0].timing.rounds || is_covered(task, c->stage, true)) continue;
    for (int k = 0; k < c->count; k++) c->item[k].timing.chosen = !k;
  }
  nsai_tune_weigh(task);
  return true;
}

/* There are fewer names than places. */
static void set_baselines(tune_task *task, const nsai_baseline *base, int count) {
  for (int i = 0; i < count; i++)
    (void)nsai_record_set_baseline(task->record, base[i].name, base[i].ms, base[i].spread);
}

static void tell_winners(tuner *t, const tune_task *task, const char *note) {
  for (int i = 0; i < task->contests; i++) {
    const contest *c = &task->contest[i];
    if (winner(c) && !is_covered(task, c->stage, false))
      nsai_tune_tell(t, NSA_TUNE_CHOSEN, task, winner(c), note);
  }
}

/* Adds the problem itself, with the winners and with the heuristic's choices. */
static nsa_status add_both(tuner *t, const tune_task *task, entrant *e, int *count) {
  static const char *const names[2][2] = { { "forward", "forward.default" },
                                           { "dense", "dense.default" } };
  for (int i = 0; i < 2; i++) {
    nsai_decisions decisions;
    winners(task, i == 0, &decisions);
    snprintf(e[i].base.name, sizeof e[i].base.name, "%s",
             names[task->problem.op == NSA_OP_DENSE][i]);
    NSAI_TRY(nsai_tune_plan(t, &task->problem, &decisions, &e[i].plan));
    ++*count;
  }
  return NSA_OK;
}

nsa_status nsai_tune_whole(tuner *t, tune_task *task) {
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
  bool back = prefer_whole(task, both);
  set_baselines(task, both, 2);
  if (compares) set_baselines(task, t->base, t->base_count);
  NSAI_TRY_TO(done, nsai_tune_keep(t, task)); /* what is told has been saved */
  tell_winners(t, task, back ? "the whole was slower with the winners" : "");
  for (int i = 0; i < 2; i++) tell_baseline(t, task, &both[i]);
  for (int i = 0; compares && i < t->base_count; i++) tell_baseline(t, task, &t->base[i]);
done:
  for (int i = 0; i < count; i++) nsa_plan_destroy(e[i].plan.plan);
  return status;
}
