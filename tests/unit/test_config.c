/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Loading a configuration: values, layers and their origins, profiles, the dump, the shipped files.
 * The diagnostics are test_config_diag.c's.
 */
#include "support/cmocka_all.h"

#include "base/log.h"
#include "config/config.h"
#include "config/diag.h"
#include "config/schema.h"
#include "plan/variant.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../comma_locale.h"
#include "config_fixture.h"

/* ---- values ---- */

static void test_builtin(void **state) {
  nsai_config *c = load_text("nsa: 1\n" MODEL, NULL);
  assert_int_equal(c->model.block, 32);
  assert_int_equal(c->model.stride, 16);
  assert_int_equal(c->model.select_block, 64);
  assert_int_equal(c->model.select_count, 16);
  assert_int_equal(c->model.select_init, 1);
  assert_int_equal(c->model.select_local, 2);
  assert_int_equal(c->model.window, 512);
  assert_int_equal(c->model.phi, NSAI_PHI_MEAN);
  assert_int_equal(c->model.gate, NSAI_GATE_LOGITS);
  assert_int_equal(c->model.per_branch, 1);
  assert_int_equal(c->model.dtype, NSA_BF16);
  assert_string_equal(c->runtime.device, "auto");
  assert_int_equal(c->runtime.jit, NSAI_JIT_ON_DEMAND);
  assert_int_equal(c->runtime.cache_limit, INT64_C(1) << 30);
  assert_int_equal(c->runtime.log_level, NSA_LOG_WARN);
  assert_int_equal(c->runtime.check_inputs, NSAI_CHECK_BASIC);
  assert_null(c->runtime.cache_dir);
  assert_int_equal(c->tuning.level, NSAI_LEVEL_QUICK);
  assert_true(c->tuning.budget_s == 600);
  assert_true(c->tuning.min_gain == 0.02);
  assert_int_equal(c->tuning.inputs, NSAI_INPUTS_BOTH);
  assert_null(c->tuning.lengths.items);
  assert_int_equal(c->tuning.lengths.count, 0);
  assert_int_equal(c->tuning.on_first_use, NSAI_LEVEL_HEURISTIC);
  assert_true(c->tuning.first_use_budget_s == 20);
  assert_true(c->tuning.records);
  assert_int_equal(c->thresholds.select_dense_below, -1);
  assert_string_equal(c->warnings, "");
  nsai_config_destroy(c);
}

static const char full[] =
    "nsa: 1\n"
    "model:\n"
    "  heads: 32\n"
    "  kv_heads: 8\n"
    "  head_dim_qk: 192\n"
    "  head_dim_v: 64\n"
    "  compress: {block: 64, stride: 32, phi: mlp, hidden: 128, activation: gelu}\n"
    "  select: {block: 128, count: 8, init: 2, local: 3}\n"
    "  window: 1k\n"
    "  gate: mlp\n"
    "  gate_mlp: {channels: 2048, hidden: 64, activation: relu}\n"
    "  kv_sharing: shared\n"
    "  causal: true\n"
    "  dtype: f32\n"
    "serving: {max_tokens: 64Ki, max_kv_tokens: 1M, max_kv_len: \"128k\", max_seqs: 256, "
    "max_q_len: 4, page_size: 32, kv_dtype: e4m3, cmp_dtype: e4m3}\n"
    "runtime:\n"
    "  device: cpu\n"
    "  jit: prepare_only\n"
    "  cache_dir: \"/c \\u00fc\\\"\\\\\\e\\u2028\"\n"
    "  cache_mode: off\n"
    "  cache_limit: 512Mi\n"
    "  trusted_keys: []\n"
    "  log_level: trace\n"
    "  recompute: never\n"
    "  check_inputs: full\n"
    "  compile_jobs: 2\n"
    "  nvrtc_path: /n\n"
    "  cublaslt_path: '/l # t'\n"
    "  driver_path: /d\n"
    "  line_info: true\n"
    "  count_reads: true\n"
    "  dump_dir: /dump\n"
    "  templates_dir: /t\n"
    "tuning:\n"
    "  level: exhaustive\n"
    "  budget: 1h30m0.25s\n"
    "  min_gain: 0.5\n"
    "  inputs: correlated\n"
    "  lengths: [64, \"1k\", 64Ki]\n"
    "  batches: [1, 32]\n"
    "  on_first_use: normal\n"
    "  first_use_budget: 1s\n"
    "  records: false\n"
    "variants:\n"
    "  force: {select: select_topn, dense: \"dense_sm80\"}\n"
    "  disable: [attend_*.*_sm80, '*.dense_gem?']\n"
    "thresholds: {select_dense_below: 2000}\n"
    "device: {sms: 132, smem_per_block: 227Ki, l2: 60Mi, hbm_gbps: 4280.0125, bf16_tflops: 0.1,\n"
    "  source: 'a: \"b\" # c', measured: true}\n";

