/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the tuner's files share:
 *
 * - api.c: nsa_tune
 * - tune.c: problems, budget, records
 * - candidates.c: candidates and their kernels
 * - combinations.c: which candidates run together
 * - verify.c: comparison with the reference
 * - run.c: one timed run
 * - cache_inputs.c: runs over KV caches
 * - time.c: rounds of timed runs, winners
 * - fused_time.c: comparison of fused with unfused candidates
 * - whole_call.c: the time of the complete call
 * - fault.c: failures of the device
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

#include "base/duration.h"

#include <nsa/tune.h>

#define TUNE_MAX_ROUNDS 32
#define TUNE_FINAL_ROUNDS 5 /* rounds of the best candidates and the heuristic's choice */
#define TUNE_LEAST_ROUNDS 3 /* a winner needs at least so many rounds */
/* A winner must be ahead by this many spreads: spreads of the per-round ratios, or of both
 * times. */
#define TUNE_NOISE 1.5
#define TUNE_MAX_EVENTS 512 /* two for each launch of each stage of one run */

/* A candidate and what has been measured of it. */
typedef struct measured_candidate {
  nsai_candidate what;
  nsai_timing timing; /* the part that goes into the record */
  bool alive;         /* takes part in the next rounds */
  int32_t rounds;
  double samples[TUNE_MAX_ROUNDS]; /* milliseconds */
  /* of a finalist: its time in the rounds before the final, in ms */
  double before_ms;
  nsai_fused_time fused_time; /* the time it is compared by, see nsai_tune_fused_times */
} measured_candidate;

/* The candidates of one stage. The first is the heuristic's choice, or its replacement where
 * that does not compile. */
typedef struct candidates {
  nsai_stage stage;
  measured_candidate *item;
  int count;
  /* index of the heuristic's choice (or its replacement) among those that fuse no other stage;
   * -1: there is none */
  int unfused;
} candidates;

/* One problem at one length with one kind of inputs. It becomes one record. */
typedef struct tune_task {
  nsai_problem problem; /* one sequence of `tokens`; in a decode step max_seqs of them */
  int64_t tokens;
  nsai_verify_fill fill;
  char key[384];
  nsai_record *record;
  bool replaces; /* the first save discards the old contents of the record */
  bool done;     /* an earlier call completed this level or a higher one */
  candidates candidates[NSAI_STAGE_COUNT];
  int stage_count;
} tune_task;

typedef struct tuner {
  nsa_ctx *ctx;
  const nsa_tune_options *options;
  int32_t level;   /* NSAI_LEVEL_* */
  double deadline; /* by the clock of nsai_seconds(): nothing is begun after it */
  nsai_verify_device device;
  bool pushed;          /* the CUDA context is current */
  int32_t capture_mode; /* the thread's previous mode after the exchange */
  void *flush;          /* device buffer that is written to flush the L2 */
  nsai_sensors *sensors;
  nsai_cu_event events[TUNE_MAX_EVENTS];
  int event_count;
  int64_t done, total; /* units of work, for the progress callback */
  nsai_stage at;       /* the stage whose launches a timed run is making; NSAI_STAGE_COUNT: none */
  /* the tensors at hand, kept between tasks of one length */
  nsai_verify_case c;
  nsai_trial_run trial;
  bool has_data;
  nsai_verify_overlap overlap; /* how much the selections of neighbouring tokens overlap */
  nsai_verify_cache kv;        /* the same for problems over a cache */
  nsai_model kv_model;         /* the model that the caches were made for */
  int32_t kv_op;
  bool has_kv;
  /* the device has no memory for the task's tensors or workspace: distinguishes this from other
   * NSA_E_CUDA */
  bool no_room;
  /* Candidates that passed verification so far, with the length they were verified at. */
  char **passed;
  int passed_count;
  /* Baselines of the current length. */
  bool no_baselines; /* do not time baselines: tuning at first use */
  int64_t base_tokens;
  nsai_baseline base[2];
  int base_count;
} tuner;

/* A problem as the host gave it. */
typedef struct nsai_tune_asked {
  nsai_problem problem;
  bool any_overlap; /* the host left problem.overlap 0 */
} nsai_tune_asked;

/* tune.c */

/* A context runs one call of the tuner at a time: NSA_E_ARG while another thread's is running. */
nsa_status nsai_tune_begin(nsa_ctx *ctx);
void nsai_tune_end(nsa_ctx *ctx);

/* Tunes problems that can be tuned at all lengths of the configuration, or at `only` tokens where
 * that is not 0, up to a level of nsai_level within `budget` seconds. Between begin and end. */
nsa_status nsai_tune_problems(nsa_ctx *ctx, const nsa_tune_options *options, int32_t level,
                              double budget, const nsai_tune_asked *problems, size_t count,
                              int64_t only);

/* Reports progress; `step` also counts one unit of work as done. NSA_E_CANCELLED when the
 * callback asks for it. */
nsa_status nsai_tune_step(tuner *t, const char *what);
nsa_status nsai_tune_poll(tuner *t, const char *what);
bool nsai_tune_spent(const tuner *t);
void nsai_tune_emit(const tuner *t, int32_t kind, const tune_task *task,
                    const measured_candidate *c, const char *note);

/* candidates.c */

/* Fills the task's lists of candidates by the tuner's level and takes over timings from the
 * record. NSA_E_NOMEM, NSA_E_UNSUPPORTED. */
nsa_status nsai_tune_candidates(tuner *t, tune_task *task);
void nsai_tune_candidates_free(tune_task *task);

