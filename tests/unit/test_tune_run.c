/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Whole tunings of dense attention on the fake GPU: winners, failures of kernels, compilers and
 * launches, budgets and cancelling, what stays loaded, tuning on first use.
 */
#include "support/cmocka_all.h"

#include "plan/context.h"
#include "plan/plan.h"
#include "tune_fixture.h"

#include <math.h>

static void test_winner(void **state) {
  tuning w = { 0 };
  dense_enter(&w, "");
  dense_ms_of_64 = 5;
  assert_int_not_equal(dense_planned_threads(&w), 64);
  assert_false(w.by_record);
  dense_tune(&w, NSA_TUNE_QUICK, 0);
  const nsa_tune_event *chosen = tuning_find(&w, NSA_TUNE_CHOSEN, NULL);
  assert_non_null(chosen);
  assert_non_null(strstr(chosen->candidate, "warps=2"));
  assert_true(fabs(chosen->ms - 5) < 1e-6 && fabs(chosen->gain - 0.5) < 1e-6);
  assert_true(tuning_count(&w, NSA_TUNE_TIMED) >= 2);
  assert_true(fabs(tuning_find(&w, NSA_TUNE_BASELINE, "dense")->ms - 5) < 1e-6);
  assert_true(fabs(tuning_find(&w, NSA_TUNE_BASELINE, "dense.default")->ms - 10) < 1e-6);
  assert_int_equal(dense_planned_threads(&w), 64);
  assert_true(w.by_record);
  dense_enter(&w, ""); /* another process */
  assert_int_equal(dense_planned_threads(&w), 64);
  assert_true(w.by_record);
  assert_int_equal(w.warnings, 0);
  tuning_leave(&w);
}

/* Clocks that fall before the final: the record tells all times at the final's. */
static void test_final_clocks(void **state) {
  tuning w = { 0 };
  char text[65536];
  int timed = 0;
  dense_enter(&w, "");
  dense_slowdown = 1.3;
  dense_tune(&w, NSA_TUNE_QUICK, 0);
  assert_true(nsa_records_export(w.ctx, text, sizeof text) < sizeof text);
  for (const char *at = text; (at = strstr(at, "state: ok, ms: ")) != NULL; timed++) {
    at += strlen("state: ok, ms: ");
    assert_true(fabs(strtod(at, NULL) - 13) < 1e-3);
  }
  assert_true(timed > 4); /* more than finalists */
  tuning_leave(&w);
}

/* Less than tuning.min_gain is no reason to leave the heuristic's choice. */
static void test_min_gain(void **state) {
  tuning w = { 0 };
  dense_enter(&w, "tuning: {min_gain: 0.1}\n");
  dense_ms_of_64 = 9.1;
  dense_tune(&w, NSA_TUNE_QUICK, 0);
  assert_true(fabs(tuning_find(&w, NSA_TUNE_CHOSEN, NULL)->gain) < 1e-9);
  assert_int_not_equal(dense_planned_threads(&w), 64);
  assert_true(w.by_record);
  dense_ms_of_64 = 8.9;
  dense_tune(&w, NSA_TUNE_QUICK, 1);
  assert_int_equal(dense_planned_threads(&w), 64);
  tuning_leave(&w);
}

/* A wrong candidate is told and never chosen, however fast, and not measured by the next call. */
static void test_wrong_candidate(void **state) {
  tuning w = { 0 };
  dense_enter(&w, "");
  dense_wrong_of_64 = true;
  dense_ms_of_64 = 1;
  dense_tune(&w, NSA_TUNE_QUICK, 0);
  assert_int_equal(tuning_count(&w, NSA_TUNE_WRONG), 1);
  const nsa_tune_event *wrong = tuning_find(&w, NSA_TUNE_WRONG, NULL);
  assert_non_null(strstr(wrong->candidate, "warps=2"));
  assert_true(wrong->note[0]);
  assert_null(tuning_find(&w, NSA_TUNE_TIMED, wrong->candidate));
  assert_int_not_equal(dense_planned_threads(&w), 64);
  dense_tune(&w, NSA_TUNE_QUICK, 0); /* told again, not tried */
  assert_int_equal(tuning_count(&w, NSA_TUNE_WRONG), 1);
  assert_int_not_equal(dense_planned_threads(&w), 64);
  dense_wrong_of_64 = false; /* fresh: verified anew */
  dense_tune(&w, NSA_TUNE_QUICK, 1);
  assert_int_equal(tuning_count(&w, NSA_TUNE_WRONG), 0);
  assert_int_equal(dense_planned_threads(&w), 64);
  tuning_leave(&w);
}

