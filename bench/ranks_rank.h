/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One rank of a timed run: its tensors, the forward behind its backward pass, and its times.
 *
 * The inputs are the rank's own (chk_rank.whole is NULL), so that a rank needs the memory of its
 * tokens alone, and sequences that no single GPU holds can be timed. Random rows are independent
 * anyway. Correlated ones are a process along the rank's rows instead of the sequence's: it differs at
 * the borders of pieces, over some 40 tokens.
 */
#ifndef BENCH_RANKS_RANK_H
#define BENCH_RANKS_RANK_H

#include "ranks/rank.h"
#include "time_launch.h"

typedef struct bench_rank {
  chk_rank r;
  nsai_trial_plan forward_plan; /* of the forward that writes what the backward pass reads */
  void *flush, *o; /* device memory; o: the forward's output, NULL: there is no forward */
} bench_rank;

/* Whether the pass can be timed: not the backward pass with saved outputs of a model with an index, whose
 * forward needs the index. Without them its blocks are any. */
bool bench_rank_has_pass(const nsai_verify_case *c);

/* Allocates everything that a run of r.p needs, but for the communicator; the fields of `r` up to
 * `result` are set. bench_rank_release also after a failure. NSA_E_NOMEM, or NSA_E_CUDA with
 * CUDA_ERROR_OUT_OF_MEMORY: the device has too little memory. NSA_E_UNSUPPORTED: there is no such
 * pass. */
nsa_status bench_rank_prepare(bench_rank *b);
void bench_rank_release(bench_rank *b);

/* Agrees with the other ranks, and runs the forward. Every rank calls it. */
nsa_status bench_rank_begin(bench_rank *b);

/* The times of the slowest rank, which every rank receives: a run lasts until the last has ended.
 * Burst and sustained are as of one GPU (time_launch.h), but all ranks begin a burst together. Runs of
 * a second or more, after which no pause restores the clocks of a GPU, are launched less often. */
nsa_status bench_rank_time(const bench_rank *b, chk_times *times);

#endif /* BENCH_RANKS_RANK_H */
