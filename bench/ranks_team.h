/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Ranks that go through a list of runs together. They are processes with a GPU each, and NCCL; on the
 * CPU device they are threads, with the loopback communicator. Each run is first prepared; a run for
 * which one rank has no memory, all ranks leave out.
 */
#ifndef BENCH_RANKS_TEAM_H
#define BENCH_RANKS_TEAM_H

#include "plans.h"
#include "ranks/shared.h"

#include <stdio.h>

typedef struct bench_team {
  chk_plans_options options; /* `device` is the ordinal of rank 0 */
  int64_t count;             /* of the list */
  void (*run)(void *user, int32_t rank, chk_plans *, int64_t); /* one of the list, on one rank */
  void *user;
  FILE *out, *csv;  /* to which rank 0 reports; csv NULL: none */
  bool without_one; /* not on one GPU, whose times are known */

  /* the team's own */
  chk_shared *shared;             /* of one number of ranks */
  chk_plans *plans;               /* of ranks that are threads; else each has its own */
  nsa_comm *comms[NSA_MAX_RANKS]; /* of these */
} bench_team;

/* Goes through the list on one GPU unless `without_one`, and then with each number of `with` from 2 on.
 * *failed counts the runs that are neither passed nor skipped in shared->outcomes, which rank 0 counts.
 * NSA_E_NO_DRIVER, NSA_E_NO_DEVICE: there are too few GPUs. NSA_E_IO: a report could not be written. */
nsa_status bench_team_run(bench_team *t, const bool with[NSA_MAX_RANKS + 1], int64_t *failed);

/* ---- on a rank; every rank calls these ---- */

/* Waits for the others without naps, so that all go on at nearly the same time. */
nsa_status bench_team_meet(chk_shared *shared, int32_t rank);

/* The largest of a figure, over the ranks. */
nsa_status bench_team_largest(chk_shared *shared, int32_t rank, double mine, double *out);

/* A communicator of every rank; one GPU has none. */
nsa_status bench_team_connect(bench_team *t, int32_t rank, nsa_ctx *ctx,
                              const nsa_comm_options *options, nsa_comm **out);

/* ---- reports ---- */

/* Whether an error tells that the device or the host has too little memory. */
bool bench_team_lacks_memory(nsa_status status);

/* Why there is no time: the failure of a rank that did not wait for another one, or else what is most
 * like it. NULL: there is a time. */
const nsai_verify_result *bench_team_reason(const chk_shared *shared);

/* One GPU's time over this one; 0: one of them is missing. */
double bench_team_ratio(double one, double time);

#endif /* BENCH_RANKS_TEAM_H */
