/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tunings of prefills on the fake GPU: every stage over a cache, winners, wrong candidates, and
 * which record a plan follows. Prefills compute on the host while they are verified.
 */
#include "support/cmocka_all.h"

#include "plan/plan.h"
#include "reference/reference.h"
#include "run/run.h"
#include "tune_fixture.h"

#include <math.h>

/* ---- prefills that compute ---- */

#define CONTEXT 1024
#define CHUNK 256         /* new tokens of a run that is timed */
#define MOST_COMPUTED 200 /* of one that is verified */

static double ms_of_64;  /* of a window's kernel of 64 threads; others take 10 */
static bool wrong_of_64; /* it computes nothing */
static bool small_seen;
static int32_t verified_seqs;

nsa_status __real_nsai_enqueue_forward(const nsai_run *run);
nsa_status __wrap_nsai_enqueue_forward(const nsai_run *run);

nsa_status __wrap_nsai_enqueue_forward(const nsai_run *run) {
  const nsai_problem *p = &run->plan->problem;
  const nsai_reference_cache cache = { .page_size = p->page_size };
  small_seen = false;
  NSAI_TRY(__real_nsai_enqueue_forward(run));
  if (run->sizes.tokens > MOST_COMPUTED || (small_seen && wrong_of_64)) return NSA_OK;
  verified_seqs = run->sizes.num_seqs;
  return nsai_reference_cached(&p->model, &cache, p->selection, run->branches, run->batch, run->io,
                               1);
}

static double take_time(const fake_cuda_launch *launch, const void *params) {
  (void)params;
  if (strcmp(launch->name, "attend_window_sm80") != 0) return 10;
  small_seen |= launch->threads == 64;
  return launch->threads == 64 ? ms_of_64 : 10;
}

/* ---- contexts ---- */

static nsa_problem prefill(int32_t overlap) {
  return INIT(nsa_problem, .op = NSA_OP_PREFILL, .overlap = overlap, .max_kv_len = CONTEXT,
              .max_tokens = CHUNK, .max_seqs = 2, .page_size = 16);
}

static void enter(tuning *w) {
  tuning_enter(w, "");
  machine_record()->kernel = take_time;
  ms_of_64 = 10;
  wrong_of_64 = false;
  verified_seqs = 0;
}

/* Threads of the window's kernel of a plan that follows a record; 0: it follows none. */
static int32_t threads_of(tuning *w, const nsa_problem *p) {
  int32_t threads = tuning_planned_threads(w, p, NSAI_STAGE_ATTEND_WINDOW);
  return w->by_record ? threads : 0;
}

/* ---- tests ---- */

static void test_winner(void **state) {
  static const char *const stages[] = { "attend_compressed", "importance", "select",
                                        "attend_selected", "attend_window" };
  tuning w = { 0 };
  nsai_tune_span span = { 0 };
  nsa_problem p = prefill(NSA_OVERLAP_HIGH);
  enter(&w);
  ms_of_64 = 4;
  tuning_expect(&w, &p, NSA_OK, NULL);
  assert_int_equal(verified_seqs, 3);
  assert_true(nsai_tune_next(&w.results, &span));
  assert_non_null(strstr(span.events[0].problem, "prefill:"));
  assert_non_null(strstr(span.events[0].problem, ":ov=high:len1024"));
  for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
    if (!nsai_tune_find(&span, NSA_TUNE_CHOSEN, stages[i], NULL))
      fail_msg("nothing is chosen for %s", stages[i]);
  const nsa_tune_event *window = nsai_tune_find(&span, NSA_TUNE_CHOSEN, "attend_window", NULL);
  assert_non_null(strstr(window->candidate, "warps=2"));
  assert_true(fabs(window->ms - 4) < 1e-6 && fabs(window->gain - 0.6) < 1e-6);
  double best = tuning_find(&w, NSA_TUNE_BASELINE, "prefill")->ms;
  assert_true(fabs(tuning_find(&w, NSA_TUNE_BASELINE, "prefill.default")->ms - best - 6) < 1e-6);
  enter(&w); /* another process */
  assert_int_equal(threads_of(&w, &p), 64);
  p.max_tokens = 10; /* other capacities */
  p.page_size = 32;
  assert_int_equal(threads_of(&w, &p), 64);
  p = machine_problem(NSA_OP_FORWARD, CONTEXT, NSA_OVERLAP_HIGH); /* another operation */
  assert_int_equal(threads_of(&w, &p), 0);
  tuning_leave(&w);
}

