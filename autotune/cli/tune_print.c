/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Prints the main results as text or Markdown, and selects among all formats. JSON and CSV
 * contain everything and have files of their own.
 */
#include "cli/tune_print_impl.h"

#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables of text and Markdown ---- */

#define COLUMNS 6
#define CELL_BYTES 192 /* a candidate has at most 128 bytes */

typedef struct table {
  nsai_writer *out;
  bool markdown;
  int columns, words; /* the first `words` columns are left-aligned, numbers right-aligned */
  int width[COLUMNS]; /* text only */
} table;

static void put_row(const table *t, char cells[][CELL_BYTES]) {
  for (int i = 0; i < t->columns; i++) {
    if (t->markdown)
      nsai_write(t->out, "%s%s%s", i ? " | " : "| ", cells[i], i + 1 < t->columns ? "" : " |\n");
    else
      nsai_write(t->out, "  %*s%s", i < t->words ? -t->width[i] : t->width[i], cells[i],
                 i + 1 < t->columns ? "" : "\n");
  }
}

static void put_head(const table *t, const char *const *names) {
  char cells[COLUMNS][CELL_BYTES];
  for (int i = 0; i < t->columns; i++) snprintf(cells[i], CELL_BYTES, "%s", names[i]);
  put_row(t, cells);
  for (int i = 0; i < t->columns && t->markdown; i++)
    nsai_write(t->out, "%s%s", i < t->words ? "|---" : "|---:", i + 1 < t->columns ? "" : "|\n");
}

static void put_share(char cell[CELL_BYTES], double share) {
  if (isfinite(share))
    snprintf(cell, CELL_BYTES, "%.1f %%", 100 * share);
  else
    snprintf(cell, CELL_BYTES, "-");
}

/* Below this, times (of decode steps) are printed with more digits. */
#define SHORT_MS 0.1

static void put_ms(char cell[CELL_BYTES], double ms) {
  if (isfinite(ms))
    snprintf(cell, CELL_BYTES, ms < SHORT_MS ? "%.5f" : "%.3f", ms);
  else
    snprintf(cell, CELL_BYTES, "-");
}

/* ---- one problem, for people ---- */

/* Remarks about the winners. */
static void put_notes(nsai_writer *out, bool markdown, const nsai_tune_span *span) {
  bool any = false;
  for (size_t i = 0; i < span->count; i++) {
    const nsa_tune_event *e = &span->events[i];
    if (e->kind != NSA_TUNE_CHOSEN || !e->note[0]) continue;
    nsai_write(out, "%s%s: %s\n", markdown ? "- " : "  ", e->stage, e->note);
    any = true;
  }
  nsai_write(out, "%s", any && markdown ? "\n" : "");
}

static void put_stages(nsai_writer *out, bool markdown, const nsai_tune_span *span) {
  static const char *const names[] = { "stage", "candidate", "ms", "spread", "heuristic", "gain" };
  table t = { out, markdown, COLUMNS, 2, { 16, 9, 9, 8, 9, 7 } };
  char cells[COLUMNS][CELL_BYTES];
  if (!nsai_tune_count(span, NSA_TUNE_CHOSEN)) return;
  for (size_t i = 0; i < span->count; i++) {
    int length = (int)strlen(span->events[i].candidate);
    if (span->events[i].kind == NSA_TUNE_CHOSEN && length > t.width[1]) t.width[1] = length;
  }
  put_head(&t, names);
  for (size_t i = 0; i < span->count; i++) {
    const nsa_tune_event *e = &span->events[i];
    if (e->kind != NSA_TUNE_CHOSEN) continue;
    snprintf(cells[0], CELL_BYTES, "%s", e->stage);
    snprintf(cells[1], CELL_BYTES, "%s", e->candidate);
    put_ms(cells[2], e->ms);
    put_share(cells[3], nsai_tune_spread(span, e));
    put_ms(cells[4], nsai_tune_default_ms(e));
    put_share(cells[5], e->gain);
    put_row(&t, cells);
  }
  nsai_write(out, "%s", markdown ? "\n" : "");
  put_notes(out, markdown, span);
}

static void put_baselines(nsai_writer *out, bool markdown, const nsai_tune_span *span) {
  static const char *const names[] = { "whole", "ms", "spread" };
  table t = { out, markdown, 3, 1, { 16, 9, 8 } };
  char cells[COLUMNS][CELL_BYTES];
  if (!nsai_tune_count(span, NSA_TUNE_BASELINE)) return;
  put_head(&t, names);
  for (size_t i = 0; i < span->count; i++) {
    const nsa_tune_event *e = &span->events[i];
    if (e->kind != NSA_TUNE_BASELINE) continue;
    snprintf(cells[0], CELL_BYTES, "%s", e->candidate);
    put_ms(cells[1], e->ms);
    put_share(cells[2], e->spread);
    put_row(&t, cells);
  }
  nsai_write(out, "%s", markdown ? "\n" : "");
}

