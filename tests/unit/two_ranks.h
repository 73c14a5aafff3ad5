/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Rank 0 of two on the fake GPU, for tests of what its runs enqueue: kernels, exchanges, copies.
 */
#ifndef TEST_TWO_RANKS_H
#define TEST_TWO_RANKS_H

#include "machine.h"
#include "plan/plan.h"
#include "ranks/comm_internal.h"

#define MOST_EXCHANGES 4
#define MOST_PARTS 16

typedef struct exchange_record {
  int launches; /* before it */
  nsa_stream stream;
  nsa_part send[MOST_PARTS], recv[MOST_PARTS];
  int sent, received;
} exchange_record;

typedef struct exchanges {
  exchange_record of[MOST_EXCHANGES];
  int count;
  int fail; /* this one, from 1 on; 0: none */
} exchanges;

/* Rank 0 of 2. Of one sequence it has the first part and the third. */
typedef struct rank_of_two {
  machine m;
  nsa_shard *shard;
  nsa_comm *comm, *other; /* other: of rank 1, where both have one */
  nsa_plan *plan;
  nsa_exec exec;
  int32_t rows; /* of rank 0 */
  exchanges seen;
} rank_of_two;

/* Everything but the communicator, for runs of request->op. */
void two_open(rank_of_two *r, const machine_request *request, const int32_t part[3]);
void two_close(rank_of_two *r);

/* Of a transport whose `user` is an `exchanges`: moves nothing. */
nsa_status two_record_exchange(void *user, const nsa_part *send, int32_t send_count,
                               const nsa_part *recv, int32_t recv_count, nsa_stream stream);

/* Begins the driver's record and that of exchanges anew. */
void two_begin_record(rank_of_two *r);

/* A forward of rank 0; `branches` as in nsa_exec. */
nsa_status two_forward(rank_of_two *r, uint32_t branches);

/* The side stream waits for the run's by the edges `fork` and the next one, the run's for the side stream by `join` and
 * the next one. */
void two_expect_fork_and_join(const rank_of_two *r, int fork, int join);

/* Pieces of 16, 16 and 8 tokens; and a model without a window, which overlaps with so short ones. */
extern const int32_t two_short_parts[3];
extern const machine_request two_no_window;

#endif /* TEST_TWO_RANKS_H */
