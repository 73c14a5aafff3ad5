/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What nsa_backward refuses, each by its name; what it launches on a GPU.
 */
#include "support/cmocka_all.h"

#include "variants/backward/layers.h"

#include "gradients.h"
#include "plan/context.h"

/* A machine with a plan of a backward pass, the forward's blocks, and a gradient of everything. */
static toy *begin(machine *m, const machine_request *request, int32_t dtype, nsa_grads *g) {
  machine_request own = *request;
  own.op = NSA_OP_BACKWARD;
  machine_init(m, &own);
  choose(&m->toy);
  *g = make_grads(&m->toy, dtype);
  return &m->toy;
}

/* Runs the pass; on the fake GPU its launches alone are on record then. */
static void accept(machine *m, const char *what, const nsa_grads *g) {
  if (!m->ctx->cpu) machine_record()->launches = 0;
  machine_expect(what, nsa_backward(m->plan, &m->exec, &m->toy.batch, &m->toy.io, g), NSA_OK, NULL);
}

static void refuse(machine *m, const nsa_io *io, const nsa_grads *g, const char *text) {
  nsa_status status = nsa_backward(m->plan, &m->exec, &m->toy.batch, io, g);
  machine_expect(text, status, NSA_E_ARG, text);
}

/* Gradients of what this model (mean, weights, shared) does not have. */
static void test_absent(void **state) {
  machine m;
  nsa_grads g;
  toy *t = begin(&m, &(machine_request){ 0 }, NSA_F32, &g);
  nsa_tensor any = g.d_q;
  const struct {
    nsa_tensor *tensor;
    const char *text;
  } cases[] = {
    { &g.d_kv.k[1], "grads.d_kv.k[1] is wanted, but the model does not read this pair" },
    { &g.d_kv.v[2], "grads.d_kv.v[2] is wanted" },
    { &g.d_kv.k_cmp, "grads.d_kv.k_cmp is wanted, but model.compress.phi is not external" },
    { &g.d_phi.k.pe, "grads.d_phi.k.pe is wanted" },
    { &g.d_phi.v.w2, "grads.d_phi.v.w2 is wanted" },
    { &g.d_gate.x, "grads.d_gate.x is wanted" },
    { &g.d_gate.w1, "grads.d_gate.w1 is wanted" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    *cases[i].tensor = any;
    refuse(&m, &t->io, &g, cases[i].text);
    *cases[i].tensor = (nsa_tensor){ 0 };
  }
  accept(&m, "good", &g);
  machine_free(&m);
}

/* Without gates none has a gradient. */
static void test_no_gates(void **state) {
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    nsa_grads g;
    const int32_t dtype = gpu ? NSA_BF16 : NSA_F32;
    const machine_request request = { .gpu = gpu, .gate = NSAI_GATE_NONE };
    toy *t = begin(&m, &request, dtype, &g);
    accept(&m, "good", &g);
    g.d_gate.value = toy_tensor(t, dtype, 3, t->tokens, 6, 3);
    refuse(&m, &t->io, &g, "grads.d_gate.value is wanted, but the model does not read it");
    machine_free(&m);
  }
}

/* Every gradient of a model with all weights: wrong shape, dtype and stride are refused by name. */
static void test_each_tensor(void **state) {
  machine m;
  nsa_grads g;
  pair pairs[MAX_PAIRS + 1];
  const machine_request request = {
    .phi = NSAI_PHI_MLP, .gate = NSAI_GATE_MLP, .gate_hidden = 8, .per_branch = true
  };
  toy *t = begin(&m, &request, NSA_F32, &g);
  int count = list_pairs(&t->io, &g, pairs);
  pairs[count++] = (pair){ "o", &t->io.o, &g.d_o };
  for (int k = 0; k < count; k++) {
    nsa_tensor *x = pairs[k].gradient, good = *x;
    x->shape[x->ndim - 1]++;
    refuse(&m, &t->io, &g, pairs[k].name);
    *x = good;
    x->ndim++;
    refuse(&m, &t->io, &g, "dimensions, expected");
    *x = good;
    x->dtype = NSA_BF16;
    refuse(&m, &t->io, &g, "has dtype bf16, expected f32");
    *x = good;
    x->stride[x->ndim - 1] = 2;
    refuse(&m, &t->io, &g, "expected 1: make the last dimension contiguous");
    *x = good;
    if (x == &g.d_o || x->ndim == 1) continue; /* an input; one row */
    x->stride[0] = 0;
    refuse(&m, &t->io, &g, "has stride[0] = 0, and its elements lie on or between each other");
    *x = good;
  }
  accept(&m, "good", &g);
  machine_free(&m);
}

