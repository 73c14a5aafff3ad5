/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Communicators: the loopback among threads, on the CPU device and on streams of the fake driver;
 * agreement; tables of functions that are late, fail, stall, die or disagree. No rank hangs: a fault may
 * take the timeout and GRACE.
 */
#include "support/cmocka_all.h"

#include "base/duration.h"
#include "comm_fixture.h"
#include "ranks/comm_internal.h"

#include <sys/wait.h>
#include <unistd.h>

#define SIX 6 /* ranks that can be 2 or 3 hosts */

static const machine_request quiet_cpu = { .override = QUIET };
static const machine_request quiet_gpu = { .gpu = true, .override = QUIET };

/* The rank once more, with another plan. */
static rank again(const rank *r, nsa_plan *plan, nsa_shard *shard) {
  return (rank){ .comm = r->comm,
                 .number = r->number,
                 .size = r->size,
                 .repeats = 1,
                 .plan = plan,
                 .shard = shard,
                 .work = r->work };
}

static void test_loopback(void **state) {
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    machine_init(&m, gpu ? &quiet_gpu : &quiet_cpu);
    for (int32_t size = 1; size <= MOST_RANKS; size++) {
      rank ranks[MOST_RANKS];
      ranks_loopback(m.ctx, ranks, size, 20000, rank_exchanges);
      ranks_run(ranks, size);
      ranks_expect_ok(ranks, size);
      ranks_destroy(ranks, size);
    }
    machine_free(&m);
  }
}

/* ---- agreement ---- */

static nsa_shard *make_shard(nsa_ctx *ctx, int32_t ranks, int64_t length) {
  nsa_shard_options options = NSA_SHARD_OPTIONS_INIT;
  nsa_shard *shard;
  options.ranks = ranks;
  options.lengths = &length;
  if (nsa_shard_create(ctx, &options, &shard) != NSA_OK) fail_msg("%s", nsa_last_error());
  return shard;
}

static void test_agree(void **state) {
  enum { SIZE = 4 };
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    rank ranks[MOST_RANKS];
    machine_init(&m, gpu ? &quiet_gpu : &quiet_cpu);
    ranks_loopback(m.ctx, ranks, SIZE, 20000, rank_agrees);
    for (int32_t i = 0; i < SIZE; i++) {
      ranks[i].plan = m.plan;
      ranks[i].shard = make_shard(m.ctx, SIZE, 1000);
    }
    machine_expect("begin", nsai_comm_begin(ranks[0].comm, m.plan->digest, ranks[0].shard, NULL),
                   NSA_E_ARG, "nsa_comm_agree");
    ranks_run(ranks, SIZE);
    ranks_expect_ok(ranks, SIZE);
    for (int32_t i = 0; i < SIZE; i++) {
      nsa_shard *other = make_shard(m.ctx, SIZE, 1001);
      machine_expect("begin", nsai_comm_begin(ranks[i].comm, m.plan->digest, ranks[i].shard, NULL),
                     NSA_OK, NULL);
      machine_expect("other", nsai_comm_begin(ranks[i].comm, m.plan->digest, other, NULL),
                     NSA_E_ARG, "batch.shard");
      nsa_shard_destroy(other);
      nsa_shard_destroy(ranks[i].shard);
    }
    ranks_destroy(ranks, SIZE);
    machine_free(&m);
  }
}

