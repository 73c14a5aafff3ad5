/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The relevant lines, as NVRTC 12.0 to 13.0 write them:
 *
 *   ptxas info    : Function properties for name
 *   ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
 *   ptxas info    : Used 10 registers, used 1 barriers, 256 bytes smem
 *   ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
 *   ptxas fatal   : (C7602) Insufficient registers (80) to compile instruction at line 1708 in
 *   ...
 */
#include "compile/ptxas_log.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The first errors contain the cause; later ones follow from them. */
#define ERROR_LINES_MAX 5

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* The decimal number immediately before `phrase` in the line, at most INT32_MAX; -1 when the phrase
 * does not occur. */
static int32_t number_before(const char *line, const char *phrase) {
  const char *end = strstr(line, phrase), *at = end;
  int64_t value = 0;
  while (at && at > line && is_digit(at[-1])) at--;
  if (at == end) return -1;
  for (; at < end && value <= INT32_MAX; at++) value = 10 * value + (*at - '0');
  return value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

static void keep_largest(int32_t *value, int32_t seen) {
  if (seen > *value) *value = seen;
}

static void add(int32_t *sum, int32_t seen) {
  if (seen > 0) *sum = *sum > INT32_MAX - seen ? INT32_MAX : *sum + seen;
}

static void read_line(const char *line, nsai_ptxas_figures *out) {
  keep_largest(&out->registers, number_before(line, " registers"));
  keep_largest(&out->stack_bytes, number_before(line, " bytes stack frame"));
  keep_largest(&out->shared_bytes, number_before(line, " bytes smem"));
  add(&out->spill_bytes, number_before(line, " bytes spill stores"));
  add(&out->spill_bytes, number_before(line, " bytes spill loads"));
  const char *remark = strstr(line, "(C75");
  if (remark && is_digit(remark[4]) && is_digit(remark[5]) && remark[6] == ')' &&
      !out->serial_wgmma) {
    out->serial_wgmma = 1;
    snprintf(out->remark, sizeof out->remark, "%s", line);
  }
  if (strstr(line, "(C7602)")) {
    out->starved = 1;
    snprintf(out->remark, sizeof out->remark, "%s", line);
  }
}

/* Copies the line at `*log` and moves past it; false at the end. */
static bool next_line(const char **log, char *line, size_t size) {
  if (!**log) return false;
  size_t length = strcspn(*log, "\n");
  snprintf(line, size, "%.*s", (int)(length < size ? length : size - 1), *log);
  *log += length + ((*log)[length] == '\n');
  return true;
}

void nsai_ptxas_read_log(const char *log, nsai_ptxas_figures *out) {
  char line[512];
  memset(out, 0, sizeof *out);
  while (next_line(&log, line, sizeof line)) read_line(line, out);
}

/* The word may stand anywhere in the line, also behind what is copied of it. */
static bool has_word(const char *line, size_t length, const char *word) {
  return memmem(line, length, word, strlen(word)) != NULL;
}

void nsai_compiler_first_errors(const char *log, char *out, size_t size) {
  char line[512];
  const char *at = log, *begin = log;
  size_t used = 0;
  int lines = 0;
  out[0] = '\0';
  while (lines < ERROR_LINES_MAX && used < size && next_line(&at, line, sizeof line)) {
    const size_t length = (size_t)(at - begin);
    const bool error = has_word(begin, length, "error") || has_word(begin, length, "fatal");
    begin = at;
    if (!error) continue;
    used += (size_t)snprintf(out + used, size - used, "%s%s", lines ? "\n" : "", line);
    lines++;
  }
  if (!lines) snprintf(out, size, "%s", log[0] ? log : "(the compiler's log is empty)");
}
