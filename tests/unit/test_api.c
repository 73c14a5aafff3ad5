/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Contexts through the public API: every bad argument, the texts under snprintf's rule, logging,
 * fork, threads.
 */
#include "support/cmocka_all.h"

#include "machine.h"
#include "plan/context.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define MODEL "nsa: 1\nmodel: {heads: 8, kv_heads: 2, head_dim: 64}\n"
#define CPU MODEL "runtime: {device: cpu}\n"

static nsa_options options_of(const char *yaml) { return INIT(nsa_options, .yaml_text = yaml); }

/* Expects a refusal whose text contains `text`, and no context. */
static void refuse(const char *path, const nsa_options *options, nsa_status want,
                   const char *text) {
  nsa_ctx *ctx = (nsa_ctx *)(void *)&want;
  machine_expect(text, nsa_create(path, options, &ctx), want, text);
  assert_null(ctx);
}

static void test_bad_options(void **state) {
  static const char *const bad_devices[] = { "", "cuda:", "cuda:x", "cuda:-1", "gpu", NULL };
  nsa_options o = options_of(CPU);
  assert_int_equal(nsa_create(NULL, &o, NULL), NSA_E_ARG);
  nsa_destroy(NULL);
  o.struct_size = 0;
  refuse(NULL, &o, NSA_E_VERSION, "options.struct_size is 0");
  o = options_of(MODEL);
  o.arch = "sm_90";
  refuse(NULL, &o, NSA_E_UNSUPPORTED, "sm_90a");
  o.arch = "";
  refuse(NULL, &o, NSA_E_UNSUPPORTED, "unknown architecture");
  o.arch = "sm_90a";
  o.device = "cuda:0";
  refuse(NULL, &o, NSA_E_ARG, "options.device is \"cuda:0\" and options.arch is \"sm_90a\"");
  o.device = "cpu";
  refuse(NULL, &o, NSA_E_ARG, "options.device is \"cpu\"");
  o.device = NULL;
  o.yaml_text = CPU;
  refuse(NULL, &o, NSA_E_ARG, "options.arch is \"sm_90a\", but runtime.device is cpu");
  o = options_of(CPU);
  for (const char *const *bad = bad_devices; *bad; bad++) {
    o.device = *bad;
    refuse(NULL, &o, NSA_E_CONFIG, "options.device:1:16: error: runtime.device: expected auto");
  }
  o = options_of(CPU);
  o.log_level = 6;
  refuse(NULL, &o, NSA_E_ARG, "options.log_level is 6");
  o.log_level = -2;
  refuse(NULL, &o, NSA_E_ARG, "options.log_level is -2");
  o = options_of(NULL);
  o.yaml_len = 5;
  refuse("/nonexistent", &o, NSA_E_ARG, "options.yaml_len is 5 without options.yaml_text");
}

static void test_bad_configurations(void **state) {
  refuse("/nonexistent/nsa.yaml", NULL, NSA_E_IO, "/nonexistent/nsa.yaml");
  refuse("/", NULL, NSA_E_IO, "/: the configuration cannot be read");
  nsa_options o = options_of(NULL);
  refuse(NULL, &o, NSA_E_CONFIG, "model");
  o.yaml_text = "";
  refuse(NULL, &o, NSA_E_CONFIG, "");
  o.yaml_text = "nsa: 1\nmodel: [";
  refuse(NULL, &o, NSA_E_CONFIG, "<text>:");
  o.yaml_text = MODEL "runtime: {device: cpu, jti: never}\n";
  refuse(NULL, &o, NSA_E_CONFIG, "jit");
  o.yaml_text = CPU "variants: {force: {dense: dens_sm80}}\n";
  refuse(NULL, &o, NSA_E_CONFIG,
         "did you mean 'dense_sm80'? stage dense has dense_sm90, dense_sm80, dense_gemm");
  o.yaml_text = CPU "variants: {disable: [\"*.nothing_*\"]}\n";
  refuse(NULL, &o, NSA_E_CONFIG, "matches no variant");
  /* Names in a profile are looked at whether its device is here or not. */
  o.yaml_text = MODEL "profiles:\n  - match: {arch: sm_90a}\n    variants: {force: {dense: no}}\n";
  o.arch = "sm_90a";
  refuse(NULL, &o, NSA_E_CONFIG, "no variant 'no'");
  static const char *const unknown[] = { "runtime.colour=red", NULL };
  o = options_of(CPU);
  o.overrides = unknown;
  refuse(NULL, &o, NSA_E_CONFIG, "colour");
}

