/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Source texts of a configuration and what is wrong with them, in the style of a compiler:
 *   nsa.yaml:6:15: error: model.compress.stride: 12 does not divide ...
 *       stride: 12
 *               ^
 */
#ifndef NSAI_CONFIG_DIAG_H
#define NSAI_CONFIG_DIAG_H

#include "base/arena.h"
#include "base/writer.h"
#include "config/config.h"

/* A text that contains values. Its memory is in the configuration's arena. */
typedef struct nsai_source {
  const char *name; /* "nsa.yaml", "environment", "override" */
  const char *text;
  size_t length;
  int32_t order; /* sources are reported in this order */
} nsai_source;

/* The position of the byte at `offset`; an offset after the end gives the end of the text. */
nsai_mark nsai_source_mark(const nsai_source *source, size_t offset);

typedef enum nsai_severity { NSAI_WARNING, NSAI_ERROR } nsai_severity;

/* The problems found so far, sorted by position. */
typedef struct nsai_diag {
  nsai_arena *arena;
  struct nsai_problem_note *notes; /* sorted */
  size_t count, errors;
} nsai_diag;

/* Adds a problem. `path` is the key it concerns; NULL: the text as a whole. After 50 problems
 * they are only counted. */
void nsai_diag_add(nsai_diag *diag, nsai_severity severity, nsai_mark mark, const char *path,
                   const char *format, ...) NSAI_PRINTF(5, 6);

/* Writes all problems, each with its source line and a caret, without a final newline. */
void nsai_diag_write(const nsai_diag *diag, nsai_writer *writer);

/* Writes them as three members of a JSON object, without its braces: `"errors": 1, "warnings": 0,
 * "diagnostics": [...]`. Of more than 50 problems the list has the first 50. */
void nsai_diag_write_json(const nsai_diag *diag, nsai_writer *writer);

#endif /* NSAI_CONFIG_DIAG_H */
