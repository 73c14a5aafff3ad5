/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "cli/json_check.h"

#include "base/text.h"

#include <ctype.h>
#include <string.h>

#define MAX_DEPTH 64 /* deeper than any report; bounds the recursion */

typedef struct cursor {
  const char *at, *end;
} cursor;

static void skip_space(cursor *c) {
  while (c->at < c->end && memchr(" \t\r\n", *c->at, 4)) c->at++;
}

static bool take(cursor *c, char wanted) {
  if (c->at == c->end || *c->at != wanted) return false;
  c->at++;
  return true;
}

static bool take_word(cursor *c, const char *word) {
  size_t size = strlen(word);
  if ((size_t)(c->end - c->at) < size || memcmp(c->at, word, size) != 0) return false;
  c->at += size;
  return true;
}

static bool take_digits(cursor *c) {
  const char *from = c->at;
  while (c->at < c->end && isdigit((unsigned char)*c->at)) c->at++;
  return c->at > from;
}

static bool take_number(cursor *c) {
  take(c, '-');
  if (!take(c, '0') && !take_digits(c)) return false;
  if (take(c, '.') && !take_digits(c)) return false;
  if (!take(c, 'e') && !take(c, 'E')) return true;
  if (!take(c, '+')) take(c, '-');
  return take_digits(c);
}

static bool take_escape(cursor *c) {
  if (!take(c, 'u')) return c->at < c->end && memchr("\"\\/bfnrt", *c->at++, 8);
  for (int i = 0; i < 4; i++)
    if (c->at == c->end || !isxdigit((unsigned char)*c->at++)) return false;
  return true;
}

static bool take_string(cursor *c) {
  if (!take(c, '"')) return false;
  while (c->at < c->end && *c->at != '"') {
    if ((unsigned char)*c->at < 0x20) return false;
    if (*c->at++ == '\\' && !take_escape(c)) return false;
  }
  return take(c, '"');
}

static bool take_value(cursor *c, int depth);

/* The members of an object or array, whose opening bracket is taken. */
static bool take_members(cursor *c, bool object, int depth) {
  char close = object ? '}' : ']';
  skip_space(c);
  if (take(c, close)) return true;
  do {
    skip_space(c);
    if (object) {
      if (!take_string(c)) return false;
      skip_space(c);
      if (!take(c, ':')) return false;
    }
    if (!take_value(c, depth)) return false;
  } while (take(c, ','));
  return take(c, close);
}

/* A value with the space around it. */
static bool take_value(cursor *c, int depth) {
  bool good;
  skip_space(c);
  if (take(c, '{'))
    good = depth < MAX_DEPTH && take_members(c, true, depth + 1);
  else if (take(c, '['))
    good = depth < MAX_DEPTH && take_members(c, false, depth + 1);
  else if (c->at < c->end && *c->at == '"')
    good = take_string(c);
  else
    good = take_word(c, "true") || take_word(c, "false") || take_word(c, "null") || take_number(c);
  skip_space(c);
  return good;
}

bool nsai_json_valid(const char *text, size_t size) {
  cursor c = { text, text + size };
  return nsai_utf8_valid(text, size) && take_value(&c, 0) && c.at == c.end;
}