static void test_every_key(void **state) {
  nsai_config *c = load_text(full, NULL);
  assert_int_equal(c->model.heads, 32);
  assert_int_equal(c->model.kv_heads, 8);
  assert_int_equal(c->model.head_dim_qk, 192);
  assert_int_equal(c->model.head_dim_v, 64);
  assert_int_equal(c->model.block, 64);
  assert_int_equal(c->model.stride, 32);
  assert_int_equal(c->model.phi, NSAI_PHI_MLP);
  assert_int_equal(c->model.phi_hidden, 128);
  assert_int_equal(c->model.phi_activation, NSAI_ACT_GELU);
  assert_int_equal(c->model.select_block, 128);
  assert_int_equal(c->model.select_count, 8);
  assert_int_equal(c->model.select_init, 2);
  assert_int_equal(c->model.select_local, 3);
  assert_int_equal(c->model.window, 1000);
  assert_int_equal(c->model.gate, NSAI_GATE_MLP);
  assert_int_equal(c->model.gate_channels, 2048);
  assert_int_equal(c->model.gate_hidden, 64);
  assert_int_equal(c->model.gate_activation, NSAI_ACT_RELU);
  assert_int_equal(c->model.per_branch, 0);
  assert_int_equal(c->model.dtype, NSA_F32);
  assert_int_equal(c->serving.max_tokens, 65536);
  assert_int_equal(c->serving.max_kv_tokens, 1000000);
  assert_int_equal(c->serving.max_kv_len, 128000);
  assert_int_equal(c->serving.max_seqs, 256);
  assert_int_equal(c->serving.max_q_len, 4);
  assert_int_equal(c->serving.page_size, 32);
  assert_int_equal(c->serving.kv_dtype, NSA_E4M3);
  assert_int_equal(c->serving.cmp_dtype, NSA_E4M3);
  assert_string_equal(c->runtime.device, "cpu");
  assert_int_equal(c->runtime.jit, NSAI_JIT_PREPARE_ONLY);
  assert_string_equal(c->runtime.cache_dir, "/c \xC3\xBC\"\\\x1B\xE2\x80\xA8");
  assert_int_equal(c->runtime.cache_mode, NSAI_CACHE_OFF);
  assert_int_equal(c->runtime.cache_limit, 512 << 20);
  assert_int_equal(c->runtime.log_level, NSA_LOG_TRACE);
  assert_true(c->runtime.line_info);
  assert_true(c->runtime.count_reads);
  assert_int_equal(c->runtime.recompute, NSAI_RECOMPUTE_NEVER);
  assert_int_equal(c->runtime.check_inputs, NSAI_CHECK_FULL);
  assert_int_equal(c->runtime.compile_jobs, 2);
  assert_string_equal(c->runtime.nvrtc_path, "/n");
  assert_string_equal(c->runtime.cublaslt_path, "/l # t");
  assert_string_equal(c->runtime.driver_path, "/d");
  assert_string_equal(c->runtime.dump_dir, "/dump");
  assert_string_equal(c->runtime.templates_dir, "/t");
  assert_int_equal(c->tuning.level, NSAI_LEVEL_EXHAUSTIVE);
  assert_true(c->tuning.budget_s == 5400.25);
  assert_true(c->tuning.min_gain == 0.5);
  assert_int_equal(c->tuning.inputs, NSAI_INPUTS_CORRELATED);
  assert_int_equal(c->tuning.lengths.count, 3);
  assert_int_equal(c->tuning.lengths.items[0], 64);
  assert_int_equal(c->tuning.lengths.items[1], 1000);
  assert_int_equal(c->tuning.lengths.items[2], 65536);
  assert_int_equal(c->tuning.batches.count, 2);
  assert_int_equal(c->tuning.batches.items[1], 32);
  assert_int_equal(c->tuning.on_first_use, NSAI_LEVEL_NORMAL);
  assert_true(c->tuning.first_use_budget_s == 1);
  assert_false(c->tuning.records);
  assert_string_equal(c->variants.force[NSAI_STAGE_SELECT], "select_topn");
  assert_string_equal(c->variants.force[NSAI_STAGE_DENSE], "dense_sm80");
  assert_null(c->variants.force[NSAI_STAGE_COMPRESS]);
  assert_int_equal(c->variants.disable.count, 2);
  assert_string_equal(c->variants.disable.items[1], "*.dense_gem?");
  assert_int_equal(c->thresholds.select_dense_below, 2000);
  assert_int_equal(c->device.sms, 132);
  assert_int_equal(c->device.smem_per_block, 227 * 1024);
  assert_int_equal(c->device.l2, 60 << 20);
  assert_true(c->device.hbm_gbps == 4280.0125);
  assert_true(c->device.bf16_tflops == 0.1);
  assert_string_equal(c->device.source, "a: \"b\" # c");
  assert_true(c->device.measured);
  nsai_config_destroy(c);
}

