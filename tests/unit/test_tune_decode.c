/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tunings of decode steps on the fake GPU: winners by graphs over caches, wrong candidates,
 * batches, and which record a plan follows. Steps compute on the host while they are verified.
 */
#include "support/cmocka_all.h"

#include "plan/context.h"
#include "reference/reference.h"
#include "run/run.h"
#include "tune_fixture.h"

#include <math.h>

/* ---- steps that compute ---- */

static double
    ms_of_256; /* of a scan by blocks of 256 threads; by others 10, other kernels 1 each */
static bool wrong_of_256; /* they compute nothing */
static bool all_wrong;    /* nothing computes */
static bool small_seen;
static uint64_t room;     /* of an allocation, once steps have been verified; 0: any */
static int verified;      /* steps that were computed */
static int32_t most_seqs; /* of those */

nsa_status __real_nsai_enqueue_decode(const nsai_run *run);
nsa_status __wrap_nsai_enqueue_decode(const nsai_run *run);

nsa_status __wrap_nsai_enqueue_decode(const nsai_run *run) {
  const nsai_problem *p = &run->plan->problem;
  const nsai_reference_cache cache = { .page_size = p->page_size, .window_ring = p->window_ring };
  small_seen = false;
  NSAI_TRY(__real_nsai_enqueue_decode(run));
  if (machine_record()->capturing || all_wrong || (small_seen && wrong_of_256)) return NSA_OK;
  verified++;
  machine_record()->most_bytes = room;
  if (run->sizes.num_seqs > most_seqs) most_seqs = run->sizes.num_seqs;
  return nsai_reference_cached(&p->model, &cache, p->selection, run->branches, run->batch, run->io,
                               1);
}

static double take_time(const fake_cuda_launch *launch, const void *params) {
  (void)params;
  if (!strcmp(launch->name, "decode_single_cta")) return 20; /* slower than the chain */
  if (strcmp(launch->name, "decode_split_kv_compressed") != 0) return 1;
  small_seen |= launch->threads == 256;
  return launch->threads == 256 ? ms_of_256 : 10;
}

/* ---- contexts ---- */

#define TOKENS 1024

static nsa_problem steps(int32_t seqs, int32_t q_len) {
  return INIT(nsa_problem, .op = NSA_OP_DECODE, .max_kv_len = TOKENS, .max_seqs = seqs,
              .max_q_len = q_len, .page_size = 16);
}

/* Of the variants the one whose tiles the tests tell apart. */
static void enter(tuning *w, const char *more) {
  char yaml[512];
  snprintf(yaml, sizeof yaml, "variants: {force: {decode: decode_split_kv}}\n%s", more);
  tuning_enter(w, yaml);
  machine_record()->kernel = take_time;
  ms_of_256 = 10;
  wrong_of_256 = all_wrong = false;
  verified = most_seqs = 0;
  room = 0;
}

static void leave(tuning *w) {
  assert_int_equal(machine_record()->graphs, 0);
  assert_false(machine_record()->capturing);
  tuning_leave(w);
}

/* Threads of the scan of a plan; 0 with `by_record`: no record decides. */
static int32_t threads_of(const tuning *w, const nsa_problem *p, bool by_record) {
  nsa_plan *plan = machine_plan(w->ctx, p);
  int32_t threads = nsai_choice_kernel(&plan->choice, "decode_split_kv_compressed")->threads;
  if (by_record && plan->choice.decider[NSAI_STAGE_DECODE] != NSAI_BY_RECORD) threads = 0;
  nsa_plan_destroy(plan);
  return threads;
}

#define ONE_BATCH "tuning: {batches: [1]}\n"

/* ---- tests ---- */

