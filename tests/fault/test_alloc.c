/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Runs out of memory at every single allocation of the library, one after the other, until a whole
 * scenario passes: each failure must be NSA_E_NOMEM or a miss, and leak nothing (the address
 * sanitizer counts).
 */
#include "../record_fixture.h"

#include "api/report.h"
#include "cli/tune_results.h"
#include "compile/compiler.h"
#include "ranks/comm.h"
#include "starve.h"

typedef nsa_status (*scenario)(fixture *f);

/* Fails allocation 0, 1, 2, ... of the scenario until it runs through. */
static void starve(scenario run, fixture *f) {
  for (long n = 0;; n++) {
    assert_true(n < 2000);
    starve_after(n);
    nsa_status status = run(f);
    bool reached = starved();
    if (!reached) {
      assert_int_equal(status, NSA_OK);
      return;
    }
    if (status != NSA_OK && status != NSA_E_NOMEM)
      fail_msg("allocation %ld: %s: %s", n, nsa_status_name(status), nsa_last_error());
  }
}

static nsa_status use_cache(fixture *f) {
  nsai_cache_options options = fixture_options(f, NSAI_CACHE_READ_WRITE);
  static const char cubin[1000] = "cubin";
  const nsai_kernel_key_parts parts = { "k", "source", "options", "sm_80", "t", FIXTURE_COMPILER };
  nsai_kernel_image image = { .cubin = (void *)cubin, .size = sizeof cubin }, found;
  nsai_kernel_key key;
  nsai_cache *cache;
  int64_t good, bad;
  options.limit = 3000;
  snprintf(image.compiler_id, sizeof image.compiler_id, "%s", FIXTURE_COMPILER);
  NSAI_TRY(nsai_kernel_key_init(&key, &parts));
  nsa_status status = nsai_cache_open(&options, &cache);
  if (status == NSA_OK) {
    const int warnings = f->warnings;
    if (!nsai_cache_store(cache, &key, &image)) assert_true(f->warnings > warnings);
    if (nsai_cache_find(cache, &key, &found)) {
      assert_int_equal(found.size, sizeof cubin);
      assert_memory_equal(found.cubin, cubin, sizeof cubin);
      nsai_kernel_image_fini(&found);
    }
    key.compiler_id[0] = '\0';
    if (nsai_cache_find(cache, &key, &found)) nsai_kernel_image_fini(&found);
    status = nsai_cache_verify(cache, &good, &bad);
    if (status == NSA_OK) assert_int_equal(bad, 0);
    nsai_cache_close(cache);
  }
  nsai_kernel_key_fini(&key);
  return status;
}

/* A cache without its memory tier: the disk is read. */
static nsa_status read_disk(fixture *f) {
  nsa_status status = NSA_OK;
  const nsai_cache_options options = fixture_options(f, NSAI_CACHE_READ_WRITE);
  const nsai_kernel_key_parts parts = { "k", "source", "options", "sm_80", "t", "" };
  nsai_kernel_key key;
  nsai_kernel_image found;
  nsai_cache *cache;
  NSAI_TRY(nsai_kernel_key_init(&key, &parts));
  status = nsai_cache_open(&options, &cache);
  if (status == NSA_OK && nsai_cache_find(cache, &key, &found)) nsai_kernel_image_fini(&found);
  if (status == NSA_OK) nsai_cache_close(cache);
  nsai_kernel_key_fini(&key);
  return status;
}

static void test_cache(void **state) {
  fixture *f = *state;
  starve(use_cache, f);
  starve(read_disk, f);
  /* Lack of memory is never taken for a damaged file. */
  assert_int_equal(fixture_count(f, ""), 1);
}

static bool look_at(void *user, const nsai_record_item *item) {
  (void)user;
  assert_null(item->problem);
  return true;
}

/* Everything a store of records does, on what the last round left on the disk. */
static nsa_status use_records(fixture *f) {
  const nsai_cache_options options = fixture_options(f, NSAI_CACHE_READ_WRITE);
  nsa_status status = NSA_OK;
  unsigned char digest[NSAI_DIGEST_BYTES];
  static char text[16384];
  nsai_writer writer = nsai_writer_open(text, sizeof text);
  nsai_timing timing = { .stage = "select", .candidate = "select_sort", .chosen = true };
  nsai_record *record = NULL, *found = NULL;
  nsai_records *records = NULL;
  nsai_import import = { 0 };
  NSAI_TRY(nsai_record_create(&record));
  strcpy(record->device, "d");
  strcpy(record->arch, "sm_90a");
  strcpy(record->problem, "p");
  NSAI_TRY_TO(fail, nsai_record_add(record, &timing));
  NSAI_TRY_TO(fail, nsai_records_open(&options, &records));
  NSAI_TRY_TO(fail, nsai_records_save(records, record));
  nsai_records_reload(records);
  if (nsai_records_find(records, "d", "sm_90a", 0, "p", &found)) {
    assert_int_equal(found->timing_count, 1);
    nsai_record_destroy(found);
  }
  NSAI_TRY_TO(fail, nsai_records_each(records, look_at, NULL));
  NSAI_TRY_TO(fail, nsai_records_digest(records, digest));
  NSAI_TRY_TO(fail, nsai_records_export(records, &writer));
  NSAI_TRY_TO(fail, nsai_records_import(records, text, writer.used, &import));
  assert_int_equal(import.saved, 1);
fail:
  nsai_records_close(records);
  nsai_record_destroy(record);
  return status;
}

