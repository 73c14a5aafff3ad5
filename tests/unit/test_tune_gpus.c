/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * `nsa-autotune tune --device` with several GPUs, on a host of two equal GPUs, one of another kind, and
 * one that is too old. The tuner is replaced: it notes the GPU in a file, and saves a record of it.
 */
#include "../fault/child.h"
#include "../record_fixture.h"
#include "cli/cli.h"
#include "cli/json_check.h"
#include "machine.h"
#include "records/decide.h"

#include <signal.h>

#define HOST                                                                                       \
  "90 132 232448 Fake H200;90 132 232448 Fake H200;80 108 166912 Fake A100;75 40 65536 Fake T4"

/* What the tuner does on each of the four GPUs. */
typedef enum deed { SAVES, FAILS, IS_GONE, IS_WRONG, DIES, IS_INTERRUPTED } deed;
static deed deeds[4];

static const char *dir; /* of this test's fixture */

static nsa_status interrupt(const nsa_tune_options *options) {
  kill(getppid(), SIGINT); /* not this process: the flag is one of both */
  for (int i = 0; i < 5000; i++) {
    if (options->progress(options->user, 1, 2, "timing"))
      return nsai_fail(NSA_E_CANCELLED, "cancelled");
    usleep(1000);
  }
  return nsai_fail(NSA_E_INTERNAL, "the signal does not arrive");
}

static void save_record(nsa_ctx *ctx) {
  nsai_record *record = record_full(1);
  nsai_tune_environment(ctx, record);
  record_must(nsai_records_save(nsai_context_records(ctx), record));
  nsai_record_destroy(record);
}

static void tell(const nsa_tune_options *options, int32_t kind) {
  const nsa_tune_event event = { .struct_size = sizeof event,
                                 .kind = kind,
                                 .problem = "dense:len64",
                                 .tokens = 64,
                                 .stage = "",
                                 .candidate = "",
                                 .note = "" };
  options->event(options->user, &event);
}

nsa_status __wrap_nsa_tune(nsa_ctx *ctx, const nsa_problem *problems, size_t count,
                           const nsa_tune_options *options);
nsa_status __wrap_nsa_tune(nsa_ctx *ctx, const nsa_problem *problems, size_t count,
                           const nsa_tune_options *options) {
  char path[PATH_MAX];
  (void)problems, (void)count;
  snprintf(path, sizeof path, "%s/tuned", dir);
  FILE *tuned = fopen(path, "ae");
  CHILD_ASSERT(tuned);
  fprintf(tuned, "%d ", (int)ctx->device.ordinal);
  fclose(tuned);
  tell(options, NSA_TUNE_PROBLEM);
  switch (deeds[ctx->device.ordinal]) {
  case FAILS: return nsai_fail(NSA_E_CUDA, "the device fails");
  case IS_GONE: return nsai_fail(NSA_E_NO_DEVICE, "the device is gone");
  case IS_WRONG: return nsai_fail(NSA_E_VERIFY, "the heuristic's choice is wrong");
  case DIES: raise(SIGKILL); break;
  case IS_INTERRUPTED: return interrupt(options);
  case SAVES: break;
  }
  save_record(ctx);
  tell(options, NSA_TUNE_DONE);
  return NSA_OK;
}

/* A driver that crashes while GPUs are looked for. */
static bool search_dies;

nsa_status __real_nsai_device_describe(const nsai_driver *driver, nsai_cu_device ordinal,
                                       nsai_device *out);
nsa_status __wrap_nsai_device_describe(const nsai_driver *driver, nsai_cu_device ordinal,
                                       nsai_device *out);
nsa_status __wrap_nsai_device_describe(const nsai_driver *driver, nsai_cu_device ordinal,
                                       nsai_device *out) {
  if (search_dies) raise(SIGKILL);
  return __real_nsai_device_describe(driver, ordinal, out);
}

/* ---- a run ---- */

typedef struct wanted {
  const char *devices; /* of --device */
  const char *tuned;   /* "0 2 " */
  int status;
  int files;        /* 0: one */
  const char *host; /* NULL: HOST */
} wanted;

static wanted want;

static void place(const fixture *f, const char *name, char path[PATH_MAX]) {
  snprintf(path, PATH_MAX, "%s/%s", f->dir, name);
}