/* tests/cli/config.bats demands the same of check, compile and show. */
static void test_least_configuration(void **state) {
  const nsa_model model = INIT(nsa_model, .heads = 8, .kv_heads = 2, .head_dim_qk = 64);
  const char *sentence =
      "model: missing: the heads and blocks of the model, see configs/base.yaml; a file without "
      "them "
      "needs a host that gives nsa_options.model or the section in yaml_text (`nsa-autotune check "
      "--no-model` checks such a file)";
  nsa_ctx *ctx;
  nsa_options o = options_of("nsa: 1\n");
  o.device = "cpu";
  refuse(NULL, &o, NSA_E_CONFIG, sentence);
  o.yaml_text = NULL;
  refuse(NULL, &o, NSA_E_CONFIG, sentence);
  o.yaml_text = "nsa: 1\n";
  o.model = &model;
  machine_expect("a model beside the text", nsa_create(NULL, &o, &ctx), NSA_OK, NULL);
  nsa_destroy(ctx);
  o = options_of(MODEL);
  o.device = "cpu";
  machine_expect("heads alone", nsa_create(NULL, &o, &ctx), NSA_OK, NULL);
  nsa_destroy(ctx);
}

static void test_overrides(void **state) {
  static const char *const list[] = { "model.heads=16", "runtime.jit=never", NULL };
  char text[8192];
  nsa_options o = options_of(CPU "x-anything: 1\nthis is beyond yaml_len: [");
  o.yaml_len = strlen(CPU);
  o.overrides = list;
  nsa_ctx *ctx;
  machine_expect("overrides", nsa_create(NULL, &o, &ctx), NSA_OK, NULL);
  size_t length = nsa_config_dump(ctx, 0, text, sizeof text);
  assert_int_equal(length, strlen(text));
  assert_non_null(strstr(text, "heads: 16"));
  assert_non_null(strstr(text, "jit: never"));
  assert_true(nsa_config_dump(ctx, 1, text, sizeof text) > length);
  assert_non_null(strstr(text, "override"));
  nsa_destroy(ctx);
}

/* options.device stands above text and environment, below overrides. */
static void test_device(void **state) {
  static const char *const list[] = { "runtime.device=cpu", NULL };
  char text[8192];
  nsa_options o = options_of(MODEL "runtime: {device: cuda:7}\n");
  nsa_ctx *ctx;
  setenv("NSA_DEVICE", "cuda:6", 1);
  o.device = "cpu";
  machine_expect("device", nsa_create(NULL, &o, &ctx), NSA_OK, NULL);
  nsa_config_dump(ctx, 1, text, sizeof text);
  assert_non_null(strstr(text, "# options.device runtime.device\n"));
  nsa_destroy(ctx);
  o.device = "cuda:5";
  o.overrides = list;
  machine_expect("device", nsa_create(NULL, &o, &ctx), NSA_OK, NULL);
  nsa_destroy(ctx);
  unsetenv("NSA_DEVICE");
}

/* Never beyond the buffer, always ended, the whole length returned. */
static void expect_rule(const char *what, const char *whole, size_t length, const char *cut,
                        size_t size) {
  if (strlen(whole) != length) fail_msg("%s: length %zu, text %zu", what, length, strlen(whole));
  if (size && (strlen(cut) != size - 1 || memcmp(cut, whole, size - 1) != 0))
    fail_msg("%s: cut to %zu: %s", what, size, cut);
}

