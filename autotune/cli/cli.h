/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the subcommands of nsa-autotune share: exit codes, messages, settings, progress.
 *
 * Results go to stdout, everything else to stderr.
 */
#ifndef NSAI_CLI_CLI_H
#define NSAI_CLI_CLI_H

#include "base/log.h"
#include "cache/cache.h"
#include "config/config.h"
#include "records/record.h"

#include <argp.h>
#include <nsa/nsa.h>
#include <stdbool.h>
#include <stdio.h>

/* Exit codes, for scripts. */
enum {
  NSAI_EXIT_OK = 0,
  NSAI_EXIT_FAILURE = 1,
  NSAI_EXIT_USAGE = 2,
  NSAI_EXIT_CONFIG = 3,
  NSAI_EXIT_NO_GPU = 4,
  NSAI_EXIT_COMPILER = 5,
  NSAI_EXIT_CACHE = 6,
  NSAI_EXIT_VERIFY = 7,
  NSAI_EXIT_INTERRUPTED = 130 /* 128 + SIGINT, as in shells */
};

/* A subcommand: argv[0] is "nsa-autotune NAME". Returns an exit code. */
typedef int (*nsai_command_fn)(int argc, char **argv);
int nsai_cmd_check(int argc, char **argv);
int nsai_cmd_compile(int argc, char **argv);
int nsai_cmd_config(int argc, char **argv);
int nsai_cmd_doctor(int argc, char **argv);
int nsai_cmd_export(int argc, char **argv);
int nsai_cmd_gc(int argc, char **argv);
int nsai_cmd_import(int argc, char **argv);
int nsai_cmd_init(int argc, char **argv);
int nsai_cmd_keygen(int argc, char **argv);
int nsai_cmd_list(int argc, char **argv);
int nsai_cmd_quickstart(int argc, char **argv);
int nsai_cmd_report(int argc, char **argv);
int nsai_cmd_show(int argc, char **argv);
int nsai_cmd_tune(int argc, char **argv);
int nsai_cmd_verify(int argc, char **argv);

/* Prints "nsa-autotune: error: ..." to stderr; in colour on a terminal, unless NO_COLOR is set. */
void nsai_cli_error(const char *format, ...) NSAI_PRINTF(1, 2);

/* The exit code of a subcommand that ends with `status`. */
int nsai_cli_exit_code(nsa_status status);

/* Prints this thread's last error, with NSA_LOG_LEVEL=trace its trace as well, and returns the exit
 * code of `status`. */
int nsai_cli_fail(nsa_status status);

/* The same for any status; only a failure is printed. */
int nsai_cli_exit(nsa_status status);

/* Fails with NSA_E_IO and "path: what: why". */
nsa_status nsai_cli_fail_io(const char *path, const char *what, int error);

/* Overrides of the configuration, given as --set KEY=VALUE or implied by other options. */
#define NSAI_CLI_MAX_OVERRIDES 64 /* more than anybody sets by hand */
typedef struct nsai_cli_settings {
  const char *overrides[NSAI_CLI_MAX_OVERRIDES + 1]; /* NULL-terminated */
  int count;
} nsai_cli_settings;

/* Parses a subcommand's arguments. Exits when they are wrong or cannot be parsed, and when they are
 * only to be completed (cli/complete.h). `arguments` is the input of `parse` and begins with the
 * nsai_cli_settings, which --set fills. `options` may be NULL; `usage` describes the arguments that
 * are no options, NULL: there are none. */
void nsai_cli_parse(int argc, char **argv, const struct argp_option *options, argp_parser_t parse,
                    const char *usage, const char *help, void *arguments);

/* The override that --arch implies: the file or NSA_DEVICE may select the CPU device, which
 * compiles nothing. */
#define NSAI_CLI_NO_DEVICE "runtime.device=auto"

/* Adds an override that another option implies; the strings are borrowed. */
void nsai_cli_override(nsai_cli_settings *settings, const char *override, struct argp_state *state);

/* ---- input.c: configurations that a command is given; "-" is standard input ---- */

/* What messages call a file: itself, or "<stdin>". */
const char *nsai_cli_file_name(const char *file);

/* Reads a file, or standard input to its end. The caller frees the text, which ends with a NUL behind
 * its `length` bytes. Of more bytes than a configuration may have, one more than those is read.
 * NSA_E_IO, NSA_E_NOMEM. */
nsa_status nsai_cli_read(const char *file, char **text, size_t *length);

/* Loads system file, environment and overrides, and `file` unless it is NULL. Standard input is read
 * once: later calls get the same text. `json`: as in nsai_config_request. */
nsa_status nsai_cli_load(const char *file, const nsai_cli_settings *settings, bool need_model,
                         char **json, nsai_config **out);

/* The same; warnings go to stderr. */
nsa_status nsai_cli_config(const char *file, const nsai_cli_settings *settings, bool need_model,
                           nsai_config **out);

/* nsa_create for such a file. */
nsa_status nsai_cli_create(const char *file, const nsa_options *options, nsa_ctx **out);

/* Prints the output of `show device`: for this machine's GPU, or for `arch` unless it is NULL;
 * `file` may be NULL. */
nsa_status nsai_show_device(const char *file, const char *arch, const nsai_cli_settings *settings,
                            bool json);

/* The words for NSA_OP_FORWARD and the following operations; NULL after the last. */
extern const char *const nsai_cli_ops[];

