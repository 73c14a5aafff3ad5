/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Communicators: the loopback among threads, on the CPU device and on streams of the fake driver;
 * agreement; tables of functions that are late, fail, stall, die or disagree; NCCL by a library without
 * hardware (fake_nccl.c). No rank hangs: tests that wait for a fault allow a second.
 */
#include "support/cmocka_all.h"

#include "base/duration.h"
#include "driver/nccl.h"
#include "fake_nccl.h"
#include "machine.h"
#include "plan/plan.h"
#include "ranks/comm.h"

#include <dlfcn.h>
#include <nsa/ranks.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST 16
#define QUIET "runtime.log_level=off"

static const machine_request quiet_cpu = { .override = QUIET };
static const machine_request quiet_gpu = { .gpu = true, .override = QUIET };

typedef struct rank rank;

/* One rank: a thread with its communicator. cmocka's assertions belong to the main thread, so that
 * threads only note what happened. */
struct rank {
  nsa_comm *comm;
  int32_t number, size;
  nsa_status status;
  char text[1024]; /* nsa_last_error of the first failure */
  double seconds;  /* that the work took */
  bool wrong;      /* data were not what was sent */
  int32_t repeats, timeout_ms;
  nsa_plan *plan;
  nsa_shard *shard;
  void (*work)(rank *);
  pthread_t thread;
};

static void note(rank *r, nsa_status status) {
  if (r->status != NSA_OK || status == NSA_OK) return;
  r->status = status;
  snprintf(r->text, sizeof r->text, "%s", nsa_last_error());
}

static void *run_rank(void *user) {
  rank *r = user;
  const double since = nsai_seconds();
  r->work(r);
  r->seconds = nsai_seconds() - since;
  return NULL;
}

static void run_ranks(rank *ranks, int32_t size) {
  for (int32_t i = 0; i < size; i++)
    assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
  for (int32_t i = 0; i < size; i++) pthread_join(ranks[i].thread, NULL);
}

static void make_loopback(nsa_ctx *ctx, rank *ranks, int32_t size, int32_t timeout_ms,
                          void (*work)(rank *)) {
  nsa_comm *comms[MOST];
  nsa_comm_options options = NSA_COMM_OPTIONS_INIT;
  options.timeout_ms = timeout_ms;
  if (nsa_comm_loopback(ctx, size, &options, comms) != NSA_OK) fail_msg("%s", nsa_last_error());
  memset(ranks, 0, MOST * sizeof *ranks);
  for (int32_t i = 0; i < size; i++)
    ranks[i] = (rank){ .comm = comms[i],
                       .number = i,
                       .size = size,
                       .repeats = 20,
                       .timeout_ms = timeout_ms,
                       .work = work };
}

static void destroy_ranks(rank *ranks, int32_t size) {
  for (int32_t i = 0; i < size; i++) nsa_comm_destroy(ranks[i].comm);
}

static void expect_ok(const rank *ranks, int32_t size) {
  for (int32_t i = 0; i < size; i++) {
    if (ranks[i].status != NSA_OK) fail_msg("rank %d: %s", i, ranks[i].text);
    if (ranks[i].wrong) fail_msg("rank %d received something else than was sent", i);
  }
}

/* It failed within the timeout and a second, and says so. */
static void expect_rank(const rank *r, const char *says) {
  if (r->status != NSA_E_RANKS)
    fail_msg("rank %d: %s: %s", r->number, nsa_status_name(r->status), r->text);
  if (!strstr(r->text, says)) fail_msg("rank %d: no \"%s\": %s", r->number, says, r->text);
  if (r->seconds > r->timeout_ms / 1000.0 + 1)
    fail_msg("rank %d: after %f s: %s", r->number, r->seconds, r->text);
}

/* All ranks but `lost` (-1: none). */
static void expect_ranks(const rank *ranks, int32_t size, int32_t lost, const char *says) {
  for (int32_t i = 0; i < size; i++)
    if (i != lost) expect_rank(&ranks[i], says);
}

