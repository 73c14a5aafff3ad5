/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-autotune report: what one wants to see of a machine and a model in one place: environment,
 * configuration, what was chosen, sparse against dense, checks and benchmarks.
 */
#include "cli.h"

#include "json.h"
#include "problem.h"
#include "report.h"
#include "tool.h"
#include "tune.h"
#include "tune_print.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define TOOLS 3
#define CRITERIA 16
#define NOTE_BYTES 256

typedef struct arguments {
  nsai_cli_settings settings;
  const char *file, *folder;
  bool no_run;
} arguments;

enum { OPT_NO_RUN = 256 };

static const struct argp_option options[] = {
  { "out", 'o', "DIR", 0,
    "Write report.md and report.json there, times.csv and its figures beside them (.)", 0 },
  { "no-run", OPT_NO_RUN, 0, 0, "Run neither nsacheck nor nsa-bench", 0 },
  { 0 }
};

static error_t parse(int key, char *value, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
  case ARGP_KEY_INIT: state->child_inputs[0] = &a->settings; break;
  case 'o': a->folder = value; break;
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

/* ---- what is reported ---- */

typedef enum outcome { PASS, FAIL, SKIPPED } outcome;
static const char *const outcome_names[] = { "pass", "fail", "skipped" };

typedef struct criterion {
  char name[96];
  outcome outcome;
  char note[NOTE_BYTES];
} criterion;

typedef struct report {
  const arguments *a;
  nsai_config *config;
  char *environment, *environment_json, *configuration; /* texts of other modules, quoted */
  char device[128];                                     /* "NVIDIA H200"; "": none here */
  char record_device[128];   /* whose records are reported; "": none yet */
  char geometry[2][512];     /* how the keys of the file's problems begin: forward, dense */
  nsai_tune_results results; /* the records, as the events of a tuning */
  char times[4096];          /* the benchmarks' CSV */
  int64_t records, unfinished, outdated, elsewhere;
  nsai_tool tools[TOOLS];
  criterion criteria[CRITERIA];
  int criterion_count;
  char date[32];
  double seconds;
} report;

static void judge(report *r, const char *name, outcome what, const char *format, ...)
    NSAI_PRINTF(4, 5);
static void judge(report *r, const char *name, outcome what, const char *format, ...) {
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

/* All zero: there is none. */
static void find_device(report *r, nsai_device *device) {
  const nsai_driver *driver;
  const char *which = r->config->runtime.device;
  nsa_status status = NSA_OK;
  if (!strcmp(which, "cpu")) {
    judge(r, "a GPU can be used", SKIPPED, "runtime.device is cpu");
    return;
  }
  status = nsai_driver_open(r->config->runtime.driver_path, NULL, &driver);
  if (status == NSA_OK) status = nsai_device_init(driver, which, device);
  if (status == NSA_OK)
    judge(r, "a GPU can be used", PASS, "%s", device->name);
  else
    judge(r, "a GPU can be used", FAIL, "%s", nsa_status_text(status));
}

static size_t write_environment_json(const void *inputs, char *buf, size_t size) {
  return nsai_report_json(inputs, buf, size);
}

static size_t write_environment(const void *inputs, char *buf, size_t size) {
  return nsai_report_text(inputs, buf, size);
}

static size_t write_configuration(const void *config, char *buf, size_t size) {
  return nsai_config_dump(config, true, buf, size);
}

static nsa_status quote(report *r, const nsai_device *device) {
  const nsai_config *c = r->config;
  nsai_report_inputs inputs = { .device = c->runtime.device,
                                .driver_path = c->runtime.driver_path,
                                .nvrtc_path = c->runtime.nvrtc_path,
                                .cublaslt_path = c->runtime.cublaslt_path,
                                .cache_dir = c->runtime.cache_dir,
                                .found = device->driver ? device : NULL };
  r->environment = nsai_cli_text(write_environment, &inputs);
  r->environment_json = nsai_cli_text(write_environment_json, &inputs);
  r->configuration = nsai_cli_text(write_configuration, c);
  if (r->environment && r->environment_json && r->configuration) return NSA_OK;
  return nsai_fail_nomem("the report", 0);
}

/* Looks at machine and configuration; the device is free again for the checks. */
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
  for (int i = 0; i < 2; i++) {
    nsai_problem p = { .model = r->config->model,
                       .op = i ? NSA_OP_DENSE : NSA_OP_FORWARD,
                       .selection = NSA_SELECT_OWN };
    nsai_writer key = nsai_writer_open(r->geometry[i], sizeof r->geometry[i]);
    nsai_problem_add_geometry(&key, &p);
  }
  return NSA_OK;
}

/* ---- records ---- */

static bool is_ours(report *r, const nsai_record *record) {
  bool same = false;
  for (int i = 0; i < 2; i++) {
    size_t length = strlen(r->geometry[i]);
    char after = !strncmp(record->problem, r->geometry[i], length) ? record->problem[length] : '?';
    same |= after == ':' || !after;
  }
  if (!same) return false;
  /* Without a GPU here, the first record says whose are reported. */
  if (!r->record_device[0])
    snprintf(r->record_device, sizeof r->record_device, "%s",
             r->device[0] ? r->device : record->device);
  bool here = !strcmp(r->record_device, record->device);
  r->elsewhere += !here;
  return here;
}

/* `timing` NULL: an event about the problem. */
static void add_event(report *r, const nsai_record *record, int32_t kind, const nsai_timing *timing,
                      double gain) {
  nsa_tune_event event = { .struct_size = (uint32_t)sizeof event,
                           .kind = kind,
                           .problem = record->problem,
                           .tokens = record->bucket,
                           .stage = timing ? timing->stage : "",
                           .candidate = timing ? timing->candidate : "",
                           .ms = timing ? timing->ms : (double)NAN,
                           .spread = timing ? timing->spread : 0,
                           .gain = gain,
                           .note = timing ? timing->note : "" };
  nsai_tune_results_add(&r->results, &event);
}

static void add_baseline(report *r, const nsai_record *record, const nsai_baseline *baseline) {
  nsai_timing whole = { .ms = baseline->ms, .spread = baseline->spread };
  snprintf(whole.candidate, sizeof whole.candidate, "%s", baseline->name);
  add_event(r, record, NSA_TUNE_BASELINE, &whole, 0);
}

/* What was chosen for a stage, beside the heuristic's choice where that was timed, too. */
static void add_choice(report *r, const nsai_record *record, const nsai_timing *chosen) {
  double gain = (double)NAN;
  nsai_weight weight = nsai_record_weigh(record, chosen);
  nsai_timing told = *chosen;
  nsai_writer note = nsai_writer_open(told.note, sizeof told.note);
  for (int32_t i = 0; i < record->timing_count; i++) {
    const nsai_timing *t = &record->timings[i];
    if (!t->is_default || strcmp(t->stage, chosen->stage) != 0) continue;
    double heuristic = nsai_record_weigh(record, t).ms;
    if (isfinite(heuristic) && heuristic > 0 && isfinite(weight.ms))
      gain = 1 - weight.ms / heuristic;
  }
  told.note[0] = 0;
  nsai_weight_write(&weight, &note);
  if (isfinite(weight.ms)) {
    told.ms = weight.ms;
    told.spread = weight.spread;
  }
  add_event(r, record, NSA_TUNE_CHOSEN, &told, gain);
}

static bool add_record(void *user, const nsai_record_item *item) {
  static const int32_t kinds[NSAI_TIMING_STATES] = { NSA_TUNE_TIMED, NSA_TUNE_REFUSED,
                                                     NSA_TUNE_WRONG, NSA_TUNE_TIMED };
  report *r = user;
  const nsai_record *record = item->record;
  char version[32];
  if (!record || item->hidden || !is_ours(r, record)) return true;
  snprintf(version, sizeof version, "%d.%d.%d", NSA_VERSION_MAJOR, NSA_VERSION_MINOR,
           NSA_VERSION_PATCH);
  r->records++;
  r->unfinished += !record->complete;
  r->outdated += strcmp(version, record->library) != 0;
  add_event(r, record, NSA_TUNE_PROBLEM, NULL, 0);
  for (int32_t i = 0; i < record->timing_count; i++) {
    const nsai_timing *t = &record->timings[i];
    if (t->state >= 0 && t->state < NSAI_TIMING_STATES) add_event(r, record, kinds[t->state], t, 0);
    if (t->chosen && !nsai_record_is_covered(record, t->stage)) add_choice(r, record, t);
  }
  for (int32_t i = 0; i < record->baseline_count; i++)
    add_baseline(r, record, &record->baselines[i]);
  if (record->complete) add_event(r, record, NSA_TUNE_DONE, NULL, 0);
  return true;
}

static void judge_records(report *r) {
  if (!r->records) {
    judge(r, "records", SKIPPED, "none for this model%s%s; `nsa-autotune tune %s` makes them",
          r->record_device[0] ? " on " : "", r->record_device, r->a->file);
    return;
  }
  judge(r, "the records' searches came to their end", r->unfinished ? FAIL : PASS,
        "%" PRId64 " of %" PRId64 " did", r->records - r->unfinished, r->records);
  judge(r, "the records are of this version", r->outdated ? FAIL : PASS,
        "%" PRId64 " of %" PRId64 " are", r->records - r->outdated, r->records);
}

static void judge_speed(report *r) {
  size_t count, same;
  nsai_tune_point *points = nsai_tune_points(&r->results, &count);
  for (size_t at = 0; at < count; at += same) {
    char inputs[NSAI_TUNE_INPUTS_BYTES], name[96];
    same = nsai_tune_series(points + at, count - at);
    const nsai_tune_point *last = &points[at + same - 1];
    snprintf(name, sizeof name, "sparse is faster at the longest length, %s",
             nsai_tune_inputs(last->problem, inputs));
    judge(r, name, last->forward_ms < last->dense_ms ? PASS : FAIL,
          "%.2f times as fast as %s at %" PRId64 " tokens", last->dense_ms / last->forward_ms,
          last->dense, last->tokens);
  }
  free(points);
}

static nsa_status read_records(report *r) {
  nsai_cli_progress silent = { 0 };
  nsai_logger logger;
  nsai_records *records = NULL;
  nsai_logger_init(&logger, nsai_cli_log, &silent, NSA_LOG_WARN);
  nsai_cache_options o = { .dir = r->config->runtime.cache_dir,
                           .mode = NSAI_CACHE_READ_ONLY,
                           .limit = r->config->runtime.cache_limit,
                           .logger = &logger,
                           .look = true };
  nsa_status status = nsai_records_open(&o, &records);
  if (status == NSA_OK) status = nsai_records_each(records, add_record, r);
  nsai_records_close(records);
  nsai_logger_fini(&logger);
  NSAI_TRY(status);
  nsai_tune_results_sort(&r->results);
  if (r->results.failed) return nsai_fail_nomem("the records", 0);
  judge_records(r);
  judge_speed(r);
  return NSA_OK;
}

/* ---- checks and benchmarks ---- */

static outcome outcome_of(const report *r, const nsai_tool *tool) {
  if (r->a->no_run || !tool->path[0] || tool->exit_status == 77) return SKIPPED;
  return tool->exit_status ? FAIL : PASS;
}

/* The benchmarks leave a table and figures, too; a table of before would be gone on with. */
static void add_files(nsai_tool *tool, const char *times, const char *folder) {
  const char *const more[] = { "--csv", times, "--svg", folder };
  int count = 0;
  while (tool->arguments[count]) count++;
  for (size_t i = 0; i < sizeof more / sizeof *more; i++) tool->arguments[count++] = more[i];
  (void)remove(times); /* there may be none; what cannot be removed cannot be appended to either */
}

static nsa_status run_tools(report *r) {
  static const nsai_tool tools[TOOLS] = {
    { .title = "checks", .arguments = { "nsacheck", "--json" } },
    { .title = "needle",
      .arguments = { "nsacheck", "--filter", "needle:*", "--count", "0", "--json" } },
    { .title = "benchmarks", .arguments = { "nsa-bench", "--json", NSAI_TOOL_FILE } },
  };
  const char *folder = r->a->folder ? r->a->folder : ".";
  if (mkdir(folder, 0777) && errno != EEXIST)
    return nsai_cli_fail_io(folder, "cannot be made", errno);
  snprintf(r->times, sizeof r->times, "%s/times.csv", folder);
  for (int i = 0; i < TOOLS; i++) {
    nsai_tool *tool = &r->tools[i];
    *tool = tools[i];
    if (i == TOOLS - 1) add_files(tool, r->times, folder);
    if (!r->a->no_run) {
      fprintf(stderr, "%s: %s\n", tool->title, tool->arguments[0]);
      NSAI_TRY(nsai_tool_run(tool));
    }
    if (nsai_cli_interrupted()) return nsai_fail(NSA_E_CANCELLED, "interrupted");
    if (r->a->no_run)
      judge(r, tool->title, SKIPPED, "--no-run");
    else if (!tool->path[0])
      judge(r, tool->title, SKIPPED, "%s is neither beside this program nor in $PATH",
            tool->arguments[0]);
    else
      judge(r, tool->title, outcome_of(r, tool), "status %d after %.1f s", tool->exit_status,
            tool->seconds);
  }
  return NSA_OK;
}

/* ---- texts ---- */

static void write_command(nsai_writer *out, const nsai_tool *tool) {
  for (int i = 0; tool->arguments[i]; i++)
    nsai_write(out, "%s%s", i ? " " : "", tool->arguments[i]);
}

static size_t write_markdown(const void *user, char *buf, size_t size) {
  const report *r = user;
  nsai_writer out = nsai_writer_open(buf, size);
  nsai_write(&out,
             "# %s\n\nlibnsa %d.%d.%d, %s, %.1f s.\n\n| criterion | result | |\n|---|---|---|\n",
             r->a->file, NSA_VERSION_MAJOR, NSA_VERSION_MINOR, NSA_VERSION_PATCH, r->date,
             r->seconds);
  for (int i = 0; i < r->criterion_count; i++)
    nsai_write(&out, "| %s | %s | %s |\n", r->criteria[i].name,
               outcome_names[r->criteria[i].outcome], r->criteria[i].note);
  nsai_write(&out, "\n## Environment\n\n```\n%s```\n\n## Configuration\n\n```yaml\n%s```\n\n",
             r->environment, r->configuration);
  nsai_write(&out, "## Choices\n\n");
  if (r->records) nsai_write(&out, "Records of %s", r->record_device);
  if (r->elsewhere) nsai_write(&out, "; %" PRId64 " more of other devices", r->elsewhere);
  nsai_write(&out, "%s", r->records ? ".\n\n" : "No records.\n\n");
  nsai_tune_print_problems(&out, NSAI_TUNE_MARKDOWN, &r->results);
  nsai_write(&out, "## Sparse against dense\n\n");
  nsai_tune_print_summary(&out, NSAI_TUNE_MARKDOWN, &r->results);
  nsai_write(&out, "## Checks and benchmarks\n\n| what | command | result | status | seconds |\n"
                   "|---|---|---|---:|---:|\n");
  for (int i = 0; i < TOOLS; i++) {
    nsai_write(&out, "| %s | `", r->tools[i].title);
    write_command(&out, &r->tools[i]);
    nsai_write(&out, "` | %s | ", outcome_names[outcome_of(r, &r->tools[i])]);
    if (r->tools[i].path[0])
      nsai_write(&out, "%d | %.1f |\n", r->tools[i].exit_status, r->tools[i].seconds);
    else
      nsai_write(&out, "- | - |\n");
  }
  return out.used;
}

static void member(nsai_writer *out, const char *comma, const char *name, const char *text) {
  nsai_write(out, "%s\"%s\": ", comma, name);
  nsai_write_json(out, text);
}

static void write_tool_json(nsai_writer *out, const report *r, const nsai_tool *tool) {
  member(out, "{", "title", tool->title);
  nsai_write(out, ", \"command\": [");
  for (int i = 0; tool->arguments[i]; i++) {
    nsai_write(out, "%s", i ? ", " : "");
    nsai_write_json(out, tool->arguments[i]);
  }
  member(out, "], ", "path", tool->path[0] ? tool->path : NULL);
  member(out, ", ", "result", outcome_names[outcome_of(r, tool)]);
  nsai_write(out, ", \"status\": %d, \"seconds\": %.3f,\n   \"output\": ", tool->exit_status,
             tool->seconds);
  /* In pieces, since a format's result is limited to an int. */
  nsai_write_bytes(out, tool->output ? tool->output : "null",
                   tool->output ? strlen(tool->output) : 4);
  nsai_write(out, "}");
}

static size_t write_json(const void *user, char *buf, size_t size) {
  const report *r = user;
  nsai_writer out = nsai_writer_open(buf, size);
  member(&out, "{", "file", r->a->file);
  member(&out, ", ", "date", r->date);
  nsai_write(&out, ", \"seconds\": %.3f,\n \"build\": %s,\n \"criteria\": [", r->seconds,
             nsa_build_info());
  for (int i = 0; i < r->criterion_count; i++) {
    member(&out, i ? ",\n  {" : "\n  {", "criterion", r->criteria[i].name);
    member(&out, ", ", "result", outcome_names[r->criteria[i].outcome]);
    member(&out, ", ", "note", r->criteria[i].note);
    nsai_write(&out, "}");
  }
  nsai_write(&out, "],\n \"environment\": ");
  nsai_write_bytes(&out, r->environment_json, strlen(r->environment_json));
  member(&out, ",\n ", "configuration", r->configuration);
  member(&out, ",\n ", "device", r->record_device[0] ? r->record_device : NULL);
  nsai_write(&out, ", \"records\": %" PRId64 ", \"records_elsewhere\": %" PRId64, r->records,
             r->elsewhere);
  nsai_write(&out, ",\n \"choices\": ");
  nsai_tune_print_problems(&out, NSAI_TUNE_JSON, &r->results);
  nsai_write(&out, ",\n \"sparse_against_dense\": ");
  nsai_tune_print_summary(&out, NSAI_TUNE_JSON, &r->results);
  nsai_write(&out, ",\n \"runs\": [");
  for (int i = 0; i < TOOLS; i++) {
    nsai_write(&out, "%s\n  ", i ? "," : "");
    write_tool_json(&out, r, &r->tools[i]);
  }
  nsai_write(&out, "]}\n");
  return out.used;
}

/* ---- files ---- */

static nsa_status write_file(const char *folder, const char *name, nsai_cli_writer write,
                             const report *r) {
  char path[4096];
  char *text = nsai_cli_text(write, r);
  if (!text) return nsai_fail_nomem("the report", 0);
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *out = fopen(path, "we");
  int error = out ? 0 : errno;
  if (out && (fputs(text, out) < 0 || fflush(out))) error = errno;
  if (out && fclose(out) && !error) error = errno;
  free(text);
  if (error) return nsai_cli_fail_io(path, "cannot be written", error);
  printf("%s\n", path);
  return NSA_OK;
}

static nsa_status make_report(report *r) {
  const char *folder = r->a->folder ? r->a->folder : ".";
  double started = nsai_cli_now();
  NSAI_TRY(open_report(r));
  /* Before minutes of checks, whose result would have no place. */
  NSAI_TRY(read_records(r));
  NSAI_TRY(run_tools(r));
  r->seconds = nsai_cli_now() - started;
  NSAI_TRY(write_file(folder, "report.md", write_markdown, r));
  return write_file(folder, "report.json", write_json, r);
}

int nsai_cmd_report(int argc, char **argv) {
  static const struct argp_child children[] = { { &nsai_cli_settings_argp, 0, NULL, 0 }, { 0 } };
  static const struct argp argp = {
    options,
    parse,
    "FILE",
    "Writes report.md and report.json about this machine and a configuration FILE: environment, "
    "effective configuration, what the tuning records chose, sparse against dense attention, and "
    "the results of nsacheck and nsa-bench where these programs stand beside this one or in $PATH. "
    "Without a GPU it reports what there is.\vExit status 7 when a check failed.",
    children,
    NULL,
    NULL
  };
  arguments a = { 0 };
  report r = { .a = &a };
  argp_parse(&argp, argc, argv, 0, NULL, &a);
  nsai_cli_catch_interrupt();
  nsa_status status = make_report(&r);
  int code = status == NSA_OK ? NSAI_EXIT_OK : nsai_cli_fail(status);
  for (int i = 0; i < TOOLS; i++) {
    if (status == NSA_OK && outcome_of(&r, &r.tools[i]) == FAIL) code = NSAI_EXIT_VERIFY;
    nsai_tool_fini(&r.tools[i]);
  }
  nsai_tune_results_fini(&r.results);
  free(r.environment);
  free(r.environment_json);
  free(r.configuration);
  nsai_config_destroy(r.config);
  return code;
}
