/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "program.h"

#include "base/text.h"
#include "base/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *program = "";
static bool reported; /* the failure of standard output has been reported */

/* Without these descriptors the next file that is opened, an entry of the cache perhaps, would
 * be standard output. Opened the wrong way round, their use fails with EBADF as if they were
 * closed. */
static void hold_standard_descriptors(void) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    int held = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    /* The lowest free descriptor is `fd`. Without /dev/null nothing can be held. */
    if (held != fd && held >= 0) close(held);
  }
}

int nsai_program_flush(void) {
  int cause = !ferror(stdout) ? 0 : errno ? errno : EIO;
  if (fflush(stdout)) cause = errno;
  reported |= cause != 0;
  return cause;
}

/* Runs at exit. A network file system reports some failed writes only when the file is closed. */
static void close_stdout(void) {
  bool known = reported, failed = ferror(stdout);
  int cause = fflush(stdout) ? errno : 0;
  if (close(STDOUT_FILENO) && !cause && errno != EBADF) cause = errno;
  if (!failed && !cause) return;
  if (!known)
    fprintf(stderr, "%s: error: standard output cannot be written%s%s\n", program,
            cause ? ": " : "", cause ? strerror(cause) : "");
  _exit(EXIT_FAILURE);
}

void nsai_program_begin(const char *name) {
  static bool begun;
  program = name;
  if (begun) return;
  begun = true;
  hold_standard_descriptors();
  if (!atexit(close_stdout)) return;
  fprintf(stderr, "%s: error: no memory to begin\n", name);
  _exit(EXIT_FAILURE);
}

void nsai_program_parse(const struct argp *argp, int argc, char **argv, void *input) {
  error_t error = argp_parse(argp, argc, argv, 0, NULL, input);
  if (!error) return;
  fprintf(stderr, "%s: error: the arguments cannot be parsed: %s\n", program, strerror(error));
  exit(EXIT_FAILURE);
}

int nsai_program_word(const char *option, const char *word, const char *const *words,
                      const struct argp_state *state) {
  char list[512]; /* more than any option's words */
  nsai_writer out = nsai_writer_open(list, sizeof list);
  for (int i = 0; words[i]; i++) {
    if (!strcmp(word, words[i])) return i;
    nsai_write(&out, "%s%s", i ? ", " : "", words[i]);
  }
  nsai_excerpt_text shown;
  nsai_excerpt(word, strlen(word), &shown);
  const char *meant = nsai_nearest(word, words);
  if (meant)
    argp_error(state, "%s: \"%s\" is none of %s; did you mean \"%s\"?", option, shown.text, list,
               meant);
  else
    argp_error(state, "%s: \"%s\" is none of %s", option, shown.text, list);
  return 0;
}
