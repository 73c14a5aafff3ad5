/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_tune on the fake GPU: what it looks at, by dry runs; then whole tunings of dense attention,
 * whose kernel computes on the host here and takes the time that a test says. Kernels that compute
 * nothing are found out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/params.h"
#include "context.h"
#include "machine.h"
#include "plan.h"
#include "reference/reference.h"
#include "tune_results.h"

#include <nsa/tune.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- contexts ---- */

typedef struct world {
  char dir[64];
  nsa_ctx *ctx;
  nsai_tune_results results; /* of the last tuning */
  int steps, cancel_at;      /* calls of progress */
  const char *cancel_what;   /* only those are counted; NULL: all */
  int64_t done;
  bool reenter;                  /* tune from another thread, once */
  bool plan_beside, keep_beside; /* make a plan in another thread, once; and keep it */
  nsa_plan *beside;
  int warnings;
} world;

static void keep_log(void *user, int32_t level, const char *component, const char *text) {
  world *w = user;
  (void)component, (void)text;
  w->warnings += level <= NSA_LOG_WARN;
}

static bool begun; /* this test has its first context */

/* A context on the fake GPU with more YAML, in a folder that lives longer than it. */
static void enter(world *w, const char *more) {
  char yaml[2048];
  machine_yaml(&(machine_request){ .gpu = true }, yaml, sizeof yaml);
  strcat(yaml, more);
  machine_reopen(&w->ctx, w->dir, &(machine_reopening){ yaml, NULL, keep_log, w });
  /* What a test that failed has left behind is no matter of the next. */
  if (!begun) *machine_record() = (fake_cuda_state){ .retained = 1 };
  begun = true;
}

static void leave(world *w) {
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
  world *w = user;
  assert_int_equal(event->struct_size, sizeof *event);
  assert_true(event->problem && event->stage && event->candidate && event->note);
  assert_true(event->problem[0] && event->tokens > 0);
  nsai_tune_results_add(&w->results, event);
}

static nsa_status tune(world *w, const nsa_tune_options *options, const nsa_problem *problems,
                       size_t count);

static void *tune_beside(void *user) {
  world *w = user;
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  o.dry_run = 1;
  machine_expect("beside", nsa_tune(w->ctx, NULL, 0, &o), NSA_E_ARG, "by another thread");
  return NULL;
}

static void *make_plan_beside(void *user) {
  world *w = user;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  machine_expect("beside", nsa_plan_create(w->ctx, &p, NULL, NULL, &w->beside), NSA_OK, NULL);
  if (w->keep_beside) return NULL;
  nsa_plan_destroy(w->beside);
  w->beside = NULL;
  return NULL;
}

static int32_t observe(void *user, int64_t done, int64_t total, const char *what) {
  world *w = user;
  pthread_t thread;
  assert_true(what && done <= total && done >= w->done);
  w->done = done;
  if (w->reenter) {
    w->reenter = false;
    assert_int_equal(pthread_create(&thread, NULL, tune_beside, w), 0);
    pthread_join(thread, NULL);
  }
  if (w->plan_beside && !strcmp(what, "timing")) {
    int loads = machine_record()->loads;
    w->plan_beside = false;
    assert_int_equal(pthread_create(&thread, NULL, make_plan_beside, w), 0);
    pthread_join(thread, NULL);
    assert_int_equal(machine_record()->loads, loads);
  }
  if (w->cancel_what && strcmp(w->cancel_what, what) != 0) return 0;
  return ++w->steps == w->cancel_at;
}