static void expect_device(const char *device, bool good) {
  char text[128];
  snprintf(text, sizeof text, "nsa: 1\nruntime: {device: %s}\n", device);
  nsai_config_request request = REQUEST(.text = text);
  nsai_config *c;
  nsa_status status = nsai_config_load(&request, &c);
  if ((status == NSA_OK) != good) fail_msg("%s: status %d", device, status);
  if (c) assert_string_equal(c->runtime.device, device);
  nsai_config_destroy(c);
}

static void test_devices(void **state) {
  static const char *const good[] = { "auto",
                                      "cpu",
                                      "0",
                                      "15",
                                      "0000:3b:00.0",
                                      "3b:00.0",
                                      "3B:00",
                                      "00000000:3b:00.0",
                                      "GPU-5fd4f087-86f3-7a43-b711-4771313afc50",
                                      "cuda:0",
                                      "cuda:9999" };
  static const char *const bad[] = { "-1",        "12345",      "000:3b:00.0", "3b:0.0",
                                     "3b:00.0.0", "1:2:3:4",    "GPU-5fd4",    "cuda:",
                                     "cuda",      "cuda:10000", "h200" };
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) expect_device(good[i], true);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) expect_device(bad[i], false);
}

/* ---- layers ---- */

static void test_layers(void **state) {
  const char *const overrides[] = { "runtime.compile_jobs=6", "runtime.cache_dir=", NULL };
  write_file("nsa: 1\n" MODEL
             "runtime: {compile_jobs: 1, jit: never, cache_dir: /f, line_info: true}\n"
             "variants: {force: {dense: dense_sm80, select: select_topn}, disable: [compress.*, "
             "importance.*]}\n",
             0600);
  setenv("NSA_COMPILE_JOBS", "5", 1);
  setenv("NSA_DUMP_DIR", "/env", 1);
  nsai_config *c = load(&(nsai_config_request){
      .variant = nsai_variant_name_at,
      .path = file_path,
      .text =
          "nsa: 1\nruntime: {compile_jobs: 2, jit: on_demand}\n"
          "variants: {force: {dense: dense_gemm}, disable: [compress.*]}\nmodel: {window: 256}\n",
      .name = "text",
      .overrides = overrides,
      .skip_system_file = true });
  unsetenv("NSA_COMPILE_JOBS");
  unsetenv("NSA_DUMP_DIR");
  assert_int_equal(c->runtime.compile_jobs, 6);
  assert_int_equal(c->runtime.jit, NSAI_JIT_ON_DEMAND);
  assert_null(c->runtime.cache_dir);
  assert_string_equal(c->runtime.dump_dir, "/env");
  assert_true(c->runtime.line_info);
  assert_int_equal(c->model.heads, 64);
  assert_int_equal(c->model.window, 256);
  assert_string_equal(c->variants.force[NSAI_STAGE_DENSE], "dense_gemm"); /* key by key */
  assert_string_equal(c->variants.force[NSAI_STAGE_SELECT], "select_topn");
  assert_int_equal(c->variants.disable.count, 1); /* lists are replaced */

  char line[256];
  snprintf(line, sizeof line, "  line_info: true                               # %s:3\n",
           file_path);
  expect_in_dump(c, line);
  expect_in_dump(
      c, "  compile_jobs: 6                               # override runtime.compile_jobs\n");
  expect_in_dump(c,
                 "  cache_dir: null                               # override runtime.cache_dir\n");
  expect_in_dump(c, "  jit: on_demand                                # text:2\n");
  expect_in_dump(c, "  dump_dir: \"/env\"                              # env NSA_DUMP_DIR\n");
  expect_in_dump(c, "  log_level: warn                               # built-in\n");
  assert_int_equal(c->origin[NSAI_KEY_MODEL_WINDOW].layer, NSAI_LAYER_TEXT);
  assert_int_equal(c->origin[NSAI_KEY_MODEL_WINDOW].mark.line, 4);
  assert_int_equal(c->origin[NSAI_KEY_MODEL_WINDOW].mark.column, 17);
  nsai_config_destroy(c);
  remove_file();
}