static void test_disagree(void **state) {
  enum { SIZE = 3 };
  machine m, other;
  rank ranks[MOST_RANKS];
  machine_init(&m, &quiet_cpu);
  machine_init(&other, &(machine_request){ .phi = NSAI_PHI_LINEAR, .override = QUIET });
  nsa_shard *shards[] = { make_shard(m.ctx, SIZE, 1000), make_shard(m.ctx, SIZE, 1001) };
  nsa_problem problem = NSA_PROBLEM_INIT;
  nsa_plan *longer;
  problem.op = NSA_OP_FORWARD;
  problem.max_tokens = 65;
  problem.max_seqs = 2;
  machine_expect("plan", nsa_plan_create(m.ctx, &problem, NULL, NULL, &longer), NSA_OK, NULL);
  const struct {
    nsa_plan *plan;
    nsa_shard *shard;
    const char *says;
  } cases[] = {
    { m.plan, shards[1], "the shard (not as on rank 0: rank 2)" },
    { longer, shards[0], "problem.max_tokens of plan 0 (rank 0 has 64, rank 2 65)" },
    { other.plan, shards[0],
      "the model of the configuration of plan 0 (not as on rank 0: rank 2)" },
    { m.plan, NULL, "whether a shard is given: rank 0 has 1, rank 2 0" },
  };
  ranks_loopback(m.ctx, ranks, SIZE, 20000, rank_agrees);
  for (int32_t repeat = 0; repeat < 20; repeat++) {
    const size_t c = (size_t)repeat % (sizeof cases / sizeof *cases);
    for (int32_t i = 0; i < SIZE; i++) {
      ranks[i].repeats = 1;
      ranks[i].status = NSA_OK;
      ranks[i].plan = i == 2 ? cases[c].plan : m.plan;
      ranks[i].shard = i == 2 ? cases[c].shard : shards[0];
    }
    ranks_run(ranks, SIZE);
    ranks_expect_lost(ranks, SIZE, -1, cases[c].says);
  }
  /* Ranks that disagreed may agree later. */
  machine_expect("begin", nsai_comm_begin(ranks[0].comm, m.plan->digest, NULL, NULL), NSA_E_ARG,
                 "exec.comm");
  for (int32_t i = 0; i < SIZE; i++) ranks[i] = again(&ranks[i], m.plan, shards[1]);
  ranks_run(ranks, SIZE);
  ranks_expect_ok(ranks, SIZE);
  machine_expect("begin", nsai_comm_begin(ranks[0].comm, m.plan->digest, NULL, NULL), NSA_OK, NULL);
  ranks_destroy(ranks, SIZE);
  nsa_plan_destroy(longer);
  nsa_shard_destroy(shards[0]);
  nsa_shard_destroy(shards[1]);
  machine_free(&other);
  machine_free(&m);
}

/* 256 digests are remembered; agreeing upon one again makes it the newest. */
static void test_remembers(void **state) {
  static nsai_agreed agreed;
  unsigned char digest[NSAI_COMM_AGREED + 2][NSAI_DIGEST_BYTES] = { 0 };
  machine m;
  rank ranks[MOST_RANKS];
  const nsa_plan *plans[NSAI_COMM_AGREED + 1];
  for (int32_t i = 0; i < NSAI_COMM_AGREED + 2; i++) memcpy(digest[i], &i, sizeof i);
  for (int32_t i = 0; i < NSAI_COMM_AGREED; i++) nsai_agreed_add(&agreed, digest[i]);
  nsai_agreed_add(&agreed, digest[0]);
  nsai_agreed_add(&agreed, digest[7]);
  nsai_agreed_add(&agreed, digest[7]);
  nsai_agreed_add(&agreed, digest[NSAI_COMM_AGREED]);
  nsai_agreed_add(&agreed, digest[NSAI_COMM_AGREED + 1]);
  for (int32_t i = 0; i < NSAI_COMM_AGREED + 2; i++)
    assert_int_equal(nsai_agreed_has(&agreed, digest[i]), i != 1 && i != 2);

  machine_init(&m, &quiet_cpu);
  ranks_loopback(m.ctx, ranks, 1, 20000, NULL);
  for (int32_t i = 0; i < NSAI_COMM_AGREED + 1; i++) plans[i] = m.plan;
  machine_expect("most", nsa_comm_agree(ranks[0].comm, plans, NSAI_COMM_AGREED, NULL, 0), NSA_OK,
                 NULL);
  machine_expect("more", nsa_comm_agree(ranks[0].comm, plans, NSAI_COMM_AGREED + 1, NULL, 0),
                 NSA_E_ARG, "count is 257: agree upon at most 256 plans at once");
  ranks_destroy(ranks, 1);
  machine_free(&m);
}

/* More plans need longer messages. Memory of before is not freed while a kernel may wait for a lost rank. */
static void test_longer_messages(void **state) {
  machine m;
  rank ranks[MOST_RANKS];
  const nsa_plan *plans[NSAI_COMM_AGREED];
  machine_init(&m, &quiet_gpu);
  const fake_cuda_state *record = machine_record();
  const int before = record->blocks;
  for (int32_t i = 0; i < NSAI_COMM_AGREED; i++) plans[i] = m.plan;
  ranks_loopback(m.ctx, ranks, 1, 20000, NULL);
  int blocks = record->blocks;
  static const struct {
    int32_t plans;
    bool grows;
  } calls[] = { { 1, true },   { 1, false },  { 20, true }, { 21, true },
                { 30, false }, { 256, true }, { 20, false } };
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    machine_expect("agree", nsa_comm_agree(ranks[0].comm, plans, calls[i].plans, NULL, 0), NSA_OK,
                   NULL);
    if (calls[i].grows ? record->blocks <= blocks : record->blocks != blocks)
      fail_msg("call %d: %d allocations, %d before it", (int)i, record->blocks, blocks);
    blocks = record->blocks;
  }
  ranks_destroy(ranks, 1);
  assert_int_equal(record->blocks, before);
  machine_free(&m);
}

