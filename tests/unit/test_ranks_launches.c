/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What a forward over ranks launches on the fake GPU: kernels over query rows take all pieces of a rank at
 * once, as a batch of sequences that share keys; rows that look up the sequence of a key run piece by
 * piece. And a backward pass: piece by piece, then the ordered sums of K, V and weights.
 */
#include "support/cmocka_all.h"

#include "gradients.h"
#include "plan/plan.h"
#include "ranks/comm_internal.h"
#include "ranks/shard.h"
#include "two_ranks.h"

#define SEQS 2

static const int64_t lengths[SEQS] = { 17, 23 }; /* of the machine's toy */

typedef struct one_rank {
  machine m;
  nsa_shard *shard;
  nsa_comm *comm;
  nsa_plan *plan;
  nsa_exec exec;
} one_rank;

/* A machine whose toy has these sequences, and a plan, a shard and a communicator of one rank. */
static void open_rank_of(one_rank *r, const machine_request *request, int32_t seqs,
                         const int64_t *each, int64_t tokens) {
  machine_init(&r->m, request);
  const nsa_shard_options options =
      INIT(nsa_shard_options, .ranks = 1, .num_seqs = seqs, .lengths = each);
  const nsa_problem problem =
      INIT(nsa_problem, .op = request->op, .max_tokens = tokens, .max_kv_tokens = tokens,
           .max_seqs = seqs, .ranks = 1, .max_pieces = seqs, .selection = request->selection);
  machine_expect("shard", nsa_shard_create(r->m.ctx, &options, &r->shard), NSA_OK, NULL);
  r->plan = machine_plan(r->m.ctx, &problem);
  machine_expect("loopback", nsa_comm_loopback(r->m.ctx, 1, NULL, &r->comm), NSA_OK, NULL);
  const nsa_plan *plans[] = { r->plan };
  machine_expect("agree", nsa_comm_agree(r->comm, plans, 1, r->shard, 0), NSA_OK, NULL);
  r->exec = (nsa_exec)NSA_EXEC_INIT;
  r->exec.comm = r->comm;
  machine_add_workspace(r->plan, &r->exec);
  r->m.toy.io.kv.k_cmp = r->m.toy.io.kv.v_cmp = (nsa_tensor){ 0 };
}

static void open_rank(one_rank *r, const machine_request *request) {
  open_rank_of(r, request, SEQS, lengths, 40);
}

static void close_rank(one_rank *r) {
  free(r->exec.workspace);
  nsa_comm_destroy(r->comm);
  nsa_plan_destroy(r->plan);
  nsa_shard_destroy(r->shard);
  machine_free(&r->m);
}

static void run(one_rank *r, const char *launches) {
  const nsa_batch batch = INIT(nsa_batch, .shard = r->shard);
  fake_cuda_state *record = machine_record();
  *record = (fake_cuda_state){ .retained = record->retained, .handles = record->handles };
  machine_expect("run", nsa_forward(r->plan, &r->exec, &batch, &r->m.toy.io), NSA_OK, NULL);
  machine_expect_launches(launches);
}

static bool alternates(const nsa_plan *plan) {
  const nsai_kernel_spec *spec = nsai_choice_kernel(&plan->choice, "attend_compressed_sm90");
  assert_non_null(spec);
  for (int i = 0; i < spec->constant_count; i++)
    if (!strcmp(spec->constants[i].name, "kHeadsAlternate")) return true;
  return false;
}

/* Kernels over several pieces have an order of tiles of their own; others stay as they are. */
static void test_order(void **state) {
  one_rank r;
  open_rank(&r, &(machine_request){ .gpu = true });
  assert_true(alternates(r.plan));
  assert_false(alternates(r.m.plan));
  close_rank(&r);
}

static void test_at_once(void **state) {
  one_rank r;
  open_rank(&r, &(machine_request){ .gpu = true, .override = "thresholds.select_dense_below=0" });
  run(&r, "compress_mean compress_mean attend_window_sm90 attend_compressed_sm90 select_importance "
          "select_topn attend_selected_sm90_mma");
  /* The batch that these kernels read: rows, and the keys that they see. */
  static const int32_t want[] = { 0, 17, 17, 40, 0, 17, 17, 40 };
  assert_memory_equal((char *)r.exec.workspace + r.plan->workspace.ranks.offsets.offset, want,
                      sizeof want);
  close_rank(&r);
}