/* A rank that failed stays dead, and says why. */
static void expect_dead(const rank *r, const nsa_plan *plan) {
  char byte = 0;
  if (r->status == NSA_OK || !r->comm) return;
  machine_expect("dead", nsai_comm_exchange(r->comm, NULL, 0, NULL, 0, NULL), NSA_E_RANKS,
                 "has ended");
  machine_expect("dead", nsai_comm_all_gather(r->comm, &byte, &byte, 1, NULL), NSA_E_RANKS, "rank");
  machine_expect("dead", nsa_comm_check(r->comm), NSA_E_RANKS, "has ended");
  machine_expect("dead", nsa_comm_wait(r->comm, NULL, 0), NSA_E_RANKS, "has ended");
  machine_expect("dead", nsa_comm_agree(r->comm, NULL, 0, NULL, 0), NSA_E_RANKS, "has ended");
  machine_expect("dead", nsai_comm_begin(r->comm, plan->digest, NULL, NULL), NSA_E_RANKS,
                 "has ended");
}

static void destroy_one(rank *r) {
  nsa_comm_destroy(r->comm);
  r->comm = NULL;
}

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

/* ---- data ---- */

/* The words of part `number` from one rank to another. */
static uint32_t word_of(int32_t from, int32_t to, int32_t number, int32_t at) {
  return (uint32_t)(from * 1000003 + to * 10007 + number * 101 + at);
}

/* Two parts of different lengths to every rank, itself included, and an empty one. */
enum { FIRST_WORDS = 64, SECOND_WORDS = 3, PARTS = 3 };
typedef struct letters {
  uint32_t first[MOST][FIRST_WORDS], second[MOST][SECOND_WORDS];
} letters;

static void list_parts(letters *l, int32_t size, nsa_part *parts) {
  for (int32_t i = 0; i < size; i++) {
    *parts++ = (nsa_part){ l->first[i], sizeof l->first[i], i };
    *parts++ = (nsa_part){ NULL, 0, i };
    *parts++ = (nsa_part){ l->second[i], sizeof l->second[i], i };
  }
}

static void exchange_letters(rank *r) {
  letters *out = malloc(sizeof *out), *in = malloc(sizeof *in);
  nsa_part send[MOST * PARTS], recv[MOST * PARTS];
  list_parts(out, r->size, send);
  list_parts(in, r->size, recv);
  for (int32_t n = 0; n < r->repeats; n++) {
    memset(in, 0xff, sizeof *in);
    for (int32_t to = 0; to < r->size; to++) {
      for (int32_t i = 0; i < FIRST_WORDS; i++) out->first[to][i] = word_of(r->number, to, n, i);
      for (int32_t i = 0; i < SECOND_WORDS; i++) out->second[to][i] = word_of(r->number, to, ~n, i);
    }
    note(r, nsai_comm_exchange(r->comm, send, r->size * PARTS, recv, r->size * PARTS, NULL));
    memset(out, 0, sizeof *out); /* what was sent may change now */
    for (int32_t from = 0; from < r->size; from++) {
      for (int32_t i = 0; i < FIRST_WORDS; i++)
        r->wrong |= in->first[from][i] != word_of(from, r->number, n, i);
      for (int32_t i = 0; i < SECOND_WORDS; i++)
        r->wrong |= in->second[from][i] != word_of(from, r->number, ~n, i);
    }
    uint32_t mine = word_of(r->number, 0, n, 0), all[MOST];
    note(r, nsai_comm_all_gather(r->comm, &mine, all, sizeof mine, NULL));
    for (int32_t from = 0; from < r->size; from++) r->wrong |= all[from] != word_of(from, 0, n, 0);
  }
  note(r, nsa_comm_check(r->comm));
  note(r, nsa_comm_wait(r->comm, NULL, 0));
  free(out);
  free(in);
}

static void test_loopback(void **state) {
  for (int gpu = 0; gpu < 2; gpu++) {
    machine m;
    machine_init(&m, gpu ? &quiet_gpu : &quiet_cpu);
    for (int32_t size = 1; size <= MOST; size++) {
      rank ranks[MOST];
      make_loopback(m.ctx, ranks, size, 20000, exchange_letters);
      run_ranks(ranks, size);
      expect_ok(ranks, size);
      destroy_ranks(ranks, size);
    }
    machine_free(&m);
  }
}

