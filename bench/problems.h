/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Lists of problems: texts with one problem per line, in which empty lines and lines that begin
 * with # are skipped; and the lengths of a sweep.
 */
#ifndef BENCH_PROBLEMS_H
#define BENCH_PROBLEMS_H

#include "base/error.h"
#include "verify/case.h"

/* problems.txt, embedded at build time. */
extern const char bench_problem_text[];

/* index_problems.txt, likewise: models with an index. */
extern const char bench_index_problem_text[];

typedef struct bench_cases {
  nsai_verify_case *cases;
  int64_t count;
} bench_cases;

/* Adds one problem if it matches `filter` (a glob over its complete text; NULL: all match). Only
 * fwd problems can be timed; others give NSA_E_ARG. */
nsa_status bench_cases_add(bench_cases *list, const char *text, const char *filter);

/* Adds the problems of a text; `name` is the file's, for messages. */
nsa_status bench_cases_parse(bench_cases *list, const char *text, const char *name,
                             const char *filter);

/* Adds the problems of a file. NSA_E_IO when it cannot be read. */
nsa_status bench_cases_load(bench_cases *list, const char *path, const char *filter);

/* Adds the first built-in problem at the lengths from, 2 from, 4 from ... to. */
nsa_status bench_cases_sweep(bench_cases *list, int64_t from, int64_t to, const char *filter);

/* Gives every problem `model` in place of its own, and leaves out those that are then alike, or whose text does
 * not match `filter`. */
nsa_status bench_cases_take_model(bench_cases *list, const nsai_model *model, const char *filter);

void bench_cases_free(bench_cases *list);

#endif /* BENCH_PROBLEMS_H */