static nsa_status tune(world *w, const nsa_tune_options *options, const nsa_problem *problems,
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

static void dry_run(world *w, int32_t level, const nsa_problem *problems, size_t count) {
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  o.level = level;
  o.dry_run = 1;
  machine_expect("dry run", tune(w, &o, problems, count), NSA_OK, NULL);
  assert_int_equal(machine_record()->launches + machine_record()->compilations, 0);
  assert_int_equal(w->steps, 0);
}

/* "dense 1024, low 1024, high 1024": the problems of the results, in their order. */
static const char *list_problems(const world *w) {
  static char text[1024];
  nsai_writer out = nsai_writer_open(text, sizeof text);
  nsai_tune_span span = { 0 };
  while (nsai_tune_next(&w->results, &span)) {
    const char *problem = span.events[0].problem;
    nsai_write(&out, "%s%s %lld", out.used ? ", " : "",
               strstr(problem, ":ov=low")    ? "low"
               : strstr(problem, ":ov=high") ? "high"
                                             : "dense",
               (long long)span.events[0].tokens);
  }
  return text;
}

/* ---- arguments ---- */

static void test_options(void **state) {
  (void)state;
  world w = { 0 };
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1000, 0);
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  enter(&w, "");
  o.struct_size -= 4;
  machine_expect("size", nsa_tune(w.ctx, &p, 1, &o), NSA_E_VERSION, "NSA_TUNE_OPTIONS_INIT");
  static const int32_t levels[] = { -1, NSA_TUNE_EXHAUSTIVE + 1, 99 };
  for (int i = 0; i < 3; i++) {
    o = (nsa_tune_options)NSA_TUNE_OPTIONS_INIT;
    o.level = levels[i];
    machine_expect("level", nsa_tune(w.ctx, &p, 1, &o), NSA_E_ARG, "options.level is");
  }
  static const double budgets[] = { -1, -INFINITY, NAN };
  for (int i = 0; i < 3; i++) {
    o = (nsa_tune_options)NSA_TUNE_OPTIONS_INIT;
    o.budget_s = budgets[i];
    machine_expect("budget", nsa_tune(w.ctx, &p, 1, &o), NSA_E_ARG, "options.budget_s is");
  }
  o = (nsa_tune_options)NSA_TUNE_OPTIONS_INIT;
  o.reserved[2] = 1;
  machine_expect("reserved", nsa_tune(w.ctx, &p, 1, &o), NSA_E_ARG, "options.reserved[2] is 1");
  machine_expect("NULL", nsa_tune(w.ctx, NULL, 1, NULL), NSA_E_ARG, "problems is NULL");
  p.max_tokens = -1;
  machine_expect("problem", nsa_tune(w.ctx, &p, 1, NULL), NSA_E_ARG, "max_tokens");
  machine_expect("no serving", nsa_tune(w.ctx, NULL, 0, NULL), NSA_E_ARG, "serving.max_seqs");
  p = machine_problem(NSA_OP_DENSE, 1000, 0);
  o = (nsa_tune_options)NSA_TUNE_OPTIONS_INIT;
  o.dry_run = 1; /* none of these left the context busy */
  machine_expect("good", nsa_tune(w.ctx, &p, 1, &o), NSA_OK, NULL);
  leave(&w);
}

static void test_no_device(void **state) {
  (void)state;
  char yaml[1024];
  nsa_options options = NSA_OPTIONS_INIT;
  nsa_ctx *ctx = NULL;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1000, 0);
  machine_yaml(&(machine_request){ 0 }, yaml, sizeof yaml);
  options.yaml_text = yaml;
  machine_expect("cpu", nsa_create(NULL, &options, &ctx), NSA_OK, NULL);
  machine_expect("cpu", nsa_tune(ctx, &p, 1, NULL), NSA_E_NO_DEVICE, "runtime.device is cpu");
  nsa_destroy(ctx);
  world w = { 0 };
  machine_overrides o;
  enter(&w, "");
  machine_yaml(&(machine_request){ .gpu = true }, yaml, sizeof yaml);
  machine_overrides_init(&o, w.dir, NULL);
  options.overrides = o.list;
  options.deviceless = 1;
  options.arch = "sm_90a";
  machine_expect("deviceless", nsa_create(NULL, &options, &ctx), NSA_OK, NULL);
  machine_expect("deviceless", nsa_tune(ctx, &p, 1, NULL), NSA_E_NO_DEVICE, "deviceless");
  nsa_destroy(ctx);
  leave(&w);
}

/* ---- what is looked at ---- */

static bool has_candidate(const nsai_tune_span *span, const nsa_tune_event *event) {
  return nsai_tune_find(span, NSA_TUNE_PLANNED, event->stage, event->candidate) != NULL;
}

/* Every candidate of `a` is one of `b`; the number of those that only `b` has. */
static size_t expect_nested(const world *a, const world *b) {
  nsai_tune_span x = { 0 }, y = { 0 };
  size_t more = 0;
  while (nsai_tune_next(&a->results, &x)) {
    assert_true(nsai_tune_next(&b->results, &y));
    assert_string_equal(x.events[0].problem, y.events[0].problem);
    for (size_t i = 1; i < x.count; i++)
      if (!has_candidate(&y, &x.events[i]))
        fail_msg("%s: %s is not among the %zu of the next level", x.events[0].problem,
                 x.events[i].candidate, y.count);
    more += y.count - x.count;
  }
  assert_false(nsai_tune_next(&b->results, &y));
  return more;
}

/* The first of each stage is what nsai_choose says, where no other stage's variant covers it, and is
 * said to be. */
static void expect_heuristic_first(const world *w) {
  for (size_t i = 0; i < w->results.count; i++) {
    const nsa_tune_event *e = &w->results.events[i];
    if (e->kind == NSA_TUNE_PROBLEM) {
      assert_true(e->ms > 0);
      continue;
    }
    assert_int_equal(e->kind, NSA_TUNE_PLANNED);
    bool first = strcmp(e[-1].stage, e->stage) != 0;
    assert_true(first == !strcmp(e->note, "the heuristic's choice"));
    bool dense = !strstr(e->problem, ":ov=");
    nsa_problem asked = machine_problem(dense ? NSA_OP_DENSE : NSA_OP_FORWARD, e->tokens,
                                        strstr(e->problem, ":ov=high") ? NSA_OVERLAP_HIGH : 0);
    nsai_problem p;
    nsai_choice choice;
    char text[128];
    machine_expect("resolve", nsai_problem_resolve(w->ctx->config, &asked, &p), NSA_OK, NULL);
    machine_expect("choose", nsai_choose(w->ctx->config, &p, &w->ctx->target, NULL, NULL, &choice),
                   NSA_OK, NULL);
    for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
      if (!choice.variant[s] || nsai_is_covered(&choice, (nsai_stage)s) ||
          strcmp(nsai_stage_name((nsai_stage)s), e->stage) != 0)
        continue;
      nsai_writer out = nsai_writer_open(text, sizeof text);
      nsai_candidate_print(&(nsai_candidate){ choice.variant[s], choice.tiles[s] }, &out);
      if (first != !strcmp(text, e->candidate))
        fail_msg("%s: %s is %s", e->problem, e->candidate, text);
    }
  }
}

