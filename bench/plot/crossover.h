/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The length from which sparse attention is the faster one.
 */
#ifndef BENCH_CROSSOVER_H
#define BENCH_CROSSOVER_H

#include <stdint.h>

/* Both times of one length; all positive. */
typedef struct bench_point {
  double tokens, sparse_ms, dense_ms;
} bench_point;

typedef enum bench_crossing {
  BENCH_CROSS_FOUND,
  BENCH_CROSS_BELOW, /* sparse is faster (or equal) from the shortest length on */
  BENCH_CROSS_ABOVE  /* dense is faster at the longest length */
} bench_crossing;

/* Finds the length beyond which sparse stays faster up to the longest one: between the last length
 * at which dense is faster and its neighbour, log(dense/sparse) is taken as linear in log(tokens).
 * `points` (count > 0) ascend in tokens. *tokens: the crossing, else the shortest or longest length
 * that the answer speaks of. */
bench_crossing bench_crossover(const bench_point *points, int64_t count, double *tokens);

#endif /* BENCH_CROSSOVER_H */