/* ---- lost ranks ---- */

/* Rank 1 never calls. */
static void agree_but_one(rank *r) {
  if (r->number != 1) rank_agrees(r);
}

static void exchange_but_one(rank *r) {
  if (r->number != 1) rank_exchanges(r);
}

static void gives_up(rank *r) {
  if (r->number == 1)
    nsai_comm_fail(r->comm, "its tensors are wrong");
  else
    rank_agrees(r);
}

static void leaves(rank *r) {
  if (r->number == 1) {
    nsa_comm_destroy(r->comm);
    r->comm = NULL;
  } else {
    rank_agrees(r);
  }
}

/* Other sizes than the others expect. */
static void sends_less(rank *r) {
  char bytes[8] = { 0 }, all[MOST_RANKS * 8];
  rank_note(r, nsai_comm_all_gather(r->comm, bytes, all, r->number == 1 ? 4 : 8, NULL));
  rank_note(r, nsa_comm_check(r->comm));
}

static void test_lost_thread(void **state) {
  static const struct {
    void (*work)(rank *);
    int32_t lost; /* the rank that has no error of its own; -1: all have one */
    int32_t timeout_ms;
    const char *says;
  } cases[] = {
    { agree_but_one, 1, 30, "to make the same call (the timeout is 30 ms)" },
    { exchange_but_one, 1, 30, "to make the same call (the timeout is 30 ms)" },
    { gives_up, 1, 20000, "rank 1 of 3 gave up: its tensors are wrong" },
    { leaves, 1, 20000, "for rank 1, whose communicator has been destroyed" },
    { sends_less, -1, 20000, "the ranks run different calls" },
  };
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    machine_init(&m, gpu ? &quiet_gpu : &quiet_cpu);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
      for (int32_t repeat = 0; repeat < 20; repeat++) {
        rank ranks[MOST_RANKS];
        ranks_loopback(m.ctx, ranks, 3, cases[c].timeout_ms, cases[c].work);
        for (int32_t i = 0; i < 3; i++) ranks[i].plan = m.plan;
        ranks_run(ranks, 3);
        ranks_expect_lost(ranks, 3, cases[c].lost, cases[c].says);
        for (int32_t i = 0; i < 3; i++) rank_expect_dead(&ranks[i], m.plan);
        ranks_destroy(ranks, 3);
      }
    machine_free(&m);
  }
}

/* Ranks that are not there at all are named. */
static void test_names_ranks(void **state) {
  machine m;
  rank ranks[MOST_RANKS];
  machine_init(&m, &quiet_cpu);
  ranks_loopback(m.ctx, ranks, 4, 10, rank_agrees);
  machine_expect("exchange", nsai_comm_exchange(ranks[2].comm, NULL, 0, NULL, 0, NULL), NSA_E_RANKS,
                 "s for ranks 0, 1, 3 to make the same call");
  machine_expect("other", nsai_comm_exchange(ranks[1].comm, NULL, 0, NULL, 0, NULL), NSA_E_RANKS,
                 "rank 1 of 4: another rank gave up: rank 2 of 4 waited");
  ranks_destroy(ranks, 4);
  machine_free(&m);
}

/* ---- tables of a host ---- */

typedef enum behaviour {
  GOOD,
  LATE,   /* every function takes its time, but less than the timeout */
  FAILS,  /* exchange returns a status */
  IDLES,  /* exchange returns, and has moved nothing */
  DIES,   /* never calls */
  UNWELL, /* poll reports an error */
} behaviour;

/* A host's transport: an inner loopback that waits for ever, so that only the library's own watching
 * ends it. */
typedef struct host {
  nsa_comm *inner;
  behaviour behaviour;
  int aborting, aborts; /* calls of abort: begun; done */
} host;

static nsa_status host_exchange(void *user, const nsa_part *send, int32_t send_count,
                                const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  host *h = user;
  if (h->behaviour == LATE) usleep(10000);
  if (h->behaviour == FAILS) return NSA_E_IO;
  if (h->behaviour == IDLES) return NSA_OK;
  return nsai_comm_exchange(h->inner, send, send_count, recv, recv_count, stream);
}

static nsa_status host_poll(void *user) {
  const host *h = user;
  return h->behaviour == UNWELL ? NSA_E_IO : NSA_OK;
}

static nsa_status host_abort(void *user) {
  host *h = user;
  __atomic_fetch_add(&h->aborting, 1, __ATOMIC_RELEASE);
  if (h->behaviour == UNWELL) usleep(2000);
  __atomic_fetch_add(&h->aborts, 1, __ATOMIC_RELAXED);
  nsai_comm_fail(h->inner, "the host aborts");
  return NSA_OK;
}

