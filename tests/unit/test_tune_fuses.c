/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_tune where candidates cover further stages, on the fake GPU: what runs together, what is
 * compared with what, what is told and kept, and what plans make of it. Forwards compute on the
 * host here and take the time that a test says.
 */
#include "support/cmocka_all.h"

#include "fusing.h"
#include "reference/reference.h"
#include "run/run.h"
#include "tune/internal.h"
#include "tune_fixture.h"

#include <math.h>

/* ---- a forward that computes ---- */

#define LONGEST_COMPUTED 600 /* tokens: verified cases are shorter, timed ones longer */
#define TOKENS 1024

static double ms_of_topn, ms_of_rival; /* the other stages take 10, 6, 4, 10 and 5 ms */
static double ms_of_window_64, ms_of_importance_64; /* by CTAs of 64 threads */
/* What complete calls take longer by, with the rival and with such a window. */
static double whole_of_rival, whole_of_window_64;
static bool whole_drifts; /* each complete call takes longer than the one before */
static const char *wrong; /* forwards with this kernel compute nothing; NULL: none */
static bool wrong_seen;
static int64_t longest_verified; /* tokens */
static uint64_t room_to_time;    /* bytes of an allocation, once forwards are timed; 0: any */

nsa_status __real_nsai_enqueue_forward(const nsai_run *run);
nsa_status __wrap_nsai_enqueue_forward(const nsai_run *run);

/* As a GPU does it, which goes on with the rounded blocks that it stores. */
nsa_status __wrap_nsai_enqueue_forward(const nsai_run *run) {
  nsai_model m = run->plan->problem.model;
  wrong_seen = false;
  NSAI_TRY(__real_nsai_enqueue_forward(run));
  if (run->sizes.tokens > LONGEST_COMPUTED) machine_record()->most_bytes = room_to_time;
  if (run->sizes.tokens > LONGEST_COMPUTED || wrong_seen) return NSA_OK;
  if (run->sizes.tokens > longest_verified) longest_verified = run->sizes.tokens;
  NSAI_TRY(nsai_reference_compress(&m, run->batch, run->io, 1));
  m.phi = NSAI_PHI_EXTERNAL;
  return nsai_reference_forward(&m, run->plan->problem.selection, run->branches, run->batch,
                                run->io, 1);
}

/* Complete calls drift by rounds, of two calls each. */
static double take_window(bool small) {
  static int calls;
  double ms = small ? ms_of_window_64 : 5;
  calls = tuning_whole_call ? calls + 1 : 0;
  if (!tuning_whole_call) return ms;
  return ms + (small ? whole_of_window_64 : 0) + (whole_drifts ? 10 * ((calls - 1) / 2) : 0);
}

static double take_time(const fake_cuda_launch *launch, const void *params) {
  (void)params;
  wrong_seen |= wrong && !strcmp(launch->name, wrong);
  if (!strcmp(launch->name, "made_up_topn")) return ms_of_topn;
  if (!strcmp(launch->name, "made_up_rival"))
    return ms_of_rival + (tuning_whole_call ? whole_of_rival : 0);
  if (!strcmp(launch->name, "select_importance"))
    return launch->threads == 64 ? ms_of_importance_64 : 6;
  if (!strcmp(launch->name, "select_topn")) return 4;
  if (!strcmp(launch->name, "attend_window_sm80")) return take_window(launch->threads == 64);
  return 10;
}

/* ---- contexts ---- */

static void enter(tuning *w, const char *more) {
  char yaml[512];
  snprintf(yaml, sizeof yaml, "tuning: {min_gain: 0.02, lengths: [1024], inputs: random}\n%s",
           more);
  tuning_enter(w, yaml);
  machine_record()->kernel = take_time;
}

static int begin(void **state) {
  fusing_topn = false;
  ms_of_topn = 30;
  ms_of_rival = 30;
  ms_of_window_64 = 5;
  ms_of_importance_64 = 6;
  whole_of_rival = whole_of_window_64 = 0;
  whole_drifts = false;
  wrong = NULL;
  longest_verified = 0;
  room_to_time = fusing_rival_scratch = 0;
  return tuning_begin(state);
}