static void test_levels(void **state) {
  (void)state;
  world w[NSA_TUNE_EXHAUSTIVE + 1] = { 0 };
  for (int32_t level = NSA_TUNE_HEURISTIC; level <= NSA_TUNE_EXHAUSTIVE; level++) {
    enter(&w[level], "serving: {max_tokens: 16Ki, max_seqs: 1}\n");
    dry_run(&w[level], level, NULL, 0);
    expect_heuristic_first(&w[level]);
    if (level > NSA_TUNE_HEURISTIC) assert_true(expect_nested(&w[level - 1], &w[level]) > 0);
  }
  for (int32_t level = NSA_TUNE_HEURISTIC; level <= NSA_TUNE_EXHAUSTIVE; level++) {
    nsa_destroy(w[level].ctx);
    machine_remove(w[level].dir);
    nsai_tune_results_fini(&w[level].results);
  }
}

/* Two dry runs tell the same, in the same order. */
static void test_order(void **state) {
  (void)state;
  world a = { 0 }, b = { 0 };
  enter(&a, "serving: {max_tokens: 4Ki, max_seqs: 1}\n");
  dry_run(&a, NSA_TUNE_NORMAL, NULL, 0);
  snprintf(b.dir, sizeof b.dir, "%s", a.dir);
  enter(&b, "serving: {max_tokens: 4Ki, max_seqs: 1}\n");
  dry_run(&b, NSA_TUNE_NORMAL, NULL, 0);
  assert_int_equal(a.results.count, b.results.count);
  for (size_t i = 0; i < a.results.count; i++) {
    const nsa_tune_event *x = &a.results.events[i], *y = &b.results.events[i];
    assert_int_equal(x->kind, y->kind);
    assert_string_equal(x->problem, y->problem);
    assert_string_equal(x->candidate, y->candidate);
    assert_string_equal(x->note, y->note);
  }
  nsai_tune_results_fini(&b.results);
  nsa_destroy(b.ctx);
  leave(&a);
}

/* Forced variants are the only ones looked at, disabled ones are not. */
static void test_configuration(void **state) {
  (void)state;
  world w = { 0 };
  enter(&w, "variants: {force: {dense: sdpa_gemm}}\n");
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  dry_run(&w, NSA_TUNE_EXHAUSTIVE, &p, 1);
  assert_int_equal(w.results.count, 2);
  assert_string_equal(w.results.events[1].candidate, "sdpa_gemm");
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  enter(&w, "variants: {disable: [\"dense.*\"]}\n");
  machine_expect("none", nsa_tune(w.ctx, &p, 1, &o), NSA_E_UNSUPPORTED, "matches it with");
  leave(&w);
}

static void expect_problems(const char *more, const nsa_problem *problems, size_t count,
                            const char *expected) {
  world w = { 0 };
  enter(&w, more);
  dry_run(&w, NSA_TUNE_HEURISTIC, problems, count);
  assert_string_equal(list_problems(&w), expected);
  leave(&w);
}

static void test_problems(void **state) {
  (void)state;
  static const char serving[] = "serving: {max_tokens: 16Ki, max_seqs: 1}\n";
  char more[256];
  expect_problems(serving, NULL, 0,
                  "dense 1024, low 1024, high 1024, dense 4096, low 4096, high 4096, dense 16384, "
                  "low 16384, high 16384");
  snprintf(more, sizeof more, "%stuning: {lengths: [2Ki, 3Ki, 64Ki]}\n", serving);
  expect_problems(more, NULL, 0,
                  "dense 2048, low 2048, high 2048, dense 3072, low 3072, high 3072");
  snprintf(more, sizeof more, "%stuning: {lengths: [2Ki], inputs: random}\n", serving);
  expect_problems(more, NULL, 0, "dense 2048, low 2048");
  snprintf(more, sizeof more, "%stuning: {lengths: [2Ki], inputs: correlated}\n", serving);
  expect_problems(more, NULL, 0, "dense 2048, high 2048");
  nsa_problem p[3] = { machine_problem(NSA_OP_DENSE, 40000, 0) };
  expect_problems(serving, p, 1, "dense 1024, dense 4096, dense 16384, dense 40000");
  p[0].max_tokens = 5000; /* nothing is far beyond 4Ki */
  expect_problems(serving, p, 1, "dense 1024, dense 4096");
  /* A problem of one overlap is measured with its inputs alone. */
  p[0] = machine_problem(NSA_OP_FORWARD, 1024, NSA_OVERLAP_HIGH);
  expect_problems("tuning: {inputs: random}\n", p, 1, "high 1024");
  p[0].overlap = NSA_OVERLAP_LOW;
  expect_problems("", p, 1, "low 1024");
  /* Dense attention stands before the forwards that compare themselves with it. */
  p[1] = machine_problem(NSA_OP_DENSE, 1024, 0);
  expect_problems("", p, 2, "dense 1024, low 1024");
  /* Shorter than every default length: the longest itself. */
  p[0] = machine_problem(NSA_OP_FORWARD, 500, 0);
  expect_problems("", p, 1, "low 500, high 500");
  /* Beside a longer problem, too. */
  p[1] = machine_problem(NSA_OP_DENSE, 4096, 0);
  expect_problems("", p, 2, "low 500, high 500, dense 1024, dense 4096");
  p[1] = machine_problem(NSA_OP_DENSE, 10000, 0);
  p[2] = machine_problem(NSA_OP_FORWARD, 100000, NSA_OVERLAP_LOW);
  expect_problems("", p + 1, 2,
                  "dense 1024, low 1024, dense 4096, low 4096, dense 10000, low 16384, low 65536");
}

