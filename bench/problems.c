/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "problems.h"

#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static nsa_status add_case(bench_cases *list, const nsai_verify_case *c, const char *filter) {
  char text[NSAI_VERIFY_CASE_TEXT];
  nsai_verify_case_print(c, text, sizeof text);
  if (filter && fnmatch(filter, text, 0)) return NSA_OK;
  size_t size = (size_t)(list->count + 1) * sizeof *list->cases;
  nsai_verify_case *grown = realloc(list->cases, size);
  if (!grown) return nsai_fail_nomem("a list of problems", size);
  list->cases = grown;
  list->cases[list->count++] = *c;
  return NSA_OK;
}

nsa_status bench_cases_add(bench_cases *list, const char *text, const char *filter) {
  char error[256];
  nsai_verify_case c;
  if (nsai_verify_case_parse(text, &c, error, sizeof error))
    return nsai_fail(NSA_E_ARG, "%s: %s", text, error);
  if (c.kind != NSAI_VERIFY_FORWARD)
    return nsai_fail(NSA_E_ARG, "%s: only fwd problems are timed", text);
  return add_case(list, &c, filter);
}

/* Copies a line without surrounding blanks; *next: the following line. Returns its length, or
 * the length that would not fit. */
static size_t take_line(const char *text, const char **next, char *line, size_t size) {
  size_t length = strcspn(text, "\n");
  *next = text + length + (text[length] == '\n');
  while (length && isspace((unsigned char)*text)) text++, length--;
  while (length && isspace((unsigned char)text[length - 1])) length--;
  snprintf(line, size, "%.*s", (int)length, text);
  return length;
}

nsa_status bench_cases_parse(bench_cases *list, const char *text, const char *name,
                             const char *filter) {
  char line[NSAI_VERIFY_CASE_TEXT];
  for (int number = 1; *text; number++) {
    if (take_line(text, &text, line, sizeof line) >= sizeof line && line[0] != '#')
      return nsai_fail(NSA_E_ARG, "%s:%d: the line is too long", name, number);
    if (!line[0] || line[0] == '#') continue;
    nsa_status status = bench_cases_add(list, line, filter);
    if (status == NSA_E_ARG) {
      char reason[1024];
      snprintf(reason, sizeof reason, "%s", nsa_last_error());
      return nsai_fail(NSA_E_ARG, "%s:%d: %s", name, number, reason);
    }
    NSAI_TRY(status);
  }
  return NSA_OK;
}

nsa_status bench_cases_load(bench_cases *list, const char *path, const char *filter) {
  FILE *file = fopen(path, "r");
  if (!file) return nsai_fail(NSA_E_IO, "cannot read %s: %s", path, strerror(errno));
  char *text = NULL;
  size_t size = 0;
  /* A text contains no NUL, so this reads the complete file. */
  ssize_t length = getdelim(&text, &size, 0, file);
  int failed = ferror(file);
  fclose(file);
  nsa_status status = NSA_OK;
  if (failed)
    status = nsai_fail(NSA_E_IO, "cannot read %s", path);
  else if (length > 0)
    status = bench_cases_parse(list, text, path, filter);
  free(text);
  return status;
}

nsa_status bench_cases_sweep(bench_cases *list, int64_t from, int64_t to, const char *filter) {
  bench_cases builtin = { 0 };
  nsa_status status;
  NSAI_TRY_TO(done, bench_cases_parse(&builtin, bench_problem_text, "problems.txt", NULL));
  for (int64_t tokens = from; tokens <= to; tokens *= 2) {
    nsai_verify_case c = builtin.cases[0];
    c.q_len[0] = c.kv_len[0] = tokens;
    NSAI_TRY_TO(done, add_case(list, &c, filter));
  }
done:
  bench_cases_free(&builtin);
  return status;
}

/* Whether the list has a problem of this text. */
static int has_case(const bench_cases *list, const char *text) {
  char other[NSAI_VERIFY_CASE_TEXT];
  for (int64_t i = 0; i < list->count; i++) {
    nsai_verify_case_print(&list->cases[i], other, sizeof other);
    if (!strcmp(other, text)) return 1;
  }
  return 0;
}

nsa_status bench_cases_take_model(bench_cases *list, const nsai_model *model, const char *filter) {
  bench_cases taken = { 0 };
  nsa_status status = NSA_OK;
  for (int64_t i = 0; i < list->count; i++) {
    char text[NSAI_VERIFY_CASE_TEXT];
    nsai_verify_case c = list->cases[i];
    c.model = *model;
    nsai_verify_case_print(&c, text, sizeof text);
    if (!has_case(&taken, text)) NSAI_TRY_TO(done, add_case(&taken, &c, filter));
  }
done:
  bench_cases_free(list);
  *list = taken;
  return status;
}

void bench_cases_free(bench_cases *list) {
  free(list->cases);
  *list = (bench_cases){ 0 };
}
