/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Communicators by NCCL, with a library that has no hardware (fake_nccl.c): the library's own, and
 * the host's.
 */
#include "support/cmocka_all.h"

#include "base/duration.h"
#include "comm_fixture.h"
#include "driver/nccl.h"
#include "fake_nccl.h"
#include "plan/context.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

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

/* Connects as slowly as the machine is, then agrees within a short time. */
static void connect_and_agree(rank *r) {
  const nsa_plan *plan = r->plan;
  connect_rank(r);
  if (r->status == NSA_OK) rank_note(r, nsa_comm_agree(r->comm, &plan, 1, NULL, 100));
}

/* The others wait for its part of an exchange. */
static void connect_only(rank *r) {
  if (r->number == 1)
    connect_rank(r);
  else
    connect_and_agree(r);
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

    run_nccl(&m, ranks, 3, 20000, connect_only);
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
    run_nccl(&m, ranks, 2, 20000, connect_and_agree);
    record->fail_group = 0;
    ranks_expect_lost(ranks, 2, -1, "rank");
    ranks_destroy(ranks, 2);
    assert_int_equal(record->comms, 0);
  }
  assert_int_equal(record->wrong_use, 0);
  machine_free(&m);
}

/* The environment would make the library's own communicators block. */
static void test_blocking_environment(void **state) {
  machine m;
  nsa_comm *comm = (nsa_comm *)1;
  init_nccl(&m);
  machine_expect("id", nsa_comm_nccl_id(m.ctx, nccl_id), NSA_OK, NULL);
  setenv("NCCL_COMM_BLOCKING", "1", 1);
  machine_expect("blocks", nsa_comm_nccl_init(m.ctx, nccl_id, 0, 1, NULL, &comm), NSA_E_UNSUPPORTED,
                 "NCCL_COMM_BLOCKING is 1");
  assert_null(comm);
  setenv("NCCL_COMM_BLOCKING", "0", 1);
  machine_expect("does not", nsa_comm_nccl_init(m.ctx, nccl_id, 0, 1, NULL, &comm), NSA_OK, NULL);
  unsetenv("NCCL_COMM_BLOCKING");
  nsa_comm_destroy(comm);
  machine_free(&m);
}

/* Options are refused before NCCL waits for the other ranks. */
static void test_refused_alone(void **state) {
  machine m;
  nsa_comm *comm = (nsa_comm *)1;
  const nsa_comm_options options = INIT(nsa_comm_options, .timeout_ms = 50, .host_ranks = 3);
  init_nccl(&m);
  machine_expect("id", nsa_comm_nccl_id(m.ctx, nccl_id), NSA_OK, NULL);
  machine_expect("init", nsa_comm_nccl_init(m.ctx, nccl_id, 0, 4, &options, &comm), NSA_E_ARG,
                 "options.host_ranks is 3");
  assert_null(comm);
  assert_int_equal(nccl_record()->comms, 0);
  machine_free(&m);
}

/* The library's own communicators have as few CTAs as a forward leaves SMs. */
static void test_overlap(void **state) {
  nsa_comm_options options = INIT(nsa_comm_options, .overlap_sms = 16);
  const nsai_nccl *nccl;
  machine m;
  nsa_comm *comm = (nsa_comm *)1;
  init_nccl(&m);
  machine_expect("id", nsa_comm_nccl_id(m.ctx, nccl_id), NSA_OK, NULL);
  assert_int_equal(nsai_nccl_open(getenv("FAKE_NCCL"), &m.ctx->logger, &nccl), NSA_OK);
  int32_t *version = (int32_t *)(uintptr_t)&nccl->version;
  const int32_t known = *version;
  *version = 21602;
  machine_expect("old", nsa_comm_nccl_init(m.ctx, nccl_id, 0, 1, &options, &comm),
                 NSA_E_UNSUPPORTED, "options.overlap_sms is 16, and NCCL 2.16");
  *version = known;
  assert_null(comm);
  assert_int_equal(nccl_record()->comms, 0);
  machine_expect("new", nsa_comm_nccl_init(m.ctx, nccl_id, 0, 1, &options, &comm), NSA_OK, NULL);
  assert_int_equal(nccl_record()->max_ctas, 16);
  nsa_comm_destroy(comm);
  options.overlap_sms = 0;
  machine_expect("none", nsa_comm_nccl_init(m.ctx, nccl_id, 0, 1, &options, &comm), NSA_OK, NULL);
  assert_int_equal(nccl_record()->max_ctas, 0);
  nsa_comm_destroy(comm);
  static const int32_t refused[] = { -1, 12, 128 }; /* NCCL would make 16 of 12 */
  for (int i = 0; i < 3; i++) {
    char text[64];
    options.overlap_sms = refused[i];
    snprintf(text, sizeof text, "options.overlap_sms is %d: give a power of two", refused[i]);
    machine_expect("refused", nsa_comm_nccl_init(m.ctx, nccl_id, 0, 1, &options, &comm), NSA_E_ARG,
                   text);
  }
  machine_free(&m);
}

/* What a test needs as a host of NCCL. */
typedef struct nccl_host {
  nsai_nccl_result (*init)(nsai_nccl_comm *, int, nsai_nccl_id, int, nsai_nccl_config *);
  nsai_nccl_result (*error)(nsai_nccl_comm, nsai_nccl_result *);
  nsai_nccl_result (*end)(nsai_nccl_comm);
} nccl_host;