/* One piece needs no batch. */
static void test_one_piece(void **state) {
  one_rank r;
  open_rank(&r, &(machine_request){ .gpu = true, .override = "thresholds.select_dense_below=0" });
  static const int64_t one[SEQS] = { 40, 0 };
  const nsa_shard_options options =
      INIT(nsa_shard_options, .ranks = 1, .num_seqs = SEQS, .lengths = one);
  const nsa_plan *plans[] = { r.plan };
  nsa_shard_destroy(r.shard);
  machine_expect("shard", nsa_shard_create(r.m.ctx, &options, &r.shard), NSA_OK, NULL);
  machine_expect("agree", nsa_comm_agree(r.comm, plans, 1, r.shard, 0), NSA_OK, NULL);
  int32_t *offsets = (void *)((char *)r.exec.workspace + r.plan->workspace.ranks.offsets.offset);
  *offsets = -1;
  run(&r, "compress_mean attend_window_sm90 attend_compressed_sm90 select_importance select_topn "
          "attend_selected_sm90_mma");
  assert_int_equal(*offsets, -1);
  close_rank(&r);
}

#define INVERT "data_invert_count data_invert_scan data_invert_fill"
#define PIECE                                                                                      \
  "attend_window_sm90 attend_compressed_sm90 data_sort_blocks " INVERT                             \
  " attend_selected_kv_stationary_sm90 attend_selected_combine"

static void test_piece_by_piece(void **state) {
  one_rank r;
  open_rank(&r,
            &(machine_request){
                .gpu = true,
                .dtype = NSA_F16,
                .selection = NSA_SELECT_BLOCKS,
                .override = "variants.force.attend_selected=attend_selected_kv_stationary_sm90" });
  run(&r, "compress_mean compress_mean " PIECE " " PIECE);
  close_rank(&r);
}

/* Rows without gaps are copied as bytes, whose number may be larger than any pitch. */
static void test_long_pieces(void **state) {
  one_rank r;
  open_rank(&r, &(machine_request){ .gpu = true });
  const nsa_batch batch = INIT(nsa_batch, .shard = r.shard);
  nsa_io io = r.m.toy.io;
  machine_record()->most_pitch = (uint64_t)(io.kv.k[0].shape[2] * 2); /* a head */
  machine_expect("rows", nsa_forward(r.plan, &r.exec, &batch, &io), NSA_OK, NULL);
  nsa_tensor *k = &io.kv.k[0]; /* with gaps between rows */
  k->stride[0] += 8;
  k->data = calloc((size_t)(k->shape[0] * k->stride[0]), 2);
  machine_expect("gaps", nsa_forward(r.plan, &r.exec, &batch, &io), NSA_E_CUDA, "cuMemcpy2DAsync");
  free(k->data);
  machine_record()->most_pitch = 0;
  close_rank(&r);
}

/* A normaliser's coarse keys are made in every run. */
static void test_normalizer(void **state) {
  one_rank r;
  open_rank(&r, &(machine_request){ .gpu = true,
                                    .pool = NSAI_POOL_MAX,
                                    .normalized = true,
                                    .override = "thresholds.select_dense_below=0" });
#define NORMALIZED                                                                                 \
  "attend_window_sm90 attend_compressed_sm90 compress_mean select_normalizer select_importance "   \
  "select_topn attend_selected_sm90_mma"
  run(&r, "compress_mean compress_mean " NORMALIZED " " NORMALIZED);
  close_rank(&r);
}

/* The last piece comes first: it writes what the others add to. */
static void test_backward(void **state) {
  one_rank r;
  open_rank(&r, &(machine_request){ .gpu = true, .op = NSA_OP_BACKWARD });
  const nsa_batch batch = INIT(nsa_batch, .shard = r.shard);
  const nsa_grads grads = make_grads(&r.m.toy, NSA_F32);
  fake_cuda_state *record = machine_record();
  *record = (fake_cuda_state){ .retained = record->retained, .handles = record->handles };
  machine_expect("run", nsa_backward(r.plan, &r.exec, &batch, &r.m.toy.io, &grads), NSA_OK, NULL);
#define BACKWARD                                                                                   \
  "data_sort_blocks " INVERT " backward_row_stats_saved backward_dq_tma backward_dkv_compressed "  \
  "backward_dkv_window backward_dkv_selected backward_dkv_sum"
  machine_expect_launches("compress_mean compress_mean " BACKWARD " " BACKWARD
                          " backward_ranks_sum backward_ranks_sum backward_ranks_sum "
                          "backward_ranks_sum"); /* dK and dV of two pieces */
  close_rank(&r);
}

