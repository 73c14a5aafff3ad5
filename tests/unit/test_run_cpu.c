/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The run calls on the CPU device: each equals the reference called directly, bit for bit, and a
 * case of tests/vectors comes out through a YAML text.
 */
#include "support/cmocka_all.h"

#include "machine.h"
#include "reference/reference.h"
#include "vector_file.h"

#include <math.h>

static void expect_forward(const machine_request *request, uint32_t branches) {
  machine m;
  machine_init(&m, request);
  toy *t = &m.toy;
  for (int b = 0; b < NSA_BRANCHES && branches; b++)
    if (!(branches >> b & 1)) t->io.o_branch[b] = t->io.lse[b] = (nsa_tensor){ 0 };
  nsa_io direct = t->io;
  toy_outputs(t, &direct, t->tokens);
  for (int b = 0; b < NSA_BRANCHES; b++)
    if (!t->io.lse[b].data) direct.o_branch[b] = direct.lse[b] = (nsa_tensor){ 0 };
  m.exec.branches = branches;
  machine_expect("nsa_forward", nsa_forward(m.plan, &m.exec, &t->batch, &t->io), NSA_OK, NULL);
  machine_expect("reference",
                 nsai_reference_forward(&t->model, NSA_SELECT_TOPN, branches, &t->batch, &direct,
                                        2),
                 NSA_OK, NULL);
  toy_same("o", &t->io.o, &direct.o, t->tokens);
  toy_same("block_idx", &t->io.block_idx, &direct.block_idx, t->tokens);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!t->io.lse[b].data) continue;
    toy_same("o_branch", &t->io.o_branch[b], &direct.o_branch[b], t->tokens);
    toy_same("lse", &t->io.lse[b], &direct.lse[b], t->tokens);
  }
  for (int64_t i = 0; i < toy_count(&t->io.o); i++) assert_true(isfinite(toy_floats(&t->io.o)[i]));
  machine_free(&m);
}

static void test_forward(void **state) {
  expect_forward(&(machine_request){ 0 }, 0);
  expect_forward(&(machine_request){ 0 }, 1u << NSA_CMP | 1u << NSA_WIN);
  expect_forward(&(machine_request){ 0 }, 1u << NSA_SEL);
  expect_forward(&(machine_request){ .per_branch = true, .gate = NSAI_GATE_LOGITS }, 0);
  expect_forward(&(machine_request){ .phi = NSAI_PHI_LINEAR }, 0);
  expect_forward(&(machine_request){ .phi = NSAI_PHI_MLP }, 0);
  expect_forward(&(machine_request){ .phi = NSAI_PHI_EXTERNAL }, 0);
  expect_forward(&(machine_request){ .gate = NSAI_GATE_MLP, .gate_hidden = 8 }, 0);
  expect_forward(&(machine_request){ .gate = NSAI_GATE_NONE }, 0);
  expect_forward(&(machine_request){ .keys_only = true }, 0);
  expect_forward(&(machine_request){ .keys_only = true, .phi = NSAI_PHI_MLP }, 1u << NSA_SEL);
  expect_forward(&(machine_request){ .keys_only = true, .phi = NSAI_PHI_EXTERNAL }, 0);
  const machine_request indexed = { .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true };
  expect_forward(&indexed, 0);
  expect_forward(&indexed, 1u << NSA_SEL);
  expect_forward(&indexed, 1u << NSA_WIN);
}

/* Given blocks: those that the library chose itself lead to the same output. */
static void test_given_blocks(void **state) {
  machine own, given;
  machine_init(&own, &(machine_request){ 0 });
  machine_init(&given, &(machine_request){ .selection = NSA_SELECT_BLOCKS });
  machine_expect("own", nsa_forward(own.plan, &own.exec, &own.toy.batch, &own.toy.io), NSA_OK,
                 NULL);
  nsa_io io = own.toy.io; /* the indices are an input now */
  toy_outputs(&given.toy, &io, own.toy.tokens);
  io.block_idx = own.toy.io.block_idx;
  machine_expect("given", nsa_forward(given.plan, &given.exec, &own.toy.batch, &io), NSA_OK, NULL);
  toy_same("o", &io.o, &own.toy.io.o, own.toy.tokens);
  machine_free(&own);
  machine_free(&given);
}

static void test_dense(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ .op = NSA_OP_DENSE });
  toy *t = &m.toy;
  nsa_io direct = t->io;
  toy_outputs(t, &direct, t->tokens);
  memset(direct.o_branch, 0, sizeof direct.o_branch);
  machine_expect("nsa_dense", nsa_dense(m.plan, &m.exec, &t->batch, &t->io), NSA_OK, NULL);
  machine_expect("reference", nsai_reference_dense(&t->model, &t->batch, &direct, 1), NSA_OK, NULL);
  toy_same("o", &t->io.o, &direct.o, t->tokens);
  toy_same("lse", &t->io.lse[0], &direct.lse[0], t->tokens);
  machine_free(&m);
}

/* The stages alone: phi, then the importance by a probe, then the top-n of it, are the forward's.
 */