static void tune(tuning *w, nsa_status status, const char *text) {
  nsa_problem p = machine_problem(NSA_OP_FORWARD, TOKENS, 0);
  tuning_expect(w, &p, status, text);
}

static void expect_chosen(const tuning *w, const char *stage, const char *variant, double ms,
                          double gain, const char *note) {
  const nsa_tune_event *e = tuning_find_stage(w, NSA_TUNE_CHOSEN, stage);
  if (!e) fail_msg("nothing is chosen for %s", stage);
  if (strncmp(e->candidate, variant, strlen(variant)) != 0 || fabs(e->ms - ms) > 1e-3 ||
      fabs(e->gain - gain) > 1e-3 || strcmp(e->note, note) != 0)
    fail_msg("%s: %s, %g ms, gain %g, \"%s\"", stage, e->candidate, e->ms, e->gain, e->note);
}

static void expect_variants(const tuning *w, const char *expected) {
  nsa_problem p = machine_problem(NSA_OP_FORWARD, TOKENS, 0);
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_plan *plan = machine_plan(w->ctx, &p);
  machine_expect("caps", nsa_plan_caps(plan, &caps), NSA_OK, NULL);
  nsa_plan_destroy(plan);
  if (!strstr(caps.variants, expected)) fail_msg("%s is not in %s", expected, caps.variants);
}

static nsai_record *find_record(const tuning *w) {
  nsa_problem p = machine_problem(NSA_OP_FORWARD, TOKENS, 0);
  nsai_problem resolved;
  nsai_record *record = NULL, now = { 0 };
  nsai_writer key = nsai_writer_open(now.problem, sizeof now.problem);
  machine_expect("resolve", nsai_problem_resolve(w->ctx->config, &p, &resolved), NSA_OK, NULL);
  nsai_tune_environment(w->ctx, &now);
  nsai_tune_key(&resolved, TOKENS, &key);
  assert_true(nsai_records_find(nsai_context_records(w->ctx), now.device, now.arch, now.sms,
                                now.problem, &record));
  return record;
}

/* ---- one that is no default ---- */

static void test_rival_wins(void **state) {
  tuning w = { 0 };
  ms_of_rival = 16;
  enter(&w, "");
  tune(&w, NSA_OK, NULL);
  assert_int_equal(longest_verified, 128 * 4 + 37); /* a tile of compressed keys, and a rest */
  expect_chosen(&w, "attend_compressed", "made_up_rival", 16, 0.2, "fuses importance, select");
  assert_null(tuning_find_stage(&w, NSA_TUNE_CHOSEN, "importance"));
  assert_null(tuning_find_stage(&w, NSA_TUNE_CHOSEN, "select"));
  expect_chosen(&w, "attend_selected", "attend_selected_sm80", 10, 0, "");
  expect_chosen(&w, "attend_window", "attend_window_sm80", 5, 0, "");
  assert_true(fabs(tuning_find(&w, NSA_TUNE_BASELINE, "forward")->ms - 41) < 1e-3);
  expect_variants(&w,
                  "attend_compressed=made_up_rival importance=made_up_rival select=made_up_rival");
  /* The record says what was measured, and keeps the winners of the fused stages. */
  nsai_record *r = find_record(&w);
  const nsai_timing *topn = nsai_record_chosen(r, "attend_compressed");
  const nsai_timing *importance = nsai_record_chosen(r, "importance");
  assert_true(fabs(topn->ms - 16) < 1e-3 && !topn->is_default);
  assert_string_equal(topn->note, "fuses importance, select");
  assert_true(importance && fabs(importance->ms - 6) < 1e-3);
  assert_true(nsai_record_is_fused(r, "importance"));
  assert_false(nsai_record_is_fused(r, "attend_compressed"));
  assert_false(nsai_record_is_fused(r, "no_such_stage"));
  int32_t count;
  const nsai_timing *t = nsai_record_stage(r, "attend_compressed", &count);
  for (int32_t i = 0; i < count; i++) {
    bool fuses = !strncmp(t[i].candidate, "made_up_rival", 13);
    nsai_fused_time fused_time = nsai_record_fused_time(r, &t[i]);
    assert_true(fabs(t[i].ms - (fuses ? 16 : 10)) < 1e-3);
    assert_true(fabs(fused_time.ms - (fuses ? 16 : 20)) < 1e-3);
  }
  nsai_record_destroy(r);
  /* Where it cannot serve, the others do, by the same record. */
  enter(&w, "variants: {disable: [attend_compressed.made_up*]}\n");
  nsa_problem p = machine_problem(NSA_OP_FORWARD, TOKENS, 0);
  nsa_plan *plan = machine_plan(w.ctx, &p);
  assert_string_equal(plan->choice.variant[NSAI_STAGE_ATTEND_COMPRESSED]->name,
                      "attend_compressed_sm80");
  assert_int_equal(plan->choice.decider[NSAI_STAGE_ATTEND_COMPRESSED], NSAI_BY_RECORD);
  assert_int_equal(plan->choice.decider[NSAI_STAGE_IMPORTANCE], NSAI_BY_RECORD);
  nsa_plan_destroy(plan);
  /* Another call tells the same. */
  enter(&w, "");
  tune(&w, NSA_OK, NULL);
  expect_chosen(&w, "attend_compressed", "made_up_rival", 16, 0.2, "fuses importance, select");
  assert_null(tuning_find_stage(&w, NSA_TUNE_CHOSEN, "importance"));
  assert_null(tuning_find_stage(&w, NSA_TUNE_CHOSEN, "select"));
  tuning_leave(&w);
}

