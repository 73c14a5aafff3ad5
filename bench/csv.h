/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Results as CSV: one line a part. Columns:
 *   date            UTC, ISO 8601
 *   commit          as given by --commit
 *   device          its name
 *   problem         as --problem takes it; its fill says random or correlated
 *   part            forward, compressed, selected, window, compress, dense, dense_gemm, backward,
 *                   back_saved, fwd_saved (results.h)
 *   burst_ms, sustained_ms   empty when the part has no time
 *   tflops, gbps    useful operations and compulsory bytes over burst_ms
 *   roofline        share: the device's bound for these operations and bytes over burst_ms; empty
 *                   when the configuration's device section does not know the device
 *   r, u4, u8       overlap of adjacent selections (verify/inputs.h)
 *   workspace       bytes
 *   plan_cold_ms, plan_warm_ms   nsa_plan_create with an empty and with a filled cache folder
 *   dense_ratio     burst_ms of dense over this part's; empty when either is missing, and for
 *                   compress
 *   baseline_ratio  the same of the faster of dense and dense_gemm
 *   floor_ms        the device's bound: roofline * burst_ms
 *   note            why the part has no time
 */
#ifndef BENCH_CSV_H
#define BENCH_CSV_H

#include "results.h"

#include <stdio.h>

/* Writes a field in quotes; the second function uses quotes only where needed. */
void bench_csv_quoted(FILE *out, const char *text);
void bench_csv_word(FILE *out, const char *text);

/* The time now as `date` has it. */
#define BENCH_CSV_DATE 24
void bench_csv_now(char date[BENCH_CSV_DATE]);

/* Writes the first fields of a line, date to problem; `commit` may be empty. */
void bench_csv_begin(FILE *out, const char *commit, const char *device, const nsai_verify_case *c);

/* Writes a comma, and the number unless it is 0 (missing). */
void bench_csv_known(FILE *out, int digits, double value);

/* The columns to read from a CSV, by name. The first `required` of `count` must be present. */
typedef struct bench_csv_columns {
  const char *const *names;
  int count, required;
} bench_csv_columns;
#define BENCH_CSV_FIELDS 64 /* most fields of a line */

/* Passes the fields of every line to `line`: value[c] is that of names[c], "" if the file lacks
 * the column. If `line` returns NSA_E_ARG, the error names file and line. NSA_E_IO: not
 * readable; NSA_E_ARG: not such a CSV. */
nsa_status bench_csv_read(const char *path, const bench_csv_columns *columns,
                          nsa_status (*line)(void *user, char *const *value), void *user);

/* Reads a field as a finite number from 0; an empty one is 0. NSA_E_ARG (names the column). */
nsa_status bench_csv_number(const char *name, const char *text, double *out);

/* Whether the file can be read and its first line names the column. */
int bench_csv_has(const char *path, const char *name);

/* Opens a file to append lines to, or makes it; path NULL: *out stays NULL. *is_new: it is still empty, and
 * `write_header` has not been called. NSA_E_ARG: it begins with another header; NSA_E_IO. */
nsa_status bench_csv_open(const char *path, void (*write_header)(FILE *), FILE **out, int *is_new);

/* Closes any file that was written. Sets the error text only when something could not be written:
 * NSA_E_IO. */
nsa_status bench_csv_close(FILE *file, const char *path);

void bench_csv_header(FILE *out);

/* Writes the lines of one problem. */
void bench_csv_problem(FILE *out, const bench_problem *p);

/* Reads a file that these functions wrote in this version or an earlier one. Columns are found
 * by name; those from `dense_ratio` on may be missing. If a part of a problem occurs twice, the
 * last line is used. NSA_E_IO: not readable; NSA_E_ARG: not such a CSV. `results` must be freed
 * in any case. */
nsa_status bench_csv_load(const char *path, bench_results *results);

#endif /* BENCH_CSV_H */
