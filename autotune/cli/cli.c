/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "cli/cli.h"

#include "base/duration.h"
#include "base/text.h"
#include "cli/child.h"
#include "cli/complete.h"
#include "program.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Seconds between two lines where there is no terminal: rare enough for a log file. */
#define SPEAK_EVERY 10.0
#define BAR_CELLS 24

/* ---- messages ---- */

/* Whether output to `fd` may be in colour. */
static bool may_color(int fd) {
  const char *off = getenv("NO_COLOR"), *term = getenv("TERM");
  return isatty(fd) && !(off && *off) && !(term && !strcmp(term, "dumb"));
}

void nsai_cli_error(const char *format, ...) {
  va_list args;
  bool color = may_color(STDERR_FILENO);
  fprintf(stderr, "nsa-autotune: %serror:%s ", color ? "\033[1;31m" : "", color ? "\033[0m" : "");
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
}

int nsai_cli_exit_code(nsa_status status) {
  switch (status) {
  case NSA_OK: return NSAI_EXIT_OK;
  case NSA_E_CONFIG: return NSAI_EXIT_CONFIG;
  case NSA_E_NO_DRIVER:
  case NSA_E_NO_DEVICE: return NSAI_EXIT_NO_GPU;
  case NSA_E_NO_COMPILER:
  case NSA_E_COMPILE: return NSAI_EXIT_COMPILER;
  case NSA_E_CACHE: return NSAI_EXIT_CACHE;
  case NSA_E_VERIFY: return NSAI_EXIT_VERIFY;
  case NSA_E_CANCELLED: return NSAI_EXIT_INTERRUPTED;
  default: return NSAI_EXIT_FAILURE;
  }
}

int nsai_cli_fail(nsa_status status) {
  const char *level = getenv("NSA_LOG_LEVEL");
  /* Diagnostics of a configuration have their own "file:line:column: error:". */
  if (status == NSA_E_CONFIG)
    fprintf(stderr, "%s\n", nsa_last_error());
  else
    nsai_cli_error("%s", nsa_last_error());
  if (level && !strcmp(level, "trace") && *nsa_last_trace())
    fprintf(stderr, "%s\n", nsa_last_trace());
  return nsai_cli_exit_code(status);
}

int nsai_cli_exit(nsa_status status) {
  return status == NSA_OK ? NSAI_EXIT_OK : nsai_cli_fail(status);
}

nsa_status nsai_cli_fail_io(const char *path, const char *what, int error) {
  char text[NSAI_ERRNO_BYTES];
  return nsai_fail(NSA_E_IO, "%s: %s: %s", path, what, nsai_errno_text(error, text, sizeof text));
}

const char *nsai_cli_bytes(uint64_t bytes, char buf[32]) {
  static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
  double value = (double)bytes;
  int unit = 0;
  for (; value >= 1024 && unit < 4; unit++) value /= 1024;
  snprintf(buf, 32, "%.*f %s", unit && value < 100 ? 1 : 0, value, units[unit]);
  return buf;
}

/* ---- settings ---- */

void nsai_cli_override(nsai_cli_settings *settings, const char *override,
                       struct argp_state *state) {
  if (settings->count == NSAI_CLI_MAX_OVERRIDES)
    argp_error(state, "more than %d overrides", NSAI_CLI_MAX_OVERRIDES);
  else
    settings->overrides[settings->count++] = override;
}

static error_t parse_setting(int key, char *value, struct argp_state *state) {
  if (key == ARGP_KEY_INIT) state->child_inputs[0] = state->input;
  if (key != 's') return ARGP_ERR_UNKNOWN;
  if (!strchr(value, '=')) argp_error(state, "--set %s: expected KEY=VALUE", value);
  nsai_cli_override(state->input, value, state);
  return 0;
}

void nsai_cli_parse(int argc, char **argv, const struct argp_option *options, argp_parser_t parse,
                    const char *usage, const char *help, void *arguments) {
  static const struct argp_option settings[] = {
    { "set", 's', "KEY=VALUE", 0, "Override a key of the configuration: runtime.cache_dir=/tmp/x",
      0 },
    { 0 }
  };
  const struct argp_option *const tables[] = { settings, options, NULL };
  const struct argp own = { .options = options, .parser = parse };
  const struct argp_child children[] = { { &own, 0, NULL, 0 }, { 0 } };
  const struct argp all = { .options = settings,
                            .parser = parse_setting,
                            .args_doc = usage,
                            .doc = help,
                            .children = children };
  if (nsai_complete_active()) {
    nsai_complete_print(tables, usage);
    exit(NSAI_EXIT_OK);
  }
  nsai_program_parse(&all, argc, argv, arguments);
}