static void test_overrides(void **state) {
  const char *const overrides[] = { "model.head_dim=64",
                                    "variants.disable=[compress.*, importance.*]",
                                    "model.select={count: 8, init: 0}",
                                    "variants.force.dense=dense_sm80",
                                    "tuning.lengths=[1Ki, 2Ki]",
                                    "tuning.budget=90s",
                                    "device.source=a: b # c",
                                    "serving=",
                                    NULL };
  nsai_config *c = load_text("nsa: 1\nmodel: {heads: 4, kv_heads: 4, head_dim_qk: 192, "
                             "head_dim_v: 128}\n",
                             overrides);
  assert_int_equal(c->model.head_dim_qk, 64);
  assert_int_equal(c->model.head_dim_v, 64);
  assert_int_equal(c->model.select_count, 8);
  assert_int_equal(c->model.select_init, 0);
  assert_int_equal(c->model.select_local, 2);
  assert_int_equal(c->variants.disable.count, 2);
  assert_string_equal(c->variants.force[NSAI_STAGE_DENSE], "dense_sm80");
  assert_int_equal(c->tuning.lengths.count, 2);
  assert_int_equal(c->tuning.lengths.items[1], 2048);
  assert_true(c->tuning.budget_s == 90);
  assert_string_equal(c->device.source, "a: b # c");
  nsai_config_destroy(c);
}

static void test_bad_overrides(void **state) {
  const char *const overrides[] = { "runtime.jit",         "runtime.jti=never",
                                    "profiles=[]",         "model.select={count: 8, inti: 0}",
                                    "variants.disable=[a", "\xFF=1",
                                    "runtime=never",       NULL };
  nsai_config_request request = REQUEST(.text = "nsa: 1\n", .overrides = overrides);
  nsai_config *c;
  assert_int_equal(nsai_config_load(&request, &c), NSA_E_CONFIG);
  static const char expected[] =
      "override:1:1: error: an override is written key=value, like runtime.jit=never\n"
      "    runtime.jit\n"
      "    ^\n"
      "override:1:1: error: runtime.jti: unknown key; did you mean 'jit'?\n"
      "    runtime.jti=never\n"
      "    ^\n"
      "override:1:1: error: profiles: unknown key; ";
  assert_memory_equal(nsa_last_error(), expected, strlen(expected));
  assert_non_null(strstr(nsa_last_error(), "override:1:25: error: model.select.inti: unknown key; "
                                           "did you mean 'init'?\n"
                                           "    model.select={count: 8, inti: 0}\n"
                                           "                            ^\n"));
  assert_non_null(strstr(nsa_last_error(), "override:1:20: error: not YAML: "));
  assert_non_null(strstr(nsa_last_error(), "override:1:1: error: not valid UTF-8\n"));
  assert_non_null(strstr(nsa_last_error(), "override:1:9: error: runtime: expected a mapping"));
}

