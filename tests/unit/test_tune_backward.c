/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tunings of backward passes on the fake GPU: what is timed, winners, wrong candidates, results
 * that differ from run to run. Passes compute on the host while they are verified.
 */
#include "support/cmocka_all.h"

#include "plan/plan.h"
#include "reference/reference.h"
#include "run/run.h"
#include "tune_fixture.h"

#include <math.h>

/* ---- passes that compute ---- */

#define TOKENS 1024
#define LONGEST_COMPUTED 600 /* tokens: verified cases are shorter, timed ones longer */

static double ms_of_mma; /* of a kernel of keys by mma; all others take 10 */
static bool wrong_mma;   /* they compute nothing */
static bool random_mma;  /* their results differ from run to run */
static bool mma_keys;    /* of the pass that is enqueued */
static uint64_t room;    /* of an allocation, once passes have been verified; 0: any */
static int passes;       /* computed */
static int32_t most_heads;

nsa_status __real_nsai_enqueue_backward(const nsai_run *run);
nsa_status __wrap_nsai_enqueue_backward(const nsai_run *run);

nsa_status __wrap_nsai_enqueue_backward(const nsai_run *run) {
  const nsai_problem *p = &run->plan->problem;
  const nsa_grads *grads = run->grads;
  mma_keys = !strcmp(run->plan->choice.variant[NSAI_STAGE_BACKWARD_KV]->name, "backward_kv_sm80");
  NSAI_TRY(__real_nsai_enqueue_backward(run));
  if (run->sizes.tokens > LONGEST_COMPUTED || (mma_keys && wrong_mma)) return NSA_OK;
  passes++;
  machine_record()->most_bytes = room;
  if (p->model.kv_heads > most_heads) most_heads = p->model.kv_heads;
  NSAI_TRY(nsai_reference_backward(&p->model, p->selection, run->branches, run->batch, run->io,
                                   grads, 1));
  /* The last bit of one element. */
  if (mma_keys && random_mma && passes % 2) *(uint16_t *)grads->d_kv.k[0].data ^= 1;
  return NSA_OK;
}

static double take_time(const fake_cuda_launch *launch, const void *params) {
  static const char *const keys[] = { "backward_dkv_compressed", "backward_dkv_selected",
                                      "backward_dkv_window" };
  (void)params;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (!strcmp(launch->name, keys[i]) && mma_keys) return ms_of_mma;
  return 10;
}

/* ---- contexts ---- */

static nsa_problem pass(void) { return machine_problem(NSA_OP_BACKWARD, TOKENS, 0); }

static void enter_lengths(tuning *w, const char *lengths, const char *more) {
  char yaml[512];
  snprintf(yaml, sizeof yaml, "tuning: {lengths: [%s]}\n%s", lengths, more);
  tuning_enter(w, yaml);
  machine_record()->kernel = take_time;
  ms_of_mma = 10;
  wrong_mma = random_mma = false;
  passes = most_heads = 0;
  room = 0;
}

static void enter(tuning *w, const char *more) { enter_lengths(w, "1024", more); }

static void tune(tuning *w) {
  nsa_problem p = pass();
  tuning_expect(w, &p, NSA_OK, NULL);
}

/* Fails unless the plan's keys are done so, by a record. */
static void expect_keys(const tuning *w, const char *variant) {
  nsa_problem p = pass();
  nsa_plan *plan = machine_plan(w->ctx, &p);
  assert_string_equal(plan->choice.variant[NSAI_STAGE_BACKWARD_KV]->name, variant);
  assert_int_equal(plan->choice.decider[NSAI_STAGE_BACKWARD_KV], NSAI_BY_RECORD);
  nsa_plan_destroy(plan);
}

/* ---- tests ---- */

