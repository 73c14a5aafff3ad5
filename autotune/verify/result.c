/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/result.h"

#include <math.h>
#include <string.h>

static void add_text(nsai_verify_result *result, const char *format, va_list args)
    NSAI_PRINTF(2, 0);

static void add_text(nsai_verify_result *result, const char *format, va_list args) {
  size_t used = strlen(result->text);
  if (used && used + 3 < sizeof result->text) {
    strcpy(result->text + used, "; ");
    used += 2;
  }
  vsnprintf(result->text + used, sizeof result->text - used, format, args);
}

void nsai_verify_fail(nsai_verify_result *result, const char *format, ...) {
  va_list args;
  va_start(args, format);
  result->outcome = NSAI_VERIFY_FAILED;
  add_text(result, format, args);
  va_end(args);
}

void nsai_verify_note(nsai_verify_result *result, const char *format, ...) {
  va_list args;
  va_start(args, format);
  add_text(result, format, args);
  va_end(args);
}

void nsai_verify_skip(nsai_verify_result *result, const char *format, ...) {
  va_list args;
  va_start(args, format);
  result->outcome = NSAI_VERIFY_SKIPPED;
  add_text(result, format, args);
  va_end(args);
}

void nsai_verify_add_figure(nsai_verify_result *result, const char *name, double value,
                            double limit) {
  int i = 0;
  while (i < result->figures && strcmp(result->figure[i].name, name) != 0) i++;
  if (i < NSAI_VERIFY_MAX_FIGURES &&
      (i == result->figures || !(value <= result->figure[i].value))) {
    nsai_verify_figure *figure = &result->figure[i];
    if (i == result->figures) result->figures++;
    snprintf(figure->name, sizeof figure->name, "%s", name);
    figure->value = value;
    figure->limit = limit;
  }
  if (!(value <= limit)) nsai_verify_fail(result, "%s %.3g is above %.3g", name, value, limit);
}

void nsai_verify_json_string(FILE *out, const char *text) {
  fputc('"', out);
  for (; *text; text++) {
    unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\')
      fprintf(out, "\\%c", c);
    else if (c < 0x20)
      fprintf(out, "\\u%04x", c);
    else
      fputc(c, out);
  }
  fputc('"', out);
}

void nsai_verify_json_number(FILE *out, double value) {
  if (isfinite(value))
    fprintf(out, "%.6g", value);
  else
    fprintf(out, "null");
}
