/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Opening a driver and choosing a GPU, with a driver that has no hardware (fake_cuda.c); and the
 * report of a machine.
 */
#include "support/cmocka_all.h"

#include "api/report.h"
#include "base/json.h"
#include "driver/device.h"
#include "driver/ldcache.h"
#include "machine.h"

static const nsai_driver *open_fake(void) {
  const nsai_driver *driver;
  if (nsai_driver_open(machine_module(), NULL, &driver) != NSA_OK) fail_msg("%s", nsa_last_error());
  return driver;
}

/* Every way in which a driver can be no good has its own sentence. Runs first: an opened driver
 * stays open. */
static void test_bad_drivers(void **state) {
  const nsai_driver *driver;
  assert_int_equal(nsai_driver_open("/nonexistent/libcuda.so.1", NULL, &driver), NSA_E_NO_DRIVER);
  assert_non_null(strstr(nsa_last_error(), "/nonexistent/libcuda.so.1"));
  assert_non_null(strstr(nsa_last_error(), "runtime.driver_path"));
  assert_int_equal(nsai_driver_open("libm.so.6", NULL, &driver), NSA_E_NO_DRIVER);
  assert_non_null(strstr(nsa_last_error(), "older than CUDA 12.0"));
  assert_int_equal(nsai_driver_open("/etc/passwd", NULL, &driver), NSA_E_NO_DRIVER);
  setenv("FAKE_CUDA_HIDE", "cuLaunchKernelEx", 1);
  assert_int_equal(nsai_driver_open(machine_module(), NULL, &driver), NSA_E_NO_DRIVER);
  assert_non_null(strstr(nsa_last_error(), "no function cuLaunchKernelEx"));
  unsetenv("FAKE_CUDA_HIDE");
  setenv("FAKE_CUDA_INIT", "100", 1);
  assert_int_equal(nsai_driver_open(machine_module(), NULL, &driver), NSA_E_NO_DEVICE);
  assert_non_null(strstr(nsa_last_error(), "CUDA_VISIBLE_DEVICES"));
  setenv("FAKE_CUDA_INIT", "34", 1);
  assert_int_equal(nsai_driver_open(machine_module(), NULL, &driver), NSA_E_NO_DRIVER);
  assert_non_null(strstr(nsa_last_error(), "stub"));
  setenv("FAKE_CUDA_INIT", "3", 1);
  assert_int_equal(nsai_driver_open(machine_module(), NULL, &driver), NSA_E_FORKED);
  assert_non_null(strstr(nsa_last_error(), "exec"));
  setenv("FAKE_CUDA_INIT", "803", 1);
  assert_int_equal(nsai_driver_open(machine_module(), NULL, &driver), NSA_E_NO_DRIVER);
  assert_non_null(strstr(nsa_last_error(), "803"));
  assert_null(driver);
  unsetenv("FAKE_CUDA_INIT");
}

static void test_open_twice(void **state) {
  const nsai_driver *driver = open_fake();
  assert_ptr_equal(driver, open_fake());
  assert_int_equal(driver->version, 13000);
  assert_true(driver->tried.count >= 1);
  setenv("FAKE_CUDA_HIDE", "cuGraphLaunch", 1); /* known already: not resolved again */
  assert_ptr_equal(driver, open_fake());
  unsetenv("FAKE_CUDA_HIDE");
}

static void test_foreign_codes(void **state) {
  const nsai_driver *driver = open_fake();
  assert_int_equal(NSAI_CUDA(driver, cuMemFree(0)), NSA_E_CUDA);
  assert_string_equal(nsa_last_error(),
                      "cuMemFree: CUDA_ERROR_NOT_SUPPORTED (801): CUDA_ERROR_NOT_SUPPORTED");
}

static void test_driver_major(void **state) {
  assert_int_equal(nsai_driver_check_major(13000, 13), NSA_OK);
  assert_int_equal(nsai_driver_check_major(13010, 12), NSA_OK);
  assert_int_equal(nsai_driver_check_major(12080, 13), NSA_E_NO_DRIVER);
  assert_non_null(strstr(nsa_last_error(), "serves CUDA 12.8"));
}

