/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Steps of decoding as CSV, one line a cell. Columns:
 *   date, commit, device, problem   as in csv.h; the problem's fill is that of the step's inputs
 *   S, batch        tokens and number of the sequences; page_size 0: no pages
 *   q_len           new tokens of a sequence
 *   copies          of the cache: steps of the graph, each over its own
 *   ms_total        a step of nsa_decode, in a graph of them
 *   ms_cmp, ms_sel, ms_win   the same with one branch alone and what it needs: the selected one
 *                   needs the compressed one's scores
 *   ms_append       nsa_kv_append of the new tokens and nsa_decode
 *   ms_dense        attention over all keys by the same kernels
 *   reads_actual    tokens of K and V that a step reads for one KV head of one sequence, as the
 *                   device has counted: compressed entries, tokens of selected blocks and of the
 *                   window
 *   reads_expected  the same as it follows from lengths, N(L) + sum of min(l', L - j*l') + min(w,
 *                   L); of several new tokens what they read together, each block that several
 *                   chose once
 *   reads_actual_decode, reads_expected_decode   both for each new token: the step's over q_len
 *   reads_actual_cmp ... reads_expected_win      both by branch
 *   bytes_actual, bytes_expected   of K and V, all sequences and KV heads of a step
 *   gbps            bytes_expected over ms_total
 *   bandwidth_gbps  at which the device reads memory, as measured before the first cell
 *   share           gbps of it
 *   dense_gbps, dense_share   K and V of all tokens over ms_dense
 *   kv_dtype, cmp_dtype   of raw K and V, and of compressed entries: model (also where a file of an
 *                   earlier version lacks the column) or e4m3
 *   note            why there is no time
 */
#include "csv.h"
#include "base/text.h"
#include "decode/decode.h"

#include <stdlib.h>
#include <string.h>

/* ---- writing --------------------------------------------------------------------------------- */

void bench_decode_csv_header(FILE *out) {
  fprintf(
      out,
      "date,commit,device,problem,batch,q_len,page_size,copies,S,ms_total,ms_cmp,ms_sel,"
      "ms_win,reads_actual,reads_expected,reads_actual_decode,reads_expected_decode,"
      "reads_actual_cmp,reads_actual_sel,reads_actual_win,reads_expected_cmp,"
      "reads_expected_sel,reads_expected_win,bytes_actual,bytes_expected,gbps,"
      "bandwidth_gbps,share,ms_append,ms_dense,dense_gbps,dense_share,kv_dtype,cmp_dtype,note\n");
}

static void put_number(FILE *out, double value) { bench_csv_known(out, 5, value); }

/* Tokens are whole numbers, except means. */
static void put_tokens(FILE *out, double tokens) { fprintf(out, ",%.10g", tokens); }

static void put_reads(FILE *out, const bench_decode_table *t, const bench_decode_cell *c) {
  const bench_decode_reads *both[] = { &c->actual, &c->expected };
  const double rows = (double)(c->batch * t->options->c.model.kv_heads);
  for (int per_token = 0; per_token < 2; per_token++)
    for (int i = 0; i < 2; i++)
      put_tokens(out, bench_decode_tokens(both[i]) / rows / (per_token ? c->q_len : 1));
  for (int i = 0; i < 2; i++)
    for (int b = 0; b < NSA_BRANCHES; b++) put_tokens(out, (double)both[i]->tokens[b] / rows);
  fprintf(out, ",%lld,%lld", (long long)c->actual.bytes, (long long)c->expected.bytes);
}

