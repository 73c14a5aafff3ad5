/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One rank's end of a communicator, and the exchanges that runs over ranks make
 * (include/nsa/ranks.h).
 */
#ifndef NSAI_RANKS_COMM_H
#define NSAI_RANKS_COMM_H

#include <nsa/ranks.h>
#include <stdbool.h>

/* Rank and size of a communicator. */
int32_t nsai_comm_rank(const nsa_comm *comm);
int32_t nsai_comm_size(const nsa_comm *comm);

/* Enqueues sends and receives, ordered by the stream. NSA_E_RANKS, which the communicator does not
 * survive. A part of 0 bytes travels not at all; a rank may send to itself. */
nsa_status nsai_comm_exchange(nsa_comm *comm, const nsa_part *send, int32_t send_count,
                              const nsa_part *recv, int32_t recv_count, nsa_stream stream);

/* Before a run enqueues anything: NSA_E_RANKS when the communicator is dead, NSA_E_ARG when this plan
 * with this shard was not agreed upon. And after: remembers when the run was enqueued, for
 * nsa_comm_check. */
nsa_status nsai_comm_begin(nsa_comm *comm, const nsa_plan *plan, const nsa_shard *shard);
nsa_status nsai_comm_end(nsa_comm *comm, nsa_stream stream);

/* A rank that fails after others may have begun to wait for it: aborts the transport, so that they get
 * an error and no hang. */
void nsai_comm_fail(nsa_comm *comm, const char *reason);

#endif /* NSAI_RANKS_COMM_H */
