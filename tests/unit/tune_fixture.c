/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */

#include "tune_fixture.h"

#include "support/cmocka_all.h"

#include "params/attention.h"
#include "plan/context.h"
#include "plan/plan.h"
#include "reference/reference.h"

#include <pthread.h>

/* ---- contexts ---- */

static void keep_log(void *user, int32_t level, const char *component, const char *text) {
  tuning *w = user;
  (void)component, (void)text;
  w->warnings += level <= NSA_LOG_WARN;
}

static bool begun; /* this test has its first context */

void tuning_enter(tuning *w, const char *more) {
  char yaml[2048];
  machine_yaml(&(machine_request){ .gpu = true }, yaml, sizeof yaml);
  strcat(yaml, more);
  machine_reopen(&w->ctx, w->dir, &(machine_reopening){ yaml, NULL, keep_log, w });
  /* What a test that failed has left behind is no matter of the next. */
  if (!begun) *machine_record() = (fake_cuda_state){ .retained = 1 };
  begun = true;
}

void tuning_leave(tuning *w) {
  const fake_cuda_state *r = machine_record();
  nsa_destroy(w->ctx);
  machine_remove(w->dir);
  nsai_tune_results_fini(&w->results);
  memset(w, 0, sizeof *w);
  assert_int_equal(r->blocks, 0);
  assert_int_equal(r->streams + r->events + r->retained + r->wrong_context, 0);
  *machine_record() = (fake_cuda_state){ 0 };
}

static void keep_event(void *user, const nsa_tune_event *event) {
  tuning *w = user;
  assert_int_equal(event->struct_size, sizeof *event);
  assert_true(event->problem && event->stage && event->candidate && event->note);
  assert_true(event->problem[0] && event->tokens > 0);
  nsai_tune_results_add(&w->results, event);
}

static void *tune_second_plan(void *user) {
  tuning *w = user;
  nsa_tune_options o = INIT(nsa_tune_options, .dry_run = 1);
  machine_expect("beside", nsa_tune(w->ctx, NULL, 0, &o), NSA_E_ARG, "by another thread");
  return NULL;
}

static void *make_second_plan(void *user) {
  tuning *w = user;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  w->second = machine_plan(w->ctx, &p);
  if (w->keep_second) return NULL;
  nsa_plan_destroy(w->second);
  w->second = NULL;
  return NULL;
}

static bool in_final;
bool tuning_whole_call;

static int32_t observe(void *user, int64_t done, int64_t total, const char *what) {
  tuning *w = user;
  pthread_t thread;
  assert_true(what && done <= total && done >= w->done);
  w->done = done;
  in_final |= !strcmp(what, "confirming");
  tuning_whole_call = !strcmp(what, "timing whole calls");
  if (w->reenter) {
    w->reenter = false;
    assert_int_equal(pthread_create(&thread, NULL, tune_second_plan, w), 0);
    pthread_join(thread, NULL);
  }
  if (w->second_plan && !strcmp(what, "timing")) {
    int loads = machine_record()->loads;
    w->second_plan = false;
    assert_int_equal(pthread_create(&thread, NULL, make_second_plan, w), 0);
    pthread_join(thread, NULL);
    assert_int_equal(machine_record()->loads, loads);
  }
  if (w->cancel_what && strcmp(w->cancel_what, what) != 0) return 0;
  return ++w->steps == w->cancel_at;
}

nsa_status tuning_tune(tuning *w, const nsa_tune_options *options, const nsa_problem *problems,
                       size_t count) {
  nsa_tune_options o = *options;
  nsai_tune_results_fini(&w->results);
  w->steps = 0;
  w->done = 0;
  o.event = keep_event;
  o.progress = observe;
  o.user = w;
  nsa_status status = nsa_tune(w->ctx, problems, count, &o);
  assert_false(w->results.failed);
  return status;
}

void tuning_expect(tuning *w, const nsa_problem *p, nsa_status status, const char *text) {
  nsa_tune_options o = INIT(nsa_tune_options, .level = NSA_TUNE_QUICK);
  machine_expect("tune", tuning_tune(w, &o, p, 1), status, text);
}

void tuning_dry_run(tuning *w, int32_t level, const nsa_problem *problems, size_t count) {
  nsa_tune_options o = INIT(nsa_tune_options, .level = level, .dry_run = 1);
  machine_expect("dry run", tuning_tune(w, &o, problems, count), NSA_OK, NULL);
  assert_int_equal(machine_record()->launches + machine_record()->compilations, 0);
  assert_int_equal(w->steps, 0);
}