static void test_texts(void **state) {
  static char whole[65536], again[65536];
  char cut[17];
  char yaml[1024];
  machine_yaml(&(machine_request){ 0 }, yaml, sizeof yaml);
  nsa_ctx *ctx = machine_context(yaml, NULL, false);
  nsa_problem problem = NSA_PROBLEM_INIT, bad = { 0 };
  problem.max_tokens = 64;
  problem.max_seqs = 1;
  for (size_t size = 1; size <= sizeof cut; size += 8) {
    expect_rule("dump", whole, nsa_config_dump(ctx, 1, whole, sizeof whole), cut,
                (nsa_config_dump(ctx, 1, cut, size), size));
    expect_rule("string", whole, nsa_problem_string(ctx, &problem, whole, sizeof whole), cut,
                (nsa_problem_string(ctx, &problem, cut, size), size));
    expect_rule("explain", whole, nsa_explain(ctx, &problem, whole, sizeof whole), cut,
                (nsa_explain(ctx, &problem, cut, size), size));
  }
  assert_int_equal(nsa_config_dump(ctx, 1, NULL, 0), nsa_config_dump(ctx, 1, NULL, 100));
  assert_int_equal(nsa_problem_string(ctx, &problem, NULL, 9),
                   nsa_problem_string(ctx, &problem, NULL, 0));
  assert_true(nsa_explain(ctx, &problem, NULL, 9) > 0);
  assert_non_null(strstr(whole, "float64 reference"));
  /* What is wrong stands in the explanation; a string there is not. */
  nsa_explain(ctx, &bad, whole, sizeof whole);
  assert_non_null(strstr(whole, "problem.struct_size"));
  nsa_explain(NULL, &problem, whole, sizeof whole);
  assert_non_null(strstr(whole, "context is NULL"));
  assert_int_equal(nsa_problem_string(ctx, NULL, whole, sizeof whole), 0);
  assert_string_equal(whole, "");
  whole[0] = 'x';
  assert_int_equal(nsa_config_dump(NULL, 0, whole, sizeof whole), 0);
  assert_string_equal(whole, "");
  assert_int_equal(nsa_config_dump(NULL, 0, NULL, 7), 0);
  size_t length = nsa_report(ctx, again, sizeof again);
  assert_int_equal(length, strlen(again));
  assert_int_equal(nsa_report(ctx, cut, sizeof cut), length);
  assert_int_equal(strlen(cut), sizeof cut - 1);
  assert_int_equal(nsa_report(ctx, NULL, 0), length);
  assert_int_equal(nsa_report(ctx, NULL, 5), length);
  assert_true(nsa_report(NULL, NULL, 0) > 0);
  nsa_destroy(ctx);
}

static void test_names(void **state) {
  assert_int_equal(nsa_version(), NSA_VERSION);
  assert_ptr_equal(nsa_build_info(), nsa_build_info());
  assert_non_null(strstr(nsa_build_info(), "\"templates\": \""));
#define EXPECT(name, value, text)                                                                  \
  assert_string_equal(nsa_status_name(value), #name);                                              \
  assert_string_equal(nsa_status_text(value), text);
  NSA_STATUS_LIST(EXPECT)
  assert_string_equal(nsa_status_name(1000), "NSA_E_UNKNOWN");
  assert_string_equal(nsa_status_name(-1), "NSA_E_UNKNOWN");
  assert_string_equal(nsa_status_text(INT32_MIN), "unknown status");
}

typedef struct lines {
  int count[NSA_LOG_TRACE + 1], newlines;
} lines;

static void note(void *user, int32_t level, const char *component, const char *text) {
  lines *l = user;
  assert_true(component[0] && level >= NSA_LOG_ERROR && level <= NSA_LOG_TRACE);
  l->count[level]++;
  l->newlines += strchr(text, '\n') != NULL;
}

static lines count_lines(const char *yaml, int32_t level) {
  lines l = { 0 };
  nsa_ctx *ctx;
  nsa_options o = options_of(yaml);
  o.log = note;
  o.log_user = &l;
  o.log_level = level;
  machine_expect("log", nsa_create(NULL, &o, &ctx), NSA_OK, NULL);
  nsa_destroy(ctx);
  return l;
}

/* The options' level is stronger than the configuration's; a line is a line. */
static void test_log(void **state) {
#define WARNS CPU "device: {sms: 3}\n" /* a figure without a source */
  lines l = count_lines(WARNS, NSA_LOG_INFO);
  assert_int_equal(l.newlines, 0);
  assert_true(l.count[NSA_LOG_WARN] >= 1);
  assert_int_equal(l.count[NSA_LOG_INFO], 1);
  l = count_lines(WARNS, NSA_LOG_ERROR);
  assert_int_equal(l.count[NSA_LOG_WARN], 0);
  l = count_lines(WARNS, 0); /* runtime.log_level: warn */
  assert_true(l.count[NSA_LOG_WARN] >= 1);
  assert_int_equal(l.count[NSA_LOG_INFO], 0);
  /* What a profile does is warned about once it holds; what was wrong before is not repeated. */
  l = count_lines(CPU "profiles:\n  - match: {}\n    device: {sms: 3}\n", 0);
  assert_true(l.count[NSA_LOG_WARN] >= 1 && l.newlines == 0);
  int profile_lines = l.count[NSA_LOG_WARN];
  l = count_lines(WARNS "profiles:\n  - match: {}\n    runtime: {compile_jobs: 1}\n", 0);
  assert_int_equal(l.count[NSA_LOG_WARN], profile_lines);
  l = count_lines(MODEL "runtime: {device: cpu, log_level: info}\n", 0);
  assert_int_equal(l.count[NSA_LOG_INFO], 1);
}

/* What a forked child may still call. Returns its exit status. */
static int use_after_fork(machine *m) {
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_plan *plan = NULL;
  nsa_problem problem = INIT(nsa_problem, .max_tokens = 8, .max_seqs = 1);
  int bad = nsa_query(m->ctx, &problem, &caps) != NSA_E_FORKED;
  bad |= nsa_plan_create(m->ctx, &problem, NULL, NULL, &plan) != NSA_E_FORKED;
  bad |= plan != NULL || nsa_prepare(m->ctx, &problem, 1, NULL, NULL) != NSA_E_FORKED;
  bad |= nsa_plan_caps(m->plan, &caps) != NSA_E_FORKED;
  bad |= machine_forward(m) != NSA_E_FORKED;
  bad |= !strstr(nsa_last_error(), "fork()");
  bad |= nsa_config_dump(m->ctx, 0, NULL, 0) != 0;
  char text[4096], path[512];
  nsa_report(m->ctx, text, sizeof text);
  bad |= (strstr(text, "spawn") != NULL) != m->gpu;
  nsa_explain(m->ctx, &problem, text, sizeof text);
  bad |= !strstr(text, "fork()");
  nsa_problem_string(m->ctx, &problem, text, sizeof text);
  bad |= text[0] != 0;
  /* New contexts: on the GPU only when the parent had left CUDA alone. */
  nsa_ctx *ctx = NULL;
  nsa_options o = options_of(CPU);
  bad |= nsa_create(NULL, &o, &ctx) != NSA_OK;
  nsa_destroy(ctx);
  snprintf(path, sizeof path, "runtime.driver_path=%s", getenv("FAKE_CUDA"));
  const char *const overrides[] = { path, "runtime.cache_mode=off", NULL };
  o = options_of(MODEL);
  o.overrides = overrides;
  o.device = "cuda:1";
  nsa_status status = nsa_create(NULL, &o, &ctx);
  bad |= status != (m->gpu ? NSA_E_FORKED : NSA_OK);
  bad |= m->gpu && !strstr(nsa_last_error(), "create contexts after fork()");
  nsa_destroy(ctx);
  nsa_plan_destroy(m->plan);
  nsa_destroy(m->ctx);
  if (m->gpu) bad |= machine_record()->unloads != 0 || machine_record()->retained != 1;
  return bad;
}

static void test_fork(void **state) {
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    machine_init(&m, &(machine_request){ .gpu = gpu });
    pid_t child = fork();
    if (child == 0) _exit(use_after_fork(&m));
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    machine_expect("parent", machine_forward(&m), NSA_OK, NULL);
    machine_free(&m);
  }
  assert_int_equal(machine_record()->loads, machine_record()->unloads);
  assert_int_equal(machine_record()->retained, 0);
}

