/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Reading that fails for a moment, at every call of an operation: nothing on the disk is lost, and
 * nothing that could not be read goes unsaid.
 */
#include "../record_fixture.h"
#include "../unit/machine.h"
#include "child.h"
#include "io_faults.h"

#include <nsa/tune.h>

enum { SIZE = 400, STORED = 2 };

static const char *const calls[] = { "openat", "fstat",   "fstatat", "pread",
                                     "read",   "readdir", "unlinkat" };
static const int causes[] = { EIO, EMFILE, EACCES };

/* The stores of a test, opened before anything fails. */
typedef struct stores {
  fixture *f;
  nsai_cache *cache;
  nsai_records *records;
  uint64_t bytes; /* of both entries */
} stores;

/* Sets when kernel `n` was used last. Returns the size of its entry. */
static uint64_t set_stamp(const fixture *f, int n, int64_t used_at) {
  char path[PATH_MAX];
  unsigned char stamp[NSAI_CACHE_STAMP_BYTES];
  struct stat st;
  fixture_path(f, n, path);
  nsai_cache_stamp_encode(used_at, stamp);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  assert_int_equal(pwrite(fd, stamp, sizeof stamp, NSAI_CACHE_STAMP_AT), sizeof stamp);
  assert_int_equal(fstat(fd, &st), 0);
  close(fd);
  return (uint64_t)st.st_size;
}

/* Before anything fails: kernel 0 has not been used for longer than kernel 1. Returns the size of both. */
static uint64_t age(const fixture *f) { return set_stamp(f, 0, 1) + set_stamp(f, 1, 2); }

static void begin(stores *s, fixture *f) {
  *s = (stores){ .f = f };
  for (int n = 0; n < STORED; n++) fixture_store_on_disk(f, n, SIZE);
  s->records = records_open(f, NSAI_CACHE_READ_WRITE);
  for (int n = 0; n < STORED; n++) records_save(s->records, n);
  nsai_records_close(s->records);
  s->bytes = age(f);
  s->cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  s->records = records_open(f, NSAI_CACHE_READ_WRITE);
}

static void end(stores *s) {
  nsai_cache_close(s->cache);
  nsai_records_close(s->records);
}

/* Everything that was stored is there. */
static void expect_all(const stores *s) {
  for (int n = 0; n < STORED; n++) {
    assert_true(fixture_on_disk(s->f, n, SIZE));
    assert_true(count_timings(records_find_on_disk(s->f, n)) >= 5);
  }
}

/* Runs `operation` once for every call that it makes and every cause, in fresh stores. Returns the
 * number of faults. */
static int sweep(fixture *f, void (*operation)(stores *)) {
  int faults = 0;
  for (size_t call = 0; call < sizeof calls / sizeof *calls; call++)
    for (size_t cause = 0; cause < sizeof causes / sizeof *causes; cause++) {
      bool reached = true;
      for (long n = 0; reached; n++) {
        stores s;
        begin(&s, f);
        io_fault_after(calls[call], n, causes[cause]);
        operation(&s);
        reached = io_faulted();
        faults += reached;
        end(&s);
        expect_all(&s);
      }
    }
  return faults;
}

/* ---- kernels ---- */

static void find_kernel(stores *s) {
  const bool found = fixture_find(s->cache, 1, SIZE, FIXTURE_COMPILER);
  assert_true(found || io_fault_countdown < 0);
}

static void test_find_kernel(void **state) { assert_true(sweep(*state, find_kernel) >= 9); }

/* Every entry is counted, or the operation fails. */
static void verify_kernels(stores *s) {
  int64_t good = 0, bad = 0;
  if (nsai_cache_verify(s->cache, &good, &bad) == NSA_OK) assert_int_equal(good + bad, STORED);
}

static void test_verify_kernels(void **state) { assert_true(sweep(*state, verify_kernels) >= 21); }

static bool count_kernel(void *user, const nsai_cache_item *item) {
  assert_true(item->problem || item->data);
  ++*(int *)user;
  return true;
}

static void visit_kernels(stores *s) {
  int count = 0;
  if (nsai_cache_each(s->cache, count_kernel, &count) == NSA_OK) assert_int_equal(count, STORED);
}

static void test_visit_kernels(void **state) { assert_true(sweep(*state, visit_kernels) >= 21); }

