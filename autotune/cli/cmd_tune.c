/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa-autotune tune: runs nsa_tune for configuration files, collects its events and prints them.
 */
#include "cli/cli.h"

#include "base/duration.h"
#include "base/text.h"
#include "cli/child.h"
#include "cli/tune_gpus.h"
#include "cli/tune_print.h"
#include "plan/problem.h"
#include "program.h"
#include "records/decide.h"

#include <inttypes.h>
#include <limits.h>
#include <nsa/tune.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct arguments {
  nsai_cli_settings settings;
  int32_t level; /* 0: tuning.level */
  double budget; /* seconds; 0: tuning.budget */
  int32_t op;    /* NSA_OP_*; 0: forward and dense */
  bool all_ops;  /* every operation that the tuner times and that has kernels on this device */
  bool fresh, dry_run;
  nsai_tune_format format;
  char jobs[64];       /* the override that --jobs sets */
  const char *devices; /* --device: several GPUs; NULL: one */
  char device[128];    /* the override that names one; "": none */
  const char **files;
  int file_count;
} arguments;

#define OPS (NSA_OP_BACKWARD - NSA_OP_FORWARD + 1)

enum { OPT_BUDGET = 256, OPT_FRESH, OPT_JOBS, OPT_OP, OPT_JSON, OPT_CSV, OPT_MD };

static const struct argp_option options[] = {
  { "level", 'l', "LEVEL", 0,
    "How hard to look: heuristic, quick, normal or exhaustive (tuning.level)", 0 },
  { "budget", OPT_BUDGET, "DURATION", 0,
    "Begin nothing new after this time, as 90s, 10m or 1.5h, for each FILE and kind of GPU "
    "(tuning.budget)",
    0 },
  { "fresh", OPT_FRESH, 0, 0, "Forget earlier timings instead of resuming", 0 },
  { "dry-run", 'n', 0, 0, "Print what would be measured and how long it takes", 0 },
  { "jobs", OPT_JOBS, "N", 0, "Compile that many kernels at once (runtime.compile_jobs)", 0 },
  { "device", 'd', "DEVICES", 0,
    "GPU, or GPUs with commas between, as cuda:0,cuda:2, or all: tunes one of each kind, whose "
    "records serve the others; the next of the kind takes its place only where the device fails or "
    "is gone, or the process dies; a name that no GPU has ends the call (runtime.device)",
    0 },
  { "op", OPT_OP, "OP|all", 0,
    "Operation: forward, dense, prefill, decode, backward, or all; without it the first two", 0 },
  { "json", OPT_JSON, 0, 0, "Print JSON", 1 },
  { "csv", OPT_CSV, 0, 0, "Print CSV, a row for every candidate", 1 },
  { "md", OPT_MD, 0, 0, "Print Markdown", 1 },
  { 0 }
};

/* ---- arguments ---- */

static int32_t parse_level(const char *word, struct argp_state *state) {
  const char *levels[NSA_TUNE_EXHAUSTIVE - NSA_TUNE_HEURISTIC + 2] = { NULL };
  for (int32_t level = 0; nsai_level_name(level); level++) levels[level] = nsai_level_name(level);
  return NSA_TUNE_HEURISTIC + nsai_program_word("--level", word, levels, state);
}

/* One of all operations, or "all". */
static void parse_op(arguments *a, const char *word, struct argp_state *state) {
  const char *words[OPS + 2] = { NULL };
  memcpy(words, nsai_cli_ops, OPS * sizeof *words);
  words[OPS] = "all";
  int op = nsai_program_word("--op", word, words, state);
  a->all_ops = op == OPS;
  a->op = op == OPS ? 0 : NSA_OP_FORWARD + op;
}

#define BUDGET_MOST_S (7 * 24 * 3600) /* a week; a longer budget is a mistake */

static double parse_budget(const char *text, struct argp_state *state) {
  int64_t ms = 0;
  const char *advice = nsai_duration_read(text, &ms);
  if (advice) argp_error(state, "--budget: \"%s\" is no duration: %s", text, advice);
  if (ms < 1 || ms / 1000 > BUDGET_MOST_S)
    argp_error(state, "--budget: \"%s\" is not between 1ms and a week", text);
  return (double)ms * 1e-3;
}

static void set_format(arguments *a, nsai_tune_format format, struct argp_state *state) {
  if (a->format != NSAI_TUNE_TEXT && a->format != format)
    argp_error(state, "one of --json, --csv and --md only");
  a->format = format;
}