/* The words for NSA_SELECT_TOPN and the following kinds of selections; NULL after the last. */
extern const char *const nsai_cli_selections[];

/* Writes a text about its subject. Called a second time where the text did not fit. */
typedef nsa_status (*nsai_cli_writer)(const void *subject, nsai_writer *out);

/* The whole text; the caller frees it, NULL after a failure. NSA_E_NOMEM, or what `write` says. */
nsa_status nsai_cli_text(nsai_cli_writer write, const void *subject, char **text);

/* The same on standard output. NSA_E_IO, too. */
nsa_status nsai_cli_print(nsai_cli_writer write, const void *subject);

/* ---- out.c: files that a command writes ---- */

/* A regular file keeps what it had until the new one is complete, and is replaced then. */
typedef struct nsai_cli_out {
  FILE *file;
  const char *path; /* as the user gave it; "-": standard output */
  char *staged;     /* the file that is written; NULL: `path` itself */
  char *target;     /* the file that it replaces */
} nsai_cli_out;

/* Opens a file to be written. `path` has to live until nsai_cli_close_out. NSA_E_IO, NSA_E_NOMEM. */
nsa_status nsai_cli_open_out(const char *path, nsai_cli_out *out);

/* Ends the file, or standard output. Unless `status`, which tells what became of the contents, is
 * NSA_OK, a regular file stays as it was. Returns `status`, or NSA_E_IO when anything was not
 * written. */
nsa_status nsai_cli_close_out(nsai_cli_out *out, nsa_status status);

/* Writes a text to a file, "-": to standard output. NSA_E_IO, NSA_E_NOMEM. */
nsa_status nsai_cli_write_file(const char *path, const char *text);

/* "1.5 MiB", for messages. */
const char *nsai_cli_bytes(uint64_t bytes, char buf[32]);

/* From now on the first SIGINT only sets a flag, which the progress callback turns into a
 * cancellation; the second one ends the process. */
void nsai_cli_catch_interrupt(void);
bool nsai_cli_interrupted(void);

/* From now on this process and the children that it forks have one flag: whichever of them gets the
 * signal, all see it. NSA_E_NOMEM. */
nsa_status nsai_cli_share_interrupt(void);

/* Progress on stderr: a bar on a terminal, else a line every 10 seconds. */
typedef struct nsai_cli_progress {
  const char *title; /* "base.yaml sm_90a" */
  bool terminal;
  /* seconds: time of nsai_cli_progress_begin, and of the slow call's first step */
  double started, began;
  double spoken;    /* time of the last line */
  int64_t done;     /* at the last step; each slow call starts from 0 */
  int64_t finished; /* units of work done, over all calls so far */
  bool drawn;       /* a bar is on the current line */
} nsai_cli_progress;

/* Starts; `title` is borrowed. */
void nsai_cli_progress_begin(nsai_cli_progress *progress, const char *title);

/* The nsa_progress_fn; `user` is the nsai_cli_progress. Nonzero after SIGINT. */
int32_t nsai_cli_progress_step(void *user, int64_t done, int64_t total, const char *what);

/* Erases the bar, so that other lines can be written. */
void nsai_cli_progress_clear(nsai_cli_progress *progress);

/* A nsa_log_fn that prints a line to stderr without damaging the bar; `user` is the
 * nsai_cli_progress. */
void nsai_cli_log(void *user, int32_t level, const char *component, const char *text);

/* The capacity of a file whose `serving` section gives none. */
#define NSAI_CLI_TOKENS 65536
#define NSAI_CLI_SEQS 1

/* A configuration and the kernel cache that it names. */
typedef struct nsai_cli_cache {
  nsai_config *config;
  nsai_cache *cache;
  nsai_cache_options options; /* the options it was opened with */
  nsai_logger logger;
  nsai_cli_progress progress; /* for the logger; shows nothing */
} nsai_cli_cache;

/* Opens the cache that system file, environment and overrides name. A folder that exists but is
 * refused is an error here (NSA_E_CACHE). `out` must be closed after a failure, too. */
nsa_status nsai_cli_cache_open(const nsai_cli_settings *settings, int32_t log_level,
                               nsai_cache_mode mode, nsai_cli_cache *out);
void nsai_cli_cache_close(nsai_cli_cache *cache);

/* Refuses a listing in which so many files could not be read: NSA_E_CACHE. */
nsa_status nsai_cli_demand_readable(int64_t unreadable);

/* ---- tuning records ---- */

/* list, export and import with --records; return exit codes. */
int nsai_list_records(const nsai_cli_settings *settings, bool json, bool verbose);
int nsai_export_records(const nsai_cli_settings *settings, const char *path);

/* `digest`, which may be NULL: fails where the records are then others, by the digits of
 * nsa_records_digest. */
int nsai_import_records(const nsai_cli_settings *settings, const char *path, const char *digest);

/* list --records --digest: prints these digits. Returns an exit code. */
int nsai_print_records_digest(const nsai_cli_settings *settings);

/* Removes what processes that died left beside the records. */
nsa_status nsai_gc_records(const nsai_cli_cache *cache);

/* Reads every record. Names invalid ones on stderr and does not remove them. */
nsa_status nsai_verify_records(const nsai_cli_cache *cache, int64_t *good, int64_t *bad);

#endif /* NSAI_CLI_CLI_H */
