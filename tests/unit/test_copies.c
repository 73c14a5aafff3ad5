/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Copies by copy engines on the fake driver: which communicators have a room, what each step enqueues, and where the
 * buffers of a plan lie in a room. What a run enqueues: test_ranks_copies.c. Data: tests/emulator.
 */
#include "support/cmocka_all.h"
#include "support/init.h"

#include "params/ranks.h"
#include "plan/plan.h"
#include "ranks/comm_internal.h"

#include "comm_fixture.h" /* its `rank` is a type */

#include <malloc.h>

enum { COPY_BYTES = 2 << 20, MOST = NSAI_GATHER_RANKS, TIMEOUT_MS = 20000 };

/* A GPU, and the ranks of the test that runs. */
typedef struct world {
  machine m;
  rank ranks[MOST_RANKS];
  int32_t size;
} world;

static void world_init(world *w) {
  memset(w, 0, sizeof *w);
  machine_init(&w->m, &(machine_request){ .gpu = true, .override = QUIET });
}

static void agrees(rank *r) { rank_note(r, nsa_comm_agree(r->comm, NULL, 0, NULL, 0)); }

static void open_ranks(world *w, int32_t size, const nsa_comm_options *options) {
  nsa_comm *comms[MOST_RANKS];
  machine_expect("loopback", nsa_comm_loopback(w->m.ctx, size, options, comms), NSA_OK, NULL);
  w->size = size;
  for (int32_t i = 0; i < size; i++)
    w->ranks[i] = (rank){
      .comm = comms[i], .number = i, .size = size, .timeout_ms = TIMEOUT_MS, .work = agrees
    };
}

static nsa_comm_options copying(void) {
  return INIT(nsa_comm_options, .timeout_ms = TIMEOUT_MS, .copy_bytes = COPY_BYTES);
}

/* Ranks that have agreed, and copy. */
static void open_copying(world *w, int32_t size) {
  const nsa_comm_options options = copying();
  open_ranks(w, size, &options);
  ranks_run(w->ranks, size);
  ranks_expect_ok(w->ranks, size);
}

/* ---- options ---- */

static void test_options(void **state) {
  static const struct {
    int64_t copy_bytes;
    int32_t peer_bytes;
    const char *says;
  } bad[] = {
    { -1, 0, "options.copy_bytes is -1: give the bytes that nsa_explain prints" },
    { INT64_MIN, 0, "options.copy_bytes is -9223372036854775808: give" },
    { 1, -1, "options.copy_bytes needs peer memory, and options.peer_bytes is -1: give 0" },
  };
  world w;
  nsa_comm *comms[2];
  world_init(&w);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    const nsa_comm_options options =
        INIT(nsa_comm_options, .copy_bytes = bad[i].copy_bytes, .peer_bytes = bad[i].peer_bytes);
    machine_expect("bad", nsa_comm_loopback(w.m.ctx, 2, &options, comms), NSA_E_ARG, bad[i].says);
  }
  static const int32_t most[][2] = { { 0, NSAI_GATHER_LEAST }, { 5, 5 } };
  for (int i = 0; i < 2; i++) {
    nsa_comm_options options = copying();
    options.peer_bytes = most[i][0];
    open_ranks(&w, 2, &options);
    assert_int_equal(w.ranks[1].comm->peers.copy_bytes, COPY_BYTES);
    assert_int_equal(w.ranks[1].comm->peers.most_bytes, most[i][1]);
    ranks_destroy(w.ranks, 2);
  }
  nsa_comm_options older = copying();
  older.struct_size = offsetof(nsa_comm_options, copy_bytes);
  open_ranks(&w, 2, &older);
  assert_int_equal(w.ranks[0].comm->peers.copy_bytes, 0);
  assert_int_equal(w.ranks[0].comm->peers.most_bytes, 0);
  ranks_destroy(w.ranks, 2);
  machine_free(&w.m);
}

