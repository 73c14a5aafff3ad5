/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Small text functions: UTF-8 stepping, printable excerpts of foreign text, edit distance,
 * globs, numbers.
 */
#ifndef NSAI_BASE_TEXT_H
#define NSAI_BASE_TEXT_H

#include "base/writer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes one character of `text`, of which `left` > 0 bytes remain, and returns its number of
 * bytes. An invalid byte counts as one character with the code NSAI_UTF8_INVALID. */
#define NSAI_UTF8_INVALID UINT32_MAX
size_t nsai_utf8_step(const char *text, size_t left, uint32_t *code);

/* Whether all of `text` is valid UTF-8. */
bool nsai_utf8_valid(const char *text, size_t length);

/* Whether a character may appear in a message unchanged: no control character, nothing that a
 * terminal could take for a command or that breaks a line. */
bool nsai_printable(uint32_t code);

/* Copies at most 40 characters for a message, with '?' for unprintable ones and "..." where it
 * cuts. Returns `out`. */
#define NSAI_EXCERPT_BYTES 168 /* 40 characters of 4 bytes, "...", NUL, rounded up */
typedef struct nsai_excerpt_text {
  char text[NSAI_EXCERPT_BYTES];
} nsai_excerpt_text;
const char *nsai_excerpt(const char *text, size_t length, nsai_excerpt_text *out);

/* Appends the text as a double-quoted YAML scalar. Each byte that is not UTF-8 becomes '?'. */
void nsai_write_quoted(nsai_writer *writer, const char *text);

/* Number of edits that turn one word into the other: insertions, deletions, replacements, swaps
 * of neighbours. Capitals count as their small letters. Words of more than 32 bytes have distance
 * UINT32_MAX. */
uint32_t nsai_edit_distance(const char *a, const char *b);

/* Whether `known` is near enough to `word` to be what was meant, and nearer than those before it.
 * `*least` is UINT32_MAX before the first. */
bool nsai_is_nearer(const char *word, const char *known, uint32_t *least);

/* The word of a NULL-terminated list that `word` may mean; NULL: it is near to none. */
const char *nsai_nearest(const char *word, const char *const *known);

/* Whether all of `text` matches `pattern`: * is any run of bytes, ? any one byte. */
bool nsai_glob_match(const char *pattern, const char *text);

/* Reads a whole decimal number from `least` to `most`: an optional minus, then digits only.
 * False: the text is no such number, and *out is undefined. */
bool nsai_parse_integer(const char *text, int64_t least, int64_t most, int64_t *out);

/* Writes what an errno means into `buf`, which has at least NSAI_ERRNO_BYTES, and returns `buf`.
 * The strerror_r of POSIX, under every libc: the GNU function of this name returns a text instead
 * of a status. */
#define NSAI_ERRNO_BYTES 128
const char *nsai_errno_text(int error, char *buf, size_t size);

#endif /* NSAI_BASE_TEXT_H */