static void test_winner(void **state) {
  tuning w = { 0 };
  nsa_problem p = steps(1, 1);
  enter(&w, ONE_BATCH);
  ms_of_256 = 4;
  assert_int_equal(threads_of(&w, &p, false), 128);
  tuning_expect(&w, &p, NSA_OK, NULL);
  assert_true(machine_record()->graph_launches > 0 && verified > 0);
  const nsa_tune_event *chosen = tuning_find(&w, NSA_TUNE_CHOSEN, NULL);
  assert_non_null(chosen);
  assert_string_equal(chosen->stage, "decode");
  assert_non_null(strstr(chosen->candidate, "warps=8"));
  assert_non_null(strstr(chosen->problem, ":sel=topn:q1:seq1:len1024"));
  /* Four kernels a step. */
  assert_true(fabs(chosen->ms - 7) < 1e-6 && fabs(chosen->gain - 6.0 / 13) < 1e-6);
  assert_true(fabs(tuning_find(&w, NSA_TUNE_BASELINE, "decode")->ms - 7) < 1e-6);
  assert_true(fabs(tuning_find(&w, NSA_TUNE_BASELINE, "decode.default")->ms - 13) < 1e-6);
  assert_int_equal(threads_of(&w, &p, true), 256);
  enter(&w, ONE_BATCH); /* another process */
  assert_int_equal(threads_of(&w, &p, true), 256);
  machine_expect_story(w.ctx, &p, "record of 1 x 1024 tokens, level quick");
  p.page_size = NSA_NONE; /* the same bytes are read */
  assert_int_equal(threads_of(&w, &p, true), 256);
  p = steps(1, 2); /* another record's */
  assert_int_equal(threads_of(&w, &p, true), 0);
  leave(&w);
}

static void test_wrong_candidate(void **state) {
  tuning w = { 0 };
  nsa_problem p = steps(3, 2);
  enter(&w, "tuning: {batches: [3]}\n");
  wrong_of_256 = true;
  ms_of_256 = 1;
  tuning_expect(&w, &p, NSA_OK, NULL);
  const nsa_tune_event *wrong = tuning_find(&w, NSA_TUNE_WRONG, NULL);
  assert_non_null(wrong);
  assert_non_null(strstr(wrong->candidate, "warps=8"));
  assert_true(wrong->note[0]);
  assert_int_equal(threads_of(&w, &p, true), 128);
  assert_int_equal(most_seqs, 3);
  leave(&w);
}

/* Steps that compute nothing at all. */
static void test_wrong_heuristic(void **state) {
  tuning w = { 0 };
  nsa_problem p = steps(2, 1);
  enter(&w, "tuning: {batches: [2]}\n");
  all_wrong = true;
  tuning_expect(&w, &p, NSA_E_VERIFY,
                "the heuristic's own choice computes wrong results for decode:");
  tuning_expect_nothing_chosen(&w, &p);
  leave(&w);
}

static void test_resume(void **state) {
  tuning w = { 0 };
  nsa_problem p = steps(1, 1);
  enter(&w, ONE_BATCH);
  ms_of_256 = 4;
  tuning_expect(&w, &p, NSA_OK, NULL);
  size_t timed = tuning_count(&w, NSA_TUNE_TIMED);
  enter(&w, ONE_BATCH);
  ms_of_256 = 4;
  machine_record()->launches = machine_record()->graph_launches = 0;
  tuning_expect(&w, &p, NSA_OK, NULL);
  assert_int_equal(machine_record()->launches + machine_record()->graph_launches, 0);
  assert_int_equal(tuning_count(&w, NSA_TUNE_TIMED), timed);
  assert_non_null(strstr(tuning_find(&w, NSA_TUNE_CHOSEN, NULL)->candidate, "warps=8"));
  leave(&w);
}