/* A collection evicts the entry that was not used for longest, or fails. */
static void collect_kernels(stores *s) {
  fixture *f = s->f;
  int64_t removed;
  uint64_t left;
  const nsa_status status = nsai_cache_gc(s->cache, s->bytes - 1, &removed, &left);
  const bool reached = io_fault_countdown < 0;
  io_fault_countdown = -1;
  if (status == NSA_OK) {
    assert_true(removed == 1 && left < s->bytes);
    assert_true(!fixture_on_disk(f, 0, SIZE) && fixture_on_disk(f, 1, SIZE));
  } else {
    assert_true(reached && status == NSA_E_CACHE);
  }
  for (int n = 0; n < STORED; n++) fixture_store_on_disk(f, n, SIZE);
  if (!reached) io_fault_countdown = 0; /* for io_faulted: there were not so many */
}

static void test_collect_kernels(void **state) {
  assert_true(sweep(*state, collect_kernels) >= 30);
}

/* ---- records ---- */

/* The new timing is on the disk together with the old ones, or in memory. */
static void save_record(stores *s) {
  nsai_record *record = record_make(1);
  record_add(record, "select", 1);
  record_must(nsai_records_save(s->records, record));
  const bool reached = io_fault_countdown < 0;
  io_fault_countdown = -1;
  nsai_record *found = records_find(s->records, 1);
  assert_non_null(found);
  assert_non_null(nsai_record_find(found, "select", "select_mma rows=1"));
  nsai_record_destroy(found);
  nsai_record_destroy(record);
  if (!reached) io_fault_countdown = 0; /* for io_faulted: there were not so many */
}

static void test_save_record(void **state) { assert_true(sweep(*state, save_record) >= 12); }

static bool count_record(void *user, const nsai_record_item *item) {
  assert_true(item->problem || item->record);
  ++*(int *)user;
  return true;
}

static void visit_records(stores *s) {
  int count = 0;
  if (nsai_records_each(s->records, count_record, &count) == NSA_OK)
    assert_int_equal(count, STORED);
}

static void test_visit_records(void **state) { assert_true(sweep(*state, visit_records) >= 21); }

/* An export is complete, or fails; the records can be read again later. */
static void test_export(void **state) {
  fixture *f = *state;
  machine_overrides overrides;
  stores s;
  char text[8192], yaml[1024];
  begin(&s, f);
  machine_yaml(&(machine_request){ .gpu = true }, yaml, sizeof yaml);
  machine_overrides_init(&overrides, f->dir, NULL);
  nsa_ctx *ctx = machine_context(yaml, overrides.list, true);
  assert_int_equal(nsa_records_reload(ctx), NSA_OK);
  io_fault_after("read", 1, EIO);
  assert_int_equal(nsa_records_export(ctx, text, sizeof text), 0);
  assert_true(io_faulted());
  assert_non_null(strstr(nsa_last_error(), "1 tuning record could not be read"));
  assert_int_equal(nsa_records_reload(ctx), NSA_OK);
  const size_t size = nsa_records_export(ctx, text, sizeof text);
  assert_true(size > 0 && size < sizeof text);
  assert_non_null(strstr(text, "# checksum"));
  nsa_destroy(ctx);
  end(&s);
}

/* ---- rights ---- */

/* A record that may not be read for a while keeps what it holds. */
static void save_over_unreadable(fixture *f) {
  char path[PATH_MAX];
  if (geteuid() == 0) CHILD_ASSERT(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  records_save(records, 1);
  nsai_records_close(records);
  record_path(f, 1, path);
  CHILD_ASSERT(chmod(path, 0) == 0);
  records = records_open(f, NSAI_CACHE_READ_WRITE);
  nsai_record *record = record_make(1);
  record_add(record, "select", 1);
  record_must(nsai_records_save(records, record));
  CHILD_ASSERT(f->warnings == 2 && strstr(f->last, "Permission denied"));
  CHILD_ASSERT(count_timings(records_find(records, 1)) == 1); /* in memory */
  nsai_records_close(records);
  CHILD_ASSERT(chmod(path, 0600) == 0);
  CHILD_ASSERT(count_timings(records_find_on_disk(f, 1)) == 5);
  nsai_record_destroy(record);
}

static void test_save_over_unreadable(void **state) {
  fixture *f = *state;
  if (geteuid() == 0) assert_int_equal(chown(f->dir, NOBODY, NOBODY), 0);
  assert_int_equal(in_child(save_over_unreadable, f), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    FIXTURE_TEST(test_find_kernel),   FIXTURE_TEST(test_verify_kernels),
    FIXTURE_TEST(test_visit_kernels), FIXTURE_TEST(test_collect_kernels),
    FIXTURE_TEST(test_save_record),   FIXTURE_TEST(test_visit_records),
    FIXTURE_TEST(test_export),        FIXTURE_TEST(test_save_over_unreadable),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