/* Faster than its own stage's rivals with the time of the stages it fuses, but by less than
 * tuning.min_gain. */
static void test_rival_loses(void **state) {
  tuning w = { 0 };
  ms_of_rival = 19.9;
  enter(&w, "");
  tune(&w, NSA_OK, NULL);
  expect_chosen(&w, "attend_compressed", "attend_compressed_sm80", 20, 0,
                "with importance, select");
  expect_chosen(&w, "importance", "importance_sm80", 6, 0, "");
  expect_variants(&w, "attend_compressed=attend_compressed_sm80 importance=importance_sm80");
  tuning_leave(&w);
}

static void test_wrong_rival(void **state) {
  tuning w = { 0 };
  ms_of_rival = 1;
  wrong = "made_up_rival";
  enter(&w, "");
  tune(&w, NSA_OK, NULL);
  assert_non_null(strstr(tuning_find_stage(&w, NSA_TUNE_WRONG, NULL)->candidate, "made_up_rival"));
  expect_chosen(&w, "attend_compressed", "attend_compressed_sm80", 10, 0, "");
  expect_variants(&w, "attend_compressed=attend_compressed_sm80 importance=importance_sm80");
  tuning_leave(&w);
}

/* One whose workspace the device has no room for is out, and nobody else. */
static void test_no_room(void **state) {
  tuning w = { 0 };
  ms_of_rival = 1;
  fusing_rival_scratch = 256;
  room_to_time = 16 << 20;
  enter(&w, "");
  tune(&w, NSA_OK, NULL);
  size_t refused = 0;
  for (size_t i = 0; i < w.results.count; i++) {
    const nsa_tune_event *e = &w.results.events[i];
    if (e->kind != NSA_TUNE_REFUSED) continue;
    refused++;
    assert_non_null(strstr(e->candidate, "made_up_rival"));
    assert_non_null(strstr(e->note, "cuMemAlloc"));
  }
  assert_int_equal(refused, 2); /* of 2 and of 4 warps */
  expect_chosen(&w, "attend_compressed", "attend_compressed_sm80", 10, 0, "");
  expect_variants(&w, "attend_compressed=attend_compressed_sm80 importance=importance_sm80");
  tuning_leave(&w);
}

/* ---- complete calls ---- */

static double whole_ms(const tuning *w, const char *name) {
  const nsa_tune_event *e = tuning_find(w, NSA_TUNE_BASELINE, name);
  if (!e) fail_msg("no time of %s", name);
  return e->ms;
}

static void expect_note(const tuning *w, const char *stage, const char *variant, const char *note) {
  const nsa_tune_event *e = tuning_find_stage(w, NSA_TUNE_CHOSEN, stage);
  if (!e || strncmp(e->candidate, variant, strlen(variant)) != 0)
    fail_msg("%s: %s", stage, e ? e->candidate : "nothing");
  if (note ? !strstr(e->note, note) : strstr(e->note, "whole calls") != NULL)
    fail_msg("%s: \"%s\"", stage, e->note);
}

