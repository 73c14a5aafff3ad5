/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_comm_create, nsa_comm_nccl, nsa_comm_nccl_id, nsa_comm_nccl_init, nsa_comm_loopback,
 * nsa_comm_agree, nsa_comm_check, nsa_comm_wait, nsa_comm_destroy.
 */
#include "api/peer_kernel.h"
#include "plan/context.h"
#include "plan/digest.h"
#include "plan/plan.h"
#include "plan/ranks_pieces.h"
#include "ranks/comm.h"
#include "ranks/shard.h"
#include "run/ranks.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A communicator needs a device that can run; one made for an architecture alone has none. */
static nsa_status find_place(nsa_ctx *ctx, nsai_comm_place *out) {
  NSAI_TRY(nsai_context_check(ctx));
  if (ctx->deviceless)
    return nsai_fail(
        NSA_E_NO_DEVICE,
        "the context was made for options.arch: it can compile, but has no device for a "
        "communicator");
  *out = (nsai_comm_place){ ctx, &ctx->logger, ctx->cpu ? NULL : &ctx->device };
  return NSA_OK;
}

static nsa_status check_comm(const nsa_comm *comm) {
  if (!comm) return nsai_fail(NSA_E_ARG, "comm is NULL: give a communicator");
  return nsai_context_check(nsai_comm_context(comm));
}

nsa_status nsa_comm_create(nsa_ctx *ctx, const nsa_comm_ops *ops, const nsa_comm_options *options,
                           nsa_comm **comm) {
  nsai_comm_place place;
  if (!comm) return nsai_fail(NSA_E_ARG, "comm is NULL: give a place for the communicator");
  *comm = NULL;
  NSAI_TRY(find_place(ctx, &place));
  NSAI_TRY(nsai_comm_create(&place, ops, options, comm));
  nsai_context_retain(ctx);
  return NSA_OK;
}

nsa_status nsa_comm_nccl(nsa_ctx *ctx, struct ncclComm *nccl, const nsa_comm_options *options,
                         nsa_comm **comm) {
  nsai_comm_place place;
  if (!comm) return nsai_fail(NSA_E_ARG, "comm is NULL: give a place for the communicator");
  *comm = NULL;
  NSAI_TRY(find_place(ctx, &place));
  NSAI_TRY(nsai_comm_nccl(&place, ctx->config->runtime.nccl_path, nccl, options, comm));
  nsai_context_retain(ctx);
  return NSA_OK;
}

nsa_status nsa_comm_nccl_id(nsa_ctx *ctx, char id[NSA_NCCL_ID_BYTES]) {
  nsai_comm_place place;
  if (!id) return nsai_fail(NSA_E_ARG, "id is NULL: give memory of NSA_NCCL_ID_BYTES");
  NSAI_TRY(find_place(ctx, &place));
  return nsai_comm_nccl_id(&place, ctx->config->runtime.nccl_path, id);
}

nsa_status nsa_comm_nccl_init(nsa_ctx *ctx, const char id[NSA_NCCL_ID_BYTES], int32_t rank,
                              int32_t size, const nsa_comm_options *options, nsa_comm **comm) {
  nsai_comm_place place;
  if (!comm) return nsai_fail(NSA_E_ARG, "comm is NULL: give a place for the communicator");
  *comm = NULL;
  if (!id) return nsai_fail(NSA_E_ARG, "id is NULL: give the bytes of nsa_comm_nccl_id");
  NSAI_TRY(find_place(ctx, &place));
  NSAI_TRY(
      nsai_comm_nccl_init(&place, ctx->config->runtime.nccl_path, id, rank, size, options, comm));
  nsai_context_retain(ctx);
  return NSA_OK;
}

nsa_status nsa_comm_loopback(nsa_ctx *ctx, int32_t size, const nsa_comm_options *options,
                             nsa_comm **comms) {
  nsai_comm_place place;
  if (!comms) return nsai_fail(NSA_E_ARG, "comms is NULL: give an array of `size`");
  if (size > 0) memset(comms, 0, (size_t)size * sizeof *comms);
  NSAI_TRY(find_place(ctx, &place));
  NSAI_TRY(nsai_comm_loopback(&place, size, options, comms));
  for (int32_t i = 0; i < size; i++) nsai_context_retain(ctx);
  return NSA_OK;
}

/* The digests of a call's plans, in one piece of memory. */
typedef struct plan_digests {
  nsai_agree_field fields[NSAI_PLAN_FIELDS];
} plan_digests;

static nsa_status check_plans(const nsa_comm *comm, const nsa_plan *const *plans, size_t count) {
  if (count > NSAI_COMM_AGREED)
    return nsai_fail(NSA_E_ARG,
                     "count is %zu: agree upon at most %d plans at once, as many as a communicator "
                     "remembers",
                     count, NSAI_COMM_AGREED);
  if (count && !plans)
    return nsai_fail(NSA_E_ARG, "plans is NULL, count is %zu: give as many plans, or 0", count);
  for (size_t i = 0; i < count; i++) {
    if (!plans[i])
      return nsai_fail(NSA_E_ARG, "plans[%zu] is NULL: give a plan of nsa_plan_create", i);
    NSAI_TRY(nsai_context_check(plans[i]->ctx));
    /* Ranks that are threads may have a context each, but their plans run on the same device. */
    if (plans[i]->ctx->device.context != nsai_comm_context(comm)->device.context)
      return nsai_fail(
          NSA_E_ARG,
          "plans[%zu] is of a context on another device than the communicator's: make both "
          "with contexts of one device",
          i);
  }
  return NSA_OK;
}

