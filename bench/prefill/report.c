/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "report.h"
#include "base/error.h"
#include "prefill/prefill.h"

#include <math.h>
#include <stdlib.h>

/* ---- values ---------------------------------------------------------------------------------- */

void bench_prefill_values(const bench_prefill_cell *c, double value[BENCH_PREFILL_VALUES]) {
  static const bench_prefill_value value_of[BENCH_PREFILL_PARTS] = {
    [BENCH_PREFILL_PROMPT] = BENCH_PREFILL_MS_PROMPT,
    [BENCH_PREFILL_LAST] = BENCH_PREFILL_MS_LAST,
    [BENCH_PREFILL_MIXED] = BENCH_PREFILL_MS_MIXED,
    [BENCH_PREFILL_ROWS] = BENCH_PREFILL_MS_ROWS,
    [BENCH_PREFILL_DECODE] = BENCH_PREFILL_MS_DECODE,
    [BENCH_PREFILL_FORWARD] = BENCH_PREFILL_MS_FORWARD,
    [BENCH_PREFILL_DENSE] = BENCH_PREFILL_MS_DENSE,
  };
  const double *ms = c->ms;
  for (int i = 0; i < BENCH_PREFILL_PARTS; i++)
    value[value_of[i]] = ms[i] > 0 ? ms[i] : (double)NAN;
  /* NAN if one of both is. */
  value[BENCH_PREFILL_MS_ADDED] = value[BENCH_PREFILL_MS_MIXED] - value[BENCH_PREFILL_MS_LAST];
  value[BENCH_PREFILL_OVER_FORWARD] =
      value[BENCH_PREFILL_MS_PROMPT] / value[BENCH_PREFILL_MS_FORWARD];
  value[BENCH_PREFILL_OVER_PROMPT] = value[BENCH_PREFILL_MS_DENSE] / value[BENCH_PREFILL_MS_PROMPT];
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* The columns' names on the terminal and in Markdown. */
static const char *const heads[BENCH_PREFILL_VALUES] = { "prompt",      "last",  "mixed",
                                                         "added",       "rows",  "decode",
                                                         "forward",     "dense", "prompt/forward",
                                                         "dense/prompt" };

static int is_time(int value) { return value <= BENCH_PREFILL_MS_DENSE; }

static void put_head(FILE *out, const bench_prefill_options *o) {
  fputs("milliseconds of nsa_kv_append and nsa_prefill, ", out);
  if (o->page_size > 0)
    fprintf(out, "pages of %d", o->page_size);
  else
    fputs("without pages", out);
  bench_cached_describe(&o->dtypes, out);
  if (o->rows) fprintf(out, "; mixed: the last chunk beside %d rows that decode", o->rows);
  fprintf(out, "\n%8s %8s", "context", "chunk");
  for (int i = 0; i < BENCH_PREFILL_VALUES; i++)
    fprintf(out, is_time(i) ? " %8s" : " %14s", heads[i]);
  fputc('\n', out);
}

static void put_cell(FILE *out, const bench_prefill_cell *c) {
  double value[BENCH_PREFILL_VALUES];
  bench_prefill_values(c, value);
  fprintf(out, "%8lld %8lld", (long long)c->context, (long long)c->chunk);
  for (int i = 0; i < BENCH_PREFILL_VALUES; i++) {
    const int width = is_time(i) ? 8 : 14;
    if (isnan(value[i]))
      fprintf(out, " %*s", width, "-");
    else
      fprintf(out, " %*.*f", width, is_time(i) ? 3 : 2, value[i]);
  }
  fprintf(out, c->note[0] ? "  %s\n" : "%s\n", c->note);
}

void bench_prefill_markdown(FILE *out, const bench_prefill_sheet *s) {
  fputs("| context | chunk", out);
  for (int i = 0; i < BENCH_PREFILL_VALUES; i++) fprintf(out, " | %s", heads[i]);
  fputs(" |\n|---|---", out);
  for (int i = 0; i < BENCH_PREFILL_VALUES; i++) fputs("|---", out);
  fputs("|\n", out);
  for (const bench_prefill_cell *c = s->cells; c < s->cells + s->count; c++) {
    double value[BENCH_PREFILL_VALUES];
    bench_prefill_values(c, value);
    fprintf(out, "| %lld | %lld", (long long)c->context, (long long)c->chunk);
    for (int i = 0; i < BENCH_PREFILL_VALUES; i++)
      if (isnan(value[i]))
        fputs(" | ", out);
      else
        fprintf(out, " | %.*f", is_time(i) ? 3 : 2, value[i]);
    fputs(" |\n", out);
  }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void json_cell(FILE *out, const bench_prefill_cell *c) {
  double value[BENCH_PREFILL_VALUES];
  char problem[NSAI_VERIFY_CASE_TEXT];
  bench_prefill_values(c, value);
  nsai_verify_case_print(&c->c, problem, sizeof problem);
  fprintf(out, "{\"context\": %lld, \"chunk\": %lld", (long long)c->context, (long long)c->chunk);
  bench_json_string(out, ", \"problem\": ", problem);
  for (int i = 0; i < BENCH_PREFILL_VALUES; i++)
    bench_json_member(out, bench_prefill_value_names[i], value[i], !isnan(value[i]));
  bench_json_string(out, ", \"variants\": ", c->variants);
  bench_json_string(out, ", \"mixed_variants\": ", c->mixed);
  bench_json_string(out, ", \"note\": ", c->note);
  fputc('}', out);
}

void bench_prefill_json(FILE *out, const bench_prefill_sheet *s) {
  const bench_prefill_options *o = &s->options;
  bench_json_string(out, "{\"commit\": ", s->commit);
  bench_json_string(out, ", \"device\": ", s->device);
  fprintf(out,
          ", \"page_size\": %d, \"rows\": %d, \"kv_dtype\": \"%s\", \"cmp_dtype\": "
          "\"%s\",\n\"cells\": [",
          o->page_size > 0 ? o->page_size : 0, o->rows, bench_cached_dtype_name(o->dtypes.kv),
          bench_cached_dtype_name(o->dtypes.cmp));
  for (int i = 0; i < s->count; i++) {
    fputs(i ? ",\n " : "\n ", out);
    json_cell(out, &s->cells[i]);
  }
  fputs("]}\n", out);
}

/* ---- all cells ------------------------------------------------------------------------------- */

nsai_verify_case bench_prefill_case(const nsai_verify_case *given, int64_t context) {
  nsai_verify_case c;
  nsai_verify_case_init(&c);
  c.model = given->model;
  c.fill = given->fill;
  c.seed = given->seed;
  c.overlap = given->overlap;
  c.force = given->force;
  c.num_seqs = 1;
  c.no_batch = 1;
  c.q_len[0] = c.kv_len[0] = context;
  return c;
}

/* Appends the cells of a context: the prompt in one piece, and in chunks that are shorter. Returns
 * their number. */
static int add_cells(bench_prefill_sheet *s, int64_t context) {
  const bench_prefill_options *o = &s->options;
  const int first = s->count;
  for (int i = -1; i < o->chunk_count; i++)
    if (i < 0 || o->chunks[i] < context)
      s->cells[s->count++] = (bench_prefill_cell){ .c = bench_prefill_case(&o->c, context),
                                                   .context = context,
                                                   .chunk = i < 0 ? context : o->chunks[i] };
  return s->count - first;
}

nsa_status bench_prefill(chk_plans *plans, const bench_prefill_options *o, const char *commit,
                         FILE *out, FILE *csv, int header, bench_prefill_sheet *s) {
  bench_rig rig = { 0 };
  int timed = 0;
  nsa_status status;
  *s = (bench_prefill_sheet){ .options = *o,
                              .device = chk_plans_device(plans)->name,
                              .commit = commit };
  NSAI_TRY(bench_cached_check("prefill", &o->c.model));
  s->cells = calloc((size_t)(o->context_count * (1 + o->chunk_count)), sizeof *s->cells);
  if (!s->cells) return nsai_fail_nomem("cells", sizeof *s->cells);
  NSAI_TRY_TO(done, bench_rig_create(plans, &rig));
  if (csv && header) bench_prefill_csv_header(csv);
  put_head(out, o);
  for (int i = 0; i < o->context_count; i++) {
    bench_prefill_cell *cells = &s->cells[s->count];
    const int count = add_cells(s, o->contexts[i]);
    bench_prefill_measure(&rig, o, cells, count);
    for (int k = 0; k < count; k++) {
      put_cell(out, &cells[k]);
      if (csv) bench_prefill_csv_line(csv, s, &cells[k]);
      if (csv) fflush(csv);
      timed += cells[k].ms[BENCH_PREFILL_PROMPT] > 0;
    }
    fflush(out);
  }
  if (!timed)
    NSAI_TRY_TO(done, nsai_fail(NSA_E_UNSUPPORTED, "no prompt could be timed: %s", s->cells->note));
done:
  bench_rig_destroy(&rig);
  return status;
}