/* A stage that is faster by itself and makes the complete call slower. */
static void test_slower_whole_call(void **state) {
  tuning w = { 0 };
  ms_of_rival = 16;
  whole_of_rival = 5;
  enter(&w, "");
  tune(&w, NSA_OK, NULL);
  expect_note(&w, "attend_compressed", "attend_compressed_sm80",
              "; whole calls were slower with made_up_rival");
  expect_note(&w, "importance", "importance_sm80", NULL);
  expect_note(&w, "attend_window", "attend_window_sm80", NULL);
  assert_true(fabs(whole_ms(&w, "forward") - 45) < 1e-3);
  assert_true(fabs(whole_ms(&w, "forward.default") - 45) < 1e-3);
  expect_variants(&w, "attend_compressed=attend_compressed_sm80 importance=importance_sm80");
  tuning_leave(&w);
}

/* Of two winners the one that makes the complete call slower goes, and the other stays. */
static void test_one_winner_stays(void **state) {
  for (int slow = 0; slow < 2; slow++) {
    tuning w = { 0 };
    ms_of_rival = 16;
    ms_of_window_64 = 3;
    whole_of_rival = slow ? 0 : 5;
    whole_of_window_64 = slow ? 3 : 0;
    enter(&w, "");
    tune(&w, NSA_OK, NULL);
    expect_note(&w, "attend_compressed", slow ? "made_up_rival" : "attend_compressed_sm80",
                slow ? NULL : "slower with made_up_rival");
    expect_note(&w, "attend_window", "attend_window_sm80", slow ? "slower with" : NULL);
    assert_true(fabs(whole_ms(&w, "forward") - (slow ? 41 : 43)) < 1e-3);
    assert_true(fabs(whole_ms(&w, "forward.default") - 45) < 1e-3);
    nsa_problem p = machine_problem(NSA_OP_FORWARD, TOKENS, 0);
    int32_t threads = tuning_planned_threads(&w, &p, NSAI_STAGE_ATTEND_WINDOW);
    assert_int_equal(threads == 64, !slow);
    expect_variants(&w, slow ? "attend_compressed=made_up_rival"
                             : "attend_compressed=attend_compressed_sm80");
    tuning_leave(&w);
  }
}

/* Both winners stay where the complete call is the fastest with both. */
static void test_both_winners_stay(void **state) {
  tuning w = { 0 };
  ms_of_rival = 16;
  ms_of_window_64 = 3;
  enter(&w, "");
  tune(&w, NSA_OK, NULL);
  expect_note(&w, "attend_compressed", "made_up_rival", NULL);
  expect_note(&w, "attend_window", "attend_window_sm80", NULL);
  assert_true(fabs(whole_ms(&w, "forward") - 39) < 1e-3);
  assert_true(fabs(whole_ms(&w, "forward.default") - 45) < 1e-3);
  tuning_leave(&w);
}

/* A winner in place of a fusing heuristic's choice runs with the winners of the fused stages. */
static void test_fused_winners_stay(void **state) {
  tuning w = { 0 };
  fusing_topn = true;
  ms_of_importance_64 = 3;
  ms_of_window_64 = 3;
  whole_of_window_64 = 3;
  enter(&w, "");
  tune(&w, NSA_OK, NULL);
  expect_note(&w, "attend_compressed", "attend_compressed_sm80", NULL);
  expect_note(&w, "importance", "importance_sm80", NULL);
  expect_note(&w, "attend_window", "attend_window_sm80", "slower with attend_window_sm80");
  assert_true(fabs(whole_ms(&w, "forward") - 42) < 1e-3);
  assert_true(fabs(whole_ms(&w, "forward.default") - 55) < 1e-3);
  nsa_problem p = machine_problem(NSA_OP_FORWARD, TOKENS, 0);
  assert_int_equal(tuning_planned_threads(&w, &p, NSAI_STAGE_IMPORTANCE), 64);
  tuning_leave(&w);
}