/* Rank 1 behaves so; the others are good. */
static void make_hosts(nsa_ctx *ctx, rank *ranks, host *hosts, int32_t size, behaviour kind) {
  nsa_comm *inner[MOST_RANKS];
  nsa_comm_options options = NSA_COMM_OPTIONS_INIT;
  options.timeout_ms = 60000;
  machine_expect("inner", nsa_comm_loopback(ctx, size, &options, inner), NSA_OK, NULL);
  options.timeout_ms = 60;
  memset(ranks, 0, MOST_RANKS * sizeof *ranks);
  for (int32_t i = 0; i < size; i++) {
    nsa_comm_ops ops = NSA_COMM_OPS_INIT;
    hosts[i] = (host){ inner[i], i == 1 ? kind : GOOD, 0, 0 };
    ops.rank = i;
    ops.size = size;
    ops.user = &hosts[i];
    ops.exchange = host_exchange;
    ops.poll = host_poll;
    ops.abort = host_abort;
    ranks[i] = (rank){ .number = i, .size = size, .repeats = 1, .timeout_ms = 60 };
    machine_expect("host", nsa_comm_create(ctx, &ops, &options, &ranks[i].comm), NSA_OK, NULL);
  }
}

static void destroy_hosts(rank *ranks, host *hosts, int32_t size) {
  ranks_destroy(ranks, size);
  for (int32_t i = 0; i < size; i++) nsa_comm_destroy(hosts[i].inner);
}

/* What a host that blocks in its transport needs: a thread that looks at all communicators. */
typedef struct watcher {
  rank *ranks;
  int32_t size;
  int stop;
} watcher;

static void *watch(void *user) {
  watcher *w = user;
  while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
    for (int32_t i = 0; i < w->size; i++) (void)nsa_comm_check(w->ranks[i].comm);
    usleep(2000);
  }
  return NULL;
}

static void check_and_agree(rank *r) {
  rank_note(r, nsa_comm_check(r->comm));
  agree_but_one(r);
  if (r->status == NSA_OK && r->number == 1) rank_agrees(r);
}

static void test_hosts(void **state) {
  enum { SIZE = 3 };
  static const struct {
    behaviour behaviour;
    void (*work)(rank *);
    int32_t lost;
    const char *says[2]; /* rank 1, the others; NULL: all is well */
  } cases[] = {
    { GOOD, rank_agrees, -1, { NULL, NULL } },
    { LATE, rank_agrees, -1, { NULL, NULL } },
    { FAILS,
      rank_agrees,
      -1,
      { "rank 1 of 3: exchange of the host's transport returned NSA_E_IO",
        "exchange of the host's transport returned NSA_E_RANKS" } },
    { IDLES,
      rank_agrees,
      -1,
      { "s for ranks 0, 2: the transport",
        "exchange of the host's transport returned NSA_E_RANKS" } },
    { DIES, agree_but_one, 1, { NULL, "exchange of the host's transport" } },
    { UNWELL,
      check_and_agree,
      -1,
      { "rank 1 of 3: poll of the host's transport returned NSA_E_IO",
        "exchange of the host's transport returned NSA_E_RANKS" } },
  };
  machine m;
  machine_init(&m, &quiet_cpu);
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
    for (int32_t repeat = 0; repeat < 20; repeat++) {
      rank ranks[MOST_RANKS];
      host hosts[MOST_RANKS];
      pthread_t thread;
      watcher w = { ranks, SIZE, 0 };
      make_hosts(m.ctx, ranks, hosts, SIZE, cases[c].behaviour);
      for (int32_t i = 0; i < SIZE; i++) {
        ranks[i].plan = m.plan;
        ranks[i].work = cases[c].work;
      }
      const bool watched = cases[c].behaviour == DIES;
      if (watched) assert_int_equal(pthread_create(&thread, NULL, watch, &w), 0);
      ranks_run(ranks, SIZE);
      __atomic_store_n(&w.stop, 1, __ATOMIC_RELEASE);
      if (watched) pthread_join(thread, NULL);
      if (!cases[c].says[1]) {
        ranks_expect_ok(ranks, SIZE);
      } else {
        for (int32_t i = 0; i < SIZE; i++)
          if (i != cases[c].lost) rank_expect_lost(&ranks[i], cases[c].says[i != 1]);
        for (int32_t i = 0; i < SIZE; i++)
          if (i != cases[c].lost) assert_int_equal(hosts[i].aborts, 1);
      }
      destroy_hosts(ranks, hosts, SIZE);
    }
  machine_free(&m);
}

