/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One timed run: a complete forward with an event before and after every stage. Each stage thus
 * sees the inputs and the neighbours that it has in use, and one run times a candidate of every
 * stage. Before each stage the L2 is flushed, outside the timed span. cache_inputs.c times
 * decode steps.
 *
 * A sample is one launch of a stage, however short. A second launch within the span would
 * measure something else: it would find in L2 what the first one has read, and attention would
 * add to a partial sum twice.
 */
#include "run/run.h"
#include "base/math.h"
#include "tune/internal.h"

#include <string.h>

/* at most so many evenly spread chunks of importance and selection are timed */
#define MOST_CHUNKS 64

/* ---- data ---- */

void nsai_tune_data_free(tuner *t) {
  int threads = t->trial.threads;
  if (t->has_data) nsai_trial_run_destroy(&t->trial);
  if (t->has_kv) nsai_verify_cache_destroy(&t->kv);
  t->trial.threads = threads;
  t->has_data = t->has_kv = false;
}

/* Whether the existing tensors serve the task. Dense attention can read those of any forward. */
static bool data_serves(const tuner *t, const tune_task *task) {
  if (!t->has_data || t->c.kv_len[0] != task->tokens) return false;
  if (memcmp(&t->c.model, &task->problem.model, sizeof t->c.model)) return false;
  if (task->problem.op == NSA_OP_DENSE) return t->c.kind != NSAI_VERIFY_BACKWARD;
  bool backward = task->problem.op == NSA_OP_BACKWARD;
  return t->c.kind == (backward ? NSAI_VERIFY_BACKWARD : NSAI_VERIFY_FORWARD) &&
         t->c.fill == task->fill && t->c.selection == task->problem.selection;
}

static void drop_slot(nsai_verify_tensors *d, int slot) {
  if (d->buffer[slot].device) nsai_verify_buffer_destroy(d->device, &d->buffer[slot]);
  d->view[slot].ndim = 0;
}

/* Measures how much the selections of neighbouring tokens overlap, by one run. */
static nsa_status measure_overlap(tuner *t) {
  nsai_verify_tensors *d = &t->trial.data;
  nsai_verify_overlap overlap = { 0 };
  if (!nsai_verify_tensors_has(d, NSAI_VERIFY_INDEX)) return NSA_OK;
  NSAI_TRY(nsai_trial_run_enqueue(&t->trial, 0, NULL));
  NSAI_TRY(nsai_verify_device_wait(&t->device, NULL));
  NSAI_TRY(nsai_verify_buffer_fetch(&t->device, &d->buffer[NSAI_VERIFY_INDEX]));
  nsa_tensor index = nsai_verify_tensors_view(d, NSAI_VERIFY_INDEX, NSAI_VERIFY_HOST);
  nsai_verify_overlap_measure(&t->c.model, &index, 0, &overlap);
  t->overlap = overlap;
  return NSA_OK;
}

/* A backward pass uses the blocks that a forward selected. Where it must not recompute the
 * outputs, it reads those of that forward. */
static nsa_status run_forward(tuner *t, const tune_task *task) {
  nsai_problem p = task->problem;
  nsai_decisions decisions;
  nsai_trial_plan plan;
  nsai_trial_run trial = { 0 };
  nsai_verify_case c = t->c;
  nsa_status status = NSA_OK;
  bool chooses = p.model.select_count && p.selection == NSA_SELECT_TOPN;
  if (!chooses && !c.saved) return NSA_OK;
  p.op = NSA_OP_FORWARD;
  p.overlap = task->fill == NSAI_VERIFY_FILL_CORRELATED ? NSA_OVERLAP_HIGH : NSA_OVERLAP_LOW;
  c.kind = NSAI_VERIFY_FORWARD;
  nsai_records_decide(t->ctx, &p, &decisions);
  NSAI_TRY(nsai_tune_plan(t, &p, &decisions, &plan));
  status = nsai_trial_run_prepare(&t->device, &c, &plan, t->trial.threads, &trial);
  NSAI_TRY_TO(done, nsai_tune_room(t, status));
  drop_slot(&trial.data, NSAI_VERIFY_PROBE_ROWS);
  drop_slot(&trial.data, NSAI_VERIFY_PROBE);
  NSAI_TRY_TO(done, nsai_trial_run_enqueue(&trial, 0, NULL));
  NSAI_TRY_TO(done, nsai_verify_device_wait(&t->device, NULL));
  status = nsai_trial_run_hand_over(&trial, &t->trial);
done:
  nsai_trial_run_destroy(&trial);
  nsa_plan_destroy(plan.plan);
  return status;
}

nsa_status nsai_tune_data(tuner *t, const tune_task *task) {
  nsai_decisions decisions;
  measured_candidate *taken[NSAI_STAGE_COUNT];
  nsai_trial_plan plan;
  nsa_status status = NSA_OK;
  if (nsai_problem_is_cached(&task->problem)) return nsai_tune_kv_data(t, task);
  if (data_serves(t, task)) return NSA_OK;
  nsai_tune_data_free(t);
  t->overlap = (nsai_verify_overlap){ 0 };
  nsai_tune_case(&task->problem, task->tokens, task->fill, &t->c);
  if (t->c.saved) t->c.saved = 2; /* from the forward, not from the reference */
  nsai_tune_combination(task, 0, &decisions, taken);
  NSAI_TRY(nsai_tune_plan(t, &task->problem, &decisions, &plan));
  t->has_data = true;
  status = nsai_trial_run_prepare(&t->device, &t->c, &plan, t->trial.threads, &t->trial);
  NSAI_TRY_TO(done, nsai_tune_room(t, status));
  drop_slot(&t->trial.data, NSAI_VERIFY_PROBE_ROWS);
  drop_slot(&t->trial.data, NSAI_VERIFY_PROBE);
  if (task->problem.op == NSA_OP_FORWARD) NSAI_TRY_TO(done, measure_overlap(t));
  if (task->problem.op == NSA_OP_BACKWARD)
    NSAI_TRY_TO(done, run_forward(t, task));
  else
    nsai_verify_tensors_drop_optional(&t->trial.data);
done:
  t->trial.plan = (nsai_trial_plan){ 0 }; /* each run brings its own plan */
  nsa_plan_destroy(plan.plan);
  return status;
}

