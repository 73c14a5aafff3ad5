/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * An import of kernels, and one of records, is all or nothing: every call that writes, links or
 * moves fails once, and the folder is either complete or byte for byte as it was before.
 */
#include "../record_fixture.h"
#include "child.h"

#include <errno.h>

/* ---- calls that fail ---- */

static const char *failing = "";
static long countdown = -1;
static int cause;

static bool fails(const char *call) {
  if (countdown < 0 || strcmp(call, failing) != 0 || countdown-- > 0) return false;
  errno = cause;
  return true;
}

#define FAULT(result, name, parameters, arguments)                                                 \
  result __real_##name parameters;                                                                 \
  result __wrap_##name parameters;                                                                 \
  result __wrap_##name parameters { return fails(#name) ? -1 : __real_##name arguments; }

FAULT(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
FAULT(int, fsync, (int fd), (fd))
FAULT(int, linkat, (int from, const char *old, int to, const char *new, int flags),
      (from, old, to, new, flags))
FAULT(int, renameat, (int from, const char *old, int to, const char *new), (from, old, to, new))
FAULT(int, mkdirat, (int folder, const char *name, mode_t mode), (folder, name, mode))
FAULT(int, unlinkat, (int folder, const char *name, int flags), (folder, name, flags))

static const char *const calls[] = {
  "write", "fsync", "linkat", "renameat", "mkdirat", "unlinkat"
};
static const int causes[] = { ENOSPC, EIO, EPERM }; /* EPERM: no hard links, as on FAT */

/* ---- what is in the folder ---- */

enum { COUNT = 4, SIZE = CUBIN_LEAST, ROOM = 1 << 16 };

static int by_name(const struct dirent **a, const struct dirent **b) {
  return strcmp((*a)->d_name, (*b)->d_name);
}

/* Names and bytes of all files but locks, which stay by design. Temporary files count. */
static void take_snapshot(const fixture *f, const char *below, char text[ROOM]) {
  char folder[PATH_MAX], path[PATH_MAX * 2];
  struct dirent **items;
  size_t used = 0;
  snprintf(folder, sizeof folder, "%s/%s", f->dir, below);
  int count = scandir(folder, &items, NULL, by_name);
  assert_true(count >= 0);
  memset(text, 0, ROOM);
  for (int i = 0; i < count; i++) {
    const char *name = items[i]->d_name;
    bool skipped = !strcmp(name, ".") || !strcmp(name, "..") || !strncmp(name, ".lock-", 6);
    if (!skipped) {
      used += (size_t)snprintf(text + used, ROOM - used, "%s\n", name);
      snprintf(path, sizeof path, "%s/%s", folder, name);
      if (items[i]->d_type == DT_REG) used += fixture_read(path, text + used, ROOM - used);
    }
    free(items[i]);
  }
  free(items);
}

/* An import into a folder that has something of it; true: it succeeded. */
typedef bool (*import_fn)(fixture *f);

typedef struct scenario {
  const char *folder;
  void (*fill)(fixture *f); /* before the import */
  import_fn import;
  void (*check)(fixture *f); /* after one that succeeded */
} scenario;

/* Returns whether the call that was to fail was reached. */
static bool try_fault(const scenario *s, const char *call, long n, int with) {
  static char before[ROOM], after[ROOM];
  fixture f;
  fixture_begin(&f);
  s->fill(&f);
  take_snapshot(&f, s->folder, before);
  failing = call, countdown = n, cause = with;
  bool done = s->import(&f);
  bool reached = countdown < 0;
  countdown = -1;
  take_snapshot(&f, s->folder, after);
  if (done) {
    s->check(&f);
    if (strstr(after, ".tmp-")) fail_msg("%s %ld: temporary files stay:\n%s", call, n, after);
  } else if (memcmp(before, after, ROOM) != 0) {
    fail_msg("%s %ld: the folder was:\n%s\nand is:\n%s", call, n, before, after);
  }
  if (!done && !strstr(nsa_last_error(), "nothing was imported"))
    fail_msg("%s %ld: %s", call, n, nsa_last_error());
  assert_true(reached || done);
  fixture_end(&f);
  return reached;
}

/* Returns how many calls failed. */
static int sweep(const scenario *s) {
  int count = 0;
  for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
    for (size_t e = 0; e < sizeof causes / sizeof *causes; e++)
      for (long n = 0; try_fault(s, calls[c], n, causes[e]); n++) count++;
  return count;
}

/* ---- kernels ---- */

static nsai_cache_bytes entries[COUNT];

static void make_entries(size_t last_size) {
  for (int n = 0; n < COUNT; n++) {
    nsai_kernel_key key;
    nsai_kernel_image image;
    unsigned char *data;
    fixture_key(n, FIXTURE_COMPILER, &key);
    fixture_image(n, n == COUNT - 1 ? last_size : SIZE, &image);
    record_must(nsai_cache_entry_encode(&key, &image, 1, &data, &entries[n].size));
    entries[n].data = data;
    nsai_kernel_image_fini(&image);
    nsai_kernel_key_fini(&key);
  }
}

static void free_entries(void) {
  for (int n = 0; n < COUNT; n++) free((void *)entries[n].data);
}

/* Kernel 1 is there, kernel 2 is damaged. */
static void fill_kernels(fixture *f) {
  char path[PATH_MAX];
  fixture_store_on_disk(f, 1, SIZE);
  fixture_path(f, 2, path);
  fixture_write(path, "NSAKERN\nrubbish", 15);
}

static bool import_kernels(fixture *f) {
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  nsa_status status = nsai_cache_import(cache, entries, COUNT);
  assert_true(status == NSA_OK || status == NSA_E_CACHE);
  nsai_cache_close(cache);
  return status == NSA_OK;
}

static void check_kernels(fixture *f) {
  for (int n = 0; n < COUNT; n++) assert_true(fixture_on_disk(f, n, SIZE));
  assert_int_equal(fixture_count(f, ".tmp-"), 0);
}

static const scenario kernels = { "kernels", fill_kernels, import_kernels, check_kernels };

static void test_kernels(void **state) {
  make_entries(SIZE);
  assert_true(sweep(&kernels) >= 20);
  free_entries();
}

/* ---- records ---- */

static char *exported;
static size_t exported_size;

/* All records, from another folder. */
static void make_export(void) {
  fixture from;
  fixture_begin(&from);
  nsai_records *records = records_open(&from, NSAI_CACHE_READ_WRITE);
  for (int n = 0; n < COUNT; n++) records_save(records, n);
  nsai_writer writer = nsai_writer_open(NULL, 0);
  record_must(nsai_records_export(records, &writer));
  exported_size = writer.used;
  exported = malloc(exported_size + 1);
  assert_non_null(exported);
  writer = nsai_writer_open(exported, exported_size + 1);
  record_must(nsai_records_export(records, &writer));
  nsai_records_close(records);
  fixture_end(&from);
}

/* Record 1 is there with another candidate, record 2 is damaged. */
static void fill_records(fixture *f) {
  char path[PATH_MAX];
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  nsai_record *record = record_make(1);
  record_add(record, "of_its_own", 3);
  record_must(nsai_records_save(records, record));
  nsai_record_destroy(record);
  nsai_records_close(records);
  record_path(f, 2, path);
  fixture_write(path, "nsa_record: rubbish", 19);
}

static bool import_records(fixture *f) {
  nsai_import import = { 0 };
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  nsa_status status = nsai_records_import(records, exported, exported_size, &import);
  assert_true(status == NSA_OK || status == NSA_E_CACHE);
  assert_int_equal(import.saved, status == NSA_OK ? COUNT : 0);
  /* The store knows what its folder has. */
  for (int n = 0; n < COUNT; n++) {
    nsai_record *found = records_find(records, n);
    assert_true((found != NULL) == (status == NSA_OK || n == 1));
    nsai_record_destroy(found);
  }
  nsai_records_close(records);
  return status == NSA_OK;
}

static void check_records(fixture *f) {
  for (int n = 0; n < COUNT; n++) {
    nsai_record *found = records_find_on_disk(f, n);
    int32_t of_its_own;
    assert_non_null(found);
    assert_int_equal(nsai_record_stage(found, "of_its_own", &of_its_own) != NULL, n == 1);
    nsai_record_destroy(found);
  }
}

static const scenario records = { "tuning", fill_records, import_records, check_records };

static void test_records(void **state) {
  make_export();
  assert_true(sweep(&records) >= 20);
  free(exported);
}

/* ---- a disk that fills ---- */

static void expect_nothing(const scenario *s, fixture *f) {
  static char before[ROOM], after[ROOM];
  take_snapshot(f, s->folder, before);
  CHILD_ASSERT(!s->import(f));
  take_snapshot(f, s->folder, after);
  CHILD_ASSERT(memcmp(before, after, ROOM) == 0);
}

/* The last kernel is longer than a file may be, or than the disk. */
static void import_limited(fixture *f) {
  make_entries(20000);
  fill_kernels(f);
  limit_files(5000);
  expect_nothing(&kernels, f);
}

static void import_onto_small_disk(fixture *f) {
  use_small_disk(f);
  make_entries(200000);
  fill_kernels(f);
  expect_nothing(&kernels, f);
}

/* Record 1 is longer than the others: what is there is merged with what comes. */
static void import_records_limited(fixture *f) {
  struct stat st;
  char path[PATH_MAX];
  make_export();
  fill_records(f);
  record_path(f, 1, path);
  CHILD_ASSERT(stat(path, &st) == 0);
  limit_files((rlim_t)st.st_size);
  expect_nothing(&records, f);
}

static void test_file_size_limit(void **state) { expect_child(import_limited); }
static void test_full_disk(void **state) { expect_child(import_onto_small_disk); }
static void test_records_limit(void **state) { expect_child(import_records_limited); }

/* A folder that an import left when its process died goes, like its files. */
static void test_left_behind(void **state) {
  fixture *f = *state;
  char path[PATH_MAX];
  int64_t removed;
  uint64_t left;
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  snprintf(path, sizeof path, "%s/.tmp-1-2-3", f->kernels);
  assert_int_equal(mkdir(path, 0700), 0);
  snprintf(path, sizeof path, "%s/.tmp-1-2-3/new-0", f->kernels);
  fixture_write(path, "a part", 6);
  assert_int_equal(nsai_cache_gc(cache, FIXTURE_LIMIT, &removed, &left), NSA_OK);
  assert_int_equal(fixture_count(f, ".tmp-"), 0);
  nsai_cache_close(cache);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_kernels),         cmocka_unit_test(test_records),
    cmocka_unit_test(test_file_size_limit), cmocka_unit_test(test_full_disk),
    cmocka_unit_test(test_records_limit),   FIXTURE_TEST(test_left_behind),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
