/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The table of environment variables, and how they enter a configuration.
 */
#include "support/cmocka_all.h"

#include "config/env.h"
#include "config/schema.h"

#include <nsa/log.h>

static void clear(void) {
  const nsai_env_var *var;
  for (size_t i = 0; (var = nsai_env_at(i)); i++) unsetenv(var->name);
}

static nsa_status load(const char *const *overrides, nsai_config **out) {
  nsai_config_request request = { .text = "nsa: 1\nruntime: {jit: never, compile_jobs: 1}\n",
                                  .overrides = overrides,
                                  .skip_system_file = true };
  return nsai_config_load(&request, out);
}

/* Sorted, prefixed, each key once, and each has a built-in value to fall back to. */
static void test_table(void **state) {
  const nsai_env_var *var, *before = NULL;
  bool seen[NSAI_KEY_COUNT] = { false };
  size_t count = 0;
  for (; (var = nsai_env_at(count)); before = var, count++) {
    assert_int_equal(strncmp(var->name, "NSA_", 4), 0);
    if (before) assert_true(strcmp(before->name, var->name) < 0);
    assert_false(seen[var->key]);
    seen[var->key] = true;
    assert_non_null(nsai_keys[var->key].fallback);
  }
  assert_int_equal(count, 15);
}

static void test_all_variables(void **state) {
  clear();
  setenv("NSA_CACHE_DIR", "/cache", 1);
  setenv("NSA_CACHE_MODE", "read_only", 1);
  setenv("NSA_CHECK_INPUTS", "full", 1);
  setenv("NSA_COMPILE_JOBS", "3", 1);
  setenv("NSA_CUBLASLT_PATH", "/lt", 1);
  setenv("NSA_DEVICE", "2", 1);
  setenv("NSA_DRIVER_PATH", "/driver", 1);
  setenv("NSA_DUMP_DIR", "/dump", 1);
  setenv("NSA_JIT", "prepare_only", 1);
  setenv("NSA_LOG_LEVEL", "debug", 1);
  setenv("NSA_NCCL_PATH", "/nccl", 1);
  setenv("NSA_NVRTC_PATH", "/nvrtc", 1);
  setenv("NSA_RECORDS", "false", 1);
  setenv("NSA_TEMPLATES_DIR", "/templates", 1);
  setenv("NSA_TUNE_LEVEL", "normal", 1);
  nsai_config *config;
  assert_int_equal(load(NULL, &config), NSA_OK);
  assert_string_equal(config->runtime.cache_dir, "/cache");
  assert_int_equal(config->runtime.cache_mode, NSAI_CACHE_READ_ONLY);
  assert_int_equal(config->runtime.check_inputs, NSAI_CHECK_FULL);
  assert_int_equal(config->runtime.compile_jobs, 3);
  assert_string_equal(config->runtime.cublaslt_path, "/lt");
  assert_string_equal(config->runtime.device, "2");
  assert_string_equal(config->runtime.driver_path, "/driver");
  assert_string_equal(config->runtime.dump_dir, "/dump");
  assert_int_equal(config->runtime.jit, NSAI_JIT_PREPARE_ONLY);
  assert_int_equal(config->runtime.log_level, NSA_LOG_DEBUG);
  assert_string_equal(config->runtime.nccl_path, "/nccl");
  assert_string_equal(config->runtime.nvrtc_path, "/nvrtc");
  assert_string_equal(config->runtime.templates_dir, "/templates");
  assert_int_equal(config->tuning.level, NSAI_LEVEL_NORMAL);
  assert_false(config->tuning.records);
  const nsai_env_var *var;
  for (size_t i = 0; (var = nsai_env_at(i)); i++)
    assert_int_equal(config->origin[var->key].layer, NSAI_LAYER_ENVIRONMENT);
  nsai_config_destroy(config);
  clear();
}

/* All names that begin with NSA_ and are none of the table, unless they belong to others. */
static void test_strangers(void **state) {
  static const char *const names[][2] = { { "NSA_CHACHE_DIR", "NSA_CACHE_DIR" },
                                          { "NSA_LOG", "NSA_LOG_LEVEL" },
                                          { "NSA_jit", "NSA_JIT" },
                                          { "NSA_ZORK", NULL },
                                          { "NSA_", NULL } };
  enum { NAMES = sizeof names / sizeof names[0] };
  bool seen[NAMES] = { false };
  char longest[200];
  nsai_env_stranger stranger = { 0 };
  clear();
  assert_false(nsai_env_next_stranger(&stranger));
  setenv("NSA_JIT", "never", 1);
  setenv("NSA_EMPTY", "", 1);
  setenv("NSA_TEST_DEVICE", "cuda", 1);
  setenv("NSA_CI_ARCHS", "sm_80", 1);
  setenv("NSA_PYTHON_LIBRARY", "/x", 1);
  setenv("OTHER_NSA_JIT", "1", 1);
  stranger.next = 0;
  assert_false(nsai_env_next_stranger(&stranger));
  for (int i = 0; i < NAMES; i++) setenv(names[i][0], "x", 1);
  for (stranger.next = 0; nsai_env_next_stranger(&stranger);) {
    int i = 0;
    while (i < NAMES && (strlen(names[i][0]) != stranger.length ||
                         strncmp(names[i][0], stranger.name, stranger.length) != 0))
      i++;
    assert_in_range(i, 0, NAMES - 1);
    assert_false(seen[i]);
    seen[i] = true;
    if (names[i][1])
      assert_string_equal(stranger.nearest, names[i][1]);
    else
      assert_null(stranger.nearest);
  }
  for (int i = 0; i < NAMES; i++) assert_true(seen[i]);
  for (int i = 0; i < NAMES; i++) unsetenv(names[i][0]);
  memset(longest, 'X', sizeof longest);
  memcpy(longest, "NSA_JIT", strlen("NSA_JIT"));
  longest[sizeof longest - 1] = '\0';
  setenv(longest, "x", 1);
  stranger.next = 0;
  assert_true(nsai_env_next_stranger(&stranger));
  assert_int_equal(stranger.length, sizeof longest - 1);
  assert_null(stranger.nearest);
  unsetenv(longest);
  clear();
}

