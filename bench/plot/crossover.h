/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Finds the length from which sparse attention is faster.
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

/* Finds the length from which sparse attention is faster at all longer lengths. Between the last
 * length at which dense attention is faster and the next one, log(dense/sparse) is interpolated
 * linearly in log(tokens). `points` (count > 0) must ascend in tokens. *tokens: the crossover,
 * or the shortest or longest length that the result refers to. */
bench_crossing bench_crossover(const bench_point *points, int64_t count, double *tokens);

#endif /* BENCH_CROSSOVER_H */
