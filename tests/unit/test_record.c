/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One tuning record: its timings, merging, its text and what the text may not be.
 */
#include "../comma_locale.h"
#include "../record_fixture.h"

#include <float.h>
#include <math.h>

static void test_timings(void **state) {
  int32_t count;
  nsai_record *r = record_make(1), *copy;
  assert_null(nsai_record_chosen(r, "b"));
  for (int n = 40; n-- > 0;) record_add(r, n % 2 ? "b" : "a", n);
  assert_int_equal(r->timing_count, 40);
  for (int i = 1; i < 40; i++) {
    int order = strcmp(r->timings[i - 1].stage, r->timings[i].stage);
    assert_true(order < 0 ||
                (!order && strcmp(r->timings[i - 1].candidate, r->timings[i].candidate) < 0));
  }
  nsai_timing again = *nsai_record_find(r, "b", "b_mma rows=7");
  again.ms = 42;
  assert_int_equal(nsai_record_add(r, &again), NSA_OK);
  assert_int_equal(r->timing_count, 40);
  assert_true(nsai_record_find(r, "b", "b_mma rows=7")->ms == 42);
  record_choose(r, "b", 7);
  assert_string_equal(nsai_record_chosen(r, "b")->candidate, "b_mma rows=7");
  assert_null(nsai_record_chosen(r, "a"));
  assert_null(nsai_record_chosen(r, "c"));
  assert_non_null(nsai_record_stage(r, "b", &count));
  assert_int_equal(count, 20);
  assert_null(nsai_record_stage(r, "ab", &count));
  assert_int_equal(count, 0);
  assert_int_equal(nsai_record_copy(r, &copy), NSA_OK);
  assert_true(record_equal(r, copy));
  record_add(copy, "c", 1);
  assert_false(record_equal(r, copy));
  nsai_record_destroy(copy);
  nsai_record_destroy(r);
  nsai_record_destroy(NULL);
}

static void test_baselines(void **state) {
  char name[32];
  nsai_record *r = record_make(1);
  for (int i = 0; i < NSAI_BASELINES_MAX; i++) {
    snprintf(name, sizeof name, "b%d", i);
    assert_true(nsai_record_set_baseline(r, name, i, 0));
  }
  assert_false(nsai_record_set_baseline(r, "more", 1, 0));
  assert_true(nsai_record_set_baseline(r, "b3", 33, 0.5));
  assert_int_equal(r->baseline_count, NSAI_BASELINES_MAX);
  assert_true(r->baselines[3].ms == 33);
  nsai_record_destroy(r);
}

/* ---- merging ---- */

static bool is_chosen(const nsai_record *r, const char *stage, int n) {
  char candidate[128];
  const nsai_timing *chosen = nsai_record_chosen(r, stage);
  snprintf(candidate, sizeof candidate, "%s_mma rows=%d", stage, n);
  return chosen && strcmp(chosen->candidate, candidate) == 0;
}

static void test_merge(void **state) {
  nsai_record *older = record_make(1), *r = record_make(1);
  for (int n = 0; n < 3; n++) record_add(older, "a", n);
  for (int n = 0; n < 3; n++) record_add(older, "b", n);
  record_choose(older, "a", 2);
  record_choose(older, "b", 0);
  nsai_record_find(older, "a", "a_mma rows=0")->is_default = true;
  nsai_record_set_baseline(older, "dense", 5, 0);
  nsai_record_set_baseline(older, "forward", 6, 0);
  older->complete = true;
  older->clock_mhz[0] = 1000;
  older->clock_mhz[1] = 1800;
  for (int n = 1; n < 4; n++) record_add(r, "a", n);
  record_add(r, "b", 0);
  record_choose(r, "a", 3);
  nsai_record_find(r, "a", "a_mma rows=1")->ms = 99;
  nsai_record_set_baseline(r, "forward", 7, 0);
  r->temperature_c[0] = r->temperature_c[1] = 0;
  assert_int_equal(nsai_record_merge(r, older), NSA_OK);
  assert_int_equal(r->timing_count, 7);
  assert_true(nsai_record_find(r, "a", "a_mma rows=1")->ms == 99);
  assert_true(is_chosen(r, "a", 3)); /* decided here */
  assert_false(nsai_record_find(r, "a", "a_mma rows=2")->chosen);
  assert_true(is_chosen(r, "b", 0)); /* decided by the older one only */
  assert_true(nsai_record_find(r, "a", "a_mma rows=0")->is_default);
  assert_int_equal(r->baseline_count, 2);
  assert_true(r->baselines[0].ms == 7);
  assert_true(r->complete);
  assert_int_equal(r->clock_mhz[0], 1000);
  assert_int_equal(r->clock_mhz[1], 1980);
  assert_int_equal(r->temperature_c[0], 34);
  assert_int_equal(nsai_record_check(r), NSA_OK);
  nsai_record_destroy(older);
  nsai_record_destroy(r);
}

