/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-bench decode: steps of nsa_decode over a paged cache, for contexts and batches. Steps stand in one
 * CUDA graph, each over a cache of its own, so that nothing of a step is found in L2 by the next.
 */
#ifndef BENCH_DECODE_H
#define BENCH_DECODE_H

#include "plans.h"

#include <stdio.h>

#define BENCH_DECODE_SIZES 16

typedef struct bench_decode_options {
  nsai_verify_case c;                   /* the model, its inputs' fill and seed */
  int64_t contexts[BENCH_DECODE_SIZES]; /* tokens of every sequence */
  int64_t batches[BENCH_DECODE_SIZES];  /* sequences */
  int context_count, batch_count;
  int32_t q_len;     /* new tokens of a sequence in a step */
  int32_t page_size; /* P; NSA_NONE: a row for each sequence */
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

/* Tokens of K and V that a step reads, by branch, and their bytes: reads.h. */
typedef struct bench_decode_reads {
  int64_t tokens[NSA_BRANCHES];
  int64_t bytes;
} bench_decode_reads;

typedef struct bench_decode_cell {
  int64_t context;
  int64_t batch;
  int32_t q_len;
  int64_t copies;                /* of the cache, and steps of one graph */
  double us[BENCH_DECODE_PARTS]; /* of a step; 0: no time, `note` says why */
  bench_decode_reads actual;     /* what the device has counted */
  bench_decode_reads expected;   /* what has to be read at least once */
  double dense_bytes;            /* the same of attention over all keys */
  double bandwidth;              /* GB/s at which memory was read in the cell's run; 0: unknown */
  char variants[512];
  char note[200];
} bench_decode_cell;

/* The contexts of a cell's plans. */
typedef struct bench_decode_contexts {
  nsa_ctx *timed;
  nsa_ctx *counting; /* runtime.count_reads */
  nsa_ctx *dense;    /* a window as long as the context; NULL: not timed */
} bench_decode_contexts;

/* Counts and times one cell. What could not be has its reason in the cell's note; errors are those that
 * concern all cells. */
nsa_status bench_decode_measure(chk_plans *plans, const bench_decode_contexts *contexts,
                                const bench_decode_options *options, bench_decode_cell *cell);

/* What the lines of one table have in common. */
typedef struct bench_decode_table {
  const bench_decode_options *options;
  const char *device, *commit; /* commit may be empty */
  double bandwidth;            /* GB/s, as measured; 0: unknown */
} bench_decode_table;

/* Bytes over a time, 1e9 in a second; 0 without a time. */
double bench_decode_gbps(double bytes, double us);

/* Of all branches. */
double bench_decode_tokens(const bench_decode_reads *reads);

/* csv.c: which columns there are, it says there. */
void bench_decode_csv_header(FILE *out);
void bench_decode_csv_line(FILE *out, const bench_decode_table *t, const bench_decode_cell *c);

/* A table as it was measured, or again from a CSV. */
typedef struct bench_decode_sheet {
  bench_decode_options options; /* of a CSV contexts and batches ascend */
  bench_decode_cell *cells;
  int count;
} bench_decode_sheet;

/* Whether the file is a CSV of decode; and reads one, of earlier versions, too: places, times and expected
 * bytes of the cells that have the first one's problem, q_len and page size. NSA_E_IO, NSA_E_ARG; `out->cells` is to be freed in
 * any case. */
int bench_decode_csv_is(const char *path);
nsa_status bench_decode_csv_load(const char *path, bench_decode_sheet *out);

/* The cell at that place, of several the last; NULL: there is none. */
const bench_decode_cell *bench_decode_find(const bench_decode_cell *cells, int count,
                                           int64_t context, int64_t batch);

/* Writes what was measured as one JSON document; `commit` may be empty. */
void bench_decode_json(FILE *out, const bench_decode_sheet *sheet, const char *device,
                       const char *commit);

/* Writes the sheet as Markdown, a row for each context and a column for each batch: microseconds of a step,
 * of dense attention, and the step's share of its run's bandwidth, "-" where that is unknown of
 * some. */
void bench_decode_markdown(FILE *out, const bench_decode_sheet *sheet);

/* plot.c: DIR/STEM-speed.svg, the step and dense attention against the context, a line a batch. The
 * folder is made when it is missing. */
nsa_status bench_decode_draw(const bench_decode_options *options, const bench_decode_cell *cells,
                             int count, const char *dir, const char *stem);

/* All cells of the options: a line each on `out`, and on `csv` (NULL: none; `header`: it is new). `commit`
 * may be empty. On a GPU the bandwidth of its memory is measured first. `sheet->cells` is to be freed in any
 * case. */
nsa_status bench_decode(chk_plans *plans, const bench_decode_options *options, const char *commit,
                        FILE *out, FILE *csv, int header, bench_decode_sheet *sheet);

#endif /* BENCH_DECODE_H */
