/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any text as a compiler's log: figures are never negative, a further line changes nothing, a log
 * twice counts twice, and figures written as ptxas does are read again. The errors of a log are
 * some of its lines.
 */
#include "compile/ptxas_log.h"
#include "fuzz.h"

enum { MAX_ERRORS = 5 };

static void check_figures(const nsai_ptxas_figures *f) {
  FUZZ_REQUIRE(f->registers >= 0 && f->spill_bytes >= 0);
  FUZZ_REQUIRE(f->stack_bytes >= 0 && f->shared_bytes >= 0);
  FUZZ_REQUIRE((f->serial_wgmma | 1) == 1 && (f->starved | 1) == 1);
  FUZZ_REQUIRE(strnlen(f->remark, sizeof f->remark) < sizeof f->remark);
  FUZZ_REQUIRE(!strchr(f->remark, '\n'));
  FUZZ_REQUIRE(!*f->remark == !(f->serial_wgmma || f->starved));
}

static bool equal(const nsai_ptxas_figures *a, const nsai_ptxas_figures *b) {
  return a->registers == b->registers && a->spill_bytes == b->spill_bytes &&
         a->stack_bytes == b->stack_bytes && a->shared_bytes == b->shared_bytes &&
         a->serial_wgmma == b->serial_wgmma && a->starved == b->starved &&
         strcmp(a->remark, b->remark) == 0;
}

/* The two texts, with the start of a line between them. */
static nsai_ptxas_figures read_both(const char *a, const char *b) {
  nsai_ptxas_figures out;
  size_t size = strlen(a) + strlen(b) + 2;
  char *log = malloc(size);
  FUZZ_REQUIRE(log != NULL);
  snprintf(log, size, "%s\n%s", a, b);
  nsai_ptxas_read_log(log, &out);
  check_figures(&out);
  free(log);
  return out;
}

static int32_t saturate(int64_t value) { return value > INT32_MAX ? INT32_MAX : (int32_t)value; }

static void try_log(const char *text) {
  nsai_ptxas_figures once, more, twice;
  nsai_ptxas_read_log(text, &once);
  check_figures(&once);
  more = read_both(text, "ptxas info    : 0 bytes gmem");
  FUZZ_REQUIRE(equal(&once, &more));
  twice = read_both(text, text);
  FUZZ_REQUIRE(twice.spill_bytes == saturate(2 * (int64_t)once.spill_bytes));
  twice.spill_bytes = once.spill_bytes;
  if (!(once.serial_wgmma && once.starved)) FUZZ_REQUIRE(equal(&once, &twice));
  char line[256];
  snprintf(line, sizeof line,
           "ptxas         .     %d bytes stack frame, %d bytes spill stores, 0 bytes spill loads",
           once.stack_bytes, once.spill_bytes);
  char used[128];
  snprintf(used, sizeof used, "ptxas info    : Used %d registers, %d bytes smem", once.registers,
           once.shared_bytes);
  more = read_both(line, used);
  FUZZ_REQUIRE(more.registers == once.registers && more.stack_bytes == once.stack_bytes);
  FUZZ_REQUIRE(more.spill_bytes == once.spill_bytes && more.shared_bytes == once.shared_bytes);
}

/* The digits with which the input begins, as a number of registers. */
static void try_number(const char *text) {
  char digits[40];
  snprintf(digits, sizeof digits, "%.*s", (int)strspn(text, "0123456789"), text);
  if (!*digits) return;
  int64_t value = 0;
  for (const char *at = digits; *at && value <= INT32_MAX; at++) value = 10 * value + (*at - '0');
  char line[64];
  snprintf(line, sizeof line, "Used %s registers", digits);
  FUZZ_REQUIRE(read_both(line, "").registers == saturate(value));
}

static void try_errors(const char *log, size_t room) {
  char *out = malloc(room);
  FUZZ_REQUIRE(out != NULL);
  memset(out, 'x', room);
  nsai_compiler_first_errors(log, out, room);
  size_t length = strnlen(out, room);
  int lines = 0;
  FUZZ_REQUIRE(length < room && (*out || room == 1));
  for (const char *at = out; strstr(log, "error") && (at = strchr(at, '\n')); at++) lines++;
  FUZZ_REQUIRE(lines < MAX_ERRORS || !strstr(log, "error"));
  free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = fuzz_text(data, size);
  try_log(text);
  try_number(text);
  try_errors(text, 1024);
  try_errors(text, 1 + size % 100);
  free(text);
  return 0;
}
