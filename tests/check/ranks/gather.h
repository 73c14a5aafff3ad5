/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Gathers of a communicator by themselves, of sizes and addresses that runs do not have: for peer memory
 * (nsa_comm_options.peer_bytes).
 */
#ifndef CHK_RANKS_GATHER_H
#define CHK_RANKS_GATHER_H

#include "ranks/rank.h"

/* Behind nsa_comm_agree: notes a failure unless the communicator has the peer memory that was asked for. If
 * any was, gathers messages of random sizes, up to a little more than goes that way, between random addresses,
 * and compares every byte, also where the transport moves them. Every rank calls it. */
nsa_status chk_gather_check(chk_rank *r);

/* Gathers two messages and waits: the second one needs ranks that were late for the first. */
nsa_status chk_gather_run(const chk_rank *r);

#endif /* CHK_RANKS_GATHER_H */