static void test_arguments(void **state) {
  machine m, other;
  nsa_grads g;
  toy *t = begin(&m, &(machine_request){ 0 }, NSA_F32, &g);
  machine_init(&other, &(machine_request){ 0 });
  nsa_grads bad = g;
  nsa_io io = t->io;
  refuse(&m, &io, NULL, "grads is NULL");
  bad.accumulate = 2;
  refuse(&m, &io, &bad, "grads.accumulate is 2");
  bad = g;
  bad.d_o = (nsa_tensor){ 0 };
  refuse(&m, &io, &bad, "grads.d_o is missing");
  io.block_idx = (nsa_tensor){ 0 };
  refuse(&m, &io, &g, "io.block_idx is missing");
  io = t->io;
  io.probe_rows = io.probe_importance = g.d_q;
  refuse(&m, &io, &g, "io.probe_rows is given, but NSA_OP_BACKWARD");
  io = t->io;
  io.q.shape[0]++;
  refuse(&m, &io, &g, "io.");
  machine_expect("plan", nsa_backward(other.plan, &m.exec, &t->batch, &t->io, &g), NSA_E_ARG,
                 "made for problem.op NSA_OP_FORWARD, this call runs NSA_OP_BACKWARD");
  machine_expect("forward", nsa_forward(m.plan, &m.exec, &t->batch, &t->io), NSA_E_ARG,
                 "made for problem.op NSA_OP_BACKWARD, this call runs NSA_OP_FORWARD");
  machine_free(&m);
  machine_free(&other);
}

/* Launches of several passes: sorting and inverting the lists; the forward of phi for K or
 * V; the gradient of an activation with the sums for its bias; a product that is a gradient. */
#define LISTS "data_sort_blocks data_invert_count data_invert_scan data_invert_fill "
#define PHI_LINEAR "compress_gather_rows matmul compress_bias_activation "
#define PHI_MLP PHI_LINEAR "matmul matmul compress_bias_activation "
#define BIAS "backward_activation backward_column_sums backward_column_sums "
#define PRODUCT "matmul backward_store_gradient "

/* What a GPU has kernels for runs there: every launch of a backward pass, in order. */
static void test_gpu(void **state) {
  static const char names[] = "compress_mean " LISTS "backward_row_stats_tma backward_dq_tma "
                              "backward_dkv_compressed backward_dkv_window "
                              "backward_dkv_selected backward_dkv_sum";
  machine m;
  nsa_grads g;
  toy *t = begin(&m, &(machine_request){ .gpu = true }, NSA_BF16, &g);
  fake_cuda_state *record = machine_record();
  accept(&m, "saved", &g);
  assert_int_equal(record->launches, 11);
  assert_string_equal(record->launch[5].name, "backward_row_stats_saved");
  memset(t->io.o_branch, 0, sizeof t->io.o_branch);
  accept(&m, "good", &g);
  machine_expect_launches(names);
  assert_false(record->launch[0].overlaps);
  machine_free(&m);
}

/* Kernels copy rows of 16-bit tensors in pieces of 16 bytes, and the CPU device asks for the
 * same. */
static void test_alignment(void **state) {
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    nsa_grads g;
    toy *t = begin(&m, &(machine_request){ .gpu = gpu, .dtype = NSA_BF16 }, NSA_BF16, &g);
    nsa_tensor *const rows[] = { &g.d_o, &g.d_q, &g.d_kv.k[0], &g.d_kv.v[0] };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
      nsa_tensor good = *rows[i];
      rows[i]->data = (uint16_t *)good.data + 4;
      refuse(&m, &t->io, &g, ".data is not aligned to 16 bytes");
      *rows[i] = good;
      rows[i]->stride[0] += 4;
      refuse(&m, &t->io, &g, "expected a multiple of 8 elements (16 bytes)");
      *rows[i] = good;
    }
    machine_free(&m);
  }
}