static void test_no_length(void **state) {
  (void)state;
  world w = { 0 };
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1000, 0);
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  enter(&w, "tuning: {lengths: [4Ki]}\n");
  machine_expect("no length", nsa_tune(w.ctx, &p, 1, &o), NSA_E_CONFIG,
                 "tuning.lengths holds no length up to the problem's max_kv_len 1000");
  leave(&w);
}

/* ---- kernels that compute nothing ---- */

static void expect_nothing_chosen(world *w, const nsa_problem *p) {
  nsa_plan *plan = NULL;
  machine_expect("plan", nsa_plan_create(w->ctx, p, NULL, NULL, &plan), NSA_OK, NULL);
  for (int s = 0; s < NSAI_STAGE_COUNT; s++)
    assert_true(!plan->choice.variant[s] || plan->choice.decider[s] != NSAI_BY_RECORD);
  nsa_plan_destroy(plan);
}

static void test_wrong_heuristic(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    world w = { 0 };
    nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
    nsa_problem p = machine_problem(i ? NSA_OP_FORWARD : NSA_OP_DENSE, 1024, 0);
    uint8_t before[16], after[16];
    enter(&w, "");
    machine_expect("digest", nsa_cache_digest(w.ctx, before), NSA_OK, NULL);
    o.level = NSA_TUNE_QUICK;
    machine_expect("wrong", tune(&w, &o, &p, 1), NSA_E_VERIFY,
                   "the heuristic's own choice computes wrong results for ");
    expect_nothing_chosen(&w, &p);
    nsai_tune_span span = { 0 };
    assert_true(nsai_tune_next(&w.results, &span));
    assert_int_equal(nsai_tune_count(&span, NSA_TUNE_CHOSEN), 0);
    assert_int_equal(nsai_tune_count(&span, NSA_TUNE_TIMED), 0);
    machine_expect("digest", nsa_cache_digest(w.ctx, after), NSA_OK, NULL);
    assert_memory_equal(before, after, 16);
    leave(&w);
  }
}

/* ---- a dense kernel ---- */

static nsai_geometry geometry; /* of the models here */
static bool wrong_of_64;       /* blocks of 64 threads compute nothing */
static double ms_of_64;        /* how long they take; others take 10 ms */

static nsa_tensor tensor_of(const NsaiView *view, int64_t rows, int64_t heads, int64_t dim) {
  return (nsa_tensor){ .data = view->data,
                       .dtype = geometry.dtype,
                       .ndim = 3,
                       .shape = { rows, heads, dim },
                       .stride = { view->token_stride, view->head_stride, 1 } };
}

#define LONGEST_COMPUTED 512 /* tokens: verified cases are shorter, timed ones longer */

static double run_dense(const fake_cuda_launch *launch, const void *params) {
  const NsaiAttend *a = params;
  if (!strcmp(launch->name, "dense_wgmma"))
    a = &((const NsaiAttendTma *)params)->attend;
  else if (strcmp(launch->name, "dense_mma") != 0)
    return 10;
  bool small = launch->threads == 64;
  double ms = small ? ms_of_64 : 10;
  int tokens = a->seq.q_tokens;
  if (tokens > LONGEST_COMPUTED || (small && wrong_of_64)) return ms;
  nsa_io io = { 0 };
  io.q = tensor_of(&a->q, tokens, geometry.heads, geometry.head_dim_qk);
  io.kv.k[0] = tensor_of(&a->k, a->seq.kv_tokens, geometry.kv_heads, geometry.head_dim_qk);
  io.kv.v[0] = tensor_of(&a->v, a->seq.kv_tokens, geometry.kv_heads, geometry.head_dim_v);
  io.o = tensor_of(&a->out.o, tokens, geometry.heads, geometry.head_dim_v);
  if (a->out.lse)
    io.lse[0] = (nsa_tensor){ .data = a->out.lse,
                              .dtype = NSA_F32,
                              .ndim = 2,
                              .shape = { tokens, geometry.heads },
                              .stride = { a->out.lse_token_stride, a->out.lse_head_stride } };
  (void)nsai_reference_dense(&geometry, NULL, &io, 1);
  return ms;
}