nsa_status nsai_tune_workspace(tuner *t, uint64_t bytes) {
  return t->has_kv ? nsai_verify_cache_workspace(&t->kv, bytes)
                   : nsai_verify_tensors_workspace(&t->trial.data, bytes);
}

/* ---- one run ---- */

/* The events of one run, two for each timed span. */
typedef struct spans {
  tuner *t;
  int used; /* number of events */
  nsai_stage stage[TUNE_MAX_EVENTS / 2];
  bool flushed[NSAI_STAGE_COUNT];
  int64_t every;                      /* every so many launches of a stage, one is timed */
  int64_t launches[NSAI_STAGE_COUNT]; /* launches begun so far */
} spans;

static nsa_status record_event(tuner *t, int index) {
  return NSAI_CUDA(t->device.driver, cuEventRecord(t->events[index], t->device.stream));
}

static nsa_status flush(tuner *t) {
  return NSAI_CUDA(t->device.driver, cuMemsetD8Async((nsai_cu_ptr)(uintptr_t)t->flush, 0,
                                                     NSAI_VERIFY_FLUSH_BYTES, t->device.stream));
}

static nsa_status on_stage(void *user, nsai_stage stage, bool begins) {
  spans *s = user;
  s->t->at = NSAI_STAGE_COUNT;
  if (begins) s->launches[stage]++;
  if (begins) s->t->at = stage;
  if ((s->launches[stage] - 1) % s->every) return NSA_OK;
  if (s->used >= s->t->event_count)
    return nsai_fail(NSA_E_INTERNAL, "a run has more launches than the tuner has events");
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

/* Enqueues the plan's call on the existing tensors. */
static nsa_status enqueue(tuner *t, const nsai_trial_plan *plan,
                          const nsai_stage_callbacks *callbacks) {
  nsai_verify_tensors *d = &t->trial.data;
  if (t->has_kv) return nsai_tune_kv_prefill(t, plan, callbacks);
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_grads grads = NSA_GRADS_INIT;
  nsa_batch batch;
  nsa_io io;
  NSAI_TRY(nsai_verify_tensors_workspace(d, plan->caps.workspace_bytes));
  exec.workspace = d->workspace;
  exec.workspace_bytes = d->workspace_bytes;
  exec.stream = t->device.stream;
  nsai_verify_tensors_io(d, NSAI_VERIFY_ON_DEVICE, &batch, &io);
  if (plan->plan->problem.op == NSA_OP_DENSE) nsai_verify_leave_out_index(&io);
  if (plan->plan->problem.op == NSA_OP_BACKWARD)
    nsai_verify_tensors_grads(d, NSAI_VERIFY_ON_DEVICE, &grads);
  return nsai_run_with_callbacks(plan->plan, &exec, NULL, &io, &grads, callbacks);
}

nsa_status nsai_tune_run_stages(tuner *t, const nsai_trial_plan *plan,
                                double ms[NSAI_STAGE_COUNT]) {
  if (plan->plan->problem.op == NSA_OP_DECODE) {
    memset(ms, 0, NSAI_STAGE_COUNT * sizeof *ms);
    return nsai_tune_kv_step(t, plan, &ms[NSAI_STAGE_DECODE]);
  }
  int64_t chunk = plan->plan->workspace.chunk_tokens, tokens = plan->plan->problem.max_tokens;
  int64_t chunks = chunk ? nsai_ceil_div(tokens, chunk) : 1;
  spans s = { .t = t, .every = chunks / MOST_CHUNKS + 1 };
  nsai_stage_callbacks callbacks = { on_stage, &s };
  memset(ms, 0, NSAI_STAGE_COUNT * sizeof *ms);
  t->at = NSAI_STAGE_COUNT;
  NSAI_TRY(enqueue(t, plan, &callbacks));
  NSAI_TRY(nsai_verify_device_wait(&t->device, NULL));
  for (int i = 0; i + 1 < s.used; i += 2) {
    double span = 0;
    NSAI_TRY(elapsed(t, i, &span));
    ms[s.stage[i / 2]] += span;
  }
  return NSA_OK;
}

nsa_status nsai_tune_run_whole_call(tuner *t, const nsai_trial_plan *plan, double *ms) {
  if (plan->plan->problem.op == NSA_OP_DECODE) return nsai_tune_kv_step(t, plan, ms);
  NSAI_TRY(flush(t));
  NSAI_TRY(record_event(t, 0));
  NSAI_TRY(enqueue(t, plan, NULL));
  NSAI_TRY(record_event(t, 1));
  NSAI_TRY(nsai_verify_device_wait(&t->device, NULL));
  return elapsed(t, 0, ms);
}
