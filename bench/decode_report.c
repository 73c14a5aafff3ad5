/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "context.h"
#include "csv.h"
#include "decode.h"
#include "plot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_OVERRIDES 40

/* ---- lines ----------------------------------------------------------------------------------- */

static double gbps(double bytes, double us) { return us > 0 ? bytes / us * 1e-3 : 0; }

static void put_head(FILE *out, const bench_decode_options *o) {
  char text[NSAI_TRIAL_CASE_TEXT];
  nsai_trial_case_print(&o->c, text, sizeof text);
  fprintf(out, "%s\nmicroseconds of a step of %d new tokens, ", text, o->q_len);
  if (o->page_size > 0)
    fprintf(out, "pages of %d\n", o->page_size);
  else
    fprintf(out, "without pages\n");
  fprintf(out, "%8s %6s", "context", "batch");
  for (int i = 0; i < BENCH_DECODE_PARTS; i++) fprintf(out, " %8s", bench_decode_part_names[i]);
  fprintf(out, " %7s %6s %7s %7s\n", "GB/s", "share", "dense/", "dense");
  fprintf(out, "%8s %6s%*s %7s %6s %7s %7s\n", "", "", 9 * BENCH_DECODE_PARTS, "", "", "", "total",
          "GB/s");
}

static void put_cell(FILE *out, const bench_decode_cell *c, double bandwidth) {
  const double *us = c->us, read = gbps(c->bytes, us[BENCH_DECODE_TOTAL]);
  fprintf(out, "%8lld %6lld", (long long)c->context, (long long)c->batch);
  for (int i = 0; i < BENCH_DECODE_PARTS; i++)
    if (us[i] > 0)
      fprintf(out, " %8.1f", us[i]);
    else
      fprintf(out, " %8s", "-");
  fprintf(out, " %7.0f", read);
  if (bandwidth > 0 && read > 0)
    fprintf(out, " %4.0f %%", 100 * read / bandwidth);
  else
    fprintf(out, " %6s", "-");
  if (us[BENCH_DECODE_DENSE] > 0 && us[BENCH_DECODE_TOTAL] > 0)
    fprintf(out, " %7.2f %7.0f", us[BENCH_DECODE_DENSE] / us[BENCH_DECODE_TOTAL],
            gbps(c->dense_bytes, us[BENCH_DECODE_DENSE]));
  fprintf(out, c->note[0] ? "  %s\n" : "%s\n", c->note);
}

/* ---- CSV ------------------------------------------------------------------------------------- */

static void put_csv_header(FILE *out) {
  fprintf(out, "date,commit,device,problem,S,batch,q_len,page_size,copies,ms_total,ms_cmp,ms_sel,"
               "ms_win,ms_append,ms_dense,reads_expected_cmp,reads_expected_sel,reads_expected_win,"
               "reads_expected,bytes,gbps,share,dense_gbps,note\n");
}

static void put_number(FILE *out, double value) {
  fputc(',', out);
  if (value > 0) fprintf(out, "%.5g", value);
}

/* Times in ms; reads_expected*: rows of one KV head of one sequence, decode.h. */
static void put_csv(FILE *out, const bench_decode_options *o, const bench_decode_cell *c,
                    const char *commit, const char *device, double bandwidth) {
  const bench_decode_reads r = bench_decode_reads_of(&o->c.geometry, c->context, c->q_len);
  const double read = gbps(c->bytes, c->us[BENCH_DECODE_TOTAL]);
  char date[24], text[NSAI_TRIAL_CASE_TEXT];
  time_t now = time(NULL);
  struct tm utc;
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  nsai_trial_case_print(&o->c, text, sizeof text);
  fprintf(out, "%s,", date);
  bench_csv_word(out, commit);
  fputc(',', out);
  bench_csv_quoted(out, device);
  fputc(',', out);
  bench_csv_quoted(out, text);
  fprintf(out, ",%lld,%lld,%d,%d,%lld", (long long)c->context, (long long)c->batch, c->q_len,
          o->page_size > 0 ? o->page_size : 0, (long long)c->copies);
  for (int i = 0; i < BENCH_DECODE_PARTS; i++) put_number(out, c->us[i] * 1e-3);
  fprintf(out, ",%lld,%lld,%lld,%lld,%.0f", (long long)r.compressed, (long long)r.selected,
          (long long)r.window, (long long)(r.compressed + r.selected + r.window), c->bytes);
  put_number(out, read);
  put_number(out, bandwidth > 0 ? read / bandwidth : 0);
  put_number(out, gbps(c->dense_bytes, c->us[BENCH_DECODE_DENSE]));
  fputc(',', out);
  if (c->note[0]) bench_csv_quoted(out, c->note);
  fputc('\n', out);
}

/* ---- figure ---------------------------------------------------------------------------------- */

typedef struct curve {
  double x[BENCH_DECODE_SIZES], y[BENCH_DECODE_SIZES];
  char name[48];
} curve;

/* One line a batch, and its dense one dashed. */
static int make_curves(const bench_decode_options *o, const bench_decode_cell *cells, curve *curves,
                       bench_line *lines) {
  int count = 0;
  for (int b = 0; b < o->batch_count; b++)
    for (int dense = 0; dense < 2; dense++) {
      curve *c = &curves[count];
      bench_line line = { .name = c->name,
                          .x = c->x,
                          .y = c->y,
                          .color = b % BENCH_COLORS,
                          .marker = b % BENCH_COLORS,
                          .dashed = dense };
      for (int i = 0; i < o->context_count; i++) {
        double us =
            cells[i * o->batch_count + b].us[dense ? BENCH_DECODE_DENSE : BENCH_DECODE_TOTAL];
        if (us <= 0) continue;
        c->x[line.count] = (double)o->contexts[i];
        c->y[line.count++] = us;
      }
      snprintf(c->name, sizeof c->name, "%lld sequences%s", (long long)o->batches[b],
               dense ? ", dense" : "");
      if (line.count) lines[count++] = line;
    }
  return count;
}

