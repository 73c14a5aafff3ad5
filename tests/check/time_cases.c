/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "time_cases.h"

#include "time_launch.h"
#include "trial/result.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* One line of the table. */
typedef struct line {
  const char *part;
  chk_times times;
  double flops, bytes;
  uint64_t workspace;
} line;

typedef struct table {
  chk_session *session;
  const chk_time_options *options;
  FILE *csv;
  char date[32];
  double peak_tflops, peak_gbps; /* of the device; 0: unknown */
  chk_overlap overlap;
  double plan_cold_ms, plan_warm_ms;
  void *flush;
  int64_t printed;
} table;

/* ---- work ------------------------------------------------------------------------------------ */

/* (query, key) pairs per head that a branch has to look at; 3 is dense. */
static double pairs(const chk_case *c, int branch) {
  const nsai_geometry *g = &c->geometry;
  double sum = 0;
  for (int32_t s = 0; s < c->num_seqs; s++)
    for (int64_t i = 0; i < c->q_len[s]; i++) {
      int64_t t = c->kv_len[s] - c->q_len[s] + i, seen = t + 1;
      if (t < 0) continue;
      if (branch == NSA_CMP) seen = nsai_block_count(g, t + 1);
      int64_t most = (int64_t)(g->select_count - 1) * g->select_block + t % g->select_block + 1;
      if (branch == NSA_SEL && g->select_count && seen > most) seen = most;
      if (branch == NSA_WIN && seen > g->window) seen = g->window;
      sum += (double)seen;
    }
  return sum;
}

static double attention_flops(const chk_case *c, int branch) {
  const nsai_geometry *g = &c->geometry;
  return 2 * pairs(c, branch) * g->heads * (g->head_dim_qk + g->head_dim_v);
}

/* Bytes that any implementation reads or writes once: q and o, and K and V as a whole. */
static double attention_bytes(const chk_case *c, double kv_rows) {
  const nsai_geometry *g = &c->geometry;
  double tokens = (double)chk_total(c->q_len, c->num_seqs), dims = g->head_dim_qk + g->head_dim_v;
  return 2 * dims * (tokens * g->heads + kv_rows * g->kv_heads);
}

static double kv_rows(const chk_case *c) { return (double)chk_total(c->kv_len, c->num_seqs); }

/* ---- output ---------------------------------------------------------------------------------- */

/* The device's bound for a line, in ms; 0 when unknown. */
static double bound_ms(const table *t, const line *l) {
  if (t->peak_tflops <= 0 || t->peak_gbps <= 0) return 0;
  return fmax(l->flops / t->peak_tflops * 1e-9, l->bytes / t->peak_gbps * 1e-6);
}

static void write_csv(const table *t, const chk_case *c, const line *l) {
  char problem[CHK_CASE_TEXT];
  double bound = bound_ms(t, l);
  if (!t->csv) return;
  chk_case_print(c, problem, sizeof problem);
  /* Problems hold commas: quoted, as CSV has it. */
  fprintf(t->csv, "%s,%s,\"%s\",\"%s\",%s,%.5g,%.5g,%.4g,%.4g,", t->date,
          t->options->commit ? t->options->commit : "", chk_session_device(t->session)->name,
          problem, l->part, l->times.burst_ms, l->times.sustained_ms,
          l->flops / l->times.burst_ms * 1e-9, l->bytes / l->times.burst_ms * 1e-6);
  if (bound > 0) fprintf(t->csv, "%.3f", bound / l->times.burst_ms);
  fprintf(t->csv, ",%.3f,%.1f,%.1f,%llu,%.1f,%.1f\n", t->overlap.r, t->overlap.u4, t->overlap.u8,
          (unsigned long long)l->workspace, t->plan_cold_ms, t->plan_warm_ms);
  fflush(t->csv);
}