static nsa_status idle_exchange(void *user, const nsa_part *send, int32_t send_count,
                                const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  (void)user, (void)send, (void)send_count, (void)recv, (void)recv_count, (void)stream;
  return NSA_OK;
}

/* Rank 0 of 4, on the first of two hosts, with a transport that moves nothing. It holds sequence 0 and the
 * first 20 tokens of sequence 1; its neighbour needs these as well, and no rank of the host sees further
 * ones of its column. */
static void test_backward_over_hosts(void **state) {
  static const int64_t seqs[SEQS] = { 20, 36 };
  static const nsa_piece pieces[] = {
    { 0, 0, 0, 20 }, { 0, 1, 0, 20 }, { 1, 1, 20, 4 }, { 2, 1, 24, 4 }, { 3, 1, 28, 8 }
  };
  machine m;
  nsa_shard *shard;
  nsa_comm *comm;
  machine_init(&m, &(machine_request){ .gpu = true, .op = NSA_OP_BACKWARD });
  const nsa_shard_options options =
      INIT(nsa_shard_options, .layout = NSA_SHARD_GIVEN, .ranks = 4, .num_seqs = SEQS,
           .lengths = seqs, .alignment = 4, .given = pieces, .given_count = 5);
  const nsa_problem problem =
      INIT(nsa_problem, .op = NSA_OP_BACKWARD, .max_tokens = 40, .max_kv_tokens = 56,
           .max_kv_len = 36, .max_seqs = SEQS, .ranks = 4, .max_pieces = 2);
  const nsa_comm_ops ops =
      INIT(nsa_comm_ops, .size = 4, .host_ranks = 2, .exchange = idle_exchange);
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
  fake_cuda_state *record = machine_record();
  *record = (fake_cuda_state){ .retained = record->retained, .handles = record->handles };
  machine_expect("run", nsa_backward(plan, &exec, &batch, &m.toy.io, &grads), NSA_OK, NULL);
  machine_expect_launches(
      "compress_mean compress_mean " BACKWARD " " BACKWARD
      " backward_ranks_sum backward_ranks_sum" /* the host's dK and dV of the second piece */
      " backward_ranks_sum backward_ranks_sum backward_ranks_sum backward_ranks_sum");
  free(exec.workspace);
  nsa_comm_destroy(comm);
  nsa_plan_destroy(plan);
  nsa_shard_destroy(shard);
  machine_free(&m);
}

/* ---- K and V that travel while a run computes ---- */

/* With a transport that moves nothing. */
static void open_overlapping(rank_of_two *r, const machine_request *request,
                             const int32_t part[3]) {
  two_open(r, request, part);
  const nsa_comm_ops ops =
      INIT(nsa_comm_ops, .size = 2, .user = &r->seen, .exchange = two_record_exchange);
  const nsa_comm_options options = INIT(nsa_comm_options, .overlap_sms = 8);
  machine_expect("comm", nsa_comm_create(r->m.ctx, &ops, &options, &r->comm), NSA_OK, NULL);
  r->exec.comm = r->comm;
  nsai_agreed_add(&r->comm->plans, r->plan->digest);
  nsai_agreed_add(&r->comm->shards, r->shard->digest);
  nsai_comm_entered entered;
  assert_int_equal(nsai_comm_enter(&r->comm->place, &entered), NSA_OK);
  assert_int_equal(nsai_side_stream_open(r->comm), NSA_OK);
  nsai_comm_leave(&r->comm->place, &entered);
  assert_int_equal(machine_record()->priority, -5); /* the greatest of the fake GPU */
}

static char *place(const rank_of_two *r, nsai_buffer buffer, int64_t row, int64_t width) {
  return (char *)r->exec.workspace + buffer.offset + row * width * 2;
}

static void expect_part(const nsa_part *part, const char *data, int64_t rows, int64_t width) {
  assert_ptr_equal(part->data, data);
  assert_int_equal(part->bytes, rows * width * 2);
  assert_int_equal(part->rank, 1);
}

