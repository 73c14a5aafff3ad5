/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The cache's promise under damage: a find gives the right bytes or nothing, a warning is given
 * once, and no run fails. The fixture aborts on wrong bytes.
 */
#include "child.h"

#include "base/files.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

enum { SIZE = 400 };

/* Stores kernel 1 and reads its file back. */
static size_t store_and_read(fixture *f, char path[PATH_MAX], unsigned char *data, size_t room) {
  fixture_store_on_disk(f, 1, SIZE);
  fixture_path(f, 1, path);
  size_t size = fixture_read(path, data, room);
  assert_true(size > SIZE);
  return size;
}

static void test_truncated_at_every_length(void **state) {
  fixture *f = *state;
  char path[PATH_MAX];
  unsigned char data[4096];
  size_t size = store_and_read(f, path, data, sizeof data);
  for (size_t n = 0; n < size; n++) {
    fixture_write(path, data, n);
    f->warnings = 0;
    assert_false(fixture_on_disk(f, 1, SIZE));
    assert_int_equal(f->warnings, 1);
    assert_int_equal(access(path, F_OK), -1); /* removed, so that the next store can be seen */
  }
  data[size] = 0;
  fixture_write(path, data, size + 1);
  assert_false(fixture_on_disk(f, 1, SIZE));
  fixture_write(path, data, size);
  assert_true(fixture_on_disk(f, 1, SIZE));
}

static void test_every_byte_flipped(void **state) {
  fixture *f = *state;
  char path[PATH_MAX];
  unsigned char data[4096];
  size_t size = store_and_read(f, path, data, sizeof data);
  for (size_t at = 0; at < size; at++) {
    bool stamp = at >= NSAI_CACHE_STAMP_AT && at < NSAI_CACHE_STAMP_AT + NSAI_CACHE_STAMP_BYTES;
    data[at] ^= (unsigned char)(1 << at % 8);
    fixture_write(path, data, size);
    /* The stamp of last use is no part of the content: only the order of eviction suffers. */
    assert_int_equal(fixture_on_disk(f, 1, SIZE), stamp);
    data[at] ^= (unsigned char)(1 << at % 8);
  }
}

/* A good entry under another kernel's name must not be taken for it. */
static void test_copied_to_another_name(void **state) {
  fixture *f = *state;
  char path[PATH_MAX], other[PATH_MAX];
  unsigned char data[4096];
  size_t size = store_and_read(f, path, data, sizeof data);
  fixture_path(f, 2, other);
  fixture_write(other, data, size);
  assert_false(fixture_on_disk(f, 2, SIZE));
  assert_non_null(strstr(f->last, "another"));
  assert_true(fixture_on_disk(f, 1, SIZE));
}

/* Links, folders, FIFOs and files that others may write in an entry's place. */
static void test_planted_entries(void **state) {
  fixture *f = *state;
  char path[PATH_MAX], aside[PATH_MAX];
  unsigned char data[4096];
  size_t size = store_and_read(f, path, data, sizeof data);
  snprintf(aside, sizeof aside, "%s/aside", f->dir);
  assert_int_equal(rename(path, aside), 0);
  assert_int_equal(symlink(aside, path), 0);
  assert_false(fixture_on_disk(f, 1, SIZE));
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_false(fixture_on_disk(f, 1, SIZE));
  assert_int_equal(mkdir(path, 0700), 0);
  assert_false(fixture_on_disk(f, 1, SIZE));
  assert_int_equal(rmdir(path), 0);
  fixture_write(path, data, size);
  assert_int_equal(chmod(path, 0666), 0);
  assert_false(fixture_on_disk(f, 1, SIZE));
  fixture_write(path, data, size);
  if (geteuid() == 0) {
    /* A user's file in root's folder: root must not run it. */
    assert_int_equal(chown(path, NOBODY, NOBODY), 0);
    assert_false(fixture_on_disk(f, 1, SIZE));
  }
}

static void expect_refused(fixture *f, const char *why) {
  f->warnings = 0;
  assert_false(fixture_on_disk(f, 1, SIZE));
  assert_int_equal(f->warnings, 1);
  if (!strstr(f->last, why)) fail_msg("\"%s\" is not in: %s", why, f->last);
}