/* Every length with every batch, the shortest first. */
static void test_batches(void **state) {
  static const struct {
    const char *more, *expected;
    int32_t seqs;
  } cases[] = {
    { "", "seq1:len1024 seq4:len1024 seq16:len1024 seq40:len1024 ", 40 },
    { "", "seq1:len1024 seq4:len1024 ", 7 },
    { "tuning: {batches: [2, 8, 64], lengths: [512, 1024]}\n",
      "seq2:len512 seq8:len512 seq2:len1024 seq8:len1024 ", 40 },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tuning w = { 0 };
    char text[512] = "";
    nsai_writer out = nsai_writer_open(text, sizeof text);
    nsai_tune_span span = { 0 };
    nsa_problem p = steps(cases[i].seqs, 1);
    enter(&w, cases[i].more);
    tuning_dry_run(&w, NSA_TUNE_HEURISTIC, &p, 1);
    while (nsai_tune_next(&w.results, &span))
      nsai_write(&out, "%s ", strstr(span.events[0].problem, "seq"));
    assert_string_equal(text, cases[i].expected);
    leave(&w);
  }
  tuning w = { 0 };
  nsa_problem p = steps(4, 1);
  enter(&w, "tuning: {batches: [8]}\n");
  tuning_expect(&w, &p, NSA_E_CONFIG,
                "tuning.batches holds no number up to the problem's max_seqs 4");
  leave(&w);
}

/* The nearest of length and batch together decides. */
static void test_nearest(void **state) {
  tuning w = { 0 };
  nsa_problem few = steps(1, 1), many = steps(64, 1);
  enter(&w, ONE_BATCH);
  ms_of_256 = 4;
  tuning_expect(&w, &few, NSA_OK, NULL);
  enter(&w, "tuning: {batches: [64]}\n");
  ms_of_256 = 30;
  tuning_expect(&w, &many, NSA_OK, NULL);
  enter(&w, "");
  few.max_seqs = 7;
  many.max_seqs = 9;
  assert_int_equal(threads_of(&w, &few, true), 256);
  assert_int_equal(threads_of(&w, &many, true), 128);
  machine_expect_story(w.ctx, &few, "record of 1 x 1024 tokens");
  machine_expect_story(w.ctx, &many, "record of 64 x 1024 tokens");
  many.max_kv_len = 64 * TOKENS; /* as far in length from both */
  assert_int_equal(threads_of(&w, &many, true), 128);
  leave(&w);
}

/* What the device has no room for is left out, and told. */
static void test_room(void **state) {
  tuning w = { 0 };
  nsai_tune_span span = { 0 };
  nsa_problem p = steps(4, 1);
  enter(&w, "tuning: {batches: [1, 4]}\n");
  room = 20 << 20; /* bytes of a tensor */
  tuning_expect(&w, &p, NSA_OK, NULL);
  assert_true(nsai_tune_next(&w.results, &span));
  assert_non_null(nsai_tune_find(&span, NSA_TUNE_CHOSEN, "decode", NULL));
  assert_true(nsai_tune_next(&w.results, &span));
  assert_null(nsai_tune_find(&span, NSA_TUNE_CHOSEN, "decode", NULL));
  const nsa_tune_event *done = nsai_tune_find(&span, NSA_TUNE_DONE, NULL, NULL);
  assert_non_null(strstr(done->note, "cuMemAlloc"));
  machine_expect_story(w.ctx, &p, "record of 1 x 1024 tokens");
  leave(&w);
}

/* An append has nothing to choose. */
static void test_append(void **state) {
  tuning w = { 0 };
  nsa_problem p = steps(1, 1);
  enter(&w, "");
  p.op = NSA_OP_APPEND;
  p.max_tokens = 16;
  tuning_expect(&w, &p, NSA_E_UNSUPPORTED, "NSA_OP_APPEND has nothing to choose");
  leave(&w);
}

/* Tuning on first use makes the record of the plan's own batch and length. (Of two new tokens,
 * which decode_split_kv_compressed takes.) */
static void test_first_use(void **state) {
  tuning w = { 0 };
  nsa_problem p = steps(5, 2);
  enter(&w, "tuning: {on_first_use: quick, lengths: [64]}\n");
  ms_of_256 = 4;
  assert_int_equal(threads_of(&w, &p, true), 256);
  machine_expect_story(w.ctx, &p, "record of 5 x 1024 tokens");
  leave(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    TEST(test_winner), TEST(test_wrong_candidate), TEST(test_wrong_heuristic),
    TEST(test_resume), TEST(test_batches),         TEST(test_nearest),
    TEST(test_room),   TEST(test_append),          TEST(test_first_use),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
