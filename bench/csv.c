/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "csv.h"

#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The order of the columns. */
typedef enum column {
  DATE,
  COMMIT,
  DEVICE,
  PROBLEM,
  PART,
  BURST,
  SUSTAINED,
  TFLOPS,
  GBPS,
  ROOFLINE,
  R,
  U4,
  U8,
  WORKSPACE,
  PLAN_COLD,
  PLAN_WARM,
  DENSE_RATIO, /* from here on: missing in files of early versions */
  BASELINE_RATIO,
  FLOOR,
  NOTE,
  COLUMNS
} column;

static const char *const names[COLUMNS] = {
  "date",         "commit",    "device",       "problem",      "part",        "burst_ms",
  "sustained_ms", "tflops",    "gbps",         "roofline",     "r",           "u4",
  "u8",           "workspace", "plan_cold_ms", "plan_warm_ms", "dense_ratio", "baseline_ratio",
  "floor_ms",     "note",
};

/* ---- files ----------------------------------------------------------------------------------- */

nsa_status bench_csv_close(FILE *file, const char *path) {
  int failed = ferror(file);
  if (fclose(file) || failed) return nsai_fail(NSA_E_IO, "cannot write %s", path);
  return NSA_OK;
}

/* Refuses a file that begins with another line than `wanted`. Reads no more of it than that. */
static nsa_status check_beginning(const char *path, FILE *file, const char *wanted, size_t size) {
  char *found = malloc(size + 1);
  if (!found) return nsai_fail_nomem("the columns of a table", size + 1);
  size_t count = fread(found, 1, size, file);
  int failed = ferror(file), cause = errno;
  int differs = count && (count < size || memcmp(found, wanted, size) != 0);
  free(found);
  if (failed) return nsai_fail(NSA_E_IO, "cannot read %s: %s", path, strerror(cause));
  return differs ? nsai_fail(NSA_E_ARG, "%s has other columns: give --csv another file", path)
                 : NSA_OK;
}

/* Refuses a file whose lines have other columns than those to be written. */
static nsa_status check_columns(const char *path, void (*write_header)(FILE *)) {
  char *wanted = NULL;
  size_t size = 0;
  FILE *file = fopen(path, "r");
  if (!file) return NSA_OK; /* what cannot be opened is reported when it is appended to */
  nsa_status status = NSA_OK;
  FILE *text = open_memstream(&wanted, &size);
  if (text) write_header(text);
  if (!text || fclose(text))
    status = nsai_fail_nomem("the columns of a table", size);
  else
    status = check_beginning(path, file, wanted, size);
  fclose(file);
  free(wanted);
  return status;
}

