/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Status names and the thread-local error text. The text is a plain thread-local array: a failed
 * create has no context to hold it, and running out of memory must still be reportable.
 */
#include "base/error.h"

#include <stdio.h>
#include <string.h>

/* Enough for the first errors of an NVRTC log, or for a dozen YAML diagnostics with their source
 * lines; longer texts are cut. */
#define ERROR_TEXT_BYTES 16384

static _Thread_local char error_text[ERROR_TEXT_BYTES];
static _Thread_local int foreign_code; /* the foreign code that belongs to it */

const char *nsa_status_name(nsa_status status) {
  switch (status) {
#define STATUS_NAME(name, value, text)                                                             \
  case name: return #name;
    NSA_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
  default: return "NSA_E_UNKNOWN";
  }
}

const char *nsa_status_text(nsa_status status) {
  switch (status) {
#define STATUS_TEXT(name, value, text)                                                             \
  case name: return text;
    NSA_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
  default: return "unknown status";
  }
}

const char *nsa_last_error(void) { return error_text; }

int nsai_last_foreign(void) { return foreign_code; }

nsa_status nsai_fail(nsa_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(error_text, sizeof error_text, format, args);
  va_end(args);
  foreign_code = 0;
  return status;
}

nsa_status nsai_fail_foreign(nsa_status status, int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(error_text, sizeof error_text, format, args);
  va_end(args);
  foreign_code = code;
  return status;
}

nsa_status nsai_fail_text(nsa_status status, const char *text) {
  foreign_code = 0;
  if (text != error_text) snprintf(error_text, sizeof error_text, "%s", text);
  return status;
}

nsa_status nsai_fail_nomem(const char *what, size_t bytes) {
  return nsai_fail(NSA_E_NOMEM, "out of host memory: %zu bytes for %s", bytes, what);
}

nsa_status nsai_trace(nsa_status status, const char *file, int line, const char *function) {
  const char *base = strrchr(file, '/');
  size_t used = strlen(error_text);
  snprintf(error_text + used, sizeof error_text - used, "\n  at %s:%d %s", base ? base + 1 : file,
           line, function);
  return status;
}