static void test_disagree(void **state) {
  world w;
  world_init(&w);
  const nsa_comm_options options = copying();
  open_ranks(&w, 3, &options);
  w.ranks[1].comm->peers.copy_bytes = (INT64_C(1) << 32) + COPY_BYTES;
  ranks_run(w.ranks, 3);
  ranks_expect_lost(w.ranks, 3, -1,
                    "copy_bytes of the communicator (rank 0 has 2097152, rank 1 4297064448)");
  w.ranks[1].comm->peers.copy_bytes = COPY_BYTES;
  for (int32_t i = 0; i < 3; i++) w.ranks[i].status = NSA_OK; /* they live */
  ranks_run(w.ranks, 3);
  ranks_expect_ok(w.ranks, 3);
  assert_true(nsai_comm_copies(w.ranks[1].comm));
  ranks_destroy(w.ranks, 3);
  machine_free(&w.m);
}

/* ---- rooms ---- */

static void expect_no_rooms(const world *w) {
  for (int32_t i = 0; i < w->size; i++) {
    assert_null(nsai_comm_room(w->ranks[i].comm, 1));
    assert_false(nsai_comm_copies(w->ranks[i].comm));
  }
}

/* A room of so many bytes, within the memory that all ranks map. */
static void expect_rooms(const world *w) {
  for (int32_t i = 0; i < w->size; i++) {
    const nsa_comm *comm = w->ranks[i].comm;
    char *room = nsai_comm_room(comm, COPY_BYTES), *memory = comm->peers.mapped[i];
    assert_non_null(room);
    assert_ptr_equal(nsai_comm_room(comm, 1), room);
    assert_null(nsai_comm_room(comm, 0));
    assert_null(nsai_comm_room(comm, COPY_BYTES + 1));
    assert_int_equal((uintptr_t)room % NSAI_WORKSPACE_ALIGN, 0);
    assert_true(room >= memory + nsai_mailbox_bytes(w->size, NSAI_GATHER_LEAST));
    assert_true(room + COPY_BYTES <= memory + malloc_usable_size(memory));
    memset(room, 1, COPY_BYTES); /* a sanitizer looks */
  }
}

static void test_rooms(void **state) {
  world w;
  world_init(&w);
  const fake_cuda_state *record = machine_record();
  const int blocks = record->blocks, events = record->events, streams = record->streams;
  for (int32_t size = 2; size <= MOST; size++) {
    const nsa_comm_options options = copying();
    open_ranks(&w, size, &options);
    expect_no_rooms(&w); /* before nsa_comm_agree */
    ranks_run(w.ranks, size);
    ranks_expect_ok(w.ranks, size);
    expect_rooms(&w);
    ranks_destroy(w.ranks, size);
    assert_int_equal(record->blocks, blocks);
    assert_int_equal(record->events, events);
    assert_int_equal(record->streams, streams);
  }
  machine_free(&w.m);
}

/* Without copy_bytes, with two hosts, and where ranks have no memory to map. */
static void test_no_rooms(void **state) {
  static const struct {
    int32_t size, host_ranks;
    int64_t copy_bytes;
    uint64_t most_bytes; /* of an allocation; 0: any */
    bool gathers;        /* through peer memory */
  } cases[] = {
    { 2, 0, 0, 0, true },
    { 4, 2, COPY_BYTES, 0, true },
    { 2, 0, COPY_BYTES, COPY_BYTES, false },
    { MOST + 1, 0, COPY_BYTES, 0, false },
    { 1, 0, COPY_BYTES, 0, false },
  };
  world w;
  world_init(&w);
  fake_cuda_state *record = machine_record();
  const int blocks = record->blocks;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const nsa_comm_options options =
        INIT(nsa_comm_options, .timeout_ms = TIMEOUT_MS, .host_ranks = cases[i].host_ranks,
             .peer_bytes = 4096, .copy_bytes = cases[i].copy_bytes);
    open_ranks(&w, cases[i].size, &options);
    record->most_bytes = cases[i].most_bytes;
    ranks_run(w.ranks, w.size);
    record->most_bytes = 0;
    ranks_expect_ok(w.ranks, w.size);
    expect_no_rooms(&w);
    assert_int_equal(nsai_comm_peer_bytes(w.ranks[0].comm), cases[i].gathers ? 4096 : 0);
    ranks_destroy(w.ranks, w.size);
    assert_int_equal(record->blocks, blocks);
  }
  machine_free(&w.m);
}

