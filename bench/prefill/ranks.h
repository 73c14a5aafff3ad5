/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-bench prefill --ranks: times prompts that go through a cache whose raw pages lie on several ranks
 * (nsa/ranks.h), beside one GPU, which is timed first. Ranks are processes, or on the CPU device threads, to
 * try the program out (ranks_team.h). A time is that of the slowest rank.
 *
 * A cell is a context and a chunk of at most as many tokens; a prompt in one piece has a chunk of its own.
 * Every chunk has the same new tokens, on one GPU, too, so that a rank needs memory for one chunk's. A plan
 * serves chunks that end within 1, 2, 4 .. times the chunk's tokens, up to the prompt's: a prefill over ranks
 * gathers as many as its plan allows.
 */
#ifndef BENCH_PREFILL_RANKS_H
#define BENCH_PREFILL_RANKS_H

#include "prefill/prefill.h"
#include "ranks_cell.h"

/* One line a cell and number of ranks: date, commit, device, problem (the packed prompt), ranks, unit_tokens
 * (0: one GPU), S, chunk, page_size, kv_dtype, cmp_dtype, cache_bytes (of the cache's tensors on rank 0),
 * workspace (bytes), ms_prompt (nsa_kv_append and nsa_prefill of all chunks), ms_last (of the last `chunk`
 * tokens alone), prompt_ratio, last_ratio (one GPU's time over this one; empty when it has none),
 * gather_bytes and ms_gather (what a rank sends in the last chunk, and these gathers by themselves; empty on
 * the CPU device), peer_bytes (gathers of up to so many bytes went through peer memory; 0: all by the
 * transport), note (why there is no time). */
void bench_prefill_ranks_csv_header(FILE *out);

/* Times all cells, and prints a line for each to `out`, and to `csv` unless it is NULL. *failed counts
 * those without a time, except those for which the GPUs have too little memory. NSA_E_NO_DRIVER,
 * NSA_E_NO_DEVICE: there are too few GPUs. */
nsa_status bench_prefill_ranks(const bench_ranks_cells *cells, const bench_prefill_options *options,
                               FILE *out, FILE *csv, int64_t *failed);

#endif /* BENCH_PREFILL_RANKS_H */
