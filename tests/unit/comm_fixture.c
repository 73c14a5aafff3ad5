/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "comm_fixture.h"

#include "support/cmocka_all.h"

#include "base/duration.h"

#include <stdlib.h>

void rank_note(rank *r, nsa_status status) {
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

void rank_start(rank *r) { assert_int_equal(pthread_create(&r->thread, NULL, run_rank, r), 0); }

void rank_join(rank *r) { pthread_join(r->thread, NULL); }

void ranks_run(rank *ranks, int32_t size) {
  for (int32_t i = 0; i < size; i++) rank_start(&ranks[i]);
  for (int32_t i = 0; i < size; i++) rank_join(&ranks[i]);
}

void ranks_loopback(nsa_ctx *ctx, rank *ranks, int32_t size, int32_t timeout_ms,
                    void (*work)(rank *)) {
  nsa_comm *comms[MOST_RANKS];
  nsa_comm_options options = NSA_COMM_OPTIONS_INIT;
  options.timeout_ms = timeout_ms;
  if (nsa_comm_loopback(ctx, size, &options, comms) != NSA_OK) fail_msg("%s", nsa_last_error());
  memset(ranks, 0, MOST_RANKS * sizeof *ranks);
  for (int32_t i = 0; i < size; i++)
    ranks[i] = (rank){ .comm = comms[i],
                       .number = i,
                       .size = size,
                       .repeats = 20,
                       .timeout_ms = timeout_ms,
                       .work = work };
}

void ranks_destroy(rank *ranks, int32_t size) {
  for (int32_t i = 0; i < size; i++) nsa_comm_destroy(ranks[i].comm);
}

void ranks_expect_ok(const rank *ranks, int32_t size) {
  for (int32_t i = 0; i < size; i++) {
    if (ranks[i].status != NSA_OK) fail_msg("rank %d: %s", i, ranks[i].text);
    if (ranks[i].wrong) fail_msg("rank %d received something else than was sent", i);
  }
}

void rank_expect_lost(const rank *r, const char *says) {
  if (r->status != NSA_E_RANKS)
    fail_msg("rank %d: %s: %s", r->number, nsa_status_name(r->status), r->text);
  if (!strstr(r->text, says)) fail_msg("rank %d: no \"%s\": %s", r->number, says, r->text);
  if (r->seconds > r->timeout_ms / 1000.0 + GRACE)
    fail_msg("rank %d: after %f s: %s", r->number, r->seconds, r->text);
}

void ranks_expect_lost(const rank *ranks, int32_t size, int32_t lost, const char *says) {
  for (int32_t i = 0; i < size; i++)
    if (i != lost) rank_expect_lost(&ranks[i], says);
}

void rank_expect_dead(const rank *r, const nsa_plan *plan) {
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

void rank_leaves(rank *r) {
  nsa_comm_destroy(r->comm);
  r->comm = NULL;
}

/* ---- data ---- */

/* The words of part `number` from one rank to another. */
static uint32_t word_of(int32_t from, int32_t to, int32_t number, int32_t at) {
  return (uint32_t)(from * 1000003 + to * 10007 + number * 101 + at);
}

/* Two parts of different lengths to every rank, itself included, and an empty one. */
enum { FIRST_WORDS = 64, SECOND_WORDS = 3, PARTS = 3 };
typedef struct letters {
  uint32_t first[MOST_RANKS][FIRST_WORDS], second[MOST_RANKS][SECOND_WORDS];
} letters;

static void list_parts(letters *l, int32_t size, nsa_part *parts) {
  for (int32_t i = 0; i < size; i++) {
    *parts++ = (nsa_part){ l->first[i], sizeof l->first[i], i };
    *parts++ = (nsa_part){ NULL, 0, i };
    *parts++ = (nsa_part){ l->second[i], sizeof l->second[i], i };
  }
}

void rank_exchanges(rank *r) {
  letters *out = malloc(sizeof *out), *in = malloc(sizeof *in);
  nsa_part send[MOST_RANKS * PARTS], recv[MOST_RANKS * PARTS];
  list_parts(out, r->size, send);
  list_parts(in, r->size, recv);
  for (int32_t n = 0; n < r->repeats; n++) {
    memset(in, 0xff, sizeof *in);
    for (int32_t to = 0; to < r->size; to++) {
      for (int32_t i = 0; i < FIRST_WORDS; i++) out->first[to][i] = word_of(r->number, to, n, i);
      for (int32_t i = 0; i < SECOND_WORDS; i++) out->second[to][i] = word_of(r->number, to, ~n, i);
    }
    rank_note(r, nsai_comm_exchange(r->comm, send, r->size * PARTS, recv, r->size * PARTS, NULL));
    memset(out, 0, sizeof *out); /* what was sent may change now */
    for (int32_t from = 0; from < r->size; from++) {
      for (int32_t i = 0; i < FIRST_WORDS; i++)
        r->wrong |= in->first[from][i] != word_of(from, r->number, n, i);
      for (int32_t i = 0; i < SECOND_WORDS; i++)
        r->wrong |= in->second[from][i] != word_of(from, r->number, ~n, i);
    }
    uint32_t mine = word_of(r->number, 0, n, 0), all[MOST_RANKS];
    rank_note(r, nsai_comm_all_gather(r->comm, &mine, all, sizeof mine, NULL));
    for (int32_t from = 0; from < r->size; from++) r->wrong |= all[from] != word_of(from, 0, n, 0);
  }
  rank_note(r, nsa_comm_check(r->comm));
  rank_note(r, nsa_comm_wait(r->comm, NULL, 0));
  free(out);
  free(in);
}

void rank_agrees(rank *r) {
  const nsa_plan *plans[2] = { r->plan, r->plan };
  for (int32_t n = 0; n < r->repeats; n++)
    rank_note(r, nsa_comm_agree(r->comm, plans, 2, r->shard, 0));
}
