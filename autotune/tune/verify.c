/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Verifies candidates before they are timed: no time counts unless the candidate's results match
 * the float64 reference. A short case is enough because the kernels' constants do not depend on
 * lengths. Where the problem leaves blocks out, the case is long enough to do so too, and long
 * enough that loops over compressed keys run more than once. Its length is ragged, and every
 * output lies between guard bands. A result of the verification is valid for the length at which
 * it was found.
 *
 * A run verifies one candidate of every stage at once. Only when it fails, by its results or by
 * a launch that the device refuses, does each of its candidates run alone.
 */
#include "base/math.h"
#include "tune/internal.h"
#include "verify/backward.h"
#include "verify/forward.h"

#include <stdlib.h>
#include <string.h>

#define RAGGED 37         /* tokens beyond a multiple of any tile or block */
#define BLOCKS_LEFT_OUT 4 /* blocks that the case leaves out, where the problem does so */
#define TILE_KEYS 128     /* compressed keys; the largest tile of attend_compressed's variants */
#define MOST_TILES 3      /* a first, a middle and a last tile, before the ragged one */
#define MOST_GROUPS 2     /* KV heads of a backward pass: its reference computes every row */

void nsai_tune_case(const nsai_problem *problem, int64_t tokens, nsai_verify_fill fill,
                    nsai_verify_case *c) {
  nsai_verify_case_init(c);
  c->kind = problem->op == NSA_OP_DENSE      ? NSAI_VERIFY_DENSE
            : problem->op == NSA_OP_BACKWARD ? NSAI_VERIFY_BACKWARD
                                             : NSAI_VERIFY_FORWARD;
  c->model = problem->model;
  c->num_seqs = 1;
  c->q_len[0] = c->kv_len[0] = tokens;
  c->selection = problem->selection;
  c->no_batch = 1;
  c->overlap = problem->overlap == NSA_OVERLAP_HIGH;
  c->recompute = problem->recompute;
  c->saved = problem->op == NSA_OP_BACKWARD && problem->recompute == NSAI_RECOMPUTE_NEVER;
  c->fill = fill;
}

/* Tokens of whole tiles of compressed keys: as many as are useful and leave room for the ragged
 * rest. */
static int64_t whole_tiles(const nsai_problem *problem) {
  int64_t tile = (int64_t)TILE_KEYS * problem->model.stride;
  if (problem->op != NSA_OP_FORWARD || tile < 1 || problem->max_kv_len < RAGGED) return 0;
  int64_t count = (problem->max_kv_len - RAGGED) / tile;
  return (count < MOST_TILES ? count : MOST_TILES) * tile;
}

/* The problem at the case's length, with probe rows that show their importance. */
static nsai_problem verified_problem(const nsai_problem *problem) {
  if (nsai_problem_is_cached(problem)) {
    nsai_verify_cache_case kv;
    nsai_tune_kv_case(problem, &kv);
    return kv.problem;
  }
  nsai_problem p = *problem;
  const nsai_model *m = &p.model;
  int64_t tokens = (int64_t)m->select_count * m->select_block;
  if (!m->select_count || p.op == NSA_OP_DENSE) tokens = 4 * (m->window + m->block);
  if (nsai_problem_selects_all(problem)) {
    tokens -= RAGGED;
  } else {
    int64_t tiles = whole_tiles(problem);
    tokens += (int64_t)BLOCKS_LEFT_OUT * m->select_block;
    tokens = nsai_larger(tokens, tiles) + RAGGED;
  }
  if (tokens > problem->max_kv_len) tokens = problem->max_kv_len;
  if (tokens < 1) tokens = 1;
  p.max_tokens = p.max_kv_tokens = p.max_kv_len = tokens;
  if (p.op == NSA_OP_BACKWARD && p.model.kv_heads > MOST_GROUPS) {
    p.model.heads = p.model.heads / p.model.kv_heads * MOST_GROUPS;
    p.model.kv_heads = MOST_GROUPS;
  }
  if (p.op == NSA_OP_FORWARD && p.selection == NSA_SELECT_TOPN && m->select_count)
    p.max_probe_rows = (int32_t)(tokens < NSAI_VERIFY_MAX_PROBES ? tokens : NSAI_VERIFY_MAX_PROBES);
  return p;
}

