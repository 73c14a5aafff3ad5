/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The public API on a sick machine: out of memory at every single allocation of a whole session, on
 * the CPU device and on the fake GPU; and without NVIDIA's libraries. Nothing may be lost: the
 * leak checker counts the memory, the fake driver its kernels and contexts.
 */
#include "support/cmocka_all.h"

#include "../unit/kv_fixture.h"
#include "reference/reference.h"
#include "starve.h"

#include <nsa/tune.h>

static void be_silent(void *user, int32_t level, const char *component, const char *text) {
  (void)user, (void)level, (void)component, (void)text;
}

/* What one session is made from; built before anything fails. */
typedef struct session {
  char yaml[1024], dir[64];
  machine_overrides overrides;
  nsa_options options;
  nsa_problem problem;
  machine *machine; /* tensors of a forward; NULL: none is run */
} session;

static void session_init(session *s, const machine_request *request) {
  memset(s, 0, sizeof *s);
  snprintf(s->dir, sizeof s->dir, "/tmp/nsa-test-fault-XXXXXX");
  assert_non_null(mkdtemp(s->dir));
  machine_yaml(request, s->yaml, sizeof s->yaml);
  machine_overrides_init(&s->overrides, s->dir, "runtime.compile_jobs=1");
  s->options = INIT(nsa_options, .yaml_text = s->yaml, .log = be_silent);
  if (request->gpu) {
    s->options.overrides = s->overrides.list;
    s->options.device = "cuda:1";
  }
  s->problem = INIT(nsa_problem, .max_tokens = 64, .max_seqs = 2);
}

/* Create, ask, prepare, plan, run, destroy. */
static nsa_status live(session *s) {
  nsa_status status;
  nsa_ctx *ctx = NULL;
  nsa_plan *plan = NULL;
  nsa_caps caps = NSA_CAPS_INIT;
  status = nsa_create(NULL, &s->options, &ctx);
  if (status == NSA_OK) status = nsa_query(ctx, &s->problem, &caps);
  if (status == NSA_OK) status = nsa_prepare(ctx, &s->problem, 1, NULL, NULL);
  if (status == NSA_OK) status = nsa_plan_create(ctx, &s->problem, NULL, NULL, &plan);
  if (status == NSA_OK && s->machine) {
    nsa_exec exec = s->machine->exec;
    status = nsa_forward(plan, &exec, &s->machine->toy.batch, &s->machine->toy.io);
  }
  assert_true((ctx != NULL) || status != NSA_OK);
  nsa_plan_destroy(plan);
  nsa_destroy(ctx);
  return status;
}

/* Fails allocation 0, 1, 2, ... until the session passes. Returns how many there were. */
static long starve(session *s) {
  for (long n = 0;; n++) {
    assert_true(n < 3000);
    machine_remove(s->dir); /* each session compiles anew */
    starve_after(n);
    nsa_status status = live(s);
    bool reached = starved();
    if (status != NSA_OK && (status != NSA_E_NOMEM || !strstr(nsa_last_error(), "memory")))
      fail_msg("allocation %ld: %s: %s", n, nsa_status_name(status), nsa_last_error());
    if (!reached) {
      assert_int_equal(status, NSA_OK);
      return n;
    }
  }
}

static void test_cpu(void **state) {
  machine m;
  session s;
  const machine_request request = { .phi = NSAI_PHI_MLP };
  machine_init(&m, &request);
  session_init(&s, &request);
  s.machine = &m;
  assert_true(starve(&s) >= 8);
  machine_free(&m);
  machine_remove(s.dir);
}

/* An append that lacks memory can be repeated, and so can attention over the cache. */
static void test_cache(void **state) {
  static const int32_t length = 40, zero = 0;
  const kv_options form = { .page_size = 16 };
  kv_fixture w;
  kv_call c;
  kv_init(&w, &(machine_request){ .phi = NSAI_PHI_MLP }, &form, 1, &length);
  kv_oracle(&w);
  kv_call_init(&c, &w, &length, &zero);
  for (int call = 0; call < 2; call++) {
    long n = 0;
    for (bool reached = true; reached; n++) {
      starve_after(n);
      nsa_status status = call ? nsa_prefill(w.prefill, &w.exec, &c.batch, &c.io)
                               : nsa_kv_append(w.append, &w.exec, &c.batch, &c.io);
      reached = starved();
      machine_expect(call ? "prefill" : "append", status, reached ? NSA_E_NOMEM : NSA_OK, NULL);
    }
    assert_true(n > 4);
  }
  kv_compare(&c, "after all");
  kv_call_free(&c);
  kv_free(&w);
}