/* A winner that was found wrong meanwhile is none. */
static void test_merge_failed_winner(void **state) {
  nsai_record *older = record_make(1), *r = record_make(1);
  record_add(older, "a", 1);
  record_choose(older, "a", 1);
  record_add(r, "a", 1);
  r->timings[0].state = NSAI_TIMING_WRONG;
  assert_int_equal(nsai_record_merge(r, older), NSA_OK);
  assert_int_equal(r->timing_count, 1);
  assert_null(nsai_record_chosen(r, "a"));
  nsai_record_destroy(older);
  nsai_record_destroy(r);
}

/* Another environment or problem: nothing is taken over. */
static void test_merge_mismatch(void **state) {
  for (int i = 0; i < 8; i++) {
    nsai_record *older = record_full(1), *r = record_make(1);
    char *const texts[] = { r->device, r->arch,     r->problem,  r->library,
                            r->driver, r->compiler, r->templates };
    if (i < 7)
      texts[i][0] ^= 1;
    else
      r->sms++;
    assert_int_equal(nsai_record_merge(r, older), NSA_OK);
    assert_int_equal(r->timing_count, 0);
    assert_int_equal(r->baseline_count, 0);
    nsai_record_destroy(older);
    nsai_record_destroy(r);
  }
}

/* ---- the text ---- */

static void check_reals(void) {
  size_t size;
  nsai_record *r = record_full(1), *again;
  static const double reals[] = { 0, 0.1, 1.0 / 3, DBL_MIN, DBL_TRUE_MIN, 123456.75, 1e12, 5e-324 };
  for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
    r->union8 = reals[i];
    char *text = record_text(r, &size);
    assert_int_equal(strlen(text), size);
    assert_int_equal(nsai_record_parse(text, size, &again), NSA_OK);
    assert_true(record_equal(r, again));
    assert_true(again->union8 == reals[i]);
    nsai_record_destroy(again);
    free(text);
  }
  nsai_record_destroy(r);
}

/* Whatever the process's locale, the text has points, and is read. */
static void test_comma_locale(void **state) {
  size_t size, size_with_comma;
  nsai_record *r = record_full(1);
  r->union8 = 123456.75;
  char *text = record_text(r, &size);
  if (!comma_locale_enter()) {
    free(text);
    nsai_record_destroy(r);
    skip();
  }
  check_reals();
  char *with_comma = record_text(r, &size_with_comma);
  comma_locale_leave();
  assert_string_equal(with_comma, text);
  assert_non_null(strstr(text, "123456.75"));
  nsai_record_destroy(r);
  free(with_comma);
  free(text);
}

static void test_round_trip(void **state) {
  size_t size;
  nsai_record *r = record_full(1), *again;
  check_reals();
  char *text = record_text(r, &size);
  assert_int_equal(nsai_record_parse(text, size, &again), NSA_OK);
  assert_string_equal(again->device, r->device);
  assert_string_equal(again->problem, r->problem);
  assert_int_equal(again->bucket, 8192);
  assert_int_equal(again->clock_mhz[1], 1980);
  assert_int_equal(again->timing_count, r->timing_count);
  for (int32_t i = 0; i < r->timing_count; i++) {
    const nsai_timing *a = &r->timings[i], *b = &again->timings[i];
    assert_string_equal(a->stage, b->stage);
    assert_string_equal(a->candidate, b->candidate);
    assert_string_equal(a->note, b->note);
    assert_true(a->ms == b->ms && a->spread == b->spread && a->rounds == b->rounds);
    assert_true(a->state == b->state && a->chosen == b->chosen && a->is_default == b->is_default);
  }
  assert_true(again->baselines[1].spread == 1e-300);
  nsai_record_destroy(again);
  nsai_record_destroy(r);
  free(text);
}

