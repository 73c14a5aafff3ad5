/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the files of nsa-autotune report share: cmd_report.c (the command, the machine, checks and
 * benchmarks), cmd_report_records.c (what the records say), cmd_report_write.c (Markdown, JSON).
 */
#ifndef NSAI_CLI_CMD_REPORT_IMPL_H
#define NSAI_CLI_CMD_REPORT_IMPL_H

#include "cli/child.h"
#include "cli/cli.h"
#include "cli/tune_print.h"

enum { CHECKS, NEEDLE, BENCHMARKS, PREFILL, TOOLS }; /* the programs that are run */
#define CRITERIA 16
#define NOTE_BYTES 256
#define REPORT_OPS (NSA_OP_BACKWARD - NSA_OP_FORWARD + 1)

typedef struct arguments {
  nsai_cli_settings settings;
  const char *file, *folder, *commit;
  bool no_run;
} arguments;

typedef enum outcome { PASS, FAIL, SKIPPED } outcome;

typedef struct criterion {
  char name[96];
  outcome outcome;
  char note[NOTE_BYTES];
} criterion;

typedef struct report {
  const arguments *a;
  nsai_config *config;
  char *environment, *environment_json, *configuration; /* texts of other modules, quoted */
  char device[128];                                     /* "NVIDIA H200"; "": no device */
  char record_device[128];     /* the device whose records are reported; "": not known yet */
  char model[REPORT_OPS][512]; /* beginning of the keys of the file's problems, by operation */
  nsai_tune_results results;   /* the records, as events of the tuner */
  char times[4096];            /* the benchmarks' CSV */
  char prefill[4096];          /* the table of prompts through a cache */
  int64_t records, unfinished, outdated, elsewhere;
  nsai_child tools[TOOLS];
  criterion criteria[CRITERIA];
  int criterion_count;
  char date[32];
  double seconds;
} report;

/* Adds a criterion with its result and a note. */
void nsai_report_check_records(report *r, const char *name, outcome what, const char *format, ...)
    NSAI_PRINTF(4, 5);

/* The outcome of a program: skipped if it did not run or says so. */
outcome nsai_report_outcome(const report *r, const nsai_child *program);

/* cmd_report_records.c */

/* Reads and evaluates the records of the file's problems. NSA_E_NOMEM. */
nsa_status nsai_report_records(report *r);

/* cmd_report_write.c: the complete report, for nsai_cli_text; the subject is the report. */

nsa_status nsai_report_write_markdown(const void *subject, nsai_writer *out);
nsa_status nsai_report_write_json(const void *subject, nsai_writer *out);

#endif /* NSAI_CLI_CMD_REPORT_IMPL_H */