/* Times that drift widely between rounds hide nothing: calls are compared round by round. */
static void test_drift(void **state) {
  tuning w = { 0 };
  ms_of_rival = 16;
  whole_of_rival = 8;
  whole_drifts = true;
  enter(&w, "");
  tune(&w, NSA_OK, NULL);
  assert_true(tuning_find(&w, NSA_TUNE_BASELINE, "forward.default")->spread > 0.1);
  expect_note(&w, "attend_compressed", "attend_compressed_sm80", "slower with made_up_rival");
  tuning_leave(&w);
}

/* Where every winner is the heuristic's choice both calls are the same, and are timed once. */
static void test_same_whole_call(void **state) {
  tuning w = { 0 };
  whole_drifts = true;
  enter(&w, "");
  tune(&w, NSA_OK, NULL);
  assert_true(whole_ms(&w, "forward") == whole_ms(&w, "forward.default"));
  /* The median of five runs, two without drift and two with 10 ms. */
  assert_true(fabs(whole_ms(&w, "forward") - 55) < 1e-3);
  tuning_leave(&w);
}

/* ---- one that is the default ---- */

static size_t count_timed(const tuning *w, const char *stage) {
  size_t count = 0;
  for (size_t i = 0; i < w->results.count; i++) {
    const nsa_tune_event *e = &w->results.events[i];
    count += e->kind == NSA_TUNE_TIMED && !strcmp(e->stage, stage);
  }
  return count;
}

/* Against 10 + 6 + 4 ms it stays; the stages that it fuses are measured nevertheless. */
static void test_topn_stays(void **state) {
  tuning w = { 0 };
  fusing_topn = true;
  ms_of_topn = 15;
  enter(&w, "");
  tune(&w, NSA_OK, NULL);
  expect_chosen(&w, "attend_compressed", "made_up_topn warps=4", 15, 0, "fuses importance, select");
  assert_null(tuning_find_stage(&w, NSA_TUNE_CHOSEN, "importance"));
  assert_null(tuning_find_stage(&w, NSA_TUNE_CHOSEN, "select"));
  assert_true(count_timed(&w, "importance") > 1 && count_timed(&w, "select") > 1);
  expect_variants(&w, "attend_compressed=made_up_topn importance=made_up_topn select=made_up_topn");
  nsai_record *r = find_record(&w);
  assert_non_null(nsai_record_chosen(r, "importance"));
  assert_non_null(nsai_record_chosen(r, "select"));
  nsai_record_destroy(r);
  size_t timed = count_timed(&w, "importance");
  nsa_problem p = machine_problem(NSA_OP_FORWARD, TOKENS, 0);
  nsa_tune_options more = INIT(nsa_tune_options, .level = NSA_TUNE_NORMAL);
  machine_expect("more", tuning_tune(&w, &more, &p, 1), NSA_OK, NULL); /* goes on */
  assert_true(count_timed(&w, "importance") > timed);
  expect_chosen(&w, "attend_compressed", "made_up_topn warps=4", 15, 0, "fuses importance, select");
  tuning_leave(&w);
}

static void test_topn_loses(void **state) {
  tuning w = { 0 };
  fusing_topn = true;
  ms_of_topn = 25;
  enter(&w, "");
  tune(&w, NSA_OK, NULL);
  expect_chosen(&w, "attend_compressed", "attend_compressed_sm80", 20, 0.2,
                "with importance, select");
  expect_chosen(&w, "importance", "importance_sm80", 6, 0, "");
  expect_chosen(&w, "select", "select_topn", 4, 0, "");
  expect_variants(&w, "attend_compressed=attend_compressed_sm80 importance=importance_sm80 "
                      "select=select_topn");
  tuning_leave(&w);
}

/* The heuristic's choices for the stages it fuses must be right, too. */
static void test_wrong_heuristic(void **state) {
  static const char *const kernels[] = { "made_up_topn", "select_topn" };
  for (int i = 0; i < 2; i++) {
    tuning w = { 0 };
    fusing_topn = true;
    wrong = kernels[i];
    enter(&w, "");
    tune(&w, NSA_E_VERIFY, "the heuristic's own choice");
    tuning_leave(&w);
  }
}

