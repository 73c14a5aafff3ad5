/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The events of a tuning, kept, and what follows from them: which baseline is the better one, and
 * from which length on the sparse forward is faster than it. Plain memory; knows no device.
 */
#ifndef NSAI_CLI_TUNE_RESULTS_H
#define NSAI_CLI_TUNE_RESULTS_H

#include "base/arena.h"

#include <nsa/tune.h>
#include <stdbool.h>

/* All zero is empty. Not thread-safe. */
typedef struct nsai_tune_results {
  nsa_tune_event *events; /* in their order, strings of their own */
  size_t count, capacity;
  nsai_arena strings;
  bool failed; /* memory ran out: events are missing */
} nsai_tune_results;

/* Keeps a copy of the event. */
void nsai_tune_results_add(nsai_tune_results *results, const nsa_tune_event *event);

/* Puts the problems of a series together, by length and then by sequences; events before the first
 * problem are dropped. */
void nsai_tune_results_sort(nsai_tune_results *results);

/* Releases everything; the results are empty again. */
void nsai_tune_results_fini(nsai_tune_results *results);

/* The events of one problem: its NSA_TUNE_PROBLEM and all up to the next. */
typedef struct nsai_tune_span {
  const nsa_tune_event *events; /* the first is the NSA_TUNE_PROBLEM */
  size_t count;
} nsai_tune_span;

/* The problem behind `span`, the first for one of all zero; false behind the last. */
bool nsai_tune_next(const nsai_tune_results *results, nsai_tune_span *span);

/* The last event of a kind; stage and candidate NULL: any. NULL: there is none. */
const nsa_tune_event *nsai_tune_find(const nsai_tune_span *span, int32_t kind, const char *stage,
                                     const char *candidate);

/* How many events of a kind there are. */
size_t nsai_tune_count(const nsai_tune_span *span, int32_t kind);

/* The heuristic's milliseconds of a NSA_TUNE_CHOSEN, out of its gain. */
double nsai_tune_default_ms(const nsa_tune_event *chosen);

/* What tells problems apart beside their length, for people: the key's "ov=high". */
#define NSAI_TUNE_INPUTS_BYTES 64
const char *nsai_tune_inputs(const char *problem, char out[NSAI_TUNE_INPUTS_BYTES]);

/* Whether two keys differ in sizes alone: in their parts tokN, kvN, lenN and seqN. */
bool nsai_tune_same_series(const char *a, const char *b);

/* ---- sparse against dense ---- */

/* A problem that has the times of its forward and of a dense baseline. */
typedef struct nsai_tune_point {
  const char *problem; /* borrowed of the results */
  int64_t tokens;
  double forward_ms, dense_ms;
  const char *dense; /* "dense" or "dense_gemm", the faster one */
} nsai_tune_point;

/* Makes an array of all points: a series stands together, by length. The caller frees it; NULL with
 * count 0: none, or no memory. */
nsai_tune_point *nsai_tune_points(const nsai_tune_results *results, size_t *count);

/* How many points from the first on are of its series. */
size_t nsai_tune_series(const nsai_tune_point *points, size_t count);

/* The length from which the forward is faster than the better baseline up to the longest, with both
 * between two lengths as powers of it; 0: at every length; INFINITY: not at the longest. */
double nsai_tune_crossover(const nsai_tune_point *points, size_t count);

#endif /* NSAI_CLI_TUNE_RESULTS_H */
