/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "base/text.h"

#include "base/math.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define EXCERPT_CHARACTERS 40 /* characters; a longer excerpt adds nothing to a message */
#define WORD_BYTES 32         /* the longest key has 17 */

static bool is_continuation(char byte) { return ((unsigned char)byte & 0xC0) == 0x80; }

size_t nsai_utf8_step(const char *text, size_t left, uint32_t *code) {
  /* Smallest code that needs 1 .. 4 bytes: a longer form of a smaller code is invalid. */
  static const uint32_t smallest[] = { 0, 0x80, 0x800, 0x10000 };
  unsigned char lead = (unsigned char)text[0];
  size_t more = lead < 0x80 ? 0 : lead < 0xC2 ? 4 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  *code = NSAI_UTF8_INVALID;
  if (more == 4 || lead > 0xF4 || more >= left) return 1;
  uint32_t value = more == 0 ? lead : lead & (0x3Fu >> more);
  for (size_t i = 1; i <= more; i++) {
    if (!is_continuation(text[i])) return 1;
    value = value << 6 | ((unsigned char)text[i] & 0x3F);
  }
  bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < smallest[more] || value > 0x10FFFF || surrogate) return 1;
  *code = value;
  return more + 1;
}

bool nsai_utf8_valid(const char *text, size_t length) {
  for (size_t at = 0; at < length;) {
    uint32_t code;
    at += nsai_utf8_step(text + at, length - at, &code);
    if (code == NSAI_UTF8_INVALID) return false;
  }
  return true;
}

bool nsai_printable(uint32_t code) {
  if (code < 0x20 || (code >= 0x7F && code < 0xA0)) return false;
  /* Line and paragraph separators, directional overrides, byte order marks, noncharacters. */
  if (code >= 0x2028 && code <= 0x202E) return false;
  if (code >= 0x2066 && code <= 0x2069) return false;
  if (code == 0xFEFF || (code & 0xFFFE) == 0xFFFE) return false;
  return code != NSAI_UTF8_INVALID;
}

const char *nsai_excerpt(const char *text, size_t length, nsai_excerpt_text *out) {
  char *to = out->text;
  size_t at = 0;
  for (int count = 0; at < length && count < EXCERPT_CHARACTERS; count++) {
    uint32_t code;
    size_t step = nsai_utf8_step(text + at, length - at, &code);
    if (nsai_printable(code)) {
      memcpy(to, text + at, step);
      to += step;
    } else {
      *to++ = '?';
    }
    at += step;
  }
  strcpy(to, at < length ? "..." : "");
  return out->text;
}

void nsai_write_quoted(nsai_writer *writer, const char *text) {
  size_t left = strlen(text);
  nsai_write(writer, "\"");
  while (left) {
    uint32_t code;
    size_t step = nsai_utf8_step(text, left, &code);
    if (code == NSAI_UTF8_INVALID)
      nsai_write(writer, "?");
    else if (*text == '"' || *text == '\\')
      nsai_write(writer, "\\%c", *text);
    else if (nsai_printable(code))
      nsai_write_bytes(writer, text, step);
    else
      nsai_write(writer, "\\U%08" PRIX32, code);
    text += step;
    left -= step;
  }
  nsai_write(writer, "\"");
}

/* The same for a letter and its capital. Independent of the locale. */
static char small_letter(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

static bool same_letter(char a, char b) { return small_letter(a) == small_letter(b); }

uint32_t nsai_edit_distance(const char *a, const char *b) {
  size_t m = strlen(a), n = strlen(b);
  if (m > WORD_BYTES || n > WORD_BYTES) return UINT32_MAX;
  uint32_t d[WORD_BYTES + 1][WORD_BYTES + 1]; /* d[i][j]: from i bytes of a to j bytes of b */
  for (size_t i = 0; i <= m; i++) d[i][0] = (uint32_t)i;
  for (size_t j = 0; j <= n; j++) d[0][j] = (uint32_t)j;
  for (size_t i = 1; i <= m; i++) {
    for (size_t j = 1; j <= n; j++) {
      d[i][j] = nsai_smaller_u32(d[i - 1][j - 1] + !same_letter(a[i - 1], b[j - 1]),
                                 nsai_smaller_u32(d[i - 1][j], d[i][j - 1]) + 1);
      if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1]))
        d[i][j] = nsai_smaller_u32(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[m][n];
}

bool nsai_is_nearer(const char *word, const char *known, uint32_t *least) {
  /* A third of the letters may be wrong, as in compilers' suggestions: beyond that they are
   * noise. */
  size_t allowed = strlen(word) / 3;
  uint32_t distance = nsai_edit_distance(word, known);
  if (distance >= *least || distance > (allowed ? allowed : 1)) return false;
  *least = distance;
  return true;
}

const char *nsai_nearest(const char *word, const char *const *known) {
  const char *nearest = NULL;
  uint32_t least = UINT32_MAX;
  for (; *known; known++)
    if (nsai_is_nearer(word, *known, &least)) nearest = *known;
  return nearest;
}

bool nsai_glob_match(const char *pattern, const char *text) {
  /* the last * seen, and the current end of the text that it matches */
  const char *star = NULL, *resume = NULL;
  while (*text) {
    if (*pattern == '*') {
      star = pattern++;
      resume = text;
    } else if (*pattern == '?' || *pattern == *text) {
      pattern++;
      text++;
    } else if (star) {
      pattern = star + 1;
      text = ++resume;
    } else {
      return false;
    }
  }
  while (*pattern == '*') pattern++;
  return !*pattern;
}

bool nsai_parse_integer(const char *text, int64_t least, int64_t most, int64_t *out) {
  const char *digits = text + (*text == '-');
  errno = 0;
  *out = strtoll(text, NULL, 10);
  return *digits && !digits[strspn(digits, "0123456789")] && !errno && least <= *out &&
         *out <= most;
}
