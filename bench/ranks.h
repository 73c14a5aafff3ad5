/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-bench forward and backward with --ranks: times runs over ranks, which are processes with a
 * GPU each and NCCL, beside the run of one rank in the same process. The time of a run is that of
 * its slowest rank, between CUDA events; burst and sustained are as of one GPU (time_launch.h).
 */
#ifndef BENCH_RANKS_H
#define BENCH_RANKS_H

#include "plans.h"
#include "problems.h"

#include <nsa/ranks.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct bench_ranks_options {
  chk_plans_options plans; /* `device` is the ordinal of rank 0 */
  bool with[NSA_MAX_RANKS + 1];
  bool backward;
  const char *commit;
} bench_ranks_options;

/* One line a problem and number of ranks: date, commit, device, problem, part (forward, backward),
 * ranks, burst_ms, sustained_ms, burst_ratio, sustained_ratio (one rank's time over this one),
 * workspace of a rank in bytes, note (why there is no time). */
void bench_ranks_csv_header(FILE *out);

/* Adds the first built-in problem with `tokens`, once with random and once with correlated inputs.
 */
nsa_status bench_ranks_add(bench_cases *list, int64_t tokens);

/* Times the list, and prints a line for each to `out`, and to `csv` unless it is NULL. *failed
 * counts those without a time. NSA_E_NO_DRIVER, NSA_E_NO_DEVICE: there are too few GPUs. */
nsa_status bench_ranks(const bench_ranks_options *options, const bench_cases *list, FILE *out,
                       FILE *csv, int64_t *failed);

#endif /* BENCH_RANKS_H */
