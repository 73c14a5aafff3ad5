/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Runs nsacheck or nsa-bench for the report and reads its JSON.
 */
#ifndef NSAI_CLI_CHILD_H
#define NSAI_CLI_CHILD_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* The argument that names the file to which a tool writes its JSON. */
#define NSAI_CHILD_FILE "/proc/self/fd/3"

#define NSAI_CHILD_ARGUMENTS 10
typedef struct nsai_child {
  const char *title;                               /* "checks" */
  const char *arguments[NSAI_CHILD_ARGUMENTS + 1]; /* the program's name first; NULL-terminated */
  /* what was run; "": the program does not exist */
  char path[4096];
  int exit_status; /* or 128 + the signal that ended it */
  double seconds;
  char *output; /* its JSON, NUL-terminated; NULL: none, or invalid JSON */
} nsai_child;

/* Finds the program in the folder of this one, then in $PATH, runs it and waits for its end. If
 * NSAI_CHILD_FILE is an argument, its JSON is what it writes there, else its standard output;
 * its other output goes to stderr. SIGINT is passed on. A missing program is not a failure.
 * NSA_E_IO, NSA_E_NOMEM. */
nsa_status nsai_child_run(nsai_child *program);

/* Releases the output. */
void nsai_child_fini(nsai_child *program);

#endif /* NSAI_CLI_CHILD_H */
