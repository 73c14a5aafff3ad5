/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A model of the time that a run over ranks takes, from times of one GPU. It is for comparison with
 * measured times, and for numbers of GPUs that nobody has measured.
 *
 *   time = (one GPU - undivided) * share * tail + undivided + exchanges
 *
 * share       of the rank with the most work: 1 / R but for the alignment of pieces.
 * undivided   what every rank does for all tokens: compression; in the backward pass also the fp32 sums
 *             of dK and dV. Bytes over the memory's rate.
 * tail        the last round of tiles leaves half of the SMs idle.
 * exchanges   K and V, and in the backward pass the sums. Their bytes are counted in the shard, as
 *             runtime/run/ranks_exchange.c sends them, over hosts in two levels; the rank with the most
 *             decides. Each level takes a fixed time, on idle GPUs the exchange another one, and its
 *             bytes over the rate inside a host or between hosts. Nothing else runs meanwhile, as with NCCL:
 *             copies (nsa_comm_options.copy_bytes) hide, and take 1 to 7 % less than this on two and four H200.
 *
 * H200s of one host: within 5 % of what was measured in runs one after the other on two, with random inputs and
 * 32k to 128k tokens (bench/results/h200-2026-11-27-ranks.txt), and of bursts on two and four, with correlated
 * inputs and 64k to 1M tokens, by NCCL (bench/results/h200-2026-11-28-ranks.csv, and -ranks-copies.csv where
 * copy_bytes is 0);
 * tests/unit/test_ranks_model.c. More GPUs, and more than one host, are not confirmed by any measurement.
 */
#ifndef BENCH_RANKS_MODEL_H
#define BENCH_RANKS_MODEL_H

#include "base/error.h"
#include "model/model.h"

#include <nsa/ranks.h>
#include <stdbool.h>

#define BENCH_RANKS_HOST                                                                           \
  8 /* ranks of a host: neighbours by their numbers; the last may have fewer */

/* A measured time of one GPU. */
typedef struct bench_one_gpu {
  double tokens, ms;
} bench_one_gpu;

/* The time of one GPU for a sequence of `tokens`, from `count` measured ones in any order: the measured
 * one, or a S + b S^2 through the two lengths that are nearest. Without them 0. */
double bench_one_gpu_ms(const bench_one_gpu *measured, int64_t count, double tokens);

/* Bytes of the rank that sends or receives the most. */
typedef struct bench_ranks_bytes {
  double inside, between; /* its own host, and others */
} bench_ranks_bytes;

/* What the model needs of a shard. */
typedef struct bench_ranks_work {
  int32_t ranks;
  double tokens;      /* of all sequences */
  double share;       /* of one GPU's work: of the rank with the most */
  double rank_tokens; /* of that rank */
  double summed;      /* tokens whose sums a rank writes, once for each of its pieces */
  double added;       /* tokens whose sums a rank reads, or writes in fp32, to add up parts */
  bool two_levels;    /* of each exchange: inside hosts and between them */
  bench_ranks_bytes kv, sums; /* K and V in 16 bits; sums of dK and dV in fp32 */
} bench_ranks_work;

/* Counts it. NSA_E_NOMEM. */
nsa_status bench_ranks_count(const nsai_model *model, const nsa_shard *shard,
                             bench_ranks_work *out);

/* The time of a run: milliseconds, 0 where `one_gpu_ms` is 0. `burst`: it begins on idle GPUs; otherwise behind
 * another run. */
double bench_ranks_model_ms(const nsai_model *model, const bench_ranks_work *work, bool backward,
                            bool burst, double one_gpu_ms);

#endif /* BENCH_RANKS_MODEL_H */