static void write_json(table *t, const chk_case *c, const line *l) {
  char problem[CHK_CASE_TEXT];
  double bound = bound_ms(t, l);
  chk_case_print(c, problem, sizeof problem);
  printf("%s\n{\"problem\": ", t->printed ? "," : "");
  chk_json_string(stdout, problem);
  printf(", \"part\": \"%s\", \"burst_ms\": %.5g, \"sustained_ms\": %.5g, \"tflops\": %.4g, "
         "\"gbps\": %.4g, ",
         l->part, l->times.burst_ms, l->times.sustained_ms, l->flops / l->times.burst_ms * 1e-9,
         l->bytes / l->times.burst_ms * 1e-6);
  if (bound > 0) printf("\"roofline\": %.3f, ", bound / l->times.burst_ms);
  printf("\"r\": %.3f, \"u4\": %.1f, \"u8\": %.1f, \"workspace\": %llu, \"plan_cold_ms\": %.1f, "
         "\"plan_warm_ms\": %.1f}",
         t->overlap.r, t->overlap.u4, t->overlap.u8, (unsigned long long)l->workspace,
         t->plan_cold_ms, t->plan_warm_ms);
}

static void write_line(table *t, const chk_case *c, const line *l) {
  double bound = bound_ms(t, l);
  write_csv(t, c, l);
  if (t->options->json) {
    write_json(t, c, l);
  } else {
    printf("  %-11s %9.3f %9.3f  %8.1f %8.1f", l->part, l->times.burst_ms, l->times.sustained_ms,
           l->flops / l->times.burst_ms * 1e-9, l->bytes / l->times.burst_ms * 1e-6);
    if (bound > 0)
      printf("   %5.1f %%\n", 100 * bound / l->times.burst_ms);
    else
      printf("   not known\n");
    fflush(stdout);
  }
  t->printed++;
}