/* ---- texts ---- */

nsa_status nsai_cli_text(nsai_cli_writer write, const void *subject, char **text) {
  size_t size = 0;
  /* The text may grow between two calls (a cache, a search): repeat until it fits. */
  for (*text = NULL;;) {
    nsai_writer out = nsai_writer_open(*text, size);
    nsa_status status = write(subject, &out);
    if (status == NSA_OK && out.used < size) return NSA_OK;
    free(*text);
    *text = NULL;
    NSAI_TRY(status);
    size = out.used + 1;
    *text = malloc(size);
    if (!*text) return nsai_fail_nomem("a text", size);
  }
}

nsa_status nsai_cli_print(nsai_cli_writer write, const void *subject) {
  char *text;
  NSAI_TRY(nsai_cli_text(write, subject, &text));
  nsa_status status = nsai_cli_write_file("-", text);
  free(text);
  return status;
}

/* ---- time, interruption, progress ---- */

/* The only variable that a signal handler may write; behind nsai_cli_share_interrupt it is one of this
 * process and its children. */
static volatile sig_atomic_t own_flag;
static volatile sig_atomic_t *volatile interrupted = &own_flag;

static void on_interrupt(int number) {
  (void)number;
  *interrupted = 1;
}

void nsai_cli_catch_interrupt(void) {
  struct sigaction action = { .sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND };
  sigaction(SIGINT, &action, NULL);
}

bool nsai_cli_interrupted(void) { return *interrupted; }

nsa_status nsai_cli_share_interrupt(void) {
  if (interrupted != &own_flag) return NSA_OK;
  volatile sig_atomic_t *shared = nsai_child_memory(sizeof *shared);
  if (!shared) return nsai_fail_nomem("a flag for children", sizeof *shared);
  interrupted = shared;
  if (own_flag) *shared = 1; /* the signal came before */
  return NSA_OK;
}

void nsai_cli_progress_begin(nsai_cli_progress *progress, const char *title) {
  double now = nsai_seconds();
  *progress = (nsai_cli_progress){
    .title = title, .terminal = isatty(STDERR_FILENO), .started = now, .spoken = now
  };
}

void nsai_cli_progress_clear(nsai_cli_progress *progress) {
  if (progress->drawn) fputs("\r\033[K", stderr);
  progress->drawn = false;
}

/* Cut at the terminal's edge: a wrapped line cannot be erased. */
static void draw_bar(nsai_cli_progress *p, int64_t done, int64_t total, const char *what,
                     double left) {
  char cells[BAR_CELLS + 1], rest[32] = "", line[512];
  struct winsize size = { 0 };
  for (int i = 0; i < BAR_CELLS; i++) cells[i] = i * total < done * BAR_CELLS ? '#' : '.';
  cells[BAR_CELLS] = 0;
  if (done) snprintf(rest, sizeof rest, ", %.0f s left", left);
  snprintf(line, sizeof line, "%s [%s] %lld/%lld%s %s", p->title, cells, (long long)done,
           (long long)total, rest, what ? what : "");
  bool known = !ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col > 1;
  fprintf(stderr, "\r\033[K%.*s", known ? size.ws_col - 1 : (int)sizeof line, line);
  fflush(stderr);
  p->drawn = true;
}

int32_t nsai_cli_progress_step(void *user, int64_t done, int64_t total, const char *what) {
  nsai_cli_progress *p = user;
  double now = nsai_seconds();
  if (done == 0) p->began = now;
  double spent = now - p->began;
  double left = done ? spent / (double)done * (double)(total - done) : 0;
  if (p->done < done) p->finished += done - p->done;
  p->done = done;
  if (p->terminal) {
    draw_bar(p, done, total, what, left);
  } else if (now - p->spoken >= SPEAK_EVERY) {
    fprintf(stderr, "%s: %lld of %lld, %s; %.0f s left\n", p->title, (long long)done,
            (long long)total, what ? what : "", left);
    p->spoken = now;
  }
  return *interrupted;
}

void nsai_cli_log(void *user, int32_t level, const char *component, const char *text) {
  /* Below INFO only the compiler's results are of interest: registers, milliseconds. */
  if (level > NSA_LOG_INFO && strcmp(component, "jit")) return;
  nsai_cli_progress_clear(user);
  fprintf(stderr, "%s: %s: %s\n", nsai_log_level_name(level), component, text);
}

const char *const nsai_cli_ops[] = { "forward", "dense",    "prefill",  "decode",
                                     "append",  "backward", "index_kl", NULL };

const char *const nsai_cli_selections[] = { "topn", "blocks", "ranges", "all", NULL };
