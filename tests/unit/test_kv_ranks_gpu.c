/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A cache over ranks on the fake GPU: one gather of the right bytes at its place between the kernels,
 * captures, failures, and the values that runtime.check_inputs full reads back.
 */
#include "support/cmocka_all.h"

#include "machine.h"
#include "plan/context.h"
#include "plan/plan.h"
#include "ranks/comm_internal.h"

#include <nsa/kv_cache.h>

enum { RANKS = 2, RANK = 1, SEQS = 2, TOKENS = 4, PAGE = 16, PAGES = 8, ENTRY_PAGES = 6 };
enum { HEADS = 6, KV_HEADS = 2, DK = 24, DV = 16, WORKSPACE = 16 << 20 };

#define BEFORE                                                                                     \
  "decode_split_kv_compressed decode_split_kv_select decode_split_kv_attend "                      \
  "decode_split_kv_partial"

/* What the transport saw. */
typedef struct seen {
  int gathers, launches; /* launches before the last gather */
  uint64_t bytes;
  bool in_place;
  nsa_status status; /* that it returns */
} seen;

static nsa_status gather(void *user, const void *send, void *recv, uint64_t bytes,
                         nsa_stream stream) {
  seen *s = user;
  s->gathers++;
  s->launches = machine_record()->launches;
  s->bytes = bytes;
  s->in_place = send == (char *)recv + RANK * bytes;
  return s->status;
}

static nsa_status exchange(void *user, const nsa_part *send, int32_t send_count,
                           const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  return NSA_E_INTERNAL; /* a decode has no other messages */
}

typedef struct world {
  machine m;
  toy memory;
  nsa_plan *append, *decode;
  nsa_comm *comm;
  seen seen;
  nsa_exec exec;
  nsa_batch batch;
  nsa_io io;
} world;

static nsa_tensor paged(world *w, int64_t pages, int64_t rows, int64_t dim) {
  nsa_tensor t = toy_tensor(&w->memory, NSA_BF16, 3, pages, rows * KV_HEADS, dim);
  t.ndim = 4;
  t.shape[1] = rows;
  t.shape[2] = KV_HEADS;
  t.shape[3] = dim;
  t.stride[1] = KV_HEADS * dim;
  t.stride[2] = dim;
  t.stride[3] = 1;
  return t;
}

static nsa_plan *plan_of(world *w, int32_t op) {
  const nsa_problem p =
      INIT(nsa_problem, .op = op, .max_tokens = TOKENS, .max_kv_len = 64, .max_seqs = SEQS,
           .max_q_len = 2, .page_size = PAGE, .ranks = RANKS, .unit_tokens = PAGE);
  return machine_plan(w->m.ctx, &p);
}

/* Sequences of 64 and 20 tokens, of which pages 1 and 3 are this rank's. */
static void make_batch(world *w) {
  static const int32_t raw[] = { -1, 4, 2, 7, 0, 1, -9, -9 };
  static const int32_t entries[] = { 5, 0, 1, 2, 3, 4, -9, -9 };
  w->batch = INIT(nsa_batch, .num_seqs = SEQS);
  w->batch.kv_len = toy_tensor(&w->memory, NSA_I32, 1, SEQS, 0, 0);
  w->batch.block_table = toy_tensor(&w->memory, NSA_I32, 2, SEQS, 4, 0);
  w->batch.entry_table = toy_tensor(&w->memory, NSA_I32, 2, SEQS, 4, 0);
  toy_ints(&w->batch.kv_len)[0] = 64;
  toy_ints(&w->batch.kv_len)[1] = 20;
  memcpy(w->batch.block_table.data, raw, sizeof raw);
  memcpy(w->batch.entry_table.data, entries, sizeof entries);
}

static void begin(world *w, const char *override, uint32_t flags) {
  memset(w, 0, sizeof *w);
  machine_init(&w->m, &(machine_request){ .gpu = true, .override = override });
  w->memory.model = w->m.ctx->config->model;
  w->append = plan_of(w, NSA_OP_APPEND);
  w->decode = plan_of(w, NSA_OP_DECODE);
  const nsa_comm_ops ops = INIT(nsa_comm_ops, .rank = RANK, .size = RANKS, .flags = flags,
                                .user = &w->seen, .exchange = exchange, .all_gather = gather);
  machine_expect("comm", nsa_comm_create(w->m.ctx, &ops, NULL, &w->comm), NSA_OK, NULL);
  nsai_agreed_add(&w->comm->plans, w->decode->digest); /* the other rank would have agreed */
  make_batch(w);
  w->io = (nsa_io)NSA_IO_INIT;
  w->io.kv.k[0] = paged(w, PAGES, PAGE, DK);
  w->io.kv.v[0] = paged(w, PAGES, PAGE, DV);
  w->io.kv.k_cmp = paged(w, ENTRY_PAGES, PAGE / 4, DK);
  w->io.kv.v_cmp = paged(w, ENTRY_PAGES, PAGE / 4, DV);
  w->io.new_kv.k[0] = toy_tensor(&w->memory, NSA_BF16, 3, TOKENS, KV_HEADS, DK);
  w->io.new_kv.v[0] = toy_tensor(&w->memory, NSA_BF16, 3, TOKENS, KV_HEADS, DV);
  w->io.q = toy_tensor(&w->memory, NSA_BF16, 3, TOKENS, HEADS, DK);
  w->io.gate.value = toy_tensor(&w->memory, NSA_BF16, 3, TOKENS, HEADS, 3);
  w->io.o = toy_tensor(&w->memory, NSA_BF16, 3, TOKENS, HEADS, DV);
  w->exec = INIT(nsa_exec, .comm = w->comm, .workspace_bytes = WORKSPACE,
                 .workspace = aligned_alloc(256, WORKSPACE)); /* never touched */
  machine_record()->launches = 0;
}