/* The loss of an index that lacks memory has written nothing. */
static void test_index_kl(void **state) {
  machine m;
  long n = 0;
  machine_init(&m, &(machine_request){ .op = NSA_OP_INDEX_KL,
                                       .phi = NSAI_PHI_NONE,
                                       .pool = NSAI_POOL_MAX,
                                       .indexed = true });
  toy *t = &m.toy;
  nsa_index_grads g = NSA_INDEX_GRADS_INIT;
  machine_expect("forward",
                 nsai_reference_forward(&t->model, NSA_SELECT_TOPN, 0, &t->batch, &t->io, 1),
                 NSA_OK, NULL);
  g.loss = toy_tensor(t, NSA_F32, 1, 1, 0, 0);
  g.d_index_q = toy_tensor(t, NSA_F32, 3, t->tokens, 2, t->model.index_dim);
  g.d_k_idx = toy_tensor(t, NSA_F32, 3, t->kv_tokens, 1, t->model.index_dim);
  const nsa_tensor *outputs[] = { &g.loss, &g.d_index_q, &g.d_k_idx };
  for (bool reached = true; reached; n++) {
    starve_after(n);
    nsa_status status = nsa_index_kl(m.plan, &m.exec, &t->batch, &t->io, &g);
    reached = starved();
    machine_expect("index_kl", status, reached ? NSA_E_NOMEM : NSA_OK, NULL);
    for (int i = 0; i < 3; i++)
      for (int64_t e = 0; e < toy_count(outputs[i]); e++)
        assert_true((toy_ints(outputs[i])[e] == -1) == reached);
  }
  assert_true(n > 7);
  machine_free(&m);
}

/* A backward pass that lacks memory has written nothing. */
static void test_backward(void **state) {
  machine m;
  long n = 0;
  machine_init(&m, &(machine_request){
                       .op = NSA_OP_BACKWARD, .phi = NSAI_PHI_MLP, .gate = NSAI_GATE_MLP });
  toy *t = &m.toy;
  nsa_grads g = NSA_GRADS_INIT;
  g.d_o = toy_tensor(t, NSA_F32, 3, t->tokens, t->model.heads, t->model.head_dim_v);
  g.d_q = toy_tensor(t, NSA_F32, 3, t->tokens, t->model.heads, t->model.head_dim_qk);
  g.d_kv.k[0] = toy_tensor(t, NSA_F32, 3, t->tokens, 2, t->model.head_dim_qk);
  g.d_gate.x = toy_tensor(t, NSA_F32, 2, t->tokens, t->model.gate_channels, 0);
  toy_randomize(t, &g.d_o);
  const nsa_tensor *outputs[] = { &g.d_q, &g.d_kv.k[0], &g.d_gate.x };
  for (bool reached = true; reached; n++) {
    starve_after(n);
    nsa_status status = nsa_backward(m.plan, &m.exec, &t->batch, &t->io, &g);
    reached = starved();
    machine_expect("backward", status, reached ? NSA_E_NOMEM : NSA_OK, NULL);
    for (int i = 0; i < 3; i++)
      for (int64_t e = 0; e < toy_count(outputs[i]); e++)
        assert_true((toy_ints(outputs[i])[e] == -1) == reached);
  }
  assert_true(n > 10);
  machine_free(&m);
}

static void test_gpu(void **state) {
  machine m;
  session s;
  const machine_request request = { .gpu = true, .phi = NSAI_PHI_MLP };
  machine_init(&m, &request);
  session_init(&s, &request);
  s.machine = &m;
  assert_true(starve(&s) > 50);
  machine_free(&m);
  machine_remove(s.dir);
  const fake_cuda_state *r = machine_record();
  assert_int_equal(r->retained, 0);
  assert_int_equal(r->handles, 0);
  assert_int_equal(r->loads, r->unloads);
}

