/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * io.index_lse of a forward on the CPU device, against its formula in plain loops; and what is refused.
 * Steps over a cache are compared with a forward by kv_fixture.c.
 */
#include "support/cmocka_all.h"

#include "machine.h"
#include "reference/reference.h"

#include <math.h>

static const machine_request request = {
  .op = NSA_OP_FORWARD, .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true
};

/* A machine whose plan has the LSE, and its output filled with another number. */
static void init(machine *m, int32_t selection) {
  nsa_problem p = machine_problem(NSA_OP_FORWARD, 64, 0);
  machine_init(m, &request);
  nsa_plan_destroy(m->plan);
  p.max_seqs = 2;
  p.selection = selection;
  p.index_lse = 1;
  m->plan = machine_plan(m->ctx, &p);
  free(m->workspace);
  machine_add_workspace(m->plan, &m->exec);
  m->workspace = m->exec.workspace;
  toy *t = &m->toy;
  t->io.index_lse = toy_tensor(t, NSA_F32, 2, t->tokens, t->model.index_heads, 0);
  for (int64_t i = 0; i < toy_count(&t->io.index_lse); i++) toy_floats(&t->io.index_lse)[i] = 77;
}

static double expected(const toy *t, int64_t row, int64_t head, int64_t first, int64_t position) {
  const nsai_model *g = &t->model;
  double sum = 0;
  for (int64_t p = 0; p <= position; p++) {
    double dot = 0;
    if (!toy_selects(t, row, head, p / g->select_block)) continue;
    for (int64_t e = 0; e < g->index_dim; e++)
      dot += (double)toy_floats(&t->io.index_q)[(row * g->index_heads + head) * g->index_dim + e] *
             (double)toy_floats(&t->io.k_idx)[(first + p) * g->index_dim + e];
    sum += exp(dot / sqrt(g->index_dim)); /* toy scores are small */
  }
  return log(sum);
}

static void compare(const toy *t) {
  const int32_t *q = toy_ints(&t->batch.cu_q), *kv = toy_ints(&t->batch.cu_kv);
  for (int s = 0; s < t->batch.num_seqs; s++)
    for (int64_t row = q[s]; row < q[s + 1]; row++)
      for (int64_t head = 0; head < t->model.index_heads; head++) {
        const int64_t position = kv[s + 1] - kv[s] - q[s + 1] + row;
        const double want = expected(t, row, head, kv[s], position);
        const double got = (double)toy_floats(&t->io.index_lse)[row * t->model.index_heads + head];
        if (got != want && !(fabs(got - want) <= 1e-5))
          fail_msg("row %d, head %d: %g, expected %g", (int)row, (int)head, got, want);
      }
}

static void test_chosen_blocks(void **unused) {
  machine m;
  init(&m, NSA_SELECT_TOPN);
  machine_expect("forward", machine_forward(&m), NSA_OK, NULL);
  compare(&m.toy);
  machine_free(&m);
}

/* A caller's lists for all heads, in any order, with gaps, repetitions, blocks in the future, and none in
 * one row of four: -inf. */
static void test_given_blocks(void **unused) {
  static const int32_t lists[4][3] = { { 1, 0, 1 }, { 9, 0, -1 }, { -1, -1, -1 }, { 2, 0, 1 } };
  machine m;
  init(&m, NSA_SELECT_BLOCKS);
  toy *t = &m.toy;
  t->io.block_idx = toy_tensor(t, NSA_I32, 2, t->tokens, t->model.select_count, 0);
  for (int64_t row = 0; row < t->tokens; row++)
    for (int64_t i = 0; i < t->model.select_count; i++)
      toy_ints(&t->io.block_idx)[row * t->model.select_count + i] = i < 3 ? lists[row % 4][i] : -1;
  machine_expect("forward", machine_forward(&m), NSA_OK, NULL);
  compare(t);
  assert_true(toy_floats(&t->io.index_lse)[2 * t->model.index_heads] == -INFINITY);
  t->io.index_q = (nsa_tensor){ 0 };
  machine_expect("index_q", machine_forward(&m), NSA_E_ARG, "io.index_q is missing");
  machine_free(&m);
}

static void test_refusals(void **unused) {
  machine m;
  init(&m, NSA_SELECT_TOPN);
  nsa_io *io = &m.toy.io;
  const nsa_io good = *io;
  io->block_idx = (nsa_tensor){ 0 };
  machine_expect("block_idx", machine_forward(&m), NSA_E_ARG, "io.block_idx is missing");
  *io = good, io->index_lse.dtype = NSA_BF16;
  machine_expect("dtype", machine_forward(&m), NSA_E_ARG, "io.index_lse");
  *io = good, io->index_lse.shape[1]--;
  machine_expect("shape", machine_forward(&m), NSA_E_ARG, "io.index_lse");
  *io = good, io->index_lse.data = io->index_q.data;
  machine_expect("overlap", machine_forward(&m), NSA_E_ARG, "io.index_lse");
  *io = good, io->index_lse = (nsa_tensor){ 0 };
  machine_expect("absent", machine_forward(&m), NSA_OK, NULL);
  *io = good;
  nsa_plan *plan = m.plan;
  nsa_problem p = machine_problem(NSA_OP_FORWARD, 64, 0);
  p.max_seqs = 2;
  m.plan = machine_plan(m.ctx, &p);
  machine_expect("plan", machine_forward(&m), NSA_E_ARG, "set problem.index_lse to 1");
  nsa_plan_destroy(plan);
  machine_free(&m);
}

static void refuse_problem(nsa_ctx *ctx, const nsa_problem *given, const char *text) {
  nsa_caps caps = NSA_CAPS_INIT;
  machine_expect("problem", nsa_query(ctx, given, &caps), NSA_E_ARG, text);
}

static void test_problems(void **unused) {
  machine m, other;
  machine_init(&m, &request);
  machine_init(&other, &(machine_request){ .phi = NSAI_PHI_MEAN });
  nsa_problem p = machine_problem(NSA_OP_FORWARD, 64, 0);
  p.index_lse = 2;
  refuse_problem(m.ctx, &p, "problem.index_lse is 2");
  p.index_lse = 1;
  refuse_problem(other.ctx, &p, "model.select.by is compressed");
  p.selection = NSA_SELECT_RANGES;
  refuse_problem(m.ctx, &p, "an index chooses blocks");
  p.selection = 0, p.op = NSA_OP_INDEX_KL;
  refuse_problem(m.ctx, &p, "NSA_OP_INDEX_KL does not compute it");
  machine_free(&other);
  machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_chosen_blocks),
    cmocka_unit_test(test_given_blocks),
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_problems),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
