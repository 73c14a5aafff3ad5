/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernel of gathers through peer memory, which belongs to a communicator and to no plan.
 */
#ifndef NSAI_API_RANKS_GATHER_H
#define NSAI_API_RANKS_GATHER_H

#include "plan/context.h"
#include "ranks/comm.h"

#define NSAI_RANKS_GATHER_TEXT 256

/* Compiles and loads the kernel for a communicator that wants it. A failure is none of the
 * communicator's: `why` then says what it was. */
void nsai_ranks_gather_make(nsa_comm *comm, char why[NSAI_RANKS_GATHER_TEXT]);

/* Compiles the kernel into the caches, as nsa_prepare does for the decode steps that it serves. Nothing where
 * runtime.jit is never: such a step runs without it. */
nsa_status nsai_ranks_gather_prepare(nsa_ctx *ctx);

/* Releases the kernel, unless its function is NULL. No communicator uses it any more. */
void nsai_ranks_gather_release(nsa_ctx *ctx, const nsai_kernel *kernel);

#endif /* NSAI_API_RANKS_GATHER_H */
