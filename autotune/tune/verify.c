/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Right before fast: no time counts of a candidate that has not been held against the float64
 * reference. A short case does, since the kernels' constants do not depend on lengths: long enough
 * that blocks are left out (or not, as in the problem), and where they are, that what goes over the
 * compressed keys goes round its loop more than once, as far as the problem is so long; of a ragged
 * length, every output between red zones. A verdict holds for the length that it was found at. A
 * column runs one candidate of every stage at once; only when it fails, by its results or by a launch
 * that the device refuses, does each of its candidates run alone.
 */
#include "tune/internal.h"
#include "verify/backward.h"
#include "verify/forward.h"

#include <stdlib.h>
#include <string.h>

#define RAGGED 37         /* tokens beyond a multiple of anything */
#define BLOCKS_LEFT_OUT 4 /* where the problem leaves blocks out, the case does, too */
#define TILE_KEYS 128     /* compressed keys: the largest tile of attend_compressed's variants */
#define MOST_TILES 3      /* a first, one in the middle and a last; then the ragged one */
#define MOST_GROUPS 2     /* KV heads of a backward pass: its reference is asked for every row */

void nsai_tune_case(const nsai_problem *problem, int64_t tokens, nsai_trial_fill fill,
                    nsai_trial_case *c) {
  nsai_trial_case_init(c);
  c->kind = problem->op == NSA_OP_DENSE      ? NSAI_TRIAL_DENSE
            : problem->op == NSA_OP_BACKWARD ? NSAI_TRIAL_BACKWARD
                                             : NSAI_TRIAL_FORWARD;
  c->geometry = problem->model;
  c->num_seqs = 1;
  c->q_len[0] = c->kv_len[0] = tokens;
  c->selection = problem->selection;
  c->no_batch = 1;
  c->parity = problem->parity;
  c->overlap = problem->overlap == NSA_OVERLAP_HIGH;
  c->recompute = problem->recompute;
  c->saved = problem->op == NSA_OP_BACKWARD && problem->recompute == NSAI_RECOMPUTE_NEVER;
  c->fill = fill;
}

/* Tokens of as many whole tiles of compressed keys as are of use and leave the ragged rest room. */
static int64_t whole_tiles(const nsai_problem *problem) {
  int64_t tile = (int64_t)TILE_KEYS * problem->model.stride;
  if (problem->op != NSA_OP_FORWARD || tile < 1 || problem->max_kv_len < RAGGED) return 0;
  int64_t count = (problem->max_kv_len - RAGGED) / tile;
  return (count < MOST_TILES ? count : MOST_TILES) * tile;
}

