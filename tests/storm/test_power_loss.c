/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The power fails at any moment while kernels and records are saved, by both ways of publishing
 * a file. In every state in which that may leave the disk (disk_model.h), a reader finds what
 * was saved, what was there before, or nothing, and never something else; what was reported as
 * saved is there; and the folder can be used on.
 */
#include "../record_fixture.h"
#include "disk_model.h"

enum { SIZE = 3000 };

static int saves; /* kernels, or saves of one record, of a scenario */

/* The fixture's folder lies below two that do not exist yet, as ~/.cache/nsa may. */
#define BELOW "/cache/nsa"

typedef struct scenario {
  void (*act)(fixture *f);                            /* while the log is on */
  void (*check)(fixture *f, const disk_crash *crash); /* of what a crash has left */
  bool no_unnamed_files, lies;                        /* of the disk */
  int saves;
  int least; /* states of the disk, which such a log has */
  const char *place;
  char root[64]; /* of the folders that are checked */
} scenario;

/* A fixture in a new folder of `place`. */
static void begin_below(fixture *f, const char *place, char root[64]) {
  memset(f, 0, sizeof *f);
  nsai_logger_init(&f->logger, fixture_log, f, NSA_LOG_WARN);
  snprintf(root, 64, "%s/nsa-test-power-XXXXXX", place);
  assert_non_null(mkdtemp(root));
  assert_true(snprintf(f->dir, sizeof f->dir, "%.40s" BELOW, root) < (int)sizeof f->dir);
  snprintf(f->kernels, sizeof f->kernels, "%.62s/kernels", f->dir);
}

static void check_crash(void *user, const disk_crash *crash) {
  scenario *s = user;
  fixture f;
  begin_below(&f, s->place, s->root);
  disk_restore(crash, s->root);
  s->check(&f, crash);
  fixture_remove(s->root);
  nsai_logger_fini(&f.logger);
}

static void try_power_loss(scenario *s) {
  fixture f;
  char root[64];
  begin_below(&f, "/tmp", root);
  disk_begin(root);
  disk.no_unnamed_files = s->no_unnamed_files;
  disk.lies = s->lies;
  saves = s->saves;
  s->act(&f);
  disk_end();
  assert_int_equal(f.warnings, 0);
  fixture_remove(root);
  nsai_logger_fini(&f.logger);
  /* What is left is checked in memory, where this takes less time. */
  s->place = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  const int states = disk_try_all(check_crash, s);
  printf("# %d calls, %d states of the disk\n", disk.count, states);
  assert_true(states >= s->least);
}

/* ---- kernels ---- */

static void save_kernels(fixture *f) {
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  for (int n = 0; n < saves; n++) {
    assert_true(fixture_store(cache, n, SIZE));
    disk_done();
  }
  nsai_cache_close(cache);
}

static int count_kernels(fixture *f, int first, int end) {
  int found = 0;
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  for (int n = first; n < end; n++) found += fixture_find(cache, n, SIZE, FIXTURE_COMPILER);
  nsai_cache_close(cache);
  return found;
}

/* fixture_find ends the test where it finds other bytes than those of the kernel. */
static void check_kernels(fixture *f, const disk_crash *crash) {
  int64_t removed, good, bad;
  uint64_t left;
  if (count_kernels(f, 0, crash->done) != crash->done)
    fail_msg("a saved kernel is lost: the power fails after call %d, %d saved, loss %d",
             crash->prefix, crash->done, (int)crash->loss);
  count_kernels(f, crash->done, saves);
  /* The damaged ones are gone, and everything can be stored. */
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  for (int n = 0; n < saves; n++) assert_true(fixture_store(cache, n, SIZE));
  assert_int_equal(nsai_cache_gc(cache, FIXTURE_LIMIT, &removed, &left), NSA_OK);
  assert_int_equal(nsai_cache_verify(cache, &good, &bad), NSA_OK);
  assert_int_equal(good, saves);
  assert_int_equal(bad, 0);
  nsai_cache_close(cache);
  assert_int_equal(fixture_count(f, ".tmp-"), 0);
  assert_int_equal(count_kernels(f, 0, saves), saves);
}

static void test_kernels_by_link(void **state) {
  scenario s = { .act = save_kernels, .check = check_kernels, .saves = 6, .least = 60 };
  try_power_loss(&s);
}

static void test_kernels_by_rename(void **state) {
  scenario s = {
    .act = save_kernels, .check = check_kernels, .no_unnamed_files = true, .saves = 6, .least = 60
  };
  try_power_loss(&s);
}