/* ---- what the steps enqueue ---- */

static NsaiRanksGather seen; /* of the last launch */

static double see(const fake_cuda_launch *launch, const void *params) {
  if (!strcmp(launch->name, "ranks_gather")) seen = *(const NsaiRanksGather *)params;
  return 1;
}

/* A step of one rank, in the stream that has its number. */
typedef nsa_status step(nsa_comm *comm, nsa_stream stream);

static nsa_stream stream_of(world *w, int32_t number) { return (nsa_stream)&w->ranks[number]; }

static nsa_status take(world *w, int32_t number, step *what) {
  nsai_comm_entered entered;
  nsa_comm *comm = w->ranks[number].comm;
  machine_expect("enter", nsai_comm_enter(&comm->place, &entered), NSA_OK, NULL);
  const nsa_status status = what(comm, stream_of(w, number));
  nsai_comm_leave(&comm->place, &entered);
  return status;
}

/* One launch of the kernel, which waits for every rank. */
static void expect_launch(world *w, int32_t number, step *what) {
  fake_cuda_state *record = machine_record();
  record->launches = record->copies = 0;
  machine_expect("step", take(w, number, what), NSA_OK, NULL);
  assert_int_equal(record->launches, 1);
  assert_int_equal(record->copies, 0);
  assert_string_equal(record->launch[0].name, "ranks_gather");
  assert_ptr_equal(record->launch[0].stream, stream_of(w, number));
  assert_int_equal(record->launch[0].grid_x, 1);
  assert_int_equal(record->launch[0].grid_y, w->size);
  assert_int_equal(seen.rank, number);
  assert_int_equal(seen.ranks, w->size);
}

/* Words between a rank's mailbox and its room. */
static void expect_between(const world *w, int32_t number, const void *at, uint64_t bytes) {
  const nsa_comm *comm = w->ranks[number].comm;
  const char *begin =
      comm->peers.mapped[number] + nsai_mailbox_bytes(w->size, comm->peers.most_bytes);
  const char *word = at, *room = nsai_comm_room(comm, 1);
  assert_true(word >= begin && word + bytes <= room);
}

static void test_gathers(void **state) {
  enum { NUMBER = 1, SIZE = 3, EPOCH_BYTES = 4 };
  world w;
  world_init(&w);
  open_copying(&w, SIZE);
  machine_record()->kernel = see;
  expect_launch(&w, NUMBER, nsai_comm_open_rooms);
  const NsaiRanksGather opened = seen;
  assert_int_equal(opened.bytes, 16);
  assert_ptr_equal(opened.send, opened.recv + NUMBER * 16);
  expect_between(&w, NUMBER, opened.recv, SIZE * 16);
  expect_between(&w, NUMBER, opened.epoch, EPOCH_BYTES);
  expect_between(&w, NUMBER, opened.copied, SIZE * NSAI_GATHER_SECTOR);
  /* Three places. */
  const char *epoch = (const char *)opened.epoch, *copied = (const char *)opened.copied;
  assert_true(epoch + EPOCH_BYTES <= copied && copied + MOST * NSAI_GATHER_SECTOR <= opened.recv);
  expect_launch(&w, NUMBER, nsai_comm_meet);
  assert_null(seen.epoch); /* the copies of before are not over */
  assert_int_equal(seen.bytes, 16);
  assert_ptr_equal(seen.recv, opened.recv);
  expect_launch(&w, NUMBER, nsai_comm_await_copies);
  assert_int_equal(seen.bytes, 0);
  assert_ptr_equal(seen.epoch, opened.epoch);
  assert_ptr_equal(seen.copied, opened.copied);
  machine_record()->kernel = NULL;
  ranks_destroy(w.ranks, SIZE);
  machine_free(&w.m);
}

enum { FIRST_AT = 512, SECOND_AT = COPY_BYTES - 24, THIRD_AT = 0 };

