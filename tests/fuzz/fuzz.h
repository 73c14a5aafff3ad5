/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What a fuzz target defines, libFuzzer's entry, which replay.c calls too; and what targets share.
 */
#ifndef NSA_TESTS_FUZZ_H
#define NSA_TESTS_FUZZ_H

#include "base/text.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the program where a property does not hold, and says which. */
#define FUZZ_REQUIRE(condition) fuzz_require(!!(condition), #condition, __FILE__, __LINE__)
static inline void fuzz_require(int condition, const char *text, const char *file, int line) {
  if (condition) return;
  fprintf(stderr, "%s:%d: not so: %s\n", file, line, text);
  abort();
}

/* The input up to its first NUL as a text, in memory that ends with it. The caller frees it. */
static inline char *fuzz_text(const uint8_t *data, size_t size) {
  size_t length = size ? strnlen((const char *)data, size) : 0;
  char *text = malloc(length + 1);
  FUZZ_REQUIRE(text != NULL);
  if (length) memcpy(text, data, length);
  text[length] = '\0';
  return text;
}

/* What is refused says why. */
static inline void fuzz_check_message(const char *text) { FUZZ_REQUIRE(text && *text); }

/* A file in memory with these bytes, always the same one; its path. */
static inline const char *fuzz_file(const void *data, size_t size) {
  static char path[32];
  static int fd = -1;
  if (fd < 0) {
    fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_REQUIRE(fd >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  }
  FUZZ_REQUIRE(ftruncate(fd, 0) == 0);
  FUZZ_REQUIRE(pwrite(fd, data, size, 0) == (ssize_t)size);
  return path;
}

#define FUZZ_FOLDER_CHARS 64

/* A new folder, in memory where that can be: publishing a file waits for the disk otherwise. */
static inline void fuzz_make_folder(char path[FUZZ_FOLDER_CHARS]) {
  static const char *const parents[] = { "/dev/shm", "/tmp" };
  for (size_t i = 0; i < sizeof parents / sizeof *parents; i++) {
    snprintf(path, FUZZ_FOLDER_CHARS, "%s/nsa-fuzz-XXXXXX", parents[i]);
    if (mkdtemp(path)) return;
  }
  FUZZ_REQUIRE(!"a folder can be made");
}

#endif /* NSA_TESTS_FUZZ_H */
