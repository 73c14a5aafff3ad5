/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The results of a tuning as text, JSON, CSV and Markdown.
 */
#ifndef NSAI_CLI_TUNE_PRINT_H
#define NSAI_CLI_TUNE_PRINT_H

#include "base/writer.h"
#include "cli/tune_results.h"

typedef enum nsai_tune_format {
  NSAI_TUNE_TEXT,
  NSAI_TUNE_JSON,
  NSAI_TUNE_CSV,
  NSAI_TUNE_MARKDOWN
} nsai_tune_format;

/* The text before the first subject and after the last one. The members of the JSON array must be
 * separated by ",\n". */
const char *nsai_tune_head(nsai_tune_format format);
const char *nsai_tune_foot(nsai_tune_format format);

/* What was tuned: one file on one GPU. */
typedef struct nsai_tune_subject {
  const char *file;
  const char *device, *arch; /* the GPU, as records name it; device NULL: it is not known */
  int32_t sms;
  int32_t gpu; /* its number among the visible ones */
  /* The GPUs of the host that the records serve, `gpu` among them; NULL: it alone. */
  const int32_t *serves;
  int32_t serves_count;
} nsai_tune_subject;

/* Prints all results of one subject: for each problem the choice beside the heuristic's, and the
 * baselines, or the plan of a dry run; then the summary for each kind of inputs. NSA_E_NOMEM. */
nsa_status nsai_tune_print(nsai_writer *out, nsai_tune_format format,
                           const nsai_tune_subject *subject, const nsai_tune_results *results);

/* The parts of the above, for other reports. JSON: one array each. */
void nsai_tune_print_problems(nsai_writer *out, nsai_tune_format format,
                              const nsai_tune_results *results);
nsa_status nsai_tune_print_summary(nsai_writer *out, nsai_tune_format format,
                                   const nsai_tune_results *results);

#endif /* NSAI_CLI_TUNE_PRINT_H */