static void write_heading(const table *t, const chk_case *c, const chk_bench *bench) {
  char problem[CHK_CASE_TEXT];
  if (t->options->json) return;
  chk_case_print(c, problem, sizeof problem);
  printf("\n%s\n", problem);
  printf("  %s; r %.3f, U(4) %.1f, U(8) %.1f; workspace %.1f MB; plan cold %.0f ms, warm %.1f ms\n",
         chk_session_device(t->session)->name, t->overlap.r, t->overlap.u4, t->overlap.u8,
         (double)bench->plan.caps.workspace_bytes * 1e-6, t->plan_cold_ms, t->plan_warm_ms);
  printf("  %s\n", bench->plan.caps.variants);
  printf("  %-11s %9s %9s  %8s %8s   %s\n", "part", "burst ms", "sustained", "TFLOP/s", "GB/s",
         "of roofline");
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* A number behind "key:" in the effective configuration; 0 when it is not there. */
static double config_number(const char *text, const char *key) {
  const char *at = strstr(text, key);
  return at ? strtod(at + strlen(key), NULL) : 0;
}

static nsa_status read_peaks(table *t, const nsa_ctx *ctx) {
  size_t size = nsa_config_dump(ctx, 0, NULL, 0) + 1;
  char *text = malloc(size);
  if (!text) return nsai_fail_nomem("the configuration", size);
  nsa_config_dump(ctx, 0, text, size);
  t->peak_tflops = config_number(text, "bf16_tflops:");
  t->peak_gbps = config_number(text, "hbm_gbps:");
  free(text);
  return NSA_OK;
}

/* Runs once with block indices and measures how much adjacent selections overlap. */
static nsa_status measure_overlap(table *t, chk_bench *bench) {
  t->overlap = (chk_overlap){ 0 };
  NSAI_TRY(chk_bench_enqueue(bench, 0, NULL));
  NSAI_TRY(chk_device_wait(bench->data.device, NULL));
  if (!chk_data_has(&bench->data, CHK_INDEX) || bench->c->num_seqs != 1) return NSA_OK;
  NSAI_TRY(chk_buffer_fetch(bench->data.device, &bench->data.buffer[CHK_INDEX]));
  nsa_tensor index = chk_data_view(&bench->data, CHK_INDEX, CHK_HOST);
  index.shape[0] = bench->data.tokens;
  chk_overlap_measure(&bench->c->geometry, &index, bench->c->kv_len[0] - bench->c->q_len[0],
                      &t->overlap);
  return NSA_OK;
}

static nsa_status time_part(table *t, const chk_bench *bench, const chk_case *c, uint32_t branches,
                            line *l) {
  l->workspace = bench->plan.caps.workspace_bytes;
  NSAI_TRY(chk_time_launch(bench, branches, t->flush, &l->times));
  write_line(t, c, l);
  return NSA_OK;
}

static nsa_status time_branches(table *t, chk_bench *bench, const chk_case *c) {
  static const char *const names[NSA_BRANCHES] = { "compressed", "selected", "window" };
  const nsai_geometry *g = &c->geometry;
  const int has[NSA_BRANCHES] = { 1, g->select_count > 0, g->window > 0 };
  line whole = { .part = "forward", .bytes = attention_bytes(c, kv_rows(c)) };
  for (int b = 0; b < NSA_BRANCHES; b++)
    if (has[b]) whole.flops += attention_flops(c, b);
  NSAI_TRY(time_part(t, bench, c, 0, &whole));
  for (int b = 0; b < NSA_BRANCHES; b++) {
    line one = { .part = names[b],
                 .flops = attention_flops(c, b),
                 .bytes = attention_bytes(c, kv_rows(c)) };
    if (has[b]) NSAI_TRY(time_part(t, bench, c, 1u << b, &one));
  }
  return NSA_OK;
}

/* phi alone: reads K and V, writes a d-th of them. The view of k_cmp has to be there. */
static nsa_status time_compress(table *t, chk_bench *bench, const chk_case *c) {
  chk_case alone = *c;
  const nsai_geometry *g = &c->geometry;
  line l = { .part = "compress" };
  if (g->phi == NSAI_PHI_EXTERNAL) return NSA_OK;
  alone.kind = CHK_COMPRESS;
  l.bytes = 2.0 * g->kv_heads * (g->head_dim_qk + g->head_dim_v) *
            (kv_rows(c) + (double)bench->data.blocks);
  bench->c = &alone;
  nsa_status status = time_part(t, bench, c, 0, &l);
  bench->c = c;
  return status;
}

/* Dense attention over the same tensors, by the default variant or by plain matrix products. */
static nsa_status time_dense(table *t, chk_bench *bench, const chk_case *c, int gemm) {
  chk_case dense = *c;
  chk_plan sparse = bench->plan;
  line l = { .part = gemm ? "sdpa_gemm" : "dense",
             .flops = attention_flops(c, NSA_BRANCHES),
             .bytes = attention_bytes(c, kv_rows(c)) };
  dense.kind = CHK_DENSE;
  dense.gemm = gemm;
  nsa_status status = chk_session_plan(t->session, &dense, NSA_OP_DENSE, &bench->plan);
  if (!status) status = chk_data_workspace(&bench->data, bench->plan.caps.workspace_bytes);
  bench->c = &dense;
  if (!status) status = time_part(t, bench, c, 0, &l);
  bench->c = c;
  bench->plan = sparse;
  if (status && gemm && !t->options->json) {
    printf("  sdpa_gemm   %s\n", nsa_last_error());
    return NSA_OK;
  }
  return status;
}

static nsa_status time_case(table *t, const chk_case *c) {
  chk_bench bench;
  nsa_status status;
  NSAI_TRY_TO(done, chk_bench_create(t->session, c, &bench));
  NSAI_TRY_TO(done, read_peaks(t, bench.plan.ctx));
  NSAI_TRY_TO(done, measure_overlap(t, &bench));
  t->plan_cold_ms = t->plan_warm_ms = 0;
  if (bench.data.device->driver)
    NSAI_TRY_TO(done, chk_time_plan(t->session, c, &t->plan_cold_ms, &t->plan_warm_ms));
  write_heading(t, c, &bench);
  NSAI_TRY_TO(done, time_compress(t, &bench, c));
  chk_data_drop_optional(&bench.data);
  NSAI_TRY_TO(done, time_branches(t, &bench, c));
  NSAI_TRY_TO(done, time_dense(t, &bench, c, 0));
  NSAI_TRY_TO(done, time_dense(t, &bench, c, 1));
done:
  chk_bench_destroy(&bench);
  return status;
}

/* The speed targets' problem, from where dense attention still wins to where the goals are set. */
static const char *const default_problems[] = {
  "fwd:h64/4:d128/128:l32/16:s64x16+1+2:w512:q=4096:nobatch:fill=random",
  "fwd:h64/4:d128/128:l32/16:s64x16+1+2:w512:q=4096:nobatch:fill=correlated:overlap",
  "fwd:h64/4:d128/128:l32/16:s64x16+1+2:w512:q=8192:nobatch:fill=random",
  "fwd:h64/4:d128/128:l32/16:s64x16+1+2:w512:q=8192:nobatch:fill=correlated:overlap",
  "fwd:h64/4:d128/128:l32/16:s64x16+1+2:w512:q=16384:nobatch:fill=random",
  "fwd:h64/4:d128/128:l32/16:s64x16+1+2:w512:q=16384:nobatch:fill=correlated:overlap",
  "fwd:h64/4:d128/128:l32/16:s64x16+1+2:w512:q=32768:nobatch:fill=random",
  "fwd:h64/4:d128/128:l32/16:s64x16+1+2:w512:q=32768:nobatch:fill=correlated:overlap",
  "fwd:h64/4:d128/128:l32/16:s64x16+1+2:w512:q=65536:nobatch:fill=random",
  "fwd:h64/4:d128/128:l32/16:s64x16+1+2:w512:q=65536:nobatch:fill=correlated:overlap",
  "fwd:h64/8:d128/128:l32/16:s64x16+1+2:w512:q=65536:nobatch:fill=correlated:overlap",
  "fwd:h64/16:d128/128:l32/16:s64x16+1+2:w512:q=65536:nobatch:fill=correlated:overlap",
  "fwd:h64/64:d128/128:l32/16:s64x16+1+2:w512:q=65536:nobatch:fill=correlated:overlap",
  0
};

static nsa_status time_text(table *t, const char *text) {
  char error[256];
  chk_case c;
  if (chk_case_parse(text, &c, error, sizeof error))
    return nsai_fail(NSA_E_ARG, "%s: %s", text, error);
  if (c.kind != CHK_FORWARD) return nsai_fail(NSA_E_ARG, "%s: only fwd problems are timed", text);
  return time_case(t, &c);
}

static nsa_status open_csv(table *t) {
  if (!t->options->csv) return NSA_OK;
  t->csv = fopen(t->options->csv, "a");
  if (!t->csv) return nsai_fail(NSA_E_IO, "cannot append to %s", t->options->csv);
  fseek(t->csv, 0, SEEK_END);
  if (ftell(t->csv) == 0)
    fprintf(t->csv, "date,commit,device,problem,part,burst_ms,sustained_ms,tflops,gbps,roofline,r,"
                    "u4,u8,workspace,plan_cold_ms,plan_warm_ms\n");
  return NSA_OK;
}

nsa_status chk_time_cases(chk_session *session, const chk_time_options *options) {
  table t = { .session = session, .options = options };
  const chk_device *device = chk_session_device(session);
  time_t now = time(NULL);
  struct tm utc;
  nsa_status status;
  strftime(t.date, sizeof t.date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  NSAI_TRY_TO(done, open_csv(&t));
  NSAI_TRY_TO(done, chk_device_alloc(device, CHK_FLUSH_BYTES, &t.flush));
  if (options->json) printf("[");
  if (options->problem) {
    NSAI_TRY_TO(done, time_text(&t, options->problem));
  } else {
    for (const char *const *p = default_problems; *p; p++) NSAI_TRY_TO(done, time_text(&t, *p));
  }
  if (options->json) printf("]\n");
done:
  chk_device_free(device, t.flush);
  if (t.csv && fclose(t.csv) && !status)
    status = nsai_fail(NSA_E_IO, "cannot write %s", options->csv);
  return status;
}
