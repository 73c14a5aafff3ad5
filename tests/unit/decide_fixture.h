/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Contexts with records of window variants, for test_decide.c.
 */
#ifndef TEST_DECIDE_FIXTURE_H
#define TEST_DECIDE_FIXTURE_H

typedef struct tuning {
  char dir[64];
  char yaml[1024];
  nsa_ctx *ctx;
  int warnings; /* of the tuner's component */
  char warning[512];
} tuning;

static void keep(void *user, int32_t level, const char *component, const char *text) {
  tuning *w = user;
  if (level > NSA_LOG_WARN || strcmp(component, "tune") != 0) return;
  w->warnings++;
  snprintf(w->warning, sizeof w->warning, "%s", text);
}

/* A context on the fake GPU, in a folder that lives longer than it. */
static void enter(tuning *w, const char *extra) {
  w->warnings = 0;
  if (!w->yaml[0]) machine_yaml(&(machine_request){ .gpu = true }, w->yaml, sizeof w->yaml);
  machine_reopen(&w->ctx, w->dir, &(machine_reopening){ w->yaml, extra, keep, w });
}

static void leave(tuning *w) {
  nsa_destroy(w->ctx);
  machine_remove(w->dir);
  memset(w, 0, sizeof *w);
}

/* A test whose *state is a tuning that has been entered. */
#define DECIDE_TEST(name) cmocka_unit_test_setup_teardown(name, decide_begin, decide_end)

static int decide_begin(void **state) {
  static tuning w;
  enter(&w, NULL);
  *state = &w;
  return 0;
}

static int decide_end(void **state) {
  leave(*state);
  return 0;
}

static nsai_record *new_record(const tuning *w, int32_t op, int64_t tokens, int32_t overlap) {
  nsa_problem asked = machine_problem(op, tokens, overlap);
  nsai_problem p;
  nsai_record *r = NULL;
  machine_expect("record", nsai_record_create(&r), NSA_OK, NULL);
  machine_expect("resolve", nsai_problem_resolve(w->ctx->config, &asked, &p), NSA_OK, NULL);
  nsai_tune_environment(w->ctx, r);
  nsai_writer key = nsai_writer_open(r->problem, sizeof r->problem);
  nsai_tune_key(&p, tokens, &key);
  r->bucket = tokens;
  strcpy(r->date, "2026-11-20T10:00:00Z");
  strcpy(r->level, "quick");
  return r;
}

static void add(nsai_record *r, const char *stage, const char *candidate, bool wins) {
  nsai_timing t = { .ms = wins ? 1 : 2, .rounds = 5, .chosen = wins };
  snprintf(t.stage, sizeof t.stage, "%s", stage);
  snprintf(t.candidate, sizeof t.candidate, "%s", candidate);
  machine_expect("add", nsai_record_add(r, &t), NSA_OK, NULL);
}

/* The candidate wins its stage, in which all other variants have been timed. */
static void win(nsai_record *r, const char *stage, const char *candidate) {
  for (int i = 0; nsai_variants[i]; i++)
    if (!strcmp(nsai_stage_name(nsai_variants[i]->stage), stage))
      add(r, stage, nsai_variants[i]->name, false);
  add(r, stage, candidate, true);
}

static void save(const tuning *w, nsai_record *r) {
  machine_expect("save", nsai_records_save(nsai_context_records(w->ctx), r), NSA_OK, NULL);
  nsai_record_destroy(r);
}

/* Window candidates that are told apart by their keys; none is the heuristic's. */
#define WINDOW(rows, keys) "attend_window_sm80 rows=" #rows " keys=" #keys " warps=2 ctas=1"

static void save_window(const tuning *w, int64_t tokens, int32_t overlap, const char *candidate) {
  nsai_record *r = new_record(w, NSA_OP_FORWARD, tokens, overlap);
  win(r, "attend_window", candidate);
  save(w, r);
}

/* Fails unless a plan's stage is done so; "" for the heuristic's choice. */
static void expect_choice(const tuning *w, const nsa_problem *problem, nsai_stage stage,
                          const char *expected) {
  nsai_problem p;
  char text[128], heuristic[128];
  nsai_choice own;
  nsa_plan *plan = machine_plan(w->ctx, problem);
  nsai_writer out = nsai_writer_open(text, sizeof text);
  nsai_candidate_print(&(nsai_candidate){ plan->choice.variant[stage], plan->choice.tiles[stage] },
                       &out);
  machine_expect("resolve", nsai_problem_resolve(w->ctx->config, problem, &p), NSA_OK, NULL);
  machine_expect("choose", nsai_choose(w->ctx->config, &p, &w->ctx->target, NULL, NULL, &own),
                 NSA_OK, NULL);
  out = nsai_writer_open(heuristic, sizeof heuristic);
  nsai_candidate_print(&(nsai_candidate){ own.variant[stage], own.tiles[stage] }, &out);
  assert_string_equal(text, expected[0] ? expected : heuristic);
  nsai_decider by = plan->choice.decider[stage];
  assert_true((by == NSAI_BY_RECORD || by == NSAI_BY_OTHER_RECORD) == (expected[0] != 0));
  if (expected[0]) assert_string_not_equal(expected, heuristic);
  nsa_plan_destroy(plan);
}

static void expect_window(const tuning *w, int64_t tokens, int32_t overlap, const char *expected) {
  nsa_problem p = machine_problem(NSA_OP_FORWARD, tokens, overlap);
  expect_choice(w, &p, NSAI_STAGE_ATTEND_WINDOW, expected);
}

static void expect_story(const tuning *w, const nsa_problem *problem, const char *part) {
  machine_expect_story(w->ctx, problem, part);
}

#define LOW NSA_OVERLAP_LOW
#define HIGH NSA_OVERLAP_HIGH

#endif /* TEST_DECIDE_FIXTURE_H */
