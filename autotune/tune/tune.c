/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Which problems at which lengths are tuned, in which order and within which budget;
 * what is reported and what is recorded.
 */
#include "base/duration.h"
#include "plan/kernel_set.h"
#include "tune/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SHORTEST_TOKENS 1024 /* of the lengths used when none are given */

/* ---- progress and events ---- */

bool nsai_tune_spent(const tuner *t) { return nsai_seconds() > t->deadline; }

nsa_status nsai_tune_poll(tuner *t, const char *what) {
  const nsa_tune_options *o = t->options;
  if (t->done > t->total) t->total = t->done;
  if (o->progress && o->progress(o->user, t->done, t->total, what))
    return nsai_fail(NSA_E_CANCELLED, "cancelled by the progress callback; what was measured is "
                                      "kept, and the next call goes on from there");
  return NSA_OK;
}

nsa_status nsai_tune_step(tuner *t, const char *what) {
  t->done++;
  return nsai_tune_poll(t, what);
}

/* The event of a winner reports its fused time and the stages it includes. */
static void add_fused_time(const tune_task *task, const measured_candidate *c, nsai_writer *note,
                           nsa_tune_event *event) {
  const nsai_fused_time *first = NULL;
  for (int i = 0; i < task->stage_count; i++)
    if (!strcmp(task->candidates[i].item[0].timing.stage, event->stage))
      first = &task->candidates[i].item[0].fused_time;
  nsai_fused_time_write(&c->fused_time, note);
  if (event->note[0]) nsai_write(note, "%s%s", note->used ? "; " : "", event->note);
  if (!first || !isfinite(first->ms) || !isfinite(c->fused_time.ms)) return;
  event->ms = c->fused_time.ms;
  event->spread = c->fused_time.spread;
  event->gain = 1 - event->ms / first->ms;
}

void nsai_tune_emit(const tuner *t, int32_t kind, const tune_task *task,
                    const measured_candidate *c, const char *note) {
  const nsa_tune_options *o = t->options;
  char text[512] = "";
  nsai_writer whole = nsai_writer_open(text, sizeof text);
  nsa_tune_event event = { .struct_size = sizeof event,
                           .kind = kind,
                           .problem = task->key,
                           .tokens = task->tokens,
                           .stage = "",
                           .candidate = "",
                           .note = note };
  if (c) {
    event.stage = c->timing.stage;
    event.candidate = c->timing.candidate;
    event.ms = c->timing.ms;
    event.spread = c->timing.spread;
  }
  if (kind == NSA_TUNE_CHOSEN) {
    add_fused_time(task, c, &whole, &event);
    event.note = text;
  }
  if (o->event) o->event(o->user, &event);
}

/* ---- a task ---- */

static int rank_of(const char *level) {
  for (int32_t i = 0; nsai_level_name(i); i++)
    if (!strcmp(level, nsai_level_name(i))) return i;
  return -1;
}

/* Opens the record to continue, or makes a new one. If a higher level was completed before, the
 * record keeps saying so. */