/* Folders into which somebody else could plant a cubin. */
static void test_planted_folders(void **state) {
  fixture *f = *state;
  char path[PATH_MAX], aside[80];
  unsigned char data[4096];
  store_and_read(f, path, data, sizeof data);
  assert_int_equal(chmod(f->dir, 0770), 0);
  expect_refused(f, "group or others");
  assert_int_equal(chmod(f->dir, 0700), 0);
  assert_int_equal(chmod(f->kernels, 0703), 0);
  expect_refused(f, "group or others");
  assert_int_equal(chmod(f->kernels, 0700), 0);
  if (geteuid() == 0) {
    assert_int_equal(chown(f->kernels, NOBODY, NOBODY), 0);
    expect_refused(f, "another user");
    assert_int_equal(chown(f->kernels, 0, 0), 0);
  }
  snprintf(aside, sizeof aside, "%s-aside", f->dir);
  assert_int_equal(rename(f->dir, aside), 0);
  assert_int_equal(symlink(aside, f->dir), 0);
  expect_refused(f, "symbolic link");
  assert_int_equal(unlink(f->dir), 0);
  fixture_write(f->dir, "a file", 6);
  expect_refused(f, "not a folder");
  assert_int_equal(unlink(f->dir), 0);
  assert_int_equal(rename(aside, f->dir), 0);
  assert_true(fixture_on_disk(f, 1, SIZE));
}

static void use_read_only(fixture *f) {
  if (geteuid() == 0) CHILD_ASSERT(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  CHILD_ASSERT(fixture_find(cache, 1, SIZE, FIXTURE_COMPILER));
  CHILD_ASSERT(!fixture_store(cache, 2, SIZE));
  CHILD_ASSERT(!fixture_store(cache, 3, SIZE));
  CHILD_ASSERT(fixture_find(cache, 2, SIZE, FIXTURE_COMPILER));
  CHILD_ASSERT(f->warnings == 1);
  nsai_cache_close(cache);
}

static void test_read_only_folder(void **state) {
  fixture *f = *state;
  char path[PATH_MAX];
  unsigned char data[4096];
  store_and_read(f, path, data, sizeof data);
  if (geteuid() == 0) /* root writes everywhere: the child becomes another user */
    assert_int_equal(chown(path, NOBODY, NOBODY) | chown(f->kernels, NOBODY, NOBODY) |
                         chown(f->dir, NOBODY, NOBODY),
                     0);
  assert_int_equal(chmod(f->kernels, 0500), 0);
  assert_int_equal(chmod(f->dir, 0500), 0);
  assert_int_equal(in_child(use_read_only, f), 0);
  assert_int_equal(chmod(f->dir, 0700) | chmod(f->kernels, 0700), 0);
}

/* Stores until the disk is full; everything stays usable from memory, with one warning. */
static void fill(fixture *f, size_t size) {
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  int stored = 0;
  for (int n = 0; n < 12; n++) stored += fixture_store(cache, n, size);
  CHILD_ASSERT(stored < 12);
  CHILD_ASSERT(f->warnings == 1);
  for (int n = 0; n < 12; n++) CHILD_ASSERT(fixture_find(cache, n, size, FIXTURE_COMPILER));
  nsai_cache_close(cache);
  CHILD_ASSERT(fixture_count(f, ".tmp-") == 0);
  CHILD_ASSERT(fixture_count(f, "") == stored);
}

static void fill_tmpfs(fixture *f) {
  use_small_disk(f);
  fill(f, 20000);
}

static void test_full_disk(void **state) { expect_child(fill_tmpfs); }

static void fill_limited(fixture *f) {
  limit_files(5000);
  fill(f, 20000);
  sigset_t pending;
  sigpending(&pending);
  CHILD_ASSERT(sigismember(&pending, SIGXFSZ) == 0);
}

static void test_file_size_limit(void **state) { expect_child(fill_limited); }

/* No descriptors left: a miss and no damage. */
static void starve_descriptors(fixture *f) {
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  struct rlimit limit = { 3, 3 };
  CHILD_ASSERT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHILD_ASSERT(!fixture_find(cache, 1, SIZE, FIXTURE_COMPILER));
  CHILD_ASSERT(!fixture_store(cache, 2, SIZE));
  CHILD_ASSERT(fixture_find(cache, 2, SIZE, FIXTURE_COMPILER));
  nsai_cache_close(cache);
}

static void test_no_descriptors(void **state) {
  fixture *f = *state;
  fixture_store_on_disk(f, 1, SIZE);
  assert_int_equal(in_child(starve_descriptors, f), 0);
  assert_true(fixture_on_disk(f, 1, SIZE));
}

/* Races of many processes over few kernels, with eviction and damage going on. */
static void race(fixture *f) {
  srand((unsigned)getpid());
  for (int round = 0; round < 40; round++) {
    nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 30000);
    int n = rand() % 8;
    char path[PATH_MAX];
    int64_t removed;
    uint64_t left;
    if (!fixture_find(cache, n, 3000, FIXTURE_COMPILER)) fixture_store(cache, n, 3000);
    if (round % 8 == 3) nsai_cache_gc(cache, 9000, &removed, &left);
    nsai_cache_close(cache);
    fixture_path(f, n, path);
    /* The entry may have been evicted meanwhile: then there is nothing to damage. */
    if (round % 16 == 9 && truncate(path, 1000) != 0) CHILD_ASSERT(errno == ENOENT);
  }
}