static void end(world *w) {
  nsa_comm_destroy(w->comm);
  nsa_plan_destroy(w->append);
  nsa_plan_destroy(w->decode);
  free(w->exec.workspace);
  toy_free(&w->memory);
  machine_free(&w->m);
}

static nsa_status append(world *w) {
  machine_record()->launches = 0;
  return nsa_kv_append(w->append, &w->exec, &w->batch, &w->io);
}
static nsa_status decode(world *w) {
  machine_record()->launches = 0;
  return nsa_decode(w->decode, &w->exec, &w->batch, &w->io);
}

static void test_order(void **state) {
  world w;
  begin(&w, NULL, 0);
  machine_expect("append", append(&w), NSA_OK, NULL);
  machine_expect_launches("kv_cache_append");
  assert_int_equal(w.seen.gathers, 0);
  machine_expect("decode", decode(&w), NSA_OK, NULL);
  machine_expect_launches(BEFORE " decode_split_kv_combine");
  assert_int_equal(w.seen.gathers, 1);
  assert_int_equal(w.seen.launches, 4);
  assert_int_equal(w.seen.bytes, TOKENS * HEADS * (DV + 2) * 4);
  assert_true(w.seen.in_place);
  w.exec.branches = 1u << NSA_CMP | 1u << NSA_WIN;
  machine_expect("two branches", decode(&w), NSA_OK, NULL);
  machine_expect_launches(
      "decode_split_kv_compressed decode_split_kv_attend decode_split_kv_combine");
  assert_int_equal(w.seen.gathers, 1);
  end(&w);
}

static void test_captures(void **state) {
  world w;
  begin(&w, NULL, 0);
  machine_record()->capturing = true;
  machine_expect("append", append(&w), NSA_OK, NULL);
  machine_expect("decode", decode(&w), NSA_E_UNSUPPORTED, "NSA_COMM_CAPTURES");
  assert_int_equal(machine_record()->launches, 0);
  machine_record()->capturing = false;
  machine_expect("alive", decode(&w), NSA_OK, NULL);
  end(&w);
  begin(&w, NULL, NSA_COMM_CAPTURES);
  machine_record()->capturing = true;
  machine_expect("decode", decode(&w), NSA_OK, NULL);
  assert_int_equal(w.seen.gathers, 1);
  machine_record()->capturing = false;
  end(&w);
}

/* The other ranks wait for this one: whatever fails behind the checks ends the communicator. */
static void test_failures(void **state) {
  world w;
  begin(&w, "runtime.log_level=off", 0);
  w.seen.status = NSA_E_INTERNAL;
  machine_expect("transport", decode(&w), NSA_E_RANKS, "all_gather");
  machine_expect_launches(BEFORE);
  machine_expect("dead", decode(&w), NSA_E_RANKS, "has ended");
  machine_expect("append", append(&w), NSA_OK, NULL); /* it has no use for a communicator */
  end(&w);
  begin(&w, "runtime.log_level=off", 0);
  machine_record()->fail_launch = 2;
  machine_expect("launch", decode(&w), NSA_E_CUDA, NULL);
  machine_expect("dead", decode(&w), NSA_E_RANKS, "rank 1 of 2 gave up");
  end(&w);
}

static void expect_checked(world *w, const char *text, bool append_too) {
  machine_expect("append", append(w), append_too && text ? NSA_E_ARG : NSA_OK,
                 append_too ? text : NULL);
  machine_expect("decode", decode(w), text ? NSA_E_ARG : NSA_OK, text);
  assert_int_equal(machine_record()->launches > 0, !text);
}

static void test_full(void **state) {
  world w;
  begin(&w, "runtime.check_inputs=full", 0);
  int32_t *raw = toy_ints(&w.batch.block_table), *entries = toy_ints(&w.batch.entry_table);
  expect_checked(&w, NULL, true);
  raw[1] = -1;
  expect_checked(&w, "page 1 of sequence 0 is -1, but its token 16 lies in a unit of rank 1",
                 false);
  raw[1] = 4, raw[2] = -1;
  expect_checked(&w, "page 2 of sequence 0 is -1, but its token 43 is among the new ones", true);
  raw[2] = PAGES;
  expect_checked(&w, "page 2 of sequence 0 is 8, expected one of io.kv's 8 pages", true);
  raw[2] = 2, entries[0] = ENTRY_PAGES;
  expect_checked(&w, "batch.entry_table: page 0 of sequence 0 is 6, expected one of io.kv's 6",
                 true);
  end(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_order),
    cmocka_unit_test(test_captures),
    cmocka_unit_test(test_failures),
    cmocka_unit_test(test_full),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
