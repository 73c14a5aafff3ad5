/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any bytes as /etc/ld.so.cache: a path that stands in them behind the name is found, or nothing is
 * written. The input's lines, as names and paths of a file that is well-formed, are found again.
 */
#include "driver/ldcache.h"
#include "fuzz.h"

#define MAGIC "glibc-ld.so.cache1.1"
#define UNTOUCHED '#'

enum { PATH_CHARS = 48, HEADER_BYTES = 48, ENTRY_BYTES = 24, MAX_LINES = 16 };

static bool holds(const uint8_t *data, size_t size, const char *text) {
  return memmem(data, size, text, strlen(text) + 1) != NULL;
}

static bool lookup(const uint8_t *data, size_t size, const char *name, char path[PATH_CHARS]) {
  memset(path, UNTOUCHED, PATH_CHARS);
  bool found = nsai_ldcache_lookup(data, size, name, path, PATH_CHARS);
  if (found) {
    FUZZ_REQUIRE(strnlen(path, PATH_CHARS) < PATH_CHARS);
    FUZZ_REQUIRE(holds(data, size, path) && holds(data, size, name));
  } else {
    for (int i = 0; i < PATH_CHARS; i++) FUZZ_REQUIRE(path[i] == UNTOUCHED);
  }
  return found;
}

static void put_u32(uint8_t *at, size_t value) {
  uint32_t number = (uint32_t)value;
  memcpy(at, &number, sizeof number);
}

/* Lines 0, 2, ... are names, those that follow them their paths. */
static void try_lines(const uint8_t *data, size_t size) {
  char *text = fuzz_text(data, size), *rest = text, *line[MAX_LINES], path[PATH_CHARS];
  int count = 0;
  while (rest && count < MAX_LINES) line[count++] = strsep(&rest, "\n");
  int entries = count / 2;
  size_t strings = HEADER_BYTES + (size_t)entries * ENTRY_BYTES, length = strings;
  for (int i = 0; i < 2 * entries; i++) length += strlen(line[i]) + 1;
  uint8_t *file = calloc(1, length);
  FUZZ_REQUIRE(file != NULL);
  memcpy(file, MAGIC, sizeof MAGIC - 1);
  put_u32(file + sizeof MAGIC - 1, (size_t)entries);
  for (int i = 0; i < 2 * entries; i++) {
    put_u32(file + HEADER_BYTES + (i / 2) * ENTRY_BYTES + 4 + 4 * (i % 2), strings);
    strcpy((char *)file + strings, line[i]);
    strings += strlen(line[i]) + 1;
  }
  for (int i = 0; i < entries; i++) {
    int first = 0;
    while (strcmp(line[2 * first], line[2 * i]) != 0) first++;
    const char *wanted = line[2 * first + 1];
    bool found = lookup(file, length, line[2 * i], path);
    FUZZ_REQUIRE(found == (strlen(wanted) < PATH_CHARS));
    FUZZ_REQUIRE(!found || strcmp(path, wanted) == 0);
  }
  free(file);
  free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char path[PATH_CHARS];
  lookup(data, size, "libnvrtc.so.13", path);
  try_lines(data, size);
  return 0;
}
