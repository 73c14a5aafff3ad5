/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The store of tuning records on a healthy machine: folders, merging, digest, export and import.
 * What happens on a sick one is in tests/fault.
 */
#include "../record_fixture.h"

#include "records/internal.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void expect_found(nsai_record *found, int n) {
  nsai_record *wanted = record_full(n);
  assert_non_null(found);
  assert_true(record_equal(found, wanted));
  nsai_record_destroy(found);
  nsai_record_destroy(wanted);
}

static void test_save_and_find(void **state) {
  fixture *f = *state;
  struct stat st;
  char path[PATH_MAX];
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  assert_null(records_find(records, 1));
  records_save(records, 1);
  records_save(records, 2);
  records_save(records, 1);
  expect_found(records_find(records, 1), 1);
  expect_found(records_find(records, 2), 2);
  assert_null(records_find(records, 3));
  nsai_records_close(records);
  expect_found(records_find_on_disk(f, 1), 1);
  expect_found(records_find_on_disk(f, 2), 2);
  record_path(f, 1, path);
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0600);
  assert_int_equal(f->warnings, 0);
  nsai_records_close(NULL);
}

/* A key that is longer than any record's, and all but one part of a key. */
static void test_find_misses(void **state) {
  fixture *f = *state;
  char longer[512];
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  records_save(records, 1);
  nsai_record *key = record_make(1), *found;
  memset(longer, 'x', sizeof longer - 1);
  longer[sizeof longer - 1] = '\0';
  assert_true(nsai_records_find(records, key->device, "sm_90a", 132, key->problem, &found));
  nsai_record_destroy(found);
  assert_false(nsai_records_find(records, longer, "sm_90a", 132, key->problem, &found));
  assert_false(nsai_records_find(records, "NVIDIA H100", "sm_90a", 132, key->problem, &found));
  assert_false(nsai_records_find(records, key->device, "sm_90", 132, key->problem, &found));
  assert_false(nsai_records_find(records, key->device, "sm_90a", 131, key->problem, &found));
  assert_false(nsai_records_find(records, key->device, "sm_90a", 132, longer, &found));
  assert_null(found);
  nsai_record_destroy(key);
  nsai_records_close(records);
}

static void test_modes(void **state) {
  fixture *f = *state;
  for (int i = 0; i < 2; i++) {
    nsai_records *records = records_open(f, i ? NSAI_CACHE_OFF : NSAI_CACHE_READ_ONLY);
    records_save(records, 1);
    expect_found(records_find(records, 1), 1);
    nsai_records_reload(records); /* what could not be written stays */
    expect_found(records_find(records, 1), 1);
    nsai_record *record = record_make(1);
    assert_int_equal(nsai_records_remove(records, record), NSA_OK);
    nsai_record_destroy(record);
    assert_null(records_find(records, 1));
    nsai_records_close(records);
    assert_null(records_find_on_disk(f, 1));
  }
  assert_int_equal(f->warnings, 0);
}

static void test_bad_record_is_refused(void **state) {
  fixture *f = *state;
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  nsai_record *record = record_full(1);
  strcpy(record->problem, "two tokens");
  assert_int_equal(nsai_records_save(records, record), NSA_E_ARG);
  assert_non_null(strstr(nsa_last_error(), "spaces"));
  nsai_record_destroy(record);
  nsai_records_close(records);
}

/* Two stores that measure different candidates of one problem. */
static void test_merged_on_disk(void **state) {
  fixture *f = *state;
  nsai_records *a = records_open(f, NSAI_CACHE_READ_WRITE);
  nsai_records *b = records_open(f, NSAI_CACHE_READ_WRITE);
  assert_null(records_find(a, 1)); /* both have read the empty folder */
  assert_null(records_find(b, 1));
  nsai_record *record = record_make(1);
  record_add(record, "select", 1);
  record_choose(record, "select", 1);
  record_must(nsai_records_save(a, record));
  nsai_record_destroy(record);
  record = record_make(1);
  record_add(record, "select", 2);
  record_must(nsai_records_save(b, record));
  nsai_record *found = records_find(b, 1);
  assert_int_equal(found->timing_count, 2);
  assert_string_equal(nsai_record_chosen(found, "select")->candidate, "select_mma rows=1");
  nsai_record_destroy(found);
  assert_int_equal(count_timings(records_find(a, 1)), 1);
  nsai_records_reload(a);
  assert_int_equal(count_timings(records_find(a, 1)), 2);
  strcpy(record->driver, "another"); /* what was measured under another driver is replaced */
  record_must(nsai_records_save(a, record));
  nsai_record_destroy(record);
  found = records_find_on_disk(f, 1);
  assert_int_equal(found->timing_count, 1);
  assert_string_equal(found->driver, "another");
  nsai_record_destroy(found);
  nsai_records_close(a);
  nsai_records_close(b);
}