void bench_decode_csv_line(FILE *out, const bench_decode_table *t, const bench_decode_cell *c) {
  const bench_decode_options *o = t->options;
  const double read = bench_decode_gbps((double)c->expected.bytes, c->us[BENCH_DECODE_TOTAL]);
  const double dense = bench_decode_gbps(c->dense_bytes, c->us[BENCH_DECODE_DENSE]);
  bench_csv_begin(out, t->commit, t->device, &o->c);
  fprintf(out, ",%lld,%d,%d,%lld,%lld", (long long)c->batch, c->q_len,
          o->page_size > 0 ? o->page_size : 0, (long long)c->copies, (long long)c->context);
  for (int i = BENCH_DECODE_TOTAL; i <= BENCH_DECODE_WIN; i++) put_number(out, c->us[i] * 1e-3);
  put_reads(out, t, c);
  put_number(out, read);
  put_number(out, t->bandwidth);
  put_number(out, t->bandwidth > 0 ? read / t->bandwidth : 0);
  put_number(out, c->us[BENCH_DECODE_STEP] * 1e-3);
  put_number(out, c->us[BENCH_DECODE_DENSE] * 1e-3);
  put_number(out, dense);
  put_number(out, t->bandwidth > 0 ? dense / t->bandwidth : 0);
  fprintf(out, ",%s,%s,", bench_cached_dtype_name(o->dtypes.kv),
          bench_cached_dtype_name(o->dtypes.cmp));
  if (c->note[0]) bench_csv_quoted(out, c->note);
  fputc('\n', out);
}

/* ---- reading --------------------------------------------------------------------------------- */

enum {
  PROBLEM,
  BATCH,
  Q_LEN,
  PAGE_SIZE,
  CONTEXT,
  TOTAL,
  DENSE, /* from here on: may be missing */
  BYTES,
  BANDWIDTH,
  DATE,
  COMMIT,
  DEVICE,
  KV_DTYPE,
  CMP_DTYPE,
  COLUMNS
};
static const char *const names[COLUMNS] = {
  "problem",        "batch",          "q_len", "page_size", "S",      "ms_total", "ms_dense",
  "bytes_expected", "bandwidth_gbps", "date",  "commit",    "device", "kv_dtype", "cmp_dtype"
};

#define MOST 1e18 /* a larger figure of any column is a mistake; int64_t holds it */

static nsa_status read_size(int column, char *const *value, int64_t least, int64_t *out) {
  if (nsai_parse_integer(value[column], least, INT32_MAX, out)) return NSA_OK;
  return nsai_fail(NSA_E_ARG, "%s is '%s', expected a number from %lld", names[column],
                   value[column], (long long)least);
}

/* Empty: no value. */
static nsa_status read_known(int column, char *const *value, double most, double *out) {
  NSAI_TRY(bench_csv_number(names[column], value[column], out));
  if (*out <= most) return NSA_OK;
  return nsai_fail(NSA_E_ARG, "%s is '%s', expected a number up to %g", names[column],
                   value[column], most);
}

/* Inserts a value into an ascending list without duplicates. */
static nsa_status insert(const char *name, int64_t value, int64_t *list, int *count) {
  int at = *count;
  while (at > 0 && list[at - 1] > value) at--;
  if (at > 0 && list[at - 1] == value) return NSA_OK;
  if (*count == BENCH_SIZES)
    return nsai_fail(NSA_E_ARG, "%s has more than %d values", name, BENCH_SIZES);
  memmove(&list[at + 1], &list[at], (size_t)((*count)++ - at) * sizeof *list);
  list[at] = value;
  return NSA_OK;
}

static nsa_status read_problem(const char *text, nsai_verify_case *out) {
  char error[256];
  if (nsai_verify_case_parse(text, out, error, sizeof error))
    return nsai_fail(NSA_E_ARG, "%s: %s", text, error);
  return NSA_OK;
}

static nsa_status read_dtype(int column, char *const *value, int32_t *out) {
  const char *text = value[column];
  *out = strcmp(text, "e4m3") ? NSA_NONE : NSA_E4M3;
  if (!*text || !strcmp(text, bench_cached_dtype_name(*out))) return NSA_OK;
  return nsai_fail(NSA_E_ARG, "%s is '%s', expected model or e4m3", names[column], text);
}

