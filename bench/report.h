/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Results for people (text, Markdown) and for programs (JSON); csv.h has the CSV.
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "results.h"

#include <stdio.h>

/* One problem: a description, and a line for each part. */
void bench_report_problem(FILE *out, const bench_problem *p);

/* All problems in one table, with sparse and dense attention, and the crossovers. */
nsa_status bench_report_summary(FILE *out, const bench_results *results);

/* The results table of docs/benchmarks.md: problems with a forward, and empty cells for parts
 * that were not timed. Returns the number of its rows. */
int64_t bench_report_table(FILE *out, const bench_results *results);

/* One Markdown document: the results table, a table of all parts, and the crossovers. */
nsa_status bench_report_markdown(FILE *out, const bench_results *results);

/* One JSON document. */
nsa_status bench_report_json(FILE *out, const bench_results *results);

/* Writes a further member of a JSON object; not `known`: null. */
void bench_json_member(FILE *out, const char *name, double value, int known);

/* Writes `before` and then a JSON string. */
void bench_json_string(FILE *out, const char *before, const char *text);

#endif /* BENCH_REPORT_H */
