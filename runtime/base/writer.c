/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "base/writer.h"

#include <stdio.h>
#include <string.h>

nsai_writer nsai_writer_open(char *buf, size_t size) {
  if (!buf) size = 0; /* a host that passes a size without a buffer only wants the length */
  if (size) buf[0] = '\0';
  return (nsai_writer){ buf, size, 0 };
}

void nsai_write_args(nsai_writer *writer, const char *format, va_list args) {
  size_t at = writer->used < writer->size ? writer->used : writer->size;
  size_t left = writer->size - at;
  int length = vsnprintf(left ? writer->buf + at : NULL, left, format, args);
  if (length > 0) writer->used += (size_t)length;
}

void nsai_write(nsai_writer *writer, const char *format, ...) {
  va_list args;
  va_start(args, format);
  nsai_write_args(writer, format, args);
  va_end(args);
}

void nsai_write_bytes(nsai_writer *writer, const char *text, size_t length) {
  if (writer->used + 1 < writer->size) {
    size_t room = writer->size - 1 - writer->used;
    size_t count = length < room ? length : room;
    memcpy(writer->buf + writer->used, text, count);
    writer->buf[writer->used + count] = '\0';
  }
  writer->used += length;
}
