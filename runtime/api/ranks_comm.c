/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_comm_create, nsa_comm_loopback, nsa_comm_check, nsa_comm_wait, nsa_comm_destroy.
 */
#include "plan/context.h"
#include "plan/plan.h"
#include "ranks/comm.h"

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
  if (!comm) return nsai_fail(NSA_E_ARG, "comm is NULL");
  return nsai_context_check(nsai_comm_context(comm));
}

nsa_status nsa_comm_create(nsa_ctx *ctx, const nsa_comm_ops *ops, const nsa_comm_options *options,
                           nsa_comm **comm) {
  nsai_comm_place place;
  if (!comm) return nsai_fail(NSA_E_ARG, "comm is NULL");
  *comm = NULL;
  NSAI_TRY(find_place(ctx, &place));
  NSAI_TRY(nsai_comm_create(&place, ops, options, comm));
  nsai_context_retain(ctx);
  return NSA_OK;
}

nsa_status nsa_comm_loopback(nsa_ctx *ctx, int32_t size, const nsa_comm_options *options,
                             nsa_comm **comms) {
  nsai_comm_place place;
  if (!comms) return nsai_fail(NSA_E_ARG, "comms is NULL: give an array of `size`");
  NSAI_TRY(find_place(ctx, &place));
  NSAI_TRY(nsai_comm_loopback(&place, size, options, comms));
  for (int32_t i = 0; i < size; i++) nsai_context_retain(ctx);
  return NSA_OK;
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
  nsai_comm_destroy(comm);
  nsai_context_release(ctx);
}