/* In a child: tunes as a user does. stdout and stderr go to files. */
static void run(fixture *f) {
  static const char yaml[] = "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64}\n";
  static char set[] = "--set", device[] = "--device", json[] = "--json";
  char file[PATH_MAX], path[PATH_MAX], *argv[32] = { (char[]){ "tune" } };
  machine_overrides o;
  int argc = 1;
  dir = f->dir;
  place(f, "model.yaml", file);
  fixture_write(file, yaml, sizeof yaml - 1);
  machine_overrides_init(&o, f->dir, NULL);
  for (int i = 0; o.list[i]; i++) {
    argv[argc++] = set;
    argv[argc++] = (char *)o.list[i];
  }
  argv[argc++] = json;
  argv[argc++] = device;
  argv[argc++] = (char *)want.devices;
  for (int i = 0; i < (want.files ? want.files : 1); i++) argv[argc++] = file;
  place(f, "errors", path);
  CHILD_ASSERT(freopen(path, "w", stderr));
  place(f, "output", path);
  CHILD_ASSERT(freopen(path, "w", stdout));
  int status = nsai_cmd_tune(argc, argv);
  fflush(stdout);
  fflush(stderr);
  if (status != want.status) _exit(100 + status);
}

static char output[1 << 16], errors[1 << 16];

static void read_text(const fixture *f, const char *name, char *text, size_t size) {
  char path[PATH_MAX];
  place(f, name, path);
  text[access(path, R_OK) ? 0 : fixture_read(path, text, size - 1)] = '\0';
}

/* Runs, and compares exit status and the GPUs that the tuner saw. */
static void expect(fixture *f, const wanted *w) {
  char tuned[256], path[PATH_MAX];
  want = *w;
  place(f, "tuned", path);
  unlink(path);
  setenv("FAKE_CUDA_HOST", w->host ? w->host : HOST, 1);
  int status = in_child(run, f);
  unsetenv("FAKE_CUDA_HOST");
  read_text(f, "errors", errors, sizeof errors);
  read_text(f, "output", output, sizeof output);
  read_text(f, "tuned", tuned, sizeof tuned);
  if (status) fail_msg("--device %s: status %d, errors:\n%s", w->devices, status, errors);
  assert_string_equal(tuned, w->tuned);
  if (output[0]) assert_true(nsai_json_valid(output, strlen(output)));
}

static void expect_text(const char *text, const char *part) {
  if (!strstr(text, part)) fail_msg("\"%s\" is not in:\n%s", part, text);
}

static int begin(void **state) {
  memset(deeds, 0, sizeof deeds);
  return fixture_setup(state);
}

/* Whether there is a record of the kind. */
static bool is_recorded(fixture *f, const char *device, const char *arch, int sms) {
  nsai_records *records = records_open(f, NSAI_CACHE_READ_ONLY);
  nsai_record *key = record_make(1), *found;
  bool is = nsai_records_find(records, device, arch, sms, key->problem, &found);
  nsai_record_destroy(key);
  nsai_record_destroy(found);
  nsai_records_close(records);
  return is;
}

static bool both_recorded(fixture *f) {
  return is_recorded(f, "Fake H200", "sm_90a", 132) && is_recorded(f, "Fake A100", "sm_80", 108);
}

/* ---- which GPUs ---- */

static void test_all(void **state) {
  fixture *f = *state;
  expect(f, &(wanted){ .devices = "all", .tuned = "0 2 " });
  assert_true(both_recorded(f));
  expect_text(output, "\"gpu\": \"cuda:0\", \"device\": \"Fake H200\", \"arch\": \"sm_90a\", "
                      "\"sms\": 132, \"serves\": [\"cuda:0\", \"cuda:1\"]");
  expect_text(output, "\"gpu\": \"cuda:2\", \"device\": \"Fake A100\", \"arch\": \"sm_80\", "
                      "\"sms\": 108, \"serves\": [\"cuda:2\"]");
  expect_text(errors, "tuning on cuda:0 (Fake H200), also for cuda:1\n");
  expect_text(errors, "cuda:3 is left out: GPU 3 (Fake T4) has compute capability 7.5");
}

/* Records are for a name, an architecture and a number of multiprocessors. */
static void test_kinds(void **state) {
  fixture *f = *state;
  expect(f, &(wanted){ .devices = "all",
                       .tuned = "0 1 2 ",
                       .host = "90 132 232448 Fake;90 114 232448 Fake;80 132 232448 Fake;"
                               "90 132 232448 Fake" });
  expect_text(output, "\"serves\": [\"cuda:0\", \"cuda:3\"]");
  assert_true(is_recorded(f, "Fake", "sm_90a", 132) && is_recorded(f, "Fake", "sm_90a", 114) &&
              is_recorded(f, "Fake", "sm_80", 132));
}

static void test_list(void **state) {
  fixture *f = *state;
  expect(f, &(wanted){ .devices = "2,cuda:1", .tuned = "2 1 " });
  assert_true(both_recorded(f));
  expect(f, &(wanted){ .devices = "1,GPU-ab,0000:11:00.0", .tuned = "1 " });
  expect_text(output, "\"serves\": [\"cuda:1\"]");
  /* One name is one GPU, in this process, and the other of its kind is not looked for. */
  expect(f, &(wanted){ .devices = "cuda:1", .tuned = "1 " });
  expect_text(output, "\"gpu\": \"cuda:1\"");
}