/* Entries of 8 tokens, every 4; K rows of 2 heads of 24, V rows of 16. */
static void test_overlap(void **state) {
  rank_of_two r;
  open_overlapping(&r, &two_no_window, two_short_parts);
  const nsai_ranks_memory *memory = &r.plan->workspace.ranks;
  const nsai_buffer k = memory->tensor[NSAI_RANKS_K].whole, v = memory->tensor[NSAI_RANKS_V].whole;
  const nsai_buffer k_cmp = r.plan->workspace.k_cmp;
  machine_expect("run", two_forward(&r, 0), NSA_OK, NULL);
  machine_expect_launches("compress_mean compress_mean attend_compressed_sm90 attend_dense_sm90");
  assert_int_equal(r.seen.count, 3);
  const exchange_record *halo = &r.seen.of[0], *entries = &r.seen.of[1], *raw = &r.seen.of[2];
  /* The 4 tokens before the other rank's piece, and before the second one of this rank. */
  assert_true(halo->launches == 0 && halo->sent == 2 && halo->received == 2);
  expect_part(&halo->send[0], place(&r, k, 12, 48), 4, 48);
  expect_part(&halo->recv[0], place(&r, k, 28, 48), 4, 48);
  expect_part(&halo->recv[1], place(&r, v, 28, 32), 4, 32);
  /* Blocks 0 to 2 and 7 to 8 end in this rank's pieces, 3 to 6 in the other's. */
  assert_int_equal(entries->launches, 2);
  expect_part(&entries->send[0], place(&r, k_cmp, 0, 48), 3, 48);
  expect_part(&entries->recv[0], place(&r, k_cmp, 3, 48), 4, 48);
  /* K and V in another stream, enqueued before the kernel that reads them. */
  assert_int_equal(raw->launches, 3);
  assert_true(raw->stream != entries->stream && halo->stream == entries->stream);
  expect_part(&raw->recv[0], place(&r, k, 16, 48), 16, 48);
  expect_part(&raw->recv[1], place(&r, v, 16, 32), 16, 32);
  two_expect_fork_and_join(&r, 0, 2);
  /* Ranks exchange the same, whatever each runs. */
  machine_expect("a branch", two_forward(&r, 1u << NSA_CMP), NSA_OK, NULL);
  assert_int_equal(r.seen.count, 3);
  assert_int_equal(r.seen.of[2].launches, machine_record()->launches);
  two_expect_fork_and_join(&r, 0, 2);
  /* The run's stream waits for the other one also when raw K and V fail. */
  r.seen.fail = 3;
  machine_expect("fails", two_forward(&r, 0), NSA_E_RANKS, "exchange");
  two_expect_fork_and_join(&r, 0, 2);
  two_close(&r);
}

/* A window with a kernel of its own comes first, with the tokens that it reads before each piece. */
static void test_overlap_window(void **state) {
  static const int32_t parts[] = { 280, 300, 100 };
  enum { HALO = 20 - 1 };
  rank_of_two r;
  open_overlapping(&r, &(machine_request){ .gpu = true }, parts);
  const nsai_buffer k = r.plan->workspace.ranks.tensor[NSAI_RANKS_K].whole;
  machine_expect("run", two_forward(&r, 0), NSA_OK, NULL);
  machine_expect_launches("compress_mean compress_mean attend_window_sm90 attend_compressed_sm90 "
                          "select_importance select_topn attend_selected_sm90_mma");
  assert_int_equal(r.seen.count, 3);
  assert_int_equal(r.seen.of[2].launches, 6);
  expect_part(&r.seen.of[0].send[0], place(&r, k, 280 - HALO, 48), HALO, 48);
  expect_part(&r.seen.of[0].recv[0], place(&r, k, 580 - HALO, 48), HALO, 48);
  two_close(&r);
}

/* Persistent kernels leave SMs to the transport, until K and V have come. */
static void test_spare_sms(void **state) {
  static const int32_t parts[] = { 20000, 20000, 20000 };
  rank_of_two r;
  open_overlapping(&r, &two_no_window, parts);
  const int32_t sms = r.comm->place.device->sm_count;
  machine_expect("run", two_forward(&r, 0), NSA_OK, NULL);
  const fake_cuda_state *record = machine_record();
  assert_string_equal(record->launch[2].name, "attend_compressed_sm90");
  assert_int_equal(record->launch[2].grid_x, sms - 8);
  r.comm->side.sms = 0;
  machine_expect("run", two_forward(&r, 0), NSA_OK, NULL);
  assert_int_equal(r.seen.count, 1);
  assert_string_equal(record->launch[1].name, "attend_compressed_sm90");
  assert_int_equal(record->launch[1].grid_x, sms);
  two_close(&r);
}