/* A context whose plans outlive it: they run, and the last one frees it. */
static void test_order(void **state) {
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    machine_init(&m, &(machine_request){ .gpu = gpu });
    lines l = { 0 };
    m.ctx->logger.fn = note;
    m.ctx->logger.user = &l;
    nsa_problem problem = INIT(nsa_problem, .max_tokens = 8, .max_seqs = 1);
    nsa_plan *other = machine_plan(m.ctx, &problem);
    nsa_destroy(m.ctx);
    m.ctx = NULL;
    assert_int_equal(l.count[NSA_LOG_WARN], 1);
    nsa_plan_destroy(other);
    machine_expect("run", machine_forward(&m), NSA_OK, NULL);
    if (gpu) assert_int_equal(machine_record()->retained, 1);
    machine_free(&m);
  }
  assert_int_equal(machine_record()->loads, machine_record()->unloads);
  assert_int_equal(machine_record()->retained, 0);
}

#define THREADS 8

typedef struct crowd {
  machine *machine;
  nsa_status status;
} crowd;

static void *make_plans(void *user) {
  crowd *c = user;
  nsa_ctx *ctx = c->machine->ctx;
  for (int i = 1; i <= 20 && c->status == NSA_OK; i++) {
    nsa_caps caps = NSA_CAPS_INIT;
    nsa_plan *plan;
    char text[256];
    nsa_problem problem = INIT(nsa_problem, .max_tokens = 10 * i, .max_seqs = 1);
    c->status = nsa_query(ctx, &problem, &caps);
    if (c->status == NSA_OK) c->status = nsa_plan_create(ctx, &problem, NULL, NULL, &plan);
    if (c->status != NSA_OK) break;
    nsa_explain(ctx, &problem, text, sizeof text);
    nsa_config_dump(ctx, 1, text, sizeof text);
    nsa_plan_destroy(plan);
    problem.max_tokens = -i; /* each thread has its own error text */
    if (nsa_query(ctx, &problem, &caps) != NSA_E_ARG) c->status = NSA_E_INTERNAL;
  }
  return NULL;
}