nsa_status nsai_tune_plan(tuner *t, const nsai_problem *problem, const nsai_decisions *decisions,
                          nsai_trial_plan *out) {
  *out = (nsai_trial_plan){ .ctx = t->ctx, .caps = NSA_CAPS_INIT };
  NSAI_TRY(nsai_plan_make(t->ctx, problem, decisions, &out->plan));
  nsa_status status = nsa_plan_caps(out->plan, &out->caps);
  if (!status) return NSA_OK;
  nsa_plan_destroy(out->plan);
  out->plan = NULL;
  return status;
}

/* ---- candidates that passed ---- */

/* "key at the case's length|stage|candidate". */
static void passed_key(const tune_task *task, const measured_candidate *c, nsai_writer *out) {
  nsai_problem verified = verified_problem(&task->problem);
  nsai_tune_key(&verified, verified.max_kv_len, out);
  nsai_write(out, "|%s|%s", c->timing.stage, c->timing.candidate);
}

static bool is_known(const tuner *t, const char *key) {
  for (int i = 0; i < t->passed_count; i++)
    if (!strcmp(t->passed[i], key)) return true;
  return false;
}

static bool is_verified(const tuner *t, const tune_task *task, const measured_candidate *c) {
  char text[1024];
  nsai_writer w = nsai_writer_open(text, sizeof text);
  passed_key(task, c, &w);
  return is_known(t, text);
}

static nsa_status remember(tuner *t, const tune_task *task, const measured_candidate *c) {
  char text[1024];
  nsai_writer w = nsai_writer_open(text, sizeof text);
  passed_key(task, c, &w);
  if (is_known(t, text)) return NSA_OK;
  char **grown = realloc(t->passed, (size_t)(t->passed_count + 1) * sizeof *grown);
  char *copy = strdup(text);
  if (grown) t->passed = grown;
  if (!grown || !copy) {
    free(copy);
    return nsai_fail_nomem("a verified candidate", sizeof text);
  }
  t->passed[t->passed_count++] = copy;
  return NSA_OK;
}

void nsai_tune_passed_free(tuner *t) {
  for (int i = 0; i < t->passed_count; i++) free(t->passed[i]);
  free(t->passed);
  t->passed = NULL;
  t->passed_count = 0;
}

/* ---- verification ---- */

typedef struct verification {
  tuner *t;
  tune_task *task;
  nsai_problem problem; /* the problem at the case's length */
  nsai_verify_case c;
  nsai_trial_run trial;
  nsai_verify_expected expected;
  nsai_verify_expected_grads *wanted; /* of a backward pass; replaces `expected` */
  nsai_verify_cache_setup kv;         /* over a cache; replaces case, bench and expected */
  bool ready;
  bool refused; /* the device refused the last run; its results are not at fault */
} verification;

/* A failure to load or to launch that leaves the device usable is a result, not an error. */
static nsa_status blame(verification *c, nsa_status status, nsai_verify_result *result) {
  const char *text = nsa_last_error();
  if (status != NSA_E_CUDA || !nsai_tune_survived(c->t)) return status;
  c->refused = true;
  nsai_verify_fail(result, "%.*s", (int)strcspn(text, "\n"), text);
  return NSA_OK;
}

/* Runs twice: the second run must give the same bits. */
static nsa_status verify_gradients(verification *c, nsai_verify_result *result) {
  if (!c->wanted) NSAI_TRY(nsai_verify_expected_grads_create(&c->trial, &c->wanted));
  return blame(c, nsai_verify_check_backward(&c->trial, c->wanted, result), result);
}

/* Runs one plan on packed tensors and compares. */
static nsa_status verify_packed(verification *c, const nsai_trial_plan *plan,
                                nsai_verify_result *result) {
  if (!c->ready)
    NSAI_TRY(nsai_trial_run_prepare(&c->t->device, &c->c, plan, c->trial.threads, &c->trial));
  c->ready = true;
  NSAI_TRY(nsai_trial_run_use(&c->trial, plan));
  if (c->c.kind == NSAI_VERIFY_BACKWARD) return verify_gradients(c, result);
  NSAI_TRY(blame(c, nsai_trial_run_intact(&c->trial, result), result));
  if (c->refused) return NSA_OK;
  if (c->c.kind == NSAI_VERIFY_DENSE) return nsai_verify_dense(&c->trial, &c->expected, result);
  return nsai_verify_forward(&c->trial, &c->expected, result);
}

