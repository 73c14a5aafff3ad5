/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Preloaded into a program: its first malloc fails, which is that of the parser of its
 * arguments. The others are those of the C library.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

extern void *__libc_malloc(size_t size);

void *malloc(size_t size) {
  static bool failed;
  if (failed) return __libc_malloc(size);
  failed = true;
  errno = ENOMEM;
  return NULL;
}
