/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The results of a tuning as CSV: one row per measurement.
 */
#include "cli/tune_print_impl.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

const char *nsai_tune_csv_head(void) {
  return "file,gpu,device,problem,tokens,row,stage,candidate,ms,spread,heuristic_ms,gain,note\n";
}

static void csv_field(nsai_writer *out, const char *text) {
  bool quoted = strpbrk(text, ",\"\r\n") != NULL;
  if (quoted) nsai_write(out, "\"");
  for (; *text; text++) nsai_write(out, quoted && *text == '"' ? "\"\"" : "%c", *text);
  if (quoted) nsai_write(out, "\"");
}

/* An empty field where `there` is false or the value is not finite. */
static void csv_number(nsai_writer *out, bool there, double value) {
  nsai_write(out, ",");
  if (there && isfinite(value)) nsai_write(out, "%.6g", value);
}

/* The first fields of every row. */
static void csv_subject(nsai_writer *out, const nsai_tune_subject *subject) {
  csv_field(out, subject->file);
  if (!subject->device) {
    nsai_write(out, ",,,");
    return;
  }
  nsai_write(out, ",cuda:%d,", subject->gpu);
  csv_field(out, subject->device);
  nsai_write(out, ",");
}

static void csv_row(nsai_writer *out, const nsai_tune_subject *subject, const nsai_tune_span *span,
                    const nsa_tune_event *e) {
  const char *state = nsai_tune_state(e->kind);
  bool chosen = e->kind == NSA_TUNE_CHOSEN, baseline = e->kind == NSA_TUNE_BASELINE;
  bool timed = chosen || baseline || e->kind == NSA_TUNE_TIMED;
  if (!state && !chosen && !baseline) return;
  csv_subject(out, subject);
  csv_field(out, span->events[0].problem);
  nsai_write(out, ",%" PRId64 ",%s,", span->events[0].tokens,
             state    ? state
             : chosen ? "chosen"
                      : "baseline");
  csv_field(out, e->stage);
  nsai_write(out, ",");
  csv_field(out, e->candidate);
  csv_number(out, timed, e->ms);
  csv_number(out, timed, e->spread);
  csv_number(out, chosen, nsai_tune_default_ms(e));
  csv_number(out, chosen, e->gain);
  nsai_write(out, ",");
  csv_field(out, e->note);
  nsai_write(out, "\n");
}

void nsai_tune_csv_problems(nsai_writer *out, const nsai_tune_subject *subject,
                            const nsai_tune_results *results) {
  nsai_tune_span span = { 0 };
  while (nsai_tune_next(results, &span))
    for (size_t i = 0; i < span.count; i++) csv_row(out, subject, &span, &span.events[i]);
}

void nsai_tune_csv_series(nsai_writer *out, const nsai_tune_subject *subject,
                          const nsai_tune_point *points, size_t count) {
  double crossover = nsai_tune_crossover(points, count);
  csv_subject(out, subject);
  csv_field(out, points[0].problem);
  nsai_write(out, ",");
  if (isfinite(crossover) && crossover > 0) nsai_write(out, "%.0f", crossover);
  nsai_write(out, ",crossover,,,,,,,%s\n", nsai_tune_where_faster(crossover));
}
