/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-bench decode --ranks: times steps over a cache whose raw pages lie on several ranks
 * (nsa/ranks.h), beside one GPU, which is timed first. Ranks are processes, or on the CPU device
 * threads, to try the program out (ranks_team.h). Each rank times a graph of steps, as one GPU
 * does (decode.h); the time of a step is that of the slowest rank.
 */
#ifndef BENCH_DECODE_RANKS_H
#define BENCH_DECODE_RANKS_H

#include "decode/decode.h"
#include "ranks_cell.h"

/* One line a cell and number of ranks: date, commit, device, problem, ranks, unit_tokens (0: one GPU), S,
 * batch, q_len, page_size, kv_dtype, cmp_dtype, copies, ms_total (a step of nsa_decode), ms_append
 * (nsa_kv_append and nsa_decode), total_ratio, append_ratio (one GPU's time over this one; empty when it
 * has none), gather_bytes and ms_gather (one gather of what a rank sends in a step, from a graph of
 * gathers; empty on the CPU device), peer_bytes (gathers of up to so many bytes went through peer memory;
 * 0: all by the transport), note (why there is no time). */
void bench_decode_ranks_csv_header(FILE *out);

/* Times all cells, and prints a line for each to `out`, and to `csv` unless it is NULL. *failed counts
 * those without a time, except those for which the GPUs have too little memory. NSA_E_NO_DRIVER,
 * NSA_E_NO_DEVICE: there are too few GPUs. */
nsa_status bench_decode_ranks(const bench_ranks_cells *cells, const bench_decode_options *options,
                              FILE *out, FILE *csv, int64_t *failed);

#endif /* BENCH_DECODE_RANKS_H */