static void test_choice(void **state) {
  const nsai_driver *driver = open_fake();
  static const char *const good[] = { NULL, "auto", "1", "cuda:1", "0000:11:00.0", "GPU-abab" };
  nsai_device device;
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    if (nsai_device_init(driver, good[i], &device) != NSA_OK) fail_msg("%s", nsa_last_error());
    assert_int_equal(device.ordinal, 1);
    assert_true(device.retained);
    assert_string_equal(device.name, "Fake H200");
    assert_string_equal(device.arch->name, "sm_90a");
    assert_string_equal(device.uuid, "GPU-abababab-abab-abab-abab-abababababab");
    assert_int_equal(device.sm_count, 132);
    assert_int_equal(device.shared_bytes, 232448);
    nsai_device_fini(&device);
  }
  static const struct {
    const char *which;
    nsa_status status;
  } bad[] = { { "0", NSA_E_UNSUPPORTED },        { "2", NSA_E_NO_DEVICE },
              { "cuda:0", NSA_E_UNSUPPORTED },   { "cuda:2", NSA_E_NO_DEVICE },
              { "GPU-a", NSA_E_NO_DEVICE },      { "GPU-0", NSA_E_NO_DEVICE },
              { "gpu", NSA_E_NO_DEVICE },        { "1x", NSA_E_NO_DEVICE },
              { "99999999999", NSA_E_NO_DEVICE } };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    assert_int_equal(nsai_device_init(driver, bad[i].which, &device), bad[i].status);
}

/* A host of two equal GPUs, a third of another kind, and one that is too old. */
static void test_host(void **state) {
  const nsai_driver *driver = open_fake();
  static const struct {
    const char *which;
    int ordinal; /* -1: none is found */
  } names[] = {
    { "auto", 0 },          { "2", 2 },        { "cuda:3", 3 }, { "0000:12:00.0", 2 },
    { "0000:14:00.0", -1 }, { "GPU-aaaa", 2 }, { "GPU-a9", 3 }, { "GPU-a", -1 },
    { "cuda:4", -1 },       { "all", -1 },
  };
  static const char *const kinds[] = { "Fake H200", "Fake H200", "Fake A100", "Fake T4" };
  setenv("FAKE_CUDA_HOST",
         "90 132 232448 Fake H200;90 132 232448 Fake H200;80 108 166912 Fake A100;"
         "75 40 65536 Fake T4",
         1);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    nsai_cu_device found = -1;
    nsa_status status = nsai_device_find(driver, names[i].which, &found);
    assert_int_equal(status, names[i].ordinal < 0 ? NSA_E_NO_DEVICE : NSA_OK);
    if (!status) assert_int_equal(found, names[i].ordinal);
  }
  for (int i = 0; i < 4; i++) {
    nsai_device device;
    assert_int_equal(nsai_device_describe(driver, i, &device), i == 3 ? NSA_E_UNSUPPORTED : NSA_OK);
    assert_string_equal(device.name, kinds[i]);
    assert_int_equal(device.sm_count, i < 2 ? 132 : i == 2 ? 108 : 40);
  }
  setenv("FAKE_CUDA_LOST", "1", 1);
  nsai_device device;
  assert_int_equal(nsai_device_init(driver, "cuda:1", &device), NSA_E_CUDA);
  unsetenv("FAKE_CUDA_LOST");
  unsetenv("FAKE_CUDA_HOST");
}

/* A host that has a current context has chosen its device, and keeps its context. */
static void test_current_context(void **state) {
  nsai_device device;
  setenv("FAKE_CUDA_CURRENT", "1", 1);
  assert_int_equal(nsai_device_init(open_fake(), "auto", &device), NSA_OK);
  assert_int_equal(device.ordinal, 1);
  assert_false(device.retained);
  assert_non_null(device.context);
  nsai_device_fini(&device);
  setenv("FAKE_CUDA_CURRENT", "0", 1);
  assert_int_equal(nsai_device_init(open_fake(), "auto", &device), NSA_E_UNSUPPORTED);
  assert_int_equal(nsai_device_init(open_fake(), "1", &device), NSA_OK);
  assert_true(device.retained);
  nsai_device_fini(&device);
  unsetenv("FAKE_CUDA_CURRENT");
}

