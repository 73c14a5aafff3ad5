/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The records' promise under damage: a find gives the right record or nothing, a bad file stays for
 * a person to look at, nothing saved is lost to a race or a killed writer, and no save fails.
 */
#include "../record_fixture.h"
#include "child.h"

#include "base/files.h"

#include <signal.h>
#include <sys/resource.h>
#include <time.h>

enum { WRITERS = 16 };

/* Saves problem 1 in a store of its own. */
static void save_on_disk(fixture *f) {
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  records_save(records, 1);
  nsai_records_close(records);
}

/* Whether problem `n` is on the disk, and right. */
static bool is_on_disk(fixture *f, int n) {
  nsai_record *found = records_find_on_disk(f, n), *wanted = record_full(n);
  if (found && !record_equal(found, wanted)) abort();
  bool there = found != NULL;
  nsai_record_destroy(found);
  nsai_record_destroy(wanted);
  return there;
}

static void expect_bad(fixture *f, const char *path) {
  f->warnings = 0;
  assert_false(is_on_disk(f, 1));
  assert_int_equal(f->warnings, 1);
  assert_non_null(strstr(f->last, "is bad"));
  assert_int_equal(access(path, F_OK), 0); /* left alone */
}

static void test_damaged_files(void **state) {
  fixture *f = *state;
  char path[PATH_MAX], other[PATH_MAX], data[8192];
  save_on_disk(f);
  record_path(f, 1, path);
  size_t size = fixture_read(path, data, sizeof data);
  assert_true(size > 0);
  for (size_t n = 0; n < size; n += 61) {
    fixture_write(path, data, n);
    expect_bad(f, path);
  }
  for (size_t at = 0; at < size; at += 7) {
    data[at] ^= (char)(1 << at % 8);
    fixture_write(path, data, size);
    expect_bad(f, path);
    data[at] ^= (char)(1 << at % 8);
  }
  save_on_disk(f); /* what is measured takes a bad file's place */
  assert_true(is_on_disk(f, 1));
  record_path(f, 2, other);
  fixture_write(other, data, size);
  f->warnings = 0;
  assert_false(is_on_disk(f, 2));
  assert_int_equal(f->warnings, 1);
  assert_non_null(strstr(f->last, "another record"));
  assert_true(is_on_disk(f, 1));
}

/* Links, folders, FIFOs, large files and files that others may write in a record's place. */
static void test_planted_files(void **state) {
  fixture *f = *state;
  char path[PATH_MAX], aside[PATH_MAX];
  save_on_disk(f);
  record_path(f, 1, path);
  snprintf(aside, sizeof aside, "%s/aside", f->dir);
  assert_int_equal(chmod(path, 0666), 0);
  expect_bad(f, path);
  assert_int_equal(chmod(path, 0600), 0);
  assert_true(is_on_disk(f, 1));
  assert_int_equal(rename(path, aside), 0);
  assert_int_equal(symlink(aside, path), 0);
  expect_bad(f, path);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkfifo(path, 0600), 0);
  expect_bad(f, path);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkdir(path, 0700), 0);
  expect_bad(f, path);
  /* A folder cannot be replaced: the record stays in memory, and the store goes on. */
  f->warnings = 0;
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  records_save(records, 1);
  records_save(records, 2);
  assert_true(count_timings(records_find(records, 1)) >= 0);
  nsai_records_close(records);
  assert_int_equal(f->warnings, 2); /* the bad file, the failed write */
  assert_int_equal(rmdir(path), 0);
  fixture_write(path, "", 0);
  assert_int_equal(truncate(path, (off_t)NSAI_RECORD_MAX_BYTES + 1), 0);
  expect_bad(f, path);
}

/* Folders in which somebody else could plant a record, and what is no folder. */
static void test_unusable_folder(void **state) {
  fixture *f = *state;
  char tuning[80];
  save_on_disk(f);
  snprintf(tuning, sizeof tuning, "%s/tuning", f->dir);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(chmod(i ? f->dir : tuning, 0777), 0);
    f->warnings = 0;
    nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
    assert_int_equal(f->warnings, 1);
    assert_non_null(strstr(f->last, "tuning records are kept in memory only"));
    assert_null(records_find(records, 1));
    records_save(records, 2);
    assert_true(count_timings(records_find(records, 2)) >= 0);
    nsai_records_close(records);
    assert_int_equal(f->warnings, 1);
    assert_int_equal(chmod(i ? f->dir : tuning, 0700), 0);
    assert_false(is_on_disk(f, 2));
    assert_true(is_on_disk(f, 1));
  }
}