/* On the GPU all threads compile and load at once; each kernel is loaded once. */
static void test_threads(void **state) {
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    pthread_t threads[THREADS];
    crowd crowds[THREADS];
    machine_init(&m, &(machine_request){ .gpu = gpu });
    int loads = machine_record()->loads;
    for (int i = 0; i < THREADS; i++) {
      crowds[i] = (crowd){ &m, NSA_OK };
      assert_int_equal(pthread_create(&threads[i], NULL, make_plans, &crowds[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
      pthread_join(threads[i], NULL);
      assert_int_equal(crowds[i].status, NSA_OK);
    }
    /* Beyond 64 tokens the selection is a real one: two more kernels than m's own plan has. */
    assert_int_equal(machine_record()->loads - loads, gpu ? 2 : 0);
    machine_free(&m);
  }
}

/* The sentence and the frames apart; a new failure begins a new trace. */
static void test_trace(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ 0 });
  nsa_plan *plan;
  nsa_problem problem = INIT(nsa_problem, .max_tokens = -5);
  assert_int_equal(nsa_plan_create(m.ctx, &problem, NULL, NULL, &plan), NSA_E_ARG);
  assert_null(strchr(nsa_last_error(), '\n'));
  assert_int_equal(strncmp(nsa_last_trace(), "at problem.c:", 13), 0);
  assert_non_null(strstr(nsa_last_trace(), "\nat plan.c:"));
  assert_non_null(strstr(nsa_last_trace(), " nsa_plan_create"));
  assert_int_equal(nsa_plan_create(m.ctx, &problem, NULL, NULL, NULL), NSA_E_ARG);
  assert_string_equal(nsa_last_error(), "out is NULL");
  assert_string_equal(nsa_last_trace(), "");
  machine_free(&m);
}

static void test_bad_plans(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ 0 });
  nsa_problem problem = NSA_PROBLEM_INIT;
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_plan *plan = m.plan;
  assert_int_equal(nsa_plan_create(m.ctx, &problem, NULL, NULL, NULL), NSA_E_ARG);
  assert_int_equal(nsa_plan_create(NULL, &problem, NULL, NULL, &plan), NSA_E_ARG);
  assert_null(plan);
  plan = m.plan;
  assert_int_equal(nsa_plan_create(m.ctx, NULL, NULL, NULL, &plan), NSA_E_ARG);
  assert_null(plan);
  assert_int_equal(nsa_query(NULL, &problem, &caps), NSA_E_ARG);
  assert_int_equal(nsa_query(m.ctx, NULL, &caps), NSA_E_ARG);
  assert_int_equal(nsa_query(m.ctx, &problem, NULL), NSA_E_ARG);
  assert_int_equal(nsa_plan_caps(NULL, &caps), NSA_E_ARG);
  assert_int_equal(nsa_plan_caps(m.plan, NULL), NSA_E_ARG);
  caps.struct_size = 0;
  assert_int_equal(nsa_plan_caps(m.plan, &caps), NSA_E_VERSION);
  assert_int_equal(nsa_prepare(m.ctx, NULL, 1, NULL, NULL), NSA_E_ARG);
  assert_int_equal(nsa_prepare(m.ctx, NULL, 0, NULL, NULL), NSA_OK);
  assert_int_equal(nsa_prepare(NULL, NULL, 0, NULL, NULL), NSA_E_ARG);
  nsa_plan_destroy(NULL);
  caps = (nsa_caps)NSA_CAPS_INIT;
  machine_expect("caps", nsa_plan_caps(m.plan, &caps), NSA_OK, NULL);
  assert_int_equal(caps.supported, 1);
  assert_int_equal(caps.workspace_bytes, 64 * 6 * 4); /* tokens, heads, a float of each */
  assert_string_equal(caps.variants, "all=reference");
  machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_bad_options),
    cmocka_unit_test(test_bad_configurations),
    cmocka_unit_test(test_least_configuration),
    cmocka_unit_test(test_overrides),
    cmocka_unit_test(test_device),
    cmocka_unit_test(test_texts),
    cmocka_unit_test(test_names),
    cmocka_unit_test(test_log),
    cmocka_unit_test(test_fork),
    cmocka_unit_test(test_order),
    cmocka_unit_test(test_threads),
    cmocka_unit_test(test_bad_plans),
    cmocka_unit_test(test_trace),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
