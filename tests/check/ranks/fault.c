/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks/fault.h"

#include "base/duration.h"
#include "check.h"
#include "ranks/gather.h"
#include "ranks/merge.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *const chk_fault_names[] = { "none", "kill", "stall", "mismatch", NULL };

void chk_fault_print(const chk_fault *fault, const chk_ranks_problem *p, char *text, size_t size) {
  char hosts[24] = "";
  const char *in = fault->in_agree ? "agree" : "run";
  if (fault->kind == CHK_FAULT_MISMATCH) in = fault->in_agree ? "plan" : "shard";
  if (p->is_cache) in = fault->in_agree ? "prefill" : "decode";
  if (p->hosts) snprintf(hosts, sizeof hosts, ":hosts=%d", p->hosts);
  snprintf(text, size, "ranks=%d%s%s:fault=%s:in=%s:bad=%d", p->ranks, hosts,
           p->is_cache ? ":cache" : "", chk_fault_names[fault->kind], in, fault->bad);
}

bool chk_fault_kills(const chk_rank *r, const chk_fault *fault) {
  if (r->rank != fault->bad || fault->kind != CHK_FAULT_KILL) return false;
  if (fault->is_process) kill(getpid(), SIGKILL);
  return true;
}

void chk_fault_stall(const chk_rank *r, const chk_fault *fault) {
  const struct timespec nap = { 0, 1000000 };
  if (r->rank != fault->bad || fault->kind != CHK_FAULT_STALL) return;
  const double start = nsai_seconds();
  while (atomic_load(&r->shared->released) < r->shared->size - 1 &&
         nsai_seconds() - start < CHK_SHARED_PATIENCE)
    nanosleep(&nap, NULL);
}

/* Whether a text names a rank: "rank 1", or as one of "ranks 0, 1". */
static bool names_rank(const char *text, int32_t rank) {
  for (const char *at = text; (at = strstr(at, "rank")) != NULL;) {
    at += strlen("rank");
    at += *at == 's';
    while (*at == ' ') {
      char *end;
      const long number = strtol(at + 1, &end, 10);
      if (end == at + 1) break;
      if (number == rank) return true;
      at = end + (*end == ',');
      if (*end != ',') break;
    }
  }
  return false;
}

/* Lengths that differ end the communicator, so that a rank may hear of another's end before it has compared
 * them itself: not every rank names them, but one does (chk_fault_merge). */
static bool differs_in_lengths(const chk_ranks_problem *p, const chk_fault *fault) {
  return p->is_cache && fault->kind == CHK_FAULT_MISMATCH;
}

/* NCCL does not say which peer it lost, and where it connects ranks it waits for all others at
 * once: over it only a disagreement names ranks for certain. */
static bool must_name(const chk_rank *r, const chk_fault *fault) {
  if (differs_in_lengths(r->p, fault)) return strstr(nsa_last_error(), "batch.kv_len") != NULL;
  return !fault->is_process || fault->kind == CHK_FAULT_MISMATCH;
}

void chk_fault_demand(chk_rank *r, const chk_fault *fault, const char *call, nsa_status status,
                      double seconds, double most) {
  if (status != NSA_E_RANKS)
    nsai_verify_fail(r->result, "rank %d: %s returned %s after %.2f s%s%s", r->rank, call,
                     nsa_status_name(status), seconds, status ? ": " : "",
                     status ? nsa_last_error() : "");
  else if (seconds > most)
    nsai_verify_fail(r->result, "rank %d: %s returned after %.2f s, not within %.2f s", r->rank,
                     call, seconds, most);
  else if (must_name(r, fault) && !names_rank(nsa_last_error(), fault->bad))
    nsai_verify_fail(r->result, "rank %d: %s does not name rank %d: %s", r->rank, call, fault->bad,
                     nsa_last_error());
  else if (must_name(r, fault))
    atomic_fetch_add(&r->shared->named, 1);
}

