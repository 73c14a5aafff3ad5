/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "two_ranks.h"

#include "support/cmocka_all.h"

#include "ranks/shard.h"

#include <stdlib.h>

const int32_t two_short_parts[3] = { 16, 16, 8 };
const machine_request two_no_window = { .gpu = true, .override = "model.window=0" };

nsa_status two_record_exchange(void *user, const nsa_part *send, int32_t send_count,
                               const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  exchanges *all = user;
  assert_true(all->count < MOST_EXCHANGES && send_count <= MOST_PARTS && recv_count <= MOST_PARTS);
  exchange_record *e = &all->of[all->count++];
  *e = (exchange_record){ .launches = machine_record()->launches,
                          .stream = stream,
                          .sent = send_count,
                          .received = recv_count };
  memcpy(e->send, send, (size_t)send_count * sizeof *send);
  memcpy(e->recv, recv, (size_t)recv_count * sizeof *recv);
  return all->count == all->fail ? NSA_E_RANKS : NSA_OK;
}

void two_open(rank_of_two *r, const machine_request *request, const int32_t part[3]) {
  const int32_t total = part[0] + part[1] + part[2];
  const nsa_piece pieces[] = { { 0, 0, 0, part[0] },
                               { 1, 0, part[0], part[1] },
                               { 0, 0, part[0] + part[1], part[2] } };
  const int64_t length = total;
  machine_init(&r->m, request);
  const nsai_model model = r->m.plan->problem.model;
  toy_free(&r->m.toy);
  toy_init(&r->m.toy, &model, 1, &total, &total);
  r->rows = part[0] + part[2];
  r->seen = (exchanges){ 0 };
  const nsa_shard_options shard =
      INIT(nsa_shard_options, .layout = NSA_SHARD_GIVEN, .ranks = 2, .num_seqs = 1,
           .lengths = &length, .alignment = 4, .given = pieces, .given_count = 3);
  const nsa_problem problem =
      INIT(nsa_problem, .op = request->op, .max_tokens = r->rows, .max_kv_tokens = total,
           .max_kv_len = total, .max_seqs = 1, .ranks = 2, .max_pieces = 2);
  machine_expect("shard", nsa_shard_create(r->m.ctx, &shard, &r->shard), NSA_OK, NULL);
  r->plan = machine_plan(r->m.ctx, &problem);
  r->other = NULL;
  r->exec = INIT(nsa_exec, .branches = 0);
  machine_add_workspace(r->plan, &r->exec);
}

void two_close(rank_of_two *r) {
  free(r->exec.workspace);
  nsa_comm_destroy(r->comm);
  nsa_comm_destroy(r->other);
  nsa_plan_destroy(r->plan);
  nsa_shard_destroy(r->shard);
  machine_free(&r->m);
}

void two_begin_record(rank_of_two *r) {
  fake_cuda_state *record = machine_record();
  *record = (fake_cuda_state){ .retained = record->retained,
                               .handles = record->handles,
                               .streams = record->streams,
                               .events = record->events,
                               .captured = record->captured,
                               .kernel = record->kernel,
                               .fail_copy = record->fail_copy };
  r->seen.count = 0;
}

/* The rows of rank 0 of the toy. */
static nsa_io rows_of(const rank_of_two *r) {
  nsa_io io = r->m.toy.io;
  nsa_tensor *const rows[] = { &io.q, &io.o, &io.gate.value, &io.kv.k[0], &io.kv.v[0] };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) rows[i]->shape[0] = r->rows;
  for (int b = 0; b < NSA_BRANCHES; b++) io.o_branch[b] = io.lse[b] = (nsa_tensor){ 0 };
  io.block_idx = io.kv.k_cmp = io.kv.v_cmp = (nsa_tensor){ 0 };
  return io;
}

nsa_status two_forward(rank_of_two *r, uint32_t branches) {
  const nsa_batch batch = INIT(nsa_batch, .shard = r->shard);
  const nsa_io io = rows_of(r);
  two_begin_record(r);
  r->exec.branches = branches;
  return nsa_forward(r->plan, &r->exec, &batch, &io);
}

void two_expect_fork_and_join(const rank_of_two *r, int fork, int join) {
  const fake_cuda_state *record = machine_record();
  const fake_cuda_edge *f = &record->edge[fork], *j = &record->edge[join];
  const nsai_cu_stream run = r->exec.stream, side = r->comm->side.stream;
  assert_true(join + 2 <= FAKE_CUDA_EDGES && record->edges >= join + 2 && run != side);
  assert_true(!f[0].waits && f[0].stream == run && f[1].waits && f[1].stream == side);
  assert_true(!j[0].waits && j[0].stream == side && j[1].waits && j[1].stream == run);
  assert_true(f[0].event == f[1].event && j[0].event == j[1].event && f[0].event != j[0].event);
}
