/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What runs over ranks enqueue on the fake GPU where copy engines exchange K, V and sums: the order of kernels,
 * copies and streams. Steps by themselves: test_copies.c.
 */
#include "support/cmocka_all.h"

#include "params/ranks.h"

#include "comm_fixture.h" /* its `rank` is a type */
#include "gradients.h"
#include "two_ranks.h"

/* Rank 0 first packs its rows of K and V of two pieces. A forward that overlaps then copies to the other rank: the
 * halo, entries, K and V, and the epoch. */
enum { COPY_BYTES = 1 << 20, MOST_GATHERS = 16, PACKED = 4, COPIES = 7 };

static NsaiRanksGather gather[MOST_GATHERS]; /* those of a run */
static int gathers;
static bool packed; /* K was in the room when the second one came, behind the opening */

static struct {
  const char *room, *local; /* of rank 0: a row of K */
  size_t bytes;
} first_row;

static double see_gather(const fake_cuda_launch *launch, const void *params) {
  if (strcmp(launch->name, "ranks_gather")) return 1;
  assert_true(gathers < MOST_GATHERS);
  if (gathers == 1) packed = !memcmp(first_row.room, first_row.local, first_row.bytes);
  gather[gathers++] = *(const NsaiRanksGather *)params;
  return 1;
}

static exchanges *watched; /* of the loopback of rank 0 */

static nsa_status watch_exchange(void *user, const nsa_part *send, int32_t send_count,
                                 const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  (void)user;
  return two_record_exchange(watched, send, send_count, recv, recv_count, stream);
}

/* Two ranks that have agreed, with rooms of so many bytes. What rank 0 exchanges by the transport is recorded. */
static void open_copying(rank_of_two *r, const machine_request *request, const int32_t part[3],
                         int64_t copy_bytes) {
  enum { TIMEOUT_MS = 20000 };
  nsa_comm *comms[2];
  rank ranks[2];
  const nsa_comm_options options =
      INIT(nsa_comm_options, .timeout_ms = TIMEOUT_MS, .copy_bytes = copy_bytes);
  two_open(r, request, part);
  machine_expect("comms", nsa_comm_loopback(r->m.ctx, 2, &options, comms), NSA_OK, NULL);
  for (int32_t i = 0; i < 2; i++)
    ranks[i] = (rank){ .comm = comms[i],
                       .number = i,
                       .size = 2,
                       .timeout_ms = TIMEOUT_MS,
                       .repeats = 1,
                       .plan = r->plan,
                       .shard = r->shard,
                       .work = rank_agrees };
  ranks_run(ranks, 2);
  ranks_expect_ok(ranks, 2);
  r->exec.comm = r->comm = comms[0];
  r->other = comms[1];
  watched = &r->seen;
  r->comm->transport.ops.exchange = watch_exchange;
}

/* In the room of rank 0, and of the other. */
static char *room_place(const nsa_comm *comm, const rank_of_two *r, nsai_buffer buffer,
                        int64_t bytes) {
  return nsai_comm_room(comm, 1) +
         nsai_ranks_room_offset(&r->plan->problem, &r->plan->workspace, buffer) + bytes;
}

static void begin_copying(rank_of_two *r) {
  const nsa_tensor *k = &r->m.toy.io.kv.k[0];
  first_row.room = room_place(r->comm, r, r->plan->workspace.ranks.tensor[NSAI_RANKS_K].whole, 0);
  first_row.local = k->data;
  first_row.bytes = (size_t)k->shape[2] * 2;
  gathers = 0;
  packed = false;
  machine_record()->kernel = see_gather;
}

static void end_copying(rank_of_two *r) {
  machine_record()->kernel = NULL;
  two_close(r);
}

/* Rows of a buffer that go to the same place in the other rank's room. */
static void expect_rows(const rank_of_two *r, const fake_cuda_copy *copy, nsai_buffer buffer,
                        int64_t row, int64_t rows, int64_t width) {
  assert_ptr_equal(copy->from, room_place(r->comm, r, buffer, row * width * 2));
  assert_ptr_equal(copy->to, room_place(r->other, r, buffer, row * width * 2));
  assert_int_equal(copy->bytes, rows * width * 2);
}