static void test_stages(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ .phi = NSAI_PHI_MLP, .max_probe_rows = 40 });
  toy *t = &m.toy;
  nsa_io *io = &t->io;
  static const int32_t blocks[] = { 3, 4 };
  nsa_tensor k[2], v[2];
  t->batch.cu_cmp = toy_offsets(t, 2, blocks);
  for (int i = 0; i < 2; i++) {
    k[i] = toy_tensor(t, NSA_F32, 3, 7, 2, 24);
    v[i] = toy_tensor(t, NSA_F32, 3, 7, 2, 16);
  }
  io->kv.k_cmp = k[0];
  io->kv.v_cmp = v[0];
  machine_expect("nsa_compress", nsa_compress(m.plan, &m.exec, &t->batch, io), NSA_OK, NULL);
  io->kv.k_cmp = k[1];
  io->kv.v_cmp = v[1];
  io->probe_rows = toy_tensor(t, NSA_I32, 1, t->tokens, 0, 0);
  for (int32_t i = 0; i < t->tokens; i++) toy_ints(&io->probe_rows)[i] = i;
  io->probe_importance = toy_tensor(t, NSA_F32, 3, t->tokens, 2, 4);
  machine_expect("nsa_forward", nsa_forward(m.plan, &m.exec, &t->batch, io), NSA_OK, NULL);
  toy_same("k_cmp", &k[0], &k[1], 7);
  toy_same("v_cmp", &v[0], &v[1], 7);
  nsa_tensor chosen = io->block_idx;
  io->importance = io->probe_importance;
  io->block_idx = toy_tensor(t, NSA_I32, 3, t->tokens, 2, 4);
  machine_expect("nsa_select", nsa_select(m.plan, &m.exec, &t->batch, io), NSA_OK, NULL);
  toy_same("block_idx", &io->block_idx, &chosen, t->tokens);
  machine_free(&m);
}

/* Without a batch: one sequence, whose queries stand at the end. */
static void test_no_batch(void **state) {
  machine m;
  static const int32_t q_len[] = { 7 }, kv_len[] = { 40 };
  machine_init(&m, &(machine_request){ 0 });
  toy one;
  toy_init(&one, &m.toy.model, 1, q_len, kv_len);
  nsa_io packed = one.io;
  toy_outputs(&one, &packed, 7);
  machine_expect("one", nsa_forward(m.plan, &m.exec, NULL, &one.io), NSA_OK, NULL);
  machine_expect("packed", nsa_forward(m.plan, &m.exec, &one.batch, &packed), NSA_OK, NULL);
  toy_same_outputs("one sequence", &one.io, &packed, 7);
  toy_free(&one);
  machine_free(&m);
}

/* The case shorter_than_block of tests/vectors, set up as a host would. */
static void test_vector(void **state) {
  vector_file f;
  char yaml[1024];
  vector_file_read(&f, "shorter_than_block");
#define NUMBER(key) (int)vector_file_number(&f, key, 0)
  snprintf(yaml, sizeof yaml,
           "nsa: 1\nmodel: {heads: %d, kv_heads: %d, head_dim_qk: %d, head_dim_v: %d, compress: "
           "{block: %d, stride: %d, phi: %s}, select: {block: %d, count: %d, init: %d, local: %d}, "
           "window: %d, gate: %s, kv_sharing: shared, dtype: f32}\nruntime: {device: cpu}\n",
           NUMBER("Hq"), NUMBER("Hkv"), NUMBER("Dk"), NUMBER("Dv"), NUMBER("l"), NUMBER("d"),
           vector_file_text(&f, "phi", ""), NUMBER("ls"), NUMBER("n"), NUMBER("n_init"),
           NUMBER("n_local"), NUMBER("w"), vector_file_text(&f, "gate", "weights"));
  nsa_ctx *ctx = machine_context(yaml, NULL, false);
  nsa_exec exec = NSA_EXEC_INIT;
  int64_t tokens = NUMBER("Sq"), kv = NUMBER("S");
  nsa_problem problem = INIT(nsa_problem, .max_tokens = tokens, .max_kv_tokens = kv, .max_seqs = 1);
  nsa_plan *plan = machine_plan(ctx, &problem);
  nsa_io io = INIT(nsa_io, .softmax_scale = (float)vector_file_number(&f, "scale", 0),
                   .q = vector_file_packed(&f, "q"));
  io.kv.k[0] = vector_file_packed(&f, "k");
  io.kv.v[0] = vector_file_packed(&f, "v");
  io.gate.value = vector_file_packed(&f, "gates");
  nsa_tensor want = vector_file_packed(&f, "o");
  int64_t count = tokens * want.stride[0];
  io.q.shape[0] = io.gate.value.shape[0] = tokens; /* the first sequence of the batch */
  io.kv.k[0].shape[0] = io.kv.v[0].shape[0] = kv;
  io.o = want;
  io.o.shape[0] = tokens;
  io.o.data = calloc((size_t)count, sizeof(float));
  assert_non_null(io.o.data);
  machine_add_workspace(plan, &exec);
  machine_expect("run", nsa_forward(plan, &exec, NULL, &io), NSA_OK, NULL);
  free(exec.workspace);
  double error = 0, norm = 0;
  for (int64_t i = 0; i < count; i++) {
    double w = ((const float *)want.data)[i], d = ((const float *)io.o.data)[i] - w;
    error += d * d;
    norm += w * w;
  }
  assert_true(norm > 0 && sqrt(error) <= 1e-5 * sqrt(norm));
  free(io.o.data);
  nsa_plan_destroy(plan);
  nsa_destroy(ctx);
  vector_file_free(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_forward),  cmocka_unit_test(test_given_blocks),
    cmocka_unit_test(test_dense),    cmocka_unit_test(test_stages),
    cmocka_unit_test(test_no_batch), cmocka_unit_test(test_vector),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