/* ---- agreement ---- */

static void agree(rank *r) {
  const nsa_plan *plans[2] = { r->plan, r->plan };
  for (int32_t n = 0; n < r->repeats; n++) note(r, nsa_comm_agree(r->comm, plans, 2, r->shard, 0));
}

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
    rank ranks[MOST];
    machine_init(&m, gpu ? &quiet_gpu : &quiet_cpu);
    make_loopback(m.ctx, ranks, SIZE, 20000, agree);
    for (int32_t i = 0; i < SIZE; i++) {
      ranks[i].plan = m.plan;
      ranks[i].shard = make_shard(m.ctx, SIZE, 1000);
    }
    machine_expect("begin", nsai_comm_begin(ranks[0].comm, m.plan->digest, ranks[0].shard, NULL),
                   NSA_E_ARG, "nsa_comm_agree");
    run_ranks(ranks, SIZE);
    expect_ok(ranks, SIZE);
    for (int32_t i = 0; i < SIZE; i++) {
      nsa_shard *other = make_shard(m.ctx, SIZE, 1001);
      machine_expect("begin", nsai_comm_begin(ranks[i].comm, m.plan->digest, ranks[i].shard, NULL),
                     NSA_OK, NULL);
      machine_expect("other", nsai_comm_begin(ranks[i].comm, m.plan->digest, other, NULL),
                     NSA_E_ARG, "batch.shard");
      nsa_shard_destroy(other);
      nsa_shard_destroy(ranks[i].shard);
    }
    destroy_ranks(ranks, SIZE);
    machine_free(&m);
  }
}

static void test_disagree(void **state) {
  enum { SIZE = 3 };
  machine m, other;
  rank ranks[MOST];
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
    int32_t shards; /* that rank 2 gives, if not the same */
    const char *says;
  } cases[] = {
    { m.plan, shards[1], 1, "the shard (not as on rank 0: rank 2)" },
    { longer, shards[0], 1, "problem.max_tokens of plan 0 (rank 0 has 64, rank 2 65)" },
    { other.plan, shards[0], 1,
      "the model of the configuration of plan 0 (not as on rank 0: rank 2)" },
    { m.plan, NULL, 0, "whether a shard is given: rank 0 has 1, rank 2 0" },
  };
  make_loopback(m.ctx, ranks, SIZE, 20000, agree);
  for (int32_t repeat = 0; repeat < 20; repeat++) {
    const size_t c = (size_t)repeat % (sizeof cases / sizeof *cases);
    for (int32_t i = 0; i < SIZE; i++) {
      ranks[i].repeats = 1;
      ranks[i].status = NSA_OK;
      ranks[i].plan = i == 2 ? cases[c].plan : m.plan;
      ranks[i].shard = i == 2 ? cases[c].shard : shards[0];
    }
    run_ranks(ranks, SIZE);
    expect_ranks(ranks, SIZE, -1, cases[c].says);
  }
  /* Ranks that disagreed may agree later. */
  machine_expect("begin", nsai_comm_begin(ranks[0].comm, m.plan->digest, NULL, NULL), NSA_E_ARG,
                 "exec.comm");
  for (int32_t i = 0; i < SIZE; i++) ranks[i] = again(&ranks[i], m.plan, shards[1]);
  run_ranks(ranks, SIZE);
  expect_ok(ranks, SIZE);
  machine_expect("begin", nsai_comm_begin(ranks[0].comm, m.plan->digest, NULL, NULL), NSA_OK, NULL);
  destroy_ranks(ranks, SIZE);
  nsa_plan_destroy(longer);
  nsa_shard_destroy(shards[0]);
  nsa_shard_destroy(shards[1]);
  machine_free(&other);
  machine_free(&m);
}

/* ---- lost ranks ---- */

/* Rank 1 never calls. */
static void agree_but_one(rank *r) {
  if (r->number != 1) agree(r);
}

static void exchange_but_one(rank *r) {
  if (r->number != 1) exchange_letters(r);
}

