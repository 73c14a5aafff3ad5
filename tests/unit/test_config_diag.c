/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The diagnostics of the YAML parser, word by word, and its limits.
 */
#include "config/yaml.h"
#include "diag_case.h"

#include <time.h>

static const diag_case syntax_cases[] = {
  { "nothing", "# a comment\n", "1:1: error: empty: a configuration begins with 'nsa: 1'" },
  { "list at the top", "[1]\n", "1:1: error: expected keys and values, beginning with 'nsa: 1'" },
  { "no version", "model: {heads: 64, kv_heads: 4, head_dim: 128}\n",
    "1:1: error: nsa: the first key must be 'nsa: 1', the version of the format" },
  { "version not first",
    "model: {heads: 64, kv_heads: 4, head_dim: 128}\n"
    "nsa: 1\n",
    "2:1: error: nsa: must be the first key" },
  { "other version", "nsa: 2\n",
    "1:6: error: nsa: this library reads version 1 of the format: write 'nsa: 1', or use a "
    "library that knows the other version" },
  { "open bracket",
    "nsa: 1\n"
    "model: {heads: 4\n"
    "serving: 1\n",
    "3:8: error: not YAML: did not find expected ',' or '}' (while parsing a flow mapping that "
    "begins on line 2)" },
  { "open to the end",
    "nsa: 1\n"
    "serving: {max_seqs: 1\n"
    "\n",
    "2:22: error: not YAML: did not find expected ',' or '}' (while parsing a flow mapping that "
    "begins on line 2)" },
  { "tab as indentation",
    "nsa: 1\n"
    "model:\n"
    "\theads: 4\n",
    "3:1: error: not YAML: a tab cannot indent: use spaces" },
  { "tab behind spaces",
    "nsa: 1\n"
    "model:\n"
    "  \theads: 4\n",
    "3:3: error: not YAML: a tab cannot indent: use spaces" },
  { "no token",
    "nsa: 1\n"
    "x-a: @b\n",
    "2:6: error: not YAML: found character that cannot start any token (while scanning for the "
    "next token)" },
  { "control character",
    "nsa: 1\n"
    "model: \007\n",
    "t.yaml:2:8: error: not YAML: control characters are not allowed; the text must be UTF-8 "
    "without control characters\n"
    "    model: ?\n"
    "           ^" },
  { "invalid UTF-8",
    "nsa: 1\n"
    "x-a: \377\n",
    "t.yaml:2:6: error: not YAML: invalid leading UTF-8 octet; the text must be UTF-8 without "
    "control characters\n"
    "    x-a: ?\n"
    "         ^" },
  { "anchor and alias",
    "nsa: 1\n"
    "x-a: &here 1\n"
    "x-b: *here\n",
    "2:6: error: anchors are not allowed: write the value out and remove '&here'\n"
    "3:6: error: aliases are not allowed: write the value out instead of '*here'" },
  { "tag", "nsa: !!int 1\n",
    "1:6: error: tags are not allowed: each key has its type; remove 'tag:yaml.org,2002:int'" },
  { "tag line",
    "%TAG ! tag:x,2000:\n"
    "---\n"
    "nsa: 1\n",
    "1:1: error: tags are not allowed: remove the %TAG line" },
  { "merge key",
    "nsa: 1\n"
    "model:\n"
    "  <<: {heads: 4}\n",
    "2:1: error: model.heads: missing: query heads (Hq), a whole number from 1 to 4096\n"
    "2:1: error: model.kv_heads: missing: key and value heads (Hkv); divides heads, at most 64 "
    "query heads each, a whole number from 1 to 4096\n"
    "2:1: error: model.head_dim_qk: missing: width of a query and a key (Dk), or head_dim for "
    "both, a whole number from 16 to 256\n"
    "2:1: error: model.head_dim_v: missing: width of a value (Dv), or head_dim for both, a whole "
    "number from 16 to 256\n"
    "3:3: error: merge keys are not allowed: write the keys out and remove '<<'" },
  { "second document",
    "nsa: 1\n"
    "---\n"
    "nsa: 1\n",
    "2:1: error: a second document begins here: one file holds one document" },
  { "list as key",
    "nsa: 1\n"
    "? [a]\n"
    ": 1\n",
    "2:3: error: a key must be a word: a list, mapping or alias cannot be one" },
  { "duplicate key",
    "nsa: 1\n"
    "serving:\n"
    "  max_seqs: 1\n"
    "  max_tokens: 2\n"
    "  max_seqs: 3\n",
    "5:3: error: 'max_seqs' is given twice, on line 3 and on line 5: remove one" },
  { "duplicate section",
    "nsa: 1\n"
    "serving: {}\n"
    "x-a: 1\n"
    "serving: {max_seqs: 2}\n",
    "4:1: error: 'serving' is given twice, on line 2 and on line 4: remove one" },
  { "duplicate under x-",
    "nsa: 1\n"
    "x-a: {b: 1, b: 2}\n",
    "2:13: error: 'b' is given twice, on line 2 and on line 2: remove one" },
  { "NUL in a text",
    "nsa: 1\n"
    "runtime: {cache_dir: \"/a\\0b\"}\n",
    "2:22: error: NUL characters are not allowed" },
  { "caret after wide characters and tabs",
    "nsa: 1\n"
    "device: {source: \"gr\303\266\303\237e\",\tsms: x}\n",
    "t.yaml:2:32: error: device.sms: expected a whole number from 0 to 4096; found 'x'\n"
    "    device: {source: \"gr\303\266\303\237e\",\tsms: x}\n"
    "                             \t     ^" },
  { "long line",
    "nsa: 1\n"
    "x-a: {a: "
    "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"
    "zzzzzzzzzzzzzzzzzzzzzzzzzz, "
    "b: *c, c: "
    "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"
    "yyyyyyyyyyyyyyyyyyyyyyyyyy}\n",
    "t.yaml:2:135: error: aliases are not allowed: write the value out instead of '*c'\n"
    "    ...zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz, b: *c, c: "
    "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy...\n"
    "                                                                             ^" },
  { "CRLF",
    "nsa: 1\r\n"
    "serving:\r\n"
    "  max_seqs: x\r\n",
    "t.yaml:3:13: error: serving.max_seqs: expected a whole number from 0 to 1000000; found 'x'\n"
    "      max_seqs: x\n"
    "                ^" },
};