static void enter_dense(world *w, const char *more) {
  enter(w, more);
  geometry = w->ctx->config->model;
  machine_record()->kernel = run_dense;
  wrong_of_64 = false;
  ms_of_64 = 10;
}

static void tune_dense(world *w, int32_t level, int32_t fresh) {
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  o.level = level;
  o.fresh = fresh;
  machine_expect("tune", tune(w, &o, &p, 1), NSA_OK, NULL);
  nsai_tune_span span = { 0 };
  assert_true(nsai_tune_next(&w->results, &span));
  assert_int_equal(span.count, w->results.count);
  assert_int_equal(span.events[span.count - 1].kind, NSA_TUNE_DONE);
}

static const nsa_tune_event *find_event(const world *w, int32_t kind, const char *candidate) {
  nsai_tune_span span = { 0 };
  assert_true(nsai_tune_next(&w->results, &span));
  return nsai_tune_find(&span, kind, NULL, candidate);
}

static size_t count_events(const world *w, int32_t kind) {
  nsai_tune_span span = { 0 };
  assert_true(nsai_tune_next(&w->results, &span));
  return nsai_tune_count(&span, kind);
}

/* How many threads the dense kernel of a plan has, and whether a record says so. */
static int32_t planned_threads(const world *w, bool *by_record) {
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  nsa_plan *plan = NULL;
  machine_expect("plan", nsa_plan_create(w->ctx, &p, NULL, NULL, &plan), NSA_OK, NULL);
  int32_t threads = plan->choice.specs[NSAI_KERNEL_DENSE].threads;
  *by_record = plan->choice.decider[NSAI_STAGE_DENSE] == NSAI_BY_RECORD;
  nsa_plan_destroy(plan);
  return threads;
}

static void test_winner(void **state) {
  (void)state;
  world w = { 0 };
  bool by_record;
  enter_dense(&w, "");
  ms_of_64 = 5;
  assert_int_not_equal(planned_threads(&w, &by_record), 64);
  assert_false(by_record);
  tune_dense(&w, NSA_TUNE_QUICK, 0);
  const nsa_tune_event *chosen = find_event(&w, NSA_TUNE_CHOSEN, NULL);
  assert_non_null(chosen);
  assert_non_null(strstr(chosen->candidate, "warps=2"));
  assert_true(fabs(chosen->ms - 5) < 1e-6 && fabs(chosen->gain - 0.5) < 1e-6);
  assert_true(count_events(&w, NSA_TUNE_TIMED) >= 2);
  assert_true(fabs(find_event(&w, NSA_TUNE_BASELINE, "dense")->ms - 5) < 1e-6);
  assert_true(fabs(find_event(&w, NSA_TUNE_BASELINE, "dense.default")->ms - 10) < 1e-6);
  assert_int_equal(planned_threads(&w, &by_record), 64);
  assert_true(by_record);
  enter_dense(&w, ""); /* another process */
  assert_int_equal(planned_threads(&w, &by_record), 64);
  assert_true(by_record);
  assert_int_equal(w.warnings, 0);
  leave(&w);
}

/* Less than tuning.min_gain is no reason to leave the heuristic's choice. */
static void test_min_gain(void **state) {
  (void)state;
  world w = { 0 };
  bool by_record;
  enter_dense(&w, "tuning: {min_gain: 0.1}\n");
  ms_of_64 = 9.1;
  tune_dense(&w, NSA_TUNE_QUICK, 0);
  assert_true(fabs(find_event(&w, NSA_TUNE_CHOSEN, NULL)->gain) < 1e-9);
  assert_int_not_equal(planned_threads(&w, &by_record), 64);
  assert_true(by_record);
  ms_of_64 = 8.9;
  tune_dense(&w, NSA_TUNE_QUICK, 1);
  assert_int_equal(planned_threads(&w, &by_record), 64);
  leave(&w);
}

/* A wrong candidate is told and never chosen, however fast, and not measured by the next call. */
static void test_wrong_candidate(void **state) {
  (void)state;
  world w = { 0 };
  bool by_record;
  enter_dense(&w, "");
  wrong_of_64 = true;
  ms_of_64 = 1;
  tune_dense(&w, NSA_TUNE_QUICK, 0);
  assert_int_equal(count_events(&w, NSA_TUNE_WRONG), 1);
  const nsa_tune_event *wrong = find_event(&w, NSA_TUNE_WRONG, NULL);
  assert_non_null(strstr(wrong->candidate, "warps=2"));
  assert_true(wrong->note[0]);
  assert_null(find_event(&w, NSA_TUNE_TIMED, wrong->candidate));
  assert_int_not_equal(planned_threads(&w, &by_record), 64);
  tune_dense(&w, NSA_TUNE_QUICK, 0); /* told again, not tried */
  assert_int_equal(count_events(&w, NSA_TUNE_WRONG), 1);
  assert_int_not_equal(planned_threads(&w, &by_record), 64);
  wrong_of_64 = false; /* fresh: judged anew */
  tune_dense(&w, NSA_TUNE_QUICK, 1);
  assert_int_equal(count_events(&w, NSA_TUNE_WRONG), 0);
  assert_int_equal(planned_threads(&w, &by_record), 64);
  leave(&w);
}

