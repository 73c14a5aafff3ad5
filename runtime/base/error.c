/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Status names and the thread-local error text and trace. Both are plain thread-local arrays: a
 * failed create has no context to hold them, and running out of memory must still be reportable.
 */
#include "base/error.h"

#include <stdio.h>
#include <string.h>

/* Enough for the first errors of an NVRTC log, or for a dozen YAML diagnostics with their source
 * lines; longer texts are cut. */
#define ERROR_TEXT_BYTES 16384

/* Some forty frames; calls nest about ten deep. */
#define TRACE_BYTES 4096

static _Thread_local char error_text[ERROR_TEXT_BYTES];
static _Thread_local char trace_text[TRACE_BYTES]; /* frames, innermost first */
static _Thread_local int foreign_code;             /* behind the failure */

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

const char *nsa_last_trace(void) { return trace_text; }

/* A failure begins: neither trace nor code of the one before is its own. */
static nsa_status begin(nsa_status status, int code) {
  trace_text[0] = '\0';
  foreign_code = code;
  return status;
}

int nsai_last_foreign(void) { return foreign_code; }

nsa_status nsai_fail(nsa_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(error_text, sizeof error_text, format, args);
  va_end(args);
  return begin(status, 0);
}

nsa_status nsai_fail_foreign(nsa_status status, int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(error_text, sizeof error_text, format, args);
  va_end(args);
  return begin(status, code);
}

nsa_status nsai_fail_text(nsa_status status, const char *text) {
  if (text != error_text) snprintf(error_text, sizeof error_text, "%s", text);
  return begin(status, 0);
}

nsa_status nsai_fail_nomem(const char *what, size_t bytes) {
  return nsai_fail(NSA_E_NOMEM, "out of host memory: %zu bytes for %s", bytes, what);
}

nsa_status nsai_trace(nsa_status status, const char *file, int line, const char *function) {
  const char *base = strrchr(file, '/');
  size_t used = strlen(trace_text);
  snprintf(trace_text + used, sizeof trace_text - used, "%sat %s:%d %s", used ? "\n" : "",
           base ? base + 1 : file, line, function);
  return status;
}
