/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What a cache over ranks refuses: problems, communicators, tables and their values; and what it takes
 * though it does not need it. The other rank is a transport that returns what it was sent.
 */
#include "support/cmocka_all.h"

#include "kv_fixture.h"
#include "plan/plan.h"
#include "ranks/comm_internal.h"

enum { RANKS = 2, UNIT = 32, PAGE = 16, KEPT = 19 /* window 20 */ };

static const kv_options options = { .page_size = PAGE, .ranks = RANKS, .unit_tokens = UNIT };

/* ---- the transport: this rank's data stand for all ---- */

static int gathers;

static nsa_status gather(void *user, const void *send, void *recv, uint64_t bytes,
                         nsa_stream stream) {
  for (int r = 0; r < RANKS; r++) memmove((char *)recv + (uint64_t)r * bytes, send, bytes);
  gathers++;
  return *(nsa_status *)user;
}

static nsa_status exchange(void *user, const nsa_part *send, int32_t send_count,
                           const nsa_part *recv, int32_t recv_count, nsa_stream stream) {
  return NSA_E_INTERNAL; /* a decode has no other messages */
}

static nsa_status transport = NSA_OK;

static nsa_comm *comm_of(nsa_ctx *ctx, int32_t rank, int32_t size) {
  const nsa_comm_ops ops = INIT(nsa_comm_ops, .rank = rank, .size = size, .user = &transport,
                                .exchange = exchange, .all_gather = gather);
  nsa_comm *comm = NULL;
  machine_expect("comm", nsa_comm_create(ctx, &ops, NULL, &comm), NSA_OK, NULL);
  return comm;
}

/* ---- a call with 100 tokens in the cache, and 3 new ones ---- */

typedef struct world {
  kv_fixture w;
  kv_call call;
  nsa_comm *comm; /* of rank 1: pages 2, 3 and 6 are in its units */
  nsa_exec exec;
} world;

static void begin(world *x, const machine_request *model, const kv_options *how) {
  static const int32_t lengths[] = { 103, 20 };
  memset(x, 0, sizeof *x);
  kv_options mine = *how;
  mine.rank = how->ranks ? 1 : 0;
  kv_init(&x->w, model, &mine, 2, lengths);
  for (int32_t at = 0; at < 100; at += 25) {
    kv_call_init(&x->call, &x->w, (const int32_t[]){ 25, at ? 0 : 17 },
                 (const int32_t[]){ at, at ? -1 : 0 });
    kv_append(&x->call);
    kv_call_free(&x->call);
  }
  kv_call_init(&x->call, &x->w, (const int32_t[]){ 3, 3 }, (const int32_t[]){ 100, 17 });
  x->comm = comm_of(x->w.ctx, 1, RANKS);
  x->exec = x->w.exec;
  x->exec.comm = x->comm;
  /* The other rank would have agreed. */
  nsai_agreed_add(&x->comm->plans, x->w.decode->digest);
}

static void end(world *x) {
  kv_call_free(&x->call);
  nsa_comm_destroy(x->comm);
  kv_free(&x->w);
}

static nsa_status append(world *x) {
  return nsa_kv_append(x->w.append, &x->w.exec, &x->call.batch, &x->call.io);
}
static nsa_status decode(world *x) {
  return nsa_decode(x->w.decode, &x->exec, &x->call.batch, &x->call.io);
}

static void both(world *x, nsa_status want, const char *text) {
  machine_expect("append", append(x), want, text);
  machine_expect("decode", decode(x), want, text);
}

/* ---- problems ---- */

static void expect_problem(nsa_ctx *ctx, const nsa_problem *p, const char *text) {
  nsa_caps caps = NSA_CAPS_INIT;
  machine_expect(text ? text : "supported", nsa_query(ctx, p, &caps), text ? NSA_E_ARG : NSA_OK,
                 text);
}