nsa_status bench_csv_open(const char *path, void (*write_header)(FILE *), FILE **out, int *is_new) {
  if (!path) return NSA_OK;
  NSAI_TRY(check_columns(path, write_header));
  *out = fopen(path, "a");
  if (!*out) return nsai_fail(NSA_E_IO, "cannot append to %s: %s", path, strerror(errno));
  fseek(*out, 0, SEEK_END);
  *is_new = ftell(*out) == 0;
  return NSA_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

void bench_csv_quoted(FILE *out, const char *text) {
  fputc('"', out);
  for (; *text; text++) {
    if (*text == '"') fputc('"', out);
    fputc(*text == '\n' || *text == '\r' ? ' ' : *text, out);
  }
  fputc('"', out);
}

void bench_csv_word(FILE *out, const char *text) {
  if (strpbrk(text, ",\"\r\n"))
    bench_csv_quoted(out, text);
  else
    fputs(text, out);
}

void bench_csv_now(char date[BENCH_CSV_DATE]) {
  time_t now = time(NULL);
  struct tm utc;
  strftime(date, BENCH_CSV_DATE, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
}

void bench_csv_begin(FILE *out, const char *commit, const char *device, const nsai_verify_case *c) {
  char date[BENCH_CSV_DATE], text[NSAI_VERIFY_CASE_TEXT];
  bench_csv_now(date);
  nsai_verify_case_print(c, text, sizeof text);
  fprintf(out, "%s,", date);
  bench_csv_word(out, commit);
  fputc(',', out);
  bench_csv_quoted(out, device);
  fputc(',', out);
  bench_csv_quoted(out, text);
}

void bench_csv_known(FILE *out, int digits, double value) {
  fputc(',', out);
  if (value > 0) fprintf(out, "%.*g", digits, value);
}

void bench_csv_header(FILE *out) {
  for (int i = 0; i < COLUMNS; i++) fprintf(out, "%s%s", i ? "," : "", names[i]);
  fputc('\n', out);
}

static void put_part(FILE *out, const bench_problem *p, bench_part part) {
  const bench_time *time = &p->part[part];
  char problem[NSAI_VERIFY_CASE_TEXT];
  nsai_verify_case_print(&p->c, problem, sizeof problem);
  fprintf(out, "%s,", p->date);
  bench_csv_word(out, p->commit);
  fputc(',', out);
  bench_csv_quoted(out, p->device);
  fputc(',', out);
  bench_csv_quoted(out, problem);
  fprintf(out, ",%s", bench_part_names[part]);
  bench_csv_known(out, 5, time->burst_ms);
  bench_csv_known(out, 5, time->sustained_ms);
  if (time->burst_ms > 0)
    fprintf(out, ",%.4g,%.4g", time->tflops, time->gbps);
  else
    fprintf(out, ",,");
  bench_csv_known(out, 3, time->roofline);
  fprintf(out, ",%.3f,%.1f,%.1f,%llu,%.1f,%.1f", p->overlap.r, p->overlap.u4, p->overlap.u8,
          (unsigned long long)time->workspace, p->plan_cold_ms, p->plan_warm_ms);
  bench_csv_known(out, 4, bench_ratio(p, bench_ms(p, BENCH_DENSE), part));
  bench_csv_known(out, 4, bench_ratio(p, bench_baseline_ms(p), part));
  bench_csv_known(out, 4, time->roofline * time->burst_ms);
  fputc(',', out);
  if (time->note[0]) bench_csv_quoted(out, time->note);
  fputc('\n', out);
}

void bench_csv_problem(FILE *out, const bench_problem *p) {
  for (int i = 0; i < BENCH_PARTS; i++)
    if (p->part[i].present) put_part(out, p, (bench_part)i);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Splits a line into fields, without its end and their quotes. Returns the count, or -1. */
static int cut_fields(char *line, char **fields) {
  int count = 0;
  line[strcspn(line, "\r\n")] = 0;
  for (char *in = line;;) {
    if (count == BENCH_CSV_FIELDS) return -1;
    char *to = in;
    fields[count++] = to;
    if (*in == '"') {
      for (in++; *in && (*in != '"' || in[1] == '"'); in++) {
        if (*in == '"') in++;
        *to++ = *in;
      }
      if (*in++ != '"') return -1;
    } else {
      size_t length = strcspn(in, ",");
      in += length;
      to += length;
    }
    if (*in && *in != ',') return -1;
    int last = !*in++;
    *to = 0;
    if (last) return count;
  }
}

static int find_field(char *const *fields, int count, const char *name) {
  for (int i = count - 1; i >= 0; i--)
    if (!strcmp(fields[i], name)) return i;
  return -1;
}

/* at[c]: the field of column c; -1: the file does not have it. */
static nsa_status read_header(const char *path, const bench_csv_columns *columns, char *line,
                              int *at) {
  char *fields[BENCH_CSV_FIELDS];
  int count = cut_fields(line, fields);
  for (int c = 0; c < columns->count; c++) {
    at[c] = find_field(fields, count, columns->names[c]);
    if (at[c] < 0 && c < columns->required)
      return nsai_fail(NSA_E_ARG, "%s: no column '%s': not a CSV of nsa-bench", path,
                       columns->names[c]);
  }
  return NSA_OK;
}

/* value[c]: of column c. */
static nsa_status cut_line(const bench_csv_columns *columns, const int *at, char *line,
                           char **value) {
  static char none[1] = "";
  char *fields[BENCH_CSV_FIELDS];
  int count = cut_fields(line, fields);
  for (int c = 0; c < columns->count; c++) {
    if (at[c] >= count) return nsai_fail(NSA_E_ARG, "a field is missing or badly quoted");
    value[c] = at[c] < 0 ? none : fields[at[c]];
  }
  return NSA_OK;
}

nsa_status bench_csv_read(const char *path, const bench_csv_columns *columns,
                          nsa_status (*line)(void *user, char *const *value), void *user) {
  char *text = NULL, *value[BENCH_CSV_FIELDS], reason[1024];
  size_t size = 0;
  int at[BENCH_CSV_FIELDS];
  nsa_status status = NSA_OK;
  FILE *file = fopen(path, "r");
  if (!file) return nsai_fail(NSA_E_IO, "cannot read %s: %s", path, strerror(errno));
  for (int n = 1; status == NSA_OK && getline(&text, &size, file) >= 0; n++) {
    if (n == 1) {
      status = read_header(path, columns, text, at);
    } else if (text[strspn(text, "\r\n")]) {
      status = cut_line(columns, at, text, value);
      if (!status) status = line(user, value);
      if (status != NSA_E_ARG) continue;
      snprintf(reason, sizeof reason, "%s", nsa_last_error());
      status = nsai_fail(NSA_E_ARG, "%s:%d: %s", path, n, reason);
    }
  }
  free(text);
  if (!status && ferror(file)) status = nsai_fail(NSA_E_IO, "cannot read %s", path);
  fclose(file);
  return status;
}

int bench_csv_has(const char *path, const char *name) {
  char *text = NULL, *fields[BENCH_CSV_FIELDS];
  size_t size = 0;
  FILE *file = fopen(path, "r");
  int has = file && getline(&text, &size, file) >= 0 &&
            find_field(fields, cut_fields(text, fields), name) >= 0;
  if (file) fclose(file);
  free(text);
  return has;
}

static nsa_status find_problem(bench_results *results, const char *text, bench_problem **out) {
  char error[256], known[NSAI_VERIFY_CASE_TEXT], wanted[NSAI_VERIFY_CASE_TEXT];
  nsai_verify_case c;
  if (nsai_verify_case_parse(text, &c, error, sizeof error))
    return nsai_fail(NSA_E_ARG, "%s: %s", text, error);
  nsai_verify_case_print(&c, wanted, sizeof wanted);
  for (int64_t i = 0; i < results->count; i++) {
    nsai_verify_case_print(&results->problem[i].c, known, sizeof known);
    *out = &results->problem[i];
    if (!strcmp(known, wanted)) return NSA_OK;
  }
  return bench_results_add(results, &c, out);
}

nsa_status bench_csv_number(const char *name, const char *text, double *out) {
  char *end;
  *out = 0;
  if (!*text) return NSA_OK;
  double value = strtod(text, &end);
  if (*end || end != text + strspn(text, "0123456789.eE+-") || !isfinite(value) || value < 0)
    return nsai_fail(NSA_E_ARG, "%s is '%s', no number from 0", name, text);
  *out = value;
  return NSA_OK;
}

/* The numbers of a part and of its problem, by column. */
static nsa_status read_numbers(char *const *value, bench_problem *p, bench_time *time) {
  const struct {
    column column;
    double *out;
  } numbers[] = { { BURST, &time->burst_ms },      { SUSTAINED, &time->sustained_ms },
                  { TFLOPS, &time->tflops },       { GBPS, &time->gbps },
                  { ROOFLINE, &time->roofline },   { R, &p->overlap.r },
                  { U4, &p->overlap.u4 },          { U8, &p->overlap.u8 },
                  { PLAN_COLD, &p->plan_cold_ms }, { PLAN_WARM, &p->plan_warm_ms } };
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    NSAI_TRY(bench_csv_number(names[numbers[i].column], value[numbers[i].column], numbers[i].out));
  int64_t bytes = 0;
  if (*value[WORKSPACE] && !nsai_parse_integer(value[WORKSPACE], 0, INT64_MAX, &bytes))
    return nsai_fail(NSA_E_ARG, "%s is '%s', no number of bytes", names[WORKSPACE],
                     value[WORKSPACE]);
  time->workspace = (uint64_t)bytes;
  return NSA_OK;
}

/* Reads one part of a problem. */
static nsa_status read_part(void *user, char *const *value) {
  bench_results *results = user;
  bench_problem *p;
  int part = 0;
  while (part < BENCH_PARTS && strcmp(value[PART], bench_part_names[part]) != 0) part++;
  if (part == BENCH_PARTS) return nsai_fail(NSA_E_ARG, "no part is called '%s'", value[PART]);
  NSAI_TRY(find_problem(results, value[PROBLEM], &p));
  snprintf(p->date, sizeof p->date, "%s", value[DATE]);
  snprintf(p->commit, sizeof p->commit, "%s", value[COMMIT]);
  snprintf(p->device, sizeof p->device, "%s", value[DEVICE]);
  bench_time *time = &p->part[part];
  *time = (bench_time){ .present = 1 };
  NSAI_TRY(read_numbers(value, p, time));
  snprintf(time->note, sizeof time->note, "%s", value[NOTE]);
  return NSA_OK;
}

nsa_status bench_csv_load(const char *path, bench_results *results) {
  const bench_csv_columns columns = { names, COLUMNS, DENSE_RATIO };
  NSAI_TRY(bench_csv_read(path, &columns, read_part, results));
  if (!results->count) return nsai_fail(NSA_E_ARG, "%s holds no results", path);
  return NSA_OK;
}
