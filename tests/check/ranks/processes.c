/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Ranks as processes, one a GPU, with NCCL. This process opens no driver: CUDA does not survive a
 * fork. Rank r has GPU `device` + r. Each process has a one-rank run of its own, and rank 0
 * reports.
 */
#include "base/duration.h"
#include "base/math.h"
#include "check.h"
#include "ranks/merge.h"
#include "ranks/runners.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What a process does, and what it shares. `outcomes` lies in the shared memory behind the shared.
 */
typedef struct task {
  const chk_runner *runner;
  const chk_ranks_problem *problems;
  int64_t count;
  const chk_fault *fault; /* NULL: checks */
  chk_shared *shared;
} task;

/* An own NCCL communicator of a context, whose id rank 0 makes. */
static nsa_status make_comm(const task *t, int32_t rank, nsa_ctx *ctx, int32_t timeout_ms,
                            nsa_comm **comm) {
  nsa_comm_options options = NSA_COMM_OPTIONS_INIT;
  nsa_status status = NSA_OK;
  options.timeout_ms = timeout_ms;
  if (!rank) status = nsa_comm_nccl_id(ctx, t->shared->nccl_id);
  if (!chk_shared_meet(t->shared, rank)) return nsai_fail(NSA_E_INTERNAL, "a rank did not come");
  if (status) return status;
  return nsa_comm_nccl_init(ctx, t->shared->nccl_id, rank, t->shared->size, &options, comm);
}

/* One problem on one rank. */
static void run_rank(const task *t, int32_t rank, chk_plans *plans, const chk_ranks_problem *p) {
  chk_whole whole = { 0 };
  nsai_verify_result *result = &t->shared->result[rank];
  *result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  chk_rank r = { .rank = rank,
                 .options = &t->runner->rank,
                 .p = p,
                 .shared = t->shared,
                 .plans = plans,
                 .device = chk_plans_device(plans),
                 .whole = &whole,
                 .result = result };
  nsa_status status = chk_whole_create(plans, p, &whole);
  const bool whole_failed = status != NSA_OK;
  if (!whole_failed)
    status = make_comm(t, rank, whole.trial.plan.ctx,
                       t->fault ? t->fault->timeout_ms : t->runner->rank.timeout_ms, &r.comm);
  else
    (void)chk_shared_meet(t->shared, rank); /* the meeting of make_comm */
  if (status)
    chk_conclude(status, t->runner->plans.overrides != NULL, result);
  else if (t->fault)
    chk_fault_check(&r, t->fault);
  else
    chk_rank_check(&r);
  nsa_comm_destroy(r.comm);
  chk_rank_release(&r);
  if (t->fault && !status) chk_fault_context_lives(&whole, result);
  if (!t->fault && chk_shared_meet(t->shared, rank) && !rank && !status &&
      result->outcome == NSAI_VERIFY_PASSED)
    chk_rank_compare_sums(t->shared, p, &whole, result);
  chk_whole_destroy(&whole);
}

/* The life of a process. */
static void live(const task *t, int32_t rank) {
  chk_plans *plans = NULL;
  chk_plans_options options = t->runner->plans;
  chk_shared *shared = t->shared;
  options.device = (options.device < 0 ? 0 : options.device) + rank;
  shared->status[rank] = chk_plans_create(&options, &plans);
  if (shared->status[rank])
    nsai_verify_skip(&shared->result[rank], "rank %d: %s", rank, nsa_last_error());
  if (!chk_shared_meet(shared, rank)) goto done;
  for (int32_t i = 0; i < shared->size; i++)
    if (shared->status[i]) goto done; /* all see the same */
  for (int64_t i = 0; i < t->count; i++) {
    const double start = nsai_seconds();
    run_rank(t, rank, plans, &t->problems[i]);
    if (t->fault) break;
    if (!rank) {
      char text[CHK_RANKS_TEXT];
      nsai_verify_result all = { .outcome = NSAI_VERIFY_PASSED };
      for (int32_t k = 0; k < shared->size; k++) chk_merge(&shared->result[k], &all);
      all.seconds = nsai_seconds() - start;
      chk_ranks_print(&t->problems[i], text, sizeof text);
      t->runner->report(t->runner->user, i, text, &all);
      shared->outcomes[all.outcome]++;
    }
    if (!chk_shared_meet(shared, rank)) goto done;
  }
  shared->passed[rank] = true;
done:
  chk_plans_destroy(plans);
}

