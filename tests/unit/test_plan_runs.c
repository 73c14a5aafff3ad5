/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Runs of plans on the fake GPU: what is launched, and that a run does nothing but launch.
 */
#include "support/cmocka_all.h"

#include "machine.h"
#include "plan/plan.h"

/* Calls of the C library from the library's objects: memory and files. */
static int host_calls;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
int __real_openat(int dir, const char *path, int flags, ...);
int __real_open(const char *path, int flags, ...);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
int __wrap_openat(int dir, const char *path, int flags, unsigned mode);
int __wrap_open(const char *path, int flags, unsigned mode);

void *__wrap_malloc(size_t size) {
  __atomic_fetch_add(&host_calls, 1, __ATOMIC_RELAXED);
  return __real_malloc(size);
}
void *__wrap_calloc(size_t count, size_t size) {
  __atomic_fetch_add(&host_calls, 1, __ATOMIC_RELAXED);
  return __real_calloc(count, size);
}
int __wrap_openat(int dir, const char *path, int flags, unsigned mode) {
  __atomic_fetch_add(&host_calls, 1, __ATOMIC_RELAXED);
  return __real_openat(dir, path, flags, mode);
}
int __wrap_open(const char *path, int flags, unsigned mode) {
  __atomic_fetch_add(&host_calls, 1, __ATOMIC_RELAXED);
  return __real_open(path, flags, mode);
}

static const nsa_stream some_stream = (nsa_stream)(uintptr_t)0x1230;

/* Compares the launches of a run with `names`, all on the caller's stream; counts what a run must
 * not do. */
static void expect_launches(machine *m, nsa_status status, const char *names) {
  const fake_cuda_state *r = machine_record();
  machine_expect("run", status, NSA_OK, NULL);
  machine_expect_launches(names);
  for (int i = 0; i < r->launches; i++) assert_ptr_equal(r->launch[i].stream, m->exec.stream);
  assert_int_equal(r->waits + r->memory_calls + r->loads + r->wrong_context, 0);
}

/* A machine whose runs are recorded from here on. The record forgets what making it did. */
static void begin(machine *m, const machine_request *request) {
  machine_init(m, request);
  m->exec.stream = some_stream;
  fake_cuda_state *r = machine_record();
  assert_int_equal(r->capture_relaxed, r->loads);
  *r = (fake_cuda_state){ .retained = r->retained, .handles = r->handles };
}

#define RUN(m, call) (*machine_record() = (fake_cuda_state){ .retained = 1 }, (call))

static void test_launch_lists(void **state) {
  machine m;
  begin(&m, &(machine_request){ .gpu = true });
  int calls = host_calls;
  nsa_status status = machine_forward(&m);
  assert_int_equal(host_calls, calls); /* nothing allocated, no file opened */
  /* 64 tokens are 4 blocks: all are chosen, so the selected branch is dense. The caller's
   * block_idx is still filled. */
  expect_launches(
      &m, status,
      "compress_mean attend_window_sm90 attend_compressed_sm90 select_topn attend_dense_sm90");
  const fake_cuda_launch *l = machine_record()->launch;
  assert_int_equal(l[0].grid_x, 1); /* 11 rows * 2 heads; 51 pairs a block */
  assert_int_equal(l[0].threads, 256);
  assert_int_equal(l[3].grid_x, 10); /* 40 tokens * 2 heads, 8 warps a block */
  m.exec.branches = 1u << NSA_WIN;
  m.toy.io.o_branch[0] = m.toy.io.o_branch[1] = m.toy.io.lse[0] = m.toy.io.lse[1] =
      m.toy.io.block_idx = (nsa_tensor){ 0 };
  expect_launches(&m, RUN(&m, machine_forward(&m)), "attend_window_sm90");
  m.exec.branches = 1u << NSA_SEL;
  m.toy.io.o_branch[2] = m.toy.io.lse[2] = (nsa_tensor){ 0 };
  expect_launches(&m, RUN(&m, machine_forward(&m)), "attend_dense_sm90");
  m.toy.io.importance = toy_tensor(&m.toy, NSA_F32, 3, m.toy.tokens, 2, 4);
  m.toy.io.block_idx = toy_tensor(&m.toy, NSA_I32, 3, m.toy.tokens, 2, 4);
  expect_launches(&m, RUN(&m, nsa_select(m.plan, &m.exec, &m.toy.batch, &m.toy.io)), "select_topn");
  machine_free(&m);
  begin(&m, &(machine_request){ .gpu = true, .override = "thresholds.select_dense_below=0" });
  expect_launches(&m, machine_forward(&m),
                  "compress_mean attend_window_sm90 attend_compressed_sm90 select_importance "
                  "select_topn attend_selected_sm90_mma");
  machine_free(&m);
  begin(&m, &(machine_request){ .gpu = true, .op = NSA_OP_DENSE });
  expect_launches(&m, nsa_dense(m.plan, &m.exec, &m.toy.batch, &m.toy.io), "attend_dense_sm90");
  machine_free(&m);
}

