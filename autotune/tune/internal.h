/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the tuner's files share: tune.c (problems, budget, records), candidates.c (candidates and
 * their kernels), combinations.c (what runs together), verify.c (right or wrong), run.c (one
 * timed run), cache_inputs.c (over caches), time.c (how fast), fused_time.c (faster than which),
 * whole_call.c (the call as a whole), fault.c (failing).
 */
#ifndef NSAI_TUNE_INTERNAL_H
#define NSAI_TUNE_INTERNAL_H

#include "driver/sensors.h"
#include "plan/plan.h"
#include "records/decide.h"
#include "run/run.h"
#include "tune/tune.h"
#include "verify/cache.h"
#include "verify/cache_tensors.h"
#include "verify/expected.h"
#include "verify/trial_run.h"

#include <nsa/tune.h>

#define TUNE_MAX_ROUNDS 32
#define TUNE_FINAL_ROUNDS 5 /* of the best and the heuristic's choice */
#define TUNE_LEAST_ROUNDS 3 /* that decide anything */
/* Spreads that a winner must be ahead: of the rounds' ratios, or of both times. */
#define TUNE_NOISE 1.5
#define TUNE_MAX_EVENTS 512 /* two for each piece of each stage of one run */

/* A candidate on its way. */
typedef struct measured_candidate {
  nsai_candidate what;
  nsai_timing timing; /* what goes into the record */
  bool alive;         /* takes part in the next rounds */
  int32_t rounds;
  double samples[TUNE_MAX_ROUNDS]; /* ms */
  double before_ms;                /* of a finalist: what the rounds before the final measured */
  nsai_fused_time fused_time;      /* what it is compared by: nsai_tune_fused_times */
} measured_candidate;

/* The contenders of one stage; the heuristic's choice is the first, or what stands in for it where it
 * does not compile. */
typedef struct candidates {
  nsai_stage stage;
  measured_candidate *item;
  int count;
  int unfused; /* the heuristic's choice among those that cover no other stage, or what stands in for
                it; -1: there is none */
} candidates;

/* One problem at one length with one kind of inputs: what becomes one record. */
typedef struct tune_task {
  nsai_problem problem; /* one sequence of `tokens`; a decode step: max_seqs of them */
  int64_t tokens;
  nsai_verify_fill fill;
  char key[384];
  nsai_record *record;
  bool replaces; /* the first save forgets what was there */
  bool done;     /* an earlier call of this level or a higher one came to its end */
  candidates candidates[NSAI_STAGE_COUNT];
  int stage_count;
} tune_task;

typedef struct tuner {
  nsa_ctx *ctx;
  const nsa_tune_options *options;
  int32_t level;   /* NSAI_LEVEL_* */
  double deadline; /* nsai_verify_seconds() at which nothing more is begun */
  nsai_verify_device device;
  bool pushed;          /* the device was made current */
  int32_t capture_mode; /* to be exchanged with the thread's */
  void *flush;          /* device memory */
  nsai_sensors *sensors;
  nsai_cu_event events[TUNE_MAX_EVENTS];
  int event_count;
  int64_t done, total; /* pieces, for progress */
  nsai_stage at;       /* whose launches are under way in a timed run; NSAI_STAGE_COUNT: none */
  /* The tensors that are there, kept between tasks of one length. */
  nsai_verify_case c;
  nsai_trial_run trial;
  bool has_data;
  nsai_verify_overlap overlap; /* of their selections */
  nsai_verify_cache kv;        /* the same for problems over a cache */
  nsai_model kv_model;         /* of the caches */
  int32_t kv_op;
  bool has_kv;
  bool no_room; /* for the task's tensors or workspace: the last NSA_E_CUDA says no more */
  /* Candidates found right so far, by the length that they were verified at. */
  char **passed;
  int passed_count;
  /* Baselines of the length at hand. */
  bool no_baselines; /* a first use */
  int64_t base_tokens;
  nsai_baseline base[2];
  int base_count;
} tuner;

/* Reports progress, and in `step` one piece more; NSA_E_CANCELLED when the host says so. */
nsa_status nsai_tune_step(tuner *t, const char *what);
nsa_status nsai_tune_poll(tuner *t, const char *what);
bool nsai_tune_spent(const tuner *t);
void nsai_tune_emit(const tuner *t, int32_t kind, const tune_task *task,
                    const measured_candidate *c, const char *note);

/* candidates.c */

/* Fills the task's contests by the tuner's level; timings of the record are taken over. NSA_E_NOMEM,
 * NSA_E_UNSUPPORTED. */
nsa_status nsai_tune_candidates(tuner *t, tune_task *task);
void nsai_tune_candidates_free(tune_task *task);

/* Compiles what is missing of all contenders, several at once; those refused are out. NSA_E_COMPILE:
 * all of a stage. */
nsa_status nsai_tune_compile(tuner *t, tune_task *task);

/* combinations.c */

