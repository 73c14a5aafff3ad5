/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_tune on the fake GPU: its arguments and what it looks at, by dry runs. Kernels that compute
 * nothing are found out.
 */
#include "support/cmocka_all.h"

#include "plan/context.h"
#include "plan/plan.h"
#include "tune_fixture.h"

#include <math.h>

/* "dense 1024, low 1024, high 1024": the problems of the results, in their order. */
static const char *list_problems(const tuning *w) {
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
  tuning w = { 0 };
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1000, 0);
  tuning_enter(&w, "");
  nsa_tune_options o = { 0 };
  machine_expect("size", nsa_tune(w.ctx, &p, 1, &o), NSA_E_VERSION, "NSA_TUNE_OPTIONS_INIT");
  static const int32_t levels[] = { -1, NSA_TUNE_EXHAUSTIVE + 1, 99 };
  for (int i = 0; i < 3; i++) {
    o = INIT(nsa_tune_options, .level = levels[i]);
    machine_expect("level", nsa_tune(w.ctx, &p, 1, &o), NSA_E_ARG, "options.level is");
  }
  static const double budgets[] = { -1, -INFINITY, NAN };
  for (int i = 0; i < 3; i++) {
    o = INIT(nsa_tune_options, .budget_s = budgets[i]);
    machine_expect("budget", nsa_tune(w.ctx, &p, 1, &o), NSA_E_ARG, "options.budget_s is");
  }
  machine_expect("NULL", nsa_tune(w.ctx, NULL, 1, NULL), NSA_E_ARG, "problems is NULL");
  p.max_tokens = -1;
  machine_expect("problem", nsa_tune(w.ctx, &p, 1, NULL), NSA_E_ARG, "max_tokens");
  machine_expect("no serving", nsa_tune(w.ctx, NULL, 0, NULL), NSA_E_ARG, "serving.max_tokens");
  p = machine_problem(NSA_OP_DENSE, 1000, 0);
  o = (nsa_tune_options)NSA_TUNE_OPTIONS_INIT;
  o.dry_run = 1; /* none of these left the context busy */
  machine_expect("good", nsa_tune(w.ctx, &p, 1, &o), NSA_OK, NULL);
  tuning_leave(&w);
}

static void test_no_device(void **state) {
  char yaml[1024];
  nsa_ctx *ctx = NULL;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1000, 0);
  machine_yaml(&(machine_request){ 0 }, yaml, sizeof yaml);
  nsa_options options = INIT(nsa_options, .yaml_text = yaml);
  machine_expect("cpu", nsa_create(NULL, &options, &ctx), NSA_OK, NULL);
  machine_expect("cpu", nsa_tune(ctx, &p, 1, NULL), NSA_E_NO_DEVICE, "runtime.device is cpu");
  nsa_destroy(ctx);
  tuning w = { 0 };
  machine_overrides o;
  tuning_enter(&w, "");
  machine_yaml(&(machine_request){ .gpu = true }, yaml, sizeof yaml);
  machine_overrides_init(&o, w.dir, NULL);
  options.overrides = o.list;
  options.arch = "sm_90a";
  machine_expect("arch", nsa_create(NULL, &options, &ctx), NSA_OK, NULL);
  machine_expect("arch", nsa_tune(ctx, &p, 1, NULL), NSA_E_NO_DEVICE, "options.arch");
  nsa_destroy(ctx);
  tuning_leave(&w);
}

/* ---- what is looked at ---- */

static bool has_candidate(const nsai_tune_span *span, const nsa_tune_event *event) {
  return nsai_tune_find(span, NSA_TUNE_PLANNED, event->stage, event->candidate) != NULL;
}