static void test_problems(void **state) {
  const nsa_problem good = INIT(nsa_problem, .op = NSA_OP_DECODE, .max_seqs = 2, .max_kv_len = 4096,
                                .page_size = 16, .ranks = 3);
  char yaml[1024];
  machine_yaml(&(machine_request){ 0 }, yaml, sizeof yaml);
  nsa_ctx *ctx = machine_context(yaml, NULL, false);
  nsa_problem p = good;
  expect_problem(ctx, &p, NULL);
  char name[256];
  nsa_problem_string(ctx, &p, name, sizeof name);
  assert_non_null(strstr(name, ":cp3x1024"));
  machine_expect_story(ctx, &p,
                       "over 3 ranks, raw tokens by turns of 1024 (problem.unit_tokens); "
                       "every rank has the new tokens of a sequence and the 19 before");
  machine_expect_story(ctx, &p, "a decode sends 432 bytes a token"); /* 6 heads, 16 + 2 floats */
  p.unit_tokens = 24;
  expect_problem(ctx, &p, "problem.unit_tokens is 24: expected a multiple of 16");
  p.unit_tokens = -16;
  expect_problem(ctx, &p, "problem.unit_tokens is -16");
  p.unit_tokens = 48;
  expect_problem(ctx, &p, NULL);
  p.ranks = 0;
  expect_problem(ctx, &p, "problem.unit_tokens is 48, but the problem is of no cache over ranks");
  p = good, p.max_pieces = 1;
  expect_problem(ctx, &p, "problem.max_pieces is 1, but NSA_OP_DECODE over ranks has no shard");
  p = good, p.page_size = NSA_NONE;
  expect_problem(ctx, &p, "the cache has no pages");
  p = good, p.selection = NSA_SELECT_RANGES;
  expect_problem(ctx, &p, "ranges of a cache over ranks have no owner");
  p = good, p.selection = NSA_SELECT_BLOCKS;
  expect_problem(ctx, &p, NULL);
  p = good, p.max_probe_rows = 1;
  expect_problem(ctx, &p, "no run over ranks probes");
  p = good, p.ranks = NSA_MAX_RANKS + 1;
  expect_problem(ctx, &p, "problem.ranks is 65");
  p = good, p.op = NSA_OP_PREFILL, p.max_tokens = 64;
  machine_expect_story(ctx, &p, "a prefill gathers the raw pages of all ranks once, 320 bytes for");
  p.max_q_len = 192; /* of 3 ranks */
  expect_problem(ctx, &p, NULL);
  p.max_q_len = 193;
  expect_problem(ctx, &p, "expected 1 to problem.max_tokens of all ranks (192)");
  p = good, p.op = NSA_OP_DENSE, p.page_size = 0, p.max_tokens = 64;
  expect_problem(ctx, &p, "NSA_OP_DENSE does not run over ranks");
  p = good, p.op = NSA_OP_APPEND, p.max_tokens = 64;
  machine_expect_story(ctx, &p, "an append sends nothing");
  nsa_destroy(ctx);
  machine_yaml(&(machine_request){ .pool = NSAI_POOL_MAX, .normalized = true }, yaml, sizeof yaml);
  ctx = machine_context(yaml, (const char *const[]){ "model.window=0", NULL }, false);
  machine_expect_story(ctx, &good, "the 15 before"); /* coarse keys of 16 tokens */
  nsa_destroy(ctx);
  machine_yaml(&(machine_request){ 0 }, yaml, sizeof yaml);
  ctx = machine_context(yaml, (const char *const[]){ "runtime.count_reads=true", NULL }, false);
  expect_problem(ctx, &good, "reads are not counted over ranks");
  nsa_destroy(ctx);
}

/* Raw tokens have pages of their own: 2 heads, 24 + 16 numbers of 4 bytes. Without ranks there are also
 * 4 entries, and 2 coarse keys. */
static void test_page_bytes(void **state) {
  const machine_request model = { .pool = NSAI_POOL_MAX, .normalized = true };
  uint64_t raw = 0, all = 0;
  char yaml[1024];
  machine_yaml(&model, yaml, sizeof yaml);
  nsa_ctx *ctx = machine_context(yaml, NULL, false);
  nsa_problem p = INIT(nsa_problem, .op = NSA_OP_DECODE, .max_seqs = 1, .max_kv_len = 1000,
                       .page_size = 16, .ranks = 2);
  machine_expect("raw", nsa_kv_page_bytes(ctx, &p, &raw), NSA_OK, NULL);
  p.ranks = 0;
  machine_expect("all", nsa_kv_page_bytes(ctx, &p, &all), NSA_OK, NULL);
  assert_int_equal(raw, 16 * 2 * 40 * 4);
  assert_int_equal(all - raw, (4 * 2 * 40 + 2 * 2 * 24) * 4);
  nsa_destroy(ctx);
}