/* The writer's rule: the length is known without a buffer, and other text may stand before it. */
static void test_write_behind(void **state) {
  char small[40], text[8192];
  size_t size;
  nsai_record *r = record_full(1), *again;
  free(record_text(r, &size));
  nsai_writer writer = nsai_writer_open(small, sizeof small);
  nsai_record_write(r, &writer);
  assert_int_equal(writer.used, size);
  writer = nsai_writer_open(text, sizeof text);
  nsai_write(&writer, "before");
  nsai_record_write(r, &writer);
  assert_int_equal(nsai_record_parse(text + 6, writer.used - 6, &again), NSA_OK);
  nsai_record_destroy(again);
  nsai_record_destroy(r);
}

/* A note that was cut off in the middle of a character still makes a record. */
static void test_not_utf8(void **state) {
  size_t size;
  nsai_record *r = record_full(1), *again;
  strcpy(r->timings[0].note, "cut \303");
  char *text = record_text(r, &size);
  assert_int_equal(nsai_record_parse(text, size, &again), NSA_OK);
  assert_string_equal(again->timings[0].note, "cut ?");
  nsai_record_destroy(again);
  free(text);
  strcpy(r->timings[0].candidate, "cut \303");
  assert_int_equal(nsai_record_check(r), NSA_E_ARG);
  nsai_record_destroy(r);
}

static void expect_bad(const char *text, size_t size, const char *why) {
  nsai_record *record;
  assert_int_equal(nsai_record_parse(text, size, &record), NSA_E_CACHE);
  assert_null(record);
  if (why && !strstr(nsa_last_error(), why)) fail_msg("\"%s\" not in: %s", why, nsa_last_error());
}

static void test_every_flip(void **state) {
  size_t size;
  nsai_record *r = record_full(1);
  char *text = record_text(r, &size);
  for (size_t at = 0; at < size; at++) {
    for (int bit = 0; bit < 8; bit++) {
      text[at] ^= (char)(1 << bit);
      expect_bad(text, size, NULL);
      text[at] ^= (char)(1 << bit);
    }
  }
  for (size_t n = 0; n < size; n++) expect_bad(text, n, NULL);
  text[size] = '\n'; /* in the NUL's place */
  expect_bad(text, size + 1, NULL);
  nsai_record_destroy(r);
  free(text);
}

/* Replaces `from` in a good text by `to`, and puts the checksum right. */
static void expect_edit_bad(const char *from, const char *to, const char *why) {
  char text[16384], digits[NSAI_DIGEST_CHARS];
  size_t size;
  nsai_record *r = record_full(1);
  char *good = record_text(r, &size);
  char *at = strstr(good, from);
  assert_non_null(at);
  *strrchr(good, '#') = '\0';
  snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
  size = strlen(text);
  nsai_digest_hex(text, size, digits);
  snprintf(text + size, sizeof text - size, "# checksum: %s\n", digits);
  expect_bad(text, strlen(text), why);
  free(good);
  nsai_record_destroy(r);
}

