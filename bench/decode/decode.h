/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-bench decode: times steps of nsa_decode over a paged cache for several contexts and
 * batches. One CUDA graph contains the steps, each over its own cache, so that no step finds its
 * data in L2.
 */
#ifndef BENCH_DECODE_H
#define BENCH_DECODE_H

#include "cached.h"
#include "plans.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct bench_decode_options {
  nsai_verify_case c;            /* the model, and the fill and seed of its inputs */
  int64_t contexts[BENCH_SIZES]; /* tokens of every sequence */
  int64_t batches[BENCH_SIZES];  /* sequences */
  int context_count, batch_count;
  int32_t q_len;     /* new tokens of a sequence in a step */
  int32_t page_size; /* P; NSA_NONE: one row per sequence */
  bench_cached_dtypes dtypes;
} bench_decode_options;

/* The parts of a step that are timed, in the order of columns. */
typedef enum bench_decode_part {
  BENCH_DECODE_TOTAL, /* the complete nsa_decode */
  BENCH_DECODE_CMP,   /* single branches, including the stages they need */
  BENCH_DECODE_SEL,
  BENCH_DECODE_WIN,
  BENCH_DECODE_STEP, /* nsa_kv_append of the new tokens, then nsa_decode */
  /* attention over all keys by the same kernels, with a window as long as the context */
  BENCH_DECODE_DENSE,
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
  bench_cached_dtypes dtypes;
  int64_t copies;                /* copies of the cache, and steps of one graph */
  double us[BENCH_DECODE_PARTS]; /* of a step; 0: no time, and `note` has the reason */
  bench_decode_reads actual;     /* as counted by the device */
  bench_decode_reads expected;   /* lower bound, see reads.h */
  double dense_bytes;            /* the expected bytes of attention over all keys */
  double bandwidth;              /* GB/s at which memory was read in the cell's run; 0: unknown */
  char variants[512];
  char note[200];
} bench_decode_cell;

/* The contexts of a cell's plans. */
typedef struct bench_decode_contexts {
  nsa_ctx *timed;
  nsa_ctx *counting; /* with runtime.count_reads */
  nsa_ctx *dense;    /* a window as long as the context; NULL: not timed */
} bench_decode_contexts;

/* Counts and times one cell. The cell's note has the reason for missing values; errors are those
 * that affect all cells. */
nsa_status bench_decode_measure(chk_plans *plans, const bench_decode_contexts *contexts,
                                const bench_decode_options *options, bench_decode_cell *cell);

/* Common properties of all lines of a table. */
typedef struct bench_decode_table {
  const bench_decode_options *options;
  const char *device, *commit; /* commit may be empty */
  double bandwidth;            /* GB/s, as measured; 0: unknown */
} bench_decode_table;

/* Bytes divided by time, in 1e9 bytes per second; 0 without a time. */
double bench_decode_gbps(double bytes, double us);

/* Total over all branches. */
double bench_decode_tokens(const bench_decode_reads *reads);

/* The problem of a plan. `whole`: for the complete context of one sequence; else for a step. */
nsa_problem bench_decode_problem(int32_t op, const bench_decode_options *options, int64_t context,
                                 int64_t batch, bool whole);

struct nsai_verify_cache;

/* The calls that a graph repeats over the copies of a cache. */
typedef struct bench_decode_steps {
  const struct nsai_verify_cache *caches;
  const nsa_plan *append, *decode; /* append NULL: no append */
  nsa_exec exec;                   /* with a communicator's runs its own */
  bool captures;                   /* into a graph, on a GPU; else calls are enqueued each time */
  nsa_status (*meet)(void *user);  /* called before each replay, so that ranks begin together */
  void *user;
} bench_decode_steps;

/* The median of several replays, in microseconds per step. The first replay is a warm-up. */
nsa_status bench_decode_time(bench_decode_steps *steps, double *us);

/* Writes the header; csv.c documents the columns. */
void bench_decode_csv_header(FILE *out);
void bench_decode_csv_line(FILE *out, const bench_decode_table *t, const bench_decode_cell *c);

/* A table as it was measured or read from a CSV. */
typedef struct bench_decode_sheet {
  bench_decode_options options; /* contexts and batches read from a CSV are ascending */
  char date[24], device[96];    /* of the first cell */
  bench_decode_cell *cells;
  int count;
} bench_decode_sheet;

/* A line of a CSV: lengths, times, expected bytes and bandwidth of a cell. */
typedef struct bench_decode_line {
  const char *date, *commit, *device; /* valid during the call */
  nsai_verify_case c;                 /* the model and the fill */
  int64_t page_size;
  bench_decode_cell cell;
} bench_decode_line;

/* Whether the file is a CSV of decode. The second function passes its lines to `take`, those of
 * earlier versions, too; if `take` returns NSA_E_ARG, the error names file and line. The third one
 * keeps the cells with the problem, q_len and page size of the first one; `out->cells` must be
 * freed in any case. NSA_E_IO, NSA_E_ARG. */
int bench_decode_csv_is(const char *path);
nsa_status bench_decode_csv_lines(const char *path,
                                  nsa_status (*take)(void *user, const bench_decode_line *line),
                                  void *user);
nsa_status bench_decode_csv_load(const char *path, bench_decode_sheet *out);

/* The last cell with this context and batch; NULL: there is none. */
const bench_decode_cell *bench_decode_find(const bench_decode_cell *cells, int count,
                                           int64_t context, int64_t batch);

/* Writes the measurements as one JSON document; `commit` may be empty. */
void bench_decode_json(FILE *out, const bench_decode_sheet *sheet, const char *device,
                       const char *commit);

/* Writes the table as Markdown with a row per context and a column per batch: microseconds of a
 * step, of dense attention, and the step's fraction of its run's bandwidth ("-" if some of them
 * lack it). */
void bench_decode_markdown(FILE *out, const bench_decode_sheet *sheet);

/* plot.c: draws DIR/STEM-speed.svg: the step and dense attention against the context, one line
 * per batch. Creates the folder if it is missing. */
nsa_status bench_decode_draw(const bench_decode_sheet *sheet, const char *dir, const char *stem);

/* Measures all cells of the options, and writes one line for each to `out` and to `csv` (NULL:
 * none; `header`: it is a new file). `commit` may be empty. On a GPU the memory bandwidth is
 * measured first. `sheet->cells` must be freed in any case. */
nsa_status bench_decode(chk_plans *plans, const bench_decode_options *options, const char *commit,
                        FILE *out, FILE *csv, int header, bench_decode_sheet *sheet);

#endif /* BENCH_DECODE_H */
