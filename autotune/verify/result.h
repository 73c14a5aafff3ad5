/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The result of a case, and writing of JSON numbers and strings.
 */
#ifndef NSAI_VERIFY_RESULT_H
#define NSAI_VERIFY_RESULT_H

#include "base/error.h"

#include <stdio.h>

typedef enum nsai_verify_outcome {
  NSAI_VERIFY_PASSED,
  NSAI_VERIFY_FAILED,
  NSAI_VERIFY_SKIPPED
} nsai_verify_outcome;

typedef struct nsai_verify_figure {
  char name[24];
  double value, limit;
} nsai_verify_figure;

#define NSAI_VERIFY_MAX_FIGURES 32

typedef struct nsai_verify_result {
  nsai_verify_outcome outcome;
  char text[2048]; /* why it failed or was skipped, and remarks; joined by "; " */
  nsai_verify_figure figure[NSAI_VERIFY_MAX_FIGURES];
  int figures;
  double seconds;
  char variants[512];
} nsai_verify_result;

/* Marks the result as failed (or as skipped), with the reason. */
void nsai_verify_fail(nsai_verify_result *result, const char *format, ...) NSAI_PRINTF(2, 3);
void nsai_verify_skip(nsai_verify_result *result, const char *format, ...) NSAI_PRINTF(2, 3);

/* Adds a remark, whatever the outcome. */
void nsai_verify_note(nsai_verify_result *result, const char *format, ...) NSAI_PRINTF(2, 3);

/* Stores a figure, the largest of those with one name. A figure above its limit, or NaN, is a
 * failure. */
void nsai_verify_add_figure(nsai_verify_result *result, const char *name, double value,
                            double limit);

/* Writes a JSON string with its quotes. */
void nsai_verify_json_string(FILE *out, const char *text);

/* Writes a JSON number; JSON has no NaN and no inf: null. */
void nsai_verify_json_number(FILE *out, double value);

#endif /* NSAI_VERIFY_RESULT_H */