/* A tensor like x with memory behind its last element, so that it can move and widen. */
static nsa_tensor roomy(toy *t, const nsa_tensor *x, int32_t dtype) {
  nsa_tensor roomy = toy_tensor(t, dtype, x->ndim, 2 * x->shape[0], x->shape[1], x->shape[2]);
  roomy.shape[0] = x->shape[0];
  return roomy;
}

/* Gradients of gates and in f32 may lie anywhere. */
static void test_gpu_free_alignment(void **state) {
  machine m;
  nsa_grads g;
  toy *t = begin(&m, &(machine_request){ .gpu = true }, NSA_BF16, &g);
  nsa_grads floats = make_grads(t, NSA_F32);
  g.d_gate.value = roomy(t, &g.d_gate.value, NSA_BF16);
  g.d_gate.value.data = (uint16_t *)g.d_gate.value.data + 1; /* elements of their own */
  accept(&m, "gate", &g);
  floats.d_o = g.d_o;
  floats.d_q = roomy(t, &g.d_q, NSA_F32);
  floats.d_kv.v[0] = roomy(t, &g.d_kv.v[0], NSA_F32);
  floats.d_q.data = (float *)floats.d_q.data + 1;
  floats.d_kv.v[0].stride[0] += 1;
  floats.d_kv.v[0].stride[1] += 1;
  accept(&m, "f32", &floats);
  machine_free(&m);
}

/* Keys, and no query that sees them: gradients of 0, lists without entries. Nothing is kept of no
 * rows. */
static void expect_no_queries(const char *override) {
  static const int32_t none[] = { 0, 0 }, keys[] = { 0, 9 };
  machine m;
  nsa_grads g;
  toy *t = begin(&m, &(machine_request){ .gpu = true, .override = override }, NSA_BF16, &g);
  nsa_tensor *const cut[] = { &t->io.q,
                              &t->io.o,
                              &t->io.gate.value,
                              &t->io.block_idx,
                              &t->io.o_branch[0],
                              &t->io.o_branch[1],
                              &t->io.o_branch[2],
                              &t->io.lse[0],
                              &t->io.lse[1],
                              &t->io.lse[2],
                              &g.d_o,
                              &g.d_q,
                              &g.d_gate.value };
  for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) cut[i]->shape[0] = 0;
  for (int branch = 0; branch < NSA_BRANCHES; branch++)
    t->io.o_branch[branch].data = t->io.lse[branch].data = NULL;
  t->batch.num_seqs = 1;
  t->batch.cu_q.data = (void *)(uintptr_t)none;
  t->batch.cu_kv = t->batch.cu_q;
  t->batch.cu_kv.data = (void *)(uintptr_t)keys;
  t->batch.cu_q.shape[0] = t->batch.cu_kv.shape[0] = 2;
  if (t->batch.cu_cmp.data) t->batch.cu_cmp.shape[0] = 2;
  fake_cuda_state *record = machine_record();
  accept(&m, "good", &g);
  int scans = 0, sums = 0;
  for (int i = 0; i < record->launches; i++) {
    assert_string_not_equal(record->launch[i].name, "backward_row_stats");
    scans += !strcmp(record->launch[i].name, "data_invert_scan");
    sums += !strcmp(record->launch[i].name, "backward_dkv_sum");
  }
  assert_int_equal(scans, 1); /* leaves no items */
  assert_int_equal(sums, 1);
  machine_free(&m);
}

static void test_gpu_no_queries(void **state) {
  expect_no_queries("runtime.recompute=auto");
  expect_no_queries("runtime.recompute=never");
}

/* ---- the layers of phi and of the gate ---- */

/* Runs a pass, whose launches must be `names`. */
static void expect_launches(machine *m, const nsa_grads *g, const char *names) {
  accept(m, "backward", g);
  machine_expect_launches(names);
}

/* Leaves out everything but these gradients. */
static nsa_grads only(const nsa_grads *all, const nsa_phi *phi, const nsa_gate *gate) {
  nsa_grads g = NSA_GRADS_INIT;
  g.d_o = all->d_o;
  if (phi) g.d_phi = *phi;
  if (gate) g.d_gate = *gate;
  return g;
}

/* phi linear: products of rows and of their sums, dW and dX, K and V; then the sums over the raw
 * tokens. */
