/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The strerror_r of POSIX. glibc declares its own one for _GNU_SOURCE, so this file does without.
 */
#undef _GNU_SOURCE
#undef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "base/text.h"

#include <stdio.h>
#include <string.h>

const char *nsai_errno_text(int error, char *buf, size_t size) {
  /* A libc need not write anything when it does not know the error. */
  if (strerror_r(error, buf, size) != 0) snprintf(buf, size, "error %d", error);
  return buf;
}