static void test_records(void **state) {
  fixture *f = *state;
  starve(use_records, f);
  starve(use_records, f); /* with a file to read and to merge with */
  assert_null(strstr(f->last, "is bad"));
}

static nsa_status compile(fixture *f) {
  nsa_status status = NSA_OK;
  const nsai_compiler_options options = { .dump_dir = f->dir };
  static const char source[] = "extern \"C\" __global__ void k(int *x) { *x = 1; }\n";
  nsai_compiler *compiler;
  nsai_kernel_key key = { 0 };
  nsai_compile_job jobs[2];
  memset(jobs, 0, sizeof jobs);
  jobs[0].request = jobs[1].request = (nsai_compile_request){ "k", source, "sm_80", false };
  NSAI_TRY(nsai_compiler_create(&options, &compiler));
  NSAI_TRY_TO(fail, nsai_compiler_key(compiler, &jobs[0].request, &key));
  NSAI_TRY_TO(fail, nsai_compile_many(compiler, jobs, 2, NULL));
fail:
  for (int i = 0; i < 2; i++) {
    nsai_kernel_image_fini(&jobs[i].image);
    free(jobs[i].error);
  }
  nsai_kernel_key_fini(&key);
  nsai_compiler_destroy(compiler);
  return status;
}

static void test_compiler(void **state) {
  fixture *f = *state;
  const nsai_library_query query = { NULL, 0 };
  const nsai_nvrtc *nvrtc;
  if (nsai_nvrtc_open(&query, NULL, &nvrtc) != NSA_OK) skip();
  starve(compile, f);
}

static nsa_status missing(fixture *f) {
  const nsai_compiler_options options = { .nvrtc_path = f->dir };
  nsai_kernel_image image;
  nsai_compile_request request = { "k", "", "sm_80", false };
  nsai_compiler *compiler;
  NSAI_TRY(nsai_compiler_create(&options, &compiler));
  nsa_status status = nsai_compile(compiler, &request, &image);
  nsai_compiler_destroy(compiler);
  return status == NSA_E_NO_COMPILER ? NSA_OK : status;
}

static nsa_status report(fixture *f) {
  char text[4096];
  nsai_report_inputs inputs = {
    .driver_path = f->dir, .nvrtc_path = f->dir, .cublaslt_path = f->dir, .cache_dir = f->dir
  };
  nsai_writer out = nsai_writer_open(text, sizeof text);
  nsai_report_write(&inputs, true, &out);
  nsai_report_write(&inputs, false, &out);
  return out.used ? NSA_OK : NSA_E_INTERNAL;
}

/* The table of sparse against dense attention is complete, or the call fails. */
static nsa_status compare_with_dense(fixture *f) {
  nsai_tune_results results = { 0 };
  nsai_tune_point *points = NULL;
  size_t count = 0;
  const nsa_tune_event events[] = {
    { .kind = NSA_TUNE_PROBLEM, .problem = "forward:len64", .tokens = 64 },
    { .kind = NSA_TUNE_BASELINE, .candidate = "forward", .ms = 1 },
    { .kind = NSA_TUNE_BASELINE, .candidate = "dense", .ms = 2 },
  };
  (void)f;
  for (size_t i = 0; i < sizeof events / sizeof *events; i++)
    nsai_tune_results_add(&results, &events[i]);
  nsa_status status = results.failed ? NSA_E_NOMEM : nsai_tune_points(&results, &points, &count);
  assert_int_equal(count, status == NSA_OK);
  free(points);
  nsai_tune_results_fini(&results);
  return status;
}

static void test_tune_results(void **state) { starve(compare_with_dense, *state); }

static void test_missing_and_report(void **state) {
  fixture *f = *state;
  starve(missing, f);
  starve(report, f);
}

/* Ranks in one thread: three that are made alone, and one that agrees with itself and exchanges. A failure
 * behind the making ends the communicator, and its text keeps the cause. */
static nsa_status communicate(fixture *f) {
  const nsai_comm_place place = { 0 };
  const nsai_agree_field field = { .name = "the library's version" };
  const nsai_agreement mine = { .common = &field, .common_count = 1 };
  const int64_t out = 5;
  int64_t in = 0;
  const nsa_part send = { (void *)(uintptr_t)&out, sizeof out, 0 }, recv = { &in, sizeof in, 0 };
  nsa_comm *comms[3];
  (void)f;
  NSAI_TRY(nsai_comm_loopback(&place, 3, NULL, comms));
  for (int i = 0; i < 3; i++) nsai_comm_destroy(comms[i]);
  NSAI_TRY(nsai_comm_loopback(&place, 1, NULL, comms));
  nsa_status status = nsai_comm_agree(comms[0], &mine, 0);
  if (status == NSA_OK) status = nsai_comm_exchange(comms[0], &send, 1, &recv, 1, NULL);
  if (status == NSA_OK) assert_int_equal(in, out);
  if (status == NSA_E_RANKS && strstr(nsa_last_error(), "out of host memory")) status = NSA_E_NOMEM;
  nsai_comm_destroy(comms[0]);
  return status;
}

static void test_communicators(void **state) { starve(communicate, *state); }

int main(void) {
  const struct CMUnitTest tests[] = {
    FIXTURE_TEST(test_cache),
    FIXTURE_TEST(test_records),
    FIXTURE_TEST(test_compiler),
    FIXTURE_TEST(test_tune_results),
    FIXTURE_TEST(test_missing_and_report),
    FIXTURE_TEST(test_communicators),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