/* A second call measures nothing twice; a harder level only what is new; the record stays whole. */
static void test_resume(void **state) {
  tuning w = { 0 };
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  dense_enter(&w, "");
  dense_ms_of_64 = 5;
  dense_tune(&w, NSA_TUNE_QUICK, 0);
  size_t timed = tuning_count(&w, NSA_TUNE_TIMED);
  int launches = machine_record()->launches;
  dense_enter(&w, "");
  dense_ms_of_64 = 5;
  machine_record()->launches = 0;
  dense_tune(&w, NSA_TUNE_QUICK, 0);
  assert_true(machine_record()->launches < launches);
  assert_int_equal(tuning_count(&w, NSA_TUNE_TIMED), timed); /* told all the same */
  assert_non_null(strstr(tuning_find(&w, NSA_TUNE_CHOSEN, NULL)->candidate, "warps=2"));
  nsa_tune_options dry = INIT(nsa_tune_options, .level = NSA_TUNE_NORMAL, .dry_run = 1);
  machine_expect("dry", tuning_tune(&w, &dry, &p, 1), NSA_OK, NULL);
  size_t known = 0;
  for (size_t i = 0; i < w.results.count; i++)
    known += !strcmp(w.results.events[i].note, "measured before");
  assert_int_equal(known, timed);
  dense_tune(&w, NSA_TUNE_NORMAL, 0);
  assert_true(tuning_count(&w, NSA_TUNE_TIMED) > timed);
  assert_non_null(strstr(tuning_find(&w, NSA_TUNE_CHOSEN, NULL)->candidate, "warps=2"));
  tuning_leave(&w);
}

/* A spent budget ends the search with what was begun, and is no failure. */
static void test_budget(void **state) {
  tuning w = { 0 };
  nsa_problem p = machine_problem(NSA_OP_DENSE, 4096, 0);
  dense_enter(&w, "");
  nsa_tune_options o = INIT(nsa_tune_options, .budget_s = 1e-9);
  machine_expect("spent", tuning_tune(&w, &o, &p, 1), NSA_OK, NULL);
  const nsa_tune_event *last = &w.results.events[w.results.count - 1];
  assert_int_equal(last->kind, NSA_TUNE_DONE);
  assert_int_equal(last->tokens, 4096);
  assert_non_null(strstr(last->note, "not begun: the budget is spent"));
  assert_non_null(tuning_find(&w, NSA_TUNE_CHOSEN, NULL)); /* of the first */
  tuning_leave(&w);
}

/* ---- compiling ---- */

static void test_cancel(void **state) {
  tuning w = { 0 };
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  static const char *const what[] = { "compiling", "verifying", "timing", "confirming",
                                      "timing whole calls" };
  for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
    dense_enter(&w, "runtime: {compile_jobs: 1}\n");
    dense_ms_of_64 = 5;
    if (!i) setenv("FAKE_NVRTC_MS", "40", 1); /* long enough to be cancelled */
    w.cancel_what = what[i];
    w.cancel_at = 1;
    o.fresh = 1;
    machine_expect(what[i], tuning_tune(&w, &o, &p, 1), NSA_E_CANCELLED,
                   "cancelled by the progress");
    assert_int_equal(w.steps, 1);
    w.cancel_at = 0;
    unsetenv("FAKE_NVRTC_MS");
    assert_int_equal(w.results.events[w.results.count - 1].kind, NSA_TUNE_DONE);
    dense_tune(&w, NSA_TUNE_QUICK, 0); /* goes on */
    assert_int_equal(dense_planned_threads(&w), 64);
    machine_remove(w.dir); /* compiles anew */
    w.dir[0] = 0;
  }
  tuning_leave(&w);
}

static void test_two_threads(void **state) {
  tuning w = { 0 };
  dense_enter(&w, "");
  w.reenter = true;
  dense_tune(&w, NSA_TUNE_QUICK, 0);
  assert_false(w.reenter);
  tuning_leave(&w);
}

/* Candidates that spill are told, and not measured. */
static void test_refused_candidate(void **state) {
  tuning w = { 0 };
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  dense_enter(&w, "runtime: {compile_jobs: 1}\n");
  machine_expect("prepare", nsa_prepare(w.ctx, &p, 1, NULL, NULL), NSA_OK, NULL);
  setenv("FAKE_NVRTC_FAT", "attend_dense_sm80", 1);
  machine_record()->spills = 1; /* the heuristic's choice is compiled already */
  dense_tune(&w, NSA_TUNE_QUICK, 0);
  assert_int_equal(tuning_count(&w, NSA_TUNE_REFUSED), 1);
  const nsa_tune_event *refused = tuning_find(&w, NSA_TUNE_REFUSED, NULL);
  assert_non_null(strstr(refused->note, "spills"));
  assert_null(tuning_find(&w, NSA_TUNE_TIMED, refused->candidate));
  int launches = machine_record()->launches;
  dense_tune(&w, NSA_TUNE_QUICK, 0); /* remembered and told, not tried */
  assert_int_equal(tuning_count(&w, NSA_TUNE_REFUSED), 1);
  assert_int_equal(machine_record()->launches, launches);
  unsetenv("FAKE_NVRTC_FAT");
  tuning_leave(&w);
}