/* ---- communicators ---- */

static void test_communicators(void **state) {
  world x;
  begin(&x, &(machine_request){ 0 }, &options);
  machine_expect("append without", append(&x), NSA_OK, NULL);
  nsa_comm *three = comm_of(x.w.ctx, 2, 3);
  x.exec.comm = three;
  machine_expect("append ignores it", nsa_kv_append(x.w.append, &x.exec, &x.call.batch, &x.call.io),
                 NSA_OK, NULL);
  machine_expect("three", decode(&x), NSA_E_ARG, "exec.comm has 3 ranks");
  nsa_comm_destroy(three);
  x.exec.comm = NULL;
  machine_expect("none", decode(&x), NSA_E_ARG, "exec.comm is missing");
  nsa_comm *fresh = x.exec.comm = comm_of(x.w.ctx, 1, RANKS);
  machine_expect("agree", decode(&x), NSA_E_ARG, "the ranks have not agreed upon this plan");
  nsa_comm_destroy(fresh);
  x.exec.comm = x.comm;
  nsa_shard *shard = NULL;
  const int64_t lengths[] = { 64, 64 };
  const nsa_shard_options how =
      INIT(nsa_shard_options, .ranks = RANKS, .num_seqs = 2, .lengths = lengths);
  machine_expect("shard", nsa_shard_create(x.w.ctx, &how, &shard), NSA_OK, NULL);
  x.call.batch.shard = shard;
  both(&x, NSA_E_ARG, "batch.shard is given, but a cache over ranks has none");
  x.call.batch.shard = NULL;
  nsa_shard_destroy(shard);
  gathers = 0;
  machine_expect("decode", decode(&x), NSA_OK, NULL);
  assert_int_equal(gathers, 2);                    /* lengths, and partial results */
  x.exec.branches = 1u << NSA_CMP | 1u << NSA_WIN; /* of which nothing travels */
  x.call.io.o_branch[NSA_SEL] = x.call.io.lse[NSA_SEL] = (nsa_tensor){ 0 };
  machine_expect("no selected branch", decode(&x), NSA_OK, NULL);
  assert_int_equal(gathers, 2);
  end(&x);
}

/* The transport fails: so do the call and all others of the communicator. */
static void test_lost_rank(void **state) {
  kv_options quiet = options;
  world x;
  quiet.model[0] = "runtime.log_level=off";
  begin(&x, &(machine_request){ 0 }, &quiet);
  transport = NSA_E_INTERNAL;
  machine_expect("lost", decode(&x), NSA_E_RANKS, "all_gather");
  transport = NSA_OK;
  machine_expect("dead", decode(&x), NSA_E_RANKS, "has ended");
  end(&x);
}

/* ---- tables ---- */

static void test_tables(void **state) {
  world x;
  begin(&x, &(machine_request){ .normalized = true, .pool = NSAI_POOL_MAX }, &options);
  nsa_batch *b = &x.call.batch;
  const nsa_tensor good = b->entry_table;
  b->entry_table = (nsa_tensor){ 0 };
  both(&x, NSA_E_ARG, "batch.entry_table is missing");
  b->entry_table = good;
  b->entry_table.shape[0] = 1;
  both(&x, NSA_E_ARG, "batch.entry_table has shape[0]");
  b->entry_table = good;
  b->entry_table.dtype = NSA_I64;
  both(&x, NSA_E_ARG, "batch.entry_table has dtype");
  b->entry_table = good;
  b->entry_table.shape[1] = 6;
  both(&x, NSA_E_ARG,
       "batch.entry_table: sequence 0 has 6 pages, its 103 tokens need 7: widen the table");
  b->entry_table = good;
  int32_t *row = toy_ints(&b->entry_table), old = row[2];
  row[2] = -1;
  both(&x, NSA_E_ARG,
       "batch.entry_table: page 2 of sequence 0 is -1, expected one of io.kv's 48 pages");
  row[2] = KV_ENTRY_PAGES;
  both(&x, NSA_E_ARG, "batch.entry_table: page 2 of sequence 0 is 48");
  row[2] = old;
  b->page_indptr = b->kv_len;
  both(&x, NSA_E_ARG, "batch.page_indptr is given, but a cache over ranks has tables");
  b->page_indptr = (nsa_tensor){ 0 };
  x.call.io.kv.v_cmp.shape[0]--;
  both(&x, NSA_E_ARG, "io.kv.v_cmp has shape[0]");
  x.call.io.kv.v_cmp.shape[0]++;
  x.call.io.kv.k_cmp.shape[0]--;
  both(&x, NSA_E_ARG, "io.kv.k_cmp has shape[0] = 47, expected [48, ");
  x.call.io.kv.k_cmp.shape[0]++;
  both(&x, NSA_OK, NULL);
  end(&x);
}