static void test_winner(void **state) {
  tuning w = { 0 };
  enter(&w, "");
  ms_of_mma = 4;
  tune(&w);
  assert_true(passes > 0);
  assert_int_equal(most_heads, 2);
  assert_non_null(tuning_find_stage(&w, NSA_TUNE_CHOSEN, "compress"));
  assert_non_null(strstr(tuning_find_stage(&w, NSA_TUNE_CHOSEN, "backward_q")->candidate,
                         "backward_q_sm90_tma"));
  const nsa_tune_event *keys = tuning_find_stage(&w, NSA_TUNE_CHOSEN, "backward_kv");
  assert_non_null(strstr(keys->candidate, "backward_kv_sm80"));
  assert_non_null(strstr(keys->problem, ":sel=topn:len1024"));
  /* 10 ms each: sorting lists, inverting them with three kernels, and the sums. */
  assert_true(fabs(keys->ms - (10 + 30 + 3 * 4 + 10)) < 1e-6 && keys->gain > 0.2);
  double best = tuning_find(&w, NSA_TUNE_BASELINE, "backward")->ms;
  assert_true(fabs(tuning_find(&w, NSA_TUNE_BASELINE, "backward.default")->ms - best - 18) < 1e-6);
  expect_keys(&w, "backward_kv_sm80");
  enter(&w, ""); /* another process */
  expect_keys(&w, "backward_kv_sm80");
  tune(&w);
  assert_int_equal(passes, 0); /* known: nothing is measured */
  tuning_leave(&w);
}

/* Where nothing may be computed again, what a forward saves is given. */
static void test_saved(void **state) {
  tuning w = { 0 };
  enter(&w, "runtime: {recompute: never}\n");
  ms_of_mma = 4;
  tune(&w);
  const nsa_tune_event *keys = tuning_find_stage(&w, NSA_TUNE_CHOSEN, "backward_kv");
  assert_non_null(strstr(keys->candidate, "backward_kv_sm80"));
  assert_non_null(strstr(keys->problem, ":sel=topn:saved:len1024"));
  expect_keys(&w, "backward_kv_sm80");
  tuning_leave(&w);
}

static void expect_wrong(const char *note) {
  tuning w = { 0 };
  bool wrong = wrong_mma;
  enter(&w, "");
  wrong_mma = wrong;
  random_mma = !wrong;
  ms_of_mma = 1;
  tune(&w);
  const nsa_tune_event *event = tuning_find(&w, NSA_TUNE_WRONG, NULL);
  assert_non_null(event);
  assert_string_equal(event->stage, "backward_kv");
  if (!strstr(event->note, note)) fail_msg("%s", event->note);
  expect_keys(&w, "backward_kv_sm90");
  tuning_leave(&w);
}

static void test_wrong_candidate(void **state) {
  wrong_mma = true;
  expect_wrong("d_q");
}

/* Gradients are the same bits from run to run. */
static void test_random_candidate(void **state) {
  wrong_mma = false;
  expect_wrong("d_kv.k[0] has other bits");
}

/* Lengths whose tensors or workspace the device has no room for are left out one by one, and
 * told. */
static void expect_no_room(uint64_t bytes, int want_chosen, int want_left_out) {
  tuning w = { 0 };
  nsa_problem p = machine_problem(NSA_OP_BACKWARD, 8 * TOKENS, 0);
  nsai_tune_span span = { 0 };
  int chosen = 0, left_out = 0;
  enter_lengths(&w, "1024, 4096, 8192", "");
  room = bytes;
  tuning_expect(&w, &p, NSA_OK, NULL);
  while (nsai_tune_next(&w.results, &span)) {
    const nsa_tune_event *done = nsai_tune_find(&span, NSA_TUNE_DONE, NULL, NULL);
    chosen += nsai_tune_find(&span, NSA_TUNE_CHOSEN, "backward_kv", NULL) != NULL;
    left_out += strstr(done->note, "cuMemAlloc") != NULL;
  }
  assert_int_equal(chosen, want_chosen);
  assert_int_equal(left_out, want_left_out);
  tuning_leave(&w);
}

static void test_no_room(void **state) {
  expect_no_room(4 << 20, 1, 2);   /* the workspace of 1024 tokens fits */
  expect_no_room(512 << 10, 0, 3); /* the tensors of 1024 alone */
  expect_no_room(16 << 20, 2, 1);
}

/* Any other refusal says nothing about room: the tuning ends with it. */
static void test_other_refusal(void **state) {
  static const uint64_t rooms[] = { 4 << 20, 512 << 10 };
  for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
    tuning w = { 0 };
    nsa_problem p = machine_problem(NSA_OP_BACKWARD, 8 * TOKENS, 0);
    enter_lengths(&w, "1024, 4096, 8192", "");
    room = rooms[i];
    machine_record()->refusal = 801;
    tuning_expect(&w, &p, NSA_E_CUDA, "cuMemAlloc: CUDA_ERROR_NOT_SUPPORTED (801)");
    machine_record()->refusal = 0;
    tuning_leave(&w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    TEST(test_winner),           TEST(test_saved),   TEST(test_wrong_candidate),
    TEST(test_random_candidate), TEST(test_no_room), TEST(test_other_refusal),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