static void gives_up(rank *r) {
  if (r->number == 1)
    nsai_comm_fail(r->comm, "its tensors are wrong");
  else
    agree(r);
}

static void leaves(rank *r) {
  if (r->number == 1) {
    nsa_comm_destroy(r->comm);
    r->comm = NULL;
  } else {
    agree(r);
  }
}

/* Other sizes than the others expect. */
static void sends_less(rank *r) {
  char bytes[8] = { 0 }, all[MOST * 8];
  note(r, nsai_comm_all_gather(r->comm, bytes, all, r->number == 1 ? 4 : 8, NULL));
  note(r, nsa_comm_check(r->comm));
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
        rank ranks[MOST];
        make_loopback(m.ctx, ranks, 3, cases[c].timeout_ms, cases[c].work);
        for (int32_t i = 0; i < 3; i++) ranks[i].plan = m.plan;
        run_ranks(ranks, 3);
        expect_ranks(ranks, 3, cases[c].lost, cases[c].says);
        for (int32_t i = 0; i < 3; i++) expect_dead(&ranks[i], m.plan);
        destroy_ranks(ranks, 3);
      }
    machine_free(&m);
  }
}

/* Ranks that are not there at all are named. */
static void test_names_ranks(void **state) {
  machine m;
  rank ranks[MOST];
  machine_init(&m, &quiet_cpu);
  make_loopback(m.ctx, ranks, 4, 10, agree);
  machine_expect("exchange", nsai_comm_exchange(ranks[2].comm, NULL, 0, NULL, 0, NULL), NSA_E_RANKS,
                 "s for ranks 0, 1, 3 to make the same call");
  machine_expect("other", nsai_comm_exchange(ranks[1].comm, NULL, 0, NULL, 0, NULL), NSA_E_RANKS,
                 "rank 1 of 4: another rank gave up: rank 2 of 4 waited");
  destroy_ranks(ranks, 4);
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
  int aborts;
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
  __atomic_fetch_add(&h->aborts, 1, __ATOMIC_RELAXED);
  nsai_comm_fail(h->inner, "the host aborts");
  return NSA_OK;
}