/* Copies [begin, end) behind the packing are in this stream, behind so many launches. */
static void expect_when(int begin, int end, nsa_stream stream, int launches) {
  const fake_cuda_state *record = machine_record();
  for (int i = PACKED + begin; i < PACKED + end; i++) {
    assert_ptr_equal(record->copy[i].stream, stream);
    assert_int_equal(record->copy[i].launches, launches);
  }
}

/* The kinds of a run's gathers: o opens rooms, m meets, a awaits copies. */
static void expect_gathers(const char *kinds) {
  char got[MOST_GATHERS + 1] = "";
  for (int i = 0; i < gathers; i++) got[i] = !gather[i].bytes ? 'a' : gather[i].epoch ? 'o' : 'm';
  assert_string_equal(got, kinds);
}

/* The last copy of a run announces the others, to where the other rank looks for those of this one. */
static void expect_announcement(const rank_of_two *r) {
  const fake_cuda_state *record = machine_record();
  const fake_cuda_copy *copy = &record->copy[record->copies - 1];
  const char *own =
      (const char *)gather[0].copied; /* behind it another rank's is in the same place */
  assert_ptr_equal(copy->from, gather[0].epoch);
  assert_int_equal(copy->bytes, sizeof(int));
  assert_ptr_equal(copy->to - nsai_comm_room(r->other, 1), own - nsai_comm_room(r->comm, 1));
  assert_ptr_equal(copy->stream, r->comm->side.stream);
}

/* A forward that overlaps: as test_overlap of test_ranks_launches.c, and no SM is left free. */
static void test_forward(void **state) {
  rank_of_two r;
  open_copying(&r, &two_no_window, two_short_parts, COPY_BYTES);
  const nsai_ranks_memory *memory = &r.plan->workspace.ranks;
  const nsai_buffer k = memory->tensor[NSAI_RANKS_K].whole, v = memory->tensor[NSAI_RANKS_V].whole;
  const nsai_buffer k_cmp = r.plan->workspace.k_cmp, v_cmp = r.plan->workspace.v_cmp;
  const fake_cuda_state *record = machine_record();
  const fake_cuda_copy *c = &record->copy[PACKED];
  nsa_stream side = r.comm->side.stream;
  begin_copying(&r);
  machine_expect("run", two_forward(&r, 0), NSA_OK, NULL);
  assert_int_equal(r.seen.count, 0);
  machine_expect_launches("ranks_gather ranks_gather compress_mean compress_mean ranks_gather "
                          "attend_compressed_sm90 ranks_gather attend_dense_sm90");
  expect_gathers("omma");
  assert_true(packed);
  assert_int_equal(record->copies, PACKED + COPIES);
  /* Rooms open in the side stream beside the packing. */
  expect_when(-PACKED, 0, r.exec.stream, 1);
  two_expect_fork_and_join(&r, 0, 2);
  /* The halo, between opening and meeting. */
  expect_when(0, 2, r.exec.stream, 1);
  expect_rows(&r, &c[0], k, 12, 4, 48);
  expect_rows(&r, &c[1], v, 12, 4, 32);
  /* Entries of the first piece: the other rank's piece ends before the second one. */
  expect_when(2, 4, r.exec.stream, 4);
  expect_rows(&r, &c[2], k_cmp, 0, 3, 48);
  expect_rows(&r, &c[3], v_cmp, 0, 3, 32);
  /* K and V, behind the fork and before the kernels. */
  expect_when(4, 7, side, 5);
  expect_rows(&r, &c[4], k, 0, 16, 48);
  expect_rows(&r, &c[5], v, 0, 16, 32);
  expect_announcement(&r);
  two_expect_fork_and_join(&r, 4, 7);
  assert_int_equal(c[4].edges, 6);
  assert_int_equal(c[6].edges, 7); /* behind an event that is behind the others */
  assert_ptr_equal(record->edge[6].stream, side);
  assert_int_equal(record->edge[7].launches, 6); /* join, and then the run awaits the other's */
  end_copying(&r);
}

/* Also a run that has no use for them awaits them: the next one may fill the room otherwise. */
static void test_unused(void **state) {
  rank_of_two r;
  open_copying(&r, &two_no_window, two_short_parts, COPY_BYTES);
  begin_copying(&r);
  machine_expect("a branch", two_forward(&r, 1u << NSA_CMP), NSA_OK, NULL);
  expect_gathers("omma");
  assert_int_equal(machine_record()->copies, PACKED + COPIES);
  two_expect_fork_and_join(&r, 4, 7);
  expect_announcement(&r);
  end_copying(&r);
}