/* A rule broken between two sources is told at the stronger one. */
static void test_rule_across_layers(void **state) {
  const char *const overrides[] = { "model.compress.block=24", NULL };
  expect_failure(&REQUEST(.text = "nsa: 1\n" MODEL, .overrides = overrides), NSA_E_CONFIG,
                 "override:1:22: error: model.compress.stride: 16 does not divide the block: "
                 "model.compress.block is 24 (override:1); ");
}

static void test_system_file(void **state) {
  nsai_config_request request = { .variant = nsai_variant_name_at,
                                  .text = "nsa: 1\nruntime: {line_info: true}\n",
                                  .system_path = file_path,
                                  .skip_environment = true };
  write_file("nsa: 1\nruntime: {jit: never, line_info: false}\n", 0644);
  nsai_config *c = load(&request);
  bool is_root = geteuid() == 0;
  assert_int_equal(c->runtime.jit, is_root ? NSAI_JIT_NEVER : NSAI_JIT_ON_DEMAND);
  assert_true(c->runtime.line_info);
  assert_int_equal(strlen(c->warnings) == 0, is_root);
  nsai_config_destroy(c);

  assert_int_equal(chmod(file_path, 0664), 0); /* the group could have written it */
  c = load(&request);
  assert_int_equal(c->runtime.jit, NSAI_JIT_ON_DEMAND);
  assert_non_null(strstr(c->warnings, "f.yaml: warning: ignored: the system's configuration must"));
  nsai_config_destroy(c);
  remove_file();

  c = load(&request); /* no file is no warning */
  assert_string_equal(c->warnings, "");
  nsai_config_destroy(c);
}

static void test_files_that_cannot_be_read(void **state) {
  nsai_config_request request = { .variant = nsai_variant_name_at,
                                  .path = "/nonexistent/nsa.yaml",
                                  .skip_system_file = true };
  expect_failure(&request, NSA_E_IO,
                 "/nonexistent/nsa.yaml: the configuration cannot be read: No such file");
  request.path = "/tmp";
  expect_failure(&request, NSA_E_IO, "/tmp: the configuration cannot be read: Is a directory");
  /* A pipe that nobody writes into is refused, not waited for. */
  write_file("", 0600);
  assert_int_equal(unlink(file_path), 0);
  assert_int_equal(mkfifo(file_path, 0600), 0);
  request.path = file_path;
  expect_failure(&request, NSA_E_IO, "no regular file");
  remove_file();
}

static void test_need_model(void **state) {
  nsai_config_request request = REQUEST(.text = "nsa: 1\n", .name = "t.yaml", .need_model = true);
  expect_failure(&request, NSA_E_CONFIG,
                 "t.yaml:1:1: error: model: missing: the heads and blocks of ");
  /* Of a text that cannot be read nobody knows whether it has a model. */
  static const char *const unreadable[] = { "nsa: 1\nmodel:\n\theads: 4\n", "", "- a\n" };
  for (size_t i = 0; i < sizeof unreadable / sizeof *unreadable; i++) {
    request.text = unreadable[i];
    expect_failure(&request, NSA_E_CONFIG, "error: ");
    assert_null(strstr(nsa_last_error(), "model: missing"));
  }
  request.text = NULL;
  expect_failure(&request, NSA_E_CONFIG, "error: model: missing: ");
  request.need_model = false;
  nsai_config *c = load(&request);
  assert_false(c->has_model);
  nsai_config_destroy(c);
}

/* What came with weights may not say which libraries to open. */
static void test_model_file(void **state) {
  nsai_config_request request =
      REQUEST(.path = file_path, .text = "nsa: 1\nruntime: {jit: never}\n", .model_file = true);
  write_file("nsa: 1\n" MODEL "x-trained: 2026\n", 0600);
  nsai_config_destroy(load(&request));
  remove_file();
  write_file("nsa: 1\n" MODEL "runtime: {nvrtc_path: /evil}\nprofiles: []\n", 0600);
  expect_failure(
      &request, NSA_E_CONFIG,
      "f.yaml:3:1: error: runtime: a file that comes with weights may hold 'model' only");
  assert_non_null(strstr(nsa_last_error(), "f.yaml:4:1: error: profiles: a file that comes"));
  remove_file();
}

