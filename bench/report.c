/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "report.h"

#include "verify/result.h"

#include <stdlib.h>

/* ---- the columns of a part ------------------------------------------------------------------- */

/* The columns of a part in text and Markdown tables; 0: missing. */
typedef struct column {
  const char *text, *markdown; /* its heading; at most 9 characters in text */
  int decimals;
  double (*value)(const bench_problem *, bench_part);
} column;

static double burst(const bench_problem *p, bench_part part) { return p->part[part].burst_ms; }
static double sustained(const bench_problem *p, bench_part part) {
  return p->part[part].sustained_ms;
}
static double tflops(const bench_problem *p, bench_part part) { return p->part[part].tflops; }
static double gbps(const bench_problem *p, bench_part part) { return p->part[part].gbps; }
static double roofline(const bench_problem *p, bench_part part) {
  return 100 * p->part[part].roofline;
}
static double dense_ratio(const bench_problem *p, bench_part part) {
  return bench_ratio(p, bench_ms(p, BENCH_DENSE), part);
}
static double best_ratio(const bench_problem *p, bench_part part) {
  return bench_ratio(p, bench_baseline_ms(p), part);
}
static double megabytes(const bench_problem *p, bench_part part) {
  return 1e-6 * (double)p->part[part].workspace;
}

static const column columns[] = {
  { "burst ms", "burst ms", 3, burst },       { "sustained", "sustained ms", 3, sustained },
  { "TFLOP/s", "TFLOP/s", 1, tflops },        { "GB/s", "GB/s", 1, gbps },
  { "roofline%", "roofline %", 1, roofline }, { "dense/", "dense / part", 2, dense_ratio },
  { "best/", "best / part", 2, best_ratio },  { "work MB", "workspace MB", 1, megabytes },
};
#define COLUMNS (sizeof columns / sizeof *columns)

/* ---- text ------------------------------------------------------------------------------------ */

/* Writes a number in a column of width 9, or a dash when it is 0 (missing). */
static void put_cell(FILE *out, int decimals, double value) {
  if (value > 0)
    fprintf(out, " %9.*f", decimals, value);
  else
    fprintf(out, " %9s", "-");
}

void bench_report_problem(FILE *out, const bench_problem *p) {
  char problem[NSAI_VERIFY_CASE_TEXT];
  nsai_verify_case_print(&p->c, problem, sizeof problem);
  fprintf(out, "\n%s\n  %s; r %.3f, U(4) %.1f, U(8) %.1f; plan cold %.0f ms, warm %.1f ms\n",
          problem, p->device, p->overlap.r, p->overlap.u4, p->overlap.u8, p->plan_cold_ms,
          p->plan_warm_ms);
  if (p->variants[0]) fprintf(out, "  %s\n", p->variants);
  fprintf(out, "  %-11s", "part");
  for (size_t i = 0; i < COLUMNS; i++) fprintf(out, " %9s", columns[i].text);
  fputc('\n', out);
  for (int i = 0; i < BENCH_PARTS; i++) {
    const bench_time *t = &p->part[i];
    if (!t->present) continue;
    fprintf(out, "  %-11s", bench_part_names[i]);
    if (t->note[0]) {
      fprintf(out, " %s\n", t->note);
      continue;
    }
    for (size_t k = 0; k < COLUMNS; k++)
      put_cell(out, columns[k].decimals, columns[k].value(p, (bench_part)i));
    fputc('\n', out);
  }
}

/* "forward, random, heads 64/4: faster than dense from 7300 tokens on, interpolated". */
static void put_crossover(FILE *out, const bench_series *s) {
  const nsai_model *g = &s->first->c.model;
  static const char *const before[] = { [BENCH_CROSS_FOUND] = "faster than dense from",
                                        [BENCH_CROSS_BELOW] = "faster than dense from",
                                        [BENCH_CROSS_ABOVE] = "slower than dense up to" };
  static const char *const after[] = { [BENCH_CROSS_FOUND] = "on, interpolated",
                                       [BENCH_CROSS_BELOW] = "on, the shortest length",
                                       [BENCH_CROSS_ABOVE] = "at least, the longest length" };
  fprintf(out, "%s, %s, heads %d/%d: %s %.0f tokens %s\n", bench_part_names[s->part],
          bench_fill_name(s->first), g->heads, g->kv_heads, before[s->crossing], s->tokens,
          after[s->crossing]);
}