static void test_gpu_linear(void **state) {
  static const char names[] = PHI_LINEAR PHI_LINEAR LISTS
      "backward_row_stats_tma backward_dq_tma backward_dkv_compressed "
      "compress_gather_rows " BIAS PRODUCT PRODUCT "compress_gather_rows " BIAS PRODUCT PRODUCT
      "backward_dkv_window backward_dkv_selected backward_dkv_sum";
  machine m;
  nsa_grads g;
  toy *t = begin(&m, &(machine_request){ .gpu = true, .phi = NSAI_PHI_LINEAR }, NSA_BF16, &g);
  memset(t->io.o_branch, 0, sizeof t->io.o_branch);
  expect_launches(&m, &g, names);
  /* Weights of V alone need no window, no selected branch, no rows of K, and no dX. */
  nsa_phi weights = { .v.w = g.d_phi.v.w };
  nsa_grads few = only(&g, &weights, NULL);
  expect_launches(&m, &few,
                  PHI_LINEAR PHI_LINEAR "data_sort_blocks backward_row_stats_tma "
                                        "backward_dkv_compressed compress_gather_rows " BIAS
                                        "matmul "
                                        "backward_store_gradient");
  /* Where the branch does not run, its weights' gradients become 0. */
  m.exec.branches = 1u << NSA_WIN;
  t->io.lse[0] = t->io.lse[1] = (nsa_tensor){ 0 };
  expect_launches(&m, &few, "backward_row_stats_tma backward_store_gradient");
  machine_free(&m);
}

/* phi mlp: the hidden layer again, and both layers' products. */
static void test_gpu_mlp(void **state) {
  machine m;
  nsa_grads g;
  toy *t = begin(&m, &(machine_request){ .gpu = true, .phi = NSAI_PHI_MLP }, NSA_F32, &g);
  memset(t->io.o_branch, 0, sizeof t->io.o_branch);
  g.d_o = make_grads(t, NSA_BF16).d_o;
  nsa_phi weights = { .k = g.d_phi.k };
  nsa_grads few = only(&g, &weights, NULL);
  /* Of K: z, d_out and b2, dY W2^T, dZ and b1, w2, w1, dX with pe. */
  expect_launches(&m, &few,
                  PHI_MLP PHI_MLP "data_sort_blocks backward_row_stats_tma "
                                  "backward_dkv_compressed compress_gather_rows matmul " BIAS
                                  "backward_store_gradient matmul " BIAS
                                  "backward_store_gradient " PRODUCT PRODUCT
                                  "matmul backward_store_gradient");
  accept(&m, "all", &g);
  machine_free(&m);
}

/* Their products are sums over tokens or blocks, of any number: runtime/driver/gemm.c. */
static void test_gpu_whole_sums(void **state) {
  machine m;
  nsa_grads g;
  begin(&m, &(machine_request){ .gpu = true, .phi = NSAI_PHI_LINEAR }, NSA_BF16, &g);
  const nsai_run run = { .plan = m.plan };
  const nsai_layers_pass pass = { .run = &run, .batch = 1 };
  assert_true(nsai_batched_gemm(&pass, 8, 8, 128).whole_k);
  machine_free(&m);
}

/* The gate MLP: logits first, their gradients through the layers, the features' rows that exist. */
static void test_gpu_gate(void **state) {
  /* b2; then w2 and x. */
  static const char one[] =
      "matmul compress_bias_activation compress_mean data_sort_blocks backward_row_stats_tma " BIAS
      "backward_store_gradient backward_present_rows matmul matmul "
      "backward_store_gradient backward_store_gradient";
  /* b2; b1; w2; then w1 and x. */
  static const char two[] =
      "matmul compress_bias_activation matmul compress_bias_activation "
      "compress_mean data_sort_blocks backward_row_stats_tma " BIAS
      "backward_store_gradient matmul " BIAS "backward_store_gradient " PRODUCT
      "backward_present_rows matmul matmul backward_store_gradient backward_store_gradient";
  for (int hidden = 0; hidden <= 8; hidden += 8) {
    machine m;
    nsa_grads g;
    const machine_request request = { .gpu = true, .gate = NSAI_GATE_MLP, .gate_hidden = hidden };
    toy *t = begin(&m, &request, NSA_BF16, &g);
    memset(t->io.o_branch, 0, sizeof t->io.o_branch);
    nsa_grads few = only(&g, NULL, &g.d_gate);
    expect_launches(&m, &few, hidden ? two : one);
    accept(&m, "all", &g);
    machine_free(&m);
  }
}

