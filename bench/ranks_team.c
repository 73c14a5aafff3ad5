/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks_team.h"

#include "ranks/fork.h"
#include "ranks/rank.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#define LIST_SECONDS 3600.0

/* ---- a rank ---------------------------------------------------------------------------------- */

nsa_status bench_team_meet(chk_shared *shared, int32_t rank) {
  return chk_shared_meet_now(shared, rank) ? NSA_OK : nsai_fail(NSA_E_RANKS, CHK_SHARED_OTHER);
}

nsa_status bench_team_largest(chk_shared *shared, int32_t rank, double mine, double *out) {
  shared->partials[rank][0] = (float)mine;
  NSAI_TRY(bench_team_meet(shared, rank));
  *out = 0;
  for (int32_t i = 0; i < shared->size; i++) *out = fmax(*out, (double)shared->partials[i][0]);
  return bench_team_meet(shared, rank);
}

nsa_status bench_team_connect(bench_team *t, int32_t rank, nsa_ctx *ctx,
                              const nsa_comm_options *options, nsa_comm **out) {
  nsa_status status = NSA_OK;
  if (t->shared->size == 1) return NSA_OK;
  if (!t->plans) return chk_rank_nccl(t->shared, rank, NSA_OK, ctx, options, out);
  if (!rank) status = nsa_comm_loopback(ctx, t->shared->size, options, t->comms);
  if (!chk_shared_all_well(t->shared, rank, status))
    return status ? status : nsai_fail(NSA_E_RANKS, CHK_SHARED_OTHER);
  *out = t->comms[rank];
  return NSA_OK;
}

static bool is_written(FILE *file) { return !file || (!fflush(file) && !ferror(file)); }

/* Goes through the list. Rank 0 ends it when its reports are lost. */
static void live(void *user, int32_t rank) {
  bench_team *t = user;
  chk_shared *shared = t->shared;
  chk_plans *plans = t->plans;
  bool go = plans || chk_fork_plans(shared, rank, &t->options, &plans);
  for (int64_t i = 0; go && i < t->count; i++) {
    t->run(t->user, rank, plans, i);
    if (!rank && !(is_written(t->out) && is_written(t->csv)))
      chk_shared_stop(shared, 0, nsai_fail(NSA_E_IO, "cannot write: %s", strerror(errno)));
    go = chk_shared_meet(shared, rank) && !atomic_load(&shared->broken);
  }
  shared->passed[rank] = go;
  if (!t->plans) chk_plans_destroy(plans);
}

/* ---- all ranks ------------------------------------------------------------------------------- */

typedef struct thread {
  bench_team *t;
  int32_t rank;
  pthread_t id;
  bool started;
} thread;

static void *live_in_thread(void *argument) {
  thread *own = argument;
  live(own->t, own->rank);
  return NULL;
}

static nsa_status run_threads(bench_team *t) {
  thread threads[NSA_MAX_RANKS] = { { 0 } };
  NSAI_TRY(chk_plans_create(&t->options, &t->plans));
  for (int32_t i = 0; i < t->shared->size; i++) {
    threads[i].t = t;
    threads[i].rank = i;
    const int error = pthread_create(&threads[i].id, NULL, live_in_thread, &threads[i]);
    threads[i].started = !error;
    if (error)
      chk_shared_stop(t->shared, i,
                      nsai_fail(NSA_E_INTERNAL, "cannot start a thread: %s", strerror(error)));
  }
  for (int32_t i = 0; i < t->shared->size; i++)
    if (threads[i].started) pthread_join(threads[i].id, NULL);
  chk_plans_destroy(t->plans);
  t->plans = NULL;
  return chk_shared_status(t->shared);
}

/* The list over so many ranks. */
static nsa_status run_list(bench_team *t, int32_t ranks, int64_t *failed) {
  NSAI_TRY(chk_shared_create(ranks, &t->shared));
  const int32_t all_threads = t->options.threads;
  t->options.threads = all_threads > ranks ? all_threads / ranks : 1;
  nsa_status status = t->options.device == NSAI_VERIFY_DEVICE_CPU
                          ? run_threads(t)
                          : chk_fork_ranks(t->shared, live, t, -1, LIST_SECONDS);
  t->options.threads = all_threads;
  const long long *outcomes = t->shared->outcomes;
  if (!status) *failed += t->count - outcomes[NSAI_VERIFY_PASSED] - outcomes[NSAI_VERIFY_SKIPPED];
  for (int32_t i = 0; !status && i < ranks; i++)
    if (t->shared->result[i].outcome == NSAI_VERIFY_FAILED)
      fprintf(stderr, "nsa-bench: rank %d of %d: %s\n", i, ranks, t->shared->result[i].text);
  chk_shared_destroy(t->shared);
  t->shared = NULL;
  return status;
}

nsa_status bench_team_run(bench_team *t, const bool with[NSA_MAX_RANKS + 1], int64_t *failed) {
  for (int32_t ranks = 1; ranks <= NSA_MAX_RANKS; ranks++)
    if (ranks == 1 ? !t->without_one : with[ranks]) NSAI_TRY(run_list(t, ranks, failed));
  return NSA_OK;
}

/* ---- reports --------------------------------------------------------------------------------- */

bool bench_team_lacks_memory(nsa_status status) {
  return status == NSA_E_NOMEM ||
         (status == NSA_E_CUDA && nsai_last_foreign() == NSAI_CUDA_ERROR_OUT_OF_MEMORY);
}

/* How much a rank's result tells of why there is no time: a failure more than a lack of memory, unless
 * it is that another rank has failed. */
static int weight(const nsai_verify_result *result) {
  if (result->outcome == NSAI_VERIFY_SKIPPED) return 1;
  if (result->outcome != NSAI_VERIFY_FAILED) return 0;
  return strstr(result->text, CHK_SHARED_OTHER) ? 2 : 3;
}

const nsai_verify_result *bench_team_reason(const chk_shared *shared) {
  const nsai_verify_result *found = &shared->result[0];
  for (int32_t i = 1; i < shared->size; i++)
    if (weight(&shared->result[i]) > weight(found)) found = &shared->result[i];
  return weight(found) ? found : NULL;
}

double bench_team_ratio(double one, double time) { return one > 0 && time > 0 ? one / time : 0; }