/* The same over a cache. */
static nsa_status verify_cached(verification *c, const nsai_trial_plan *plan,
                                nsai_verify_result *result) {
  if (!c->ready) {
    nsai_verify_cache_case kv;
    nsai_tune_kv_case(&c->task->problem, &kv);
    NSAI_TRY(nsai_verify_cache_setup_create(&c->t->device, &kv, c->trial.threads, &c->kv));
  }
  c->ready = true;
  return blame(c, nsai_verify_cache_check(&c->kv, plan, result), result);
}

/* Runs one plan and compares; `result` says how it ended. */
static nsa_status verify(verification *c, const nsai_decisions *decisions,
                         nsai_verify_result *result) {
  nsai_trial_plan plan = { 0 };
  nsa_status status = NSA_OK;
  *result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  c->refused = false;
  NSAI_TRY(blame(c, nsai_tune_plan(c->t, &c->problem, decisions, &plan), result));
  if (c->refused) return NSA_OK;
  if (nsai_problem_is_cached(&c->problem))
    status = verify_cached(c, &plan, result);
  else
    status = verify_packed(c, &plan, result);
  nsa_plan_destroy(plan.plan);
  return status;
}

/* Drops a wrong candidate and records what was wrong. */
static void find_wrong(verification *c, measured_candidate *wrong,
                       const nsai_verify_result *result) {
  if (c->refused) {
    nsai_tune_refuse(c->t, c->task, wrong, result->text);
    return;
  }
  wrong->alive = false;
  wrong->timing.state = NSAI_TIMING_WRONG;
  snprintf(wrong->timing.note, sizeof wrong->timing.note, "%.*s",
           (int)sizeof wrong->timing.note - 1, result->text);
  nsai_tune_emit(c->t, NSA_TUNE_WRONG, c->task, wrong, wrong->timing.note);
}

/* The same, and reports a context that is lost. */
static nsa_status verify_suspects(verification *c, const nsai_decisions *decisions,
                                  measured_candidate *const suspects[NSAI_STAGE_COUNT],
                                  nsai_verify_result *result) {
  nsa_status status = verify(c, decisions, result);
  if (status != NSA_E_CUDA || nsai_tune_survived(c->t)) return status;
  return nsai_tune_lost(c->t, c->task, suspects);
}

/* One candidate with the heuristic's choices for the other stages. */
static nsa_status verify_alone(verification *c, measured_candidate *one) {
  nsai_decisions decisions;
  measured_candidate *suspects[NSAI_STAGE_COUNT] = { NULL };
  nsai_verify_result result;
  nsai_tune_around(c->task, one, &decisions);
  for (int i = 0; i < c->task->stage_count; i++)
    if (c->task->candidates[i].stage == one->what.variant->stage) suspects[i] = one;
  NSAI_TRY(verify_suspects(c, &decisions, suspects, &result));
  if (result.outcome == NSAI_VERIFY_PASSED) return remember(c->t, c->task, one);
  find_wrong(c, one, &result);
  return NSA_OK;
}

/* Verifies candidates that run together, unless all have passed before. `suspects` gets those
 * that have not. */
static nsa_status verify_taken(verification *c, const nsai_decisions *decisions,
                               measured_candidate *const taken[NSAI_STAGE_COUNT],
                               measured_candidate *suspects[NSAI_STAGE_COUNT],
                               nsai_verify_result *result) {
  bool any = false;
  *result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  for (int i = 0; i < c->task->stage_count; i++) {
    suspects[i] = taken[i] && !is_verified(c->t, c->task, taken[i]) ? taken[i] : NULL;
    any |= suspects[i] != NULL;
  }
  if (!any) return NSA_OK;
  NSAI_TRY(verify_suspects(c, decisions, suspects, result));
  if (result->outcome != NSAI_VERIFY_PASSED) return NSA_OK;
  for (int i = 0; i < c->task->stage_count; i++)
    if (taken[i]) NSAI_TRY(remember(c->t, c->task, taken[i]));
  return NSA_OK;
}

