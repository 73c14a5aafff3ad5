/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A cell of a table over a cache whose raw pages lie on several ranks, on one rank: what `decode --ranks`
 * and `prefill --ranks` have in common. A cell is timed with gathers by the communicator's transport, and
 * a second time through peer memory if that is asked for.
 */
#ifndef BENCH_RANKS_CELL_H
#define BENCH_RANKS_CELL_H

#include "ranks_team.h"

/* What all cells of a table have in common. */
typedef struct bench_ranks_cells {
  chk_plans_options plans;      /* `device` is the ordinal of rank 0 */
  bool with[NSA_MAX_RANKS + 1]; /* one GPU is timed in any case */
  const char *commit;           /* may be empty */
  int32_t peer_bytes; /* nsa_comm_options' of a second run of each cell; 0: there is none */
} bench_ranks_cells;

/* Of two calls, or of one call in a burst and sustained, on the slowest rank; 0: unknown. And of the
 * gathers of one call by themselves, on GPUs. */
typedef struct bench_ranks_times {
  double ms[2], gather_us;
} bench_ranks_times;

/* Zeros, which the processes of a team share: the times of one GPU. */
nsa_status bench_ranks_times_create(size_t count, bench_ranks_times **out);
void bench_ranks_times_destroy(bench_ranks_times *times, size_t count);

/* Prints one GPU's times over these, in a line of the table; nothing where there is no such time, and for
 * one GPU itself. */
void bench_ranks_print_ratios(const bench_team *team, const bench_ranks_times *times,
                              const bench_ranks_times *one);

/* Writes four columns of the CSV, empty where they are unknown: both times, and one GPU's times over
 * them. */
void bench_ranks_write_times(const bench_team *team, const bench_ranks_times *times,
                             const bench_ranks_times *one);

typedef struct bench_ranks_cell {
  bench_team *team;
  int32_t rank;
  chk_plans *plans;
  int32_t peer_bytes; /* nsa_comm_options', of this time; 0: gathers go by the transport */
  nsa_comm *comm;     /* NULL: one GPU */
  bench_ranks_times times, *one; /* one GPU's; ms 0: there are none */
  int64_t gather_bytes;          /* that a rank sends in the gathers of times.gather_us */
  bool passed;                   /* rank 0 has counted the cell as such */
} bench_ranks_cell;

/* The steps of a cell, in this order. Ranks tell each other how they are before `measure`: a cell that one
 * of them cannot hold, all leave out. A failure of `measure` ends the list, because ranks may then wait. */
typedef struct bench_ranks_steps {
  nsa_status (*prepare)(void *user); /* plans and memory */
  nsa_status (*connect)(void *user); /* bench_ranks_cell_connect */
  nsa_status (*measure)(void *user); /* sets cell->times */
  /* On rank 0, of a line of the table: what the cell is, and its times if it is `timed`. */
  void (*print)(void *user, bool timed);
  /* On rank 0, of a line of the CSV: the columns before the times. */
  void (*write)(void *user);
  void *user;
} bench_ranks_steps;

/* Runs a cell; `peer_bytes`: of the second time, 0: there is none. Every rank calls it. */
void bench_ranks_cell_run(bench_ranks_cell *cell, const bench_ranks_steps *steps,
                          int32_t peer_bytes);

/* ---- during a cell; every rank calls these ---- */

/* Waits for the others, as bench_team_meet does; `cell` is a bench_ranks_cell. */
nsa_status bench_ranks_cell_meet(void *cell);

/* What ranks agree upon, and the largest message of a rank in a gather of them. */
typedef struct bench_ranks_terms {
  nsa_ctx *ctx;
  const nsa_plan *const *plans;
  size_t plan_count;
  nsa_shard *const *shards;
  int shard_count;
  int64_t message_bytes;
} bench_ranks_terms;

/* Makes the communicator, and agrees. NSA_E_ARG if the message is larger than cell->peer_bytes,
 * NSA_E_UNSUPPORTED if the ranks have no peer memory. */
nsa_status bench_ranks_cell_connect(bench_ranks_cell *cell, const bench_ranks_terms *terms);

/* Gathers that are timed by themselves. */
typedef struct bench_ranks_gathers {
  const int64_t *bytes; /* [count]: of a rank in each gather */
  int count;
  int repeats;  /* of all of them in one graph */
  void *memory; /* on the device: room for the largest gather of all ranks, which is overwritten */
  uint64_t memory_bytes;
} bench_ranks_gathers;

/* Sets gather_us and gather_bytes of the cell; neither on the CPU device and with one GPU. */
nsa_status bench_ranks_cell_gather(bench_ranks_cell *cell, const bench_ranks_gathers *gathers);

/* Sets times.ms[call] to the greatest of all ranks. */
nsa_status bench_ranks_cell_set_time(bench_ranks_cell *cell, int call, double ms);

#endif /* BENCH_RANKS_CELL_H */