/* ---- profiles ---- */

static const char with_profiles[] = "nsa: 1\n"
                                    "runtime: {jit: never, compile_jobs: 1, log_level: info}\n"
                                    "profiles:\n"
                                    "  - match: {name: 'NVIDIA H200*', arch: sm_90a}\n"
                                    "    runtime: {jit: prepare_only, compile_jobs: 2}\n"
                                    "    thresholds: {select_dense_below: 4Ki}\n"
                                    "  - match: {arch: sm_90}\n"
                                    "    runtime: {compile_jobs: 3}\n"
                                    "  - match: {uuid: GPU-aBc}\n"
                                    "    runtime: {compile_jobs: 4}\n"
                                    "  - match:\n"
                                    "    runtime: {compile_jobs: 7}\n";

static void test_profile_matching(void **state) {
  static const struct {
    const char *arch, *name, *uuid;
    int32_t jobs;
  } cases[] = {
    { "sm_90a", "NVIDIA H200 NVL", NULL, 2 },
    { "sm_90a", "NVIDIA H100", NULL, 3 },
    { "sm_90a", NULL, NULL, 3 },
    { "sm_90", "NVIDIA H200", "GPU-abc", 3 },
    { "sm_100a", NULL, "GPU-abc", 4 },
    { "sm_80", "NVIDIA A100", "GPU-abcd", 7 },
    { NULL, NULL, NULL, 7 },
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    nsai_config *c = load_text(with_profiles, NULL);
    assert_int_equal(c->runtime.compile_jobs, 1);
    assert_int_equal(nsai_config_apply_device(c, cases[i].arch, cases[i].name, cases[i].uuid),
                     NSA_OK);
    assert_int_equal(c->runtime.compile_jobs, cases[i].jobs);
    nsai_config_destroy(c);
  }
}

/* Above the file, below overrides; what it does not name stays. */
static void test_profile_strength(void **state) {
  const char *const overrides[] = { "runtime.compile_jobs=9", NULL };
  nsai_config *c = load_text(with_profiles, overrides);
  assert_int_equal(nsai_config_apply_device(c, "sm_90a", "NVIDIA H200", NULL), NSA_OK);
  assert_int_equal(c->runtime.compile_jobs, 9);
  assert_int_equal(c->runtime.jit, NSAI_JIT_PREPARE_ONLY);
  assert_int_equal(c->runtime.log_level, NSA_LOG_INFO);
  assert_int_equal(c->thresholds.select_dense_below, 4096);
  expect_in_dump(c, "nsa: 1\n# profile: t.yaml:4\n");
  expect_in_dump(c, "  jit: prepare_only                             # profile t.yaml:5\n");
  nsai_config_destroy(c);
}

/* A device may be tuned in its own way; lists are replaced, and null is a value as well. */
static void test_profile_tuning(void **state) {
  static const char text[] = "nsa: 1\n"
                             "tuning: {level: normal, budget: 2m, lengths: [1Ki, 4Ki]}\n"
                             "profiles:\n"
                             "  - match: {arch: sm_90}\n"
                             "    tuning: {budget: 1h, lengths: [8Ki], on_first_use: quick}\n"
                             "  - match: {arch: sm_80}\n"
                             "    tuning: {lengths: null}\n";
  const char *const overrides[] = { "tuning.on_first_use=off", NULL };
  nsai_config *c = load_text(text, overrides);
  assert_int_equal(nsai_config_apply_device(c, "sm_90a", NULL, NULL), NSA_OK);
  assert_int_equal(c->tuning.level, NSAI_LEVEL_NORMAL);
  assert_true(c->tuning.budget_s == 3600);
  assert_int_equal(c->tuning.lengths.count, 1);
  assert_int_equal(c->tuning.lengths.items[0], 8192);
  assert_int_equal(c->tuning.on_first_use, NSAI_LEVEL_HEURISTIC);
  expect_in_dump(c, "  level: normal                                 # t.yaml:2\n");
  expect_in_dump(c, "  budget: 1h                                    # profile t.yaml:5\n");
  expect_in_dump(c, "  lengths: [8192]                               # profile t.yaml:5\n");
  nsai_config_destroy(c);
  c = load_text(text, NULL);
  assert_int_equal(nsai_config_apply_device(c, "sm_80", NULL, NULL), NSA_OK);
  assert_null(c->tuning.lengths.items);
  assert_int_equal(c->tuning.lengths.count, 0);
  nsai_config_destroy(c);
}