/* A caller's selection is sorted first; a probe has its kernel there, too. */
static void test_given_selection(void **state) {
  machine m;
  static const int32_t ends[] = { 39, 0 };
  begin(&m, &(machine_request){ .gpu = true, .selection = NSA_SELECT_BLOCKS, .max_probe_rows = 2 });
  expect_launches(&m, machine_forward(&m),
                  "compress_mean attend_window_sm90 attend_compressed_sm90 data_sort_blocks "
                  "attend_selected_sm90_mma");
  m.toy.io.probe_rows = toy_offsets(&m.toy, 1, ends);
  m.toy.io.probe_importance = toy_tensor(&m.toy, NSA_F32, 3, 2, 2, 4);
  expect_launches(&m, RUN(&m, machine_forward(&m)),
                  "compress_mean attend_window_sm90 attend_compressed_sm90 select_importance "
                  "data_sort_blocks attend_selected_sm90_mma");
  assert_int_equal(machine_record()->launch[3].grid_x, 4); /* 2 rows * 2 heads */
  machine_free(&m);
}

#define INVERT "data_invert_count data_invert_scan data_invert_fill"
#define KV_STATIONARY "variants.force.attend_selected=attend_selected_kv_stationary_sm90"

/* KV-stationary: the lists are inverted, then all heads pass through the workspace at once, or some
 * after the others, or few tokens at a time. */
static void test_selected_kv(void **state) {
  machine m;
  machine_request request = {
    .gpu = true, .dtype = NSA_F16, .selection = NSA_SELECT_BLOCKS, .override = KV_STATIONARY
  };
  begin(&m, &request);
  m.exec.branches = 1u << NSA_SEL;
  for (int b = 0; b < NSA_BRANCHES; b++) m.toy.io.o_branch[b] = m.toy.io.lse[b] = (nsa_tensor){ 0 };
  expect_launches(&m, machine_forward(&m),
                  "data_sort_blocks " INVERT
                  " attend_selected_kv_stationary_sm90 attend_selected_combine");
  const fake_cuda_launch *l = machine_record()->launch;
  assert_int_equal(l[1].grid_x, 2);  /* KV heads, one part */
  assert_int_equal(l[2].grid_x, 2);  /* KV heads */
  assert_int_equal(l[3].grid_x, 2);  /* KV heads, one part */
  assert_int_equal(l[4].grid_x, 24); /* 6 heads * (40 / 16 + 2 items) */
  assert_int_equal(l[5].grid_x, 30); /* 6 heads * 40 tokens, 8 warps a block */
  /* The row's numbers: tokens of a chunk, and rows of partial results. */
  const nsai_form *form = nsai_plan_form(m.plan, NSAI_STAGE_ATTEND_SELECTED);
  int64_t *number = m.plan->workspace.numbers + (form->number - m.plan->workspace.numbers);
  number[1] = 2 * 40 * 4; /* of two heads */
  expect_launches(&m, RUN(&m, machine_forward(&m)),
                  "data_sort_blocks " INVERT
                  " attend_selected_kv_stationary_sm90 attend_selected_combine "
                  "attend_selected_kv_stationary_sm90 attend_selected_combine "
                  "attend_selected_kv_stationary_sm90 attend_selected_combine");
  number[0] = 24;
  number[1] = 6 * 24 * 4; /* of all heads */
  expect_launches(&m, RUN(&m, machine_forward(&m)),
                  "data_sort_blocks " INVERT
                  " attend_selected_kv_stationary_sm90 attend_selected_combine " INVERT
                  " attend_selected_kv_stationary_sm90 attend_selected_combine");
  machine_free(&m);
}

#define WINDOW_KV_STATIONARY                                                                       \
  "variants.force.attend_selected=attend_selected_window_kv_stationary_sm90"

/* The same with the window in the kernel that combines: all heads at once, or whole groups one after
 * the other; and without one of the two branches. */