typedef struct seen {
  int items, bad, hidden;
  char last[256];
} seen;

static bool see(void *user, const nsai_record_item *item) {
  seen *s = user;
  assert_true(strcmp(s->last, item->file) <= 0);
  snprintf(s->last, sizeof s->last, "%s", item->file);
  assert_true((item->record == NULL) == (item->problem != NULL));
  s->items++;
  s->bad += item->problem != NULL;
  s->hidden += item->hidden;
  return true;
}

static bool see_one(void *user, const nsai_record_item *item) {
  see(user, item);
  return false;
}

static void test_each(void **state) {
  fixture *f = *state;
  char path[PATH_MAX];
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  for (int n = 0; n < 5; n++) records_save(records, n);
  record_path(f, 7, path);
  fixture_write(path, "rubbish", 7);
  snprintf(path, sizeof path, "%s/tuning/notes.txt", f->dir); /* not a record's name */
  fixture_write(path, "rubbish", 7);
  nsai_records_reload(records);
  seen s = { 0 };
  assert_int_equal(nsai_records_each(records, see_one, &s), NSA_OK);
  assert_int_equal(s.items, 1);
  s = (seen){ 0 };
  assert_int_equal(nsai_records_each(records, see, &s), NSA_OK);
  assert_int_equal(s.items, 6);
  assert_int_equal(s.bad, 1);
  for (int n = 0; n < 5; n++) {
    nsai_record *record = record_make(n);
    record_must(nsai_records_remove(records, record));
    nsai_record_destroy(record);
  }
  s = (seen){ 0 };
  assert_int_equal(nsai_records_each(records, see, &s), NSA_OK);
  assert_int_equal(s.items, 1);
  nsai_records_close(records);
  assert_null(records_find_on_disk(f, 3));
}

/* Records of a read-only folder are found, hidden by the user's, never written or removed. */
static void test_system_tier(void **state) {
  fixture *f = *state, filled;
  fixture_begin(&filled);
  nsai_records *records = records_open(&filled, NSAI_CACHE_READ_WRITE);
  records_save(records, 1);
  records_save(records, 2);
  nsai_records_close(records);
  const char *const dirs[] = { "/nonexistent/nsa", filled.dir, NULL };
  nsai_cache_options options = fixture_options(f, NSAI_CACHE_READ_WRITE);
  options.system_dirs = dirs;
  nsai_cache_tier_info tier;
  assert_int_equal(nsai_records_open(&options, &records), NSA_OK);
  assert_true(nsai_records_tier(records, 2, &tier));
  assert_true(tier.used && !tier.writable);
  expect_found(records_find(records, 1), 1);
  nsai_record *record = record_make(1);
  assert_int_equal(nsai_records_remove(records, record), NSA_E_CACHE);
  assert_non_null(strstr(nsa_last_error(), filled.dir));
  record_add(record, "select", 5);
  record_must(nsai_records_save(records, record));
  assert_int_equal(count_timings(records_find(records, 1)), 6); /* the system's timings are in it */
  seen s = { 0 };
  assert_int_equal(nsai_records_each(records, see, &s), NSA_OK);
  assert_int_equal(s.items, 3);
  assert_int_equal(s.hidden, 1);
  assert_int_equal(nsai_records_remove(records, record), NSA_E_CACHE); /* the system's is left */
  expect_found(records_find(records, 1), 1);
  nsai_record_destroy(record);
  nsai_records_close(records);
  expect_found(records_find_on_disk(&filled, 1), 1);
  assert_null(records_find_on_disk(f, 1));
  assert_int_equal(f->warnings, 0);
  fixture_end(&filled);
}

/* ---- digest ---- */