/* A caller's ranges have no lists of tokens. */
static void test_gpu_ranges(void **state) {
  static const char names[] =
      "compress_mean data_sort_ranges backward_row_stats_tma backward_dq_tma "
      "backward_dkv_compressed backward_dkv_window backward_dkv_ranges backward_dkv_sum";
  machine m;
  machine_init(&m, &(machine_request){
                       .op = NSA_OP_BACKWARD, .gpu = true, .selection = NSA_SELECT_RANGES });
  toy *t = &m.toy;
  t->io.ranges = toy_tensor(t, NSA_I32, 3, t->tokens, t->model.select_count, 2);
  memset(t->io.o_branch, 0, sizeof t->io.o_branch);
  nsa_grads g = make_grads(t, NSA_BF16);
  expect_launches(&m, &g, names);
  machine_free(&m);
}

/* ---- d_o in f32, and runtime.recompute ---- */

/* d_o in f32 takes workspace behind the plan's, and one launch. The CPU device asks for it as well. */
static void try_f32_d_o(bool gpu) {
  machine m;
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_grads g;
  toy *t = begin(&m, &(machine_request){ .gpu = gpu, .dtype = NSA_BF16 }, NSA_BF16, &g);
  g.d_o = tensor_like(t, &g.d_o, NSA_F32);
  machine_expect("caps", nsa_plan_caps(m.plan, &caps), NSA_OK, NULL);
  uint64_t bytes = caps.workspace_bytes + (uint64_t)toy_count(&g.d_o) * 2;
  void *plans = m.exec.workspace, *room = NULL;
  assert_int_equal(posix_memalign(&room, 4096, bytes), 0);
  m.exec.workspace = room;
  m.exec.workspace_bytes = bytes - 1;
  machine_expect("small", nsa_backward(m.plan, &m.exec, &t->batch, &t->io, &g), NSA_E_WORKSPACE,
                 "2 for each element of d_o");
  m.exec.workspace_bytes = bytes;
  fake_cuda_state *record = machine_record();
  accept(&m, "good", &g);
  if (gpu) assert_string_equal(record->launch[0].name, "backward_round_do");
  m.exec.workspace = plans;
  free(room);
  machine_free(&m);
}

static void test_f32_d_o(void **state) {
  try_f32_d_o(false);
  try_f32_d_o(true);
}

static int count_launches(const char *name) {
  const fake_cuda_state *record = machine_record();
  int count = 0;
  for (int i = 0; i < record->launches; i++) count += !strcmp(record->launch[i].name, name);
  return count;
}

