/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Ranks as processes, one a GPU, with NCCL. This process opens no driver: CUDA does not survive a
 * fork. Rank r has GPU `device` + r. Each process has a one-rank run of its own, and rank 0
 * reports.
 */
#include "base/duration.h"
#include "check.h"
#include "ranks/fork.h"
#include "ranks/merge.h"
#include "ranks/runners.h"
#include "ranks/serve.h"

/* What a process does, and what it shares. `outcomes` lies in the shared memory behind the shared.
 */
typedef struct task {
  const chk_runner *runner;
  const chk_ranks_problem *problems;
  int64_t count;
  const chk_fault *fault; /* NULL: checks */
  chk_shared *shared;
} task;

/* One problem over a cache on one rank. */
static void run_cache(const task *t, int32_t rank, chk_plans *plans, const chk_ranks_problem *p) {
  chk_serve_record record = { 0 };
  nsai_verify_result *result = &t->shared->result[rank];
  nsa_ctx *ctx = NULL;
  *result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  chk_rank r = { .rank = rank,
                 .options = &t->runner->rank,
                 .p = p,
                 .shared = t->shared,
                 .plans = plans,
                 .device = chk_plans_device(plans),
                 .record = &record,
                 .result = result };
  nsa_comm_options options = NSA_COMM_OPTIONS_INIT;
  options.timeout_ms = t->fault ? t->fault->timeout_ms : t->runner->rank.timeout_ms;
  options.peer_bytes = t->runner->rank.peer_bytes;
  nsa_status status = chk_serve_record_create(plans, r.device, p, &record, result);
  const bool made = !status && result->outcome == NSAI_VERIFY_PASSED;
  if (made) status = chk_serve_context(plans, p, &ctx);
  const nsa_status joined =
      chk_rank_nccl(t->shared, rank, made ? status : NSA_E_RANKS, ctx, &options, &r.comm);
  if (made) status = joined;
  if (status)
    chk_conclude(status, true, result);
  else if (made && t->fault)
    chk_serve_fault(&r, t->fault);
  else if (made)
    chk_serve_check(&r);
  nsa_comm_destroy(r.comm);
  if (t->fault && made && !status) chk_serve_context_lives(plans, r.device, p, &record, result);
  if (!t->fault && chk_shared_meet(t->shared, rank) && !rank && made &&
      result->outcome == NSAI_VERIFY_PASSED)
    chk_serve_compare_ranks(t->shared, &record, result);
  chk_serve_record_destroy(&record);
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
  if (!status && !t->fault && chk_partials_matter(p)) status = chk_partials_measure(&whole, p);
  nsa_comm_options options =
      chk_ranks_comm_options(p, t->fault ? t->fault->timeout_ms : t->runner->rank.timeout_ms);
  options.peer_bytes = t->runner->rank.peer_bytes;
  options.overlap_sms = t->runner->rank.overlap_sms;
  options.copy_bytes = t->runner->rank.copy_bytes;
  status = chk_rank_nccl(t->shared, rank, status, whole.trial.plan.ctx, &options, &r.comm);
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
static void live(void *user, int32_t rank) {
  const task *t = user;
  chk_plans *plans = NULL;
  chk_shared *shared = t->shared;
  if (!chk_fork_plans(shared, rank, &t->runner->plans, &plans)) goto done;
  for (int64_t i = 0; i < t->count; i++) {
    const double start = nsai_seconds();
    if (t->problems[i].is_cache)
      run_cache(t, rank, plans, &t->problems[i]);
    else
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

static nsa_status run_processes(task *t, double seconds) {
  const bool kills = t->fault && t->fault->kind == CHK_FAULT_KILL;
  return chk_fork_ranks(t->shared, live, t, kills ? t->fault->bad : -1, seconds);
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
  if (!status) chk_fault_merge(t.shared, p, fault, result);
  result->seconds = nsai_seconds() - start;
  chk_shared_destroy(t.shared);
  return status;
}
