/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Text tools, the writer and the arena.
 */
#include "support/cmocka_all.h"

#include "base/arena.h"
#include "base/text.h"
#include "base/writer.h"

#include <errno.h>

static void test_utf8(void **state) {
  static const struct {
    const char *text;
    size_t step;
    uint32_t code;
  } cases[] = {
    { "a", 1, 'a' },
    { "\xC3\xA9", 2, 0xE9 },
    { "\xE2\x82\xAC", 3, 0x20AC },
    { "\xF0\x9F\x98\x80", 4, 0x1F600 },
    { "\x80", 1, NSAI_UTF8_INVALID },             /* a continuation alone */
    { "\xC0\xAF", 1, NSAI_UTF8_INVALID },         /* '/' in two bytes */
    { "\xE0\x80\xAF", 1, NSAI_UTF8_INVALID },     /* '/' in three */
    { "\xED\xA0\x80", 1, NSAI_UTF8_INVALID },     /* a surrogate */
    { "\xF4\x90\x80\x80", 1, NSAI_UTF8_INVALID }, /* beyond U+10FFFF */
    { "\xE2\x82", 1, NSAI_UTF8_INVALID },         /* cut */
    { "\xC3(", 1, NSAI_UTF8_INVALID },
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    uint32_t code;
    assert_int_equal(nsai_utf8_step(cases[i].text, strlen(cases[i].text), &code), cases[i].step);
    assert_int_equal(code, cases[i].code);
    bool valid = cases[i].code != NSAI_UTF8_INVALID;
    assert_int_equal(nsai_utf8_valid(cases[i].text, strlen(cases[i].text)), valid);
  }
}

static void test_excerpt(void **state) {
  nsai_excerpt_text out;
  char longer[64];
  memset(longer, 'a', sizeof longer);
  assert_string_equal(nsai_excerpt("gr\xC3\xB6\xC3\x9F"
                                   "e",
                                   7, &out),
                      "gr\xC3\xB6\xC3\x9F"
                      "e");
  assert_string_equal(nsai_excerpt("a\x1B[0m\n\xFF", 7, &out), "a?[0m??");
  assert_string_equal(nsai_excerpt("\xE2\x80\xAE", 3, &out), "?"); /* right-to-left override */
  assert_int_equal(strlen(nsai_excerpt(longer, 40, &out)), 40);
  assert_int_equal(strlen(nsai_excerpt(longer, 41, &out)), 43);
}

static void test_distance(void **state) {
  assert_int_equal(nsai_edit_distance("window", "window"), 0);
  assert_int_equal(nsai_edit_distance("windw", "window"), 1);
  assert_int_equal(nsai_edit_distance("widnow", "window"), 1); /* neighbours swapped */
  assert_int_equal(nsai_edit_distance("", "gate"), 4);
  assert_int_equal(nsai_edit_distance("kitten", "sitting"), 3);
  assert_int_equal(nsai_edit_distance("a-word-of-more-than-thirty-two-bytes", "a"), UINT32_MAX);
  uint32_t least = UINT32_MAX;
  assert_false(nsai_is_nearer("jti", "jobs", &least)); /* 3 edits of 3 letters */
  assert_true(nsai_is_nearer("jti", "jit", &least));
  assert_int_equal(least, 1);
  assert_false(nsai_is_nearer("jti", "jt", &least)); /* as near as the one before */
  least = UINT32_MAX;
  assert_true(nsai_is_nearer("selection", "select", &least)); /* 3 of 9 */
  assert_int_equal(nsai_edit_distance("CPU", "cpu"), 0);
  assert_int_equal(nsai_edit_distance("WIDNOW", "window"), 1);
}

static void test_nearest(void **state) {
  static const char *const words[] = { "forward", "dense", "decode", "Decoder", NULL };
  assert_string_equal(nsai_nearest("foward", words), "forward");
  assert_string_equal(nsai_nearest("DECODE", words), "decode");
  assert_string_equal(nsai_nearest("decoder", words), "Decoder");
  assert_null(nsai_nearest("frobnicate", words));
  assert_null(nsai_nearest("", words));
}