/* Writes each crossover after `prefix`. */
static nsa_status put_crossovers(FILE *out, const bench_results *results, const char *prefix) {
  bench_series *series;
  int64_t count;
  NSAI_TRY(bench_crossovers(results, &series, &count));
  for (int64_t i = 0; i < count; i++) {
    fputs(prefix, out);
    put_crossover(out, &series[i]);
  }
  free(series);
  return NSA_OK;
}

nsa_status bench_report_summary(FILE *out, const bench_results *results) {
  fprintf(out, "\n%-8s %-6s %-10s %-10s %9s %9s %9s %9s\n", "tokens", "heads", "inputs", "sparse",
          "sparse ms", "dense ms", "dense/", "best/");
  for (int64_t i = 0; i < results->count; i++) {
    const bench_problem *p = &results->problem[i];
    bench_part lead = bench_lead(p);
    char heads[24];
    if (lead == BENCH_PARTS) continue;
    snprintf(heads, sizeof heads, "%d/%d", p->c.model.heads, p->c.model.kv_heads);
    fprintf(out, "%-8lld %-6s %-10s %-10s", (long long)bench_tokens(p), heads, bench_fill_name(p),
            bench_part_names[lead]);
    put_cell(out, 3, bench_ms(p, lead));
    put_cell(out, 3, bench_ms(p, BENCH_DENSE));
    put_cell(out, 2, bench_ratio(p, bench_ms(p, BENCH_DENSE), lead));
    put_cell(out, 2, bench_ratio(p, bench_baseline_ms(p), lead));
    fputc('\n', out);
  }
  return put_crossovers(out, results, "");
}

/* ---- Markdown -------------------------------------------------------------------------------- */

/* Writes a cell, empty when the value is 0 (missing). */
static void put_field(FILE *out, int decimals, double value) {
  if (value > 0)
    fprintf(out, " %.*f |", decimals, value);
  else
    fputs(" |", out);
}

static void put_both(FILE *out, const bench_problem *p, bench_part part) {
  if (bench_ms(p, part) > 0)
    fprintf(out, " %.2f / %.2f |", p->part[part].burst_ms, p->part[part].sustained_ms);
  else
    fputs(" |", out);
}

int64_t bench_report_table(FILE *out, const bench_results *results) {
  int64_t rows = 0;
  for (int64_t i = 0; i < results->count; i++) {
    const bench_problem *p = &results->problem[i];
    if (!(bench_ms(p, BENCH_FORWARD) > 0)) continue;
    if (!rows++)
      fputs("| tokens | heads | inputs (r, U(4), U(8)) | forward | compressed | window | dense | "
            "dense / forward |\n|---|---|---|---|---|---|---|---|\n",
            out);
    fprintf(out, "| %lld | %d/%d | %s (%.2f, %.0f, %.0f) |", (long long)bench_tokens(p),
            p->c.model.heads, p->c.model.kv_heads, bench_fill_name(p), p->overlap.r, p->overlap.u4,
            p->overlap.u8);
    put_both(out, p, BENCH_FORWARD);
    put_both(out, p, BENCH_COMPRESSED);
    put_both(out, p, BENCH_WINDOW);
    put_both(out, p, BENCH_DENSE);
    put_field(out, 2, bench_ratio(p, bench_ms(p, BENCH_DENSE), BENCH_FORWARD));
    fputc('\n', out);
  }
  return rows;
}

static void put_rows(FILE *out, const bench_problem *p) {
  for (int i = 0; i < BENCH_PARTS; i++) {
    const bench_time *t = &p->part[i];
    if (!t->present) continue;
    fprintf(out, "| %lld | %d/%d | %s | %s |", (long long)bench_tokens(p), p->c.model.heads,
            p->c.model.kv_heads, bench_fill_name(p), bench_part_names[i]);
    for (size_t k = 0; k < COLUMNS; k++)
      put_field(out, columns[k].decimals, columns[k].value(p, (bench_part)i));
    if (t->note[0]) fputc(' ', out);
    for (const char *c = t->note; *c; c++) {
      if (*c == '|') fputc('\\', out);
      fputc(*c, out);
    }
    fputs(" |\n", out);
  }
}