/* A run that does not overlap meets behind its copies. */
static void test_first(void **state) {
  rank_of_two r;
  open_copying(&r, &(machine_request){ .gpu = true }, two_short_parts, COPY_BYTES);
  begin_copying(&r);
  machine_expect("run", two_forward(&r, 0), NSA_OK, NULL);
  expect_gathers("om");
  assert_true(packed);
  assert_int_equal(r.seen.count, 0);
  two_expect_fork_and_join(&r, 0, 2);
  assert_int_equal(machine_record()->stream_waits, 2); /* these */
  assert_int_equal(machine_record()->copies, PACKED + 2);
  expect_when(0, 2, r.exec.stream, 1);
  assert_int_equal(gather[1].bytes, gather[0].bytes);
  end_copying(&r);
}

/* A room that is too small by a byte: K and V go by the transport, before anything runs. */
static void test_too_large(void **state) {
  rank_of_two r;
  two_open(&r, &two_no_window, two_short_parts);
  const int64_t needs = (int64_t)nsai_ranks_room_bytes(&r.plan->problem, &r.plan->workspace);
  r.comm = NULL;
  two_close(&r);
  for (int missing = 0; missing < 2; missing++) {
    open_copying(&r, &two_no_window, two_short_parts, needs - missing);
    begin_copying(&r);
    machine_expect("run", two_forward(&r, 0), NSA_OK, NULL);
    expect_gathers(missing ? "" : "omma");
    assert_int_equal(r.seen.count, missing);
    assert_int_equal(machine_record()->copies, PACKED + (missing ? 0 : COPIES));
    end_copying(&r);
  }
}

/* Whichever copy fails, the communicator ends, and the run's stream waits for the other one if that has begun. */
static void test_fail(void **state) {
  for (int bad = 1; bad <= COPIES; bad++) {
    rank_of_two r;
    open_copying(&r, &two_no_window, two_short_parts, COPY_BYTES);
    begin_copying(&r);
    machine_record()->fail_copy = PACKED + bad;
    machine_expect("fails", two_forward(&r, 0), NSA_E_RANKS, "a copy to other ranks");
    assert_int_equal(machine_record()->copies, PACKED + bad);
    machine_expect("dead", nsa_comm_check(r.comm), NSA_E_RANKS, "a copy to other ranks");
    if (bad > 4)
      two_expect_fork_and_join(&r, 4, bad == COPIES ? 7 : 6);
    else
      assert_int_equal(machine_record()->edges, 4); /* of the opening */
    assert_true(gathers < 4);                       /* nothing is awaited */
    end_copying(&r);
  }
}

/* ---- backward ---- */

static nsa_status run_backward(rank_of_two *r) {
  const nsa_batch batch = INIT(nsa_batch, .shard = r->shard);
  nsa_io *io = &r->m.toy.io;
  nsa_tensor *const rows[] = { &io->q,       &io->o,       &io->gate.value,
                               &io->kv.k[0], &io->kv.v[0], &io->lse[0],
                               &io->lse[1],  &io->lse[2],  &io->block_idx };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) rows[i]->shape[0] = r->rows;
  for (int b = 0; b < NSA_BRANCHES; b++) io->o_branch[b].shape[0] = r->rows;
  io->kv.k_cmp = io->kv.v_cmp = (nsa_tensor){ 0 };
  const nsa_grads grads = make_grads(&r->m.toy, NSA_F32);
  two_begin_record(r);
  return nsa_backward(r->plan, &r->exec, &batch, io, &grads);
}

/* Sums of rank 1's rows, from `sums` in the workspace to where rank 1 keeps what it receives. */
static void expect_sums(const rank_of_two *r, const fake_cuda_copy *copy, int item) {
  const nsai_ranks_tensor *t = &r->plan->workspace.ranks.tensor[item];
  const int64_t row = (int64_t)t->heads * t->dim * 4;
  assert_ptr_equal(copy->from, (char *)r->exec.workspace + t->sums.offset + 16 * row);
  assert_ptr_equal(copy->to, room_place(r->other, r, t->received, 0));
  assert_int_equal(copy->bytes, 16 * row);
}