/* `end`: ncclCommDestroy or ncclCommAbort */
static nccl_host find_host(const char *end) {
  nccl_host h;
  void *address = nccl_symbol("ncclCommInitRankConfig");
  memcpy(&h.init, &address, sizeof h.init);
  address = nccl_symbol("ncclCommGetAsyncError");
  memcpy(&h.error, &address, sizeof h.error);
  address = nccl_symbol(end);
  memcpy(&h.end, &address, sizeof h.end);
  return h;
}

static nsai_nccl_comm connect_host(const nccl_host *h, int size, int number) {
  nsai_nccl_comm comm = NULL;
  nsai_nccl_config config = NSAI_NCCL_CONFIG_INIT;
  const nsai_nccl_id id = { "the host's" };
  config.blocking = 0;
  assert_int_equal(h->init(&comm, size, id, number, &config), NSAI_NCCL_IN_PROGRESS);
  return comm;
}

/* A host's communicator waits inside NCCL for a lost rank: nsa_comm_check on another thread reports it, the
 * host aborts, which frees it, and the call that waited ends without touching it. */
static void test_borrowed_blocks(void **state) {
  machine m;
  nsa_comm_options options = NSA_COMM_OPTIONS_INIT;
  init_nccl(&m);
  fake_nccl_state *record = nccl_record();
  const nccl_host h = find_host("ncclCommAbort");
  options.timeout_ms = 30;
  for (int32_t repeat = 0; repeat < 20; repeat++) {
    nsai_nccl_comm theirs = connect_host(&h, 2, 0), other = connect_host(&h, 2, 1);
    nsai_nccl_result state_of = 0;
    assert_int_equal(h.error(theirs, &state_of), 0);
    assert_int_equal(state_of, 0);
    rank r = { .size = 2, .repeats = 1, .timeout_ms = 30, .plan = m.plan, .work = rank_agrees };
    machine_expect("nccl", nsa_comm_nccl(m.ctx, theirs, &options, &r.comm), NSA_OK, NULL);
    record->blocks = 1;
    rank_start(&r);
    nsa_status status = NSA_OK;
    const double since = nsai_seconds();
    while ((status = nsa_comm_check(r.comm)) == NSA_OK && nsai_seconds() - since < 5) usleep(1000);
    machine_expect("check", status, NSA_E_RANKS, "who ends it by ncclCommAbort");
    h.end(theirs);
    rank_join(&r);
    rank_expect_lost(&r, "rank 0 of 2: exchange of NCCL has waited");
    record->blocks = 0;
    nsa_comm_destroy(r.comm);
    h.end(other);
    assert_int_equal(record->comms, 0);
  }
  assert_int_equal(record->wrong_use, 0);
  machine_free(&m);
}

/* The host's communicator ends while a rank is still queuing what it sends. */
static void test_borrowed_queues(void **state) {
  machine m;
  init_nccl(&m);
  fake_nccl_state *record = nccl_record();
  const nccl_host h = find_host("ncclCommAbort");
  nsai_nccl_comm theirs = connect_host(&h, 2, 0), other = connect_host(&h, 2, 1);
  nsai_nccl_result state_of = 0;
  assert_int_equal(h.error(theirs, &state_of), 0);
  rank r = { .size = 2, .repeats = 1, .timeout_ms = 20000, .plan = m.plan, .work = rank_agrees };
  machine_expect("nccl", nsa_comm_nccl(m.ctx, theirs, NULL, &r.comm), NSA_OK, NULL);
  const int sends = record->sends;
  record->send_ms = 50;
  record->async_error = 6;
  rank_start(&r);
  while (__atomic_load_n(&record->sends, __ATOMIC_ACQUIRE) == sends) usleep(100);
  machine_expect("check", nsa_comm_check(r.comm), NSA_E_RANKS, "a fake cable was pulled");
  h.end(theirs);
  rank_join(&r);
  rank_expect_lost(&r, "a fake cable was pulled");
  record->send_ms = 0;
  record->async_error = 0;
  nsa_comm_destroy(r.comm);
  h.end(other);
  assert_int_equal(record->comms, 0);
  assert_int_equal(record->wrong_use, 0);
  machine_free(&m);
}

/* A host's communicator is neither aborted nor destroyed. */
static void test_borrowed(void **state) {
  machine m, cpu;
  nsa_comm *comm;
  init_nccl(&m);
  fake_nccl_state *record = nccl_record();
  const nccl_host h = find_host("ncclCommDestroy");
  nsai_nccl_comm theirs = connect_host(&h, 1, 0);
  nsai_nccl_result state_of = 1;
  assert_int_equal(h.error(theirs, &state_of), 0);
  assert_int_equal(state_of, 0);
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
  h.end(theirs);
  assert_int_equal(record->comms, 0);
  assert_int_equal(record->wrong_use, 0);
  machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_nccl),
    cmocka_unit_test(test_nccl_faults),
    cmocka_unit_test(test_blocking_environment),
    cmocka_unit_test(test_overlap),
    cmocka_unit_test(test_refused_alone),
    cmocka_unit_test(test_borrowed),
    cmocka_unit_test(test_borrowed_queues),
    cmocka_unit_test(test_borrowed_blocks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
