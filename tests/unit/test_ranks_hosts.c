/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Runs over ranks that play several hosts, on the CPU device: exchanges in two levels. The results are those
 * of one level up to the order of sums; wires between ranks count what crosses, and lose a rank in any
 * exchange. And the order of the sums themselves.
 */
#include "support/cmocka_all.h"

#include "base/duration.h"
#include "plan/plan.h"
#include "ranks/comm_internal.h"
#include "ranks/shard.h"
#include "ranks_fixture.h"

static const int32_t hosts_of[][2] = { { 4, 2 }, { 6, 2 },  { 6, 3 },  { 8, 2 },
                                       { 8, 4 }, { 16, 2 }, { 16, 4 }, { 16, 8 } };

/* Runs over this many ranks, as hosts of `host_ranks`. */
static void check_hosts(world *w, int32_t ranks, int32_t host_ranks, int32_t layout) {
  w->host_ranks = host_ranks;
  world_check(w, ranks, layout);
}

static void sum_wires(const world *w, uint64_t *inside, uint64_t *between, bool *strays) {
  *inside = *between = 0;
  *strays = false;
  for (int32_t r = 0; r < w->ranks; r++) {
    *inside += w->wires[r].inside;
    *between += w->wires[r].between;
    *strays |= w->wires[r].strays;
  }
}

/* Every division into hosts: results, calls, and what crosses. */
static void test_hosts(void **state) {
  const int agreements = 4; /* two of two rounds */
  world w;
  (void)state;
  world_init(&w, &(machine_request){ 0 });
  w.alignment = 4; /* 16 ranks have pieces of the two long sequences; the others live on one rank */
  w.wired = true;
  for (size_t i = 0; i < sizeof hosts_of / sizeof *hosts_of; i++) {
    const int32_t ranks = hosts_of[i][0], each = hosts_of[i][1];
    uint64_t inside, between, one_inside, one_between;
    bool strays, one_strays;
    w.counted = each;
    check_hosts(&w, ranks, each, NSA_SHARD_ZIGZAG);
    for (int32_t r = 0; r < ranks; r++) /* two levels of K, V, K, V and sums, two runs of each */
      assert_int_equal(w.wires[r].calls, agreements + 2 * 3 * 2);
    sum_wires(&w, &inside, &between, &strays);
    check_hosts(&w, ranks, ranks, NSA_SHARD_ZIGZAG);
    for (int32_t r = 0; r < ranks; r++) assert_int_equal(w.wires[r].calls, agreements + 2 * 3);
    sum_wires(&w, &one_inside, &one_between, &one_strays);
    print_message("%d ranks of %d: %llu inside, %llu between; in one level %llu, %llu\n", ranks,
                  each, (unsigned long long)inside, (unsigned long long)between,
                  (unsigned long long)one_inside, (unsigned long long)one_between);
    assert_true(!strays && one_strays);
    /* Each row goes to each other host once, and every rank receives what it did. */
    assert_true(inside + between == one_inside + one_between);
    assert_true(between * (uint64_t)each <= one_between * 21 / 20);
  }
  world_free(&w);
}

/* What else travels: pairs, entries, keys of an index; by other layouts; and by heads. */
static void test_models_over_hosts(void **state) {
  static const struct {
    machine_request request;
    int32_t ranks, host_ranks, layout;
  } cases[] = {
    { { .per_branch = true }, 6, 3, NSA_SHARD_CONTIGUOUS },
    { { .phi = NSAI_PHI_LINEAR, .per_branch = true }, 4, 2, NSA_SHARD_ZIGZAG },
    { { .phi = NSAI_PHI_MLP, .gate = NSAI_GATE_MLP }, 6, 2, NSA_SHARD_ZIGZAG },
    { { .phi = NSAI_PHI_EXTERNAL, .per_branch = true }, 8, 4, NSA_SHARD_ZIGZAG },
    { { .phi = NSAI_PHI_EXTERNAL }, 16, 4, NSA_SHARD_CONTIGUOUS },
    { { .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true }, 6, 3, NSA_SHARD_ZIGZAG },
    { { .keys_only = true }, 4, 2, NSA_SHARD_ZIGZAG },
    { { .dtype = NSA_BF16 }, 8, 2, NSA_SHARD_ZIGZAG },
    { { .override = "thresholds.ranks_buffer_bytes=0", .phi = NSAI_PHI_EXTERNAL },
      4,
      2,
      NSA_SHARD_ZIGZAG },
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    world w;
    world_init(&w, &cases[i].request);
    w.alignment = 4;
    check_hosts(&w, cases[i].ranks, cases[i].host_ranks, cases[i].layout);
    w.accumulate = true;
    check_hosts(&w, cases[i].ranks, cases[i].host_ranks, cases[i].layout);
    world_free(&w);
  }
}