/* Every candidate of `a` is one of `b`; the number of those that only `b` has. */
static size_t expect_nested(const tuning *a, const tuning *b) {
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

/* The first of each stage is what nsai_choose says, where no other stage's variant fuses it, and is
 * said to be. */
static void expect_heuristic_first(const tuning *w) {
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
      if (!choice.variant[s] || nsai_is_fused(&choice, (nsai_stage)s) ||
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
  tuning w[NSA_TUNE_EXHAUSTIVE + 1] = { 0 };
  for (int32_t level = NSA_TUNE_HEURISTIC; level <= NSA_TUNE_EXHAUSTIVE; level++) {
    tuning_enter(&w[level], "serving: {max_tokens: 16Ki, max_seqs: 1}\n");
    tuning_dry_run(&w[level], level, NULL, 0);
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
  tuning a = { 0 }, b = { 0 };
  tuning_enter(&a, "serving: {max_tokens: 4Ki, max_seqs: 1}\n");
  tuning_dry_run(&a, NSA_TUNE_NORMAL, NULL, 0);
  snprintf(b.dir, sizeof b.dir, "%s", a.dir);
  tuning_enter(&b, "serving: {max_tokens: 4Ki, max_seqs: 1}\n");
  tuning_dry_run(&b, NSA_TUNE_NORMAL, NULL, 0);
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
  tuning_leave(&a);
}

/* Forced variants are the only ones looked at, disabled ones are not. */
static void test_configuration(void **state) {
  tuning w = { 0 };
  tuning_enter(&w, "variants: {force: {dense: dense_gemm}}\n");
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  tuning_dry_run(&w, NSA_TUNE_EXHAUSTIVE, &p, 1);
  assert_int_equal(w.results.count, 2);
  assert_string_equal(w.results.events[1].candidate, "dense_gemm");
  tuning_enter(&w, "variants: {disable: [\"dense.*\"]}\n");
  tuning_expect(&w, &p, NSA_E_UNSUPPORTED, "matches it with");
  tuning_leave(&w);
}

static void expect_problems(const char *more, const nsa_problem *problems, size_t count,
                            const char *expected) {
  tuning w = { 0 };
  tuning_enter(&w, more);
  tuning_dry_run(&w, NSA_TUNE_HEURISTIC, problems, count);
  assert_string_equal(list_problems(&w), expected);
  tuning_leave(&w);
}

static void test_problems(void **state) {
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
  tuning w = { 0 };
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1000, 0);
  tuning_enter(&w, "tuning: {lengths: [4Ki]}\n");
  tuning_expect(&w, &p, NSA_E_CONFIG,
                "tuning.lengths holds no length up to the problem's max_kv_len 1000");
  tuning_leave(&w);
}

/* ---- kernels that compute nothing ---- */

static void test_wrong_heuristic(void **state) {
  for (int i = 0; i < 2; i++) {
    tuning w = { 0 };
    nsa_problem p = machine_problem(i ? NSA_OP_FORWARD : NSA_OP_DENSE, 1024, 0);
    uint8_t before[16], after[16];
    tuning_enter(&w, "");
    machine_expect("digest", nsa_records_digest(w.ctx, before), NSA_OK, NULL);
    tuning_expect(&w, &p, NSA_E_VERIFY, "the heuristic's own choice computes wrong results for ");
    tuning_expect_nothing_chosen(&w, &p);
    nsai_tune_span span = { 0 };
    assert_true(nsai_tune_next(&w.results, &span));
    assert_int_equal(nsai_tune_count(&span, NSA_TUNE_CHOSEN), 0);
    assert_int_equal(nsai_tune_count(&span, NSA_TUNE_TIMED), 0);
    machine_expect("digest", nsa_records_digest(w.ctx, after), NSA_OK, NULL);
    assert_memory_equal(before, after, 16);
    tuning_leave(&w);
  }
}

/* The heuristic's level measures nothing. */
static void test_heuristic_level(void **state) {
  tuning w = { 0 };
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  tuning_enter(&w, "tuning: {level: heuristic}\n");
  machine_expect("nothing", tuning_tune(&w, &o, &p, 1), NSA_OK, NULL);
  assert_int_equal(machine_record()->launches + machine_record()->compilations, 0);
  assert_int_equal(tuning_count(&w, NSA_TUNE_PLANNED), 2); /* the best guess of each variant */
  tuning_leave(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    TEST(test_options),   TEST(test_no_device),       TEST(test_levels),
    TEST(test_order),     TEST(test_configuration),   TEST(test_problems),
    TEST(test_no_length), TEST(test_wrong_heuristic), TEST(test_heuristic_level),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