/* Waits for the processes, and ends those that are left when the time is over. */
static void wait_all(const task *t, pid_t *pids, double seconds) {
  const double start = nsai_seconds();
  const struct timespec nap = { 0, 5000000 };
  int32_t left = t->shared->size;
  bool ended = false;
  while (left > 0) {
    for (int32_t i = 0; i < t->shared->size; i++) {
      int state = 0;
      if (!pids[i] || waitpid(pids[i], &state, WNOHANG) != pids[i]) continue;
      pids[i] = 0;
      left--;
      if (WIFEXITED(state) && !WEXITSTATUS(state) && t->shared->passed[i]) continue;
      if (t->fault && t->fault->kind == CHK_FAULT_KILL && t->fault->bad == i) continue;
      atomic_store(&t->shared->broken, 1);
      if (t->shared->status[i]) continue;
      if (WIFSIGNALED(state) && !ended)
        nsai_verify_fail(&t->shared->result[i], "rank %d: its process ended by signal %d", i,
                         WTERMSIG(state));
    }
    if (left && !ended && nsai_seconds() - start > seconds) {
      ended = true;
      for (int32_t i = 0; i < t->shared->size; i++)
        if (pids[i]) {
          nsai_verify_fail(&t->shared->result[i], "rank %d: hung, and was ended after %.0f s", i,
                           seconds);
          kill(pids[i], SIGKILL);
        }
    }
    nanosleep(&nap, NULL);
  }
}

static nsa_status run_processes(const task *t, double seconds) {
  pid_t pids[NSA_MAX_RANKS] = { 0 };
  fflush(NULL);
  for (int32_t i = 0; i < t->shared->size; i++) {
    pids[i] = fork();
    if (pids[i] == 0) {
      live(t, i);
      fflush(NULL);
      _exit(0);
    }
    if (pids[i] < 0) {
      const int error = errno;
      for (int32_t k = 0; k < i; k++) kill(pids[k], SIGKILL);
      for (int32_t k = 0; k < i; k++) waitpid(pids[k], NULL, 0);
      return nsai_fail(NSA_E_INTERNAL, "cannot fork: %s", strerror(error));
    }
  }
  wait_all(t, pids, seconds);
  for (int32_t i = 0; i < t->shared->size; i++)
    if (t->shared->status[i])
      return nsai_fail(t->shared->status[i], "%s", t->shared->result[i].text);
  return NSA_OK;
}

#define LIST_SECONDS 3600.0
#define FAULT_SECONDS 120.0 /* CUDA's and NCCL's start, and two timeouts */

nsa_status chk_run_processes(const chk_runner *runner, const chk_ranks_problem *problems,
                             int64_t count, long long outcomes[3]) {
  for (int64_t done = 0; done < count;) {
    int64_t same = 1;
    while (done + same < count && problems[done + same].ranks == problems[done].ranks) same++;
    task t = { .runner = runner, .problems = problems + done, .count = same };
    NSAI_TRY(chk_shared_create(problems[done].ranks, &t.shared));
    nsa_status status = run_processes(&t, LIST_SECONDS);
    long long reported = 0;
    for (int i = 0; i < 3; i++)
      outcomes[i] += t.shared->outcomes[i], reported += t.shared->outcomes[i];
    if (!status && reported < same) {
      char text[CHK_RANKS_TEXT];
      nsai_verify_result all = { .outcome = NSAI_VERIFY_FAILED };
      for (int32_t k = 0; k < t.shared->size; k++) chk_merge(&t.shared->result[k], &all);
      chk_ranks_print(&t.problems[reported], text, sizeof text);
      runner->report(runner->user, done + reported, text, &all);
      outcomes[NSAI_VERIFY_FAILED]++;
    }
    chk_shared_destroy(t.shared);
    if (status) return status;
    done += same;
  }
  return NSA_OK;
}

nsa_status chk_fault_processes(const chk_runner *runner, const chk_ranks_problem *p,
                               const chk_fault *fault, nsai_verify_result *result) {
  task t = { .runner = runner, .problems = p, .count = 1, .fault = fault };
  const double start = nsai_seconds();
  NSAI_TRY(chk_shared_create(p->ranks, &t.shared));
  nsa_status status = run_processes(&t, FAULT_SECONDS + 4e-3 * fault->timeout_ms);
  for (int32_t k = 0; !status && k < t.shared->size; k++) chk_merge(&t.shared->result[k], result);
  result->seconds = nsai_seconds() - start;
  chk_shared_destroy(t.shared);
  return status;
}