/* The rules are checked again with the profile's values. */
static void test_profile_breaks_rule(void **state) {
  nsai_config *c = load_text("nsa: 1\nserving: {max_kv_tokens: 1k}\n"
                             "profiles:\n  - match: {arch: sm_80}\n    serving: {max_kv_len: 2k}\n",
                             NULL);
  assert_int_equal(nsai_config_apply_device(c, "sm_80", NULL, NULL), NSA_E_CONFIG);
  assert_non_null(strstr(nsa_last_error(), "t.yaml:5:27: error: serving.max_kv_len: 2000 is more"));
  nsai_config_destroy(c);
}

/* A device file laid over a model's file, as its head says. */
static void test_profiles_are_replaced(void **state) {
  char path[512];
  snprintf(path, sizeof path, "%s/configs/devices/h200.yaml", source_root());
  nsai_config *c = load(&REQUEST(.path = path));
  assert_int_equal(nsai_config_apply_device(c, "sm_90a", "NVIDIA H200", NULL), NSA_OK);
  assert_int_equal(c->device.sms, 132);
  assert_true(c->device.measured);
  nsai_config_destroy(c);
  c = load(&REQUEST(.path = path, .text = "nsa: 1\nprofiles: [{match: {}, device: {sms: 1, "
                                          "source: me}}]\n"));
  assert_int_equal(nsai_config_apply_device(c, "sm_90a", "NVIDIA H200", NULL), NSA_OK);
  assert_int_equal(c->device.sms, 1);
  assert_int_equal(c->device.l2, 0);
  nsai_config_destroy(c);
}

/* ---- dump, schema, shipped files ---- */

static void expect_round_trip(const nsai_config *c) {
  char *first = dump(c, true);
  nsai_config *again = load_text(first, NULL);
  char *plain = dump(c, false), *second = dump(again, false);
  assert_string_equal(plain, second);
  nsai_config_destroy(again);
  free(first);
  free(plain);
  free(second);
}

/* A host's locale with a decimal comma changes nothing of what is read and written. */
static void test_comma_locale(void **state) {
  nsai_config *c = load_text(full, NULL);
  char *plain = dump(c, false);
  nsai_config_destroy(c);
  if (!comma_locale_enter()) {
    free(plain);
    skip();
  }
  c = load_text(full, NULL);
  char *with_comma = dump(c, false);
  expect_round_trip(c);
  comma_locale_leave();
  assert_string_equal(with_comma, plain);
  nsai_config_destroy(c);
  free(with_comma);
  free(plain);
}

static void test_dump(void **state) {
  nsai_config *c = load_text(full, NULL);
  expect_round_trip(c);
  char small[8];
  nsai_writer cut = nsai_writer_open(small, sizeof small);
  nsai_config_dump(c, false, &cut);
  assert_true(cut.used > 1000);
  assert_string_equal(small, "nsa: 1\n");
  expect_in_dump(c, "  budget: 1h30m250ms ");
  expect_in_dump(c, "  min_gain: 0.5 ");
  expect_in_dump(c, "  lengths: [64, 1000, 65536] ");
  expect_in_dump(c, "  batches: [1, 32] ");
  expect_in_dump(c, "  smem_per_block: 227Ki ");
  expect_in_dump(c, "  hbm_gbps: 4280.0125 ");
  expect_in_dump(c, "  bf16_tflops: 0.1 ");
  expect_in_dump(c, "    dense: \"dense_sm80\" ");
  expect_in_dump(c, "  cache_dir: \"/c \xC3\xBC\\\"\\\\\\U0000001B\\U00002028\" ");
  nsai_config_destroy(c);
  c = load_text("nsa: 1\n", NULL);
  expect_round_trip(c);
  nsai_config_destroy(c);
}

