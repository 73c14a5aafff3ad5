/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Steps of decoding as CSV, one line a cell. Columns:
 *   date, commit, device, problem   as in csv.h; the problem's fill is that of the step's inputs
 *   S, batch        tokens and number of the sequences; page_size 0: no pages
 *   q_len           new tokens of a sequence
 *   copies          of the cache: steps of the graph, each over its own
 *   ms_total        a step of nsa_decode, in a graph of them
 *   ms_cmp, ms_sel, ms_win   the same with one branch alone and what it needs: the selected one needs the
 *                   compressed one's scores
 *   ms_append       nsa_kv_append of the new tokens and nsa_decode
 *   ms_dense        attention over all keys by the same kernels
 *   reads_actual    tokens of K and V that a step reads for one KV head of one sequence, as the device has
 *                   counted: compressed entries, tokens of selected blocks and of the window
 *   reads_expected  the same as it follows from lengths, N(L) + sum of min(l', L - j*l') + min(w, L); of
 *                   several new tokens what they read together, each block that several chose once
 *   reads_actual_decode, reads_expected_decode   both for each new token: the step's over q_len
 *   reads_actual_cmp ... reads_expected_win      both by branch
 *   bytes_actual, bytes_expected   of K and V, all sequences and KV heads of a step
 *   gbps            bytes_expected over ms_total
 *   bandwidth_gbps  at which the device reads memory, as measured before the first cell
 *   share           gbps of it
 *   dense_gbps, dense_share   K and V of all tokens over ms_dense
 *   note            why there is no time
 */
#include "csv.h"
#include "decode.h"

#include <time.h>

void bench_decode_csv_header(FILE *out) {
  fprintf(out, "date,commit,device,problem,batch,q_len,page_size,copies,S,ms_total,ms_cmp,ms_sel,"
               "ms_win,reads_actual,reads_expected,reads_actual_decode,reads_expected_decode,"
               "reads_actual_cmp,reads_actual_sel,reads_actual_win,reads_expected_cmp,"
               "reads_expected_sel,reads_expected_win,bytes_actual,bytes_expected,gbps,"
               "bandwidth_gbps,share,ms_append,ms_dense,dense_gbps,dense_share,note\n");
}

/* Empty where there is none. */
static void put_number(FILE *out, double value) {
  fputc(',', out);
  if (value > 0) fprintf(out, "%.5g", value);
}

/* Tokens: whole numbers, but for means. */
static void put_tokens(FILE *out, double tokens) { fprintf(out, ",%.10g", tokens); }

static void put_reads(FILE *out, const bench_decode_table *t, const bench_decode_cell *c) {
  const bench_decode_reads *both[] = { &c->actual, &c->expected };
  const double rows = (double)(c->batch * t->options->c.geometry.kv_heads);
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
  char date[24], text[NSAI_TRIAL_CASE_TEXT];
  time_t now = time(NULL);
  struct tm utc;
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  nsai_trial_case_print(&o->c, text, sizeof text);
  fprintf(out, "%s,", date);
  bench_csv_word(out, t->commit);
  fputc(',', out);
  bench_csv_quoted(out, t->device);
  fputc(',', out);
  bench_csv_quoted(out, text);
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
  fputc(',', out);
  if (c->note[0]) bench_csv_quoted(out, c->note);
  fputc('\n', out);
}
