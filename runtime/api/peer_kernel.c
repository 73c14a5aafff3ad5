/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "api/peer_kernel.h"

#include "params/ranks.h"
#include "plan/kernel_set.h"

#include <string.h>

/* The same code for every model. */
static const nsai_kernel_spec spec = {
  .entry = "ranks_gather", .dtype = NSA_BF16, .threads = NSAI_GATHER_THREADS, .compile_cost = 100
};

/* `kernels` NULL: into the caches alone. */
static nsa_status make(nsa_ctx *ctx, bool may_compile, nsai_kernel kernels[NSAI_MAX_KERNELS]) {
  const nsai_problem problem = { .op = NSA_OP_DECODE,
                                 .selection = NSA_SELECT_TOPN,
                                 .model = ctx->config->model };
  nsai_kernel_request request = {
    .problem = &problem, .specs = &spec, .count = 1, .may_compile = may_compile
  };
  return nsai_kernel_set_make(ctx, &request, kernels);
}

static nsa_status make_and_load(nsa_ctx *ctx, nsai_kernel kernels[NSAI_MAX_KERNELS]) {
  bool pushed;
  NSAI_TRY(nsai_context_enter(ctx, &pushed));
  const nsa_status status = make(ctx, ctx->config->runtime.jit == NSAI_JIT_ON_DEMAND, kernels);
  nsai_context_leave(ctx, pushed);
  return status;
}

void nsai_peer_kernel_prepare(nsa_ctx *ctx) {
  if (ctx->config->runtime.jit == NSAI_JIT_NEVER || make(ctx, true, NULL) == NSA_OK) return;
  nsai_log(&ctx->logger, NSA_LOG_INFO, "ranks",
           "no kernel for peer memory, gathers will go by the transport: %.*s",
           (int)strcspn(nsa_last_error(), "\n"), nsa_last_error());
}

void nsai_peer_kernel_make(nsa_comm *comm, char why[NSAI_PEER_KERNEL_TEXT]) {
  nsai_kernel kernels[NSAI_MAX_KERNELS] = { { 0 } };
  if (!nsai_comm_wants_gather(comm)) return;
  if (make_and_load(nsai_comm_context(comm), kernels) == NSA_OK) {
    nsai_comm_give_gather(comm, &kernels[0]);
    return;
  }
  nsai_writer text = nsai_writer_open(why, NSAI_PEER_KERNEL_TEXT);
  nsai_write(&text, "%s", nsa_last_error());
}

void nsai_peer_kernel_release(nsa_ctx *ctx, const nsai_kernel *kernel) {
  nsai_kernel kernels[NSAI_MAX_KERNELS] = { *kernel };
  if (kernel->function) nsai_kernel_set_release(ctx, kernels);
}