/* Every field of a table that can be wrong. */
static void test_bad_tables(void **state) {
  machine m;
  nsa_comm *comm = (nsa_comm *)1;
  nsa_comm_options options = NSA_COMM_OPTIONS_INIT;
  const nsa_comm_ops good = { .struct_size = sizeof good, .size = 2, .exchange = host_exchange };
  nsa_comm_ops ops[8];
  static const char *const says[] = { "ops.size is 0",  "ops.size is 65",      "ops.rank is 2",
                                      "ops.rank is -1", "ops.host_ranks",      "ops.flags is 0x2",
                                      "ops.reserved",   "ops.exchange is NULL" };
  machine_init(&m, &quiet_cpu);
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) ops[i] = good;
  ops[0].size = 0;
  ops[1].size = 65;
  ops[2].rank = 2;
  ops[3].rank = -1;
  ops[4].host_ranks = 3;
  ops[5].flags = 2;
  ops[6].reserved = 1;
  ops[7].exchange = NULL;
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
    machine_expect(says[i], nsa_comm_create(m.ctx, &ops[i], NULL, &comm), NSA_E_ARG, says[i]);
    assert_null(comm);
  }
  options.timeout_ms = -1;
  machine_expect("timeout", nsa_comm_create(m.ctx, &good, &options, &comm), NSA_E_ARG,
                 "options.timeout_ms is -1");
  machine_expect("ops", nsa_comm_create(m.ctx, NULL, NULL, &comm), NSA_E_ARG, "ops is NULL");
  machine_expect("size", nsa_comm_loopback(m.ctx, 0, NULL, &comm), NSA_E_ARG, "size is 0");
  nsa_comm *comms[NSA_MAX_RANKS + 1];
  memset(comms, 1, sizeof comms);
  machine_expect("size", nsa_comm_loopback(m.ctx, NSA_MAX_RANKS + 1, NULL, comms), NSA_E_ARG,
                 "size is 65");
  for (int32_t i = 0; i < NSA_MAX_RANKS + 1; i++) assert_null(comms[i]);
  memset(comms, 1, sizeof comms);
  machine_expect("context", nsa_comm_loopback(NULL, 2, NULL, comms), NSA_E_ARG, NULL);
  assert_null(comms[0]);
  assert_null(comms[1]);
  machine_expect("comm", nsa_comm_check(NULL), NSA_E_ARG, "comm is NULL");
  nsa_comm_destroy(NULL);
  machine_free(&m);
}

/* ---- ranks that share a host ---- */