/* A name that no GPU has ends the call before anything is measured. One that the library has no
 * kernels for is a failure where it was named. */
static void test_wrong_names(void **state) {
  fixture *f = *state;
  expect(f, &(wanted){ .devices = "2,cuda:4", .tuned = "", .status = NSAI_EXIT_NO_GPU });
  expect_text(errors, "the visible GPUs are 0 to 3");
  expect(f, &(wanted){ .devices = "2,cpu", .tuned = "", .status = NSAI_EXIT_NO_GPU });
  expect(f, &(wanted){ .devices = "3,2", .tuned = "2 ", .status = NSAI_EXIT_FAILURE });
  expect_text(errors, "error: cuda:3: GPU 3 (Fake T4) has compute capability 7.5");
}

static void test_several_files(void **state) {
  fixture *f = *state;
  deeds[2] = FAILS;
  expect(f, &(wanted){ .devices = "all", .tuned = "0 2 0 2 ", .status = 1, .files = 2 });
  const char *said = strstr(errors, "is left out");
  assert_non_null(said);
  assert_null(strstr(said + 1, "is left out")); /* once for all files */
}

/* ---- failures ---- */

/* The next GPU of the kind takes the place of one that fails; the exit status tells that one did. */
static void test_device_fails(void **state) {
  static const struct {
    deed deed;
    const char *says;
  } cases[] = { { FAILS, "error: the device fails\n" },
                { IS_GONE, "error: the device is gone\n" },
                { DIES, "error: the process that tuned on cuda:0 was ended by signal 9\n" } };
  fixture *f = *state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    deeds[0] = cases[i].deed;
    int status = deeds[0] == IS_GONE ? NSAI_EXIT_NO_GPU : NSAI_EXIT_FAILURE;
    expect(f, &(wanted){ .devices = "all", .tuned = "0 1 2 ", .status = status });
    expect_text(errors, cases[i].says);
    expect_text(errors, "cuda:0 (Fake H200) failed; cuda:1, of the same kind, takes its place\n");
    assert_true(both_recorded(f));
  }
}

static void test_search_dies(void **state) {
  search_dies = true;
  expect(*state, &(wanted){ .devices = "all", .tuned = "", .status = NSAI_EXIT_FAILURE });
  search_dies = false;
  expect_text(errors, "error: the process that looked for GPUs was ended by signal 9\n");
}

/* A kind that no GPU can be tuned for leaves the other kinds alone. */
static void test_kind_fails(void **state) {
  fixture *f = *state;
  deeds[0] = deeds[1] = FAILS;
  expect(f, &(wanted){ .devices = "all", .tuned = "0 1 2 ", .status = NSAI_EXIT_FAILURE });
  expect_text(errors, "cuda:1 (Fake H200) failed\n");
  assert_true(is_recorded(f, "Fake A100", "sm_80", 108));
  assert_false(is_recorded(f, "Fake H200", "sm_90a", 132));
}

/* A wrong kernel is wrong on every GPU of the kind. */
static void test_wrong_kernel(void **state) {
  fixture *f = *state;
  deeds[0] = IS_WRONG;
  expect(f, &(wanted){ .devices = "all", .tuned = "0 2 ", .status = NSAI_EXIT_VERIFY });
  assert_true(is_recorded(f, "Fake A100", "sm_80", 108));
}

/* A GPU that gives no context is not reached by the tuner. */
static void test_no_context(void **state) {
  fixture *f = *state;
  setenv("FAKE_CUDA_LOST", "0", 1);
  expect(f, &(wanted){ .devices = "all", .tuned = "1 2 ", .status = NSAI_EXIT_FAILURE });
  unsetenv("FAKE_CUDA_LOST");
  assert_true(both_recorded(f));
}

static void test_interrupted(void **state) {
  fixture *f = *state;
  deeds[0] = IS_INTERRUPTED;
  expect(f,
         &(wanted){ .devices = "all", .tuned = "0 ", .status = NSAI_EXIT_INTERRUPTED, .files = 2 });
  expect_text(errors, "interrupted; what was measured is kept");
}

#define GPUS_TEST(name) cmocka_unit_test_setup_teardown(name, begin, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
    GPUS_TEST(test_all),         GPUS_TEST(test_kinds),         GPUS_TEST(test_list),
    GPUS_TEST(test_wrong_names), GPUS_TEST(test_several_files), GPUS_TEST(test_device_fails),
    GPUS_TEST(test_kind_fails),  GPUS_TEST(test_wrong_kernel),  GPUS_TEST(test_no_context),
    GPUS_TEST(test_interrupted), GPUS_TEST(test_search_dies),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