static void test_syntax(void **state) { RUN("", syntax_cases); }

/* "nsa: 1\nx-a: " and `count` times `piece`. The caller frees it. */
static char *repeat(const char *piece, size_t count) {
  static const char head[] = "nsa: 1\nx-a: ";
  size_t length = strlen(piece);
  char *text = malloc(sizeof head + length * count);
  assert_non_null(text);
  memcpy(text, head, sizeof head);
  char *to = text + strlen(head);
  for (size_t i = 0; i < count; i++, to += length) memcpy(to, piece, length);
  *to = '\0';
  return text;
}

static void check_limit(char *text, nsa_status expected, const char *needle) {
  char diag[4096];
  nsa_status status = nsa_config_check(text, 0, "t.yaml", diag, sizeof diag);
  free(text);
  assert_int_equal(status, expected);
  if (!strstr(diag, needle)) fail_msg("no '%s' in\n%s", needle, diag);
}

static void test_depth_limit(void **state) {
  /* The root is a level of its own. */
  char *deep = repeat("[", 15);
  deep = realloc(deep, strlen(deep) + 16);
  assert_non_null(deep);
  strcat(deep, "]]]]]]]]]]]]]]]");
  check_limit(deep, NSA_OK, "");
  check_limit(repeat("[", 16), NSA_E_CONFIG,
              "t.yaml:2:21: error: nested deeper than 16 levels: no configuration needs that");
}