/* One GPU is an override like any other. Of several, each child sets its own later. */
static void parse_device(arguments *a, const char *value, struct argp_state *state) {
  bool several = nsai_tune_gpus_several(value);
  const char *refused = several || !*value ? nsai_tune_gpus_refuse(value) : NULL;
  if (refused) argp_error(state, "--device \"%s\": %s", value, refused);
  const char *one = several ? "auto" : value;
  if (snprintf(a->device, sizeof a->device, "runtime.device=%s", one) >= (int)sizeof a->device)
    argp_error(state, "--device \"%s\": a name is too long", value);
  a->devices = several ? value : NULL;
}

static error_t parse(int key, char *value, struct argp_state *state) {
  arguments *a = state->input;
  switch (key) {
  case 'd': parse_device(a, value, state); break;
  case 'l': a->level = parse_level(value, state); break;
  case OPT_BUDGET: a->budget = parse_budget(value, state); break;
  case OPT_FRESH: a->fresh = true; break;
  case 'n': a->dry_run = true; break;
  case OPT_JOBS:
    snprintf(a->jobs, sizeof a->jobs, "runtime.compile_jobs=%s", value);
    nsai_cli_override(&a->settings, a->jobs, state);
    break;
  case OPT_OP: parse_op(a, value, state); break;
  case OPT_JSON: set_format(a, NSAI_TUNE_JSON, state); break;
  case OPT_CSV: set_format(a, NSAI_TUNE_CSV, state); break;
  case OPT_MD: set_format(a, NSAI_TUNE_MARKDOWN, state); break;
  case ARGP_KEY_ARGS:
    a->files = (const char **)state->argv + state->next;
    a->file_count = state->argc - state->next;
    break;
  case ARGP_KEY_NO_ARGS: argp_usage(state); break;
  case ARGP_KEY_END: /* the last override, whatever --set says */
    if (a->device[0]) nsai_cli_override(&a->settings, a->device, state);
    break;
  default: return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

/* ---- work ---- */

/* What is known after a file has been tuned on one GPU, in memory that children share. */
typedef struct outcome {
  bool begun;        /* results have been printed */
  nsa_status status; /* what the tuner returned last */
} outcome;

/* One file on one GPU. */
typedef struct job {
  const arguments *a;
  nsai_tune_subject subject;
  char device[128], arch[16]; /* of the subject */
  const char *title;          /* of the progress */
  nsai_tune_results results;
  nsai_cli_progress progress;
  char stage[64];  /* the stage being measured */
  double best;     /* milliseconds of its fastest candidate so far; 0: none */
  int64_t unsaved; /* records that are in memory only, and are lost with this process */
  char why[4400];  /* they could not be saved */
} job;

static void keep_event(void *user, const nsa_tune_event *event) {
  job *j = user;
  nsai_tune_results_add(&j->results, event);
  if (event->kind != NSA_TUNE_TIMED) return;
  if (strcmp(j->stage, event->stage)) {
    snprintf(j->stage, sizeof j->stage, "%s", event->stage);
    j->best = 0;
  }
  if (!(j->best > 0) || event->ms < j->best) j->best = event->ms;
}

static int32_t show_progress(void *user, int64_t done, int64_t total, const char *what) {
  job *j = user;
  char text[256];
  if (j->best > 0)
    snprintf(text, sizeof text, "best %s %.3f ms; %s", j->stage, j->best, what ? what : "");
  else
    snprintf(text, sizeof text, "%s", what ? what : "");
  return nsai_cli_progress_step(&j->progress, done, total, text);
}

static void say(void *user, int32_t level, const char *component, const char *text) {
  nsai_cli_log(&((job *)user)->progress, level, component, text);
}

/* Every operation that the tuner times; reports those that no kernel supports here. */
static nsa_status list_served(nsa_ctx *ctx, nsa_problem problems[OPS], size_t *count) {
  for (int32_t op = NSA_OP_FORWARD; op <= NSA_OP_BACKWARD; op++) {
    nsa_caps caps = NSA_CAPS_INIT;
    nsa_problem p = NSA_PROBLEM_INIT;
    p.op = op;
    if (!nsai_problem_is_tunable(&(nsai_problem){ .op = op })) continue;
    NSAI_TRY(nsa_query(ctx, &p, &caps));
    if (caps.supported)
      problems[(*count)++] = p;
    else
      fprintf(stderr, "%s is left out: no kernels here serve it, as `nsa-autotune show` explains\n",
              nsai_cli_ops[op - NSA_OP_FORWARD]);
  }
  return NSA_OK;
}

/* The problems to tune; none: nsa_tune's default. */
static nsa_status list_problems(const arguments *a, nsa_ctx *ctx, nsa_problem problems[OPS],
                                size_t *count) {
  if (a->all_ops) return list_served(ctx, problems, count);
  if (!a->op) return NSA_OK;
  problems[0] = (nsa_problem)NSA_PROBLEM_INIT;
  problems[0].op = a->op;
  *count = 1;
  return NSA_OK;
}

static bool count_unsaved(void *user, const nsai_record_item *item) {
  *(int64_t *)user += item->record && !item->folder[0];
  return true;
}

/* Also after an interruption, whose records are saved like others. */
static nsa_status find_unsaved(job *j, nsa_ctx *ctx) {
  nsai_records *records = nsai_context_records(ctx);
  nsai_cache_tier_info tier;
  if (!records) return NSA_OK;
  if (nsai_records_tier(records, 0, &tier))
    snprintf(j->why, sizeof j->why, "%s: %s", tier.path, tier.state);
  else
    snprintf(j->why, sizeof j->why, "there is no folder for them");
  return nsai_records_each(records, count_unsaved, &j->unsaved);
}

/* Later plans do not know what was not saved. */
static nsa_status demand_saved(const job *j) {
  if (!j->unsaved) return NSA_OK;
  return nsai_fail(
      NSA_E_CACHE,
      "%s: %" PRId64 " record%s could not be saved and will be lost (%s); make room, or "
      "set runtime.cache_dir or $NSA_CACHE_DIR to a folder of your own, and tune again",
      j->subject.file, j->unsaved, j->unsaved == 1 ? "" : "s", j->why);
}

/* The subject of the results. */
static void name_device(job *j, const nsa_ctx *ctx) {
  snprintf(j->device, sizeof j->device, "%s", ctx->device.name);
  snprintf(j->arch, sizeof j->arch, "%s", ctx->target.arch);
  j->subject.device = j->device;
  j->subject.arch = j->arch;
  j->subject.sms = ctx->device.sm_count;
  j->subject.gpu = ctx->device.ordinal;
}

static nsa_status tune_one(job *j) {
  nsa_options o = NSA_OPTIONS_INIT;
  nsa_tune_options t = NSA_TUNE_OPTIONS_INIT;
  nsa_status status = NSA_OK;
  nsa_ctx *ctx = NULL;
  nsa_problem problems[OPS];
  size_t count = 0;
  o.overrides = j->a->settings.overrides;
  o.log = say;
  o.log_user = j;
  t.level = j->a->level;
  t.budget_s = j->a->budget;
  t.fresh = j->a->fresh;
  t.dry_run = j->a->dry_run;
  t.progress = show_progress;
  t.event = keep_event;
  t.user = j;
  nsai_cli_progress_begin(&j->progress, j->title);
  NSAI_TRY_TO(done, nsai_cli_create(j->subject.file, &o, &ctx));
  name_device(j, ctx);
  NSAI_TRY_TO(done, list_problems(j->a, ctx, problems, &count));
  status = nsa_tune(ctx, count ? problems : NULL, count, &t);
  nsai_cli_progress_clear(&j->progress);
  /* The error of a tuning that failed is reported, not one of this. */
  if (status == NSA_OK || status == NSA_E_CANCELLED) {
    nsa_status found = find_unsaved(j, ctx);
    if (found != NSA_OK) status = found;
  }
done:
  nsa_destroy(ctx);
  return status;
}

static nsa_status write_results(const void *subject, nsai_writer *out) {
  const job *j = subject;
  return nsai_tune_print(out, j->a->format, &j->subject, &j->results);
}

/* Prints what was measured, also after a failure or an interruption. */
static nsa_status print_results(const job *j, bool *begun) {
  char *text;
  if (!j->results.count) return j->results.failed ? nsai_fail_nomem("the results", 0) : NSA_OK;
  NSAI_TRY(nsai_cli_text(write_results, j, &text));
  fputs(*begun ? (j->a->format == NSAI_TUNE_JSON ? ",\n" : "") : nsai_tune_head(j->a->format),
        stdout);
  fputs(text, stdout);
  fflush(stdout);
  free(text);
  *begun = true;
  if (j->results.failed) return nsai_fail_nomem("some of the results", 0);
  return NSA_OK;
}

/* Tunes and prints one file; returns the exit code of what failed last. */
static int tune_file(job *j, outcome *out) {
  int code = NSAI_EXIT_OK;
  nsa_status status = tune_one(j);
  bool interrupted = status == NSA_E_CANCELLED || nsai_cli_interrupted();
  out->status = status;
  if (status != NSA_OK && status != NSA_E_CANCELLED) code = nsai_cli_fail(status);
  status = print_results(j, &out->begun);
  if (status != NSA_OK) code = nsai_cli_fail(status);
  nsai_tune_results_fini(&j->results);
  status = demand_saved(j);
  if (status != NSA_OK) code = nsai_cli_fail(status);
  if (interrupted && status == NSA_OK)
    fprintf(stderr, "interrupted; what was measured is kept: the same command%s resumes\n",
            j->a->fresh ? " without --fresh" : "");
  return interrupted ? NSAI_EXIT_INTERRUPTED : code;
}

/* ---- several GPUs ---- */

typedef struct file_on_gpus {
  arguments *a;
  const char *file;
  outcome *out;
} file_on_gpus;

/* In a child, which has these arguments for itself. */
static int tune_on_gpu(void *user, int32_t gpu, const int32_t *serves, int32_t count,
                       nsa_status *status) {
  const file_on_gpus *f = user;
  char title[PATH_MAX + 16];
  job j = { .a = f->a,
            .title = title,
            .subject = { .file = f->file, .serves = serves, .serves_count = count } };
  snprintf(f->a->device, sizeof f->a->device, "runtime.device=cuda:%d", gpu);
  snprintf(title, sizeof title, "%s cuda:%d", f->file, gpu);
  int code = tune_file(&j, f->out);
  *status = f->out->status;
  return code;
}

/* One file on the GPUs of --device, which are looked for once, by the first file's driver. */
static int tune_file_on_gpus(arguments *a, const char *file, nsai_tune_gpus *gpus, outcome *out) {
  file_on_gpus f = { a, file, out };
  nsai_config *config = NULL;
  int code = NSAI_EXIT_OK;
  /* Standard input is read here, for all children. What is wrong with the file is said once. */
  nsa_status status = nsai_cli_load(file, &a->settings, true, NULL, &config);
  if (status != NSA_OK) return nsai_cli_fail(status);
  if (!gpus->usable) code = nsai_tune_gpus_find(a->devices, config->runtime.driver_path, gpus);
  nsai_config_destroy(config);
  if (!gpus->usable) {
    out->status = NSA_E_NO_DEVICE;
    return code;
  }
  int own = nsai_tune_gpus_each(gpus, file, tune_on_gpu, &f);
  out->status = NSA_OK;
  return own == NSAI_EXIT_OK ? code : own;
}

/* ---- all files ---- */

/* Returns the exit code of the last that failed. */
static int tune_all(arguments *a, outcome *out) {
  int code = NSAI_EXIT_OK;
  nsai_tune_gpus *gpus = nsai_child_memory(sizeof *gpus);
  if (!gpus) return nsai_cli_fail(nsai_fail_nomem("the list of GPUs", sizeof *gpus));
  for (int f = 0; f < a->file_count; f++) {
    job j = { .a = a, .title = a->files[f], .subject = { .file = a->files[f] } };
    out->status = NSA_OK;
    int own = a->devices ? tune_file_on_gpus(a, a->files[f], gpus, out) : tune_file(&j, out);
    if (own != NSAI_EXIT_OK) code = own;
    if (own == NSAI_EXIT_INTERRUPTED) return own;
    /* A missing GPU is reported once for all files. */
    if (out->status == NSA_E_NO_DRIVER || out->status == NSA_E_NO_DEVICE) return code;
  }
  return code;
}

int nsai_cmd_tune(int argc, char **argv) {
  static const char help[] =
      "Verifies and times, on this machine's GPU or with --device on several, the candidates of "
      "every stage that the files' `model` and `serving` sections lead to, and keeps the winners "
      "in records beside the kernel cache, from which later plans choose. Prints what was chosen, "
      "beside the heuristic's choice, and the length from which the sparse forward is faster "
      "than dense attention. Nothing else should run on the GPU meanwhile.\vInterrupted by SIGINT "
      "it keeps what was measured and exits with 130; the same command resumes. Exit status 6 "
      "when a record could not be saved.";
  arguments a = { 0 };
  nsai_cli_parse(argc, argv, options, parse, "FILE...", help, &a);
  nsai_cli_catch_interrupt();
  outcome *out = nsai_child_memory(sizeof *out);
  if (!out) return nsai_cli_fail(nsai_fail_nomem("what children tell", sizeof *out));
  int code = tune_all(&a, out);
  if (out->begun) fputs(nsai_tune_foot(a.format), stdout);
  return code;
}