/* Compiles the missing kernels of all candidates, several at once, and drops those that the
 * compiler refuses. NSA_E_COMPILE: it refuses all candidates of a stage. */
nsa_status nsai_tune_compile(tuner *t, tune_task *task);

/* combinations.c */

/* The decisions of one combination: for every stage the next live candidate, or the first one
 * when none is left; nothing for a stage that is fused. `taken` gets the candidate of each
 * stage, NULL where it is a substitute or there is none. Combination 0 has the first candidate
 * of each stage. */
void nsai_tune_combination(const tune_task *task, int combination, nsai_decisions *out,
                           measured_candidate *taken[NSAI_STAGE_COUNT]);

/* Number of combinations needed for every live candidate to run once. */
int nsai_tune_combinations(const tune_task *task);

/* The same for the heuristic's choices among candidates that fuse no other stage. Returns false
 * when combination 0 has them already. */
bool nsai_tune_unfused(const tune_task *task, nsai_decisions *out,
                       measured_candidate *taken[NSAI_STAGE_COUNT]);

/* One candidate, with the heuristic's choices for the other stages. */
void nsai_tune_around(const tune_task *task, const measured_candidate *one, nsai_decisions *out);

/* fault.c */

/* After NSA_E_CUDA: whether the device still works, so that only the kernels that ran are at
 * fault. */
bool nsai_tune_survived(const tuner *t);

/* Converts the status of an attempt to allocate tensors, using the thread's last error. Sets
 * t->no_room when the device works but has no memory: then this task is skipped and the next one
 * begins. */
nsa_status nsai_tune_room(tuner *t, nsa_status status);

/* Drops a candidate, records the first line of `why` as the reason and reports it. */
void nsai_tune_refuse(tuner *t, tune_task *task, measured_candidate *c, const char *why);

/* After an NSA_E_CUDA that leaves the context unusable; the reason is the thread's error.
 * `taken` names the candidates that ran, by stage, NULL where there is no suspect. Those that
 * are not the first of their stage are marked as refused, so that the next process does not run
 * them again. Returns NSA_E_CUDA. */
nsa_status nsai_tune_lost(tuner *t, tune_task *task,
                          measured_candidate *const suspects[NSAI_STAGE_COUNT]);

/* verify.c */

/* Runs every live candidate on a short case whose outputs lie between guard bands, and compares
 * all that it writes with the reference. Drops candidates that are wrong and those that the
 * device refuses to run. NSA_E_VERIFY: the heuristic's own choice is wrong. NSA_E_CUDA: it does
 * not run, or the context is lost. */
nsa_status nsai_tune_verify(tuner *t, tune_task *task);
void nsai_tune_passed_free(tuner *t);

/* A case of the problem with one sequence of `tokens`. */
void nsai_tune_case(const nsai_problem *problem, int64_t tokens, nsai_verify_fill fill,
                    nsai_verify_case *c);

/* Makes a plan and reads its capacities (nsa_caps). */
nsa_status nsai_tune_plan(tuner *t, const nsai_problem *problem, const nsai_decisions *decisions,
                          nsai_trial_plan *out);

/* run.c */

/* Makes the tensors of a task unless they exist already. */
nsa_status nsai_tune_data(tuner *t, const tune_task *task);
void nsai_tune_data_free(tuner *t);

/* Times one run: milliseconds of every stage, and milliseconds of the whole run. */
nsa_status nsai_tune_run_stages(tuner *t, const nsai_trial_plan *plan, double ms[NSAI_STAGE_COUNT]);
nsa_status nsai_tune_run_whole_call(tuner *t, const nsai_trial_plan *plan, double *ms);

/* Makes the workspace of timed runs at least this large. */
nsa_status nsai_tune_workspace(tuner *t, uint64_t bytes);

/* cache_inputs.c */

/* nsai_tune_data for a problem over a cache. */
nsa_status nsai_tune_kv_data(tuner *t, const tune_task *task);

/* Milliseconds of one decode step. One graph holds a step for each copy of the caches. */
nsa_status nsai_tune_kv_step(tuner *t, const nsai_trial_plan *plan, double *ms);

/* Enqueues a prefill of the last tokens of the cache's sequence. */
nsa_status nsai_tune_kv_prefill(tuner *t, const nsai_trial_plan *plan,
                                const nsai_stage_callbacks *callbacks);

/* The case that verifies candidates for a problem over a cache. `out->problem` is the problem of
 * its plans. */
void nsai_tune_kv_case(const nsai_problem *problem, nsai_verify_cache_case *out);

/* time.c */

/* Median of up to TUNE_MAX_ROUNDS samples, and half the interquartile range relative to it. */
void nsai_tune_summarise(const double *samples, int count, double *median, double *spread);

/* NULL: there is no winner yet. */
const measured_candidate *nsai_tune_winner(const candidates *c);

/* Copies the candidates' timings into the record and saves it. */
nsa_status nsai_tune_keep(tuner *t, tune_task *task);

/* Times the live candidates in interleaved rounds, drops the slow ones, runs a final among the
 * best, and marks each stage's winner. */
nsa_status nsai_tune_time(tuner *t, tune_task *task);

/* whole_call.c */

/* Times the complete call with the winners and with the heuristic's choices, and the baselines. */
nsa_status nsai_tune_whole_call(tuner *t, tune_task *task);

/* fused_time.c */

/* Computes the fused times of all candidates, from their own times and those of the stages they
 * fuse. */
void nsai_tune_fused_times(tune_task *task);

#endif /* NSAI_TUNE_INTERNAL_H */