/* Pages of sequence 0, which has 103 tokens: rank 1 owns 2, 3 and 6, new tokens lie in page 6, and 19 more
 * from token 81 on, in page 5. */
static void test_pages(void **state) {
  world x;
  begin(&x, &(machine_request){ 0 }, &options);
  int32_t *row = toy_ints(&x.call.batch.block_table);
  const int32_t first = row[0];
  assert_int_equal(first, -1); /* the fixture has given it back */
  both(&x, NSA_OK, NULL);
  for (int page = 0; page < 7; page++) {
    const int32_t old = row[page];
    char text[128];
    row[page] = -2;
    snprintf(text, sizeof text, "batch.block_table: page %d of sequence 0 is -2", page);
    both(&x, NSA_E_ARG, text);
    row[page] = KV_PAGES;
    snprintf(text, sizeof text, "batch.block_table: page %d of sequence 0 is 64", page);
    both(&x, NSA_E_ARG, text);
    row[page] = -1;
    const bool own = page == 2 || page == 3 || page == 6, latest = page >= 5;
    snprintf(text, sizeof text,
             "page %d of sequence 0 is -1, but its token %d is among the new ones", page,
             page == 5 ? 81 : page * PAGE);
    machine_expect("append", append(&x), latest ? NSA_E_ARG : NSA_OK, latest ? text : NULL);
    if (own)
      snprintf(text, sizeof text,
               "page %d of sequence 0 is -1, but its token %d lies in a unit of rank 1", page,
               page * PAGE);
    machine_expect("decode", decode(&x), own || latest ? NSA_E_ARG : NSA_OK,
                   own || latest ? text : NULL);
    row[page] = old;
  }
  row[0] = 0; /* one that it need not have */
  both(&x, NSA_OK, NULL);
  x.call.batch.block_table.shape[1] = 6;
  both(&x, NSA_E_ARG, "batch.block_table: sequence 0 has 6 pages, its 103 tokens need 7");
  end(&x);
}

/* Rings hold the window: entries alone reach back, 7 tokens. */
static void test_rings(void **state) {
  kv_options rings = options;
  world x;
  rings.ring = true;
  begin(&x, &(machine_request){ .per_branch = true }, &rings);
  int32_t *row = toy_ints(&x.call.batch.block_table);
  row[4] = -1;
  machine_expect("behind", append(&x), NSA_OK, NULL);
  row[5] = -1;
  both(&x, NSA_E_ARG,
       "page 5 of sequence 0 is -1, but its token 93 is among the new ones and the 7");
  end(&x);
}

/* Without ranks. */
static void test_no_ranks(void **state) {
  const kv_options one = { .page_size = PAGE };
  world x;
  begin(&x, &(machine_request){ 0 }, &one);
  x.exec.comm = NULL;
  x.call.batch.entry_table = x.call.batch.block_table;
  both(&x, NSA_E_ARG, "batch.entry_table is given, but entries lie in the pages of raw tokens");
  machine m;
  machine_init(&m, &(machine_request){ 0 });
  nsa_batch batch = m.toy.batch;
  batch.entry_table = x.call.batch.block_table;
  machine_expect("forward", nsa_forward(m.plan, &m.exec, &batch, &m.toy.io), NSA_E_ARG,
                 "batch.entry_table is given, but");
  machine_free(&m);
  end(&x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_problems),      cmocka_unit_test(test_page_bytes),
    cmocka_unit_test(test_communicators), cmocka_unit_test(test_lost_rank),
    cmocka_unit_test(test_tables),        cmocka_unit_test(test_pages),
    cmocka_unit_test(test_rings),         cmocka_unit_test(test_no_ranks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