bool chk_fault_demand_first(chk_rank *r, const chk_fault *fault, const char *call,
                            nsa_status status, double seconds) {
  if (status == NSA_OK && fault->sent && r->rank == fault->bad) return true;
  chk_fault_demand(r, fault, call, status, seconds, chk_fault_next_seconds(fault, true));
  return false;
}

double chk_fault_next_seconds(const chk_fault *fault, bool succeeded) {
  return succeeded ? fault->timeout_ms / 1e3 + CHK_FAULT_GRACE : CHK_FAULT_GRACE;
}

bool chk_fault_leaves(chk_rank *r, const chk_fault *fault, const char *call, nsa_status status) {
  if (fault->kind != CHK_FAULT_LEAVE || r->rank == fault->bad) return false;
  if (status)
    nsai_verify_fail(r->result, "rank %d: %s returned %s before any rank left", r->rank, call,
                     nsa_status_name(status));
  return true;
}

void chk_fault_merge(const chk_shared *shared, const chk_ranks_problem *p, const chk_fault *fault,
                     nsai_verify_result *result) {
  for (int32_t k = 0; k < shared->size; k++) chk_merge(&shared->result[k], result);
  if (result->outcome == NSAI_VERIFY_PASSED && differs_in_lengths(p, fault) && !shared->named)
    nsai_verify_fail(result, "no rank names batch.kv_len");
}

/* What all ranks do when one fails: with peer memory gathers, because a forward has none. */
static nsa_status execute(chk_rank *r) {
  return r->options->peer_bytes ? chk_gather_run(r) : chk_rank_execute(r);
}

/* A dead communicator stays dead, and says so at once. Of a rank whose run succeeded the next one ends it: one
 * that only enqueues it would leave a run in flight that nothing ends. */
static void demand_dead(chk_rank *r, const chk_fault *fault, bool succeeded) {
  const double start = nsai_seconds();
  const nsa_status status = succeeded ? execute(r) : chk_rank_enqueue(r);
  chk_fault_demand(r, fault, "the run after it", status, nsai_seconds() - start,
                   chk_fault_next_seconds(fault, succeeded));
  chk_fault_demand(r, fault, "nsa_comm_check", nsa_comm_check(r->comm), 0, CHK_FAULT_GRACE);
}

/* What was not agreed upon does not run. */
static void demand_refusal(chk_rank *r) {
  const nsa_status status = chk_rank_enqueue(r);
  if (status != NSA_E_ARG && status != NSA_E_RANKS)
    nsai_verify_fail(r->result, "rank %d: the run after a failed nsa_comm_agree returned %s",
                     r->rank, nsa_status_name(status));
}

static nsa_status meet_others(chk_rank *r) {
  if (chk_shared_meet(r->shared, r->rank)) return NSA_OK;
  return nsai_fail(NSA_E_INTERNAL, "a rank did not come");
}

static nsa_status agree(chk_rank *r) {
  const nsa_plan *plan = r->plan.plan;
  return nsa_comm_agree(r->comm, &plan, 1, r->shard, 0);
}

/* Gives the bad rank another plan, or another shard. */
static nsa_status disagree(chk_rank *r, const chk_fault *fault) {
  if (r->rank != fault->bad) return NSA_OK;
  chk_ranks_problem other = *r->p;
  if (!fault->in_agree) {
    nsa_shard_destroy(r->shard);
    r->shard = NULL;
    other.layout = NSA_SHARD_CONTIGUOUS;
    return chk_ranks_shard(&other, r->plan.ctx, &r->shard);
  }
  other.c.slack++;
  NSAI_TRY(chk_rank_plan(r->plans, &other, r->shard, &r->plan));
  return nsai_verify_tensors_workspace_anew(&r->data, r->plan.caps.workspace_bytes);
}

/* A disagreement leaves the communicator alive: with the right plan and shard on all ranks they
 * run. The refusal of every rank comes before, or a rank would wait in vain. */
