/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * sweep_host SCENARIO FAKE_DRIVER [RECORDS]: a host of the shared library, for tests/fault/sweep.py.
 *
 * It makes the calls of one scenario through the public API, prints what each of them returned, and
 * stops at the first one that fails. It destroys whatever it has made, in either case. Exit status 0: every
 * call succeeded; 1: one failed and has an error text; 2: one failed without an error text.
 */
#include <nsa/nsa.h>
#include <nsa/tune.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char model[] = "nsa: 1\n"
                            "model:\n"
                            "  heads: 4\n"
                            "  kv_heads: 2\n"
                            "  head_dim: 32\n"
                            "  compress: {block: 16, stride: 8, phi: mean}\n"
                            "  select: {block: 16, count: 4}\n"
                            "  window: 32\n"
                            "  gate: weights\n"
                            "serving: {max_tokens: 4Ki, max_kv_len: 4Ki}\n";

typedef struct host {
  const char *module, *records; /* the fake driver's path; a file to import */
  nsa_ctx *ctx;
  nsa_plan *plan;
  nsa_problem problem;
} host;

static void print_log(void *user, int32_t level, const char *component, const char *text) {
  (void)user;
  if (level <= NSA_LOG_WARN) fprintf(stderr, "%s: %s\n", component, text);
}

/* ---- calls: each prints what it gives, and is false when it fails ---- */

static int refused; /* the exit status */

static bool check(const char *call, nsa_status status) {
  if (status == NSA_OK) {
    printf("%s: ok\n", call);
    return true;
  }
  fprintf(stderr, "%s: %s: %s\n", call, nsa_status_name(status), nsa_last_error());
  refused = *nsa_last_error() ? 1 : 2;
  return false;
}

static bool create(host *h, bool gpu) {
  static char driver[1024], nvrtc[1024];
  const char *overrides[] = { driver, nvrtc, "runtime.compile_jobs=1", NULL };
  nsa_options o = NSA_OPTIONS_INIT;
  snprintf(driver, sizeof driver, "runtime.driver_path=%s", h->module);
  snprintf(nvrtc, sizeof nvrtc, "runtime.nvrtc_path=%s", h->module);
  o.yaml_text = model;
  o.device = gpu ? "cuda:1" : "cpu";
  o.overrides = overrides;
  o.log = print_log;
  return check("nsa_create", nsa_create(NULL, &o, &h->ctx));
}

typedef size_t (*text_fn)(host *h, char *buf, size_t size);

/* A call that writes a text; its length is 0 when it fails. */
static bool print_text(const char *call, host *h, text_fn write) {
  static char text[1 << 20];
  const size_t size = write(h, text, sizeof text);
  if (!size || size >= sizeof text) return check(call, NSA_E_INTERNAL);
  printf("%s:\n%s\n", call, text);
  return true;
}

static size_t write_report(host *h, char *buf, size_t size) {
  return nsa_report(h->ctx, buf, size);
}

static size_t write_config(host *h, char *buf, size_t size) {
  return nsa_config_dump(h->ctx, 1, buf, size);
}

static size_t write_story(host *h, char *buf, size_t size) {
  return nsa_explain(h->ctx, &h->problem, buf, size);
}

static size_t write_problem(host *h, char *buf, size_t size) {
  return nsa_problem_string(h->ctx, &h->problem, buf, size);
}

static size_t write_records(host *h, char *buf, size_t size) {
  return nsa_records_export(h->ctx, buf, size);
}

static bool print_digest(host *h) {
  uint8_t digest[16];
  if (!check("nsa_records_digest", nsa_records_digest(h->ctx, digest))) return false;
  for (int i = 0; i < 16; i++) printf("%02x", digest[i]);
  printf("\n");
  return true;
}

static bool import(host *h) {
  static char text[1 << 20];
  FILE *in = fopen(h->records, "r");
  const size_t size = in ? fread(text, 1, sizeof text - 1, in) : 0;
  if (in) fclose(in);
  return check("nsa_records_import", nsa_records_import(h->ctx, text, size));
}

/* ---- scenarios ---- */

static void run_create(host *h) {
  if (create(h, true) && print_text("nsa_report", h, write_report))
    print_text("nsa_config_dump", h, write_config);
}

static void run_plan(host *h, bool gpu) {
  nsa_caps caps = NSA_CAPS_INIT;
  if (!create(h, gpu) || !print_text("nsa_problem_string", h, write_problem)) return;
  if (!check("nsa_query", nsa_query(h->ctx, &h->problem, &caps))) return;
  printf("%d kernels are missing\n", caps.missing_kernels);
  if (!check("nsa_prepare", nsa_prepare(h->ctx, &h->problem, 1, NULL, NULL)) ||
      !check("nsa_plan_create", nsa_plan_create(h->ctx, &h->problem, NULL, NULL, &h->plan)) ||
      !check("nsa_plan_caps", nsa_plan_caps(h->plan, &caps)))
    return;
  printf("%llu bytes of workspace\n", (unsigned long long)caps.workspace_bytes);
  print_text("nsa_explain", h, write_story);
}

static void run_records(host *h) {
  if (create(h, true) && print_text("nsa_records_export", h, write_records) && print_digest(h) &&
      import(h) && print_digest(h) && check("nsa_records_reload", nsa_records_reload(h->ctx)) &&
      print_digest(h))
    print_text("nsa_records_export", h, write_records);
}

/* The fake driver's kernels compute nothing: a tuning ends where it verifies the first of them. */
static void run_tune(host *h) {
  nsa_tune_options o = NSA_TUNE_OPTIONS_INIT;
  o.level = NSA_TUNE_QUICK;
  h->problem.op = NSA_OP_DENSE;
  if (!create(h, true)) return;
  const nsa_status status = nsa_tune(h->ctx, &h->problem, 1, &o);
  check("nsa_tune", status == NSA_E_VERIFY ? NSA_OK : status);
}

int main(int argc, char **argv) {
  host h = { .module = argc > 2 ? argv[2] : "", .records = argc > 3 ? argv[3] : "" };
  const char *scenario = argc > 1 ? argv[1] : "";
  h.problem = (nsa_problem)NSA_PROBLEM_INIT;
  h.problem.max_tokens = 64;
  h.problem.max_seqs = 2;
  if (!strcmp(scenario, "create"))
    run_create(&h);
  else if (!strcmp(scenario, "plan"))
    run_plan(&h, true);
  else if (!strcmp(scenario, "cpu"))
    run_plan(&h, false);
  else if (!strcmp(scenario, "records"))
    run_records(&h);
  else if (!strcmp(scenario, "tune"))
    run_tune(&h);
  else
    return 99;
  nsa_plan_destroy(h.plan);
  nsa_destroy(h.ctx);
  return refused;
}