static void test_deviceless(void **state) {
  nsai_device device;
  assert_int_equal(nsai_device_init_arch("sm_86", &device), NSA_OK);
  assert_int_equal(device.shared_bytes, 99 * 1024);
  assert_null(device.driver);
  nsai_device_fini(&device);
  assert_int_equal(nsai_device_init_arch("sm_90", &device), NSA_E_UNSUPPORTED);
}

/* Writes a report into 64 KiB; returns its length. */
static size_t report(const nsai_report_inputs *inputs, bool json, char text[65536]) {
  nsai_writer out = nsai_writer_open(text, 65536);
  nsai_report_write(inputs, json, &out);
  assert_true(out.used < out.size && strlen(text) == out.used);
  return out.used;
}

/* On a machine with the fake GPU and on one without a driver. */
static void test_report(void **state) {
  static char text[65536];
  char cut[100];
  nsai_report_inputs inputs = { .driver_path = machine_module(), .cache_dir = "/nonexistent/nsa" };
  size_t length = report(&inputs, true, text);
  assert_non_null(strstr(text, "\"arch\": \"sm_90a\""));
  assert_non_null(strstr(text, "{\"path\": \"/nonexistent/nsa\", \"state\": \"does not exist\""));
  nsai_writer out = nsai_writer_open(cut, sizeof cut);
  nsai_report_write(&inputs, true, &out);
  assert_int_equal(out.used, length);
  inputs.driver_path = "/nonexistent/libcuda.so.1";
  report(&inputs, false, text);
  assert_non_null(strstr(text, "No usable NVIDIA driver: libcuda.so.1 was found at none of the 1"));
  assert_non_null(strstr(text, "tried /nonexistent/libcuda.so.1: No such file"));
  inputs.device = "cpu";
  report(&inputs, false, text);
  assert_non_null(strstr(text, "The CPU device is used"));
}

static void test_json_strings(void **state) {
  char text[64];
  nsai_writer writer = nsai_writer_open(text, sizeof text);
  nsai_write_json(&writer, "a\"\\\n\x7f\xc3\xa9\xff");
  assert_string_equal(text, "\"a\\\"\\\\\\u000a\\u007f\xc3\xa9\\ufffd\"");
}

/* A file of library names as the loader writes it, whole and cut anywhere. */
static void test_loader_cache(void **state) {
  unsigned char data[48 + 24 + 32] = "glibc-ld.so.cache1.1";
  char path[64];
  uint32_t count = 1, name = 72, file = 80;
  memcpy(data + 20, &count, 4);
  memcpy(data + 48 + 4, &name, 4);
  memcpy(data + 48 + 8, &file, 4);
  memcpy(data + 72, "libx.so", 8);
  memcpy(data + 80, "/lib/libx.so.1", 15);
  assert_true(nsai_ldcache_lookup(data, sizeof data, "libx.so", path, sizeof path));
  assert_string_equal(path, "/lib/libx.so.1");
  assert_false(nsai_ldcache_lookup(data, sizeof data, "liby.so", path, sizeof path));
  for (size_t n = 0; n < 95; n++)
    assert_false(nsai_ldcache_lookup(data, n, "libx.so", path, sizeof path));
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_bad_drivers),   cmocka_unit_test(test_open_twice),
    cmocka_unit_test(test_foreign_codes), cmocka_unit_test(test_driver_major),
    cmocka_unit_test(test_choice),        cmocka_unit_test(test_current_context),
    cmocka_unit_test(test_deviceless),    cmocka_unit_test(test_report),
    cmocka_unit_test(test_json_strings),  cmocka_unit_test(test_loader_cache),
    cmocka_unit_test(test_host),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
