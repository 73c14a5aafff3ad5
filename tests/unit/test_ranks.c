/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_forward and nsa_backward over ranks that are threads on the CPU device, beside one run of all
 * tokens: the same bits of every output and gradient of query rows; gradients of K, V and weights to
 * 1e-6; the same bits again in every run. And what is refused.
 */
#include "support/cmocka_all.h"

#include "plan/plan.h"
#include "ranks/shard.h"
#include "ranks_fixture.h"
#include "run/check_ranks.h"

static void check_model(const machine_request *request, int32_t ranks, int32_t layout) {
  world w;
  world_init(&w, request);
  world_check(&w, ranks, layout);
  w.accumulate = true;
  if (ranks == 2) world_check(&w, ranks, layout);
  world_free(&w);
}

static void test_ranks(void **state) {
  (void)state;
  for (int32_t ranks = 1; ranks <= 8; ranks += ranks < 4 ? 1 : 4)
    check_model(&(machine_request){ 0 }, ranks, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .per_branch = true }, 3, NSA_SHARD_CONTIGUOUS);
}

static void test_phi(void **state) {
  (void)state;
  check_model(&(machine_request){ .phi = NSAI_PHI_LINEAR }, 2, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .phi = NSAI_PHI_LINEAR, .per_branch = true }, 3,
              NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .phi = NSAI_PHI_MLP }, 3, NSA_SHARD_CONTIGUOUS);
  check_model(&(machine_request){ .phi = NSAI_PHI_EXTERNAL }, 2, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .phi = NSAI_PHI_EXTERNAL, .per_branch = true }, 3,
              NSA_SHARD_ZIGZAG);
}

static void test_gates(void **state) {
  (void)state;
  check_model(&(machine_request){ .gate = NSAI_GATE_LOGITS, .per_branch = true }, 2,
              NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .gate = NSAI_GATE_NONE }, 3, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .gate = NSAI_GATE_MLP, .gate_hidden = 8 }, 2, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .gate = NSAI_GATE_MLP, .phi = NSAI_PHI_MLP }, 3,
              NSA_SHARD_ZIGZAG);
}

static void test_selections(void **state) {
  (void)state;
  const machine_request indexed = { .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true };
  check_model(&indexed, 3, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .keys_only = true }, 2, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .normalized = true }, 2, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .dtype = NSA_BF16 }, 2, NSA_SHARD_ZIGZAG);
}

/* Without compressed entries pieces may begin anywhere. */
static void test_any_alignment(void **state) {
  world w;
  (void)state;
  world_init(&w,
             &(machine_request){ .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true });
  w.alignment = 5;
  world_check(&w, 3, NSA_SHARD_ZIGZAG);
  world_free(&w);
}

/* One KV head after the other. */
static void test_head_groups(void **state) {
  const char *const little = "thresholds.ranks_buffer_bytes=0";
  world w;
  char text[256];
  (void)state;
  check_model(&(machine_request){ .override = little }, 2, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .override = little, .phi = NSAI_PHI_MLP, .per_branch = true }, 3,
              NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .override = little, .phi = NSAI_PHI_EXTERNAL }, 2,
              NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .override = little,
                                  .phi = NSAI_PHI_NONE,
                                  .pool = NSAI_POOL_MAX,
                                  .indexed = true },
              2, NSA_SHARD_ZIGZAG);
  check_model(&(machine_request){ .override = little, .gate = NSAI_GATE_MLP }, 2, NSA_SHARD_ZIGZAG);
  world_init(&w, &(machine_request){ .override = little });
  w.ranks = 2;
  w.layout = NSA_SHARD_ZIGZAG;
  world_open(&w);
  const nsa_problem p = world_problem_over(&w, NSA_OP_FORWARD);
  nsa_problem_string(w.ctx, &p, text, sizeof text);
  assert_non_null(strstr(text, ":h6/2:"));
  assert_non_null(strstr(text, ":kvh1"));
  machine_expect_story(w.ctx, &p, "K and V of all ranks 59680 bytes");
  world_close(&w);
  world_free(&w);
}

/* ---- what is refused ---- */

static void refuse_problem(world *w, const nsa_problem *problem, const char *text) {
  nsa_plan *plan;
  machine_expect(text, nsa_plan_create(w->ctx, problem, NULL, NULL, &plan), NSA_E_ARG, text);
}