/* Forced, it has no rivals that leave stages to others. */
static void test_forced(void **state) {
  tuning w = { 0 };
  enter(&w, "variants: {force: {attend_compressed: made_up_topn}}\n");
  tune(&w, NSA_OK, NULL);
  expect_chosen(&w, "attend_compressed", "made_up_topn", 30, 0, "fuses importance, select");
  assert_int_equal(count_timed(&w, "importance") + count_timed(&w, "select"), 0);
  expect_variants(&w, "attend_compressed=made_up_topn importance=made_up_topn select=made_up_topn");
  tuning_leave(&w);
}

/* So it is where nothing else can do one of its stages: the other's candidates are not even
 * planned. */
static void test_alone(void **state) {
  for (int32_t dry = 0; dry < 2; dry++) {
    tuning w = { 0 };
    nsa_problem p = machine_problem(NSA_OP_FORWARD, TOKENS, 0);
    fusing_topn = true;
    enter(&w, "variants: {disable: [select.*]}\n");
    nsa_tune_options o = INIT(nsa_tune_options, .level = NSA_TUNE_QUICK, .dry_run = dry);
    machine_expect("tune", tuning_tune(&w, &o, &p, 1), NSA_OK, NULL);
    if (!dry)
      expect_chosen(&w, "attend_compressed", "made_up_topn", 30, 0, "fuses importance, select");
    for (size_t i = 0; i < w.results.count; i++) {
      assert_string_not_equal(w.results.events[i].stage, "select");
      assert_string_not_equal(w.results.events[i].stage, "importance"); /* comes before select */
    }
    tuning_leave(&w);
  }
}

/* A compiler that refuses the fusing default leaves its stages to the others. */
static void test_refused(void **state) {
  tuning w = { 0 };
  fusing_topn = true;
  ms_of_topn = 1;
  setenv("FAKE_NVRTC_FAT", "made_up_topn", 1);
  enter(&w, "runtime: {compile_jobs: 1}\n");
  machine_record()->spills = 1000;
  tune(&w, NSA_OK, NULL);
  machine_record()->spills = 0;
  unsetenv("FAKE_NVRTC_FAT");
  expect_chosen(&w, "attend_compressed", "attend_compressed_sm80", 10, 0, "");
  expect_chosen(&w, "importance", "importance_sm80", 6, 0, "");
  expect_variants(&w, "attend_compressed=attend_compressed_sm80 importance=importance_sm80");
  tuning_leave(&w);
}

/* ---- columns ---- */

static measured_candidate candidate_of(const char *name) {
  for (int i = 0; nsai_variants[i]; i++)
    if (!strcmp(nsai_variants[i]->name, name))
      return (measured_candidate){ .what = { .variant = nsai_variants[i] }, .alive = true };
  fail_msg("no variant %s", name);
  return (measured_candidate){ 0 };
}

#define MOST 4

typedef struct combination_case {
  const char *compressed; /* 't' fuses, 'm' does not, in the order of the candidates */
  int importance, select; /* numbers of candidates */
  int combinations;
} combination_case;

/* Every candidate is in one combination and never runs with one that fuses its stage. The first
 * combination has the first candidate of each stage that is not fused. */
static void check_combinations(const combination_case *one) {
  measured_candidate items[3][MOST];
  const int counts[3] = { (int)strlen(one->compressed), one->importance, one->select };
  static const char *const names[] = { NULL, "importance_sm80", "select_topn" };
  tune_task task = { .stage_count = 3 };
  for (int i = 0; i < 3; i++) {
    for (int k = 0; k < counts[i]; k++)
      items[i][k] = candidate_of(i                           ? names[i]
                                 : one->compressed[k] == 't' ? "made_up_topn"
                                                             : "attend_compressed_sm80");
    task.candidates[i] = (candidates){ .stage = (nsai_stage)(NSAI_STAGE_ATTEND_COMPRESSED + i),
                                       .item = items[i],
                                       .count = counts[i] };
  }
  const char *unfused = strchr(one->compressed, 'm');
  task.candidates[0].unfused = unfused ? (int)(unfused - one->compressed) : -1;
  int seen[3][MOST] = { { 0 } };
  assert_int_equal(nsai_tune_combinations(&task), one->combinations);
  for (int combination = 0; combination < one->combinations; combination++) {
    nsai_decisions d;
    measured_candidate *taken[NSAI_STAGE_COUNT];
    nsai_tune_combination(&task, combination, &d, taken);
    bool fused = d.stage[NSAI_STAGE_ATTEND_COMPRESSED].variant->fuses != 0;
    for (int i = 0; i < 3; i++) {
      if (taken[i]) seen[i][taken[i] - items[i]]++;
      if (i) assert_true((d.stage[task.candidates[i].stage].variant == NULL) == fused);
      if (!combination && !(i && fused)) assert_ptr_equal(taken[i], &items[i][0]);
    }
  }
  for (int i = 0; i < 3; i++)
    for (int k = 0; k < counts[i]; k++) assert_int_equal(seen[i][k], !i || unfused ? 1 : 0);
}