void tuning_expect_nothing_chosen(tuning *w, const nsa_problem *p) {
  nsa_plan *plan = machine_plan(w->ctx, p);
  for (int s = 0; s < NSAI_STAGE_COUNT; s++)
    assert_true(!plan->choice.variant[s] || plan->choice.decider[s] != NSAI_BY_RECORD);
  nsa_plan_destroy(plan);
}

/* ---- a dense kernel ---- */

static nsai_model model; /* of the models here */
bool dense_wrong_of_64;
double dense_ms_of_64, dense_slowdown;

static nsa_tensor tensor_of(const NsaiView *view, int64_t rows, int64_t heads, int64_t dim) {
  return (nsa_tensor){ .data = view->data,
                       .dtype = model.dtype,
                       .ndim = 3,
                       .shape = { rows, heads, dim },
                       .stride = { view->token_stride, view->head_stride, 1 } };
}

#define LONGEST_COMPUTED 512 /* tokens: verified cases are shorter, timed ones longer */

static double run_dense(const fake_cuda_launch *launch, const void *params) {
  const NsaiAttend *a = params;
  if (!strcmp(launch->name, "attend_dense_sm90"))
    a = &((const NsaiAttendTma *)params)->attend;
  else if (strcmp(launch->name, "attend_dense_sm80") != 0)
    return 10;
  bool small = launch->threads == 64;
  double ms = (small ? dense_ms_of_64 : 10) * (in_final ? dense_slowdown : 1);
  int tokens = a->seq.q_tokens;
  if (tokens > LONGEST_COMPUTED || (small && dense_wrong_of_64)) return ms;
  nsa_io io = { 0 };
  io.q = tensor_of(&a->q, tokens, model.heads, model.head_dim_qk);
  io.kv.k[0] = tensor_of(&a->k, a->seq.kv_tokens, model.kv_heads, model.head_dim_qk);
  io.kv.v[0] = tensor_of(&a->v, a->seq.kv_tokens, model.kv_heads, model.head_dim_v);
  io.o = tensor_of(&a->out.o, tokens, model.heads, model.head_dim_v);
  if (a->out.lse)
    io.lse[0] = (nsa_tensor){ .data = a->out.lse,
                              .dtype = NSA_F32,
                              .ndim = 2,
                              .shape = { tokens, model.heads },
                              .stride = { a->out.lse_token_stride, a->out.lse_head_stride } };
  (void)nsai_reference_dense(&model, NULL, &io, 1);
  return ms;
}

void dense_enter(tuning *w, const char *more) {
  tuning_enter(w, more);
  model = w->ctx->config->model;
  machine_record()->kernel = run_dense;
  dense_wrong_of_64 = false;
  dense_ms_of_64 = 10;
  dense_slowdown = 1;
  in_final = false;
}

static nsai_tune_span first_problem(const tuning *w) {
  nsai_tune_span span = { 0 };
  assert_true(nsai_tune_next(&w->results, &span));
  return span;
}

void dense_tune(tuning *w, int32_t level, int32_t fresh) {
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  nsa_tune_options o = INIT(nsa_tune_options, .level = level, .fresh = fresh);
  machine_expect("tune", tuning_tune(w, &o, &p, 1), NSA_OK, NULL);
  nsai_tune_span span = first_problem(w);
  assert_int_equal(span.count, w->results.count);
  assert_int_equal(span.events[span.count - 1].kind, NSA_TUNE_DONE);
}

const nsa_tune_event *tuning_find(const tuning *w, int32_t kind, const char *candidate) {
  nsai_tune_span span = first_problem(w);
  return nsai_tune_find(&span, kind, NULL, candidate);
}

const nsa_tune_event *tuning_find_stage(const tuning *w, int32_t kind, const char *stage) {
  nsai_tune_span span = first_problem(w);
  return nsai_tune_find(&span, kind, stage, NULL);
}

size_t tuning_count(const tuning *w, int32_t kind) {
  nsai_tune_span span = first_problem(w);
  return nsai_tune_count(&span, kind);
}

int32_t tuning_planned_threads(tuning *w, const nsa_problem *p, nsai_stage stage) {
  nsa_plan *plan = machine_plan(w->ctx, p);
  int32_t threads = nsai_plan_form(plan, stage)->spec[0].threads;
  w->by_record = plan->choice.decider[stage] == NSAI_BY_RECORD;
  nsa_plan_destroy(plan);
  return threads;
}

int32_t dense_planned_threads(tuning *w) {
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  return tuning_planned_threads(w, &p, NSAI_STAGE_DENSE);
}

int tuning_begin(void **state) {
  begun = false;
  unsetenv("FAKE_NVRTC_FAT");
  unsetenv("FAKE_NVRTC_MS");
  return 0;
}