static void test_problems(void **state) {
  world w;
  char text[256];
  (void)state;
  world_init(&w, &(machine_request){ 0 });
  w.ranks = 2;
  w.layout = NSA_SHARD_ZIGZAG;
  world_open(&w);
  nsa_problem p = world_problem_over(&w, NSA_OP_FORWARD);
  nsa_problem_string(w.ctx, &p, text, sizeof text);
  assert_non_null(strstr(text, ":cp2x"));
  machine_expect_story(w.ctx, &p,
                       "over 2 ranks, of the workspace: K and V of all ranks 119360 bytes");
  p.ranks = 65;
  refuse_problem(&w, &p, "problem.ranks is 65");
  p.ranks = 2;
  p.max_kv_tokens = 0;
  refuse_problem(&w, &p, "problem.max_kv_tokens is 0");
  p.max_kv_tokens = TOKENS;
  p.max_probe_rows = 1;
  refuse_problem(&w, &p, "max_probe_rows");
  p.max_probe_rows = 0;
  p.op = NSA_OP_DENSE;
  refuse_problem(&w, &p, "NSA_OP_DENSE does not run over ranks");
  p.op = NSA_OP_FORWARD;
  p.ranks = 0;
  refuse_problem(&w, &p, "problem.max_pieces");
  world_close(&w);
  world_free(&w);
}

static void refuse_run(const world *w, nsa_exec *exec, const nsa_batch *batch, const nsa_io *io,
                       const char *text) {
  machine_expect(text, nsa_forward(w->forward, exec, batch, io), NSA_E_ARG, text);
}

static void test_runs(void **state) {
  world w;
  rank_state s = { .w = &w };
  (void)state;
  world_init(&w, &(machine_request){ 0 });
  w.ranks = 2;
  w.layout = NSA_SHARD_ZIGZAG;
  world_open(&w);
  rank_cut_io(&s);
  nsa_exec exec = INIT(nsa_exec, .comm = w.comms[0]);
  nsa_batch batch = INIT(nsa_batch, .shard = w.shard);
  machine_add_workspace(w.forward, &exec);
  refuse_run(&w, &exec, NULL, &s.io, "batch.shard is missing");
  exec.comm = NULL;
  refuse_run(&w, &exec, &batch, &s.io, "exec.comm is missing");
  exec.comm = w.comms[0];
  batch.cu_q = w.toy.batch.cu_q;
  refuse_run(&w, &exec, &batch, &s.io, "batch.cu_q");
  batch.cu_q = (nsa_tensor){ 0 };
  batch.num_seqs = 2;
  refuse_run(&w, &exec, &batch, &s.io, "batch.num_seqs is 2");
  batch.num_seqs = 0;
  refuse_run(&w, &exec, &batch, &s.io, "nsa_comm_agree");
  nsa_io io = s.io;
  io.kv.k[0].shape[0]--, io.kv.v[0].shape[0]--;
  refuse_run(&w, &exec, &batch, &io, "io.kv has");
  io = s.io;
  io.q.shape[0]--;
  machine_expect("q", nsa_forward(w.forward, &exec, &batch, &io), NSA_E_ARG, NULL);
  machine_expect("nsa_compress", nsa_compress(w.forward, &exec, &batch, &s.io), NSA_E_ARG,
                 "nsa_compress does not run over ranks");

  const nsa_problem alone = world_problem(&w, NSA_OP_FORWARD);
  nsa_plan *plan = machine_plan(w.ctx, &alone);
  nsa_exec other = INIT(nsa_exec, .comm = w.comms[0]);
  machine_add_workspace(plan, &other);
  machine_expect("comm", nsa_forward(plan, &other, NULL, &w.toy.io), NSA_E_ARG,
                 "exec.comm is given");
  other.comm = NULL;
  machine_expect("shard", nsa_forward(plan, &other, &batch, &w.toy.io), NSA_E_ARG,
                 "batch.shard is given");
  nsa_plan_destroy(plan);
  free(other.workspace);
  free(exec.workspace);
  while (s.owned_count) free(s.owned[--s.owned_count]);
  world_close(&w);
  world_free(&w);
}