static void test_combinations(void **state) {
  static const combination_case cases[] = {
    { "m", 1, 1, 1 },   { "mm", 1, 3, 3 },   { "mt", 1, 1, 2 },
    { "tm", 1, 1, 2 },  { "tm", 4, 2, 5 },   { "mt", 4, 2, 5 },
    { "ttm", 3, 1, 5 }, { "mtmt", 2, 2, 4 }, { "tt", 2, 2, 2 },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_combinations(&cases[i]);
}

/* ---- fused times ---- */

/* Candidates of attend_compressed (`ms` of 'm', then of 't'), importance and select. */
static void compute_fused_time(double compressed, double topn, double importance, double select,
                               double expected[2]) {
  measured_candidate first[2] = { candidate_of("attend_compressed_sm80"),
                                  candidate_of("made_up_topn") };
  measured_candidate second = candidate_of("importance_sm80"), third = candidate_of("select_topn");
  const double ms[] = { compressed, topn, importance, select };
  measured_candidate *const all[] = { &first[0], &first[1], &second, &third };
  tune_task task = { .candidates = { { NSAI_STAGE_ATTEND_COMPRESSED, first, 2, 0 },
                                     { NSAI_STAGE_IMPORTANCE, &second, 1, 0 },
                                     { NSAI_STAGE_SELECT, &third, 1, 0 } },
                     .stage_count = 3 };
  for (int i = 0; i < 4; i++)
    if (ms[i] > 0) all[i]->timing = (nsai_timing){ .ms = ms[i], .spread = 0.1, .rounds = 3 };
  nsai_tune_fused_times(&task);
  for (int i = 0; i < 2; i++) expected[i] = first[i].fused_time.ms;
  if (ms[0] > 0 && ms[1] > 0 && ms[2] > 0 && ms[3] > 0)
    assert_true(fabs(first[0].fused_time.spread -
                     0.1 * sqrt(ms[0] * ms[0] + ms[2] * ms[2] + ms[3] * ms[3]) /
                         first[0].fused_time.ms) < 1e-9);
  assert_true(fabs(first[1].fused_time.spread - (topn > 0 ? 0.1 : 0)) < 1e-9);
}

static void test_weights(void **state) {
  double ms[2];
  compute_fused_time(3, 7, 2, 1, ms);
  assert_true(fabs(ms[0] - 6) < 1e-9 && fabs(ms[1] - 7) < 1e-9);
  compute_fused_time(3, 0, 2, 1, ms); /* no measured candidate fuses a stage */
  assert_true(fabs(ms[0] - 3) < 1e-9 && isinf(ms[1]));
  compute_fused_time(3, 7, 0, 1, ms); /* a stage that is not known */
  assert_true(isinf(ms[0]) && fabs(ms[1] - 7) < 1e-9);
}

#define FRESH(name) cmocka_unit_test_setup(name, begin)

int main(void) {
  const struct CMUnitTest tests[] = {
    FRESH(test_rival_wins),
    FRESH(test_rival_loses),
    FRESH(test_wrong_rival),
    FRESH(test_topn_stays),
    FRESH(test_topn_loses),
    FRESH(test_wrong_heuristic),
    FRESH(test_forced),
    FRESH(test_refused),
    FRESH(test_combinations),
    FRESH(test_weights),
    FRESH(test_alone),
    FRESH(test_no_room),
    FRESH(test_slower_whole_call),
    FRESH(test_one_winner_stays),
    FRESH(test_both_winners_stay),
    FRESH(test_drift),
    FRESH(test_fused_winners_stay),
    FRESH(test_same_whole_call),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