/* Another compiler refuses the heuristic's choice: plans use smaller tiles there, and a tuning
 * finds the best of what compiles. */
static void test_refused_heuristic(void **state) {
  tuning w = { 0 };
  dense_enter(&w, "runtime: {compile_jobs: 1}\n");
  dense_ms_of_64 = 5;
  setenv("FAKE_NVRTC_FAT", "attend_dense_sm90", 1);
  machine_record()->spills = 1;
  dense_tune(&w, NSA_TUNE_QUICK, 0);
  assert_int_equal(tuning_count(&w, NSA_TUNE_REFUSED), 1);
  assert_int_equal(dense_planned_threads(&w), 64);
  assert_true(w.by_record);
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  machine_remove(w.dir);
  w.dir[0] = 0;
  dense_enter(&w, "runtime: {compile_jobs: 1}\nvariants: {disable: [dense.dense_sm80]}\n");
  machine_record()->spills = 1000; /* nothing compiles */
  tuning_expect(&w, &p, NSA_E_COMPILE, "spills");
  machine_record()->spills = 0;
  unsetenv("FAKE_NVRTC_FAT");
  tuning_leave(&w);
}

/* ---- what stays loaded ---- */

static int loaded(void) { return machine_record()->loads - machine_record()->unloads; }

static nsa_plan *make_plan(const tuning *w) {
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  nsa_plan *plan = machine_plan(w->ctx, &p);
  return plan;
}

/* After a tuning only what plans use is loaded; a plan's end unloads nothing. */
static void test_unload(void **state) {
  tuning w = { 0 };
  dense_enter(&w, "");
  dense_ms_of_64 = 5;
  dense_tune(&w, NSA_TUNE_QUICK, 0);
  assert_true(machine_record()->loads > 1);
  assert_int_equal(loaded(), 0);
  dense_enter(&w, "tuning: {records: false}\n");
  dense_ms_of_64 = 5;
  int before = loaded();
  nsa_plan *plan = make_plan(&w); /* the heuristic's */
  assert_int_equal(loaded(), before + 1);
  dense_tune(&w, NSA_TUNE_QUICK, 1);
  assert_int_equal(loaded(), before + 1);
  nsa_plan_destroy(plan);
  assert_int_equal(loaded(), before + 1);
  int loads = machine_record()->loads;
  nsa_plan_destroy(make_plan(&w));
  assert_int_equal(machine_record()->loads, loads); /* still there */
  dense_tune(&w, NSA_TUNE_QUICK, 1);
  assert_int_equal(loaded(), before + 1); /* the tuner did not load it */
  tuning_leave(&w);
}

/* What another thread makes a plan of meanwhile stays, though the tuner loaded it. */
static void test_unload_second_plan(void **state) {
  for (int i = 0; i < 2; i++) {
    tuning w = { 0 };
    dense_enter(&w, "tuning: {records: false}\n");
    dense_ms_of_64 = 5;
    w.second_plan = true;
    w.keep_second = i;
    dense_tune(&w, NSA_TUNE_QUICK, 0);
    assert_false(w.second_plan);
    assert_int_equal(loaded(), 1);
    nsa_plan_destroy(w.second);
    assert_int_equal(loaded(), 1);
    tuning_leave(&w);
  }
}

/* ---- launches that fail ---- */

/* A candidate that the device refuses to launch is told and left: when it is verified, when it
 * warms up, amid the rounds. */