/* The first configuration of a process warns, without the value, and the next ones do not. */
static void test_warns_once(void **state) {
  nsai_config *config;
  clear();
  setenv("NSA_CHACHE_DIR", "secret", 1);
  setenv("NSA_ZORK", "secret", 1);
  nsai_config_request without = { .text = "nsa: 1\n",
                                  .skip_system_file = true,
                                  .skip_environment = true };
  assert_int_equal(nsai_config_load(&without, &config), NSA_OK);
  assert_string_equal(config->warnings, "");
  nsai_config_destroy(config);
  assert_int_equal(load(NULL, &config), NSA_OK);
  assert_non_null(strstr(config->warnings,
                         "environment: warning: NSA_CHACHE_DIR: unknown variable, "
                         "which changes nothing; did you mean NSA_CACHE_DIR?"));
  assert_non_null(strstr(config->warnings,
                         "environment: warning: NSA_ZORK: unknown variable, which "
                         "changes nothing; `nsa-autotune show env` lists those "
                         "of libnsa"));
  assert_null(strstr(config->warnings, "secret"));
  nsai_config_destroy(config);
  assert_int_equal(load(NULL, &config), NSA_OK);
  assert_string_equal(config->warnings, "");
  nsai_config_destroy(config);
  unsetenv("NSA_CHACHE_DIR");
  unsetenv("NSA_ZORK");
  clear();
}

/* Above the text, below overrides; an empty variable counts as unset. */
static void test_strength(void **state) {
  const char *const overrides[] = { "runtime.compile_jobs=5", NULL };
  nsai_config *config;
  clear();
  setenv("NSA_COMPILE_JOBS", "3", 1);
  setenv("NSA_JIT", "", 1);
  assert_int_equal(load(NULL, &config), NSA_OK);
  assert_int_equal(config->runtime.compile_jobs, 3);
  assert_int_equal(config->runtime.jit, NSAI_JIT_NEVER);
  nsai_config_destroy(config);
  assert_int_equal(load(overrides, &config), NSA_OK);
  assert_int_equal(config->runtime.compile_jobs, 5);
  nsai_config_destroy(config);
  clear();
}

static void test_bad_values(void **state) {
  nsai_config *config;
  clear();
  setenv("NSA_CACHE_DIR", "null", 1); /* a value as it is, not YAML */
  setenv("NSA_JIT", "nevr", 1);
  setenv("NSA_DUMP_DIR", "/\xFF", 1);
  setenv("NSA_RECORDS", "0", 1);
  setenv("NSA_TUNE_LEVEL", "exhaustiv", 1);
  assert_int_equal(load(NULL, &config), NSA_E_CONFIG);
  assert_null(config);
  assert_string_equal(
      nsa_last_error(),
      "environment:1:15: error: runtime.cache_dir: expected an absolute path, or "
      "null; found 'null', which would depend on the working directory\n"
      "    NSA_CACHE_DIR=null\n"
      "                  ^\n"
      "environment:1:1: error: not valid UTF-8\n"
      "    NSA_DUMP_DIR=/?\n"
      "    ^\n"
      "environment:1:9: error: runtime.jit: expected on_demand | prepare_only | "
      "never; found 'nevr': did you mean 'never'?\n"
      "    NSA_JIT=nevr\n"
      "            ^\n"
      "environment:1:13: error: tuning.records: expected true | false; found '0': "
      "did you mean 'false'?\n"
      "    NSA_RECORDS=0\n"
      "                ^\n"
      "environment:1:16: error: tuning.level: expected heuristic | quick | normal | "
      "exhaustive; found 'exhaustiv': did you mean 'exhaustive'?\n"
      "    NSA_TUNE_LEVEL=exhaustiv\n"
      "                   ^");
  clear();
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_warns_once), /* before every other that loads */
    cmocka_unit_test(test_table),         cmocka_unit_test(test_strangers),
    cmocka_unit_test(test_all_variables), cmocka_unit_test(test_strength),
    cmocka_unit_test(test_bad_values),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