/* Given pieces: a rank without any passes on what its neighbour needs, a host has none, ranks of one
 * column hold a sequence, and a sequence lies on one rank. */
static void test_given_over_hosts(void **state) {
  static const nsa_piece sparse[] = { { 0, 0, 0, 80 }, { 3, 0, 80, 60 }, { 1, 0, 140, 63 },
                                      { 3, 1, 0, 37 }, { 1, 3, 0, 64 },  { 3, 3, 64, 66 },
                                      { 0, 4, 0, 3 } };
  static const nsa_piece on_one_host[] = {
    { 2, 0, 0, 80 }, { 3, 0, 80, 123 }, { 2, 1, 0, 37 }, { 3, 3, 0, 130 }, { 3, 4, 0, 3 }
  };
  static const nsa_piece last[] = { { 0, 0, 192, 11 }, { 5, 0, 0, 192 }, { 4, 1, 0, 37 },
                                    { 4, 3, 0, 32 },   { 1, 3, 32, 98 }, { 2, 4, 0, 3 } };
  static const struct {
    const nsa_piece *pieces;
    int64_t count;
    int32_t ranks, host_ranks;
  } cases[] = { { sparse, 7, 4, 2 },      { on_one_host, 5, 4, 2 }, { last, 6, 6, 3 },
                { last, 6, 6, 2 },        { last, 6, 8, 4 },        { sparse, 7, 16, 8 },
                { on_one_host, 5, 16, 4 } };
  (void)state;
  for (int external = 0; external < 2; external++) {
    world w;
    world_init(&w, &(machine_request){ .phi = external ? NSAI_PHI_EXTERNAL : NSAI_PHI_MEAN });
    w.alignment = 4;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
      w.given = cases[i].pieces;
      w.given_count = cases[i].count;
      check_hosts(&w, cases[i].ranks, cases[i].host_ranks, NSA_SHARD_GIVEN);
    }
    world_free(&w);
  }
}

/* A rank that is lost in any exchange of either level: every other rank says so in time. */
static void test_lost_over_hosts(void **state) {
  enum { AGREEMENT = 2, CALLS = AGREEMENT + 6, TIMEOUT_MS = 150 };
  world w;
  (void)state;
  world_init(&w, &(machine_request){ .override = "runtime.log_level=off" });
  w.alignment = 4;
  w.wired = true;
  w.ranks = 6;
  w.host_ranks = 3;
  w.layout = NSA_SHARD_ZIGZAG;
  for (int32_t fault = WIRE_FAILS; fault <= WIRE_STALLS; fault++)
    for (int32_t call = AGREEMENT + 1; call <= CALLS; call++) {
      rank_state s[MOST_RANKS];
      const int32_t lost = call % w.ranks;
      memset(w.wires, 0, sizeof w.wires);
      w.wires[lost] = (wire){ .fault = fault, .at_call = call };
      w.timeout_ms = fault == WIRE_STALLS ? TIMEOUT_MS : 20000;
      world_open(&w);
      const double since = nsai_seconds();
      world_run(&w, s);
      const double seconds = nsai_seconds() - since;
      for (int32_t r = 0; r < w.ranks; r++)
        if (s[r].status != NSA_E_RANKS || w.wires[r].calls != call)
          fail_msg("rank %d of call %d: %s, %d calls: %s", r, call, nsa_status_name(s[r].status),
                   w.wires[r].calls, s[r].error);
      if (seconds > 5) fail_msg("call %d: after %f s", call, seconds);
      world_release(&w, s);
      world_close(&w);
    }
  world_free(&w);
}

/* ---- the order of sums ---- */

/* What a rank is told that others add to its rows: by the ranks of its host, and then by the other hosts. */
typedef struct told {
  int32_t calls;
  float inside[4], between[3]; /* by place in the host, and by host */
} told;

