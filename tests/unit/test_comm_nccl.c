/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Communicators by NCCL, with a library that has no hardware (fake_nccl.c): the library's own, and
 * the host's.
 */
#include "support/cmocka_all.h"

#include "comm_fixture.h"
#include "driver/nccl.h"
#include "fake_nccl.h"

#include <dlfcn.h>
#include <stdlib.h>

static const machine_request quiet_cpu = { .override = QUIET };

static void *nccl_symbol(const char *name) {
  void *module = dlopen(getenv("FAKE_NCCL"), RTLD_NOW | RTLD_LOCAL);
  void *address = module ? dlsym(module, name) : NULL;
  assert_non_null(address);
  dlclose(module);
  return address;
}

static fake_nccl_state *nccl_record(void) {
  fake_nccl_state *(*record)(void);
  void *address = nccl_symbol("fake_nccl_record");
  memcpy(&record, &address, sizeof record);
  return record();
}

static void init_nccl(machine *m) {
  static char override[512];
  snprintf(override, sizeof override, "runtime.nccl_path=%s", getenv("FAKE_NCCL"));
  setenv("NSA_LOG_LEVEL", "off", 1);
  machine_init(m, &(machine_request){ .gpu = true, .override = override });
}

/* What threads need to make their communicators. */
static char nccl_id[NSA_NCCL_ID_BYTES];
static nsa_ctx *nccl_ctx;

static void connect_rank(rank *r) {
  nsa_comm_options options = NSA_COMM_OPTIONS_INIT;
  options.timeout_ms = r->timeout_ms;
  rank_note(r, nsa_comm_nccl_init(nccl_ctx, nccl_id, r->number, r->size, &options, &r->comm));
}

static void use_nccl(rank *r) {
  connect_rank(r);
  if (r->status != NSA_OK) return;
  rank_exchanges(r);
  rank_agrees(r);
}

static void connect_but_one(rank *r) {
  if (r->number != 1) connect_rank(r);
}

/* The others wait for its part of an exchange. */
static void connect_only(rank *r) {
  connect_rank(r);
  if (r->status == NSA_OK && r->number != 1) rank_agrees(r);
}

static void run_nccl(machine *m, rank *ranks, int32_t size, int32_t timeout_ms,
                     void (*work)(rank *)) {
  machine_expect("id", nsa_comm_nccl_id(m->ctx, nccl_id), NSA_OK, NULL);
  nccl_ctx = m->ctx;
  memset(ranks, 0, MOST_RANKS * sizeof *ranks);
  for (int32_t i = 0; i < size; i++)
    ranks[i] = (rank){ .number = i,
                       .size = size,
                       .repeats = 20,
                       .timeout_ms = timeout_ms,
                       .plan = m->plan,
                       .work = work };
  ranks_run(ranks, size);
}

static void test_nccl(void **state) {
  machine m;
  rank ranks[MOST_RANKS];
  init_nccl(&m);
  for (int32_t size = 1; size <= 4; size++) {
    run_nccl(&m, ranks, size, 20000, use_nccl);
    ranks_expect_ok(ranks, size);
    /* Ranks end together: a communicator waits for the others to finish. */
    for (int32_t i = 0; i < size; i++) ranks[i].work = rank_leaves;
    ranks_run(ranks, size);
  }
  assert_int_equal(nccl_record()->comms, 0);
  assert_int_equal(nccl_record()->destroyed, 10);
  assert_int_equal(nccl_record()->wrong_use, 0);
  machine_free(&m);
}

static void test_nccl_faults(void **state) {
  machine m;
  rank ranks[MOST_RANKS];
  init_nccl(&m);
  fake_nccl_state *record = nccl_record();
  for (int32_t repeat = 0; repeat < 20; repeat++) {
    run_nccl(&m, ranks, 3, 30, connect_but_one);
    ranks_expect_lost(ranks, 3, 1, "s for the other ranks in ncclCommInitRankConfig");
    for (int32_t i = 0; i < 3; i++) assert_null(ranks[i].comm);
    assert_int_equal(record->comms, 0);

    run_nccl(&m, ranks, 3, 200, connect_only);
    ranks_expect_lost(ranks, 3, 1, "s for the other ranks in an exchange");
    assert_int_equal(record->comms, 1); /* the dead ones have been aborted */
    record->async_error = 6;
    machine_expect("check", nsa_comm_check(ranks[1].comm), NSA_E_RANKS,
                   "rank 1 of 3: ncclCommGetAsyncError: fake error (6): a fake cable was pulled");
    record->async_error = 0;
    assert_int_equal(record->comms, 0);
    for (int32_t i = 0; i < 3; i++) rank_expect_dead(&ranks[i], m.plan);
    ranks_destroy(ranks, 3);

    record->fail_group = 1;
    run_nccl(&m, ranks, 2, 200, use_nccl);
    record->fail_group = 0;
    ranks_expect_lost(ranks, 2, -1, "rank");
    ranks_destroy(ranks, 2);
    assert_int_equal(record->comms, 0);
  }
  assert_int_equal(record->wrong_use, 0);
  machine_free(&m);
}

/* A host's communicator is neither aborted nor destroyed. */
static void test_borrowed(void **state) {
  machine m, cpu;
  nsa_comm *comm;
  nsai_nccl_comm theirs = NULL;
  nsai_nccl_config config = NSAI_NCCL_CONFIG_INIT;
  nsai_nccl_id id = { { 0 } };
  nsai_nccl_result (*init)(nsai_nccl_comm *, int, nsai_nccl_id, int, nsai_nccl_config *);
  nsai_nccl_result (*destroy)(nsai_nccl_comm);
  init_nccl(&m);
  fake_nccl_state *record = nccl_record();
  void *address = nccl_symbol("ncclCommInitRankConfig");
  memcpy(&init, &address, sizeof init);
  address = nccl_symbol("ncclCommDestroy");
  memcpy(&destroy, &address, sizeof destroy);
  config.blocking = 0;
  assert_int_equal(init(&theirs, 1, id, 0, &config), NSAI_NCCL_IN_PROGRESS);
  machine_expect("nccl", nsa_comm_nccl(m.ctx, theirs, NULL, &comm), NSA_OK, NULL);
  assert_int_equal(nsai_comm_size(comm), 1);
  machine_expect("agree", nsa_comm_agree(comm, (const nsa_plan *const[]){ m.plan }, 1, NULL, 0),
                 NSA_OK, NULL);
  record->async_error = 6;
  machine_expect("check", nsa_comm_check(comm), NSA_E_RANKS,
                 "the connection is the host's, who ends it by ncclCommAbort");
  record->async_error = 0;
  nsa_comm_destroy(comm);
  assert_int_equal(record->comms, 1);
  machine_expect("NULL", nsa_comm_nccl(m.ctx, NULL, NULL, &comm), NSA_E_ARG, "nccl is NULL");
  machine_init(&cpu, &quiet_cpu);
  machine_expect("cpu", nsa_comm_nccl(cpu.ctx, theirs, NULL, &comm), NSA_E_UNSUPPORTED,
                 "nsa_comm_loopback");
  machine_free(&cpu);
  destroy(theirs);
  assert_int_equal(record->comms, 0);
  machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_nccl),
    cmocka_unit_test(test_nccl_faults),
    cmocka_unit_test(test_borrowed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
