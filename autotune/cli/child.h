/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Child processes: nsacheck or nsa-bench for the report, whose JSON is read, and functions of this
 * program that must not open the driver in this process.
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

/* Memory that this process and the children that it forks later share, zeroed; NULL: there is none. It
 * stays until the process ends. */
void *nsai_child_memory(size_t bytes);

/* Runs `work` in a forked child, and waits for its end. `*exit_status` is what `work` returned, or 128 +
 * the signal that ended it. The child prints on its own; SIGINT of either process is one of both, and
 * when this process dies the child ends, too. This process must not have opened the driver, which
 * does not survive a fork, and must have one thread. NSA_E_IO, NSA_E_NOMEM. */
nsa_status nsai_child_fork(int (*work)(void *user), void *user, int *exit_status);

#endif /* NSAI_CLI_CHILD_H */