/* A shard of more parts than a list counts is refused by every rank, though only one has many pieces. */
static void test_parts(void **state) {
  world w;
  int32_t begin[NSA_MAX_RANKS + 1] = { 0 };
  nsa_comm *comms[NSA_MAX_RANKS];
  const int32_t most = INT32_MAX / 2 / NSAI_RANKS_TENSORS / (NSA_MAX_RANKS - 1);
  (void)state;
  world_init(&w, &(machine_request){ 0 });
  w.ranks = NSA_MAX_RANKS;
  w.layout = NSA_SHARD_ZIGZAG;
  nsa_problem problem = world_problem(&w, NSA_OP_FORWARD);
  problem.ranks = w.ranks;
  problem.max_kv_tokens = TOKENS;
  problem.max_pieces = most + 1;
  nsa_plan *plan = machine_plan(w.ctx, &problem);
  const int64_t length = TOKENS;
  const nsa_shard_options options = INIT(nsa_shard_options, .ranks = w.ranks, .lengths = &length);
  machine_expect("shard", nsa_shard_create(w.ctx, &options, &w.shard), NSA_OK, NULL);
  machine_expect("loopback", nsa_comm_loopback(w.ctx, w.ranks, NULL, comms), NSA_OK, NULL);
  nsa_shard many = *w.shard;
  many.rank_begin = begin;
  const nsa_batch batch = INIT(nsa_batch, .shard = &many);
  for (int over = 0; over < 2; over++) {
    many.max_pieces = most + over;
    for (int32_t r = 0; r < w.ranks; r++) begin[r + 1] = most + over;
    machine_expect("parts", nsai_check_shard(plan, comms[1], &batch), over ? NSA_E_ARG : NSA_OK,
                   over ? "parts of a tensor, and a run at most" : NULL);
  }
  for (int32_t r = 0; r < w.ranks; r++) nsa_comm_destroy(comms[r]);
  nsa_plan_destroy(plan);
  nsa_shard_destroy(w.shard);
  world_free(&w);
}

/* Other ranks need this rank's keys of the index, also where it computes the window alone. */
static void test_index_keys(void **state) {
  world w;
  rank_state s = { .w = &w };
  (void)state;
  world_init(&w,
             &(machine_request){ .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true });
  w.ranks = 2;
  w.layout = NSA_SHARD_ZIGZAG;
  world_open(&w);
  rank_cut_io(&s);
  nsa_exec exec = INIT(nsa_exec, .comm = w.comms[0], .branches = 1u << NSA_WIN);
  const nsa_batch batch = INIT(nsa_batch, .shard = w.shard);
  machine_add_workspace(w.forward, &exec);
  nsa_io io = s.io;
  io.o_branch[NSA_SEL] = io.lse[NSA_SEL] = io.block_idx = io.index_lse = (nsa_tensor){ 0 };
  io.o_branch[NSA_CMP] = io.lse[NSA_CMP] = (nsa_tensor){ 0 };
  refuse_run(&w, &exec, &batch, &io, "nsa_comm_agree"); /* nothing else is wrong */
  io.k_idx.shape[0]--;
  refuse_run(&w, &exec, &batch, &io, "io.k_idx has shape[0]");
  io.k_idx = s.io.k_idx;
  io.k_idx.data = s.io.o.data; /* which the run writes */
  refuse_run(&w, &exec, &batch, &io, "io.k_idx");
  io.k_idx = (nsa_tensor){ 0 };
  refuse_run(&w, &exec, &batch, &io, "io.k_idx is missing: over ranks");
  free(exec.workspace);
  while (s.owned_count) free(s.owned[--s.owned_count]);
  world_close(&w);
  world_free(&w);
}

/* What a d_o in f32 takes is counted in the heads that the plan has at a time. */
static void test_room_of_d_o(void **state) {
  world w;
  rank_state s = { .w = &w };
  (void)state;
  world_init(&w, &(machine_request){ .dtype = NSA_BF16,
                                     .override = "thresholds.ranks_buffer_bytes=0" });
  w.ranks = 2;
  w.layout = NSA_SHARD_ZIGZAG;
  world_open(&w);
  rank_cut_io(&s);
  s.grads = (nsa_grads)NSA_GRADS_INIT;
  s.grads.d_o = s.io.o;
  s.grads.d_o.dtype = NSA_F32;
  s.grads.d_o.data = rank_own(&s, (size_t)(s.io.o.shape[0] * s.io.o.stride[0] * 4));
  nsa_exec exec = INIT(nsa_exec, .comm = w.comms[0]);
  const nsa_batch batch = INIT(nsa_batch, .shard = w.shard);
  machine_add_workspace(w.backward, &exec);
  machine_expect("d_o", nsa_backward(w.backward, &exec, &batch, &s.io, &s.grads), NSA_E_WORKSPACE,
                 "2 for each element of d_o of the 3 heads that are computed at a time");
  free(exec.workspace);
  while (s.owned_count) free(s.owned[--s.owned_count]);
  world_close(&w);
  world_free(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_ranks),       cmocka_unit_test(test_phi),
    cmocka_unit_test(test_gates),       cmocka_unit_test(test_selections),
    cmocka_unit_test(test_head_groups), cmocka_unit_test(test_problems),
    cmocka_unit_test(test_runs),        cmocka_unit_test(test_any_alignment),
    cmocka_unit_test(test_parts),       cmocka_unit_test(test_index_keys),
    cmocka_unit_test(test_room_of_d_o),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