/* Verifies the heuristic's choices first, including those whose stages other candidates fuse:
 * every other run uses them. */
static nsa_status verify_heuristic(verification *c) {
  measured_candidate *taken[NSAI_STAGE_COUNT], *suspects[NSAI_STAGE_COUNT];
  nsai_decisions decisions;
  nsai_verify_result result;
  nsai_tune_combination(c->task, 0, &decisions, taken);
  NSAI_TRY(verify_taken(c, &decisions, taken, suspects, &result));
  if (result.outcome == NSAI_VERIFY_PASSED && nsai_tune_unfused(c->task, &decisions, taken))
    NSAI_TRY(verify_taken(c, &decisions, taken, suspects, &result));
  if (result.outcome == NSAI_VERIFY_PASSED) return NSA_OK;
  if (c->refused)
    return nsai_fail(NSA_E_CUDA,
                     "the device refuses to run the heuristic's own choice for %s: %s; please "
                     "report it with the output of `nsa-autotune doctor`",
                     c->task->key, result.text);
  return nsai_fail(NSA_E_VERIFY,
                   "the heuristic's own choice computes wrong results for %s: %s; please report "
                   "it with the output of `nsa-autotune doctor`",
                   c->task->key, result.text);
}

static nsa_status verify_combination(verification *c, int combination) {
  measured_candidate *taken[NSAI_STAGE_COUNT], *suspects[NSAI_STAGE_COUNT];
  nsai_decisions decisions;
  nsai_verify_result result;
  tune_task *task = c->task;
  nsai_tune_combination(task, combination, &decisions, taken);
  NSAI_TRY(verify_taken(c, &decisions, taken, suspects, &result));
  if (result.outcome == NSAI_VERIFY_PASSED) return NSA_OK;
  bool found = false, refused = c->refused;
  for (int i = 0; i < task->stage_count; i++)
    if (suspects[i]) {
      NSAI_TRY(verify_alone(c, suspects[i]));
      found |= !suspects[i]->alive;
    }
  if (found) return NSA_OK;
  /* Wrong only together, or wrong only at times as with a race: drop all of them. */
  c->refused = refused;
  for (int i = 0; i < task->stage_count; i++) {
    const candidates *k = &task->candidates[i];
    if (taken[i] && taken[i] != &k->item[0] && taken[i] - k->item != k->unfused)
      find_wrong(c, taken[i], &result);
  }
  return NSA_OK;
}

/* The budget is spent: candidates that were not verified are not timed. */
static void leave_out(verification *c, int combination) {
  measured_candidate *taken[NSAI_STAGE_COUNT];
  nsai_decisions decisions;
  nsai_tune_combination(c->task, combination, &decisions, taken);
  for (int i = 0; i < c->task->stage_count; i++)
    if (taken[i] && !is_verified(c->t, c->task, taken[i])) taken[i]->alive = false;
}

nsa_status nsai_tune_verify(tuner *t, tune_task *task) {
  verification *c = calloc(1, sizeof *c);
  nsa_status status = NSA_OK;
  if (!c) return nsai_fail_nomem("a verification", sizeof *c);
  *c = (verification){ .t = t, .task = task, .problem = verified_problem(&task->problem) };
  c->trial.threads = t->trial.threads;
  nsai_tune_case(&c->problem, c->problem.max_kv_len, NSAI_VERIFY_FILL_CORRELATED, &c->c);
  /* From the last combination to the first: a wrong candidate leaves its combination, and the
   * earlier ones keep theirs. The heuristic's choices come before all. */
  int combinations = nsai_tune_combinations(task);
  NSAI_TRY_TO(done, verify_heuristic(c));
  for (int combination = combinations - 1; combination > 0; combination--) {
    NSAI_TRY_TO(done, nsai_tune_step(t, "verifying"));
    if (nsai_tune_spent(t))
      leave_out(c, combination);
    else
      NSAI_TRY_TO(done, verify_combination(c, combination));
  }
done:
  nsai_verify_expected_fini(&c->expected);
  nsai_trial_run_destroy(&c->trial);
  nsai_verify_cache_setup_destroy(&c->kv);
  nsai_verify_expected_grads_destroy(c->wanted);
  free(c);
  return status;
}