static void test_glob(void **state) {
  assert_true(nsai_glob_match("NVIDIA H200*", "NVIDIA H200"));
  assert_true(nsai_glob_match("NVIDIA H200*", "NVIDIA H200 NVL"));
  assert_false(nsai_glob_match("NVIDIA H200", "NVIDIA H200 NVL"));
  assert_true(nsai_glob_match("*_sm?0_*x", "union_sm90_a_x_x"));
  assert_false(nsai_glob_match("*_sm?0_*x", "union_sm90_a_x_y"));
  assert_true(nsai_glob_match("*", ""));
  assert_true(nsai_glob_match("", ""));
  assert_false(nsai_glob_match("?", ""));
  assert_true(nsai_glob_match("a*b*c", "aXbYbc"));
}

static void test_writer(void **state) {
  char buf[8];
  nsai_writer w = nsai_writer_open(buf, sizeof buf);
  assert_string_equal(buf, "");
  nsai_write(&w, "%d", 12345);
  nsai_write_bytes(&w, "abcdef", 6);
  assert_string_equal(buf, "12345ab");
  assert_int_equal(w.used, 11);
  nsai_write(&w, "%s", "more");
  nsai_write_bytes(&w, "x", 1);
  assert_string_equal(buf, "12345ab");
  assert_int_equal(w.used, 16);
  w = nsai_writer_open(NULL, 0);
  nsai_write(&w, "%s", "length only");
  nsai_write_bytes(&w, "!", 1);
  assert_int_equal(w.used, 12);
}

static void test_arena(void **state) {
  nsai_arena arena = { 0 };
  char *large = nsai_arena_alloc(&arena, 100000);
  assert_non_null(large);
  for (size_t i = 0; i < 1000; i++) {
    char *piece = nsai_arena_alloc(&arena, i);
    assert_non_null(piece);
    assert_int_equal((uintptr_t)piece % sizeof(double), 0);
    for (size_t k = 0; k < i; k++) assert_int_equal(piece[k], 0);
    memset(piece, 0xFF, i);
  }
  assert_string_equal(nsai_arena_copy(&arena, "copied text", 6), "copied");
  assert_int_equal(arena.failed, 0);
  assert_null(nsai_arena_alloc(&arena, SIZE_MAX - 4));
  assert_int_equal(arena.failed, SIZE_MAX - 4);
  nsai_arena_fini(&arena);
  assert_null(arena.chunks);
}

static void test_integer(void **state) {
  static const char *const bad[] = {
    "",    "-",   "+1",  " 1",  "1 ", "1k", "0x10",
    "1.0", "--1", "1e3", "one", "-4", "10", "99999999999999999999"
  };
  int64_t value;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (nsai_parse_integer(bad[i], -3, 9, &value)) fail_msg("'%s' is a number", bad[i]);
  assert_true(nsai_parse_integer("-3", -3, 9, &value) && value == -3);
  assert_true(nsai_parse_integer("09", -3, 9, &value) && value == 9);
  assert_true(nsai_parse_integer("9223372036854775807", 0, INT64_MAX, &value));
  assert_true(value == INT64_MAX);
  assert_false(nsai_parse_integer("9223372036854775808", 0, INT64_MAX, &value));
}

/* A text for every errno, within the buffer, also for a number that no libc knows. */
static void test_errno(void **state) {
  char text[NSAI_ERRNO_BYTES], little[8];
  assert_string_equal(nsai_errno_text(ENOENT, text, sizeof text), "No such file or directory");
  assert_ptr_equal(nsai_errno_text(EACCES, text, sizeof text), text);
  assert_string_equal(text, "Permission denied");
  for (int error = -1; error < 4096; error++) {
    memset(text, 'x', sizeof text);
    assert_non_null(memchr(nsai_errno_text(error, text, sizeof text), '\0', sizeof text));
    assert_true(*text);
  }
  memset(little, 'x', sizeof little);
  assert_non_null(memchr(nsai_errno_text(ENOENT, little, sizeof little), '\0', sizeof little));
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_utf8),    cmocka_unit_test(test_excerpt), cmocka_unit_test(test_distance),
    cmocka_unit_test(test_nearest), cmocka_unit_test(test_glob),    cmocka_unit_test(test_writer),
    cmocka_unit_test(test_arena),   cmocka_unit_test(test_integer), cmocka_unit_test(test_errno),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