static void digest_of(nsai_records *records, char hex[NSAI_DIGEST_CHARS]) {
  unsigned char digest[NSAI_DIGEST_BYTES];
  record_must(nsai_records_digest(records, digest));
  for (int i = 0; i < NSAI_DIGEST_BYTES; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

static void test_digest(void **state) {
  fixture *f = *state, g;
  char empty[NSAI_DIGEST_CHARS], one[NSAI_DIGEST_CHARS], other[NSAI_DIGEST_CHARS];
  fixture_begin(&g);
  nsai_records *a = records_open(f, NSAI_CACHE_READ_WRITE);
  nsai_records *b = records_open(&g, NSAI_CACHE_OFF);
  digest_of(a, empty);
  digest_of(b, other);
  assert_string_equal(empty, other);
  for (int n = 0; n < 4; n++) records_save(a, n);
  digest_of(a, one);
  assert_string_not_equal(empty, one);
  for (int n = 4; n-- > 0;) { /* in another order, at another time, with other times */
    nsai_record *record = record_full(n);
    strcpy(record->date, "2027-01-01T00:00:00Z");
    for (int32_t i = 0; i < record->timing_count; i++) record->timings[i].ms += 1;
    record_add(record, "compress", 9);
    record_must(nsai_records_save(b, record));
    nsai_record_destroy(record);
  }
  digest_of(b, other);
  assert_string_equal(one, other);
  nsai_record *record = record_full(2);
  record_choose(record, "attend_window", 0);
  record_must(nsai_records_save(b, record));
  digest_of(b, other);
  assert_string_not_equal(one, other);
  record_choose(record, "attend_window", 1);
  record_must(nsai_records_save(b, record));
  digest_of(b, other);
  assert_string_equal(one, other);
  nsai_record_destroy(record);
  nsai_records_close(a);
  nsai_records_close(b);
  fixture_end(&g);
}

/* ---- export and import ---- */

static char *export_of(nsai_records *records, size_t *size) {
  nsai_writer writer = nsai_writer_open(NULL, 0);
  record_must(nsai_records_export(records, &writer));
  char *text = malloc(writer.used + 1);
  assert_non_null(text);
  writer = nsai_writer_open(text, writer.used + 1);
  record_must(nsai_records_export(records, &writer));
  *size = writer.used;
  return text;
}

static void test_export_import(void **state) {
  fixture *f = *state, g;
  char one[NSAI_DIGEST_CHARS], other[NSAI_DIGEST_CHARS];
  fixture_begin(&g);
  nsai_records *a = records_open(f, NSAI_CACHE_READ_WRITE);
  nsai_records *b = records_open(&g, NSAI_CACHE_READ_WRITE);
  for (int number = 0; number < 4; number += 3) { /* none, then three */
    size_t size, again_size;
    nsai_import import = { .saved = -1 };
    for (int n = 0; n < number; n++) records_save(a, n);
    char *text = export_of(a, &size);
    assert_int_equal(strlen(text), size);
    assert_int_equal(nsai_records_import(b, text, size, &import), NSA_OK);
    assert_int_equal(import.saved, number);
    char *again = export_of(b, &again_size);
    assert_string_equal(text, again);
    free(text);
    free(again);
  }
  digest_of(a, one);
  digest_of(b, other);
  assert_string_equal(one, other);
  nsai_records_close(a);
  nsai_records_close(b);
  expect_found(records_find_on_disk(&g, 2), 2);
  fixture_end(&g);
}

/* Nothing is imported, and the error says why. */
static void expect_no_import(const char *text, size_t size, const char *why) {
  fixture f;
  nsai_import import = { .saved = -1 };
  seen s = { 0 };
  fixture_begin(&f);
  nsai_records *records = records_open(&f, NSAI_CACHE_READ_WRITE);
  assert_int_equal(nsai_records_import(records, text, size, &import), NSA_E_CACHE);
  if (!strstr(nsa_last_error(), why)) fail_msg("\"%s\" not in: %s", why, nsa_last_error());
  assert_int_equal(import.saved, 0);
  assert_int_equal(nsai_records_each(records, see, &s), NSA_OK);
  assert_int_equal(s.items, 0);
  nsai_records_close(records);
  fixture_end(&f);
}

static void test_import_all_or_nothing(void **state) {
  fixture *f = *state;
  size_t size;
  nsai_import import = { 0 };
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  for (int n = 0; n < 3; n++) records_save(records, n);
  char *text = export_of(records, &size), *edited = malloc(size + 100);
  assert_non_null(edited);
  /* Damaged: what a flipped byte does while the checksum stands. */
  size_t seal = (size_t)(strrchr(text, '#') - text);
  for (size_t at = 0; at < seal; at += 37) {
    text[at] ^= 2;
    expect_no_import(text, size, "checksum");
    text[at] ^= 2;
  }
  /* Cut off, at ends of lines too. */
  for (size_t n = 0; n < seal - 4; n += n % 5 + 23) expect_no_import(text, n, "not imported");
  for (char *line = strchr(text, '\n'); line; line = strchr(line + 1, '\n'))
    if ((size_t)(line - text) < seal - 5)
      expect_no_import(text, (size_t)(line - text) + 1, "not imported");
  /* Edited without taking the checksum away; then with. */
  char *place = strstr(text, "chosen: true");
  memcpy(place, "chosen:  yes", 12);
  expect_no_import(text, size, "remove the line");
  expect_no_import(text, seal, "true or false");
  memcpy(place, "chosen: true", 12);
  assert_int_equal(nsai_records_import(records, text, seal, &import), NSA_OK);
  assert_int_equal(import.saved, 3);
  /* The last record is bad: the first two must not be taken. */
  for (char *next = place; (next = strstr(next + 1, "sms: 132"));) place = next;
  memcpy(place, "smx: 132", 8);
  expect_no_import(text, seal, "'smx' is no key here; correct it");
  memcpy(place, "sms: 132", 8);
  /* One record twice. */
  snprintf(edited, size + 100,
           "nsa_records: 1\nrecords:\n"
           "  - {device: {name: a, arch: b, sms: 1}, problem: {key: k, bucket: 1}}\n"
           "  - {device: {name: a, arch: b, sms: 1}, problem: {key: k, bucket: 2}}\n"
           "...\n");
  expect_no_import(edited, strlen(edited), "line 4: an earlier record");
  free(edited);
  free(text);
  nsai_records_close(records);
}

/* The least that a person may write. */
static void test_import_by_hand(void **state) {
  static const char text[] = "# By hand.\n"
                             "nsa_records: 1\n"
                             "records:\n"
                             "  - device: {name: NVIDIA H200, arch: sm_90a, sms: 132}\n"
                             "    problem: {key: k, bucket: 1024}\n"
                             "    stages:\n"
                             "      select: [{candidate: select_sort, state: ok, chosen: true}]\n"
                             "...\n";
  fixture *f = *state;
  nsai_import import = { 0 };
  nsai_record *found;
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  record_must(nsai_records_import(records, text, sizeof text - 1, &import));
  assert_int_equal(import.saved, 1);
  assert_true(nsai_records_find(records, "NVIDIA H200", "sm_90a", 132, "k", &found));
  assert_string_equal(nsai_record_chosen(found, "select")->candidate, "select_sort");
  nsai_record_destroy(found);
  nsai_records_close(records);
  expect_no_import(text, sizeof text - 5, "`...`");
}

typedef struct kept {
  int count;
  char problem[384], here[32];
} kept;

static void note_kept(void *user, const nsai_record *record, const nsai_record *here) {
  kept *k = user;
  k->count++;
  assert_true(nsai_record_same_key(record, here));
  snprintf(k->problem, sizeof k->problem, "%s", record->problem);
  snprintf(k->here, sizeof k->here, "%s", here->date);
}

/* Saves problem `n` with one timing, measured by a driver on a date. */
static void save_dated(nsai_records *records, int n, const char *driver, const char *date,
                       int rows) {
  nsai_record *r = record_make(n);
  snprintf(r->driver, sizeof r->driver, "%s", driver);
  snprintf(r->date, sizeof r->date, "%s", date);
  record_add(r, "select", rows);
  record_choose(r, "select", rows);
  record_must(nsai_records_save(records, r));
  nsai_record_destroy(r);
}

static void expect_dated(nsai_records *records, int n, const char *date, int timings, int rows) {
  char candidate[32];
  nsai_record *r = records_find(records, n);
  assert_non_null(r);
  snprintf(candidate, sizeof candidate, "select_mma rows=%d", rows);
  assert_string_equal(r->date, date);
  assert_int_equal(r->timing_count, timings);
  assert_string_equal(nsai_record_chosen(r, "select")->candidate, candidate);
  nsai_record_destroy(r);
}

/* What was measured here later stays, record by record; of one environment both are merged. */
static void test_import_of_older(void **state) {
  enum { OLDER, NEWER, SAME_OLDER, SAME_NEWER, UNDATED, SYSTEM, PROBLEMS };
  fixture *f = *state, from, system;
  kept k = { 0 };
  nsai_import import = { .on_kept = note_kept, .user = &k };
  size_t size;
  fixture_begin(&from);
  fixture_begin(&system);
  nsai_records *a = records_open(&from, NSAI_CACHE_READ_WRITE);
  for (int n = 0; n < PROBLEMS; n++)
    save_dated(a, n, "570", n == UNDATED ? "" : "2026-05-05T00:00:00Z", 1);
  char *text = export_of(a, &size);
  nsai_records_close(a);
  a = records_open(&system, NSAI_CACHE_READ_WRITE);
  save_dated(a, SYSTEM, "580", "2026-06-06T00:00:00Z", 2);
  nsai_records_close(a);
  const char *const dirs[] = { system.dir, NULL };
  nsai_cache_options options = fixture_options(f, NSAI_CACHE_READ_WRITE);
  options.system_dirs = dirs;
  nsai_records *b;
  record_must(nsai_records_open(&options, &b));
  save_dated(b, OLDER, "580", "2026-06-06T00:00:00Z", 2);
  save_dated(b, NEWER, "580", "2026-04-04T00:00:00Z", 2);
  save_dated(b, SAME_OLDER, "570", "2026-06-06T00:00:00Z", 2);
  save_dated(b, SAME_NEWER, "570", "2026-04-04T00:00:00Z", 2);
  save_dated(b, UNDATED, "580", "2026-06-06T00:00:00Z", 2);
  for (int i = 0; i < 2; i++) { /* once more: nothing changes */
    k = (kept){ 0 };
    record_must(nsai_records_import(b, text, size, &import));
    assert_int_equal(import.saved, 4);
    assert_int_equal(import.kept, 2);
    assert_int_equal(k.count, 2);
    assert_string_equal(k.here, "2026-06-06T00:00:00Z");
    expect_dated(b, OLDER, "2026-06-06T00:00:00Z", 1, 2);
    expect_dated(b, NEWER, "2026-05-05T00:00:00Z", 1, 1);
    expect_dated(b, SAME_OLDER, "2026-06-06T00:00:00Z", 2, 2);
    expect_dated(b, SAME_NEWER, "2026-05-05T00:00:00Z", 2, 1);
    expect_dated(b, UNDATED, "", 1, 1);
    expect_dated(b, SYSTEM, "2026-06-06T00:00:00Z", 1, 2);
    nsai_records_reload(b);
  }
  nsai_records_close(b);
  free(text);
  fixture_end(&from);
  fixture_end(&system);
}

/* ---- threads ---- */

typedef struct worker {
  nsai_records *records;
  int number;
} worker;

static void *work(void *user) {
  const worker *w = user;
  for (int i = 0; i < 10; i++) {
    nsai_record *record = record_make(i % 3);
    unsigned char digest[NSAI_DIGEST_BYTES];
    record_add(record, "select", 10 * w->number + i);
    record_must(nsai_records_save(w->records, record));
    nsai_record_destroy(record);
    nsai_record_destroy(records_find(w->records, i % 3));
    record_must(nsai_records_digest(w->records, digest));
    if (i == 5) nsai_records_reload(w->records);
  }
  return NULL;
}

static void test_threads(void **state) {
  enum { WORKERS = 4 };
  fixture *f = *state;
  pthread_t threads[WORKERS];
  worker workers[WORKERS];
  int timings = 0;
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  for (int i = 0; i < WORKERS; i++) {
    workers[i] = (worker){ records, i };
    assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
  nsai_records_close(records);
  for (int n = 0; n < 3; n++) {
    nsai_record *found = records_find_on_disk(f, n);
    assert_non_null(found);
    timings += found->timing_count;
    nsai_record_destroy(found);
  }
  assert_int_equal(timings, WORKERS * 10);
  assert_int_equal(f->warnings, 0);
}

/* A child of a fork in the middle of a change: the record that is being replaced has been given back,
 * and is still in the index. */
static void test_fork_during_a_change(void **state) {
  fixture *f = *state;
  int status = -1;
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  records_save(records, 1);
  pthread_mutex_lock(&records->lock);
  const pid_t child = fork();
  if (child == 0) {
    nsai_record_destroy(records->entries[0].record);
    nsai_records_close(records);
    _exit(0);
  }
  pthread_mutex_unlock(&records->lock);
  assert_true(child > 0 && waitpid(child, &status, 0) == child);
  assert_int_equal(status, 0);
  nsai_records_close(records);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    FIXTURE_TEST(test_save_and_find),  FIXTURE_TEST(test_find_misses),
    FIXTURE_TEST(test_modes),          FIXTURE_TEST(test_bad_record_is_refused),
    FIXTURE_TEST(test_merged_on_disk), FIXTURE_TEST(test_each),
    FIXTURE_TEST(test_system_tier),    FIXTURE_TEST(test_digest),
    FIXTURE_TEST(test_export_import),  FIXTURE_TEST(test_import_all_or_nothing),
    FIXTURE_TEST(test_import_by_hand), FIXTURE_TEST(test_import_of_older),
    FIXTURE_TEST(test_threads),        FIXTURE_TEST(test_fork_during_a_change),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