static void test_refused_launch(void **state) {
  static const int spare[] = { 0, 1, 4 };
  for (size_t i = 0; i < sizeof spare / sizeof *spare; i++) {
    tuning w = { 0 };
    dense_enter(&w, "");
    dense_ms_of_64 = 1;
    machine_record()->refuse_threads = 64;
    machine_record()->refuse_spare = spare[i];
    dense_tune(&w, NSA_TUNE_QUICK, 0);
    assert_int_equal(machine_record()->refuse_spare, 0);
    assert_int_equal(tuning_count(&w, NSA_TUNE_REFUSED), 1);
    const nsa_tune_event *refused = tuning_find(&w, NSA_TUNE_REFUSED, NULL);
    assert_non_null(strstr(refused->candidate, "warps=2"));
    assert_non_null(strstr(refused->note, "cuLaunchKernelEx of attend_dense_sm80: "));
    assert_null(tuning_find(&w, NSA_TUNE_TIMED, refused->candidate));
    assert_true(tuning_count(&w, NSA_TUNE_TIMED) >= 2);
    assert_null(strstr(tuning_find(&w, NSA_TUNE_CHOSEN, NULL)->candidate, "warps=2"));
    assert_int_not_equal(dense_planned_threads(&w), 64);
    assert_true(w.by_record);
    machine_record()->refuse_threads = 0;
    int launches = machine_record()->launches;
    dense_tune(&w, NSA_TUNE_QUICK, 0); /* remembered and told, not tried */
    assert_int_equal(tuning_count(&w, NSA_TUNE_REFUSED), 1);
    assert_int_equal(machine_record()->launches, launches);
    dense_tune(&w, NSA_TUNE_QUICK, 1); /* fresh: tried anew */
    assert_int_equal(dense_planned_threads(&w), 64);
    tuning_leave(&w);
  }
}

static void test_refused_launch_of_heuristic(void **state) {
  tuning w = { 0 };
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  dense_enter(&w, "");
  machine_record()->refuse_threads = dense_planned_threads(&w);
  tuning_expect(&w, &p, NSA_E_CUDA, "refuses to run the heuristic's own choice for ");
  assert_int_equal(tuning_count(&w, NSA_TUNE_REFUSED), 0);
  tuning_expect_nothing_chosen(&w, &p);
  tuning_leave(&w);
}

/* A kernel that breaks the context ends the tuning, which says whose it was; the next process
 * leaves that one out. */
static void test_lost_context(void **state) {
  tuning w = { 0 };
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  dense_enter(&w, "");
  dense_ms_of_64 = 1;
  machine_record()->break_threads = 64;
  tuning_expect(&w, &p, NSA_E_CUDA, "the device failed in a run with dense_sm80 ");
  assert_non_null(strstr(nsa_last_error(), "warps=2"));
  assert_non_null(strstr(nsa_last_error(), "CUDA context is lost"));
  assert_non_null(strstr(tuning_find(&w, NSA_TUNE_DONE, NULL)->note, "warps=2"));
  machine_record()->broken = 0;
  dense_enter(&w, "");
  dense_ms_of_64 = 1;
  dense_tune(&w, NSA_TUNE_QUICK, 0);
  assert_int_equal(machine_record()->broken, 0);
  assert_null(strstr(tuning_find(&w, NSA_TUNE_CHOSEN, NULL)->candidate, "warps=2"));
  assert_int_not_equal(dense_planned_threads(&w), 64);
  machine_record()->break_threads = dense_planned_threads(&w); /* the heuristic's own */
  nsa_tune_options o = INIT(nsa_tune_options, .level = NSA_TUNE_QUICK, .fresh = 1);
  machine_expect("lost", tuning_tune(&w, &o, &p, 1), NSA_E_CUDA, "CUDA context is lost");
  assert_int_equal(tuning_count(&w, NSA_TUNE_REFUSED), 0);
  machine_record()->broken = 0;
  tuning_leave(&w);
}

/* ---- on first use ---- */

static void test_first_use(void **state) {
  tuning w = { 0 };
  dense_enter(&w, "tuning: {on_first_use: quick}\n");
  dense_ms_of_64 = 5;
  assert_int_equal(dense_planned_threads(&w), 64);
  assert_true(w.by_record);
  int launches = machine_record()->launches;
  assert_true(launches > 0);
  assert_int_equal(dense_planned_threads(&w), 64);
  assert_int_equal(machine_record()->launches, launches); /* there is a record now */
  assert_int_equal(w.warnings, 0);
  tuning_leave(&w);
  tuning_enter(&w, "tuning: {on_first_use: quick}\n"); /* kernels that compute nothing */
  nsa_problem p = machine_problem(NSA_OP_DENSE, 1024, 0);
  nsa_plan *plan = NULL;
  machine_expect("plan", nsa_plan_create(w.ctx, &p, NULL, NULL, &plan), NSA_E_VERIFY, "wrong");
  assert_null(plan);
  tuning_leave(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    TEST(test_winner),
    TEST(test_final_clocks),
    TEST(test_min_gain),
    TEST(test_wrong_candidate),
    TEST(test_resume),
    TEST(test_budget),
    TEST(test_cancel),
    TEST(test_two_threads),
    TEST(test_refused_candidate),
    TEST(test_refused_heuristic),
    TEST(test_unload),
    TEST(test_unload_second_plan),
    TEST(test_refused_launch),
    TEST(test_refused_launch_of_heuristic),
    TEST(test_lost_context),
    TEST(test_first_use),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
