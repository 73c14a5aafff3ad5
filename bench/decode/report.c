/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "report.h"
#include "bandwidth.h"
#include "cached.h"
#include "csv.h"
#include "decode/decode.h"
#include "verify/result.h"

#include <stdlib.h>
#include <string.h>

/* ---- lines ----------------------------------------------------------------------------------- */

double bench_decode_gbps(double bytes, double us) { return us > 0 ? bytes / us * 1e-3 : 0; }

double bench_decode_tokens(const bench_decode_reads *reads) {
  double sum = 0;
  for (int b = 0; b < NSA_BRANCHES; b++) sum += (double)reads->tokens[b];
  return sum;
}

const bench_decode_cell *bench_decode_find(const bench_decode_cell *cells, int count,
                                           int64_t context, int64_t batch) {
  while (count-- > 0)
    if (cells[count].context == context && cells[count].batch == batch) return &cells[count];
  return NULL;
}

static void put_head(FILE *out, const bench_decode_table *t) {
  const bench_decode_options *o = t->options;
  char text[NSAI_VERIFY_CASE_TEXT];
  nsai_verify_case_print(&o->c, text, sizeof text);
  fprintf(out, "%s\nmicroseconds of a step of %d new tokens, ", text, o->q_len);
  if (o->page_size > 0)
    fprintf(out, "pages of %d", o->page_size);
  else
    fprintf(out, "without pages");
  bench_cached_describe(&o->dtypes, out);
  if (t->bandwidth > 0)
    fprintf(out, "; memory is read at %.0f GB/s, which shares are of", t->bandwidth);
  fprintf(out, "\n%8s %6s", "context", "batch");
  for (int i = 0; i < BENCH_DECODE_PARTS; i++) fprintf(out, " %8s", bench_decode_part_names[i]);
  fprintf(out, " %7s %6s %7s %7s %6s\n", "GB/s", "share", "dense/", "dense", "dense");
  fprintf(out, "%8s %6s%*s %7s %6s %7s %7s %6s\n", "", "", 9 * BENCH_DECODE_PARTS, "", "", "",
          "total", "GB/s", "share");
}

static void put_share(FILE *out, double part, double whole) {
  if (part > 0 && whole > 0)
    fprintf(out, " %4.0f %%", 100 * part / whole);
  else
    fprintf(out, " %6s", "-");
}

static void put_cell(FILE *out, const bench_decode_table *t, const bench_decode_cell *c) {
  const double *us = c->us;
  const double read = bench_decode_gbps((double)c->expected.bytes, us[BENCH_DECODE_TOTAL]);
  const double dense = bench_decode_gbps(c->dense_bytes, us[BENCH_DECODE_DENSE]);
  fprintf(out, "%8lld %6lld", (long long)c->context, (long long)c->batch);
  for (int i = 0; i < BENCH_DECODE_PARTS; i++)
    if (us[i] > 0)
      fprintf(out, " %8.1f", us[i]);
    else
      fprintf(out, " %8s", "-");
  fprintf(out, " %7.0f", read);
  put_share(out, read, t->bandwidth);
  if (dense > 0 && us[BENCH_DECODE_TOTAL] > 0) {
    fprintf(out, " %7.2f %7.0f", us[BENCH_DECODE_DENSE] / us[BENCH_DECODE_TOTAL], dense);
    put_share(out, dense, t->bandwidth);
  }
  fprintf(out, c->note[0] ? "  %s\n" : "%s\n", c->note);
}

/* Writes the branches' fractions of the step (each timed alone), and the tokens read per KV head
 * of a sequence, in total and by branch: counted / expected. */
static void put_summary(FILE *out, const bench_decode_table *t, const bench_decode_cell *cells) {
  const bench_decode_options *o = t->options;
  fprintf(out,
          "\nbranches' times over the step's, and tokens of K and V that a KV head of a sequence "
          "reads: counted / expected\n");
  fprintf(out, "%8s %6s %6s %6s %6s %13s %13s %13s %13s %8s\n", "context", "batch", "cmp", "sel",
          "win", "reads", "cmp", "sel", "win", "MB");
  for (int i = 0; i < o->context_count * o->batch_count; i++) {
    const bench_decode_cell *c = &cells[i];
    const double rows = (double)(c->batch * o->c.model.kv_heads);
    if (!(c->us[BENCH_DECODE_TOTAL] > 0)) continue;
    fprintf(out, "%8lld %6lld", (long long)c->context, (long long)c->batch);
    for (int b = BENCH_DECODE_CMP; b <= BENCH_DECODE_WIN; b++)
      put_share(out, c->us[b], c->us[BENCH_DECODE_TOTAL]);
    for (int b = -1; b < NSA_BRANCHES; b++) {
      char text[48];
      const bench_decode_reads *r[] = { &c->actual, &c->expected };
      double tokens[2];
      for (int k = 0; k < 2; k++)
        tokens[k] = (b < 0 ? bench_decode_tokens(r[k]) : (double)r[k]->tokens[b]) / rows;
      snprintf(text, sizeof text, "%.0f/%.0f", tokens[0], tokens[1]);
      fprintf(out, " %13s", text);
    }
    fprintf(out, " %8.1f\n", 1e-6 * (double)c->actual.bytes);
  }
}

