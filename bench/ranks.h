/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-bench forward and backward with --ranks: times runs over ranks beside one GPU, which is timed
 * first, and beside the model of ranks_model.h. Ranks are processes, or on the CPU device threads, to
 * try the program out (ranks_team.h). The time of a run is that of its slowest rank,
 * between CUDA events; burst and sustained are as of one GPU (time_launch.h). ranks_rank.h has more.
 */
#ifndef BENCH_RANKS_H
#define BENCH_RANKS_H

#include "plans.h"
#include "problems.h"
#include "results.h"

#include <nsa/ranks.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct bench_ranks_options {
  chk_plans_options plans;      /* `device` is the ordinal of rank 0 */
  bool with[NSA_MAX_RANKS + 1]; /* one GPU is timed unless its times are in `one_gpu` */
  const char *one_gpu; /* a CSV of earlier runs, also of nsa-bench without ranks; NULL: none */
  bool backward;       /* the passes backward and back_saved; else forward */
  int32_t overlap_sms; /* nsa_comm_options' */
  int64_t copy_bytes;  /* likewise */
  const char *commit;
} bench_ranks_options;

/* One line a problem, pass and number of ranks: date, commit, device, problem, part (forward,
 * backward, back_saved as in csv.h), ranks, burst_ms, sustained_ms, burst_ratio, sustained_ratio (one
 * GPU's time over this one; empty when it has none), model_ms (for the burst), model_percent (burst_ms
 * over the model, less 100), workspace of a rank in bytes, overlap_sms (0: no SMs are left free), copy_bytes (of
 * the room in use; 0: the transport moves K and V), note (why there is no time). */
void bench_ranks_csv_header(FILE *out);

/* Adds the first built-in problem with `tokens`, once with random and once with correlated inputs, as
 * far as they match `filter` (a glob over its text; NULL: both). */
nsa_status bench_ranks_add(bench_cases *list, int64_t tokens, const char *filter);

/* Times the list, and prints a line for each to `out`, and to `csv` unless it is NULL. *failed
 * counts those without a time, except runs for which the GPUs have too little memory. NSA_E_NO_DRIVER,
 * NSA_E_NO_DEVICE: there are too few GPUs. NSA_E_IO, NSA_E_ARG: `one_gpu` cannot be read, or has no time of
 * one GPU for any run of the list. If they are of another kind of GPU than a rank's, the run
 * fails. */
nsa_status bench_ranks(const bench_ranks_options *options, const bench_cases *list, FILE *out,
                       FILE *csv, int64_t *failed);

/* Writes the model's times as a Markdown table, for each device, model and fill of the results that has
 * times of one GPU at two lengths: of forward and of backward with saved outputs, or of the one that was
 * timed. A row for each of `tokens`, a column for each of `with`. NSA_E_ARG: there is no such. */
nsa_status bench_ranks_table(FILE *out, const bench_results *results,
                             const bool with[NSA_MAX_RANKS + 1], const int64_t *tokens, int count);

#endif /* BENCH_RANKS_H */