/* The result of a dry run: the list and the estimate. */
static void put_plan(nsai_writer *out, bool markdown, const nsai_tune_span *span) {
  const char *indent = markdown ? "- " : "  ";
  size_t planned = nsai_tune_count(span, NSA_TUNE_PLANNED);
  if (!planned) return;
  for (size_t i = 0; i < span->count; i++)
    if (span->events[i].kind == NSA_TUNE_PLANNED)
      nsai_write(out, "%s%-16s  %s\n", indent, span->events[i].stage, span->events[i].candidate);
  nsai_write(out, "%s%s%zu candidate%s, about %.0f s\n", markdown ? "\n" : "",
             markdown ? "" : indent, planned, planned == 1 ? "" : "s", span->events[0].ms / 1e3);
}

static void put_counts(nsai_writer *out, bool markdown, const nsai_tune_span *span) {
  const nsa_tune_event *done = nsai_tune_find(span, NSA_TUNE_DONE, NULL, NULL);
  const char *indent = markdown ? "- " : "  ";
  size_t timed = nsai_tune_count(span, NSA_TUNE_TIMED);
  size_t refused = nsai_tune_count(span, NSA_TUNE_REFUSED);
  size_t wrong = nsai_tune_count(span, NSA_TUNE_WRONG);
  if (timed || refused || wrong)
    nsai_write(out, "%s%zu timed, %zu refused, %zu wrong\n", indent, timed, refused, wrong);
  for (size_t i = 0; i < span->count; i++)
    if (span->events[i].kind == NSA_TUNE_WRONG)
      nsai_write(out, "%swrong: %s %s: %s\n", indent, span->events[i].stage,
                 span->events[i].candidate, span->events[i].note);
  if (done && done->note[0])
    nsai_write(out, "%s%s\n", indent, done->note);
  else if (!done && !nsai_tune_count(span, NSA_TUNE_PLANNED))
    nsai_write(out, "%snot finished\n", indent);
}

static void put_problem(nsai_writer *out, bool markdown, const nsai_tune_span *span) {
  const nsa_tune_event *first = span->events;
  if (markdown)
    nsai_write(out, "### `%s` at %" PRId64 " tokens\n\n", first->problem, first->tokens);
  else
    nsai_write(out, "%s at %" PRId64 " tokens\n", first->problem, first->tokens);
  put_plan(out, markdown, span);
  put_stages(out, markdown, span);
  put_baselines(out, markdown, span);
  put_counts(out, markdown, span);
  nsai_write(out, "\n");
}

/* ---- sparse against dense, for people ---- */

static void put_series(nsai_writer *out, bool markdown, const nsai_tune_point *points,
                       size_t count) {
  static const char *const names[] = { "better baseline", "tokens", "forward ms", "baseline ms",
                                       "ratio" };
  table t = { out, markdown, 5, 1, { 16, 9, 10, 11, 7 } };
  char cells[COLUMNS][CELL_BYTES], inputs[NSAI_TUNE_INPUTS_BYTES];
  double crossover = nsai_tune_crossover(points, count);
  nsai_write(out, markdown ? "### Inputs `%s`\n\n" : "inputs %s\n",
             nsai_tune_inputs(points[0].problem, inputs));
  put_head(&t, names);
  for (size_t i = 0; i < count; i++) {
    const nsai_tune_point *p = &points[i];
    snprintf(cells[0], CELL_BYTES, "%s", p->dense);
    snprintf(cells[1], CELL_BYTES, "%" PRId64, p->tokens);
    put_ms(cells[2], p->forward_ms);
    put_ms(cells[3], p->dense_ms);
    snprintf(cells[4], CELL_BYTES, "%.2f", p->dense_ms / p->forward_ms);
    put_row(&t, cells);
  }
  nsai_write(out, "%s", markdown ? "\n" : "  ");
  if (isinf(crossover))
    nsai_write(out, "crossover: none; at %" PRId64 " tokens dense attention is faster\n\n",
               points[count - 1].tokens);
  else if (crossover > 0)
    nsai_write(out, "crossover: the sparse forward is faster from about %.0f tokens on\n\n",
               crossover);
  else
    nsai_write(out, "crossover: the sparse forward is faster from %" PRId64 " tokens on\n\n",
               points[0].tokens);
}

/* ---- all formats ---- */

double nsai_tune_spread(const nsai_tune_span *span, const nsa_tune_event *chosen) {
  const nsa_tune_event *timed =
      nsai_tune_find(span, NSA_TUNE_TIMED, chosen->stage, chosen->candidate);
  return chosen->spread > 0 || !timed ? chosen->spread : timed->spread;
}

