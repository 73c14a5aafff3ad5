/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Communicators: the loopback among threads, on the CPU device and on streams of the fake driver;
 * agreement; tables of functions that are late, fail, stall, die or disagree.
 */
#include "support/cmocka_all.h"

#include "base/duration.h"
#include "machine.h"
#include "plan/plan.h"
#include "ranks/comm.h"

#include <nsa/ranks.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST 16
#define TIMEOUT_MS 300

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
  int32_t repeats;
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
    ranks[i] = (rank){ .comm = comms[i], .number = i, .size = size, .work = work, .repeats = 20 };
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

/* All ranks but `lost` (-1: none) failed within the timeout and a second, and each names `word`. */
static void expect_ranks(const rank *ranks, int32_t size, int32_t lost, const char *word) {
  for (int32_t i = 0; i < size; i++) {
    if (i == lost) continue;
    if (ranks[i].status != NSA_E_RANKS)
      fail_msg("rank %d: status %d, %s", i, ranks[i].status, ranks[i].text);
    if (!strstr(ranks[i].text, word)) fail_msg("rank %d: no \"%s\": %s", i, word, ranks[i].text);
    if (ranks[i].seconds > TIMEOUT_MS / 1000.0 + 1) fail_msg("rank %d: %f s", i, ranks[i].seconds);
  }
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
    machine_init(&m, &(machine_request){ .gpu = gpu });
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
    machine_init(&m, &(machine_request){ .gpu = gpu });
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

/* ---- lost ranks ---- */

/* Rank 1 never calls. */
static void agree_but_one(rank *r) {
  if (r->number != 1) agree(r);
}

static void exchange_but_one(rank *r) {
  if (r->number != 1) exchange_letters(r);
}

static void test_lost_thread(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ 0 });
  for (int32_t repeat = 0; repeat < 20; repeat++) {
    rank ranks[MOST];
    make_loopback(m.ctx, ranks, 3, TIMEOUT_MS / 10, repeat % 2 ? agree_but_one : exchange_but_one);
    for (int32_t i = 0; i < 3; i++) ranks[i].plan = m.plan;
    run_ranks(ranks, 3);
    expect_ranks(ranks, 3, 1, "for rank 1 to make the same call");
    destroy_ranks(ranks, 3);
  }
  machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_loopback),
    cmocka_unit_test(test_agree),
    cmocka_unit_test(test_lost_thread),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
