/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Clocks and temperature with an NVML that has no hardware (fake_nvml.c), and without any.
 */
#include "support/cmocka_all.h"

#include "driver/sensors.h"

#include <dlfcn.h>

void *__real_dlopen(const char *path, int flags);
void *__wrap_dlopen(const char *path, int flags);
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);

static const char gpu[] = "0000:11:00.0";
static const char *nvml;   /* the file that is opened as NVML; NULL: there is none */
static bool memory_is_out; /* calloc fails */
static char logged[4096];  /* the last line at DEBUG */

/* Whatever NVML this machine has is out of reach. */
void *__wrap_dlopen(const char *path, int flags) {
  if (!strstr(path, "libnvidia-ml")) return __real_dlopen(path, flags);
  return nvml ? __real_dlopen(nvml, flags) : NULL;
}

void *__wrap_calloc(size_t count, size_t size) {
  return memory_is_out ? NULL : __real_calloc(count, size);
}

static void keep_line(void *user, int32_t level, const char *component, const char *text) {
  (void)user, (void)component;
  if (level == NSA_LOG_DEBUG) strncpy(logged, text, sizeof logged - 1);
}

static int fake_inits(void) {
  int (*inits)(void);
  void *handle = __real_dlopen(getenv("FAKE_NVML"), RTLD_NOW | RTLD_NOLOAD);
  void *symbol = handle ? dlsym(handle, "fake_nvml_inits") : NULL;
  if (!symbol) fail_msg("the fake NVML was not opened");
  memcpy(&inits, &symbol, sizeof inits);
  dlclose(handle);
  return inits();
}

static nsai_reading read_once(const char *pci_bus_id) {
  nsai_logger logger;
  logged[0] = '\0';
  nsai_logger_init(&logger, keep_line, NULL, NSA_LOG_DEBUG);
  nsai_sensors *sensors = nsai_sensors_open(pci_bus_id, &logger);
  assert_non_null(sensors);
  nsai_reading reading = nsai_sensors_read(sensors);
  nsai_sensors_close(sensors);
  nsai_logger_fini(&logger);
  return reading;
}

static void expect(const char *pci_bus_id, nsai_reading expected) {
  nsai_reading reading = read_once(pci_bus_id);
  assert_memory_equal(&reading, &expected, sizeof reading);
}

/* Runs first: an opened library stays open. */
static void test_missing(void **state) {
  nvml = NULL;
  expect(gpu, (nsai_reading){ 0 });
  assert_non_null(strstr(logged, "0000:11:00.0 are unknown"));
  assert_non_null(strstr(logged, "libnvidia-ml.so.1"));
  assert_null(strchr(logged, '\n'));
  assert_null(strstr(logged, "(null)"));
  nvml = "libm.so.6"; /* a library of that name that is none */
  expect(gpu, (nsai_reading){ 0 });
  assert_non_null(strstr(logged, "no function nvmlErrorString"));
  nvml = getenv("FAKE_NVML");
}

static void test_reading(void **state) {
  expect(gpu, (nsai_reading){ 1980, 3201, 41, 118 });
  assert_string_equal(logged, "");
  assert_int_equal(fake_inits(), 0);
}

/* A figure that fails takes no other along. */
static void test_partial(void **state) {
  static const struct {
    const char *fails;
    nsai_reading reading;
  } cases[] = { { "sm", { 0, 3201, 41, 118 } },
                { "memory", { 1980, 0, 41, 118 } },
                { "temperature", { 1980, 3201, 0, 118 } },
                { "power", { 1980, 3201, 41, 0 } } };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    setenv("FAKE_NVML_FAIL", cases[i].fails, 1);
    expect(gpu, cases[i].reading);
  }
  unsetenv("FAKE_NVML_FAIL");
}

/* NVML is there and does not start, or does not know the GPU; and there is no GPU to ask for. */
static void test_unknown(void **state) {
  setenv("FAKE_NVML_FAIL", "init", 1);
  expect(gpu, (nsai_reading){ 0 });
  assert_non_null(strstr(logged, "nvmlInit_v2: Not Supported (3)"));
  unsetenv("FAKE_NVML_FAIL");
  expect("0000:10:00.0", (nsai_reading){ 0 });
  assert_non_null(strstr(logged, "nvmlDeviceGetHandleByPciBusId_v2: Not Found (6)"));
  expect("", (nsai_reading){ 0 });
  expect(NULL, (nsai_reading){ 0 });
  assert_string_equal(logged, "");
  assert_int_equal(fake_inits(), 0);
}

/* Two at once, each with an initialisation of its own. */
static void test_pairs(void **state) {
  nsai_sensors *first = nsai_sensors_open(gpu, NULL), *second = nsai_sensors_open(gpu, NULL);
  assert_int_equal(fake_inits(), 2);
  nsai_sensors_close(first);
  assert_int_equal(nsai_sensors_read(second).sm_mhz, 1980);
  nsai_sensors_close(second);
  assert_int_equal(fake_inits(), 0);
}

static void test_no_memory(void **state) {
  memory_is_out = true;
  nsai_sensors *sensors = nsai_sensors_open(gpu, NULL);
  memory_is_out = false;
  assert_null(sensors);
  assert_int_equal(nsai_sensors_read(NULL).sm_mhz, 0);
  nsai_sensors_close(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_missing), cmocka_unit_test(test_reading),
    cmocka_unit_test(test_partial), cmocka_unit_test(test_unknown),
    cmocka_unit_test(test_pairs),   cmocka_unit_test(test_no_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
