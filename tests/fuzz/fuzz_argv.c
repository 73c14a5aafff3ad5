/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any arguments of nsa-autotune, nsacheck and nsa-bench. Each program begins as from a shell and is
 * left where its arguments have been read: nothing is opened or run. What is refused says why, and
 * what the configuration is told to override is a list of KEY=VALUE.
 *
 * The programs end when argp refuses an argument, and when an option has been completed, which a
 * fuzz target must not. So argp_parse, the functions that refuse, and exit are replaced by ones that
 * come back here (-Wl,--wrap).
 *
 * Input: a byte for the program, then its arguments, one per line.
 */
#include "arguments.h"
#include "capture.h"
#include "cli/cli.h"
#include "cli/complete.h"

#include <argp.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

enum { NSA_AUTOTUNE, NSACHECK, NSA_BENCH, PROGRAMS, MAX_ARGUMENTS = 40 };

/* The programs' `main`, under the names that tests/fuzz/meson.build gives them. */
int nsa_autotune_main(int argc, char **argv);
int nsa_bench_main(int argc, char **argv);

error_t __real_argp_parse(const struct argp *argp, int argc, char **argv, unsigned flags,
                          int *index, void *input);
error_t __wrap_argp_parse(const struct argp *argp, int argc, char **argv, unsigned flags,
                          int *index, void *input);
void __wrap_argp_error(const struct argp_state *state, const char *format, ...) NSAI_PRINTF(2, 3);
void __wrap_argp_failure(const struct argp_state *state, int status, int error, const char *format,
                         ...) NSAI_PRINTF(4, 5);
void __wrap_argp_usage(const struct argp_state *state);
_Noreturn void __real_exit(int status);
_Noreturn void __wrap_exit(int status);

static int program;
static bool runs;       /* a program, rather than the fuzzer itself */
static int exited;      /* the status that the program gave to exit */
static jmp_buf parsed;  /* back to the target */
static jmp_buf refused; /* back to the parser that is at work */

void __wrap_exit(int status) {
  if (!runs) __real_exit(status);
  exited = status;
  longjmp(parsed, 3);
}

void __wrap_argp_error(const struct argp_state *state, const char *format, ...) {
  va_list args;
  (void)state;
  va_start(args, format);
  FUZZ_REQUIRE(vfprintf(stderr, format, args) > 0);
  va_end(args);
  longjmp(refused, 1);
}

void __wrap_argp_failure(const struct argp_state *state, int status, int error, const char *format,
                         ...) {
  (void)state, (void)status, (void)error, (void)format;
  FUZZ_REQUIRE(!"no argument has a reason to fail but itself");
}

void __wrap_argp_usage(const struct argp_state *state) {
  (void)state;
  fputs("usage", stderr);
  longjmp(refused, 1);
}

static error_t guard(argp_parser_t parser, int key, char *value, struct argp_state *state) {
  if (!parser) return ARGP_ERR_UNKNOWN;
  return setjmp(refused) ? EINVAL : parser(key, value, state);
}

static argp_parser_t outer, inner; /* of the program's argp, and of the one in it */

static error_t guard_outer(int key, char *value, struct argp_state *state) {
  return guard(outer, key, value, state);
}

static error_t guard_inner(int key, char *value, struct argp_state *state) {
  return guard(inner, key, value, state);
}

static void check_settings(const nsai_cli_settings *settings) {
  FUZZ_REQUIRE(settings->count >= 0 && settings->count <= NSAI_CLI_MAX_OVERRIDES);
  for (int i = 0; i < settings->count; i++) FUZZ_REQUIRE(strchr(settings->overrides[i], '='));
  FUZZ_REQUIRE(!settings->overrides[settings->count]);
}

static void check_nsacheck(const chk_arguments *a) {
  FUZZ_REQUIRE(a->areas && a->override_count <= CHK_MOST_OVERRIDES);
  FUZZ_REQUIRE(a->plans.threads >= 1 && a->cache.longest >= CHK_CACHE_LEAST_LONGEST);
  FUZZ_REQUIRE(strnlen(a->repeat, sizeof a->repeat) < sizeof a->repeat);
}

error_t __wrap_argp_parse(const struct argp *argp, int argc, char **argv, unsigned flags,
                          int *index, void *input) {
  struct argp copy = *argp, own = { 0 };
  struct argp_child children[2] = { 0 };
  outer = argp->parser;
  copy.parser = guard_outer;
  if (argp->children && argp->children[0].argp) {
    FUZZ_REQUIRE(!argp->children[1].argp && !argp->children[0].argp->children);
    own = *argp->children[0].argp;
    inner = own.parser;
    own.parser = guard_inner;
    children[0] = argp->children[0];
    children[0].argp = &own;
    copy.children = children;
  }
  error_t error = __real_argp_parse(&copy, argc, argv, flags | ARGP_NO_EXIT, index, input);
  if (!error && program == NSA_AUTOTUNE) check_settings(input);
  if (!error && program == NSACHECK) check_nsacheck(input);
  longjmp(parsed, error ? 2 : 1);
}

/* How a program ended. */
typedef enum outcome { ENDED, ACCEPTED, REFUSED } outcome;

/* `argv` ends with NULL. Returns the exit status of a program that ended by itself in *status. */
static outcome run(int argc, char **argv, int *status) {
  static chk_arguments arguments;
  switch (setjmp(parsed)) {
  case 0: break;
  case 1: return ACCEPTED;
  case 2: return REFUSED;
  default: *status = exited; return ENDED;
  }
  switch (program) {
  case NSA_AUTOTUNE: *status = nsa_autotune_main(argc, argv); break;
  case NSACHECK: chk_arguments_read(argc, argv, &arguments); break;
  case NSA_BENCH: nsa_bench_main(argc, argv); break;
  }
  return ENDED;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static char *argv[MAX_ARGUMENTS + 2];
  static fuzz_capture capture;
  static char *text, *rest;
  int argc = 1, status = 0;
  if (!size) return 0;
  text = rest = fuzz_text(data + 1, size - 1);
  program = data[0] % PROGRAMS;
  argv[0] = (char[]){ "program" };
  bool sleeps = false; /* argp's hidden option --HANG */
  for (char *word; argc <= MAX_ARGUMENTS && (word = strsep(&rest, "\n"));)
    if (*word) sleeps |= !strncmp(argv[argc++] = word, "--H", 3);
  argv[argc] = NULL;
  if (!sleeps) {
    fuzz_capture_begin(&capture);
    runs = true;
    outcome end = run(argc, argv, &status);
    runs = false;
    nsai_complete_begin(NULL, 0);
    fuzz_capture_end(&capture);
    FUZZ_REQUIRE(end != REFUSED || capture.size[1] > 0);
    FUZZ_REQUIRE(end != ENDED || program == NSA_AUTOTUNE);
    FUZZ_REQUIRE(end != ENDED || status == NSAI_EXIT_OK || status == NSAI_EXIT_USAGE);
    /* `complete` prints nothing where no word begins with what was typed. */
    bool silent = status == NSAI_EXIT_OK && argc > 1 && !strcmp(argv[1], "complete");
    FUZZ_REQUIRE(end != ENDED || silent || capture.size[status != NSAI_EXIT_OK] > 0);
    fuzz_capture_fini(&capture);
  }
  free(text);
  return 0;
}