/* A second call measures nothing twice; a harder level only what is new; the record stays whole. */
static void test_resume(void **state) {
  (void)state;
  world w = { 0 };
  nsa_tune_options dry = NSA_TUNE_OPTIONS_INIT;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  enter_dense(&w, "");
  ms_of_64 = 5;
  tune_dense(&w, NSA_TUNE_QUICK, 0);
  size_t timed = count_events(&w, NSA_TUNE_TIMED);
  int launches = machine_record()->launches;
  enter_dense(&w, "");
  ms_of_64 = 5;
  machine_record()->launches = 0;
  tune_dense(&w, NSA_TUNE_QUICK, 0);
  assert_true(machine_record()->launches < launches);
  assert_int_equal(count_events(&w, NSA_TUNE_TIMED), timed); /* told all the same */
  assert_non_null(strstr(find_event(&w, NSA_TUNE_CHOSEN, NULL)->candidate, "warps=2"));
  dry.level = NSA_TUNE_NORMAL;
  dry.dry_run = 1;
  machine_expect("dry", tune(&w, &dry, &p, 1), NSA_OK, NULL);
  size_t known = 0;
  for (size_t i = 0; i < w.results.count; i++)
    known += !strcmp(w.results.events[i].note, "measured before");
  assert_int_equal(known, timed);
  tune_dense(&w, NSA_TUNE_NORMAL, 0);
  assert_true(count_events(&w, NSA_TUNE_TIMED) > timed);
  assert_non_null(strstr(find_event(&w, NSA_TUNE_CHOSEN, NULL)->candidate, "warps=2"));
  leave(&w);
}

/* A spent budget ends the search with what was begun, and is no failure. */
static void test_budget(void **state) {
  (void)state;
  world w = { 0 };
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 4096, 0);
  enter_dense(&w, "");
  o.budget_s = 1e-9;
  machine_expect("spent", tune(&w, &o, &p, 1), NSA_OK, NULL);
  const nsa_tune_event *last = &w.results.events[w.results.count - 1];
  assert_int_equal(last->kind, NSA_TUNE_DONE);
  assert_int_equal(last->tokens, 4096);
  assert_non_null(strstr(last->note, "not begun: the budget is spent"));
  assert_non_null(find_event(&w, NSA_TUNE_CHOSEN, NULL)); /* of the first */
  leave(&w);
}

/* ---- compiling ---- */

static void test_cancel(void **state) {
  (void)state;
  world w = { 0 };
  bool by_record;
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  static const char *const what[] = { "compiling", "verifying", "timing", "confirming",
                                      "timing the whole" };
  for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
    enter_dense(&w, "runtime: {compile_jobs: 1}\n");
    ms_of_64 = 5;
    setenv("FAKE_NVRTC_MS", "40", 1);
    w.cancel_what = what[i];
    w.cancel_at = 1;
    o.fresh = 1;
    machine_expect(what[i], tune(&w, &o, &p, 1), NSA_E_CANCELLED, "cancelled by the progress");
    assert_int_equal(w.steps, 1);
    w.cancel_at = 0;
    unsetenv("FAKE_NVRTC_MS");
    assert_int_equal(w.results.events[w.results.count - 1].kind, NSA_TUNE_DONE);
    tune_dense(&w, NSA_TUNE_QUICK, 0); /* goes on */
    assert_int_equal(planned_threads(&w, &by_record), 64);
    machine_remove(w.dir); /* compiles anew */
    w.dir[0] = 0;
  }
  leave(&w);
}

static void test_two_threads(void **state) {
  (void)state;
  world w = { 0 };
  enter_dense(&w, "");
  w.reenter = true;
  tune_dense(&w, NSA_TUNE_QUICK, 0);
  assert_false(w.reenter);
  leave(&w);
}

/* Candidates that spill are told, and not measured. */
static void test_refused_candidate(void **state) {
  (void)state;
  world w = { 0 };
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  enter_dense(&w, "runtime: {compile_jobs: 1}\n");
  machine_expect("prepare", nsa_prepare(w.ctx, &p, 1, NULL, NULL), NSA_OK, NULL);
  setenv("FAKE_NVRTC_FAT", "dense_mma", 1);
  machine_record()->spills = 1; /* the heuristic's choice is compiled already */
  tune_dense(&w, NSA_TUNE_QUICK, 0);
  assert_int_equal(count_events(&w, NSA_TUNE_REFUSED), 1);
  const nsa_tune_event *refused = find_event(&w, NSA_TUNE_REFUSED, NULL);
  assert_non_null(strstr(refused->note, "spills"));
  assert_null(find_event(&w, NSA_TUNE_TIMED, refused->candidate));
  int launches = machine_record()->launches;
  tune_dense(&w, NSA_TUNE_QUICK, 0); /* remembered and told, not tried */
  assert_int_equal(count_events(&w, NSA_TUNE_REFUSED), 1);
  assert_int_equal(machine_record()->launches, launches);
  unsetenv("FAKE_NVRTC_FAT");
  leave(&w);
}

