/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "trial/result.h"

#include <math.h>
#include <string.h>

static void add_text(chk_result *result, const char *format, va_list args) NSAI_PRINTF(2, 0);

static void add_text(chk_result *result, const char *format, va_list args) {
  size_t used = strlen(result->text);
  if (used && used + 3 < sizeof result->text) {
    strcpy(result->text + used, "; ");
    used += 2;
  }
  vsnprintf(result->text + used, sizeof result->text - used, format, args);
}

void chk_fail(chk_result *result, const char *format, ...) {
  va_list args;
  va_start(args, format);
  result->outcome = CHK_FAILED;
  add_text(result, format, args);
  va_end(args);
}

void chk_note(chk_result *result, const char *format, ...) {
  va_list args;
  va_start(args, format);
  add_text(result, format, args);
  va_end(args);
}

void chk_skip(chk_result *result, const char *format, ...) {
  va_list args;
  va_start(args, format);
  result->outcome = CHK_SKIPPED;
  add_text(result, format, args);
  va_end(args);
}

void chk_record(chk_result *result, const char *name, double value, double limit) {
  int i = 0;
  while (i < result->figures && strcmp(result->figure[i].name, name) != 0) i++;
  if (i < CHK_MAX_FIGURES && (i == result->figures || !(value <= result->figure[i].value))) {
    chk_figure *figure = &result->figure[i];
    if (i == result->figures) result->figures++;
    snprintf(figure->name, sizeof figure->name, "%s", name);
    figure->value = value;
    figure->limit = limit;
  }
  if (!(value <= limit)) chk_fail(result, "%s %.3g is above %.3g", name, value, limit);
}

static const char *const outcome_names[] = { "passed", "failed", "skipped" };

void chk_result_print(FILE *out, const chk_case *c, const chk_result *result,
                      const char *arguments) {
  char text[CHK_CASE_TEXT];
  chk_case_print(c, text, sizeof text);
  fprintf(out, "%-7s %6.2f s  %s\n", outcome_names[result->outcome], result->seconds, text);
  if (result->text[0]) fprintf(out, "        %s\n", result->text);
  if (result->outcome == CHK_FAILED && result->variants[0])
    fprintf(out, "        variants: %s\n", result->variants);
  if (result->outcome == CHK_FAILED)
    fprintf(out, "        repeat: nsacheck%s --problem '%s'\n", arguments, text);
}

void chk_json_string(FILE *out, const char *text) {
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

void chk_json_number(FILE *out, double value) {
  if (isfinite(value))
    fprintf(out, "%.6g", value);
  else
    fprintf(out, "null");
}

void chk_result_json(FILE *out, const chk_case *c, const chk_result *result) {
  char text[CHK_CASE_TEXT];
  chk_case_print(c, text, sizeof text);
  fprintf(out, "{\"problem\": ");
  chk_json_string(out, text);
  fprintf(out,
          ", \"outcome\": \"%s\", \"seconds\": %.3f, \"text\": ", outcome_names[result->outcome],
          result->seconds);
  chk_json_string(out, result->text);
  fprintf(out, ", \"variants\": ");
  chk_json_string(out, result->variants);
  fprintf(out, ", \"figures\": {");
  for (int i = 0; i < result->figures; i++) {
    fprintf(out, "%s", i ? ", " : "");
    chk_json_string(out, result->figure[i].name);
    fprintf(out, ": {\"value\": ");
    chk_json_number(out, result->figure[i].value);
    fprintf(out, ", \"limit\": ");
    chk_json_number(out, result->figure[i].limit);
    fprintf(out, "}");
  }
  fprintf(out, "}}");
}