static void use_read_only(fixture *f) {
  if (geteuid() == 0) CHILD_ASSERT(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  nsai_record *record = record_make(1);
  CHILD_ASSERT(count_timings(records_find(records, 1)) >= 0);
  CHILD_ASSERT(nsai_records_remove(records, record) == NSA_E_CACHE);
  record_add(record, "select", 1);
  record_must(nsai_records_save(records, record));
  CHILD_ASSERT(count_timings(records_find(records, 1)) == 6); /* memory has both */
  CHILD_ASSERT(f->warnings == 1);
  nsai_record_destroy(record);
  nsai_records_close(records);
}

static void test_read_only_folder(void **state) {
  fixture *f = *state;
  char path[PATH_MAX], tuning[80];
  save_on_disk(f);
  record_path(f, 1, path);
  snprintf(tuning, sizeof tuning, "%s/tuning", f->dir);
  if (geteuid() == 0) /* root writes everywhere: the child becomes another user */
    assert_int_equal(chown(path, NOBODY, NOBODY) | chown(tuning, NOBODY, NOBODY) |
                         chown(f->dir, NOBODY, NOBODY),
                     0);
  assert_int_equal(chmod(tuning, 0500) | chmod(f->dir, 0500), 0);
  assert_int_equal(in_child(use_read_only, f), 0);
  assert_int_equal(chmod(f->dir, 0700) | chmod(tuning, 0700), 0);
}

/* Saves until the disk is full; everything stays usable from memory, with one warning. */
static void fill(fixture *f) {
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  for (int n = 0; n < 60; n++) records_save(records, n);
  CHILD_ASSERT(f->warnings == 1);
  nsai_records_reload(records);
  for (int n = 0; n < 60; n++) CHILD_ASSERT(count_timings(records_find(records, n)) >= 0);
  nsai_records_close(records);
}

static void fill_tmpfs(fixture *f) {
  use_small_disk(f);
  fill(f);
}

static void test_full_disk(void **state) { expect_child(fill_tmpfs); }

static void fill_limited(fixture *f) {
  limit_files(1000);
  fill(f);
}

static void test_file_size_limit(void **state) { expect_child(fill_limited); }

static void starve_descriptors(fixture *f) {
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  struct rlimit limit = { 3, 3 };
  CHILD_ASSERT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHILD_ASSERT(records_find(records, 1) == NULL);
  records_save(records, 2);
  CHILD_ASSERT(records_find(records, 2) != NULL);
  nsai_records_close(records);
}

static void test_no_descriptors(void **state) {
  fixture *f = *state;
  save_on_disk(f);
  assert_int_equal(in_child(starve_descriptors, f), 0);
  assert_true(is_on_disk(f, 1));
}

/* All of them save candidates of one problem at once; none is lost. */
static void test_raced_by_16_processes(void **state) {
  enum { ROUNDS = 4 };
  fixture *f = *state;
  int gate[2];
  char byte;
  pid_t children[WRITERS];
  assert_int_equal(pipe(gate), 0);
  for (int i = 0; i < WRITERS; i++) {
    children[i] = fork();
    assert_true(children[i] >= 0);
    if (children[i]) continue;
    nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
    close(gate[1]);
    CHILD_ASSERT(read(gate[0], &byte, 1) == 0); /* ends when the parent opens the gate */
    for (int round = 0; round < ROUNDS; round++) {
      nsai_record *record = record_make(1);
      record_add(record, "select", i * ROUNDS + round);
      record_must(nsai_records_save(records, record));
      nsai_record_destroy(record);
    }
    CHILD_ASSERT(f->warnings == 0);
    nsai_records_close(records);
    _exit(0);
  }
  close(gate[0]);
  close(gate[1]);
  expect_children(children, WRITERS);
  assert_int_equal(count_timings(records_find_on_disk(f, 1)), WRITERS * ROUNDS);
  assert_int_equal(f->warnings, 0);
}

/* Somebody holds the lock and hangs: a save waits its time, and goes on. */
static void test_stuck_lock(void **state) {
  fixture *f = *state;
  char path[PATH_MAX], lock[32];
  struct timespec before, after;
  save_on_disk(f);
  record_path(f, 1, path);
  *strrchr(path, '/') = '\0';
  int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  snprintf(lock, sizeof lock, ".lock-%.2s", path + strlen(path) + 1);
  int held = nsai_files_lock(folder, lock);
  assert_true(held >= 0);
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  nsai_record *record = record_make(1);
  record_add(record, "select", 1);
  clock_gettime(CLOCK_MONOTONIC, &before);
  record_must(nsai_records_save(records, record));
  clock_gettime(CLOCK_MONOTONIC, &after);
  assert_true(after.tv_sec - before.tv_sec >= 1 && after.tv_sec - before.tv_sec < 20);
  nsai_record_destroy(record);
  nsai_records_close(records);
  close(held);
  close(folder);
  assert_int_equal(count_timings(records_find_on_disk(f, 1)), 6);
}

static bool count_bad(void *user, const nsai_record_item *item) {
  *(int *)user += item->problem != NULL;
  return true;
}

/* Writers killed at random points: what was saved stays, what is there is whole, and what is left
 * over is swept. */
static void test_killed_writers(void **state) {
  fixture *f = *state;
  save_on_disk(f);
  srand(1);
  for (int round = 0; round < 60; round++) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
      for (int n = 0;; n++) records_save(records, n % 20);
    }
    const struct timespec pause = { 0, 1000 * (rand() % 6000) };
    nanosleep(&pause, NULL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_true(is_on_disk(f, 1));
  }
  int bad = 0;
  snprintf(f->kernels, sizeof f->kernels, "%s/tuning", f->dir);
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  assert_int_equal(nsai_records_each(records, count_bad, &bad), NSA_OK);
  assert_int_equal(bad, 0);
  nsai_records_close(records);
  assert_int_equal(fixture_count(f, ".tmp-"), 0);
  assert_int_equal(f->warnings, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    FIXTURE_TEST(test_damaged_files),   FIXTURE_TEST(test_planted_files),
    FIXTURE_TEST(test_unusable_folder), FIXTURE_TEST(test_read_only_folder),
    cmocka_unit_test(test_full_disk),   cmocka_unit_test(test_file_size_limit),
    FIXTURE_TEST(test_no_descriptors),  FIXTURE_TEST(test_raced_by_16_processes),
    FIXTURE_TEST(test_stuck_lock),      FIXTURE_TEST(test_killed_writers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