/* Parts to two ranks; of one it lies elsewhere, as sums do. */
static nsa_status copy_three(nsa_comm *comm, nsa_stream stream) {
  char *room = nsai_comm_room(comm, 1);
  const nsa_part from[] = { { room + FIRST_AT, 100, 0 },
                            { room + SECOND_AT, 24, 2 },
                            { room + COPY_BYTES / 2, 64, 2 } };
  const nsa_part at[] = { { room + FIRST_AT, 100, 0 },
                          { room + SECOND_AT, 24, 2 },
                          { room + THIRD_AT, 64, 2 } };
  return nsai_comm_copy(comm, from, at, 3, stream);
}

static void expect_copy(const fake_cuda_copy *copy, const void *to, const void *from,
                        uint64_t bytes, nsa_stream stream) {
  assert_ptr_equal(copy->to, to);
  assert_ptr_equal(copy->from, from);
  assert_int_equal(copy->bytes, bytes);
  assert_ptr_equal(copy->stream, stream);
}

static void test_copies(void **state) {
  enum { NUMBER = 1, SIZE = 3 };
  world w;
  world_init(&w);
  open_copying(&w, SIZE);
  fake_cuda_state *record = machine_record();
  nsa_stream stream = stream_of(&w, NUMBER);
  const char *room[SIZE];
  const int *copied[SIZE], *epoch = NULL;
  record->kernel = see;
  for (int32_t i = 0; i < SIZE; i++) {
    room[i] = nsai_comm_room(w.ranks[i].comm, 1);
    expect_launch(&w, i, nsai_comm_await_copies);
    copied[i] = seen.copied;
    if (i == NUMBER) epoch = seen.epoch;
  }
  record->launches = record->copies = 0;
  machine_expect("copy", take(&w, NUMBER, copy_three), NSA_OK, NULL);
  assert_int_equal(record->copies, 3);
  expect_copy(&record->copy[0], room[0] + FIRST_AT, room[1] + FIRST_AT, 100, stream);
  expect_copy(&record->copy[1], room[2] + SECOND_AT, room[1] + SECOND_AT, 24, stream);
  expect_copy(&record->copy[2], room[2] + THIRD_AT, room[1] + COPY_BYTES / 2, 64, stream);
  record->copies = 0;
  machine_expect("announce", take(&w, NUMBER, nsai_comm_announce_copies), NSA_OK, NULL);
  assert_int_equal(record->copies, SIZE - 1);
  for (int32_t i = 0; i < SIZE - 1; i++) /* to where the others look for those of rank 1 */
    expect_copy(&record->copy[i], copied[2 * i] + NUMBER * NSAI_GATHER_SECTOR / 4, epoch, 4,
                stream);
  assert_int_equal(record->launches, 0);
  record->kernel = NULL;
  ranks_destroy(w.ranks, SIZE);
  machine_free(&w.m);
}

/* Others wait: whatever fails ends the communicator. */
static void test_failures(void **state) {
  static const struct {
    step *what;
    int fail_launch, fail_copy;
  } cases[] = {
    { nsai_comm_open_rooms, 1, 0 },      { nsai_comm_meet, 1, 0 },
    { nsai_comm_await_copies, 1, 0 },    { copy_three, 0, 2 },
    { nsai_comm_announce_copies, 0, 1 },
  };
  world w;
  world_init(&w);
  fake_cuda_state *record = machine_record();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    open_copying(&w, 3);
    record->fail_launch = cases[i].fail_launch;
    record->fail_copy = cases[i].fail_copy;
    machine_expect("fails", take(&w, 1, cases[i].what), NSA_E_RANKS, "a copy to other ranks");
    assert_int_equal(record->fail_launch + record->fail_copy, 0);
    record->launches = record->copies = 0;
    step *const later[] = { nsai_comm_open_rooms, nsai_comm_meet, nsai_comm_await_copies,
                            copy_three };
    for (int s = 0; s < 4; s++)
      machine_expect("dead", take(&w, 1, later[s]), NSA_E_RANKS, "has ended");
    assert_int_equal(record->launches + record->copies, 0);
    ranks_destroy(w.ranks, 3);
  }
  machine_free(&w.m);
}

