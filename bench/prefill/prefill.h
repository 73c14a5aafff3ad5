/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-bench prefill: times prompts that go through the KV cache, whole and in chunks, and a last
 * chunk beside rows that decode. nsa_forward and nsa_dense of the same prompt are timed beside
 * them, over packed tensors with the same values.
 */
#ifndef BENCH_PREFILL_H
#define BENCH_PREFILL_H

#include "cached.h"
#include "measure.h"

#include <stdio.h>

typedef struct bench_prefill_options {
  nsai_verify_case c;            /* the model, and the fill and seed of its inputs */
  int64_t contexts[BENCH_SIZES]; /* tokens of the prompt, and of the sequences that decode */
  int64_t chunks[BENCH_SIZES];   /* tokens of a chunk */
  int context_count, chunk_count;
  int32_t rows;      /* sequences that decode beside the last chunk; 0: none */
  int32_t page_size; /* P; NSA_NONE: one row per sequence */
  bench_cached_dtypes dtypes;
} bench_prefill_options;

/* The parts that are timed. Those over the cache include nsa_kv_append of their new tokens. */
typedef enum bench_prefill_part {
  BENCH_PREFILL_PROMPT,  /* all chunks of the prompt, one after the other */
  BENCH_PREFILL_LAST,    /* the last `chunk` tokens of the prompt alone */
  BENCH_PREFILL_MIXED,   /* the same beside the rows that decode, in one nsa_prefill */
  BENCH_PREFILL_ROWS,    /* the rows alone, by the plan of the mixed call */
  BENCH_PREFILL_DECODE,  /* the rows alone, by nsa_decode */
  BENCH_PREFILL_FORWARD, /* nsa_forward of the prompt, packed */
  BENCH_PREFILL_DENSE,   /* nsa_dense of the prompt, packed */
  BENCH_PREFILL_PARTS
} bench_prefill_part;

typedef struct bench_prefill_cell {
  nsai_verify_case c;             /* the packed prompt */
  int64_t context, chunk;         /* equal: the prompt in one piece */
  double ms[BENCH_PREFILL_PARTS]; /* 0: no time, and `note` has the reason unless rows are 0 */
  char variants[512];             /* of the plan for one chunk */
  char mixed[512];                /* of the plan for a chunk and the rows */
  char note[400];
} bench_prefill_cell;

/* The packed prompt of a context, with the model and the inputs of `given`. */
nsai_verify_case bench_prefill_case(const nsai_verify_case *given, int64_t context);

/* The problem of a plan for chunks of `q_len` tokens of one sequence. */
nsa_problem bench_prefill_problem(int32_t op, const bench_prefill_options *options, int64_t context,
                                  int64_t q_len);

/* What is reported of a cell: the times and what follows from them. */
typedef enum bench_prefill_value {
  BENCH_PREFILL_MS_PROMPT,
  BENCH_PREFILL_MS_LAST,
  BENCH_PREFILL_MS_MIXED,
  BENCH_PREFILL_MS_ADDED, /* mixed minus last: what the rows add to a chunk */
  BENCH_PREFILL_MS_ROWS,
  BENCH_PREFILL_MS_DECODE,
  BENCH_PREFILL_MS_FORWARD,
  BENCH_PREFILL_MS_DENSE,
  BENCH_PREFILL_OVER_FORWARD, /* prompt over forward */
  BENCH_PREFILL_OVER_PROMPT,  /* dense over prompt */
  BENCH_PREFILL_VALUES
} bench_prefill_value;

/* Their names in CSV and JSON. */
extern const char *const bench_prefill_value_names[BENCH_PREFILL_VALUES];

/* Sets value[i] to a number, or to NAN if it is missing. */
void bench_prefill_values(const bench_prefill_cell *cell, double value[BENCH_PREFILL_VALUES]);

/* Times the cells of one context. Their notes have the reasons for missing times. Compiles on
 * first use; waits for the device. */
void bench_prefill_measure(const bench_rig *rig, const bench_prefill_options *options,
                           bench_prefill_cell *cells, int count);

/* A table as it was measured. */
typedef struct bench_prefill_sheet {
  bench_prefill_options options;
  const char *device, *commit; /* commit may be empty; valid as long as the caller's */
  bench_prefill_cell *cells;   /* by context: the prompt in one piece, then the shorter chunks */
  int count;
} bench_prefill_sheet;

/* Writes the header; csv.c documents the columns. */
void bench_prefill_csv_header(FILE *out);
void bench_prefill_csv_line(FILE *out, const bench_prefill_sheet *sheet,
                            const bench_prefill_cell *cell);

/* Write the table as one JSON document, and as Markdown. */
void bench_prefill_json(FILE *out, const bench_prefill_sheet *sheet);
void bench_prefill_markdown(FILE *out, const bench_prefill_sheet *sheet);

/* Measures all cells of the options, and writes one line for each to `out` and to `csv` (NULL:
 * none; `header`: it is a new file). `sheet->cells` must be freed in any case.
 *
 * NSA_E_ARG for a model that is not timed, NSA_E_UNSUPPORTED if no prompt could be timed. */
nsa_status bench_prefill(chk_plans *plans, const bench_prefill_options *options, const char *commit,
                         FILE *out, FILE *csv, int header, bench_prefill_sheet *sheet);

#endif /* BENCH_PREFILL_H */