static void check_file(const char *path) {
  nsai_config *c = load(&REQUEST(.path = path));
  if (*c->warnings) fail_msg("%s", c->warnings);
  expect_round_trip(c);
  bool is_device = strstr(path, "/devices/") != NULL;
  assert_int_equal(c->has_model, !is_device);
  nsai_config_destroy(c);
}

static void test_shipped_files(void **state) {
  static const char *const patterns[] = { "configs/*.yaml", "configs/models/*.yaml",
                                          "configs/devices/*.yaml" };
  for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
    char pattern[512];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/%s", source_root(), patterns[i]);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t k = 0; k < found.gl_pathc; k++) check_file(found.gl_pathv[k]);
    globfree(&found);
  }
}

static void test_schema_file(void **state) {
  char path[512];
  nsai_writer none = nsai_writer_open(NULL, 0);
  nsai_config_json_schema(&none);
  size_t length = none.used;
  char *made = malloc(length + 1), *read = malloc(length + 2);
  assert_true(made && read);
  nsai_writer out = nsai_writer_open(made, length + 1);
  nsai_config_json_schema(&out);
  snprintf(path, sizeof path, "%s/configs/nsa.schema.json", source_root());
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  read[fread(read, 1, length + 1, file)] = '\0';
  fclose(file);
  assert_string_equal(read, made);
  free(made);
  free(read);
}

/* The table has no holes, and each built-in value is what its own type writes. */
static void test_key_table(void **state) {
  for (int id = 0; id < NSAI_KEY_COUNT; id++) {
    const nsai_key *key = &nsai_keys[id];
    assert_non_null(key->path);
    assert_non_null(key->help);
    assert_int_equal(nsai_key_find(key->path, strlen(key->path)), id);
    assert_int_equal(key->type == NSAI_TYPE_WORD && !key->words, 0);
  }
  nsai_config *c = load_text("nsa: 1\n" MODEL, NULL);
  for (int id = 0; id < NSAI_KEY_COUNT; id++) {
    char line[128];
    const char *fallback = nsai_keys[id].fallback;
    bool quoted = nsai_keys[id].type == NSAI_TYPE_DEVICE;
    if (!fallback) continue;
    snprintf(line, sizeof line, quoted ? "%s: \"%s\" " : "%s: %s ",
             strrchr(nsai_keys[id].path, '.') + 1, fallback);
    expect_in_dump(c, line);
  }
  nsai_config_destroy(c);
  for (int32_t level = NSA_LOG_OFF; level <= NSA_LOG_TRACE; level++)
    assert_string_equal(nsai_word_text(nsai_keys[NSAI_KEY_LOG_LEVEL].words, level),
                        nsai_log_level_name(level));
  assert_string_equal(nsai_stage_name(NSAI_STAGE_ATTEND_WINDOW), "attend_window");
  assert_null(nsai_stage_name(NSAI_STAGE_COUNT));
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_builtin),
    cmocka_unit_test(test_every_key),
    cmocka_unit_test(test_devices),
    cmocka_unit_test(test_layers),
    cmocka_unit_test(test_overrides),
    cmocka_unit_test(test_bad_overrides),
    cmocka_unit_test(test_rule_across_layers),
    cmocka_unit_test(test_system_file),
    cmocka_unit_test(test_files_that_cannot_be_read),
    cmocka_unit_test(test_need_model),
    cmocka_unit_test(test_model_file),
    cmocka_unit_test(test_profile_matching),
    cmocka_unit_test(test_profile_strength),
    cmocka_unit_test(test_profile_tuning),
    cmocka_unit_test(test_profile_breaks_rule),
    cmocka_unit_test(test_profiles_are_replaced),
    cmocka_unit_test(test_comma_locale),
    cmocka_unit_test(test_dump),
    cmocka_unit_test(test_shipped_files),
    cmocka_unit_test(test_schema_file),
    cmocka_unit_test(test_key_table),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