/* Another compiler refuses the heuristic's choice: plans use smaller tiles there, and a tuning
 * finds the best of what compiles. */
static void test_refused_heuristic(void **state) {
  (void)state;
  world w = { 0 };
  bool by_record;
  enter_dense(&w, "runtime: {compile_jobs: 1}\n");
  ms_of_64 = 5;
  setenv("FAKE_NVRTC_FAT", "dense_wgmma", 1);
  machine_record()->spills = 1;
  tune_dense(&w, NSA_TUNE_QUICK, 0);
  assert_int_equal(count_events(&w, NSA_TUNE_REFUSED), 1);
  assert_int_equal(planned_threads(&w, &by_record), 64);
  assert_true(by_record);
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  machine_remove(w.dir);
  w.dir[0] = 0;
  enter_dense(&w, "runtime: {compile_jobs: 1}\nvariants: {disable: [dense.dense_mma]}\n");
  machine_record()->spills = 1000; /* nothing compiles */
  machine_expect("none", tune(&w, &o, &p, 1), NSA_E_COMPILE, "spills");
  machine_record()->spills = 0;
  unsetenv("FAKE_NVRTC_FAT");
  leave(&w);
}

/* ---- what stays loaded ---- */

static int loaded(void) { return machine_record()->loads - machine_record()->unloads; }

static nsa_plan *make_plan(const world *w) {
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  nsa_plan *plan = NULL;
  machine_expect("plan", nsa_plan_create(w->ctx, &p, NULL, NULL, &plan), NSA_OK, NULL);
  return plan;
}

/* After a tuning only what plans use is loaded; a plan's end unloads nothing. */
static void test_unload(void **state) {
  (void)state;
  world w = { 0 };
  enter_dense(&w, "");
  ms_of_64 = 5;
  tune_dense(&w, NSA_TUNE_QUICK, 0);
  assert_true(machine_record()->loads > 1);
  assert_int_equal(loaded(), 0);
  enter_dense(&w, "tuning: {records: false}\n");
  ms_of_64 = 5;
  int before = loaded();
  nsa_plan *plan = make_plan(&w); /* the heuristic's */
  assert_int_equal(loaded(), before + 1);
  tune_dense(&w, NSA_TUNE_QUICK, 1);
  assert_int_equal(loaded(), before + 1);
  nsa_plan_destroy(plan);
  assert_int_equal(loaded(), before + 1);
  int loads = machine_record()->loads;
  nsa_plan_destroy(make_plan(&w));
  assert_int_equal(machine_record()->loads, loads); /* still there */
  tune_dense(&w, NSA_TUNE_QUICK, 1);
  assert_int_equal(loaded(), before + 1); /* the tuner did not load it */
  leave(&w);
}

/* What another thread makes a plan of meanwhile stays, though the tuner loaded it. */
static void test_unload_beside(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    world w = { 0 };
    enter_dense(&w, "tuning: {records: false}\n");
    ms_of_64 = 5;
    w.plan_beside = true;
    w.keep_beside = i;
    tune_dense(&w, NSA_TUNE_QUICK, 0);
    assert_false(w.plan_beside);
    assert_int_equal(loaded(), 1);
    nsa_plan_destroy(w.beside);
    assert_int_equal(loaded(), 1);
    leave(&w);
  }
}

/* ---- launches that fail ---- */

/* A candidate that the device refuses to launch is told and left: when it is verified, when it warms
 * up, amid the rounds. */
static void test_refused_launch(void **state) {
  (void)state;
  static const int spare[] = { 0, 1, 4 };
  for (size_t i = 0; i < sizeof spare / sizeof *spare; i++) {
    world w = { 0 };
    bool by_record;
    enter_dense(&w, "");
    ms_of_64 = 1;
    machine_record()->refuse_threads = 64;
    machine_record()->refuse_spare = spare[i];
    tune_dense(&w, NSA_TUNE_QUICK, 0);
    assert_int_equal(machine_record()->refuse_spare, 0);
    assert_int_equal(count_events(&w, NSA_TUNE_REFUSED), 1);
    const nsa_tune_event *refused = find_event(&w, NSA_TUNE_REFUSED, NULL);
    assert_non_null(strstr(refused->candidate, "warps=2"));
    assert_non_null(strstr(refused->note, "cuLaunchKernelEx of dense_mma: "));
    assert_null(find_event(&w, NSA_TUNE_TIMED, refused->candidate));
    assert_true(count_events(&w, NSA_TUNE_TIMED) >= 2);
    assert_null(strstr(find_event(&w, NSA_TUNE_CHOSEN, NULL)->candidate, "warps=2"));
    assert_int_not_equal(planned_threads(&w, &by_record), 64);
    assert_true(by_record);
    machine_record()->refuse_threads = 0;
    int launches = machine_record()->launches;
    tune_dense(&w, NSA_TUNE_QUICK, 0); /* remembered and told, not tried */
    assert_int_equal(count_events(&w, NSA_TUNE_REFUSED), 1);
    assert_int_equal(machine_record()->launches, launches);
    tune_dense(&w, NSA_TUNE_QUICK, 1); /* fresh: tried anew */
    assert_int_equal(planned_threads(&w, &by_record), 64);
    leave(&w);
  }
}

