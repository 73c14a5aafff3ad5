/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any bytes as the notes of a library, and as a whole library: hexadecimal digits of bytes that
 * stand in them are found, or nothing is written. An id in a well-formed note is found again.
 */
#include "driver/build_id.h"
#include "fuzz.h"

#include <elf.h>

#define UNTOUCHED '#'

enum { ID_BYTES = (NSAI_BUILD_ID_CHARS - 1) / 2, SAMPLE_BYTES = 16384, SAMPLE_DIGITS = 64 };

static void begin(char id[NSAI_BUILD_ID_CHARS]) { memset(id, UNTOUCHED, NSAI_BUILD_ID_CHARS); }

static void check_untouched(const char id[NSAI_BUILD_ID_CHARS]) {
  for (int i = 0; i < NSAI_BUILD_ID_CHARS; i++) FUZZ_REQUIRE(id[i] == UNTOUCHED);
}

/* Returns the number of bytes. */
static size_t read_digits(const char *id, uint8_t bytes[ID_BYTES]) {
  size_t digits = strnlen(id, NSAI_BUILD_ID_CHARS);
  FUZZ_REQUIRE(digits && digits % 2 == 0 && digits < NSAI_BUILD_ID_CHARS);
  FUZZ_REQUIRE(strspn(id, "0123456789abcdef") == digits);
  for (size_t i = 0; i < digits / 2; i++) FUZZ_REQUIRE(sscanf(id + 2 * i, "%2hhx", &bytes[i]) == 1);
  return digits / 2;
}

static void check(bool found, const char *id, const uint8_t *data, size_t size) {
  uint8_t bytes[ID_BYTES];
  if (!found) {
    check_untouched(id);
    return;
  }
  size_t count = read_digits(id, bytes);
  FUZZ_REQUIRE(memmem(data, size, bytes, count) != NULL);
}

/* Behind a note of another kind, whose contents are the first bytes of the input. */
static void try_note(const uint8_t *data, size_t size) {
  uint8_t notes[128] = { 0 }, bytes[ID_BYTES];
  char id[NSAI_BUILD_ID_CHARS];
  size_t other = size < 8 ? size : 8, length = size < ID_BYTES ? size : ID_BYTES, at = 0;
  Elf64_Nhdr first = { 4, (Elf64_Word)other, NT_GNU_ABI_TAG },
             second = { 4, (Elf64_Word)length, NT_GNU_BUILD_ID };
  memcpy(notes, &first, sizeof first);
  memcpy(notes + sizeof first, "GNU", 4);
  at = sizeof first + 4;
  if (other) memcpy(notes + at, data, other);
  at += (other + 3) & ~(size_t)3;
  memcpy(notes + at, &second, sizeof second);
  memcpy(notes + at + sizeof second, "GNU", 4);
  at += sizeof second + 4;
  if (length) memcpy(notes + at, data, length);
  begin(id);
  bool found = nsai_build_id_in_notes(notes, at + length, id);
  FUZZ_REQUIRE(found == (length > 0));
  if (found) FUZZ_REQUIRE(read_digits(id, bytes) == length && !memcmp(bytes, data, length));
  if (!length) return;
  begin(id); /* cut before its last byte */
  FUZZ_REQUIRE(!nsai_build_id_in_notes(notes, at + length - 1, id));
  check_untouched(id);
}

static void try_sample(const char *path, size_t size) {
  char id[NSAI_BUILD_ID_CHARS], again[NSAI_BUILD_ID_CHARS];
  begin(id);
  bool found = nsai_build_sample_of_file(path, id);
  FUZZ_REQUIRE(found == (size >= SAMPLE_BYTES));
  if (!found) {
    check_untouched(id);
    return;
  }
  FUZZ_REQUIRE(strlen(id) == SAMPLE_DIGITS && nsai_build_sample_of_file(path, again));
  FUZZ_REQUIRE(strcmp(id, again) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char id[NSAI_BUILD_ID_CHARS];
  begin(id);
  check(nsai_build_id_in_notes(data, size, id), id, data, size);
  const char *path = fuzz_file(data, size);
  begin(id);
  check(nsai_build_id_of_file(path, id), id, data, size);
  try_sample(path, size);
  try_note(data, size);
  return 0;
}