/* The decisions of column `column`: of every stage the next contender among those alive, or the first
 * where there are no more; of a stage that is covered, none. `taken` gets the contender of each
 * contest, NULL where it is none or a stand-in. The first column has the first of each stage. */
void nsai_tune_combination(const tune_task *task, int combination, nsai_decisions *out,
                           measured_candidate *taken[NSAI_STAGE_COUNT]);

/* Columns that hold every contender alive. */
int nsai_tune_combinations(const tune_task *task);

/* The same for the heuristic's choices among what covers no other stage; false: the first column has
 * them. */
bool nsai_tune_unfused(const tune_task *task, nsai_decisions *out,
                       measured_candidate *taken[NSAI_STAGE_COUNT]);

/* One contender with the heuristic's choices around it. */
void nsai_tune_around(const tune_task *task, const measured_candidate *one, nsai_decisions *out);

/* fault.c */

/* After NSA_E_CUDA: whether the device still works, so that only what ran is at fault. */
bool nsai_tune_survived(const tuner *t);

/* Returns the status of an attempt to make tensors, by the thread's last error; sets t->no_room where the
 * device works and has no room. The task is left out then, and the next one begins. */
nsa_status nsai_tune_room(tuner *t, nsa_status status);

/* The contender is out, as refused with the first line of `why`; told. */
void nsai_tune_refuse(tuner *t, tune_task *task, measured_candidate *c, const char *why);

/* After NSA_E_CUDA that the device did not survive, with the thread's error as the reason: names
 * those that ran, by contest, NULL where there is no suspect; those that are not the first of their
 * contest are refused, so that the next process does not run them again. Returns NSA_E_CUDA. */
nsa_status nsai_tune_lost(tuner *t, tune_task *task,
                          measured_candidate *const suspects[NSAI_STAGE_COUNT]);

/* verify.c */

/* Runs every contender alive on a short case inside red zones and compares all it writes with the
 * reference; those wrong are out, and those that the device refuses to run. NSA_E_VERIFY: the
 * heuristic's own choice is wrong. NSA_E_CUDA: it does not run, or the context is lost. */
nsa_status nsai_tune_verify(tuner *t, tune_task *task);
void nsai_tune_passed_free(tuner *t);

/* A case of the problem: one sequence of `tokens`. */
void nsai_tune_case(const nsai_problem *problem, int64_t tokens, nsai_verify_fill fill,
                    nsai_verify_case *c);

/* A plan with its caps. */
nsa_status nsai_tune_plan(tuner *t, const nsai_problem *problem, const nsai_decisions *decisions,
                          nsai_trial_plan *out);

/* run.c */

/* Makes the tensors of a task unless they are there. */
nsa_status nsai_tune_data(tuner *t, const tune_task *task);
void nsai_tune_data_free(tuner *t);

/* Milliseconds of every stage in one run, and of one whole run. */
nsa_status nsai_tune_run_stages(tuner *t, const nsai_trial_plan *plan, double ms[NSAI_STAGE_COUNT]);
nsa_status nsai_tune_run_whole_call(tuner *t, const nsai_trial_plan *plan, double *ms);

/* Makes the workspace of timed runs at least so large. */
nsa_status nsai_tune_workspace(tuner *t, uint64_t bytes);

/* cache_inputs.c */

/* nsai_tune_data for a problem over a cache. */
nsa_status nsai_tune_kv_data(tuner *t, const tune_task *task);

/* Milliseconds of one decode step: steps over all copies of the caches stand in one graph. */
nsa_status nsai_tune_kv_step(tuner *t, const nsai_trial_plan *plan, double *ms);

/* Enqueues a prefill of the last tokens of the cache's sequence. */
nsa_status nsai_tune_kv_prefill(tuner *t, const nsai_trial_plan *plan,
                                const nsai_stage_callbacks *callbacks);

/* What candidates for a problem over a cache are judged by; `out->problem` is that of its plans. */
void nsai_tune_kv_case(const nsai_problem *problem, nsai_verify_cache_case *out);

/* time.c */

/* Median of up to TUNE_MAX_ROUNDS, and half the distance of the quartiles relative to it. */
void nsai_tune_summarise(const double *samples, int count, double *median, double *spread);

/* NULL: there is none yet. */
const measured_candidate *nsai_tune_winner(const candidates *c);

/* Copies the contenders' timings into the record, and saves that. */
nsa_status nsai_tune_keep(tuner *t, tune_task *task);

/* Times the contenders alive in interleaved rounds, drops the slow ones, confirms the best, and
 * marks each stage's winner. */
nsa_status nsai_tune_time(tuner *t, tune_task *task);

/* whole_call.c */

/* Times the whole with the winners, with the heuristic's choices, and the baselines. */
nsa_status nsai_tune_whole_call(tuner *t, tune_task *task);

/* fused_time.c */

/* Weighs all contenders, by what has been measured of them and of the stages they cover. */
void nsai_tune_fused_times(tune_task *task);

#endif /* NSAI_TUNE_INTERNAL_H */
