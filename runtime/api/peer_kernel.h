/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernel of gathers through peer memory, which belongs to a communicator and to no plan.
 */
#ifndef NSAI_API_PEER_KERNEL_H
#define NSAI_API_PEER_KERNEL_H

#include "plan/context.h"
#include "ranks/comm.h"

#define NSAI_PEER_KERNEL_TEXT 256

/* Compiles and loads the kernel for a communicator that wants it. A failure is none of the
 * communicator's: `why` then says what it was. */
void nsai_peer_kernel_make(nsa_comm *comm, char why[NSAI_PEER_KERNEL_TEXT]);

/* Compiles the kernel into the caches, from which packs are made. A failure is logged and nothing else, because
 * a decode over ranks runs without the kernel, too. Does nothing where runtime.jit is never. */
void nsai_peer_kernel_prepare(nsa_ctx *ctx);

/* Releases the kernel, unless its function is NULL. No communicator uses it any more. */
void nsai_peer_kernel_release(nsa_ctx *ctx, const nsai_kernel *kernel);

#endif /* NSAI_API_PEER_KERNEL_H */
