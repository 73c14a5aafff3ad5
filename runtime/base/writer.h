/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Writes text in pieces by snprintf's rule: nothing beyond the buffer, always NUL-terminated,
 * and at the end the length of the complete text is known.
 */
#ifndef NSAI_BASE_WRITER_H
#define NSAI_BASE_WRITER_H

#include "base/error.h"

#include <stddef.h>

typedef struct nsai_writer {
  char *buf;   /* NULL with size 0: only the length is wanted */
  size_t size; /* bytes of `buf` */
  size_t used; /* length of the text so far without its NUL; may exceed `size` */
} nsai_writer;

/* Starts an empty text in `buf`. */
nsai_writer nsai_writer_open(char *buf, size_t size);

/* Appends formatted text. */
void nsai_write(nsai_writer *writer, const char *format, ...) NSAI_PRINTF(2, 3);

/* The same with a va_list. */
void nsai_write_args(nsai_writer *writer, const char *format, va_list args) NSAI_PRINTF(2, 0);

/* Appends `length` bytes as they are. */
void nsai_write_bytes(nsai_writer *writer, const char *text, size_t length);

#endif /* NSAI_BASE_WRITER_H */
