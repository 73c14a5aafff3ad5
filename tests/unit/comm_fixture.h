/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Ranks that are threads, for tests of communicators: what they do with theirs, and what is expected
 * of them.
 */
#ifndef TEST_COMM_FIXTURE_H
#define TEST_COMM_FIXTURE_H

#include "machine.h"
#include "plan/plan.h"
#include "ranks/comm.h"

#include <nsa/ranks.h>
#include <pthread.h>

#define MOST_RANKS 16
#define QUIET "runtime.log_level=off"

/* Seconds that a fault may take beyond the timeout. Most are noticed within 10 ms; this is for
 * machines that run other things as well. Whatever must not be waited for in a test has a
 * timeout of 20 s or more. */
#define GRACE 5.0

typedef struct rank rank;

/* One rank: a thread with its communicator. cmocka's assertions belong to the main thread, so that
 * threads only note what happened. */
struct rank {
  nsa_comm *comm;
  int32_t number, size;
  nsa_status status;
  char text[1024]; /* nsa_last_error of the first failure */
  double seconds;  /* that the work took */
  bool wrong;      /* data were not what was sent */
  int32_t repeats, timeout_ms;
  nsa_plan *plan;
  nsa_shard *shard;
  void (*work)(rank *);
  pthread_t thread;
};

/* Keeps the first failure. */
void rank_note(rank *r, nsa_status status);

/* Begins the rank's work on a thread; waits until it is done. */
void rank_start(rank *r);
void rank_join(rank *r);

/* Runs the ranks' work on a thread each, and waits for all. */
void ranks_run(rank *ranks, int32_t size);

/* Loopback communicators for the first `size` of MOST_RANKS ranks, which repeat their work 20 times. */
void ranks_loopback(nsa_ctx *ctx, rank *ranks, int32_t size, int32_t timeout_ms,
                    void (*work)(rank *));
void ranks_destroy(rank *ranks, int32_t size);

/* All ranks received what was sent. */
void ranks_expect_ok(const rank *ranks, int32_t size);

/* It failed within the timeout and GRACE, and says so. */
void rank_expect_lost(const rank *r, const char *says);

/* All ranks but `lost` (-1: none) did. */
void ranks_expect_lost(const rank *ranks, int32_t size, int32_t lost, const char *says);

/* A rank that failed stays dead, and says why. */
void rank_expect_dead(const rank *r, const nsa_plan *plan);

/* Works of a rank: exchanges and gathers whose data are checked; nsa_comm_agree upon its plan, twice, and
 * its shard; nsa_comm_destroy. */
void rank_exchanges(rank *r);
void rank_agrees(rank *r);
void rank_leaves(rank *r);

#endif /* TEST_COMM_FIXTURE_H */