/* What the forward left is read, must be there, or is ignored; which, nsa_explain says. */
static void test_recompute(void **state) {
  static const struct {
    const char *override;
    int saved, statistics;
    const char *story;
  } cases[] = {
    { "runtime.recompute=auto", 1, 0, "runtime.recompute: auto" },
    { "runtime.recompute=always", 0, 1, "runtime.recompute: always" },
    { "runtime.recompute=never", 1, 0, "runtime.recompute: never" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char story[16384];
    machine m;
    nsa_grads g;
    const machine_request request = { .gpu = true, .override = cases[i].override };
    toy *t = begin(&m, &request, NSA_BF16, &g);
    accept(&m, "given", &g);
    assert_int_equal(count_launches("backward_row_stats_saved"), cases[i].saved);
    assert_int_equal(count_launches("backward_row_stats_tma"), cases[i].statistics);
    nsa_problem p = machine_problem(NSA_OP_BACKWARD, 64, 0);
    nsa_explain(m.ctx, &p, story, sizeof story);
    assert_non_null(strstr(story, cases[i].story));
    t->io.lse[1] = (nsa_tensor){ 0 };
    if (i == 2) {
      refuse(&m, &t->io, &g, "io.lse[1] is missing, but runtime.recompute is never");
      t->io.o_branch[1] = (nsa_tensor){ 0 };
      refuse(&m, &t->io, &g, "io.o_branch[1] is missing");
      m.exec.branches = 1u << NSA_CMP | 1u << NSA_WIN; /* it does not run */
    }
    accept(&m, "missing", &g);
    machine_free(&m);
  }
}

/* Which row of backward_q a forced name gets. */
static void test_rows_of_q(void **state) {
  static const struct {
    const char *override;
    int tma, plain;
  } cases[] = {
    { "runtime.recompute=always", 1, 0 },
    { "variants.force.backward_q=backward_q_sm90_tma", 1, 0 },
    { "variants.force.backward_q=backward_q_sm90", 0, 1 },
    { "variants.force.backward_q=backward_q_sm80", 0, 1 },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    machine m;
    nsa_grads g;
    begin(&m, &(machine_request){ .gpu = true, .override = cases[i].override }, NSA_BF16, &g);
    accept(&m, cases[i].override, &g);
    assert_int_equal(count_launches("backward_dq_tma"), cases[i].tma);
    assert_int_equal(count_launches("backward_dq"), cases[i].plain);
    machine_free(&m);
  }
}

/* What nsa_explain says of models that the kernels with tensor maps serve, and do not. */
static void test_rows_of_models(void **state) {
  static const struct {
    const char *override;
    int selection;
    const char *says[2];
  } cases[] = {
    { "model.head_dim_qk=256",
      NSA_SELECT_TOPN,
      { "model.head_dim_qk is 256: of this group and gate it takes at most 176",
        "backward_q_sm90: chosen" } },
    { "model.head_dim_qk=256",
      NSA_SELECT_TOPN,
      { "backward_q_kv_sm90: no\n", "model.head_dim_qk is 256: it takes 64 and 128" } },
    { "model.kv_heads=6",
      NSA_SELECT_TOPN,
      { "a KV head has 1 query heads: it takes at least 2", "backward_q_sm90: chosen" } },
    { "model.kv_heads=3",
      NSA_SELECT_TOPN,
      { "backward_q_kv_sm90: no\n", "a KV head has 2 query heads: it takes at least 4" } },
    { "model.kv_heads=6",
      NSA_SELECT_TOPN,
      { "backward_q_kv_slots_sm90: no\n", "model.head_dim_qk is 24: it takes 64 and 128" } },
    { "model.heads=10",
      NSA_SELECT_TOPN,
      { "backward_q_kv_slots_sm90: no\n", "a KV head has 5 query heads: it takes at most 4" } },
    { "model.select.block=80",
      NSA_SELECT_TOPN,
      { "backward_q_kv_slots_sm90: no\n", "model.select.block is 80: it takes at most 64" } },
    { "model.kv_heads=3",
      NSA_SELECT_RANGES,
      { "backward_q_kv_slots_sm90: no\n",
        "the caller brings ranges: only blocks have lists of tokens" } },
    { "model.kv_heads=3",
      NSA_SELECT_TOPN,
      { "backward_q_sm90_tma: chosen", "kernel backward_dkv_selected: " } },
    { "model.kv_heads=3",
      NSA_SELECT_RANGES,
      { "a KV head has 2 query heads: with ranges it takes at least 3",
        "backward_q_sm90: chosen" } },
    { "model.heads=8",
      NSA_SELECT_TOPN,
      { "kernel backward_dkv_compressed_tma: ", "kernel backward_dkv_window_persistent: " } },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char story[16384];
    machine m;
    nsa_problem p = machine_problem(NSA_OP_BACKWARD, 64, 0);
    p.selection = cases[i].selection;
    machine_init(&m, &(machine_request){
                         .op = NSA_OP_BACKWARD, .gpu = true, .override = cases[i].override });
    nsa_explain(m.ctx, &p, story, sizeof story);
    for (int k = 0; k < 2; k++)
      if (!strstr(story, cases[i].says[k]))
        fail_msg("%s: no '%s' in\n%s", cases[i].override, cases[i].says[k], story);
    machine_free(&m);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_no_gates),
    cmocka_unit_test(test_absent),
    cmocka_unit_test(test_each_tensor),
    cmocka_unit_test(test_arguments),
    cmocka_unit_test(test_gpu),
    cmocka_unit_test(test_alignment),
    cmocka_unit_test(test_gpu_free_alignment),
    cmocka_unit_test(test_gpu_no_queries),
    cmocka_unit_test(test_gpu_linear),
    cmocka_unit_test(test_gpu_mlp),
    cmocka_unit_test(test_gpu_whole_sums),
    cmocka_unit_test(test_gpu_gate),
    cmocka_unit_test(test_gpu_ranges),
    cmocka_unit_test(test_f32_d_o),
    cmocka_unit_test(test_recompute),
    cmocka_unit_test(test_rows_of_q),
    cmocka_unit_test(test_rows_of_models),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