static nsa_status agree_anew(chk_rank *r) {
  NSAI_TRY(meet_others(r));
  nsa_shard_destroy(r->shard);
  r->shard = NULL;
  NSAI_TRY(chk_ranks_shard(r->p, r->plan.ctx, &r->shard));
  NSAI_TRY(chk_rank_plan(r->plans, r->p, r->shard, &r->plan));
  NSAI_TRY(meet_others(r));
  NSAI_TRY(agree(r));
  NSAI_TRY(chk_rank_execute(r));
  chk_rank_compare(r);
  return NSA_OK;
}

/* The fault in a run. */
static void fail_run(chk_rank *r, const chk_fault *fault) {
  const double start = nsai_seconds();
  const nsa_status status = execute(r);
  const double seconds = nsai_seconds() - start;
  if (chk_fault_leaves(r, fault, "the run", status)) return;
  const bool succeeded = chk_fault_demand_first(r, fault, "the run", status, seconds);
  if (succeeded && !r->options->peer_bytes) { /* else the gathers have been compared */
    chk_rank_damage(r, 1);
    chk_rank_compare(r);
  }
  demand_dead(r, fault, succeeded);
}

/* The fault in nsa_comm_agree. A late rank cannot succeed: the others have sent their message of the first round,
 * and none of the second. */
static nsa_status fail_agree(chk_rank *r, const chk_fault *fault) {
  const double start = nsai_seconds();
  const nsa_status status = agree(r);
  chk_fault_demand(r, fault, "nsa_comm_agree", status, nsai_seconds() - start,
                   fault->timeout_ms / 1e3 + CHK_FAULT_GRACE);
  if (fault->kind != CHK_FAULT_MISMATCH) {
    demand_dead(r, fault, false);
    return NSA_OK;
  }
  demand_refusal(r);
  return agree_anew(r);
}

static nsa_status check(chk_rank *r, const chk_fault *fault) {
  NSAI_TRY(chk_rank_prepare(r));
  const bool mismatch = fault->kind == CHK_FAULT_MISMATCH, early = fault->in_agree || mismatch;
  if (mismatch) NSAI_TRY(disagree(r, fault));
  /* A timeout begins at the first call of a rank: plans and tensors take the others longer. */
  NSAI_TRY(meet_others(r));
  if (!early) {
    NSAI_TRY(agree(r));
    if (chk_rank_misses_copies(r)) {
      atomic_fetch_add(&r->shared->released, 1);
      return NSA_OK;
    }
    NSAI_TRY(chk_rank_execute(r));
    chk_rank_compare(r);
    NSAI_TRY(chk_gather_check(r));
  }
  NSAI_TRY(meet_others(r));
  if (chk_fault_kills(r, fault)) return NSA_OK;
  chk_fault_stall(r, fault);
  if (early)
    NSAI_TRY(fail_agree(r, fault));
  else
    fail_run(r, fault);
  atomic_fetch_add(&r->shared->released, 1);
  return NSA_OK;
}

void chk_fault_check(chk_rank *r, const chk_fault *fault) {
  *r->result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  nsa_status status = nsai_verify_device_enter(r->device);
  if (!status) status = check(r, fault);
  if (status) atomic_fetch_add(&r->shared->released, 1);
  chk_conclude(status, false, r->result);
}

void chk_fault_context_lives(chk_whole *whole, nsai_verify_result *result) {
  const nsai_verify_buffer *o = &whole->trial.data.buffer[NSAI_VERIFY_O];
  const size_t bytes = o->bytes + 2 * (size_t)NSAI_VERIFY_GUARD;
  uint8_t *before = malloc(bytes);
  if (!before || !o->image) {
    nsai_verify_fail(result, "no memory for o");
    free(before);
    return;
  }
  memcpy(before, o->image, bytes);
  nsa_status status = nsai_trial_run_execute(&whole->trial);
  chk_conclude(status, false, result);
  if (!status && memcmp(before, o->image, bytes) != 0)
    nsai_verify_fail(result, "after the fault a run in the same context gives another o");
  free(before);
}