/* A kernel that does not load is removed, and stored again. */
static void replace_kernel(fixture *f) {
  nsai_kernel_key key;
  nsai_kernel_image image;
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  fixture_key(0, FIXTURE_COMPILER, &key);
  fixture_image(0, SIZE, &image);
  assert_true(fixture_store(cache, 0, SIZE));
  nsai_cache_drop(cache, &key, &image, "so says the test");
  f->warnings = 0;
  assert_true(fixture_store(cache, 0, SIZE));
  disk_done();
  nsai_cache_close(cache);
  nsai_kernel_image_fini(&image);
  nsai_kernel_key_fini(&key);
}

static void check_one(fixture *f, const disk_crash *crash) {
  assert_true(count_kernels(f, 0, 1) >= crash->done);
}

static void test_replaced(void **state) {
  scenario s = { .act = replace_kernel, .check = check_one, .saves = 1, .least = 15 };
  try_power_loss(&s);
}

/* A kernel that is found has its time of use written into its file. */
static void use_kernel(fixture *f) {
  nsai_kernel_key key;
  nsai_kernel_image image;
  unsigned char *data;
  size_t size;
  nsai_cache *cache = fixture_open(f, NSAI_CACHE_READ_WRITE, 0);
  fixture_key(0, FIXTURE_COMPILER, &key);
  fixture_image(0, SIZE, &image);
  record_must(nsai_cache_entry_encode(&key, &image, 1, &data, &size)); /* last used in 1970 */
  record_must(nsai_cache_import(cache, &(nsai_cache_bytes){ data, size }, 1));
  disk_done();
  assert_true(fixture_find(cache, 0, SIZE, FIXTURE_COMPILER));
  nsai_cache_close(cache);
  free(data);
  nsai_kernel_image_fini(&image);
  nsai_kernel_key_fini(&key);
}

static void test_time_of_use(void **state) {
  scenario s = { .act = use_kernel, .check = check_one, .saves = 1, .least = 20 };
  try_power_loss(&s);
}

/* ---- records ---- */

/* Each save adds a candidate to the same record, which replaces the file. */
static void save_records(fixture *f) {
  nsai_records *records = records_open(f, NSAI_CACHE_READ_WRITE);
  for (int n = 0; n < saves; n++) {
    nsai_record *record = record_make(1);
    record_add(record, "select", n);
    record_must(nsai_records_save(records, record));
    nsai_record_destroy(record);
    disk_done();
  }
  nsai_records_close(records);
}

/* Whether the record is the one after so many saves. */
static bool is_record_of(const nsai_record *found, int count) {
  nsai_record *wanted = record_make(1);
  for (int n = 0; n < count; n++) record_add(wanted, "select", n);
  const bool equal = record_equal(found, wanted);
  nsai_record_destroy(wanted);
  return equal;
}

static void check_records(fixture *f, const disk_crash *crash) {
  nsai_record *found = records_find_on_disk(f, 1);
  const int count = found ? found->timing_count : 0;
  if (count < crash->done)
    fail_msg("a saved record is lost: the power fails after call %d, %d saved, %d there, loss %d",
             crash->prefix, crash->done, count, (int)crash->loss);
  assert_true(!found || is_record_of(found, count));
  nsai_record_destroy(found);
  save_records(f);
  found = records_find_on_disk(f, 1);
  assert_true(found && is_record_of(found, saves));
  nsai_record_destroy(found);
  snprintf(f->kernels, sizeof f->kernels, "%.60s/tuning", f->dir);
  assert_int_equal(fixture_count(f, ".tmp-"), 0);
}

static void test_records(void **state) {
  scenario s = { .act = save_records, .check = check_records, .saves = 6, .least = 60 };
  try_power_loss(&s);
}

/* Without fsync anything may be left, and nothing wrong is accepted. */
static void test_lying_disk(void **state) {
  scenario kernels = {
    .act = save_kernels, .check = check_kernels, .lies = true, .saves = 2, .least = 400
  };
  try_power_loss(&kernels);
  kernels.no_unnamed_files = true;
  try_power_loss(&kernels);
  scenario records = {
    .act = save_records, .check = check_records, .lies = true, .saves = 3, .least = 400
  };
  try_power_loss(&records);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_kernels_by_link), cmocka_unit_test(test_kernels_by_rename),
    cmocka_unit_test(test_replaced),        cmocka_unit_test(test_time_of_use),
    cmocka_unit_test(test_records),         cmocka_unit_test(test_lying_disk),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