const char *nsai_tune_state(int32_t kind) {
  switch (kind) {
  case NSA_TUNE_PLANNED: return "planned";
  case NSA_TUNE_TIMED: return "timed";
  case NSA_TUNE_REFUSED: return "refused";
  case NSA_TUNE_WRONG: return "wrong";
  default: return NULL;
  }
}

const char *nsai_tune_where_faster(double crossover) {
  return isinf(crossover) ? "not at the longest"
         : crossover > 0  ? "from the crossover on"
                          : "at every length";
}

const char *nsai_tune_head(nsai_tune_format format) {
  return format == NSAI_TUNE_JSON ? "[" : format == NSAI_TUNE_CSV ? nsai_tune_csv_head() : "";
}

const char *nsai_tune_foot(nsai_tune_format format) {
  return format == NSAI_TUNE_JSON ? "]\n" : "";
}

void nsai_tune_print_problems(nsai_writer *out, nsai_tune_format format,
                              const nsai_tune_results *results) {
  nsai_tune_span span = { 0 };
  bool first = true;
  if (format == NSAI_TUNE_CSV) {
    nsai_tune_csv_problems(out, &(nsai_tune_subject){ .file = "" }, results);
    return;
  }
  if (format == NSAI_TUNE_JSON) nsai_write(out, "[");
  for (; nsai_tune_next(results, &span); first = false) {
    if (format != NSAI_TUNE_JSON) {
      put_problem(out, format == NSAI_TUNE_MARKDOWN, &span);
      continue;
    }
    nsai_write(out, "%s\n  ", first ? "" : ",");
    nsai_tune_json_problem(out, &span);
  }
  if (format == NSAI_TUNE_JSON) nsai_write(out, "]");
}

static nsa_status print_summary(nsai_writer *out, nsai_tune_format format,
                                const nsai_tune_subject *subject,
                                const nsai_tune_results *results) {
  size_t count, same;
  nsai_tune_point *points;
  NSAI_TRY(nsai_tune_points(results, &points, &count));
  if (format == NSAI_TUNE_JSON) nsai_write(out, "[");
  for (size_t at = 0; at < count; at += same) {
    same = nsai_tune_series(points + at, count - at);
    if (format == NSAI_TUNE_CSV) {
      nsai_tune_csv_series(out, subject, points + at, same);
    } else if (format == NSAI_TUNE_JSON) {
      nsai_write(out, "%s\n  ", at ? "," : "");
      nsai_tune_json_series(out, points + at, same);
    } else {
      put_series(out, format == NSAI_TUNE_MARKDOWN, points + at, same);
    }
  }
  if (format == NSAI_TUNE_JSON) nsai_write(out, "]");
  free(points);
  return NSA_OK;
}

nsa_status nsai_tune_print_summary(nsai_writer *out, nsai_tune_format format,
                                   const nsai_tune_results *results) {
  return print_summary(out, format, &(nsai_tune_subject){ .file = "" }, results);
}

/* "base.yaml on cuda:0 (NVIDIA H200); its records also serve cuda:1, cuda:3" */
static void put_subject(nsai_writer *out, bool markdown, const nsai_tune_subject *subject) {
  int32_t others = 0;
  nsai_write(out, "%s%s", markdown ? "## " : "", subject->file);
  if (subject->device) nsai_write(out, " on cuda:%d (%s)", subject->gpu, subject->device);
  for (int32_t i = 0; i < subject->serves_count; i++)
    if (subject->serves[i] != subject->gpu)
      nsai_write(out, "%scuda:%d", others++ ? ", " : "; its records also serve ",
                 subject->serves[i]);
  nsai_write(out, "\n\n");
}

nsa_status nsai_tune_print(nsai_writer *out, nsai_tune_format format,
                           const nsai_tune_subject *subject, const nsai_tune_results *results) {
  if (format == NSAI_TUNE_CSV) {
    nsai_tune_csv_problems(out, subject, results);
    return print_summary(out, format, subject, results);
  }
  if (format == NSAI_TUNE_JSON) {
    nsai_tune_json_subject(out, subject);
    nsai_write(out, ", \"problems\": ");
  } else {
    put_subject(out, format == NSAI_TUNE_MARKDOWN, subject);
  }
  nsai_tune_print_problems(out, format, results);
  if (format == NSAI_TUNE_JSON) nsai_write(out, ",\n \"summary\": ");
  NSAI_TRY(nsai_tune_print_summary(out, format, results));
  if (format == NSAI_TUNE_JSON) nsai_write(out, "}");
  return NSA_OK;
}