/* libyaml 0.2.5 would take 10 s for this; stopping at the limit takes milliseconds. */
static void test_depth_limit_is_fast(void **state) {
  char *text = repeat("[", 100000);
  clock_t start = clock();
  check_limit(text, NSA_E_CONFIG, "nested deeper than 16 levels");
  assert_true(clock() - start < CLOCKS_PER_SEC); /* processor time: other load does not count */
}

static void test_size_limit(void **state) {
  const size_t head = strlen("nsa: 1\nx-a: ");
  check_limit(repeat("a", NSAI_YAML_MAX_BYTES - head), NSA_OK, "");
  check_limit(repeat("a", NSAI_YAML_MAX_BYTES - head + 1), NSA_E_CONFIG,
              "t.yaml: error: more than 256 KiB: no configuration needs that");
}

static void test_event_limit(void **state) {
  check_limit(repeat("\n- 1", 9900), NSA_OK, "");
  check_limit(repeat("\n- 1", 10000), NSA_E_CONFIG,
              "more than 10000 keys, values and brackets: no configuration needs that");
}

static void test_many_problems(void **state) {
  check_limit(repeat("1\nx-a: ", 60), NSA_E_CONFIG, "");
  char *diag = malloc(65536);
  assert_non_null(diag);
  char *text = repeat("1\nx-a: ", 60);
  assert_int_equal(nsa_config_check(text, 0, "t.yaml", diag, 65536), NSA_E_CONFIG);
  assert_non_null(strstr(diag, "on line 2 and on line 52"));
  assert_non_null(strstr(diag, "\n10 more problems are not shown"));
  free(text);
  free(diag);
}

static void test_long_text(void **state) {
  char *text = repeat("1\ndevice: {source: ", 1);
  text = realloc(text, strlen(text) + 5000);
  assert_non_null(text);
  size_t length = strlen(text);
  memset(text + length, 's', 4097);
  strcpy(text + length + 4097, "}\n");
  check_limit(text, NSA_E_CONFIG, "t.yaml:3:18: error: device.source: longer than 4096 bytes\n");
}

static void test_arguments(void **state) {
  char diag[16];
  assert_int_equal(nsa_config_check(NULL, 0, NULL, NULL, 0), NSA_E_ARG);
  assert_int_equal(nsa_config_check("nsa: 1", 0, NULL, NULL, 8), NSA_E_ARG);
  assert_int_equal(nsa_config_check("nsa: 1", 0, NULL, NULL, 0), NSA_OK);
  /* The length counts, not the NUL; the name has a default; the text is cut. */
  assert_int_equal(nsa_config_check("nsa: 12", 6, NULL, diag, sizeof diag), NSA_OK);
  assert_string_equal(diag, "");
  assert_int_equal(nsa_config_check("nsa: 12", 7, NULL, diag, sizeof diag), NSA_E_CONFIG);
  assert_string_equal(diag, "<text>:1:6: err");
}

/* The byte order mark is no part of line 1. */
static void test_byte_order_mark(void **state) {
  char diag[256];
  assert_int_equal(nsa_config_check("\xEF\xBB\xBFnsa: 1\n", 0, NULL, diag, sizeof diag), NSA_OK);
  assert_int_equal(nsa_config_check("\xEF\xBB\xBFnsa: 2\n", 0, NULL, diag, sizeof diag),
                   NSA_E_CONFIG);
  assert_non_null(strstr(diag, "<text>:1:6: error"));
  assert_non_null(strstr(diag, "\n    nsa: 2\n         ^"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_syntax),
    cmocka_unit_test(test_depth_limit),
    cmocka_unit_test(test_depth_limit_is_fast),
    cmocka_unit_test(test_size_limit),
    cmocka_unit_test(test_event_limit),
    cmocka_unit_test(test_many_problems),
    cmocka_unit_test(test_long_text),
    cmocka_unit_test(test_arguments),
    cmocka_unit_test(test_byte_order_mark),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