static void test_wrong_candidate(void **state) {
  tuning w = { 0 };
  nsa_problem p = prefill(NSA_OVERLAP_HIGH);
  enter(&w);
  wrong_of_64 = true;
  ms_of_64 = 1;
  tuning_expect(&w, &p, NSA_OK, NULL);
  const nsa_tune_event *wrong = tuning_find(&w, NSA_TUNE_WRONG, NULL);
  assert_non_null(wrong);
  assert_string_equal(wrong->stage, "attend_window");
  assert_int_not_equal(threads_of(&w, &p), 64);
  tuning_leave(&w);
}

/* The tuner brings no selections to a cache. */
static void test_selection(void **state) {
  tuning w = { 0 };
  nsa_problem p = prefill(NSA_OVERLAP_HIGH);
  enter(&w);
  p.selection = NSA_SELECT_RANGES;
  tuning_expect(&w, &p, NSA_E_UNSUPPORTED, "leave problem.selection 0");
  tuning_leave(&w);
}

/* Both overlaps, and the configuration's lengths. */
static void test_problems(void **state) {
  tuning w = { 0 };
  nsai_tune_span span = { 0 };
  nsa_problem p = prefill(0);
  int problems = 0;
  enter(&w);
  tuning_dry_run(&w, NSA_TUNE_HEURISTIC, &p, 1);
  while (nsai_tune_next(&w.results, &span)) problems++;
  assert_int_equal(problems, 2);
  tuning_leave(&w);
}

static bool plans_for(tuning *w, const nsa_problem *p, const char *row) {
  nsai_tune_span span = { 0 };
  tuning_dry_run(w, NSA_TUNE_HEURISTIC, p, 1);
  assert_true(nsai_tune_next(&w->results, &span));
  const size_t length = strlen(row);
  for (size_t i = 0; i < span.count; i++) {
    const nsa_tune_event *e = &span.events[i];
    if (e->kind == NSA_TUNE_PLANNED && !strncmp(e->candidate, row, length) &&
        (!e->candidate[length] || e->candidate[length] == ' '))
      return true;
  }
  return false;
}

/* Entries in codes are timed expanded and as they are; those in 16 bits have no row that expands. And a
 * prefill of few tokens is timed by its own kernels, not by those of decode that its plan takes. */
static void test_entries(void **state) {
  tuning w = { 0 };
  nsa_problem p = prefill(NSA_OVERLAP_LOW);
  char yaml[1024];
  machine_yaml(&(machine_request){ .gpu = true }, yaml, sizeof yaml);
  enter(&w);
  machine_reopen(&w.ctx, w.dir,
                 &(machine_reopening){ .yaml = yaml, .extra = "model.head_dim_qk=32" });
  for (int codes = 0; codes < 2; codes++) {
    p.cmp_dtype = codes ? NSA_E4M3 : NSA_NONE;
    assert_true(plans_for(&w, &p, "attend_compressed_sm90"));
    assert_int_equal(plans_for(&w, &p, "attend_compressed_expanded_sm90"), codes);
  }
  p.max_tokens = 64;
  p.max_seqs = 1;
  p.max_kv_len = 65536;
  assert_true(plans_for(&w, &p, "attend_compressed_expanded_sm90"));
  assert_false(plans_for(&w, &p, "decode_split_kv"));
  machine_expect_story(w.ctx, &p, "thresholds.prefill_split_from");
  tuning_leave(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    TEST(test_winner),   TEST(test_wrong_candidate), TEST(test_selection),
    TEST(test_problems), TEST(test_entries),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
