/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What became of a case, and how it is told: one line a case, a summary, or one JSON document.
 */
#ifndef CHK_RESULT_H
#define CHK_RESULT_H

#include "status.h"
#include "trial/case.h"

#include <stdio.h>

typedef enum chk_outcome { CHK_PASSED, CHK_FAILED, CHK_SKIPPED } chk_outcome;

typedef struct chk_figure {
  char name[24];
  double value, limit;
} chk_figure;

#define CHK_MAX_FIGURES 32

typedef struct chk_result {
  chk_outcome outcome;
  char text[2048]; /* why it failed or was skipped, what is worth saying; joined by "; " */
  chk_figure figure[CHK_MAX_FIGURES];
  int figures;
  double seconds;
  char variants[512];
} chk_result;

/* Turns the result into a failure (a skip), with the reason. */
void chk_fail(chk_result *result, const char *format, ...) NSAI_PRINTF(2, 3);
void chk_skip(chk_result *result, const char *format, ...) NSAI_PRINTF(2, 3);

/* Says something about a problem whatever comes of it. */
void chk_note(chk_result *result, const char *format, ...) NSAI_PRINTF(2, 3);

/* Keeps a figure, the largest of those of one name; one above its limit, or NaN, is a failure. */
void chk_record(chk_result *result, const char *name, double value, double limit);

/* Writes a JSON string with its quotes. */
void chk_json_string(FILE *out, const char *text);

/* Writes a JSON number; JSON has no NaN and no inf: null. */
void chk_json_number(FILE *out, double value);

/* One line for people: outcome, seconds, problem; for a failure the reason and how to repeat it. */
void chk_result_print(FILE *out, const chk_case *c, const chk_result *result,
                      const char *arguments);

/* One JSON object. */
void chk_result_json(FILE *out, const chk_case *c, const chk_result *result);

#endif /* CHK_RESULT_H */