/* Rank 1 behaves so; the others are good. */
static void make_hosts(nsa_ctx *ctx, rank *ranks, host *hosts, int32_t size, behaviour kind) {
  nsa_comm *inner[MOST];
  nsa_comm_options options = NSA_COMM_OPTIONS_INIT;
  options.timeout_ms = 60000;
  machine_expect("inner", nsa_comm_loopback(ctx, size, &options, inner), NSA_OK, NULL);
  options.timeout_ms = 60;
  memset(ranks, 0, MOST * sizeof *ranks);
  for (int32_t i = 0; i < size; i++) {
    nsa_comm_ops ops = NSA_COMM_OPS_INIT;
    hosts[i] = (host){ inner[i], i == 1 ? kind : GOOD, 0 };
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
  destroy_ranks(ranks, size);
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
  note(r, nsa_comm_check(r->comm));
  agree_but_one(r);
  if (r->status == NSA_OK && r->number == 1) agree(r);
}

static void test_hosts(void **state) {
  enum { SIZE = 3 };
  static const struct {
    behaviour behaviour;
    void (*work)(rank *);
    int32_t lost;
    const char *says[2]; /* rank 1, the others; NULL: all is well */
  } cases[] = {
    { GOOD, agree, -1, { NULL, NULL } },
    { LATE, agree, -1, { NULL, NULL } },
    { FAILS,
      agree,
      -1,
      { "rank 1 of 3: exchange of the host's transport returned NSA_E_IO",
        "exchange of the host's transport returned NSA_E_RANKS" } },
    { IDLES,
      agree,
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
      rank ranks[MOST];
      host hosts[MOST];
      pthread_t thread;
      watcher w = { ranks, SIZE, 0 };
      make_hosts(m.ctx, ranks, hosts, SIZE, cases[c].behaviour);
      for (int32_t i = 0; i < SIZE; i++) {
        ranks[i].plan = m.plan;
        ranks[i].work = cases[c].work;
      }
      const bool watched = cases[c].behaviour == DIES;
      if (watched) assert_int_equal(pthread_create(&thread, NULL, watch, &w), 0);
      run_ranks(ranks, SIZE);
      __atomic_store_n(&w.stop, 1, __ATOMIC_RELEASE);
      if (watched) pthread_join(thread, NULL);
      if (!cases[c].says[1]) {
        expect_ok(ranks, SIZE);
      } else {
        for (int32_t i = 0; i < SIZE; i++)
          if (i != cases[c].lost) expect_rank(&ranks[i], cases[c].says[i != 1]);
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
  machine_expect("comm", nsa_comm_check(NULL), NSA_E_ARG, "comm is NULL");
  nsa_comm_destroy(NULL);
  machine_free(&m);
}

/* ---- streams ---- */

/* Runs that never finish on the device are found by their age, and by a wait. */
static void test_stalled_stream(void **state) {
  machine m;
  machine_init(&m, &quiet_gpu);
  fake_cuda_state *record = machine_record();
  const int events = record->events, streams = record->streams, blocks = record->blocks;
  for (int32_t repeat = 0; repeat < 20; repeat++) {
    rank ranks[MOST];
    nsa_stream stream = (nsa_stream)&m;
    make_loopback(m.ctx, ranks, 2, 30, agree);
    for (int32_t i = 0; i < 2; i++) ranks[i].plan = m.plan;
    run_ranks(ranks, 2);
    expect_ok(ranks, 2);
    nsa_comm *comm = ranks[0].comm;
    for (int32_t i = 0; i < 600; i++)
      machine_expect("end", nsai_comm_end(comm, stream), NSA_OK, NULL);
    machine_expect("check", nsa_comm_check(comm), NSA_OK, NULL);
    machine_expect("wait", nsa_comm_wait(comm, stream, 0), NSA_OK, NULL);
    __atomic_store_n(&record->stalls, 1, __ATOMIC_RELAXED);
    for (int32_t i = 0; i < 600; i++)
      machine_expect("end", nsai_comm_end(comm, stream), NSA_OK, NULL);
    machine_expect("check", nsa_comm_check(comm), NSA_OK, NULL);
    const double since = nsai_seconds();
    machine_expect("wait", nsa_comm_wait(comm, stream, repeat % 2 ? 0 : 20), NSA_E_RANKS,
                   repeat % 2 ? "rank 0 of 2: the oldest of 256 runs has not finished for"
                              : "rank 0 of 2: the stream has not finished after");
    assert_true(nsai_seconds() - since < 1.03);
    machine_expect("other", nsa_comm_check(ranks[1].comm), NSA_E_RANKS, "another rank gave up");
    ranks[0].status = ranks[1].status = NSA_E_RANKS;
    expect_dead(&ranks[0], m.plan);
    expect_dead(&ranks[1], m.plan);
    destroy_ranks(ranks, 2);
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
  rank ranks[MOST];
  machine_init(&m, &quiet_gpu);
  fake_cuda_state *record = machine_record();
  make_loopback(m.ctx, ranks, 2, 30, agree);
  for (int32_t i = 0; i < 2; i++) ranks[i].plan = m.plan;
  __atomic_store_n(&record->stalls, 1, __ATOMIC_RELAXED);
  run_ranks(ranks, 2);
  __atomic_store_n(&record->stalls, 0, __ATOMIC_RELAXED);
  expect_ranks(ranks, 2, -1, "rank");
  destroy_ranks(ranks, 2);
  machine_free(&m);
}

/* A capture that the transport does not allow. */
static void test_capture(void **state) {
  machine m;
  rank ranks[MOST];
  machine_init(&m, &quiet_gpu);
  fake_cuda_state *record = machine_record();
  make_loopback(m.ctx, ranks, 1, 1000, agree);
  ranks[0].plan = m.plan;
  run_ranks(ranks, 1);
  expect_ok(ranks, 1);
  record->capturing = true;
  machine_expect("begin", nsai_comm_begin(ranks[0].comm, m.plan->digest, NULL, NULL),
                 NSA_E_UNSUPPORTED, "exec.stream");
  record->capturing = false;
  machine_expect("begin", nsai_comm_begin(ranks[0].comm, m.plan->digest, NULL, NULL), NSA_OK, NULL);
  destroy_ranks(ranks, 1);
  machine_free(&m);
}

/* ---- NCCL ---- */

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
  note(r, nsa_comm_nccl_init(nccl_ctx, nccl_id, r->number, r->size, &options, &r->comm));
}

static void use_nccl(rank *r) {
  connect_rank(r);
  if (r->status != NSA_OK) return;
  exchange_letters(r);
  agree(r);
}

static void connect_but_one(rank *r) {
  if (r->number != 1) connect_rank(r);
}

/* The others wait for its part of an exchange. */
static void connect_only(rank *r) {
  connect_rank(r);
  if (r->status == NSA_OK && r->number != 1) agree(r);
}

static void run_nccl(machine *m, rank *ranks, int32_t size, int32_t timeout_ms,
                     void (*work)(rank *)) {
  machine_expect("id", nsa_comm_nccl_id(m->ctx, nccl_id), NSA_OK, NULL);
  nccl_ctx = m->ctx;
  memset(ranks, 0, MOST * sizeof *ranks);
  for (int32_t i = 0; i < size; i++)
    ranks[i] = (rank){ .number = i,
                       .size = size,
                       .repeats = 20,
                       .timeout_ms = timeout_ms,
                       .plan = m->plan,
                       .work = work };
  run_ranks(ranks, size);
}

static void test_nccl(void **state) {
  machine m;
  rank ranks[MOST];
  init_nccl(&m);
  for (int32_t size = 1; size <= 4; size++) {
    run_nccl(&m, ranks, size, 20000, use_nccl);
    expect_ok(ranks, size);
    /* Ranks end together: a communicator waits for the others to finish. */
    for (int32_t i = 0; i < size; i++) ranks[i].work = destroy_one;
    run_ranks(ranks, size);
  }
  assert_int_equal(nccl_record()->comms, 0);
  assert_int_equal(nccl_record()->destroyed, 10);
  assert_int_equal(nccl_record()->wrong_use, 0);
  machine_free(&m);
}

static void test_nccl_faults(void **state) {
  machine m;
  rank ranks[MOST];
  init_nccl(&m);
  fake_nccl_state *record = nccl_record();
  for (int32_t repeat = 0; repeat < 20; repeat++) {
    run_nccl(&m, ranks, 3, 30, connect_but_one);
    expect_ranks(ranks, 3, 1, "s for the other ranks in ncclCommInitRankConfig");
    for (int32_t i = 0; i < 3; i++) assert_null(ranks[i].comm);
    assert_int_equal(record->comms, 0);

    run_nccl(&m, ranks, 3, 200, connect_only);
    expect_ranks(ranks, 3, 1, "s for the other ranks in an exchange");
    assert_int_equal(record->comms, 1); /* the dead ones have been aborted */
    record->async_error = 6;
    machine_expect("check", nsa_comm_check(ranks[1].comm), NSA_E_RANKS,
                   "rank 1 of 3: ncclCommGetAsyncError: fake error (6): a fake cable was pulled");
    record->async_error = 0;
    assert_int_equal(record->comms, 0);
    for (int32_t i = 0; i < 3; i++) expect_dead(&ranks[i], m.plan);
    destroy_ranks(ranks, 3);

    record->fail_group = 1;
    run_nccl(&m, ranks, 2, 200, use_nccl);
    record->fail_group = 0;
    expect_ranks(ranks, 2, -1, "rank");
    destroy_ranks(ranks, 2);
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
    cmocka_unit_test(test_loopback),
    cmocka_unit_test(test_agree),
    cmocka_unit_test(test_disagree),
    cmocka_unit_test(test_lost_thread),
    cmocka_unit_test(test_names_ranks),
    cmocka_unit_test(test_hosts),
    cmocka_unit_test(test_bad_tables),
    cmocka_unit_test(test_stalled_stream),
    cmocka_unit_test(test_stalled_agreement),
    cmocka_unit_test(test_capture),
    cmocka_unit_test(test_nccl),
    cmocka_unit_test(test_nccl_faults),
    cmocka_unit_test(test_borrowed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