/* ---- Markdown -------------------------------------------------------------------------------- */

/* Writes three digits, or whole microseconds. */
static void put_us(FILE *out, double us) { fprintf(out, us < 100 ? "%.1f" : "%.0f", us); }

/* `shares`: other cells have bandwidth fractions. */
static void put_place(FILE *out, const bench_decode_cell *c, bool shares) {
  const double us = c ? c->us[BENCH_DECODE_TOTAL] : 0, dense = c ? c->us[BENCH_DECODE_DENSE] : 0;
  fputs(" | ", out);
  if (!(us > 0)) return;
  put_us(out, us);
  if (dense > 0) fputs(", ", out), put_us(out, dense);
  if (c->bandwidth > 0 && c->expected.bytes)
    fprintf(out, "; %.0f %%",
            100 * bench_decode_gbps((double)c->expected.bytes, us) / c->bandwidth);
  else if (shares)
    fputs("; -", out);
}

void bench_decode_markdown(FILE *out, const bench_decode_sheet *s) {
  const bench_decode_options *o = &s->options;
  bool shares = false;
  for (int i = 0; i < s->count; i++) shares |= s->cells[i].bandwidth > 0;
  fputs("| context", out);
  for (int b = 0; b < o->batch_count; b++)
    fprintf(out, b ? " | %lld" : " | %lld sequence%s, dense", (long long)o->batches[b],
            o->batches[b] > 1 ? "s" : "");
  fputs(" |\n|---", out);
  for (int b = 0; b < o->batch_count; b++) fputs("|---", out);
  fputs("|\n", out);
  for (int i = 0; i < o->context_count; i++) {
    fprintf(out, "| %lld", (long long)o->contexts[i]);
    for (int b = 0; b < o->batch_count; b++)
      put_place(out, bench_decode_find(s->cells, s->count, o->contexts[i], o->batches[b]), shares);
    fputs(" |\n", out);
  }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_reads(FILE *out, const char *name, const bench_decode_reads *r) {
  fprintf(out, ", \"%s\": {\"cmp\": %lld, \"sel\": %lld, \"win\": %lld, \"bytes\": %lld}", name,
          (long long)r->tokens[NSA_CMP], (long long)r->tokens[NSA_SEL],
          (long long)r->tokens[NSA_WIN], (long long)r->bytes);
}

/* Times are named as in the CSV, null if missing; tokens are totals over all sequences and KV
 * heads. */
static void json_cell(FILE *out, const bench_decode_cell *c) {
  fprintf(out, "{\"context\": %lld, \"batch\": %lld, \"copies\": %lld", (long long)c->context,
          (long long)c->batch, (long long)c->copies);
  for (int i = 0; i < BENCH_DECODE_PARTS; i++) {
    char name[32];
    snprintf(name, sizeof name, "ms_%s", bench_decode_part_names[i]);
    bench_json_member(out, name, c->us[i] * 1e-3, c->us[i] > 0);
  }
  put_reads(out, "reads_actual", &c->actual);
  put_reads(out, "reads_expected", &c->expected);
  fputs(", \"dense_bytes\": ", out);
  nsai_verify_json_number(out, c->dense_bytes);
  bench_json_string(out, ", \"variants\": ", c->variants);
  bench_json_string(out, ", \"note\": ", c->note);
  fputc('}', out);
}

void bench_decode_json(FILE *out, const bench_decode_sheet *s, const char *device,
                       const char *commit) {
  const bench_decode_options *o = &s->options;
  char problem[NSAI_VERIFY_CASE_TEXT];
  nsai_verify_case_print(&o->c, problem, sizeof problem);
  bench_json_string(out, "{\"problem\": ", problem);
  bench_json_string(out, ", \"commit\": ", commit);
  bench_json_string(out, ", \"device\": ", device);
  fprintf(out,
          ", \"q_len\": %d, \"page_size\": %d, \"kv_dtype\": \"%s\", \"cmp_dtype\": \"%s\", "
          "\"bandwidth_gbps\": ",
          o->q_len, o->page_size > 0 ? o->page_size : 0, bench_cached_dtype_name(o->dtypes.kv),
          bench_cached_dtype_name(o->dtypes.cmp));
  nsai_verify_json_number(out, s->cells->bandwidth); /* all are from one run */
  fputs(",\n\"cells\": [", out);
  for (int i = 0; i < s->count; i++) {
    fputs(i ? ",\n " : "\n ", out);
    json_cell(out, &s->cells[i]);
  }
  fputs("]}\n", out);
}

/* ---- all cells ------------------------------------------------------------------------------- */

/* A context of the model with one additional setting; NULL: none. */
static nsa_status make_context(chk_plans *plans, const nsai_verify_case *c, const char *setting,
                               nsa_ctx **out) {
  const char *const *given = chk_plans_opts(plans)->overrides;
  size_t count = 0;
  nsa_options options = NSA_OPTIONS_INIT;
  nsa_status status;
  while (given && given[count]) count++;
  const char **overrides = calloc(count + 2, sizeof *overrides);
  char *yaml = chk_plans_yaml(plans, c);
  if (!yaml || !overrides) NSAI_TRY_TO(done, nsai_fail_nomem("a configuration", 1024));
  if (count) memcpy(overrides, given, count * sizeof *overrides);
  overrides[count] = setting;
  options.yaml_text = yaml;
  options.overrides = overrides;
  status = nsa_create(chk_plans_opts(plans)->config, &options, out);
done:
  free(overrides);
  free(yaml);
  return status;
}

/* The cells of one context. */
static nsa_status measure_context(chk_plans *plans, bench_decode_contexts *contexts,
                                  const bench_decode_table *t, bench_decode_cell *cells, FILE *out,
                                  FILE *csv) {
  char window[64];
  nsa_status status = NSA_OK;
  snprintf(window, sizeof window, "model.window=%lld", (long long)cells->context);
  if (chk_plans_device(plans)->driver) /* the CPU device has only one implementation */
    NSAI_TRY_TO(done, make_context(plans, &t->options->c, window, &contexts->dense));
  for (int b = 0; b < t->options->batch_count; b++) {
    /* The cell stores a failure; the next one may fit. */
    (void)bench_decode_measure(plans, contexts, t->options, &cells[b]);
    put_cell(out, t, &cells[b]);
    fflush(out);
    if (csv) bench_decode_csv_line(csv, t, &cells[b]), fflush(csv);
  }
done:
  nsa_destroy(contexts->dense);
  contexts->dense = NULL;
  return status;
}

/* Makes all contexts of plans that do not depend on the sequences' lengths, and measures the
 * device's bandwidth. */
static nsa_status prepare(chk_plans *plans, bench_decode_contexts *contexts,
                          bench_decode_table *t) {
  const nsai_verify_device *device = chk_plans_device(plans);
  NSAI_TRY(bench_cached_check("decode", &t->options->c.model));
  NSAI_TRY(make_context(plans, &t->options->c, NULL, &contexts->timed));
  NSAI_TRY(make_context(plans, &t->options->c, "runtime.count_reads=true", &contexts->counting));
  t->device = device->name;
  return bench_bandwidth_measure(device, contexts->timed, &t->bandwidth);
}

nsa_status bench_decode(chk_plans *plans, const bench_decode_options *o, const char *commit,
                        FILE *out, FILE *csv, int header, bench_decode_sheet *sheet) {
  const int count = o->context_count * o->batch_count;
  bench_decode_cell *cells = calloc((size_t)count, sizeof *cells);
  bench_decode_table table = { .options = o, .commit = commit };
  bench_decode_contexts contexts = { 0 };
  int timed = 0;
  nsa_status status;
  *sheet = (bench_decode_sheet){ .options = *o, .cells = cells, .count = count };
  if (!cells) return nsai_fail_nomem("cells", sizeof *cells);
  NSAI_TRY_TO(done, prepare(plans, &contexts, &table));
  bench_csv_now(sheet->date);
  snprintf(sheet->device, sizeof sheet->device, "%s", table.device);
  if (csv && header) bench_decode_csv_header(csv);
  put_head(out, &table);
  for (int i = 0; i < o->context_count; i++) {
    bench_decode_cell *row = &cells[i * o->batch_count];
    for (int b = 0; b < o->batch_count; b++)
      row[b] = (bench_decode_cell){ .context = o->contexts[i],
                                    .batch = o->batches[b],
                                    .q_len = o->q_len,
                                    .dtypes = o->dtypes,
                                    .bandwidth = table.bandwidth };
    NSAI_TRY_TO(done, measure_context(plans, &contexts, &table, row, out, csv));
  }
  for (int i = 0; i < count; i++) timed += cells[i].us[BENCH_DECODE_TOTAL] > 0;
  if (!timed)
    NSAI_TRY_TO(done, nsai_fail(NSA_E_UNSUPPORTED, "nothing could be timed: %s", cells->note));
  put_summary(out, &table, cells);
done:
  nsa_destroy(contexts.timed);
  nsa_destroy(contexts.counting);
  return status;
}