static nsa_status open_record(tuner *t, tune_task *task) {
  nsa_ctx *ctx = t->ctx;
  nsai_record *fresh = NULL, *old = NULL;
  NSAI_TRY(nsai_record_create(&fresh));
  task->record = fresh;
  nsai_tune_environment(ctx, fresh);
  snprintf(fresh->problem, sizeof fresh->problem, "%s", task->key);
  fresh->bucket = task->tokens;
  snprintf(fresh->level, sizeof fresh->level, "%s", nsai_level_name(t->level));
  time_t now = time(NULL);
  struct tm utc;
  gmtime_r(&now, &utc);
  strftime(fresh->date, sizeof fresh->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  task->replaces = t->options->fresh;
  if (t->options->fresh || !nsai_records_find(nsai_context_records(ctx), fresh->device, fresh->arch,
                                              fresh->sms, task->key, &old))
    return NSA_OK;
  if (nsai_record_same_environment(fresh, old)) {
    int rank = rank_of(old->level);
    task->done = old->complete && rank >= t->level;
    if (rank > t->level) snprintf(fresh->level, sizeof fresh->level, "%s", old->level);
  }
  nsa_status status = nsai_record_merge(fresh, old);
  fresh->complete = false;
  nsai_record_destroy(old);
  return status;
}

static void close_task(tune_task *task) {
  nsai_tune_candidates_free(task);
  nsai_record_destroy(task->record);
}

/* The problem as it is timed: one sequence of `tokens`, a prefill of its last max_tokens tokens,
 * or a decode step of max_seqs such sequences. */
static nsai_problem timed_problem(const nsai_problem *problem, int64_t tokens) {
  nsai_problem p = nsai_problem_without_ranks(problem);
  p.max_probe_rows = 0;
  p.max_kv_len = tokens;
  if (p.op == NSA_OP_DECODE) {
    p.max_tokens = (int64_t)p.max_seqs * p.max_q_len;
    p.window_ring = false; /* a ring reads the same tokens */
    return p;
  }
  p.max_seqs = 1;
  if (p.op == NSA_OP_PREFILL) {
    if (p.max_tokens > tokens) p.max_tokens = tokens;
    p.max_q_len = (int32_t)p.max_tokens;
    p.window_ring = false;
    p.split_from = 0; /* the kernels of decode are timed by themselves */
    return p;
  }
  p.max_tokens = p.max_kv_tokens = tokens;
  return p;
}

static bool knows_overlap(const nsai_problem *p) {
  return p->op == NSA_OP_FORWARD || p->op == NSA_OP_PREFILL;
}

/* Decode steps and backward passes are timed on one kind of inputs: those of trained models
 * where these are requested. */
static nsai_verify_fill fill_of(const tuner *t, const nsai_problem *p) {
  bool correlated = knows_overlap(p) && p->overlap == NSA_OVERLAP_HIGH;
  if (p->op == NSA_OP_DECODE || p->op == NSA_OP_BACKWARD)
    correlated = t->ctx->config->tuning.inputs & NSAI_INPUTS_CORRELATED;
  return correlated ? NSAI_VERIFY_FILL_CORRELATED : NSAI_VERIFY_FILL_RANDOM;
}

static nsa_status begin_task(tuner *t, const nsai_problem *problem, int64_t tokens,
                             tune_task *task) {
  nsai_writer key = nsai_writer_open(task->key, sizeof task->key);
  task->problem = timed_problem(problem, tokens);
  task->tokens = tokens;
  task->fill = fill_of(t, problem);
  nsai_tune_key(&task->problem, tokens, &key);
  if (key.used >= sizeof task->key)
    return nsai_fail(NSA_E_UNSUPPORTED, "the problem's name is too long to be recorded: %s",
                     task->key);
  NSAI_TRY(open_record(t, task));
  return nsai_tune_candidates(t, task);
}

/* Number of candidates that no earlier call has measured. */
static int count_open(const tune_task *task) {
  int count = 0;
  for (int i = 0; i < task->stage_count; i++)
    for (int k = 0; k < task->candidates[i].count; k++) {
      const nsai_timing *timing = &task->candidates[i].item[k].timing;
      count += !timing->rounds && timing->state == NSAI_TIMING_OK;
    }
  return count;
}

/* ---- estimates ---- */

#define TFLOPS_PER_SM 1.5 /* rough throughput of these kernels: 200 TFLOPS on 132 multiprocessors */
#define COMPILE_SECONDS 0.8
#define RUNS_PER_COMBINATION 9
#define RUNS_OF_WHOLE_CALL 40 /* finals, complete calls and baselines, counted in forwards */
#define BYTES_PER_SECOND 4e8  /* rate at which inputs are made and copied */
#define BACKWARD_RATIO 4      /* a backward pass takes this many times a forward */
#define STEPS_SECONDS 0.01    /* a graph of decode steps, captured and launched twice */

static double run_seconds(const tuner *t, const tune_task *task) {
  const nsai_model *m = &task->problem.model;
  double tokens = (double)task->problem.max_tokens, keys = (double)task->tokens / 2;
  if (task->problem.op == NSA_OP_DECODE) return STEPS_SECONDS;
  if (task->problem.op != NSA_OP_DENSE)
    keys = 1.5 * (double)task->tokens / m->stride / 2 + (double)m->select_count * m->select_block +
           m->window;
  double flops = 2 * tokens * keys * m->heads * (m->head_dim_qk + m->head_dim_v);
  if (task->problem.op == NSA_OP_BACKWARD) flops *= BACKWARD_RATIO;
  return flops / (TFLOPS_PER_SM * 1e12 * fmax(t->ctx->device.sm_count, 1)) + 3e-4;
}

static double estimate(const tuner *t, const tune_task *task) {
  const nsai_model *m = &task->problem.model;
  int open = count_open(task);
  double bytes = 2.0 * (double)task->tokens * m->heads * (m->head_dim_qk + m->head_dim_v);
  double runs = nsai_tune_combinations(task) * RUNS_PER_COMBINATION + RUNS_OF_WHOLE_CALL;
  return open * COMPILE_SECONDS / 4 + runs * run_seconds(t, task) + bytes / BYTES_PER_SECOND;
}

/* ---- running ---- */

/* All of one task except saving the result. */
static nsa_status work(tuner *t, tune_task *task, tune_task *donor) {
  NSAI_TRY(nsai_tune_compile(t, task));
  NSAI_TRY(nsai_tune_keep(t, task)); /* saves which candidates were refused */
  NSAI_TRY(nsai_tune_verify(t, task));
  NSAI_TRY(nsai_tune_keep(t, task)); /* saves which candidates were wrong */
  /* When the donor's tensors cannot be made, the task makes its own. */
  if (donor && nsai_tune_data(t, donor) != NSA_OK) nsai_tune_data_free(t);
  NSAI_TRY(nsai_tune_data(t, task));
  task->record->overlap_r = t->overlap.r;
  task->record->union4 = t->overlap.u4;
  task->record->union8 = t->overlap.u8;
  NSAI_TRY(nsai_tune_time(t, task));
  return nsai_tune_whole_call(t, task);
}

/* Reports the results of an earlier call as events. */
static void emit_known(tuner *t, const tune_task *task) {
  const nsai_record *r = task->record;
  for (int i = 0; i < task->stage_count; i++)
    for (int k = 0; k < task->candidates[i].count; k++) {
      const measured_candidate *c = &task->candidates[i].item[k];
      int32_t kind = c->timing.state == NSAI_TIMING_REFUSED ? NSA_TUNE_REFUSED
                     : c->timing.state == NSAI_TIMING_WRONG ? NSA_TUNE_WRONG
                                                            : NSA_TUNE_TIMED;
      if (c->timing.rounds || kind != NSA_TUNE_TIMED)
        nsai_tune_emit(t, kind, task, c, c->timing.note);
      const nsai_timing *won = nsai_record_chosen(r, c->timing.stage);
      if (won && !strcmp(won->candidate, c->timing.candidate) &&
          !nsai_record_is_fused(r, c->timing.stage))
        nsai_tune_emit(t, NSA_TUNE_CHOSEN, task, c, "");
    }
  for (int32_t i = 0; i < r->baseline_count; i++) {
    measured_candidate emitted = { .timing = { .ms = r->baselines[i].ms,
                                               .spread = r->baselines[i].spread } };
    snprintf(emitted.timing.candidate, sizeof emitted.timing.candidate, "%s", r->baselines[i].name);
    nsai_tune_emit(t, NSA_TUNE_BASELINE, task, &emitted, "");
  }
  nsai_tune_emit(t, NSA_TUNE_DONE, task, NULL, "measured before");
}

static nsa_status run_task(tuner *t, tune_task *task, tune_task *donor) {
  measured_candidate whole = { .timing = { .ms = 1e3 * estimate(t, task) } };
  char error[1024] = "";
  nsai_tune_emit(t, NSA_TUNE_PROBLEM, task, &whole, "");
  if (task->done && !count_open(task)) {
    emit_known(t, task);
    return NSA_OK;
  }
  t->no_room = false;
  nsa_status status = work(t, task, donor);
  if (status) snprintf(error, sizeof error, "%s", nsa_last_error());
  task->record->complete = !status && !nsai_tune_spent(t);
  /* Measurements are saved whatever ended the task. The task's own failure is the one reported. */
  nsa_status kept = nsai_tune_keep(t, task);
  /* A lack of device memory here does not rule out other lengths, batches and operations. */
  bool roomless = status == NSA_E_CUDA && t->no_room;
  if (roomless) nsai_tune_data_free(t); /* a part of the tensors may exist */
  if (status && !roomless) kept = nsai_fail_text(status, error);
  error[strcspn(error, "\n")] = 0;
  nsai_tune_emit(t, NSA_TUNE_DONE, task, NULL,
                 status                    ? error
                 : !task->record->complete ? "the budget is spent; the next call continues"
                                           : "");
  return kept;
}

/* Plans without a record choose the heuristic's candidates, so there is nothing to measure. */
static bool measures(const tuner *t) {
  return !t->options->dry_run && t->level != NSAI_LEVEL_HEURISTIC;
}

static void emit_plan(const tuner *t, const tune_task *task) {
  measured_candidate whole = { .timing = { .ms = 1e3 * estimate(t, task) } };
  nsai_tune_emit(t, NSA_TUNE_PROBLEM, task, &whole, "");
  for (int i = 0; i < task->stage_count; i++)
    for (int k = 0; k < task->candidates[i].count; k++) {
      const measured_candidate *c = &task->candidates[i].item[k];
      const char *note = c->timing.is_default ? "the heuristic's choice" : "";
      if (c->timing.rounds) note = "measured before";
      nsai_tune_emit(t, NSA_TUNE_PLANNED, task, c, note);
    }
}

/* The forward whose tensors dense attention can read, so that they are made only once. */
static tune_task *donor_of(tune_task *tasks, int count, const tune_task *task) {
  if (task->problem.op != NSA_OP_DENSE) return NULL;
  for (int i = 0; i < count; i++)
    if (tasks[i].problem.op == NSA_OP_FORWARD && tasks[i].tokens == task->tokens &&
        !memcmp(&tasks[i].problem.model, &task->problem.model, sizeof task->problem.model))
      return &tasks[i];
  return NULL;
}

static nsa_status run_tasks(tuner *t, tune_task *tasks, int count) {
  for (int i = 0; i < count; i++)
    t->total += nsai_tune_combinations(&tasks[i]) * RUNS_PER_COMBINATION + RUNS_OF_WHOLE_CALL;
  for (int i = 0; i < count; i++) {
    if (!measures(t)) {
      emit_plan(t, &tasks[i]);
      continue;
    }
    if (i && nsai_tune_spent(t)) {
      measured_candidate none = { .timing = { .ms = 0 } };
      nsai_tune_emit(t, NSA_TUNE_PROBLEM, &tasks[i], &none, "");
      nsai_tune_emit(t, NSA_TUNE_DONE, &tasks[i], NULL, "not begun: the budget is spent");
      continue;
    }
    NSAI_TRY(run_task(t, &tasks[i], donor_of(tasks, count, &tasks[i])));
  }
  return NSA_OK;
}

/* ---- which tasks ---- */

typedef struct task_list {
  tune_task *item;
  int count;
} task_list;

/* Problems that differ only in capacities are the same. */
static bool is_listed(const task_list *list, const nsai_problem *problem, int64_t tokens) {
  char key[512];
  nsai_writer text = nsai_writer_open(key, sizeof key);
  nsai_problem timed = timed_problem(problem, tokens);
  nsai_tune_key(&timed, tokens, &text);
  for (int i = 0; i < list->count; i++)
    if (!strcmp(list->item[i].key, key)) return true;
  return false;
}

static nsa_status add_task(tuner *t, task_list *list, const nsai_problem *problem, int64_t tokens) {
  if (is_listed(list, problem, tokens)) return NSA_OK;
  tune_task *grown = realloc(list->item, (size_t)(list->count + 1) * sizeof *grown);
  if (!grown) return nsai_fail_nomem("the problems to tune", sizeof *grown);
  list->item = grown;
  tune_task *task = &grown[list->count++];
  memset(task, 0, sizeof *task);
  return begin_task(t, problem, tokens, task);
}

/* The counts of a configured list up to `most`. Without a list: powers of four times `least`,
 * and `most` itself if it is far beyond the last of them. */
static int counts_up_to(const nsai_counts *given, int64_t least, int64_t most,
                        int64_t out[NSAI_MAX_COUNTS]) {
  int count = 0;
  for (size_t i = 0; i < given->count; i++)
    if (given->items[i] <= most) out[count++] = given->items[i];
  if (given->count) return count;
  for (int64_t n = least; n <= most && count < NSAI_MAX_COUNTS; n *= 4) out[count++] = n;
  if (count < NSAI_MAX_COUNTS && (!count || most >= 2 * out[count - 1])) out[count++] = most;
  return count;
}

static int lengths_up_to(const nsai_config *c, int64_t longest, int64_t out[NSAI_MAX_COUNTS]) {
  return counts_up_to(&c->tuning.lengths, SHORTEST_TOKENS, longest, out);
}

/* The tasks of one problem at one length. Dense attention has one; a forward has one for each
 * requested kind of inputs. */
static nsa_status add_problem(tuner *t, task_list *list, const nsai_problem *problem,
                              bool any_overlap, int64_t tokens) {
  int32_t inputs = t->ctx->config->tuning.inputs;
  if (!knows_overlap(problem) || !any_overlap) return add_task(t, list, problem, tokens);
  for (int32_t overlap = NSA_OVERLAP_LOW; overlap <= NSA_OVERLAP_HIGH; overlap++) {
    nsai_problem p = *problem;
    p.overlap = overlap;
    int32_t bit = overlap == NSA_OVERLAP_LOW ? NSAI_INPUTS_RANDOM : NSAI_INPUTS_CORRELATED;
    if (inputs & bit) NSAI_TRY(add_task(t, list, &p, tokens));
  }
  return NSA_OK;
}

/* The tasks of a decode step, one for each of tuning.batches up to its max_seqs. */
static nsa_status add_batches(tuner *t, task_list *list, const nsai_problem *problem,
                              int64_t tokens) {
  int64_t batches[NSAI_MAX_COUNTS];
  int count = counts_up_to(&t->ctx->config->tuning.batches, 1, problem->max_seqs, batches);
  if (!count)
    return nsai_fail(
        NSA_E_CONFIG,
        "tuning.batches holds no number up to the problem's max_seqs %d: give a smaller "
        "one, or leave it out",
        problem->max_seqs);
  for (int i = 0; i < count; i++) {
    nsai_problem p = *problem;
    p.max_seqs = (int32_t)batches[i];
    NSAI_TRY(add_task(t, list, &p, tokens));
  }
  return NSA_OK;
}

/* Whether a problem is measured at this length. */
static bool has_length(const nsai_config *c, const nsai_problem *problem, int64_t tokens) {
  int64_t own[NSAI_MAX_COUNTS];
  int count = lengths_up_to(c, problem->max_kv_len, own);
  for (int i = 0; i < count; i++)
    if (own[i] == tokens) return true;
  return false;
}

/* The next length after `last` at which any of the problems is measured; 0: none. */
static int64_t next_length(const nsai_config *c, const nsai_tune_asked *problems, size_t count,
                           int64_t last) {
  int64_t next = 0, own[NSAI_MAX_COUNTS];
  for (size_t i = 0; i < count; i++) {
    int lengths = lengths_up_to(c, problems[i].problem.max_kv_len, own);
    for (int k = 0; k < lengths; k++)
      if (own[k] > last && (!next || own[k] < next)) next = own[k];
  }
  return next;
}

/* The tasks of one length. Dense attention comes before the forwards, which are compared with
 * it. `any`: list all problems as they are, whatever their lengths. */
static nsa_status list_length(tuner *t, const nsai_tune_asked *problems, size_t count,
                              int64_t tokens, bool any, task_list *list) {
  static const int32_t order[] = { NSA_OP_DENSE, NSA_OP_FORWARD, NSA_OP_PREFILL, NSA_OP_DECODE,
                                   NSA_OP_BACKWARD };
  for (size_t o = 0; o < sizeof order / sizeof *order; o++)
    for (size_t i = 0; i < count; i++) {
      const nsai_problem *p = &problems[i].problem;
      if (p->op != order[o] || (!any && !has_length(t->ctx->config, p, tokens))) continue;
      if (p->op == NSA_OP_DECODE && !any)
        NSAI_TRY(add_batches(t, list, p, tokens));
      else
        NSAI_TRY(add_problem(t, list, p, problems[i].any_overlap, tokens));
    }
  return NSA_OK;
}

/* All tasks, the shortest length first. `only` > 0: that length alone. */
static nsa_status list_tasks(tuner *t, const nsai_tune_asked *problems, size_t count, int64_t only,
                             task_list *list) {
  const nsai_config *c = t->ctx->config;
  int64_t longest = 1, tokens = 0;
  if (only) return list_length(t, problems, count, only, true, list);
  while ((tokens = next_length(c, problems, count, tokens)) != 0)
    NSAI_TRY(list_length(t, problems, count, tokens, false, list));
  if (list->count) return NSA_OK;
  for (size_t i = 0; i < count; i++)
    if (problems[i].problem.max_kv_len > longest) longest = problems[i].problem.max_kv_len;
  return nsai_fail(NSA_E_CONFIG,
                   "tuning.lengths holds no length up to the problem's max_kv_len %lld: give a "
                   "shorter one, or leave it out",
                   (long long)longest);
}

/* ---- the tuner ---- */

static nsa_status open_tuner(tuner *t) {
  const nsa_ctx *ctx = t->ctx;
  const nsai_driver *driver = ctx->device.driver;
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  t->trial.threads = processors < 1 ? 1 : (int)processors;
  NSAI_TRY(nsai_context_enter(ctx, &t->pushed));
  /* As when loading kernels: another thread may be capturing a stream. */
  driver->cuThreadExchangeStreamCaptureMode(&t->capture_mode);
  t->device = (nsai_verify_device){ .driver = driver,
                                    .context = ctx->device.context,
                                    .ordinal = ctx->device.ordinal };
  snprintf(t->device.name, sizeof t->device.name, "%.*s", (int)sizeof t->device.name - 1,
           ctx->device.name);
  if (!measures(t)) return NSA_OK;
  if (!driver->cuMemsetD8Async)
    return nsai_fail(NSA_E_NO_DRIVER,
                     "the driver lacks cuMemsetD8Async, which tuning needs: update it");
  NSAI_TRY(NSAI_CUDA(driver, cuStreamCreate(&t->device.stream, NSAI_CU_STREAM_NON_BLOCKING)));
  NSAI_TRY(nsai_verify_device_alloc(&t->device, NSAI_VERIFY_FLUSH_BYTES, &t->flush));
  t->sensors = nsai_sensors_open(ctx->device.pci_id, &t->ctx->logger);
  if (!t->sensors) return nsai_fail_nomem("sensors", 0);
  for (; t->event_count < TUNE_MAX_EVENTS; t->event_count++)
    NSAI_TRY(NSAI_CUDA(driver, cuEventCreate(&t->events[t->event_count], 0)));
  return NSA_OK;
}

static void close_tuner(tuner *t) {
  const nsai_driver *driver = t->ctx->device.driver;
  nsai_tune_data_free(t);
  nsai_tune_passed_free(t);
  nsai_kernel_set_unload_temporary(t->ctx); /* above all the kernels of candidates that lost */
  for (int i = 0; i < t->event_count; i++) driver->cuEventDestroy(t->events[i]);
  nsai_sensors_close(t->sensors);
  nsai_verify_device_free(&t->device, t->flush);
  if (t->device.stream) driver->cuStreamDestroy(t->device.stream);
  driver->cuThreadExchangeStreamCaptureMode(&t->capture_mode);
  nsai_context_leave(t->ctx, t->pushed);
}

nsa_status nsai_tune_problems(nsa_ctx *ctx, const nsa_tune_options *options, int32_t level,
                              double budget, const nsai_tune_asked *problems, size_t count,
                              int64_t only) {
  tuner *t = calloc(1, sizeof *t);
  task_list list = { 0 };
  nsa_status status = NSA_OK;
  if (!t) return nsai_fail_nomem("a tuner", sizeof *t);
  *t = (tuner){ .ctx = ctx,
                .options = options,
                .level = level,
                .capture_mode = NSAI_CU_CAPTURE_RELAXED,
                .no_baselines = only > 0,
                .deadline = nsai_seconds() + budget };
  NSAI_TRY_TO(done, open_tuner(t));
  NSAI_TRY_TO(done, list_tasks(t, problems, count, only, &list));
  NSAI_TRY_TO(done, run_tasks(t, list.item, list.count));
done:
  for (int i = 0; i < list.count; i++) close_task(&list.item[i]);
  free(list.item);
  close_tuner(t);
  free(t);
  return status;
}

nsa_status nsai_tune_begin(nsa_ctx *ctx) {
  pthread_mutex_lock(&ctx->lock);
  bool busy = ctx->tuning;
  ctx->tuning = true;
  pthread_mutex_unlock(&ctx->lock);
  return busy ? nsai_fail(NSA_E_ARG, "this context is being tuned by another thread: wait for it")
              : NSA_OK;
}

void nsai_tune_end(nsa_ctx *ctx) {
  pthread_mutex_lock(&ctx->lock);
  ctx->tuning = false;
  pthread_mutex_unlock(&ctx->lock);
}

nsa_status nsai_tune_first_use(nsa_ctx *ctx, const nsai_problem *problem, nsa_progress_fn progress,
                               void *user) {
  const nsai_config *c = ctx->config;
  if (!nsai_problem_is_tunable(problem) || !c->tuning.on_first_use || !c->tuning.records ||
      (problem->op == NSA_OP_PREFILL && nsai_problem_splits(problem)) || /* follows no record */
      ctx->deviceless || c->runtime.jit != NSAI_JIT_ON_DEMAND ||
      nsai_tune_is_recorded(ctx, problem) || nsai_tune_begin(ctx) != NSA_OK)
    return NSA_OK;
  nsa_tune_options options = NSA_TUNE_OPTIONS_INIT;
  nsai_tune_asked one = { .problem = *problem };
  options.progress = progress;
  options.user = user;
  nsa_status status =
      nsai_tune_problems(ctx, &options, c->tuning.on_first_use, c->tuning.first_use_budget_s, &one,
                         1, problem->max_kv_len);
  nsai_tune_end(ctx);
  if (!status || status == NSA_E_CANCELLED || status == NSA_E_VERIFY) return status;
  nsai_log(&ctx->logger, NSA_LOG_WARN, "tune", "tuning.on_first_use: %.*s",
           (int)strcspn(nsa_last_error(), "\n"), nsa_last_error());
  return NSA_OK;
}
