/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "result.h"

static const char *const outcome_names[] = { "passed", "failed", "skipped" };

void chk_result_print(FILE *out, const char *problem, const nsai_verify_result *result,
                      const char *program, const char *arguments) {
  fprintf(out, "%-7s %6.2f s  %s\n", outcome_names[result->outcome], result->seconds, problem);
  if (result->text[0]) fprintf(out, "        %s\n", result->text);
  if (result->outcome == NSAI_VERIFY_FAILED && result->variants[0])
    fprintf(out, "        variants: %s\n", result->variants);
  if (result->outcome == NSAI_VERIFY_FAILED)
    fprintf(out, "        repeat: %s%s --problem '%s'\n", program, arguments, problem);
}

void chk_result_json(FILE *out, const char *problem, const nsai_verify_result *result) {
  fprintf(out, "{\"problem\": ");
  nsai_verify_json_string(out, problem);
  fprintf(out,
          ", \"outcome\": \"%s\", \"seconds\": %.3f, \"text\": ", outcome_names[result->outcome],
          result->seconds);
  nsai_verify_json_string(out, result->text);
  fprintf(out, ", \"variants\": ");
  nsai_verify_json_string(out, result->variants);
  fprintf(out, ", \"figures\": {");
  for (int i = 0; i < result->figures; i++) {
    fprintf(out, "%s", i ? ", " : "");
    nsai_verify_json_string(out, result->figure[i].name);
    fprintf(out, ": {\"value\": ");
    nsai_verify_json_number(out, result->figure[i].value);
    fprintf(out, ", \"limit\": ");
    nsai_verify_json_number(out, result->figure[i].limit);
    fprintf(out, "}");
  }
  fprintf(out, "}}");
}

void chk_result_tap(FILE *out, int64_t number, const char *problem,
                    const nsai_verify_result *result) {
  const bool skipped = result->outcome == NSAI_VERIFY_SKIPPED;
  fprintf(out, "%sok %lld - %s%s", result->outcome == NSAI_VERIFY_FAILED ? "not " : "",
          (long long)number, problem, skipped ? " # SKIP " : "\n");
  if (!skipped && result->text[0]) fprintf(out, "# ");
  for (const char *c = result->text; *c; c++) fputc(*c == '\n' ? ' ' : *c, out);
  if (skipped || result->text[0]) fputc('\n', out);
  if (result->outcome == NSAI_VERIFY_FAILED) fprintf(out, "# rows: %s\n", result->variants);
}