/* Whether forwards overlap as options.overlap_sms or copy_bytes asks. */
static void log_overlap(const nsa_comm *comm, const nsa_plan *const *plans, size_t count,
                        const nsa_shard *shard) {
  nsai_logger *logger = &nsai_comm_context(comm)->logger;
  if (!(nsai_comm_overlap_sms(comm) || nsai_comm_copies(comm)) || !shard || shard->ranks == 1)
    return;
  for (size_t i = 0; i < count; i++) {
    const nsa_plan *plan = plans[i];
    const char *why = nsai_no_overlap(&plan->problem, &plan->choice);
    const uint64_t bytes = nsai_ranks_room_bytes(&plan->problem, &plan->workspace);
    if (nsai_comm_copies(comm) && bytes && !nsai_comm_room(comm, bytes))
      nsai_log(logger, NSA_LOG_INFO, "ranks",
               "plan %zu: copies need %llu bytes of options.copy_bytes: the transport moves K, V "
               "and sums",
               i, (unsigned long long)bytes);
    if (plan->problem.op != NSA_OP_FORWARD) continue;
    if (nsai_ranks_overlap(comm, plan, shard))
      nsai_log(logger, NSA_LOG_INFO, "ranks", "plan %zu: K and V travel while it computes", i);
    else if (why)
      nsai_log(logger, NSA_LOG_INFO, "ranks", "plan %zu: K and V travel first: %s", i, why);
    else
      nsai_log(logger, NSA_LOG_INFO, "ranks",
               "plan %zu: K and V travel first: the next piece needs %lld tokens of one, and some "
               "pieces of the shard have fewer",
               i, (long long)nsai_ranks_longest_halo(plan));
  }
}

nsa_status nsa_comm_agree(nsa_comm *comm, const nsa_plan *const *plans, size_t count,
                          const nsa_shard *shard, int32_t timeout_ms) {
  nsai_agree_field common[NSAI_COMMON_FIELDS + 1];
  char no_gather[NSAI_PEER_KERNEL_TEXT] = "";
  NSAI_TRY(check_comm(comm));
  NSAI_TRY(check_plans(comm, plans, count));
  if (shard && shard->ranks != nsai_comm_size(comm))
    return nsai_fail(
        NSA_E_ARG,
        "shard is of %d ranks, the communicator of %d: make the shard with options.ranks %d",
        shard->ranks, nsai_comm_size(comm), nsai_comm_size(comm));
  const size_t each = sizeof(plan_digests) + NSAI_DIGEST_BYTES;
  plan_digests *fields = calloc(count + 1, each); /* digests lie behind all fields */
  if (!fields) return nsai_fail_nomem("the digests of plans", (count + 1) * each);
  unsigned char(*digests)[NSAI_DIGEST_BYTES] = (void *)(fields + count);
  nsai_digest_common(nsai_comm_context(comm), common);
  common[NSAI_COMMON_FIELDS] = nsai_comm_copy_field(comm);
  nsai_peer_kernel_make(comm, no_gather);
  for (size_t i = 0; i < count; i++) {
    nsai_digest_plan_fields(plans[i], fields[i].fields);
    memcpy(digests[i], plans[i]->digest, NSAI_DIGEST_BYTES);
  }
  const nsai_agreement mine = { .common = common,
                                .common_count = NSAI_COMMON_FIELDS + 1,
                                .plan_count = (int32_t)count,
                                .plan_fields = NSAI_PLAN_FIELDS,
                                .plans = fields->fields,
                                .digests = (const unsigned char(*)[NSAI_DIGEST_BYTES])digests,
                                .shard = shard,
                                .no_gather = no_gather };
  const nsa_status status = nsai_comm_agree(comm, &mine, timeout_ms);
  free(fields);
  if (status == NSA_OK) log_overlap(comm, plans, count, shard);
  return status;
}

nsa_status nsa_comm_check(nsa_comm *comm) {
  NSAI_TRY(check_comm(comm));
  return nsai_comm_check(comm);
}

nsa_status nsa_comm_wait(nsa_comm *comm, nsa_stream stream, int32_t timeout_ms) {
  NSAI_TRY(check_comm(comm));
  return nsai_comm_wait(comm, stream, timeout_ms);
}

void nsa_comm_destroy(nsa_comm *comm) {
  if (!comm) return;
  nsa_ctx *ctx = nsai_comm_context(comm);
  /* In a child of fork() connections and locks are the parent's: they stay as they are. */
  if (ctx->pid == getpid()) {
    nsai_kernel gather = { 0 };
    if (nsai_comm_gather(comm)) gather = *nsai_comm_gather(comm);
    nsai_comm_destroy(comm);
    nsai_peer_kernel_release(ctx, &gather);
  }
  nsai_context_release(ctx);
}