static void test_refused_launch_of_heuristic(void **state) {
  (void)state;
  world w = { 0 };
  bool by_record;
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  enter_dense(&w, "");
  machine_record()->refuse_threads = planned_threads(&w, &by_record);
  machine_expect("refused", tune(&w, &o, &p, 1), NSA_E_CUDA,
                 "refuses to run the heuristic's own choice for ");
  assert_int_equal(count_events(&w, NSA_TUNE_REFUSED), 0);
  expect_nothing_chosen(&w, &p);
  leave(&w);
}

/* A kernel that breaks the context ends the tuning, which says whose it was; the next process leaves
 * that one out. */
static void test_lost_context(void **state) {
  (void)state;
  world w = { 0 };
  bool by_record;
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  o.level = NSA_TUNE_QUICK;
  enter_dense(&w, "");
  ms_of_64 = 1;
  machine_record()->break_threads = 64;
  machine_expect("lost", tune(&w, &o, &p, 1), NSA_E_CUDA,
                 "the device failed in a run with dense_mma ");
  assert_non_null(strstr(nsa_last_error(), "warps=2"));
  assert_non_null(strstr(nsa_last_error(), "CUDA context is lost"));
  assert_non_null(strstr(find_event(&w, NSA_TUNE_DONE, NULL)->note, "warps=2"));
  machine_record()->broken = 0;
  enter_dense(&w, "");
  ms_of_64 = 1;
  tune_dense(&w, NSA_TUNE_QUICK, 0);
  assert_int_equal(machine_record()->broken, 0);
  assert_null(strstr(find_event(&w, NSA_TUNE_CHOSEN, NULL)->candidate, "warps=2"));
  assert_int_not_equal(planned_threads(&w, &by_record), 64);
  machine_record()->break_threads = planned_threads(&w, &by_record); /* the heuristic's own */
  o.fresh = 1;
  machine_expect("lost", tune(&w, &o, &p, 1), NSA_E_CUDA, "CUDA context is lost");
  assert_int_equal(count_events(&w, NSA_TUNE_REFUSED), 0);
  machine_record()->broken = 0;
  leave(&w);
}

/* The heuristic's level measures nothing. */
static void test_heuristic_level(void **state) {
  (void)state;
  world w = { 0 };
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  enter(&w, "tuning: {level: heuristic}\n");
  machine_expect("nothing", tune(&w, &o, &p, 1), NSA_OK, NULL);
  assert_int_equal(machine_record()->launches + machine_record()->compilations, 0);
  assert_int_equal(count_events(&w, NSA_TUNE_PLANNED), 2); /* the best guess of each variant */
  leave(&w);
}

/* ---- on first use ---- */

static void test_first_use(void **state) {
  (void)state;
  world w = { 0 };
  bool by_record;
  enter_dense(&w, "tuning: {on_first_use: quick}\n");
  ms_of_64 = 5;
  assert_int_equal(planned_threads(&w, &by_record), 64);
  assert_true(by_record);
  int launches = machine_record()->launches;
  assert_true(launches > 0);
  assert_int_equal(planned_threads(&w, &by_record), 64);
  assert_int_equal(machine_record()->launches, launches); /* there is a record now */
  assert_int_equal(w.warnings, 0);
  leave(&w);
  enter(&w, "tuning: {on_first_use: quick}\n"); /* kernels that compute nothing */
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  nsa_plan *plan = NULL;
  machine_expect("plan", nsa_plan_create(w.ctx, &p, NULL, NULL, &plan), NSA_E_VERIFY, "wrong");
  assert_null(plan);
  leave(&w);
}

static int begin(void **state) {
  (void)state;
  begun = false;
  unsetenv("FAKE_NVRTC_FAT");
  unsetenv("FAKE_NVRTC_MS");
  return 0;
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void) {
  const struct CMUnitTest tests[] = {
    TEST(test_options),
    TEST(test_no_device),
    TEST(test_levels),
    TEST(test_order),
    TEST(test_configuration),
    TEST(test_problems),
    TEST(test_no_length),
    TEST(test_wrong_heuristic),
    TEST(test_winner),
    TEST(test_min_gain),
    TEST(test_wrong_candidate),
    TEST(test_resume),
    TEST(test_budget),
    TEST(test_cancel),
    TEST(test_two_threads),
    TEST(test_refused_candidate),
    TEST(test_refused_heuristic),
    TEST(test_unload),
    TEST(test_unload_beside),
    TEST(test_refused_launch),
    TEST(test_refused_launch_of_heuristic),
    TEST(test_lost_context),
    TEST(test_heuristic_level),
    TEST(test_first_use),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