/* Runs that gather K and V first: with pieces shorter than what the window needs of them; with products, whose
 * bits depend on the number of rows; and where a kernel looks up the sequence of a key. */
static void test_no_overlap(void **state) {
  static const int32_t shorter[] = { 280, 16, 300 }, parts[] = { 280, 300, 100 };
  static const struct {
    machine_request request;
    const int32_t *part;
  } cases[] = {
    { { .gpu = true }, two_short_parts },
    { { .gpu = true }, shorter },
    { { .gpu = true, .phi = NSAI_PHI_LINEAR, .override = "model.window=0" }, two_short_parts },
    { { .gpu = true, .pool = NSAI_POOL_MAX, .normalized = true }, parts },
  };
  rank_of_two r;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    open_overlapping(&r, &cases[i].request, cases[i].part);
    machine_expect("run", two_forward(&r, 0), NSA_OK, NULL);
    assert_int_equal(r.seen.count, 1);
    assert_int_equal(r.seen.of[0].launches, 0);
    two_close(&r);
  }
}

/* A run that is not captured, while a capture has the communicator's stream. */
static void test_overlap_captured(void **state) {
  rank_of_two r;
  open_overlapping(&r, &two_no_window, two_short_parts);
  machine_record()->captured = r.comm->side.stream;
  machine_expect("beside a capture", two_forward(&r, 0), NSA_E_UNSUPPORTED, "is being captured");
  assert_int_equal(r.seen.count, 0);
  machine_record()->captured = NULL;
  machine_expect("behind it", two_forward(&r, 0), NSA_OK, NULL);
  two_close(&r);
}

/* The KV heads of the toy one after the other. */
static void test_head_groups(void **state) {
  one_rank r;
  open_rank(&r, &(machine_request){ .gpu = true, .override = "thresholds.ranks_buffer_bytes=0" });
#define HEAD                                                                                       \
  "compress_mean compress_mean attend_window_sm90 attend_compressed_sm90 select_topn "             \
  "attend_dense_sm90"
  run(&r, HEAD " " HEAD);
  assert_int_equal(machine_record()->uploads, 1); /* the offsets of the pieces are the same */
  close_rank(&r);
}

/* Offsets of more pieces than one copy of 64 KB holds: a longer one could make the host wait. */
static void test_many_pieces(void **state) {
  enum { MANY = 4500, OFFSETS = 2 * MANY };
  one_rank r;
  int64_t each[MANY];
  int32_t ones[MANY];
  for (int i = 0; i < MANY; i++) each[i] = ones[i] = 1;
  open_rank_of(&r, &(machine_request){ .gpu = true }, MANY, each, MANY);
  const nsai_model model = r.m.toy.model;
  toy_free(&r.m.toy);
  toy_init(&r.m.toy, &model, MANY, ones, ones);
  const nsa_batch batch = INIT(nsa_batch, .shard = r.shard);
  fake_cuda_state *record = machine_record();
  *record = (fake_cuda_state){ .retained = record->retained, .handles = record->handles };
  machine_expect("run", nsa_forward(r.plan, &r.exec, &batch, &r.m.toy.io), NSA_OK, NULL);
  assert_int_equal(record->uploads, 2);
  assert_int_equal(record->most_uploaded, 64 * 1024);
  const int32_t *got = (void *)((char *)r.exec.workspace + r.plan->workspace.ranks.offsets.offset);
  for (int i = 0; i < 2 * OFFSETS; i++) /* 0, 1, 1, 2, 2, ... of rows, then of keys */
    if (got[i] != (i % OFFSETS + 1) / 2) fail_msg("offset %d is %d", i, (int)got[i]);
  close_rank(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_order),
    cmocka_unit_test(test_at_once),
    cmocka_unit_test(test_one_piece),
    cmocka_unit_test(test_piece_by_piece),
    cmocka_unit_test(test_normalizer),
    cmocka_unit_test(test_backward),
    cmocka_unit_test(test_head_groups),
    cmocka_unit_test(test_long_pieces),
    cmocka_unit_test(test_many_pieces),
    cmocka_unit_test(test_backward_over_hosts),
    cmocka_unit_test(test_overlap),
    cmocka_unit_test(test_no_overlap),
    cmocka_unit_test(test_spare_sms),
    cmocka_unit_test(test_overlap_window),
    cmocka_unit_test(test_overlap_captured),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
