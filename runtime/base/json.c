/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "base/json.h"

#include "base/text.h"

#include <string.h>

void nsai_write_json(nsai_writer *writer, const char *text) {
  if (!text) {
    nsai_write(writer, "null");
    return;
  }
  size_t left = strlen(text);
  nsai_write(writer, "\"");
  while (left) {
    uint32_t code;
    size_t length = nsai_utf8_step(text, left, &code);
    if (code == NSAI_UTF8_INVALID)
      nsai_write(writer, "\\ufffd");
    else if (code == '"' || code == '\\')
      nsai_write(writer, "\\%c", (char)code);
    else if (code < 0x20 || code == 0x7f)
      nsai_write(writer, "\\u%04x", (unsigned)code);
    else
      nsai_write_bytes(writer, text, length);
    text += length;
    left -= length;
  }
  nsai_write(writer, "\"");
}

void nsai_write_json_member(nsai_writer *writer, const char *before, const char *name,
                            const char *text) {
  nsai_write(writer, "%s\"%s\": ", before, name);
  nsai_write_json(writer, text);
}