static nsa_status tell(void *user, const nsa_part *send, int32_t send_count, const nsa_part *recv,
                       int32_t recv_count, nsa_stream stream) {
  told *t = user;
  const int32_t call = ++t->calls; /* K and V between hosts and inside, sums inside and between */
  (void)send, (void)send_count, (void)stream;
  for (int32_t i = 0; i < recv_count; i++) {
    const float value = call == 3   ? t->inside[recv[i].rank % 4]
                        : call == 4 ? t->between[recv[i].rank / 4]
                                    : 0.0f;
    for (uint64_t at = 0; at < recv[i].bytes / sizeof value; at++)
      ((float *)recv[i].data)[at] = value;
  }
  return NSA_OK;
}

/* The gradient that rank 0 of three hosts of four has for rows that all others see, and to which it adds
 * nothing itself: d_o is 0. */
static float sum_told(const told *values) {
  static const int64_t lengths[] = { 20, 40 };
  static const nsa_piece pieces[] = { { 0, 0, 0, 20 }, { 0, 1, 0, 20 }, { 1, 1, 20, 4 },
                                      { 2, 1, 24, 4 }, { 3, 1, 28, 4 }, { 4, 1, 32, 4 },
                                      { 8, 1, 36, 4 } };
  machine m;
  told t = *values;
  nsa_shard *shard;
  nsa_comm *comm;
  machine_init(&m, &(machine_request){ .op = NSA_OP_BACKWARD });
  const nsa_shard_options options =
      INIT(nsa_shard_options, .layout = NSA_SHARD_GIVEN, .ranks = 12, .num_seqs = 2,
           .lengths = lengths, .alignment = 4, .given = pieces, .given_count = 7);
  const nsa_problem problem =
      INIT(nsa_problem, .op = NSA_OP_BACKWARD, .max_tokens = 40, .max_kv_tokens = 60,
           .max_kv_len = 40, .max_seqs = 2, .ranks = 12, .max_pieces = 2);
  const nsa_comm_ops ops =
      INIT(nsa_comm_ops, .size = 12, .host_ranks = 4, .user = &t, .exchange = tell);
  machine_expect("shard", nsa_shard_create(m.ctx, &options, &shard), NSA_OK, NULL);
  machine_expect("comm", nsa_comm_create(m.ctx, &ops, NULL, &comm), NSA_OK, NULL);
  nsa_plan *plan = machine_plan(m.ctx, &problem);
  nsai_agreed_add(&comm->plans, plan->digest);
  nsai_agreed_add(&comm->shards, shard->digest);
  nsa_exec exec = INIT(nsa_exec, .comm = comm);
  machine_add_workspace(plan, &exec);
  const nsa_batch batch = INIT(nsa_batch, .shard = shard);
  m.toy.io.kv.k_cmp = m.toy.io.kv.v_cmp = (nsa_tensor){ 0 };
  const nsa_grads grads = make_grads(&m.toy, NSA_F32);
  memset(grads.d_o.data, 0, (size_t)toy_count(&grads.d_o) * sizeof(float));
  machine_expect("run", nsa_backward(plan, &exec, &batch, &m.toy.io, &grads), NSA_OK, NULL);
  assert_int_equal(t.calls, 4);
  const nsa_tensor *const both[] = { &grads.d_kv.k[0], &grads.d_kv.v[0] };
  const float value = toy_floats(both[0])[toy_count(both[0]) - 1];
  for (int i = 0; i < 2; i++) /* the second half of the rows is of sequence 1 */
    for (int64_t at = 0, count = toy_count(both[i]); at < count; at++)
      assert_true(toy_floats(both[i])[at] == (at < count / 2 ? 0.0f : value));
  free(exec.workspace);
  nsa_comm_destroy(comm);
  nsa_plan_destroy(plan);
  nsa_shard_destroy(shard);
  machine_free(&m);
  return value;
}

/* The ranks of a host, then the hosts, in their order: 1 is lost beside 1e30 unless that has gone before. */
static void test_order_of_sums(void **state) {
  (void)state;
  assert_true(sum_told(&(told){ .inside = { 0, 1e30f, -1e30f, 1 } }) == 1);
  assert_true(sum_told(&(told){ .inside = { 0, 1, 1e30f, -1e30f } }) == 0);
  assert_true(sum_told(&(told){ .inside = { 0, 1e30f, 0, 0 }, .between = { 0, -1e30f, 1 } }) == 1);
  assert_true(sum_told(&(told){ .inside = { 0, 0, 0, 1 }, .between = { 0, 1e30f, -1e30f } }) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_hosts),
    cmocka_unit_test(test_models_over_hosts),
    cmocka_unit_test(test_given_over_hosts),
    cmocka_unit_test(test_lost_over_hosts),
    cmocka_unit_test(test_order_of_sums),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
