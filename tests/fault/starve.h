/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Allocations that fail: the test's program is linked so that the C library's allocators come here
 * first.
 */
#ifndef NSA_TEST_STARVE_H
#define NSA_TEST_STARVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

/* Allocations until the one that fails; negative: none fails. Threads of the library allocate
 * too. */
static _Atomic long countdown = -1;

static bool fails(void) {
  if (countdown < 0) return false;
  return atomic_fetch_sub(&countdown, 1) == 0;
}

#define STARVE(type, name, parameters, arguments)                                                  \
  type __real_##name parameters;                                                                   \
  type __wrap_##name parameters;                                                                   \
  type __wrap_##name parameters { return fails() ? NULL : __real_##name arguments; }

STARVE(void *, malloc, (size_t size), (size))
STARVE(void *, calloc, (size_t count, size_t size), (count, size))
STARVE(void *, realloc, (void *block, size_t size), (block, size))
STARVE(char *, strdup, (const char *text), (text))
STARVE(void *, aligned_alloc, (size_t alignment, size_t size), (alignment, size))

/* Lets the allocation fail that has `n` before it. */
static inline void starve_after(long n) { countdown = n; }

/* Ends that; whether there were so many. */
static inline bool starved(void) {
  bool reached = countdown < 0;
  countdown = -1;
  return reached;
}

#endif /* NSA_TEST_STARVE_H */