static void test_find_hosts(void **state) {
  static const struct {
    uint64_t host[12];
    int32_t size, each;
  } cases[] = {
    { { 7 }, 1, 1 },
    { { 7, 7, 7, 7 }, 4, 4 },
    { { 7, 7, 9, 9 }, 4, 2 },
    { { 9, 9, 9, 7, 7, 7, 1, 1, 1 }, 9, 3 },
    { { 1, 2, 3, 4 }, 4, 1 },
    { { 1, 1, 2, 2, 2, 2 }, 6, 6 }, /* hosts with fewer ranks and with more */
    { { 1, 1, 1, 2, 2 }, 5, 5 },
    { { 1, 2, 1, 2 }, 4, 4 },       /* neighbours are on other hosts */
    { { 1, 1, 2, 2, 1, 1 }, 6, 6 }, /* a host twice */
    { { 1, 1, 2, 3 }, 4, 4 },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_int_equal(nsai_find_host_ranks(cases[i].host, cases[i].size), cases[i].each);
  assert_true(nsai_host_id() == nsai_host_id());
}

/* Ranks that differ in a host's ranks would exchange different parts; those of one host find one, those
 * that play hosts find these, and keep what they found. */
static void test_agree_on_hosts(void **state) {
  enum { SIZE = 6 };
  machine m;
  rank ranks[MOST_RANKS];
  machine_init(&m, &quiet_cpu);
  ranks_loopback(m.ctx, ranks, SIZE, 20000, rank_agrees);
  for (int32_t i = 0; i < SIZE; i++) {
    assert_int_equal(nsai_comm_host_ranks(ranks[i].comm), SIZE);
    ranks[i].plan = m.plan;
    ranks[i].comm->host_id = (uint64_t)(i / 2);
    ranks[i].repeats = 1;
  }
  ranks[4].comm->host_ranks = 3;
  ranks_run(ranks, SIZE);
  ranks_expect_lost(ranks, SIZE, -1, "host_ranks of the communicator: rank 0 has 0, rank 4 3");
  ranks[4].comm->host_ranks = 0;
  for (int32_t i = 0; i < SIZE; i++) ranks[i] = again(&ranks[i], m.plan, NULL);
  ranks[1].comm->side.sms = 8;
  ranks_run(ranks, SIZE);
  ranks_expect_lost(ranks, SIZE, -1, "overlap_sms of the communicator: rank 0 has 0, rank 1 8");
  ranks[1].comm->side.sms = 0;
  for (int32_t i = 0; i < SIZE; i++) ranks[i] = again(&ranks[i], m.plan, NULL);
  ranks_run(ranks, SIZE);
  ranks_expect_ok(ranks, SIZE);
  for (int32_t i = 0; i < SIZE; i++) {
    assert_int_equal(nsai_comm_host_ranks(ranks[i].comm), 2);
    ranks[i].comm->host_id = 0;
    ranks[i] = again(&ranks[i], m.plan, NULL);
  }
  ranks_run(ranks, SIZE);
  ranks_expect_ok(ranks, SIZE);
  for (int32_t i = 0; i < SIZE; i++) assert_int_equal(nsai_comm_host_ranks(ranks[i].comm), 2);
  ranks_destroy(ranks, SIZE);
  /* Ranks that are each alone on a host have nothing to give to neighbours. */
  ranks_loopback(m.ctx, ranks, SIZE, 20000, rank_agrees);
  for (int32_t i = 0; i < SIZE; i++) {
    ranks[i].plan = m.plan;
    ranks[i].comm->host_id = (uint64_t)i;
  }
  ranks_run(ranks, SIZE);
  ranks_expect_ok(ranks, SIZE);
  for (int32_t i = 0; i < SIZE; i++) assert_int_equal(nsai_comm_host_ranks(ranks[i].comm), SIZE);
  ranks_destroy(ranks, SIZE);
  machine_free(&m);
}

static void test_host_options(void **state) {
  machine m;
  nsa_comm *comm, *comms[SIX];
  nsa_comm_options options = NSA_COMM_OPTIONS_INIT;
  const nsa_comm_ops ops = {
    .struct_size = sizeof ops, .size = SIX, .host_ranks = 2, .exchange = host_exchange
  };
  machine_init(&m, &quiet_cpu);
  machine_expect("ops", nsa_comm_create(m.ctx, &ops, NULL, &comm), NSA_OK, NULL);
  assert_int_equal(nsai_comm_host_ranks(comm), 2);
  nsa_comm_destroy(comm);
  options.host_ranks = 3; /* goes before the table's */
  machine_expect("both", nsa_comm_create(m.ctx, &ops, &options, &comm), NSA_OK, NULL);
  assert_int_equal(nsai_comm_host_ranks(comm), 3);
  nsa_comm_destroy(comm);
  machine_expect("loopback", nsa_comm_loopback(m.ctx, SIX, &options, comms), NSA_OK, NULL);
  for (int32_t i = 0; i < SIX; i++) {
    assert_int_equal(nsai_comm_host_ranks(comms[i]), 3);
    nsa_comm_destroy(comms[i]);
  }
  options.struct_size = offsetof(nsa_comm_options, host_ranks); /* of an older program */
  machine_expect("older", nsa_comm_create(m.ctx, &ops, &options, &comm), NSA_OK, NULL);
  assert_int_equal(nsai_comm_host_ranks(comm), 2);
  nsa_comm_destroy(comm);
  options.struct_size = sizeof options;
  for (options.host_ranks = -1; options.host_ranks <= 12; options.host_ranks += 5) { /* -1, 4, 9 */
    machine_expect("bad", nsa_comm_create(m.ctx, &ops, &options, &comm), NSA_E_ARG,
                   "options.host_ranks is");
    assert_null(comm);
    machine_expect("bad", nsa_comm_loopback(m.ctx, SIX, &options, comms), NSA_E_ARG,
                   "give a divisor of the number of ranks, which is 6");
    assert_null(comms[0]);
  }
  machine_free(&m);
}

/* ---- streams ---- */

static void agrees_patiently(rank *r) {
  const nsa_plan *plan = r->plan;
  rank_note(r, nsa_comm_agree(r->comm, &plan, 1, NULL, 20000));
}

/* Runs that never finish on the device are found by their age, and by a wait. */
static void test_stalled_stream(void **state) {
  machine m;
  machine_init(&m, &quiet_gpu);
  fake_cuda_state *record = machine_record();
  const int events = record->events, streams = record->streams, blocks = record->blocks;
  for (int32_t repeat = 0; repeat < 20; repeat++) {
    rank ranks[MOST_RANKS];
    nsa_stream stream = (nsa_stream)&m;
    ranks_loopback(m.ctx, ranks, 2, repeat % 2 ? 30 : 20000, agrees_patiently);
    for (int32_t i = 0; i < 2; i++) ranks[i].plan = m.plan;
    ranks_run(ranks, 2);
    ranks_expect_ok(ranks, 2);
    nsa_comm *comm = ranks[0].comm;
    for (int32_t i = 0; i < 600; i++)
      machine_expect("end", nsai_comm_end(comm, stream), NSA_OK, NULL);
    machine_expect("check", nsa_comm_check(comm), NSA_OK, NULL);
    machine_expect("wait", nsa_comm_wait(comm, stream, 0), NSA_OK, NULL);
    __atomic_store_n(&record->stalls, 1, __ATOMIC_RELAXED);
    for (int32_t i = 0; i < 600; i++)
      machine_expect("end", nsai_comm_end(comm, stream), NSA_OK, NULL);
    if (!(repeat % 2)) machine_expect("check", nsa_comm_check(comm), NSA_OK, NULL);
    if (repeat % 2) {
      usleep(40000); /* the runs are older than the timeout */
      machine_expect("check", nsa_comm_check(comm), NSA_E_RANKS,
                     "rank 0 of 2: the oldest of 256 runs has not finished for");
    } else {
      const double since = nsai_seconds();
      machine_expect("wait", nsa_comm_wait(comm, stream, 20), NSA_E_RANKS,
                     "rank 0 of 2: the stream has not finished after");
      assert_true(nsai_seconds() - since < 0.02 + GRACE);
    }
    machine_expect("other", nsa_comm_check(ranks[1].comm), NSA_E_RANKS, "another rank gave up");
    ranks[0].status = ranks[1].status = NSA_E_RANKS;
    rank_expect_dead(&ranks[0], m.plan);
    rank_expect_dead(&ranks[1], m.plan);
    ranks_destroy(ranks, 2);
    __atomic_store_n(&record->stalls, 0, __ATOMIC_RELAXED);
    assert_int_equal(record->events, events);
    assert_int_equal(record->streams, streams);
    assert_int_equal(record->blocks, blocks);
  }
  machine_free(&m);
}

/* Messages that never arrive in the device's memory. */
static void test_stalled_agreement(void **state) {
  machine m;
  rank ranks[MOST_RANKS];
  machine_init(&m, &quiet_gpu);
  fake_cuda_state *record = machine_record();
  ranks_loopback(m.ctx, ranks, 2, 30, rank_agrees);
  for (int32_t i = 0; i < 2; i++) ranks[i].plan = m.plan;
  __atomic_store_n(&record->stalls, 1, __ATOMIC_RELAXED);
  ranks_run(ranks, 2);
  __atomic_store_n(&record->stalls, 0, __ATOMIC_RELAXED);
  ranks_expect_lost(ranks, 2, -1, "rank");
  ranks_destroy(ranks, 2);
  machine_free(&m);
}

static void runs(rank *r) {
  rank_note(r, nsai_comm_begin(r->comm, r->plan->digest, NULL, NULL));
  rank_note(r, nsai_comm_end(r->comm, NULL));
}

/* A run whose launches, or whose last event, wait in a full queue is found by its age. */
static void test_full_queue(void **state) {
  machine m;
  rank ranks[MOST_RANKS];
  machine_init(&m, &quiet_gpu);
  fake_cuda_state *record = machine_record();
  for (int32_t last = 0; last < 2; last++) {
    nsa_status status = NSA_OK;
    ranks_loopback(m.ctx, ranks, 1, 50, agrees_patiently);
    ranks[0].plan = m.plan;
    ranks_run(ranks, 1);
    ranks_expect_ok(ranks, 1);
    ranks[0].work = runs;
    ranks_run(ranks, 1); /* one that finishes */
    ranks_expect_ok(ranks, 1);
    usleep(60000);
    machine_expect("between", nsa_comm_check(ranks[0].comm), NSA_OK, NULL);
    __atomic_store_n(&record->full, last, __ATOMIC_RELEASE);
    if (last)
      rank_start(&ranks[0]);
    else
      machine_expect("begin", nsai_comm_begin(ranks[0].comm, m.plan->digest, NULL, NULL), NSA_OK,
                     NULL);
    const double since = nsai_seconds();
    while ((status = nsa_comm_check(ranks[0].comm)) == NSA_OK && nsai_seconds() - since < 10)
      usleep(1000);
    machine_expect("check", status, NSA_E_RANKS, "rank 0 of 1: a run has been waiting for");
    __atomic_store_n(&record->full, 0, __ATOMIC_RELEASE);
    if (last) {
      rank_join(&ranks[0]);
      rank_expect_lost(&ranks[0], "a run has been waiting for");
    }
    ranks_destroy(ranks, 1);
  }
  machine_free(&m);
}

/* An agreement has a timeout of its own, which a thread that checks meanwhile keeps. */
static void test_patient_agreement(void **state) {
  machine m;
  rank ranks[MOST_RANKS];
  host hosts[MOST_RANKS];
  pthread_t thread;
  machine_init(&m, &quiet_cpu);
  make_hosts(m.ctx, ranks, hosts, 2, GOOD); /* options.timeout_ms is 60 */
  watcher w = { ranks, 2, 0 };
  for (int32_t i = 0; i < 2; i++) {
    ranks[i].plan = m.plan;
    ranks[i].work = agrees_patiently;
  }
  assert_int_equal(pthread_create(&thread, NULL, watch, &w), 0);
  rank_start(&ranks[0]);
  usleep(150000);
  rank_start(&ranks[1]);
  for (int32_t i = 0; i < 2; i++) rank_join(&ranks[i]);
  __atomic_store_n(&w.stop, 1, __ATOMIC_RELEASE);
  pthread_join(thread, NULL);
  ranks_expect_ok(ranks, 2);
  destroy_hosts(ranks, hosts, 2);
  machine_free(&m);
}

static void checks(rank *r) { rank_note(r, nsa_comm_check(r->comm)); }

/* Who hears that a communicator is dead may free what its transport uses: it has been aborted. */
static void test_dead_is_aborted(void **state) {
  machine m;
  machine_init(&m, &quiet_cpu);
  for (int32_t repeat = 0; repeat < 20; repeat++) {
    rank ranks[MOST_RANKS];
    host hosts[MOST_RANKS];
    make_hosts(m.ctx, ranks, hosts, 2, UNWELL);
    ranks[1].work = checks;
    rank_start(&ranks[1]);
    while (!__atomic_load_n(&hosts[1].aborting, __ATOMIC_ACQUIRE)) usleep(100);
    machine_expect("second", nsa_comm_check(ranks[1].comm), NSA_E_RANKS, "returned NSA_E_IO");
    assert_int_equal(__atomic_load_n(&hosts[1].aborts, __ATOMIC_RELAXED), 1);
    rank_join(&ranks[1]);
    destroy_hosts(ranks, hosts, 2);
  }
  machine_free(&m);
}

/* A communicator belongs to the process that made it. */
static void test_fork(void **state) {
  machine m;
  rank ranks[MOST_RANKS];
  int status = -1;
  machine_init(&m, &quiet_cpu);
  ranks_loopback(m.ctx, ranks, 2, 20000, rank_agrees);
  const pid_t child = fork();
  if (!child) {
    const nsa_status checked = nsa_comm_check(ranks[0].comm);
    nsa_comm_destroy(ranks[0].comm);
    _exit(checked != NSA_E_FORKED);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  for (int32_t i = 0; i < 2; i++) ranks[i].plan = m.plan;
  ranks_run(ranks, 2);
  ranks_expect_ok(ranks, 2);
  ranks_destroy(ranks, 2);
  machine_free(&m);
}

/* A capture that the transport does not allow. */
static void test_capture(void **state) {
  machine m;
  rank ranks[MOST_RANKS];
  machine_init(&m, &quiet_gpu);
  fake_cuda_state *record = machine_record();
  ranks_loopback(m.ctx, ranks, 1, 1000, rank_agrees);
  ranks[0].plan = m.plan;
  ranks_run(ranks, 1);
  ranks_expect_ok(ranks, 1);
  record->capturing = true;
  machine_expect("begin", nsai_comm_begin(ranks[0].comm, m.plan->digest, NULL, NULL),
                 NSA_E_UNSUPPORTED, "exec.stream");
  record->capturing = false;
  machine_expect("begin", nsai_comm_begin(ranks[0].comm, m.plan->digest, NULL, NULL), NSA_OK, NULL);
  ranks_destroy(ranks, 1);
  machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_loopback),
    cmocka_unit_test(test_agree),
    cmocka_unit_test(test_disagree),
    cmocka_unit_test(test_remembers),
    cmocka_unit_test(test_longer_messages),
    cmocka_unit_test(test_lost_thread),
    cmocka_unit_test(test_names_ranks),
    cmocka_unit_test(test_hosts),
    cmocka_unit_test(test_bad_tables),
    cmocka_unit_test(test_stalled_stream),
    cmocka_unit_test(test_stalled_agreement),
    cmocka_unit_test(test_full_queue),
    cmocka_unit_test(test_patient_agreement),
    cmocka_unit_test(test_dead_is_aborted),
    cmocka_unit_test(test_fork),
    cmocka_unit_test(test_capture),
    cmocka_unit_test(test_find_hosts),
    cmocka_unit_test(test_agree_on_hosts),
    cmocka_unit_test(test_host_options),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
