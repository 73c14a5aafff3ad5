/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-bench decode: steps of nsa_decode over a paged cache, for contexts and batches. Steps stand in one
 * CUDA graph, each over a cache of its own, so that nothing of a step is found in L2 by the next.
 */
#ifndef BENCH_DECODE_H
#define BENCH_DECODE_H

#include "session.h"

#include <stdio.h>

#define BENCH_DECODE_SIZES 16

typedef struct bench_decode_options {
  nsai_trial_case c;                    /* the model, its inputs' fill and seed */
  int64_t contexts[BENCH_DECODE_SIZES]; /* tokens of every sequence */
  int64_t batches[BENCH_DECODE_SIZES];  /* sequences */
  int context_count, batch_count;
  int32_t q_len;     /* new tokens of a sequence in a step */
  int32_t page_size; /* P; NSA_NO_PAGES: a row for each sequence */
  int append;        /* the step's nsa_kv_append is timed, too */
} bench_decode_options;

/* What of a step is timed; in the order of columns. */
typedef enum bench_decode_part {
  BENCH_DECODE_TOTAL, /* the whole nsa_decode */
  BENCH_DECODE_CMP,   /* the branches alone, with what they need */
  BENCH_DECODE_SEL,
  BENCH_DECODE_WIN,
  BENCH_DECODE_STEP, /* nsa_kv_append of the new tokens, then nsa_decode */
  BENCH_DECODE_DENSE, /* attention over all keys by the same kernels: a window as long as the context */
  BENCH_DECODE_PARTS
} bench_decode_part;

extern const char *const bench_decode_part_names[BENCH_DECODE_PARTS];

/* Rows that a step has to read at least once, of one KV head of one sequence: where q_len tokens choose
 * different blocks, each of them counts. */
typedef struct bench_decode_reads {
  int64_t compressed, selected, window, dense;
} bench_decode_reads;

bench_decode_reads bench_decode_reads_of(const nsai_geometry *g, int64_t context, int32_t q_len);

typedef struct bench_decode_cell {
  int64_t context;
  int64_t batch;
  int32_t q_len;
  int64_t copies;                /* of the cache, and steps of one graph */
  double us[BENCH_DECODE_PARTS]; /* of a step; 0: no time, `note` says why */
  double bytes, dense_bytes;     /* K, V and compressed rows to be read */
  char variants[512];
  char note[200];
} bench_decode_cell;

/* Times one cell. What could not be timed has its reason in the cell's note; errors are those that
 * concern all cells. */
nsa_status bench_decode_measure(chk_session *session, nsa_ctx *ctx, nsa_ctx *dense,
                                const bench_decode_options *options, bench_decode_cell *cell);

/* All cells of the options: a line each on `out`, and on `csv` (NULL: none; `header`: it is new). With
 * `svg` (NULL: none) DIR/decode-speed.svg. `commit` may be empty. */
nsa_status bench_decode(chk_session *session, const bench_decode_options *options,
                        const char *commit, FILE *out, FILE *csv, int header, const char *svg);

#endif /* BENCH_DECODE_H */
