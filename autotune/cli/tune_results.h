/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Stores the events of a tuning and derives from them which baseline is faster, and from which
 * length on the sparse forward is faster than it. Plain memory; needs no device.
 */
#ifndef NSAI_CLI_TUNE_RESULTS_H
#define NSAI_CLI_TUNE_RESULTS_H

#include "base/arena.h"
#include "base/error.h"

#include <nsa/tune.h>
#include <stdbool.h>

/* A zeroed struct is empty. Not thread-safe. */
typedef struct nsai_tune_results {
  nsa_tune_event *events; /* in order, with their own copies of strings */
  size_t count, capacity;
  nsai_arena strings;
  bool failed; /* out of memory: events are missing */
} nsai_tune_results;

/* Keeps a copy of the event. */
void nsai_tune_results_add(nsai_tune_results *results, const nsa_tune_event *event);

/* Sorts the problems of a series together, by length and then by number of sequences. Drops
 * events before the first problem. */
void nsai_tune_results_sort(nsai_tune_results *results);

/* Releases everything; the results are empty again. */
void nsai_tune_results_fini(nsai_tune_results *results);

/* The events of one problem: its NSA_TUNE_PROBLEM event and all up to the next one. */
typedef struct nsai_tune_span {
  const nsa_tune_event *events; /* the first is the NSA_TUNE_PROBLEM */
  size_t count;
} nsai_tune_span;

/* Moves to the problem after `span`; a zeroed span moves to the first. False after the last. */
bool nsai_tune_next(const nsai_tune_results *results, nsai_tune_span *span);

/* The last event of a kind; stage and candidate NULL: any. NULL: there is none. */
const nsa_tune_event *nsai_tune_find(const nsai_tune_span *span, int32_t kind, const char *stage,
                                     const char *candidate);

/* How many events of a kind there are. */
size_t nsai_tune_count(const nsai_tune_span *span, int32_t kind);

/* The heuristic's milliseconds, computed from the gain of a NSA_TUNE_CHOSEN event. */
double nsai_tune_default_ms(const nsa_tune_event *chosen);

/* The part of a key, besides lengths, that distinguishes problems for readers: "ov=high". */
#define NSAI_TUNE_INPUTS_BYTES 64
const char *nsai_tune_inputs(const char *problem, char out[NSAI_TUNE_INPUTS_BYTES]);

/* Whether two keys differ only in sizes: in their parts tokN, kvN, lenN and seqN. */
bool nsai_tune_same_series(const char *a, const char *b);

/* ---- sparse against dense ---- */

/* A problem with the times of its forward and of a dense baseline. */
typedef struct nsai_tune_point {
  const char *problem; /* borrowed from the results */
  int64_t tokens;
  double forward_ms, dense_ms;
  const char *dense; /* "dense" or "dense_gemm", the faster one */
} nsai_tune_point;

/* Makes an array of all points, ordered by series, then by length. The caller frees it; NULL
 * with count 0: no points. NSA_E_NOMEM. */
nsa_status nsai_tune_points(const nsai_tune_results *results, nsai_tune_point **points,
                            size_t *count);

/* Number of points, from the first on, that belong to its series. */
size_t nsai_tune_series(const nsai_tune_point *points, size_t count);

/* The length from which the forward is faster than the better baseline, up to the longest.
 * Between two lengths, times are interpolated as powers of the length. 0: at every length;
 * INFINITY: not at the longest. */
double nsai_tune_crossover(const nsai_tune_point *points, size_t count);

#endif /* NSAI_CLI_TUNE_RESULTS_H */