static void test_raced_by_16_processes(void **state) {
  fixture *f = *state;
  pid_t children[16];
  for (int i = 0; i < 16; i++) {
    children[i] = fork();
    assert_true(children[i] >= 0);
    if (children[i] == 0) {
      race(f);
      _exit(0);
    }
  }
  expect_children(children, 16);
  int64_t good, bad;
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  assert_int_equal(nsai_cache_verify(cache, &good, &bad), NSA_OK);
  assert_int_equal(nsai_cache_verify(cache, &good, &bad), NSA_OK);
  assert_int_equal(bad, 0);
  nsai_cache_close(cache);
  assert_int_equal(fixture_count(f, ".tmp-"), 0);
}

/* A child that the host forks while a kernel is compiled has a copy of the lock's descriptor, maybe for
 * days. */
static void test_lock_and_fork(void **state) {
  fixture *f = *state;
  nsai_kernel_key key;
  bool busy;
  int end[2];
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  fixture_key(1, FIXTURE_COMPILER, &key);
  int token = nsai_cache_lock(cache, &key, &busy);
  assert_true(token >= 0 && !busy);
  assert_int_equal(pipe(end), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    char byte;
    close(end[1]);
    _exit((int)read(end[0], &byte, 1)); /* until the parent closes its end */
  }
  nsai_cache_unlock(token);
  token = nsai_cache_lock(cache, &key, &busy);
  assert_true(token >= 0 && !busy);
  nsai_cache_unlock(token);
  close(end[0]);
  close(end[1]);
  expect_children(&child, 1);
  nsai_kernel_key_fini(&key);
  nsai_cache_close(cache);
}

/* A cleaner that takes a file in the making for abandoned does not make its writer fail. */
static void test_writer_and_cleaner(void **state) {
  fixture *f = *state;
  int64_t removed;
  uint64_t left;
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  int folder = open(f->kernels, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0)
    for (;;) nsai_cache_gc(cache, UINT64_MAX, &removed, &left);
  int failures = 0;
  for (int i = 0; i < 400; i++)
    failures += nsai_files_publish(folder, "x", "data", 4, true) != NSA_OK;
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  assert_int_equal(failures, 0);
  close(folder);
  nsai_cache_close(cache);
}

/* Writers killed at random points, by both ways of publishing: whatever lies under a final name is
 * whole, and what is left over is swept. */
static void test_killed_writers(void **state) {
  fixture *f = *state;
  nsai_cache_close(fixture_open(f, NSAI_CACHE_READ_WRITE, 0));
  int folder = open(f->kernels, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  assert_true(folder >= 0);
  srand(1);
  for (int round = 0; round < 60; round++) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      nsai_kernel_key key;
      nsai_kernel_image image;
      unsigned char *data;
      size_t size;
      char name[NSAI_CACHE_NAME_CHARS];
      for (int n = 0;; n++) {
        fixture_key(n % 50, FIXTURE_COMPILER, &key);
        fixture_image(n % 50, 30000, &image);
        if (nsai_cache_entry_encode(&key, &image, 1, &data, &size) != NSA_OK) _exit(1);
        nsai_cache_entry_name(key.digest, FIXTURE_COMPILER, name);
        nsai_files_publish(folder, name, data, size, round % 2);
        free(data);
        nsai_kernel_image_fini(&image);
        nsai_kernel_key_fini(&key);
      }
    }
    /* On a busy machine a child may take longer than this to begin: later ones have more. */
    const struct timespec pause = { 0, 1000 * (rand() % (4000 << round / 20)) };
    nanosleep(&pause, NULL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
  }
  close(folder);
  int64_t good, bad, removed;
  uint64_t left;
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  assert_int_equal(nsai_cache_verify(cache, &good, &bad), NSA_OK);
  assert_true(good > 0);
  assert_int_equal(bad, 0);
  assert_int_equal(nsai_cache_gc(cache, UINT64_MAX, &removed, &left), NSA_OK);
  assert_int_equal(fixture_count(f, ".tmp-"), 0);
  nsai_cache_close(cache);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    FIXTURE_TEST(test_truncated_at_every_length),
    FIXTURE_TEST(test_every_byte_flipped),
    FIXTURE_TEST(test_copied_to_another_name),
    FIXTURE_TEST(test_planted_entries),
    FIXTURE_TEST(test_planted_folders),
    FIXTURE_TEST(test_read_only_folder),
    cmocka_unit_test(test_full_disk),
    cmocka_unit_test(test_file_size_limit),
    FIXTURE_TEST(test_no_descriptors),
    FIXTURE_TEST(test_raced_by_16_processes),
    FIXTURE_TEST(test_lock_and_fork),
    FIXTURE_TEST(test_writer_and_cleaner),
    FIXTURE_TEST(test_killed_writers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
