/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Any bytes as another program's JSON: what is taken for valid stays so between spaces and in a list,
 * and not where it is cut or followed by more; only UTF-8 is. Any text written as a string is valid.
 */
#include "base/json.h"
#include "base/writer.h"
#include "cli/json_check.h"
#include "fuzz.h"

enum { MAX_DEPTH = 64 };

static bool valid_between(const char *before, const uint8_t *data, size_t size, const char *after) {
  size_t head = strlen(before), tail = strlen(after);
  char *text = malloc(head + size + tail + 1);
  FUZZ_REQUIRE(text != NULL);
  memcpy(text, before, head);
  if (size) memcpy(text + head, data, size);
  memcpy(text + head + size, after, tail);
  bool valid = nsai_json_valid(text, head + size + tail);
  free(text);
  return valid;
}

/* At most as deep as it has brackets that open. */
static int depth_of(const uint8_t *data, size_t size) {
  int depth = 0;
  for (size_t i = 0; i < size; i++) depth += data[i] == '[' || data[i] == '{';
  return depth;
}

static void check_valid(const uint8_t *data, size_t size) {
  FUZZ_REQUIRE(nsai_utf8_valid((const char *)data, size));
  FUZZ_REQUIRE(valid_between(" ", data, size, "\r\n\t"));
  FUZZ_REQUIRE(!valid_between("", data, size, ","));
  FUZZ_REQUIRE(!valid_between("", data, size, "]"));
  FUZZ_REQUIRE(!valid_between("", data, size, " null"));
  if (depth_of(data, size) < MAX_DEPTH) {
    FUZZ_REQUIRE(valid_between("[", data, size, "]"));
    FUZZ_REQUIRE(valid_between("{\"a\": 1, \"b\":", data, size, "}"));
    FUZZ_REQUIRE(!valid_between("{\"a\": 1 \"b\":", data, size, "}"));
    FUZZ_REQUIRE(!valid_between("{", data, size, "}"));
  }
  while (size && strchr(" \t\r\n", data[size - 1])) size--;
  FUZZ_REQUIRE(size > 0);
  if (strchr("]}\"", data[size - 1])) FUZZ_REQUIRE(!nsai_json_valid((const char *)data, size - 1));
}

static void try_string(const char *text) {
  nsai_writer writer = nsai_writer_open(NULL, 0);
  nsai_write_json(&writer, text);
  char *json = malloc(writer.used + 1);
  FUZZ_REQUIRE(json != NULL);
  writer = nsai_writer_open(json, writer.used + 1);
  nsai_write_json(&writer, text);
  FUZZ_REQUIRE(nsai_json_valid(json, writer.used));
  free(json);
}

/* Lists in lists, to the depth that is allowed and one deeper. */
static void try_depth(size_t size) {
  char text[2 * (MAX_DEPTH + 1)];
  size_t depth = 1 + size % (MAX_DEPTH + 1);
  memset(text, '[', depth);
  memset(text + depth, ']', depth);
  FUZZ_REQUIRE(nsai_json_valid(text, 2 * depth) == (depth <= MAX_DEPTH));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size && nsai_json_valid((const char *)data, size)) check_valid(data, size);
  char *text = fuzz_text(data, size);
  try_string(text);
  try_depth(size);
  free(text);
  return 0;
}
