/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Ranks as threads of this process, with one context and the loopback communicator. On a GPU each
 * has a stream.
 */
#include "base/duration.h"
#include "check.h"
#include "ranks/merge.h"
#include "ranks/runners.h"
#include "ranks/serve.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct thread {
  pthread_t id;
  bool started;
  nsai_verify_device device;
  chk_rank rank;
  const chk_fault *fault; /* NULL: the whole check */
} thread;

static void *work(void *argument) {
  thread *t = argument;
  if (t->fault && t->rank.p->is_cache)
    chk_serve_fault(&t->rank, t->fault);
  else if (t->fault)
    chk_fault_check(&t->rank, t->fault);
  else if (t->rank.p->is_cache)
    chk_serve_check(&t->rank);
  else
    chk_rank_check(&t->rank);
  return NULL;
}

/* The threads of one problem; the comms exist. `like`: has what one rank alone computed. A thread
 * that cannot be started is a failure that the others notice by their timeout. */
static nsa_status run_all(const chk_runner *runner, chk_plans *plans, const chk_ranks_problem *p,
                          const chk_fault *fault, const chk_rank *like, nsa_comm **comms,
                          chk_shared *shared) {
  nsa_status status = NSA_OK;
  thread *threads = calloc((size_t)p->ranks, sizeof *threads);
  if (!threads) return nsai_fail_nomem("the ranks' threads", sizeof *threads);
  for (int32_t i = 0; i < p->ranks; i++) {
    thread *t = &threads[i];
    NSAI_TRY_TO(done, nsai_verify_device_open(runner->plans.device, &t->device));
    t->fault = fault;
    t->rank = (chk_rank){ .rank = i,
                          .options = &runner->rank,
                          .p = p,
                          .shared = shared,
                          .plans = plans,
                          .device = &t->device,
                          .comm = comms[i],
                          .whole = like->whole,
                          .record = like->record,
                          .result = &shared->result[i] };
  }
  for (int32_t i = 0; i < p->ranks; i++) {
    threads[i].started = !pthread_create(&threads[i].id, NULL, work, &threads[i]);
    if (!threads[i].started) nsai_verify_fail(&shared->result[i], "rank %d: no thread", i);
  }
done:
  for (int32_t i = 0; i < p->ranks; i++)
    if (threads[i].started) pthread_join(threads[i].id, NULL);
  /* The communicators hold events of streams, and go before these. */
  for (int32_t i = 0; i < p->ranks; i++) nsa_comm_destroy(comms[i]);
  for (int32_t i = 0; i < p->ranks; i++) {
    chk_rank_release(&threads[i].rank);
    nsai_verify_device_close(&threads[i].device);
  }
  free(threads);
  return status;
}

/* A problem over a cache. */
static nsa_status run_cache(const chk_runner *runner, chk_plans *plans, const chk_ranks_problem *p,
                            const chk_fault *fault, nsai_verify_result *result) {
  nsa_comm *comms[NSA_MAX_RANKS] = { 0 };
  nsa_comm_options options = NSA_COMM_OPTIONS_INIT;
  chk_shared *shared = NULL;
  chk_serve_record record = { 0 };
  const chk_rank like = { .record = &record };
  nsa_ctx *ctx = NULL;
  options.timeout_ms = fault ? fault->timeout_ms : runner->rank.timeout_ms;
  options.peer_bytes = runner->rank.peer_bytes;
  nsa_status status = chk_shared_create(p->ranks, &shared);
  if (!status) status = nsai_verify_device_enter(chk_plans_device(plans));
  if (!status) status = chk_serve_record_create(plans, chk_plans_device(plans), p, &record, result);
  const bool made = !status && result->outcome == NSAI_VERIFY_PASSED;
  if (made) status = chk_serve_context(plans, p, &ctx);
  if (made && !status) status = nsa_comm_loopback(ctx, p->ranks, &options, comms);
  if (made && !status) status = run_all(runner, plans, p, fault, &like, comms, shared);
  if (made && !status && fault)
    chk_fault_merge(shared, p, fault, result);
  else
    for (int32_t i = 0; made && !status && i < p->ranks; i++) chk_merge(&shared->result[i], result);
  if (made && !status && fault)
    chk_serve_context_lives(plans, chk_plans_device(plans), p, &record, result);
  else if (made && !status && result->outcome == NSAI_VERIFY_PASSED)
    chk_serve_compare_ranks(shared, &record, result);
  chk_serve_record_destroy(&record);
  chk_shared_destroy(shared);
  return status;
}

static nsa_status run_one(const chk_runner *runner, chk_plans *plans, const chk_ranks_problem *p,
                          const chk_fault *fault, nsai_verify_result *result) {
  nsa_comm *comms[NSA_MAX_RANKS] = { 0 };
  nsa_comm_options options =
      chk_ranks_comm_options(p, fault ? fault->timeout_ms : runner->rank.timeout_ms);
  options.peer_bytes = runner->rank.peer_bytes;
  options.overlap_sms = runner->rank.overlap_sms;
  options.copy_bytes = runner->rank.copy_bytes;
  chk_shared *shared = NULL;
  chk_whole whole = { 0 };
  const chk_rank like = { .whole = &whole };
  if (p->is_cache) return run_cache(runner, plans, p, fault, result);
  nsa_status status = chk_shared_create(p->ranks, &shared);
  if (!status) status = nsai_verify_device_enter(chk_plans_device(plans));
  if (!status) status = chk_whole_create(plans, p, &whole);
  if (!status && !fault && chk_partials_matter(p) &&
      (chk_plans_device(plans)->driver || runner->rank.as_gpu))
    status = chk_partials_measure(&whole, p);
  if (!status) status = nsa_comm_loopback(whole.trial.plan.ctx, p->ranks, &options, comms);
  if (!status) status = run_all(runner, plans, p, fault, &like, comms, shared);
  if (!status) {
    for (int32_t i = 0; i < p->ranks; i++) chk_merge(&shared->result[i], result);
    if (fault)
      chk_fault_context_lives(&whole, result);
    else if (result->outcome == NSAI_VERIFY_PASSED)
      chk_rank_compare_sums(shared, p, &whole, result);
  }
  chk_whole_destroy(&whole);
  chk_shared_destroy(shared);
  return status;
}

nsa_status chk_run_threads(const chk_runner *runner, const chk_ranks_problem *problems,
                           int64_t count, long long outcomes[3]) {
  chk_plans *plans;
  NSAI_TRY(chk_plans_create(&runner->plans, &plans));
  for (int64_t i = 0; i < count; i++) {
    char text[CHK_RANKS_TEXT];
    nsai_verify_result result = { .outcome = NSAI_VERIFY_PASSED };
    const double start = nsai_seconds();
    nsa_status status = run_one(runner, plans, &problems[i], NULL, &result);
    chk_conclude(status, runner->plans.overrides != NULL, &result);
    result.seconds = nsai_seconds() - start;
    chk_ranks_print(&problems[i], text, sizeof text);
    runner->report(runner->user, i, text, &result);
    outcomes[result.outcome]++;
  }
  chk_plans_destroy(plans);
  return NSA_OK;
}

nsa_status chk_fault_threads(const chk_runner *runner, const chk_ranks_problem *p,
                             const chk_fault *fault, nsai_verify_result *result) {
  chk_plans *plans;
  NSAI_TRY(chk_plans_create(&runner->plans, &plans));
  const double start = nsai_seconds();
  chk_conclude(run_one(runner, plans, p, fault, result), false, result);
  result->seconds = nsai_seconds() - start;
  chk_plans_destroy(plans);
  return NSA_OK;
}