static void test_selected_window_kv(void **state) {
  machine m;
  machine_request request = {
    .gpu = true, .dtype = NSA_F16, .selection = NSA_SELECT_BLOCKS, .override = WINDOW_KV_STATIONARY
  };
  begin(&m, &request);
  expect_launches(&m, machine_forward(&m),
                  "compress_mean attend_compressed_sm90 data_sort_blocks " INVERT
                  " attend_selected_kv_stationary_sm90 attend_window_combine_sm90");
  const fake_cuda_launch *l = machine_record()->launch;
  assert_int_equal(l[7].grid_x, 6); /* 2 KV heads * (40 / 32 + 2 tiles of 32 tokens) */
  const nsai_form *form = nsai_plan_form(m.plan, NSAI_STAGE_ATTEND_SELECTED);
  int64_t *number = m.plan->workspace.numbers + (form->number - m.plan->workspace.numbers);
  number[1] = 5 * 40 * 4; /* of five heads: a whole group is three */
  expect_launches(&m, RUN(&m, machine_forward(&m)),
                  "compress_mean attend_compressed_sm90 data_sort_blocks " INVERT
                  " attend_selected_kv_stationary_sm90 attend_window_combine_sm90 "
                  "attend_selected_kv_stationary_sm90 attend_window_combine_sm90");
  assert_int_equal(machine_record()->launch[7].grid_x, 3);
  for (int b = 0; b < NSA_BRANCHES; b++) m.toy.io.o_branch[b] = m.toy.io.lse[b] = (nsa_tensor){ 0 };
  m.exec.branches = 1u << NSA_SEL;
  expect_launches(&m, RUN(&m, machine_forward(&m)),
                  "data_sort_blocks " INVERT
                  " attend_selected_kv_stationary_sm90 attend_window_combine_sm90 "
                  "attend_selected_kv_stationary_sm90 attend_window_combine_sm90");
  m.exec.branches = 1u << NSA_WIN;
  expect_launches(&m, RUN(&m, machine_forward(&m)), "attend_window_combine_sm90");
  assert_int_equal(machine_record()->launch[0].grid_x, 6);
  machine_free(&m);
}

/* The compressed keys, or values. */
#define PHI_MLP                                                                                    \
  "compress_gather_rows matmul compress_bias_activation matmul matmul compress_bias_activation"

/* Models that rank blocks otherwise than by the sum of the compressed branch's own probabilities: where
 * the LSE of importance comes from, and that specialised kernels leave them alone. */
static void test_rankings(void **state) {
  static const char *const all = "thresholds.select_dense_below=0";
  machine m;
  begin(&m, &(machine_request){ .gpu = true, .pool = NSAI_POOL_MAX, .override = all });
  expect_launches(&m, machine_forward(&m),
                  "compress_mean attend_window_sm90 attend_compressed_sm90 select_importance "
                  "select_topn attend_selected_sm90_mma");
  machine_free(&m);
  begin(&m, &(machine_request){ .gpu = true, .keys_only = true, .override = all });
  expect_launches(&m, machine_forward(&m),
                  "compress_mean attend_window_sm90 select_normalizer select_importance "
                  "select_topn attend_selected_sm90_mma");
  machine_free(&m);
  begin(&m, &(machine_request){ .gpu = true, .normalized = true, .override = all });
  expect_launches(&m, machine_forward(&m),
                  "compress_mean attend_window_sm90 attend_compressed_sm90 compress_mean "
                  "select_normalizer select_importance select_topn attend_selected_sm90_mma");
  m.exec.branches = 1u << NSA_SEL; /* the compressed branch's own LSE is not needed */
  memset(m.toy.io.o_branch, 0, sizeof m.toy.io.o_branch);
  memset(m.toy.io.lse, 0, sizeof m.toy.io.lse);
  expect_launches(&m, RUN(&m, machine_forward(&m)),
                  "compress_mean compress_mean select_normalizer select_importance select_topn "
                  "attend_selected_sm90_mma");
  m.exec.branches = 1u << NSA_WIN;
  m.toy.io.block_idx = (nsa_tensor){ 0 };
  expect_launches(&m, RUN(&m, machine_forward(&m)), "attend_window_sm90");
  machine_free(&m);
}

/* Blocks that an index chooses: there is no compressed branch, and nothing is compressed. */
static void test_index(void **state) {
  const machine_request model = { .gpu = true,
                                  .phi = NSAI_PHI_NONE,
                                  .pool = NSAI_POOL_MAX,
                                  .indexed = true,
                                  .override = "thresholds.select_dense_below=0" };
  machine m;
  begin(&m, &model);
  expect_launches(
      &m, machine_forward(&m),
      "attend_window_sm90 select_index_scores_sm90 select_topn attend_selected_sm90_mma");
  m.exec.branches = 1u << NSA_WIN;
  memset(m.toy.io.o_branch, 0, sizeof m.toy.io.o_branch);
  memset(m.toy.io.lse, 0, sizeof m.toy.io.lse);
  m.toy.io.block_idx = (nsa_tensor){ 0 };
  expect_launches(&m, RUN(&m, machine_forward(&m)), "attend_window_sm90");
  machine_free(&m);
}

