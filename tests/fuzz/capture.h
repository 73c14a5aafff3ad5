/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What a program prints while it runs within a fuzz target.
 */
#ifndef NSA_TESTS_FUZZ_CAPTURE_H
#define NSA_TESTS_FUZZ_CAPTURE_H

#include "fuzz.h"

typedef struct fuzz_capture {
  FILE *out, *err; /* the process's own, in the meantime */
  char *text[2];   /* what was printed to stdout and stderr */
  size_t size[2];
} fuzz_capture;

/* glibc lets programs assign stdout and stderr. */
static inline void fuzz_capture_begin(fuzz_capture *c) {
  *c = (fuzz_capture){ .out = stdout, .err = stderr };
  stdout = open_memstream(&c->text[0], &c->size[0]);
  stderr = open_memstream(&c->text[1], &c->size[1]);
  if (!stdout || !stderr) abort();
}

/* The texts are valid until they are freed by fuzz_capture_fini. */
static inline void fuzz_capture_end(fuzz_capture *c) {
  fclose(stdout);
  fclose(stderr);
  stdout = c->out;
  stderr = c->err;
}

static inline void fuzz_capture_fini(fuzz_capture *c) {
  free(c->text[0]);
  free(c->text[1]);
}

#endif /* NSA_TESTS_FUZZ_CAPTURE_H */