/* A run that lacks memory to look at the values of its batch enqueues nothing. */
static void test_values(void **state) {
  machine m;
  long n = 0;
  machine_init(&m, &(machine_request){ .gpu = true, .override = "runtime.check_inputs=full" });
  for (bool reached = true; reached; n++) {
    int launches = machine_record()->launches;
    starve_after(n);
    nsa_status status = machine_forward(&m);
    reached = starved();
    machine_expect("values", status, reached ? NSA_E_NOMEM : NSA_OK, NULL);
    assert_int_equal(machine_record()->launches > launches, !reached);
  }
  assert_true(n >= 2); /* cu_q, at least */
  machine_free(&m);
}

/* A tuning that lacks memory says so, and gives everything back. Kernels compute nothing here, so
 * that one with enough memory ends where the heuristic's choice is found out. */
static void test_tuning(void **state) {
  session s;
  nsa_ctx *ctx;
  session_init(&s, &(machine_request){ .gpu = true });
  s.problem.op = NSA_OP_DENSE;
  nsa_tune_options o = INIT(nsa_tune_options, .level = NSA_TUNE_QUICK);
  machine_expect("create", nsa_create(NULL, &s.options, &ctx), NSA_OK, NULL);
  bool reached = true;
  for (long n = 0; reached; n += 1 + n / 20) {
    assert_true(n < 100000);
    starve_after(n);
    nsa_status status = nsa_tune(ctx, &s.problem, 1, &o);
    reached = starved();
    if (status != NSA_E_VERIFY && (status != NSA_E_NOMEM || !strstr(nsa_last_error(), "memory")))
      fail_msg("allocation %ld: %s: %s", n, nsa_status_name(status), nsa_last_error());
    if (!reached) assert_int_equal(status, NSA_E_VERIFY);
    const fake_cuda_state *r = machine_record();
    assert_int_equal(r->blocks + r->streams + r->events + r->wrong_context, 0);
  }
  nsa_destroy(ctx);
  machine_remove(s.dir);
  assert_int_equal(machine_record()->retained, 0);
}

/* A missing library is named with its path, when it is needed and not before. */
static void test_missing_libraries(void **state) {
  session s;
  nsa_ctx *ctx;
  nsa_plan *plan;
  session_init(&s, &(machine_request){ .gpu = true });
  snprintf(s.overrides.text[1], sizeof s.overrides.text[1],
           "runtime.nvrtc_path=/nonexistent/libnvrtc.so");
  machine_expect("create", nsa_create(NULL, &s.options, &ctx), NSA_OK, NULL);
  machine_expect("prepare", nsa_prepare(ctx, &s.problem, 1, NULL, NULL), NSA_E_NO_COMPILER,
                 "/nonexistent/libnvrtc.so");
  machine_expect("plan", nsa_plan_create(ctx, &s.problem, NULL, NULL, &plan), NSA_E_NO_COMPILER,
                 "runtime.nvrtc_path");
  assert_null(plan);
  nsa_destroy(ctx);
  machine_remove(s.dir);
  session_init(&s, &(machine_request){ .gpu = true, .phi = NSAI_PHI_MLP });
  snprintf(s.overrides.text[2], sizeof s.overrides.text[2],
           "runtime.cublaslt_path=/nonexistent/libcublasLt.so");
  machine_expect("create", nsa_create(NULL, &s.options, &ctx), NSA_OK, NULL);
  machine_expect("prepare", nsa_prepare(ctx, &s.problem, 1, NULL, NULL), NSA_OK, NULL);
  machine_expect("plan", nsa_plan_create(ctx, &s.problem, NULL, NULL, &plan), NSA_E_NO_CUBLASLT,
                 "/nonexistent/libcublasLt.so");
  assert_null(plan);
  nsa_destroy(ctx);
  snprintf(s.overrides.text[0], sizeof s.overrides.text[0],
           "runtime.driver_path=/nonexistent/libcuda.so");
  machine_expect("create", nsa_create(NULL, &s.options, &ctx), NSA_E_NO_DRIVER,
                 "/nonexistent/libcuda.so");
  assert_null(ctx);
  machine_remove(s.dir);
  assert_int_equal(machine_record()->retained, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_cpu),      cmocka_unit_test(test_cache),
    cmocka_unit_test(test_backward), cmocka_unit_test(test_index_kl),
    cmocka_unit_test(test_gpu),      cmocka_unit_test(test_values),
    cmocka_unit_test(test_tuning),   cmocka_unit_test(test_missing_libraries),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