nsa_status bench_report_markdown(FILE *out, const bench_results *results) {
  const bench_problem *first = &results->problem[0];
  fprintf(out, "# %s, %.10s%s%s\n\n", first->device, first->date,
          first->commit[0] ? ", commit " : "", first->commit);
  if (bench_report_table(out, results)) fputc('\n', out);
  fputs("| tokens | heads | inputs | part |", out);
  for (size_t i = 0; i < COLUMNS; i++) fprintf(out, " %s |", columns[i].markdown);
  fputs(" note |\n|---|---|---|---|", out);
  for (size_t i = 0; i < COLUMNS; i++) fputs("---|", out);
  fputs("---|\n", out);
  for (int64_t i = 0; i < results->count; i++) put_rows(out, &results->problem[i]);
  fputc('\n', out);
  return put_crossovers(out, results, "- ");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

void bench_json_member(FILE *out, const char *name, double value, int known) {
  fprintf(out, ", \"%s\": ", name);
  if (known)
    nsai_verify_json_number(out, value);
  else
    fputs("null", out);
}

void bench_json_string(FILE *out, const char *before, const char *text) {
  fputs(before, out);
  nsai_verify_json_string(out, text);
}

static void json_part(FILE *out, const bench_problem *p, bench_part part) {
  const bench_time *t = &p->part[part];
  int timed = t->burst_ms > 0;
  double dense = bench_ratio(p, bench_ms(p, BENCH_DENSE), part);
  double best = bench_ratio(p, bench_baseline_ms(p), part);
  bench_json_string(out, "{\"part\": ", bench_part_names[part]);
  bench_json_member(out, "burst_ms", t->burst_ms, timed);
  bench_json_member(out, "sustained_ms", t->sustained_ms, timed);
  bench_json_member(out, "tflops", t->tflops, timed);
  bench_json_member(out, "gbps", t->gbps, timed);
  bench_json_member(out, "roofline", t->roofline, t->roofline > 0);
  bench_json_member(out, "dense_ratio", dense, dense > 0);
  bench_json_member(out, "baseline_ratio", best, best > 0);
  fprintf(out, ", \"workspace\": %llu", (unsigned long long)t->workspace);
  bench_json_string(out, ", \"note\": ", t->note);
  fputc('}', out);
}

static void json_problem(FILE *out, const bench_problem *p) {
  char problem[NSAI_VERIFY_CASE_TEXT];
  const char *gap = "";
  nsai_verify_case_print(&p->c, problem, sizeof problem);
  bench_json_string(out, "{\"problem\": ", problem);
  bench_json_string(out, ",\n \"date\": ", p->date);
  bench_json_string(out, ", \"commit\": ", p->commit);
  bench_json_string(out, ", \"device\": ", p->device);
  bench_json_string(out, ", \"variants\": ", p->variants);
  bench_json_string(out, ", \"fill\": ", bench_fill_name(p));
  fprintf(out, ", \"tokens\": %lld", (long long)bench_tokens(p));
  bench_json_member(out, "r", p->overlap.r, 1);
  bench_json_member(out, "u4", p->overlap.u4, 1);
  bench_json_member(out, "u8", p->overlap.u8, 1);
  bench_json_member(out, "plan_cold_ms", p->plan_cold_ms, p->plan_cold_ms > 0);
  bench_json_member(out, "plan_warm_ms", p->plan_warm_ms, p->plan_warm_ms > 0);
  fputs(",\n \"parts\": [", out);
  for (int i = 0; i < BENCH_PARTS; i++) {
    if (!p->part[i].present) continue;
    fprintf(out, "%s\n  ", gap);
    json_part(out, p, (bench_part)i);
    gap = ",";
  }
  fputs("]}", out);
}

static void json_crossover(FILE *out, const bench_series *s) {
  static const char *const names[] = {
    [BENCH_CROSS_FOUND] = "found", [BENCH_CROSS_BELOW] = "below", [BENCH_CROSS_ABOVE] = "above"
  };
  const nsai_model *g = &s->first->c.model;
  bench_json_string(out, "{\"part\": ", bench_part_names[s->part]);
  bench_json_string(out, ", \"fill\": ", bench_fill_name(s->first));
  fprintf(out, ", \"heads\": %d, \"kv_heads\": %d, \"crossing\": \"%s\"", g->heads, g->kv_heads,
          names[s->crossing]);
  bench_json_member(out, "tokens", s->tokens, 1);
  fputc('}', out);
}

nsa_status bench_report_json(FILE *out, const bench_results *results) {
  bench_series *series;
  int64_t count;
  NSAI_TRY(bench_crossovers(results, &series, &count));
  fputs("{\"results\": [", out);
  for (int64_t i = 0; i < results->count; i++) {
    fputs(i ? ",\n" : "\n", out);
    json_problem(out, &results->problem[i]);
  }
  fputs("],\n\"crossovers\": [", out);
  for (int64_t i = 0; i < count; i++) {
    fputs(i ? ",\n" : "\n", out);
    json_crossover(out, &series[i]);
  }
  fputs("]}\n", out);
  free(series);
  return NSA_OK;
}
