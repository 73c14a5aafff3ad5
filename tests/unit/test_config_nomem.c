/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Loading under every single failed allocation: NSA_E_NOMEM, nothing leaked (the address sanitizer
 * tells), and no false complaint about the configuration.
 */
#include "support/cmocka_all.h"

#include "config/config.h"
#include "plan/variant.h"

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);

static int countdown; /* allocations before the one that fails; below 0: none does */
static bool refused;  /* one did */

void *__wrap_calloc(size_t count, size_t size) {
  if (countdown-- == 0) {
    refused = true;
    return NULL;
  }
  return __real_calloc(count, size);
}

static const char yaml[] = "nsa: 1\n"
                           "model: {heads: 64, kv_heads: 4, head_dim: 128}\n"
                           "variants: {force: {dense: dense_sm80}, disable: [select.*]}\n"
                           "runtime: {cache_dir: /somewhere}\n"
                           "tuning: {lengths: [1Ki, 4Ki]}\n"
                           "profiles:\n"
                           "  - match: {name: 'NVIDIA*'}\n"
                           "    device: {source: somebody}\n";

/* Loads `text` with the allocation number `n` failing; returns whether it got through. */
static bool load(const char *text, int n, nsa_status expected) {
  const char *const overrides[] = { "runtime.jit=never", "variants.disable=[a*.*]",
                                    "tuning.lengths=[64]", NULL };
  nsai_config_request request = {
    .variant = nsai_variant_name_at, .text = text, .overrides = overrides, .skip_system_file = true
  };
  nsai_config *config;
  countdown = n;
  refused = false;
  nsa_status status = nsai_config_load(&request, &config);
  countdown = -1;
  if (refused) {
    assert_int_equal(status, NSA_E_NOMEM);
    assert_non_null(strstr(nsa_last_error(), "out of host memory"));
    assert_null(config);
    return false;
  }
  assert_int_equal(status, expected);
  nsai_config_destroy(config);
  return true;
}

static void run(const char *text, nsa_status expected) {
  int n = 0;
  while (!load(text, n, expected)) n++;
  assert_true(n > 1); /* the configuration itself, and its arena */
}

static void test_good(void **state) { run(yaml, NSA_OK); }

/* Enough text and problems for several chunks. */
static void test_bad(void **state) {
  char text[32768];
  int length = snprintf(text, sizeof text, "nsa: 1\n");
  for (int i = 0; i < 400; i++)
    length += snprintf(text + length, sizeof text - (size_t)length, "unknown%d: [1, 2]\n", i);
  run(text, NSA_E_CONFIG);
}

static void test_destroy_null(void **state) { nsai_config_destroy(NULL); }

int main(void) {
  countdown = -1;
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_good),
    cmocka_unit_test(test_bad),
    cmocka_unit_test(test_destroy_null),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