static void test_refused_texts(void **state) {
  static const struct {
    const char *from, *to, *why;
  } edits[] = {
    { "nsa_record: 1", "nsa_record: 2", "another version" },
    { "nsa_record: 1\n", "", "'nsa_record: 1' is missing" },
    { "nsa_record: 1\n", "--- {}\n--- {}\n", "missing" },
    { "nsa_record: 1", "nsa_record: 1\nnsa_record: 1", "line 2: 'nsa_record' is given twice" },
    { "nsa_record: 1", "nsa_record: 1\nother: 1", "line 2: 'other' is no key here" },
    { "nsa_record: 1", "%YAML 1.1\n--- \nnsa_record: 1", "a directive" },
    { "  sms: 132\n", "", "'sms' is missing" },
    { "sms: 132", "sms: 132.5", "whole number" },
    { "sms: 132", "sms: 0x10", "whole number" },
    { "sms: 132", "sms: -1", "out of range" },
    { "sms: 132", "sms: 99999999999999999999", "out of range" },
    { "sms: 132", "sms: [132]", "expected a value" },
    { "sms: 132", "sms: *alias", "an alias" },
    { "sms: 132", "sms: &anchor 132", "an anchor" },
    { "sms: 132", "sms: !!int 132", "a tag" },
    { "sms: 132", "sms: 132\n  sms: 132", "'sms' is given twice" },
    { "sms: 132", "sms: 132\n  smx: 1", "'smx' is no key here" },
    { "\"sm_90a\"", "\"0123456789abcdef\"", "'arch' has more than 15 bytes" },
    { "\"sm_90a\"", "\"\"", "'arch' is empty" },
    { "\"sm_90a\"", "\"a\\0b\"", "a NUL" },
    { "op=forward,", "op=forward, ", "has spaces" },
    { "union8: 0", "union8: .nan", "takes a number" },
    { "union8: 0", "union8: nan", "takes a number" },
    { "union8: 0", "union8: 1e999", "out of range" },
    { "union8: 0", "union8: -1", "out of range" },
    { "union8: 0", "union8: 0x1p3", "takes a number" },
    { "union8: 0", "union8:", "takes a number" },
    { "complete: false", "complete: no", "true or false" },
    { "[1755, 1980]", "[1755]", "two whole numbers" },
    { "[1755, 1980]", "[1755, 1980, 1]", "two whole numbers" },
    { "[1755, 1980]", "1755", "two whole numbers" },
    { "state: refused", "state: bad", "ok, refused, wrong or dropped" },
    { "\"compress\":", "\"attend_window\":", "is given twice" },
    { "\"compress\":", "\"\":", "is empty" },
    { "\"compress\":", "\"0123456789012345678901234567890123\":", "too long a name" },
    { "\"compress_mma rows=1\"", "\"compress_mma rows=0\"", "is given twice" },
    { "rows=0\", state: ok", "rows=0\", state: ok, more: 1", "'more' is no key here" },
    { "rows=0\", state: ok", "rows=0\"", "'state' is missing" },
    { "chosen: false", "chosen: true", "two candidates that are 'chosen'" },
    { "name: \"dense\"", "name: \"forward\"", "is given twice" },
    { "stages:", "stages: {}\nmore:", "'more' is no key" },
    { "stages:", "stages: {a: []}\nmore:", "no candidates" },
    { "stages:", "? [[[[[[[[[[[[\n:", "expected a key" },
    { "stages:", "stages: [\n", "mapping of stages" },
  };
  for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++)
    expect_edit_bad(edits[i].from, edits[i].to, edits[i].why);
}

static void test_too_large(void **state) {
  size_t size = NSAI_RECORD_MAX_BYTES + 1;
  char *text = malloc(size);
  assert_non_null(text);
  memset(text, '[', size);
  expect_bad(text, size, "larger");
  free(text);
}

static void expect_unfit(nsai_record *r, const char *why) {
  assert_int_equal(nsai_record_check(r), NSA_E_ARG);
  if (!strstr(nsa_last_error(), why)) fail_msg("\"%s\" not in: %s", why, nsa_last_error());
  nsai_record_destroy(r);
}

static void test_check(void **state) {
  nsai_record *r = record_full(1);
  assert_int_equal(nsai_record_check(r), NSA_OK);
  r->timings[0].ms = NAN;
  expect_unfit(r, "'ms'");
  r = record_full(1);
  r->overlap_r = INFINITY;
  expect_unfit(r, "'overlap_r'");
  r = record_full(1);
  r->timings[2].state = NSAI_TIMING_STATES;
  expect_unfit(r, "'state'");
  r = record_full(1);
  memset(r->driver, 'x', sizeof r->driver);
  expect_unfit(r, "'driver' is not terminated");
  r = record_full(1);
  r->device[0] = '\0';
  expect_unfit(r, "'name' is empty");
  r = record_full(1);
  r->timings[0].chosen = true;
  expect_unfit(r, "chosen");
  r = record_full(1);
  r->baseline_count = NSAI_BASELINES_MAX + 1;
  expect_unfit(r, "'baselines'");
  r = record_full(1);
  r->timings[0].stage[0] = '\0';
  expect_unfit(r, "'stage' is empty");
  assert_string_equal(nsai_timing_state_name(NSAI_TIMING_DROPPED), "dropped");
  assert_string_equal(nsai_timing_state_name(-1), "?");
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_timings),        cmocka_unit_test(test_baselines),
    cmocka_unit_test(test_merge),          cmocka_unit_test(test_merge_failed_winner),
    cmocka_unit_test(test_merge_mismatch), cmocka_unit_test(test_round_trip),
    cmocka_unit_test(test_comma_locale),   cmocka_unit_test(test_write_behind),
    cmocka_unit_test(test_not_utf8),       cmocka_unit_test(test_every_flip),
    cmocka_unit_test(test_refused_texts),  cmocka_unit_test(test_too_large),
    cmocka_unit_test(test_check),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