/* K and V travel beside what does not read them, and sums of gradients behind the kernel that makes the last of
 * them; the latter are awaited behind all kernels. */
static void expect_backward(const machine_request *request, const char *launches, int before) {
  rank_of_two r;
  const fake_cuda_state *record = machine_record();
  open_copying(&r, request, two_short_parts, COPY_BYTES);
  begin_copying(&r);
  machine_expect("run", run_backward(&r), NSA_OK, NULL);
  assert_int_equal(r.seen.count, 0);
  machine_expect_launches(launches);
  expect_gathers("oma");
  assert_true(packed);
  assert_int_equal(record->copies, PACKED + 2 + 2 + 1); /* K and V, sums, the epoch */
  two_expect_fork_and_join(&r, 0, 4);                   /* K and V, which kernels await */
  two_expect_fork_and_join(&r, 2, 4);                   /* behind the packing */
  expect_when(0, 2, r.comm->side.stream, 1);
  expect_when(2, 5, r.comm->side.stream, before);
  expect_sums(&r, &record->copy[PACKED + 2], NSAI_RANKS_K);
  expect_sums(&r, &record->copy[PACKED + 3], NSAI_RANKS_V);
  expect_announcement(&r);
  two_expect_fork_and_join(&r, 6, 9);
  assert_int_equal(record->copy[PACKED + 2].edges, 8);
  end_copying(&r);
}

#define LISTS "data_sort_blocks data_invert_count data_invert_scan data_invert_fill "
#define GATHERS "ranks_gather ranks_gather "
#define PIECE                                                                                      \
  "backward_row_stats_saved backward_dq_tma backward_dkv_compressed backward_dkv_window "          \
  "backward_dkv_selected backward_dkv_sum "
#define STATISTICS "backward_row_stats_saved backward_clear "
#define DQ_BEHIND                                                                                  \
  "backward_clear backward_dkv_dq_compressed_tma backward_dkv_window_persistent "                  \
  "backward_dkv_selected backward_dkv_sum backward_dq_sums_tma "
#define SUMS                                                                                       \
  "ranks_gather backward_ranks_sum backward_ranks_sum backward_ranks_sum backward_ranks_sum"

static void test_backward(void **state) {
  expect_backward(&(machine_request){ .gpu = true, .op = NSA_OP_BACKWARD },
                  GATHERS LISTS "compress_mean " PIECE LISTS PIECE SUMS, 23);
}

/* Where dQ is apart, sums travel while the last kernel makes it. */
static void test_backward_beside(void **state) {
  expect_backward(
      &(machine_request){ .gpu = true,
                          .op = NSA_OP_BACKWARD,
                          .override = "model={heads: 8, head_dim_qk: 64, head_dim_v: 64}",
                          .also = "variants.force.backward_q=backward_q_kv_sm90" },
      GATHERS LISTS STATISTICS "compress_mean " DQ_BEHIND LISTS STATISTICS DQ_BEHIND SUMS, 26);
}

/* As test_fail: K and V, then sums and the epoch in the other stream. */
static void test_backward_fails(void **state) {
  for (int bad = 1; bad <= 5; bad++) {
    rank_of_two r;
    open_copying(&r, &(machine_request){ .gpu = true, .op = NSA_OP_BACKWARD }, two_short_parts,
                 COPY_BYTES);
    begin_copying(&r);
    machine_record()->fail_copy = PACKED + bad;
    machine_expect("fails", run_backward(&r), NSA_E_RANKS, "a copy to other ranks");
    assert_int_equal(machine_record()->copies, PACKED + bad);
    if (bad > 2)
      two_expect_fork_and_join(&r, 6, bad == 5 ? 9 : 8);
    else
      two_expect_fork_and_join(&r, 2, 4);
    expect_gathers(bad > 2 ? "om" : "o");
    end_copying(&r);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_forward),
    cmocka_unit_test(test_unused),
    cmocka_unit_test(test_first),
    cmocka_unit_test(test_too_large),
    cmocka_unit_test(test_fail),
    cmocka_unit_test(test_backward),
    cmocka_unit_test(test_backward_beside),
    cmocka_unit_test(test_backward_fails),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
