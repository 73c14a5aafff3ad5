/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "base/duration.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

/* Largest first. */
static const struct {
  const char *name;
  int64_t ms;
} units[] = { { "h", 3600000 }, { "m", 60000 }, { "s", 1000 }, { "ms", 1 } };
#define UNITS (sizeof units / sizeof units[0])

/* 0.001m is the smallest fraction that is a whole number of milliseconds */
#define FRACTION_DIGITS 3
#define FRACTION_ONE 1000 /* 10 ^ FRACTION_DIGITS */

typedef struct part {
  int64_t whole, fraction; /* `fraction` in units of 10 ^ -FRACTION_DIGITS */
  size_t unit;             /* in `units` */
  bool overflow;
} part;

static const char nothing_between[] =
    "write numbers with their units and nothing between, like 1h30m";

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Reads "1.5" of "1.5h30m" and moves *text past it. Returns as nsai_duration_read does. */
static const char *read_number(const char **text, part *p) {
  const char *at = *text;
  if (!is_digit(*at)) return nothing_between;
  for (; is_digit(*at); at++) {
    p->overflow |= __builtin_mul_overflow(p->whole, (int64_t)10, &p->whole);
    p->overflow |= __builtin_add_overflow(p->whole, (int64_t)(*at - '0'), &p->whole);
  }
  int digits = 0;
  if (*at == '.') {
    at++;
    if (!is_digit(*at)) return "write digits after the point";
    for (; is_digit(*at) && digits < FRACTION_DIGITS; at++, digits++)
      p->fraction = p->fraction * 10 + (*at - '0');
    if (is_digit(*at)) return "write at most 3 digits after the point";
  }
  for (; digits < FRACTION_DIGITS; digits++) p->fraction *= 10;
  *text = at;
  return NULL;
}

/* Reads "h" of "h30m" and moves *text past it. Returns as nsai_duration_read does. */
static const char *read_unit(const char **text, part *p) {
  size_t length = strcspn(*text, "0123456789. ,:");
  if (**text == ' ') return nothing_between;
  if (!length) return "give each number its unit, h, m, s or ms, like 90s";
  for (p->unit = 0; p->unit < UNITS; p->unit++)
    if (strlen(units[p->unit].name) == length && !memcmp(units[p->unit].name, *text, length)) break;
  if (p->unit == UNITS) return "units are h, m, s, ms";
  *text += length;
  return NULL;
}

const char *nsai_duration_read(const char *text, int64_t *ms) {
  int64_t total = 0;
  bool overflow = false;
  size_t next = 0; /* the largest unit that may follow */
  do {
    part p = { 0 };
    const char *remedy = read_number(&text, &p);
    if (!remedy) remedy = read_unit(&text, &p);
    if (remedy) return remedy;
    if (p.unit < next) return "units go from the largest to the smallest, each once";
    next = p.unit + 1;
    int64_t fraction = p.fraction * units[p.unit].ms;
    if (fraction % FRACTION_ONE) return "a millisecond is the least there is";
    overflow |= p.overflow | __builtin_mul_overflow(p.whole, units[p.unit].ms, &p.whole);
    overflow |= __builtin_add_overflow(total, p.whole, &total);
    overflow |= __builtin_add_overflow(total, fraction / FRACTION_ONE, &total);
  } while (*text);
  *ms = overflow ? INT64_MAX : total;
  return NULL;
}

void nsai_duration_write(int64_t ms, nsai_writer *writer) {
  if (!ms) nsai_write(writer, "0s");
  for (size_t i = 0; i < UNITS; ms %= units[i++].ms)
    if (ms >= units[i].ms) nsai_write(writer, "%" PRId64 "%s", ms / units[i].ms, units[i].name);
}

double nsai_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