static nsa_status read_cell(char *const *value, bench_decode_line *out) {
  bench_decode_cell *cell = &out->cell;
  int64_t q_len;
  double ms[2], bytes;
  *out =
      (bench_decode_line){ .date = value[DATE], .commit = value[COMMIT], .device = value[DEVICE] };
  NSAI_TRY(read_problem(value[PROBLEM], &out->c));
  NSAI_TRY(read_size(BATCH, value, 1, &cell->batch));
  NSAI_TRY(read_size(Q_LEN, value, 1, &q_len));
  NSAI_TRY(read_size(PAGE_SIZE, value, 0, &out->page_size));
  NSAI_TRY(read_size(CONTEXT, value, 1, &cell->context));
  NSAI_TRY(read_known(TOTAL, value, MOST, &ms[0]));
  NSAI_TRY(read_known(DENSE, value, MOST, &ms[1]));
  NSAI_TRY(read_known(BYTES, value, MOST, &bytes));
  NSAI_TRY(read_known(BANDWIDTH, value, MOST, &cell->bandwidth));
  NSAI_TRY(read_dtype(KV_DTYPE, value, &cell->dtypes.kv));
  NSAI_TRY(read_dtype(CMP_DTYPE, value, &cell->dtypes.cmp));
  cell->q_len = (int32_t)q_len;
  cell->us[BENCH_DECODE_TOTAL] = 1e3 * ms[0];
  cell->us[BENCH_DECODE_DENSE] = 1e3 * ms[1];
  cell->expected.bytes = (int64_t)bytes;
  return NSA_OK;
}

typedef struct reader {
  nsa_status (*take)(void *user, const bench_decode_line *line);
  void *user;
} reader;

static nsa_status read_line(void *user, char *const *value) {
  const reader *r = user;
  bench_decode_line line;
  NSAI_TRY(read_cell(value, &line));
  return r->take(r->user, &line);
}

int bench_decode_csv_is(const char *path) { return bench_csv_has(path, names[TOTAL]); }

nsa_status bench_decode_csv_lines(const char *path,
                                  nsa_status (*take)(void *user, const bench_decode_line *line),
                                  void *user) {
  const bench_csv_columns columns = { names, COLUMNS, DENSE };
  reader r = { take, user };
  return bench_csv_read(path, &columns, read_line, &r);
}

/* Whether the line belongs to the table; the first line defines it. */
static int takes(bench_decode_sheet *s, const bench_decode_line *line) {
  char known[NSAI_VERIFY_CASE_TEXT], text[NSAI_VERIFY_CASE_TEXT];
  bench_decode_options *o = &s->options;
  if (!s->count) {
    o->c = line->c;
    o->q_len = line->cell.q_len;
    o->page_size = (int32_t)line->page_size;
    o->dtypes = line->cell.dtypes;
    snprintf(s->date, sizeof s->date, "%s", line->date);
    snprintf(s->device, sizeof s->device, "%s", line->device);
  }
  nsai_verify_case_print(&o->c, known, sizeof known);
  nsai_verify_case_print(&line->c, text, sizeof text);
  return !strcmp(known, text) && o->q_len == line->cell.q_len && o->page_size == line->page_size &&
         o->dtypes.kv == line->cell.dtypes.kv && o->dtypes.cmp == line->cell.dtypes.cmp;
}

static nsa_status take_cell(void *user, const bench_decode_line *line) {
  bench_decode_sheet *s = user;
  bench_decode_options *o = &s->options;
  if (!takes(s, line)) return NSA_OK;
  NSAI_TRY(insert("S", line->cell.context, o->contexts, &o->context_count));
  NSAI_TRY(insert("batch", line->cell.batch, o->batches, &o->batch_count));
  bench_decode_cell *grown = realloc(s->cells, (size_t)(s->count + 1) * sizeof *grown);
  if (!grown) return nsai_fail_nomem("cells", sizeof *grown);
  s->cells = grown;
  s->cells[s->count++] = line->cell;
  return NSA_OK;
}

nsa_status bench_decode_csv_load(const char *path, bench_decode_sheet *out) {
  *out = (bench_decode_sheet){ 0 };
  NSAI_TRY(bench_decode_csv_lines(path, take_cell, out));
  if (!out->count) return nsai_fail(NSA_E_ARG, "%s holds no results", path);
  return NSA_OK;
}