static nsa_status draw(const bench_decode_options *o, const bench_decode_cell *cells,
                       const char *dir) {
  curve curves[2 * BENCH_DECODE_SIZES];
  bench_line lines[2 * BENCH_DECODE_SIZES];
  char path[4096], text[NSAI_TRIAL_CASE_TEXT];
  nsai_trial_case_print(&o->c, text, sizeof text);
  bench_plot plot = { .title = "A decode step against the context, in a CUDA graph, nothing in L2",
                      .subtitle = text,
                      .x = { .label = "context in tokens (k = 1024)", .scale = BENCH_LOG2 },
                      .y = { .label = "time in microseconds", .scale = BENCH_LOG10 },
                      .lines = lines,
                      .line_count = make_curves(o, cells, curves, lines) };
  snprintf(path, sizeof path, "%s/decode-speed.svg", dir);
  FILE *out = fopen(path, "w");
  if (!out) return nsai_fail(NSA_E_IO, "cannot write %s: %s", path, strerror(errno));
  nsa_status status = bench_plot_write(out, &plot);
  if (fclose(out) && !status) status = nsai_fail(NSA_E_IO, "cannot write %s", path);
  return status;
}

/* ---- all cells ------------------------------------------------------------------------------- */

/* A context of the model, its window `window` tokens unless that is 0. */
static nsa_status make_context(chk_session *session, const nsai_trial_case *c, int64_t window,
                               nsa_ctx **out) {
  const char *const *given = chk_session_opts(session)->overrides, *overrides[MAX_OVERRIDES];
  char setting[64];
  int count = 0;
  nsa_options options = NSA_OPTIONS_INIT;
  for (; given && *given && count < MAX_OVERRIDES - 2; given++) overrides[count++] = *given;
  snprintf(setting, sizeof setting, "model.window=%lld", (long long)window);
  if (window) overrides[count++] = setting;
  overrides[count] = NULL;
  char *yaml = chk_session_yaml(session, c);
  if (!yaml) return nsai_fail_nomem("a configuration", 1024);
  options.yaml_text = yaml;
  options.overrides = overrides;
  nsa_status status = nsa_create(chk_session_opts(session)->config, &options, out);
  free(yaml);
  return status;
}

static nsa_status measure_context(chk_session *session, nsa_ctx *ctx, const bench_decode_options *o,
                                  bench_decode_cell *cells, const char *commit, FILE *out,
                                  FILE *csv) {
  const char *device = chk_session_device(session)->name;
  const double bandwidth = ctx->config->device.hbm_gbps;
  nsa_ctx *dense = NULL;
  nsa_status status;
  if (chk_session_device(session)->driver) /* the CPU device has but one way to compute */
    NSAI_TRY_TO(done, make_context(session, &o->c, cells->context, &dense));
  else
    status = NSA_OK;
  for (int b = 0; b < o->batch_count; b++) {
    /* A failure stands in the cell; the next one may fit. */
    (void)bench_decode_measure(session, ctx, dense, o, &cells[b]);
    put_cell(out, &cells[b], bandwidth);
    fflush(out);
    if (csv) put_csv(csv, o, &cells[b], commit, device, bandwidth), fflush(csv);
  }
done:
  nsa_destroy(dense);
  return status;
}

static nsa_status refuse_model(const nsai_geometry *g) {
  if (g->phi != NSAI_PHI_MEAN)
    return nsai_fail(NSA_E_ARG,
                     "decode is timed with phi=mean: the caches are filled by nsa_kv_append");
  if (g->gate == NSAI_GATE_MLP)
    return nsai_fail(NSA_E_ARG, "decode is timed with gate=logits or gate=weights");
  return NSA_OK;
}

nsa_status bench_decode(chk_session *session, const bench_decode_options *o, const char *commit,
                        FILE *out, FILE *csv, int header, const char *svg) {
  bench_decode_cell *cells = calloc((size_t)(o->context_count * o->batch_count), sizeof *cells);
  nsa_ctx *ctx = NULL;
  int timed = 0;
  nsa_status status;
  if (!cells) return nsai_fail_nomem("cells", sizeof *cells);
  NSAI_TRY_TO(done, refuse_model(&o->c.geometry));
  NSAI_TRY_TO(done, make_context(session, &o->c, 0, &ctx));
  if (csv && header) put_csv_header(csv);
  put_head(out, o);
  for (int i = 0; i < o->context_count; i++) {
    bench_decode_cell *row = &cells[i * o->batch_count];
    for (int b = 0; b < o->batch_count; b++)
      row[b] = (bench_decode_cell){ .context = o->contexts[i],
                                    .batch = o->batches[b],
                                    .q_len = o->q_len };
    NSAI_TRY_TO(done, measure_context(session, ctx, o, row, commit, out, csv));
  }
  for (int i = 0; i < o->context_count * o->batch_count; i++)
    timed += cells[i].us[BENCH_DECODE_TOTAL] > 0;
  if (!timed)
    NSAI_TRY_TO(done, nsai_fail(NSA_E_UNSUPPORTED, "nothing could be timed: %s", cells->note));
  if (svg) status = draw(o, cells, svg);
done:
  nsa_destroy(ctx);
  free(cells);
  return status;
}
