/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-autotune report: a machine and a model in one document: environment, configuration, chosen
 * variants, sparse against dense attention, checks and benchmarks.
 */
#include "cli/cmd_report_impl.h"

#include "api/report.h"
#include "base/duration.h"
#include "plan/problem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { OPT_NO_RUN = 256, OPT_COMMIT };

static const struct argp_option options[] = {
  { "out", 'o', "DIR", 0,
    "Write report.md and report.json there, times.csv and its figures beside them (.)", 0 },
  { "commit", OPT_COMMIT, "HASH", 0, "Written into times.csv", 0 },
  { "no-run", OPT_NO_RUN, 0, 0, "Run neither nsacheck nor nsa-bench", 0 },
  { 0 }
};

static error_t parse(int key, char *value, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
  case 'o': a->folder = value; break;
  case OPT_COMMIT: a->commit = value; break;
  case OPT_NO_RUN: a->no_run = true; break;
  case ARGP_KEY_ARG:
    if (state->arg_num) argp_error(state, "one FILE only");
    a->file = value;
    break;
  case ARGP_KEY_NO_ARGS: argp_usage(state); break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

/* ---- criteria ---- */

void nsai_report_check_records(report *r, const char *name, outcome what, const char *format, ...) {
  va_list args;
  if (r->criterion_count == CRITERIA) return;
  criterion *c = &r->criteria[r->criterion_count++];
  snprintf(c->name, sizeof c->name, "%s", name);
  c->outcome = what;
  va_start(args, format);
  vsnprintf(c->note, sizeof c->note, format, args);
  va_end(args);
}

/* ---- environment and configuration ---- */

/* All zero: there is no device. */
static void find_device(report *r, nsai_device *device) {
  const nsai_driver *driver;
  const char *which = r->config->runtime.device;
  nsa_status status = NSA_OK;
  if (!strcmp(which, "cpu")) {
    nsai_report_check_records(r, "a GPU can be used", SKIPPED, "runtime.device is cpu");
    return;
  }
  status = nsai_driver_open(r->config->runtime.driver_path, NULL, &driver);
  if (status == NSA_OK) status = nsai_device_init(driver, which, device);
  if (status == NSA_OK)
    nsai_report_check_records(r, "a GPU can be used", PASS, "%s", device->name);
  else
    nsai_report_check_records(r, "a GPU can be used", FAIL, "%s", nsa_status_text(status));
}

static nsa_status write_environment_json(const void *inputs, nsai_writer *out) {
  nsai_report_write(inputs, true, out);
  return NSA_OK;
}

static nsa_status write_environment(const void *inputs, nsai_writer *out) {
  nsai_report_write(inputs, false, out);
  return NSA_OK;
}

static nsa_status write_configuration(const void *config, nsai_writer *out) {
  nsai_config_dump(config, true, out);
  return NSA_OK;
}

static nsa_status quote(report *r, const nsai_device *device) {
  nsai_report_inputs inputs = nsai_report_inputs_of(r->config);
  inputs.found = device->driver ? device : NULL;
  NSAI_TRY(nsai_cli_text(write_environment, &inputs, &r->environment));
  NSAI_TRY(nsai_cli_text(write_environment_json, &inputs, &r->environment_json));
  return nsai_cli_text(write_configuration, r->config, &r->configuration);
}

/* Reads machine and configuration, then releases the device for the checks. */
static nsa_status open_report(report *r) {
  time_t now = time(NULL);
  struct tm tm;
  nsai_device device = { 0 };
  nsa_status status = NSA_OK;
  if (gmtime_r(&now, &tm)) strftime(r->date, sizeof r->date, "%Y-%m-%dT%H:%M:%SZ", &tm);
  NSAI_TRY(nsai_cli_config(r->a->file, &r->a->settings, true, &r->config));
  find_device(r, &device);
  if (device.driver) {
    snprintf(r->device, sizeof r->device, "%s", device.name);
    status = nsai_config_apply_device(r->config, device.arch->name, device.name, device.uuid);
  }
  if (status == NSA_OK) status = quote(r, &device);
  nsai_device_fini(&device);
  NSAI_TRY(status);
  for (int i = 0; i < REPORT_OPS; i++) {
    nsai_problem p = { .model = r->config->model,
                       .op = NSA_OP_FORWARD + i,
                       .selection = NSA_SELECT_TOPN };
    nsai_writer key = nsai_writer_open(r->model[i], sizeof r->model[i]);
    nsai_problem_add_model(&key, &p);
  }
  return NSA_OK;
}

/* ---- checks and benchmarks ---- */

outcome nsai_report_outcome(const report *r, const nsai_child *program) {
  if (r->a->no_run || !program->path[0] || program->exit_status == 77) return SKIPPED;
  return program->exit_status ? FAIL : PASS;
}

/* The benchmarks also write a table and figures. They would append to an old table, so it is
 * removed. */
static void add_files(nsai_child *program, const char *times, const char *folder,
                      const char *commit) {
  const char *const more[] = { "--csv", times, "--svg", folder, "--commit", commit ? commit : "" };
  int count = 0;
  while (program->arguments[count]) count++;
  for (size_t i = 0; i < sizeof more / sizeof *more; i++) program->arguments[count++] = more[i];
  /* it may not exist; if it cannot be removed, appending to it fails as well */
  (void)remove(times);
}

static nsa_status run_tools(report *r) {
  const nsai_child tools[TOOLS] = {
    [CHECKS] = { .title = "checks", .arguments = { "nsacheck", "--json" } },
    [NEEDLE] = { .title = "needle",
                 .arguments = { "nsacheck", "--filter", "needle:*", "--count", "0", "--json" } },
    [BENCHMARKS] = { .title = "benchmarks",
                     .arguments = { "nsa-bench", "--json", NSAI_CHILD_FILE } },
    [PREFILL] = { .title = "prefill",
                  .arguments = { "nsa-bench", "prefill", "--json", NSAI_CHILD_FILE, "--md",
                                 r->prefill } },
  };
  const char *folder = r->a->folder ? r->a->folder : ".";
  if (mkdir(folder, 0777) && errno != EEXIST)
    return nsai_cli_fail_io(folder, "cannot be made", errno);
  snprintf(r->times, sizeof r->times, "%s/times.csv", folder);
  snprintf(r->prefill, sizeof r->prefill, "%s/prefill.md", folder);
  (void)remove(r->prefill); /* of an earlier report; it may not exist */
  for (int i = 0; i < TOOLS; i++) {
    nsai_child *program = &r->tools[i];
    *program = tools[i];
    if (i == BENCHMARKS) add_files(program, r->times, folder, r->a->commit);
    if (!r->a->no_run) {
      fprintf(stderr, "%s: %s\n", program->title, program->arguments[0]);
      NSAI_TRY(nsai_child_run(program));
    }
    if (nsai_cli_interrupted()) return nsai_fail(NSA_E_CANCELLED, "interrupted");
    if (r->a->no_run)
      nsai_report_check_records(r, program->title, SKIPPED, "--no-run");
    else if (!program->path[0]) {
      nsai_report_check_records(r, program->title, SKIPPED,
                                "%s is neither beside this program nor in $PATH",
                                program->arguments[0]);
      fprintf(stderr, "%s: skipped, %s is neither beside this program nor in $PATH\n",
              program->title, program->arguments[0]);
    } else
      nsai_report_check_records(r, program->title, nsai_report_outcome(r, program),
                                "status %d after %.1f s", program->exit_status, program->seconds);
  }
  return NSA_OK;
}

/* ---- files ---- */

static nsa_status write_file(const char *folder, const char *name, nsai_cli_writer write,
                             const report *r) {
  char path[4096], *text;
  NSAI_TRY(nsai_cli_text(write, r, &text));
  snprintf(path, sizeof path, "%s/%s", folder, name);
  nsa_status status = nsai_cli_write_file(path, text);
  free(text);
  if (status == NSA_OK) printf("%s\n", path);
  return status;
}

static nsa_status make_report(report *r) {
  const char *folder = r->a->folder ? r->a->folder : ".";
  double started = nsai_seconds();
  NSAI_TRY(open_report(r));
  /* Before the checks, which take minutes and are useless if the report cannot be written. */
  NSAI_TRY(nsai_report_records(r));
  NSAI_TRY(run_tools(r));
  r->seconds = nsai_seconds() - started;
  NSAI_TRY(write_file(folder, "report.md", nsai_report_write_markdown, r));
  return write_file(folder, "report.json", nsai_report_write_json, r);
}

int nsai_cmd_report(int argc, char **argv) {
  static const char help[] =
      "Writes report.md and report.json about this machine and a configuration FILE: environment, "
      "effective configuration, what the tuning records chose, sparse against dense attention, and "
      "the results of nsacheck and nsa-bench where these programs stand beside this one or in "
      "$PATH. Without a GPU it reports what there is.\vExit status 7 when a check failed.";
  arguments a = { 0 };
  report r = { .a = &a };
  nsai_cli_parse(argc, argv, options, parse, "FILE", help, &a);
  nsai_cli_catch_interrupt();
  nsa_status status = make_report(&r);
  int code = nsai_cli_exit(status);
  for (int i = 0; i < TOOLS; i++) {
    if (status == NSA_OK && nsai_report_outcome(&r, &r.tools[i]) == FAIL) code = NSAI_EXIT_VERIFY;
    nsai_child_fini(&r.tools[i]);
  }
  nsai_tune_results_fini(&r.results);
  free(r.environment);
  free(r.environment_json);
  free(r.configuration);
  nsai_config_destroy(r.config);
  return code;
}
