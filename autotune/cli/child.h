/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Runs another program of the project and takes its JSON: nsacheck and nsa-bench, for the report.
 */
#ifndef NSAI_CLI_CHILD_H
#define NSAI_CLI_CHILD_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* Where a tool is to write its JSON; an argument that says so. */
#define NSAI_CHILD_FILE "/proc/self/fd/3"

#define NSAI_CHILD_ARGUMENTS 10
typedef struct nsai_child {
  const char *title;                               /* "checks" */
  const char *arguments[NSAI_CHILD_ARGUMENTS + 1]; /* the program's name first; NULL-terminated */
  char path[4096];                                 /* what was run; "": the program is absent */
  int exit_status;                                 /* 128 + the signal that ended it */
  double seconds;
  char *output; /* its JSON, NUL-terminated; NULL: none, or no JSON */
} nsai_child;

/* Finds the program, in the folder of this one, then in $PATH, and waits for its end. Its JSON is
 * what it writes to NSAI_CHILD_FILE where that is an argument, else to standard output; what else it
 * says goes to stderr. SIGINT is passed on. A program that is absent is no failure. NSA_E_IO,
 * NSA_E_NOMEM. */
nsa_status nsai_child_run(nsai_child *program);

/* Releases the output. */
void nsai_child_fini(nsai_child *program);

#endif /* NSAI_CLI_CHILD_H */