/* The problem at another length, with rows whose importance can be looked at. */
static nsai_problem verified_problem(const nsai_problem *problem) {
  if (nsai_problem_is_cached(problem)) {
    nsai_trial_kv_case kv;
    nsai_tune_kv_case(problem, &kv);
    return kv.problem;
  }
  nsai_problem p = *problem;
  const nsai_geometry *m = &p.model;
  int64_t tokens = (int64_t)m->select_count * m->select_block;
  if (!m->select_count || p.op == NSA_OP_DENSE) tokens = 4 * (m->window + m->block);
  if (nsai_problem_selects_all(problem)) {
    tokens -= RAGGED;
  } else {
    int64_t tiles = whole_tiles(problem);
    tokens += (int64_t)BLOCKS_LEFT_OUT * m->select_block;
    tokens = (tokens > tiles ? tokens : tiles) + RAGGED;
  }
  if (tokens > problem->max_kv_len) tokens = problem->max_kv_len;
  if (tokens < 1) tokens = 1;
  p.max_tokens = p.max_kv_tokens = p.max_kv_len = tokens;
  if (p.op == NSA_OP_BACKWARD && p.model.kv_heads > MOST_GROUPS) {
    p.model.heads = p.model.heads / p.model.kv_heads * MOST_GROUPS;
    p.model.kv_heads = MOST_GROUPS;
  }
  if (p.op == NSA_OP_FORWARD && p.selection == NSA_SELECT_OWN && m->select_count)
    p.max_probe_rows = (int32_t)(tokens < NSAI_TRIAL_MAX_PROBES ? tokens : NSAI_TRIAL_MAX_PROBES);
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

/* ---- what is known already ---- */

/* "key at the case's length|stage|candidate". */
static void verdict_text(const tune_task *task, const contender *c, nsai_writer *out) {
  nsai_problem verified = verified_problem(&task->problem);
  nsai_tune_key(&verified, verified.max_kv_len, out);
  nsai_write(out, "|%s|%s", c->timing.stage, c->timing.candidate);
}

static bool is_known(const tuner *t, const char *verdict) {
  for (int i = 0; i < t->verdict_count; i++)
    if (!strcmp(t->verdicts[i], verdict)) return true;
  return false;
}

static bool is_verified(const tuner *t, const tune_task *task, const contender *c) {
  char text[1024];
  nsai_writer w = nsai_writer_open(text, sizeof text);
  verdict_text(task, c, &w);
  return is_known(t, text);
}

static nsa_status remember(tuner *t, const tune_task *task, const contender *c) {
  char text[1024];
  nsai_writer w = nsai_writer_open(text, sizeof text);
  verdict_text(task, c, &w);
  if (is_known(t, text)) return NSA_OK;
  char **grown = realloc(t->verdicts, (size_t)(t->verdict_count + 1) * sizeof *grown);
  char *copy = strdup(text);
  if (grown) t->verdicts = grown;
  if (!grown || !copy) {
    free(copy);
    return nsai_fail_nomem("a verdict", sizeof text);
  }
  t->verdicts[t->verdict_count++] = copy;
  return NSA_OK;
}

void nsai_tune_verdicts_free(tuner *t) {
  for (int i = 0; i < t->verdict_count; i++) free(t->verdicts[i]);
  free(t->verdicts);
  t->verdicts = NULL;
  t->verdict_count = 0;
}

/* ---- judging ---- */

typedef struct court {
  tuner *t;
  tune_task *task;
  nsai_problem problem; /* the short one */
  nsai_trial_case c;
  nsai_trial_bench bench;
  nsai_trial_truth truth;
  nsai_trial_wanted *wanted; /* of a backward pass, in the place of truth */
  nsai_trial_kv_court kv;    /* in the place of case, bench and truth, over a cache */
  bool ready;
  bool refused; /* the last run did not fail by its results: the device refused it */
} court;

/* A failure to load or to launch that the device survives is a result. */
static nsa_status blame(court *c, nsa_status status, nsai_trial_result *result) {
  const char *text = nsa_last_error();
  if (status != NSA_E_CUDA || !nsai_tune_survived(c->t)) return status;
  c->refused = true;
  nsai_trial_fail(result, "%.*s", (int)strcspn(text, "\n"), text);
  return NSA_OK;
}

/* Two runs: the second one must give the same bits. */
static nsa_status judge_gradients(court *c, nsai_trial_result *result) {
  if (!c->wanted) NSAI_TRY(nsai_trial_wanted_create(&c->bench, &c->wanted));
  return blame(c, nsai_trial_check_backward(&c->bench, c->wanted, result), result);
}

/* Runs one plan on the bench and compares. */
static nsa_status judge_packed(court *c, const nsai_trial_plan *plan, nsai_trial_result *result) {
  if (!c->ready)
    NSAI_TRY(nsai_trial_bench_prepare(&c->t->device, &c->c, plan, c->bench.threads, &c->bench));
  c->ready = true;
  NSAI_TRY(nsai_trial_bench_use(&c->bench, plan));
  if (c->c.kind == NSAI_TRIAL_BACKWARD) return judge_gradients(c, result);
  NSAI_TRY(blame(c, nsai_trial_run_intact(&c->bench, result), result));
  if (c->refused) return NSA_OK;
  if (c->c.kind == NSAI_TRIAL_DENSE) return nsai_trial_judge_dense(&c->bench, &c->truth, result);
  return nsai_trial_judge_forward(&c->bench, &c->truth, result);
}

/* The same over a cache. */
static nsa_status judge_cached(court *c, const nsai_trial_plan *plan, nsai_trial_result *result) {
  if (!c->ready) {
    nsai_trial_kv_case kv;
    nsai_tune_kv_case(&c->task->problem, &kv);
    NSAI_TRY(nsai_trial_kv_court_create(&c->t->device, &kv, c->bench.threads, &c->kv));
  }
  c->ready = true;
  return blame(c, nsai_trial_kv_judge(&c->kv, plan, result), result);
}

/* Runs one plan and compares; `result` says what came of it. */
static nsa_status judge(court *c, const nsai_decisions *decisions, nsai_trial_result *result) {
  nsai_trial_plan plan = { 0 };
  nsa_status status = NSA_OK;
  *result = (nsai_trial_result){ .outcome = NSAI_TRIAL_PASSED };
  c->refused = false;
  NSAI_TRY(blame(c, nsai_tune_plan(c->t, &c->problem, decisions, &plan), result));
  if (c->refused) return NSA_OK;
  if (nsai_problem_is_cached(&c->problem))
    status = judge_cached(c, &plan, result);
  else
    status = judge_packed(c, &plan, result);
  nsa_plan_destroy(plan.plan);
  return status;
}

/* The judgement of one contender that is out. */
static void find_guilty(court *c, contender *wrong, const nsai_trial_result *result) {
  if (c->refused) {
    nsai_tune_refuse(c->t, c->task, wrong, result->text);
    return;
  }
  wrong->alive = false;
  wrong->timing.state = NSAI_TIMING_WRONG;
  snprintf(wrong->timing.note, sizeof wrong->timing.note, "%.*s",
           (int)sizeof wrong->timing.note - 1, result->text);
  nsai_tune_tell(c->t, NSA_TUNE_WRONG, c->task, wrong, wrong->timing.note);
}

/* The same, and a context that is lost is said to be so. */
static nsa_status judge_suspects(court *c, const nsai_decisions *decisions,
                                 contender *const suspects[NSAI_STAGE_COUNT],
                                 nsai_trial_result *result) {
  nsa_status status = judge(c, decisions, result);
  if (status != NSA_E_CUDA || nsai_tune_survived(c->t)) return status;
  return nsai_tune_lost(c->t, c->task, suspects);
}

/* One candidate with the heuristic's choices around it. */
static nsa_status judge_alone(court *c, contender *one) {
  nsai_decisions decisions;
  contender *suspects[NSAI_STAGE_COUNT] = { NULL };
  nsai_trial_result result;
  nsai_tune_around(c->task, one, &decisions);
  for (int i = 0; i < c->task->contests; i++)
    if (c->task->contest[i].stage == one->what.variant->stage) suspects[i] = one;
  NSAI_TRY(judge_suspects(c, &decisions, suspects, &result));
  if (result.outcome == NSAI_TRIAL_PASSED) return remember(c->t, c->task, one);
  find_guilty(c, one, &result);
  return NSA_OK;
}

/* Judges contenders that run together, unless all are verified; `suspects` gets those that are not.
 */
static nsa_status judge_taken(court *c, const nsai_decisions *decisions,
                              contender *const taken[NSAI_STAGE_COUNT],
                              contender *suspects[NSAI_STAGE_COUNT], nsai_trial_result *result) {
  bool fresh = false;
  *result = (nsai_trial_result){ .outcome = NSAI_TRIAL_PASSED };
  for (int i = 0; i < c->task->contests; i++) {
    suspects[i] = taken[i] && !is_verified(c->t, c->task, taken[i]) ? taken[i] : NULL;
    fresh |= suspects[i] != NULL;
  }
  if (!fresh) return NSA_OK;
  NSAI_TRY(judge_suspects(c, decisions, suspects, result));
  if (result->outcome != NSAI_TRIAL_PASSED) return NSA_OK;
  for (int i = 0; i < c->task->contests; i++)
    if (taken[i]) NSAI_TRY(remember(c->t, c->task, taken[i]));
  return NSA_OK;
}

/* The heuristic's choices, also those that other contenders cover: all others build on them. */
static nsa_status judge_heuristic(court *c) {
  contender *taken[NSAI_STAGE_COUNT], *suspects[NSAI_STAGE_COUNT];
  nsai_decisions decisions;
  nsai_trial_result result;
  nsai_tune_column(c->task, 0, &decisions, taken);
  NSAI_TRY(judge_taken(c, &decisions, taken, suspects, &result));
  if (result.outcome == NSAI_TRIAL_PASSED && nsai_tune_apart(c->task, &decisions, taken))
    NSAI_TRY(judge_taken(c, &decisions, taken, suspects, &result));
  if (result.outcome == NSAI_TRIAL_PASSED) return NSA_OK;
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

static nsa_status judge_column(court *c, int column) {
  contender *taken[NSAI_STAGE_COUNT], *suspects[NSAI_STAGE_COUNT];
  nsai_decisions decisions;
  nsai_trial_result result;
  tune_task *task = c->task;
  nsai_tune_column(task, column, &decisions, taken);
  NSAI_TRY(judge_taken(c, &decisions, taken, suspects, &result));
  if (result.outcome == NSAI_TRIAL_PASSED) return NSA_OK;
  bool found = false, refused = c->refused;
  for (int i = 0; i < task->contests; i++)
    if (suspects[i]) {
      NSAI_TRY(judge_alone(c, suspects[i]));
      found |= !suspects[i]->alive;
    }
  if (found) return NSA_OK;
  /* Wrong together, or wrong once in a while, as races are: none of them is trusted. */
  c->refused = refused;
  for (int i = 0; i < task->contests; i++) {
    const contest *k = &task->contest[i];
    if (taken[i] && taken[i] != &k->item[0] && taken[i] - k->item != k->apart)
      find_guilty(c, taken[i], &result);
  }
  return NSA_OK;
}

/* The budget is spent: what has not been verified is not timed. */
static void leave_out(court *c, int column) {
  contender *taken[NSAI_STAGE_COUNT];
  nsai_decisions decisions;
  nsai_tune_column(c->task, column, &decisions, taken);
  for (int i = 0; i < c->task->contests; i++)
    if (taken[i] && !is_verified(c->t, c->task, taken[i])) taken[i]->alive = false;
}

nsa_status nsai_tune_verify(tuner *t, tune_task *task) {
  court *c = calloc(1, sizeof *c);
  nsa_status status = NSA_OK;
  if (!c) return nsai_fail_nomem("a verification", sizeof *c);
  *c = (court){ .t = t, .task = task, .problem = verified_problem(&task->problem) };
  c->bench.threads = t->bench.threads;
  nsai_tune_case(&c->problem, c->problem.max_kv_len, NSAI_TRIAL_FILL_CORRELATED, &c->c);
  /* From the last column on: a wrong candidate leaves its column, and those before stay as they
   * are. The heuristic's choices come first all the same. */
  int columns = nsai_tune_columns(task);
  NSAI_TRY_TO(done, judge_heuristic(c));
  for (int column = columns - 1; column > 0; column--) {
    NSAI_TRY_TO(done, nsai_tune_step(t, "verifying"));
    if (nsai_tune_spent(t))
      leave_out(c, column);
    else
      NSAI_TRY_TO(done, judge_column(c, column));
  }
done:
  nsai_trial_truth_fini(&c->truth);
  nsai_trial_bench_destroy(&c->bench);
  nsai_trial_kv_court_destroy(&c->kv);
  nsai_trial_wanted_destroy(c->wanted);
  free(c);
  return status;
}