/* A row that ranks by the branch's sum alone says so, and what to take instead. */
static void test_refused_rankings(void **state) {
  static const struct {
    machine_request model;
    const char *why;
  } cases[] = {
    { { .gpu = true, .keys_only = true }, "model.compress.output is false: it ranks blocks" },
    { { .gpu = true, .pool = NSAI_POOL_MAX }, "model.select.pool is max: it ranks blocks" },
    { { .gpu = true, .normalized = true }, "the model has a select.normalizer: it ranks blocks" },
    { { .gpu = true, .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true },
      "model.select.by is index: it ranks blocks" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char yaml[1024], dir[] = "/tmp/nsa-test-plan-XXXXXX";
    machine_overrides overrides;
    assert_non_null(mkdtemp(dir));
    machine_yaml(&cases[i].model, yaml, sizeof yaml);
    machine_overrides_init(&overrides, dir, NULL);
    nsa_ctx *ctx = machine_context(yaml, overrides.list, true);
    nsa_problem p = INIT(nsa_problem, .max_tokens = 64, .max_seqs = 2, .max_kv_len = 64);
    static const int32_t ops[] = { NSA_OP_FORWARD, NSA_OP_PREFILL,  NSA_OP_DECODE,
                                   NSA_OP_APPEND,  NSA_OP_BACKWARD, NSA_OP_DENSE };
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
      nsa_caps caps = NSA_CAPS_INIT;
      p.op = ops[k];
      machine_expect("query", nsa_query(ctx, &p, &caps), NSA_OK, NULL);
      assert_int_equal(caps.supported, 1);
      /* The forward of a model without a compressed branch has no such stage. */
      if (p.op == NSA_OP_DECODE) machine_expect_story(ctx, &p, cases[i].why);
    }
    nsa_destroy(ctx);
    machine_remove(dir);
  }
}

/* phi mlp and the gate MLP go through cuBLASLt, on the same stream. */
static void test_products(void **state) {
  machine m;
  begin(&m, &(machine_request){ .gpu = true, .phi = NSAI_PHI_MLP });
  nsa_io *io = &m.toy.io;
  io->kv.k_cmp = toy_tensor(&m.toy, NSA_BF16, 3, 11, 2, 24);
  io->kv.v_cmp = toy_tensor(&m.toy, NSA_BF16, 3, 11, 2, 16);
  static const int32_t blocks[] = { 3, 4 };
  m.toy.batch.cu_cmp = toy_offsets(&m.toy, 2, blocks);
  expect_launches(&m, nsa_compress(m.plan, &m.exec, &m.toy.batch, io), PHI_MLP " " PHI_MLP);
  assert_int_equal(machine_record()->handles, 1);
  machine_free(&m);
  assert_int_equal(machine_record()->handles, 0);
  begin(&m, &(machine_request){
                .gpu = true, .phi = NSAI_PHI_EXTERNAL, .gate = NSAI_GATE_MLP, .gate_hidden = 8 });
  m.exec.branches = 1u << NSA_WIN;
  memset(m.toy.io.o_branch, 0, sizeof m.toy.io.o_branch);
  memset(m.toy.io.lse, 0, sizeof m.toy.io.lse);
  m.toy.io.block_idx = (nsa_tensor){ 0 };
  expect_launches(
      &m, machine_forward(&m),
      "matmul compress_bias_activation matmul compress_bias_activation attend_window_sm90");
  machine_free(&m);
}

/* Whatever context the host has current stays current, and the kernels find theirs. */
static void test_contexts(void **state) {
  machine m;
  int other;
  begin(&m, &(machine_request){ .gpu = true });
  machine_set_current(&other);
  machine_expect("another context", machine_forward(&m), NSA_OK, NULL);
  m.toy.io.q.ndim = 0;
  machine_expect("refused", machine_forward(&m), NSA_E_ARG, "io.q");
  m.toy.io.q.ndim = 3;
  assert_int_equal(machine_record()->wrong_context, 0);
  machine_set_current(NULL);
  /* A failing launch is told, and leaves no context behind. */
  machine_record()->fail_launch = 2;
  machine_expect("launch fails", machine_forward(&m), NSA_E_CUDA, "cuLaunchKernelEx");
  machine_expect("no context", machine_forward(&m), NSA_OK, NULL);
  assert_int_equal(machine_record()->wrong_context, 0);
  machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_launch_lists),     cmocka_unit_test(test_given_selection),
    cmocka_unit_test(test_selected_kv),      cmocka_unit_test(test_selected_window_kv),
    cmocka_unit_test(test_rankings),         cmocka_unit_test(test_index),
    cmocka_unit_test(test_refused_rankings), cmocka_unit_test(test_products),
    cmocka_unit_test(test_contexts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