/* ---- where buffers lie ---- */

typedef struct place {
  uint64_t begin, end;
} place;

enum { MOST_PLACES = 2 * NSAI_RANKS_TENSORS + 2 };

typedef struct places {
  place of[MOST_PLACES];
  int count;
} places;

static void add_place(places *all, const nsa_plan *plan, nsai_buffer buffer) {
  if (!buffer.bytes) return;
  const uint64_t at = nsai_ranks_room_offset(&plan->problem, &plan->workspace, buffer);
  assert_int_equal(at % NSAI_WORKSPACE_ALIGN, 0);
  all->of[all->count++] = (place){ at, at + buffer.bytes };
}

static places list_places(const nsa_plan *plan) {
  places all = { 0 };
  for (int item = 0; item < NSAI_RANKS_TENSORS; item++) {
    add_place(&all, plan, plan->workspace.ranks.tensor[item].whole);
    add_place(&all, plan, plan->workspace.ranks.tensor[item].received);
  }
  if (!nsai_phi_runs(&plan->problem.model)) return all;
  add_place(&all, plan, plan->workspace.k_cmp);
  add_place(&all, plan, plan->workspace.v_cmp);
  return all;
}

/* So many buffers, apart from each other and within the bytes of the room, which has little more. */
static void expect_places(const nsa_plan *plan, int count) {
  const places all = list_places(plan);
  const uint64_t room = nsai_ranks_room_bytes(&plan->problem, &plan->workspace);
  uint64_t bytes = 0;
  assert_int_equal(all.count, count);
  for (int i = 0; i < count; i++) {
    const place *a = &all.of[i];
    bytes += a->end - a->begin;
    assert_true(a->end <= room);
    for (int k = 0; k < i; k++) assert_true(all.of[k].end <= a->begin || a->end <= all.of[k].begin);
  }
  assert_in_range(room, bytes, bytes + (uint64_t)count * NSAI_WORKSPACE_ALIGN);
}

static void test_places(void **state) {
  static const struct {
    machine_request request;
    int count;
  } cases[] = {
    { { .gpu = true }, 4 },                           /* K, V, entries of both */
    { { .gpu = true, .per_branch = true }, 8 },       /* three pairs */
    { { .gpu = true, .phi = NSAI_PHI_EXTERNAL }, 4 }, /* K, V, the caller's entries */
    { { .gpu = true, .keys_only = true }, 3 },        /* entries of K alone */
    { { .gpu = true, .phi = NSAI_PHI_NONE, .indexed = true, .pool = NSAI_POOL_MAX }, 3 },
    { { .gpu = true, .op = NSA_OP_BACKWARD }, 6 }, /* and sums of two tensors */
    { { .gpu = true, .op = NSA_OP_BACKWARD, .per_branch = true }, 14 },
    { { .gpu = true, .op = NSA_OP_BACKWARD, .phi = NSAI_PHI_EXTERNAL }, 8 },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    machine m;
    machine_init(&m, &cases[i].request);
    nsa_problem problem =
        INIT(nsa_problem, .op = cases[i].request.op, .max_tokens = 41, .max_kv_tokens = 97,
             .max_kv_len = 97, .max_seqs = 2, .ranks = 3, .max_pieces = 2);
    nsa_plan *plan = machine_plan(m.ctx, &problem);
    expect_places(plan, cases[i].count);
    nsa_plan_destroy(plan);
    problem.ranks = 1; /* nobody copies */
    plan = machine_plan(m.ctx, &problem);
    assert_int_equal(nsai_ranks_room_bytes(&plan->problem, &plan->workspace), 0);
    nsa_plan_destroy(plan);
    assert_int_equal(nsai_ranks_room_bytes(&m.plan->problem, &m.plan->workspace), 0);
    machine_free(&m);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_options),  cmocka_unit_test(test_disagree), cmocka_unit_test(test_rooms),
    cmocka_unit_test(test_no_rooms), cmocka_unit_test(test_gathers),  cmocka_unit_test(test_copies),
    cmocka_unit_test(test_failures), cmocka_unit_test(test_places),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
