/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the files of the tuner's printing share: tune_print.c (text, Markdown, which format),
 * tune_print_json.c, tune_print_csv.c.
 */
#ifndef NSAI_CLI_TUNE_PRINT_IMPL_H
#define NSAI_CLI_TUNE_PRINT_IMPL_H

#include "cli/tune_print.h"

/* What became of a candidate, of its event: "timed", "refused", ...; NULL: another kind of
 * event. */
const char *nsai_tune_state(int32_t kind);

/* Where the sparse forward is faster, by nsai_tune_crossover: "at every length", ... */
const char *nsai_tune_where_faster(double crossover);

/* The spread of a winner, or of its candidate if the winner's event has none. */
double nsai_tune_spread(const nsai_tune_span *span, const nsa_tune_event *chosen);

/* tune_print_json.c */

/* The members of a subject's object before its results. */
void nsai_tune_json_subject(nsai_writer *out, const nsai_tune_subject *subject);

/* One object each. */
void nsai_tune_json_problem(nsai_writer *out, const nsai_tune_span *span);
void nsai_tune_json_series(nsai_writer *out, const nsai_tune_point *points, size_t count);

/* tune_print_csv.c */

const char *nsai_tune_csv_head(void);

/* The rows of all problems; the row of one series' crossover. */
void nsai_tune_csv_problems(nsai_writer *out, const nsai_tune_subject *subject,
                            const nsai_tune_results *results);
void nsai_tune_csv_series(nsai_writer *out, const nsai_tune_subject *subject,
                          const nsai_tune_point *points, size_t count);

#endif /* NSAI_CLI_TUNE_PRINT_IMPL_H */
