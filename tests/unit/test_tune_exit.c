/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * How `nsa-autotune tune` ends where its records are saved, and where they cannot be. The tuner is
 * replaced: it saves one record, as after a measurement, on the GPU of the fake driver.
 */
#include "../fault/child.h"
#include "../record_fixture.h"
#include "cli/cli.h"
#include "machine.h"
#include "records/decide.h"

static nsa_status tune_status;

nsa_status __wrap_nsa_tune(nsa_ctx *ctx, const nsa_problem *problems, size_t count,
                           const nsa_tune_options *options);
nsa_status __wrap_nsa_tune(nsa_ctx *ctx, const nsa_problem *problems, size_t count,
                           const nsa_tune_options *options) {
  (void)problems, (void)count, (void)options;
  records_save(nsai_context_records(ctx), 1);
  return tune_status ? nsai_fail(tune_status, "ended by the test") : NSA_OK;
}

/* In a child: tunes one file and compares the exit status; stderr goes to the file `errors`. */
static void tune(const fixture *f, const char *setting, int wanted) {
  machine_overrides o;
  char file[PATH_MAX], errors[PATH_MAX], *argv[24] = { (char[]){ "tune" } };
  static char set[] = "--set", device[] = "runtime.device=1"; /* as machine_context */
  static const char yaml[] = "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64}\n";
  int argc = 1;
  snprintf(file, sizeof file, "%s/model.yaml", f->dir);
  snprintf(errors, sizeof errors, "%s/errors", f->dir);
  fixture_write(file, yaml, sizeof yaml - 1);
  machine_overrides_init(&o, f->dir, setting);
  for (int i = 0; o.list[i]; i++) {
    argv[argc++] = set;
    argv[argc++] = (char *)o.list[i];
  }
  argv[argc++] = set;
  argv[argc++] = device;
  argv[argc++] = file;
  CHILD_ASSERT(freopen(errors, "w", stderr));
  int status = nsai_cmd_tune(argc, argv);
  fflush(stderr);
  if (status != wanted) _exit(100 + status);
}

static void expect_in_errors(const fixture *f, const char *text) {
  char path[PATH_MAX], errors[8192];
  snprintf(path, sizeof path, "%s/errors", f->dir);
  errors[fixture_read(path, errors, sizeof errors)] = '\0';
  if (!strstr(errors, text)) fail_msg("\"%s\" is not in: %s", text, errors);
}

static void tune_saved(fixture *f) { tune(f, NULL, NSAI_EXIT_OK); }

static void test_saved(void **state) {
  assert_int_equal(in_child(tune_saved, *state), 0);
  nsai_record *found = records_find_on_disk(*state, 1);
  assert_non_null(found);
  nsai_record_destroy(found);
}

/* Files may be as long as what is said on stderr; a record is longer. */
static void tune_limited(fixture *f) {
  limit_files(1000);
  tune(f, NULL, NSAI_EXIT_CACHE);
}

static void test_full_disk(void **state) {
  fixture *f = *state;
  assert_int_equal(in_child(tune_limited, f), 0);
  expect_in_errors(f, "1 record could not be saved and will be lost (");
}

static void tune_read_only(fixture *f) { tune(f, "runtime.cache_mode=read_only", NSAI_EXIT_CACHE); }
static void tune_off(fixture *f) { tune(f, "runtime.cache_mode=off", NSAI_EXIT_CACHE); }

static void test_no_folder(void **state) {
  fixture *f = *state;
  assert_int_equal(in_child(tune_read_only, f), 0);
  expect_in_errors(f, "1 record could not be saved");
  assert_int_equal(in_child(tune_off, f), 0);
  expect_in_errors(f, "(there is no folder for them)");
}

/* Whoever interrupts must not be told that what was measured is kept. */
static void tune_interrupted(fixture *f) {
  tune_status = NSA_E_CANCELLED;
  tune(f, "runtime.cache_mode=off", NSAI_EXIT_INTERRUPTED);
}

static void test_interrupted(void **state) {
  char path[PATH_MAX], errors[8192];
  fixture *f = *state;
  assert_int_equal(in_child(tune_interrupted, f), 0);
  expect_in_errors(f, "will be lost");
  snprintf(path, sizeof path, "%s/errors", f->dir);
  errors[fixture_read(path, errors, sizeof errors)] = '\0';
  assert_null(strstr(errors, "is kept"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
    FIXTURE_TEST(test_saved),
    FIXTURE_TEST(test_full_disk),
    FIXTURE_TEST(test_no_folder),
    FIXTURE_TEST(test_interrupted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
