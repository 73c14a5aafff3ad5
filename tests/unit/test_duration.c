/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Durations: what reads as how many milliseconds, what is refused with which advice, and that what
 * is written reads as the same.
 */
#include "support/cmocka_all.h"

#include "base/duration.h"

static void test_read(void **state) {
  static const struct {
    const char *text;
    int64_t ms;
  } cases[] = {
    { "0s", 0 },
    { "1ms", 1 },
    { "90s", 90000 },
    { "10m", 600000 },
    { "1h30m", 5400000 },
    { "1.5h", 5400000 },
    { "24h", 86400000 },
    { "1h1ms", 3600001 },
    { "1h2m3s4ms", 3723004 },
    { "0.001s", 1 },
    { "0.25m", 15000 },
    { "0.001m", 60 },
    { "1.000ms", 1 },
    { "010s", 10000 },
    { "90m120s", 5520000 }, /* a part may be more than the next larger unit */
    { "9223372036854775807ms", INT64_MAX },
    { "9223372036854775808ms", INT64_MAX },
    { "3000000000000h", INT64_MAX },
    { "9223372036854775s808ms", INT64_MAX },
    { "99999999999999999999999999999999999999h", INT64_MAX },
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int64_t ms = -1;
    const char *remedy = nsai_duration_read(cases[i].text, &ms);
    if (remedy) fail_msg("%s: %s", cases[i].text, remedy);
    if (ms != cases[i].ms) fail_msg("%s: %lld ms", cases[i].text, (long long)ms);
  }
}

static void test_refused(void **state) {
  static const struct {
    const char *text, *remedy;
  } cases[] = {
    { "", "nothing between" },
    { "s", "nothing between" },
    { "-5m", "nothing between" },
    { "+5m", "nothing between" },
    { " 5m", "nothing between" },
    { "5m ", "nothing between" },
    { "5 m", "nothing between" },
    { "1h 30m", "nothing between" },
    { "1h,30m", "nothing between" },
    { ".5h", "nothing between" },
    { "90", "give each number its unit" },
    { "1h30", "give each number its unit" },
    { "12:30:45", "give each number its unit" },
    { "1.2.3s", "give each number its unit" },
    { "1,5h", "give each number its unit" },
    { "10min", "units are h, m, s, ms" },
    { "2d", "units are h, m, s, ms" },
    { "5S", "units are h, m, s, ms" },
    { "5us", "units are h, m, s, ms" },
    { "1e3s", "units are h, m, s, ms" },
    { "5\xC2\xB5s", "units are h, m, s, ms" },
    { "5.s", "digits after the point" },
    { "0.0005s", "at most 3 digits" },
    { "0.5ms", "a millisecond is the least" },
    { "30m1h", "largest to the smallest" },
    { "1m1m", "largest to the smallest" },
    { "1ms1s", "largest to the smallest" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int64_t ms = -1;
    const char *remedy = nsai_duration_read(cases[i].text, &ms);
    if (!remedy || !strstr(remedy, cases[i].remedy))
      fail_msg("'%s': %s", cases[i].text, remedy ? remedy : "read");
    assert_int_equal(ms, -1);
  }
}

static void expect_written(int64_t ms, const char *expected) {
  char text[64];
  int64_t again = -1;
  nsai_writer writer = nsai_writer_open(text, sizeof text);
  nsai_duration_write(ms, &writer);
  if (expected) assert_string_equal(text, expected);
  assert_null(nsai_duration_read(text, &again));
  assert_int_equal(again, ms);
}

static void test_write(void **state) {
  expect_written(0, "0s");
  expect_written(1, "1ms");
  expect_written(20000, "20s");
  expect_written(90000, "1m30s");
  expect_written(600000, "10m");
  expect_written(5400250, "1h30m250ms");
  expect_written(86400000, "24h");
  expect_written(INT64_MAX, NULL);
  for (int64_t ms = 1; ms < INT64_MAX / 7; ms *= 7) expect_written(ms, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_read),
    cmocka_unit_test(test_refused),
    cmocka_unit_test(test_write),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
