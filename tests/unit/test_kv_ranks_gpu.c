/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A cache over ranks on the fake GPU: one gather of the right bytes at its place between the kernels, the
 * table that each kernel reads, captures, failures, and the values that runtime.check_inputs full reads
 * back.
 */
#include "support/cmocka_all.h"

#include "machine.h"
#include "params/kv_cache.h"
#include "params/ranks.h"
#include "plan/context.h"
#include "plan/plan.h"
#include "ranks/comm_internal.h"
#include "ranks/shard.h"

#include <nsa/kv_cache.h>

enum { RANKS = 2, RANK = 1, SEQS = 2, TOKENS = 4, PAGE = 16, PAGES = 8, ENTRY_PAGES = 6 };
enum { HEADS = 6, KV_HEADS = 2, DK = 24, DV = 16, WORKSPACE = 64 << 20 };

#define BEFORE                                                                                     \
  "decode_split_kv_compressed decode_split_kv_select decode_split_kv_attend "                      \
  "decode_split_kv_partial"

/* What the transport saw. */
typedef struct seen {
  int gathers, launches; /* launches before the last gather */
  uint64_t bytes;
  const void *send;
  bool in_place;
  nsa_status status; /* that it returns */
  bool moves;        /* bytes: the other rank sends the same, */
  int32_t differs;   /* but for the last length, which is so much more */
} seen;

/* num_seqs, new tokens, and the lengths of SEQS sequences */
enum { LAST_LENGTH = 2 + SEQS - 1 };

static nsa_status gather(void *user, const void *send, void *recv, uint64_t bytes,
                         nsa_stream stream) {
  seen *s = user;
  s->gathers++;
  s->launches = machine_record()->launches;
  s->bytes = bytes;
  s->send = send;
  s->in_place = send == (char *)recv + RANK * bytes;
  for (int r = 0; r < RANKS && s->moves; r++)
    if (!s->in_place) memcpy((char *)recv + r * bytes, send, bytes);
  if (s->moves && !s->in_place) ((int32_t *)recv)[LAST_LENGTH] += s->differs;
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

static void begin_model(world *w, const machine_request *model, uint32_t flags) {
  memset(w, 0, sizeof *w);
  machine_init(&w->m, model);
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

static void begin(world *w, const char *override, uint32_t flags) {
  begin_model(w, &(machine_request){ .gpu = true, .override = override }, flags);
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

/* The batch is the first member of the structs of all kernels but those of products. */
static const world *watched;
static char tables[1024]; /* "KERNEL:TABLE ..." */

static double note_table(const fake_cuda_launch *launch, const void *params) {
  const NsaiCacheBatch *batch = params;
  if (!strcmp(launch->name, "matmul") || !strcmp(launch->name, "compress_bias_activation"))
    return 1;
  const bool raw = batch->pages == watched->batch.block_table.data;
  const size_t used = strlen(tables);
  assert_true(raw || batch->pages == watched->batch.entry_table.data);
  snprintf(tables + used, sizeof tables - used, "%s%s:%s", used ? " " : "", launch->name,
           raw ? "raw" : "entries");
  if (strcmp(launch->name, "kv_cache_append")) return 1;
  const NsaiRanksAppend *append = params;
  assert_ptr_equal(append->entry_pages, watched->batch.entry_table.data);
  assert_int_equal(append->entry_page_stride, 4);
  return 1;
}

static void expect_tables(world *w, nsa_status (*call)(world *), const char *want) {
  watched = w;
  tables[0] = '\0';
  machine_record()->kernel = note_table;
  machine_expect("call", call(w), NSA_OK, NULL);
  machine_record()->kernel = NULL;
  assert_string_equal(tables, want);
}

/* Lengths alone are read in select_topn_cta, decode_split_kv_select, _partial and _combine. */
#define RAW_REST                                                                                   \
  "decode_split_kv_attend:raw decode_split_kv_partial:raw decode_split_kv_combine:raw"

static void test_tables(void **state) {
  world w;
  begin(&w, NULL, 0);
  expect_tables(&w, append, "kv_cache_append:raw");
  expect_tables(&w, decode,
                "decode_split_kv_compressed:entries decode_split_kv_select:raw " RAW_REST);
  end(&w);
}

/* A call with phi linear gathers raw tokens and scatters entries. */
static void test_tables_of_products(void **state) {
  world w;
  begin_model(&w, &(machine_request){ .gpu = true, .phi = NSAI_PHI_LINEAR }, 0);
  w.io.phi = w.m.toy.io.phi;
  expect_tables(&w, append,
                "kv_cache_append:raw kv_cache_gather_entries:raw "
                "kv_cache_gather_entries:raw kv_cache_scatter_entries:entries");
  end(&w);
}

static void test_tables_of_rankings(void **state) {
  world w;
  begin_model(&w, &(machine_request){ .gpu = true, .pool = NSAI_POOL_MAX, .normalized = true }, 0);
  w.io.k_norm = paged(&w, ENTRY_PAGES, PAGE / 8, DK);
  expect_tables(&w, append, "kv_cache_append:raw");
  expect_tables(&w, decode,
                "decode_split_kv_compressed:entries select_normalizer:entries "
                "select_importance:entries select_topn_cta:raw " RAW_REST);
  end(&w);
  begin_model(&w,
              &(machine_request){
                  .gpu = true, .pool = NSAI_POOL_MAX, .phi = NSAI_PHI_NONE, .indexed = true },
              0);
  w.io.kv.k_cmp = w.io.kv.v_cmp = (nsa_tensor){ 0 };
  w.io.k_idx = paged(&w, ENTRY_PAGES, PAGE, 40);
  w.io.k_idx.shape[2] = 1;
  w.io.new_k_idx = toy_tensor(&w.memory, NSA_BF16, 3, TOKENS, 1, 40);
  w.io.index_q = toy_tensor(&w.memory, NSA_BF16, 3, TOKENS, KV_HEADS, 40);
  expect_tables(&w, append, "kv_cache_append:raw");
  expect_tables(&w, decode, "select_index_scores:entries select_topn_cta:raw " RAW_REST);
  end(&w);
}

/* The NsaiRanksDecode of a step, and where its exchange lies. */
static NsaiRanksDecode told[3];
static int told_count;

static double note_ranks(const fake_cuda_launch *launch, const void *params) {
  const bool takes = !strcmp(launch->name, "decode_split_kv_attend") ||
                     !strcmp(launch->name, "decode_split_kv_partial") ||
                     !strcmp(launch->name, "decode_split_kv_combine");
  if (takes) memcpy(&told[told_count++], params, sizeof *told);
  return 1;
}

static void test_rank(void **state) {
  world w;
  begin(&w, NULL, 0);
  told_count = 0;
  machine_record()->kernel = note_ranks;
  machine_expect("decode", decode(&w), NSA_OK, NULL);
  machine_record()->kernel = NULL;
  assert_int_equal(told_count, 3);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(told[i].rank, RANK);
    assert_int_equal(told[i].ranks, RANKS);
    assert_int_equal(told[i].unit_blocks, PAGE / w.m.ctx->config->model.select_block);
    assert_int_equal(told[i].rank_stride * 4, w.seen.bytes);
    assert_ptr_equal(told[i].gathered + RANK * told[i].rank_stride, w.seen.send);
  }
  /* No kernel overlaps with the exchange: the last one waits for it. */
  const fake_cuda_launch *launch = machine_record()->launch;
  assert_true(launch[3].overlaps);
  assert_false(launch[4].overlaps);
  end(&w);
}

/* Room for the results of all ranks beside what one GPU takes, up to the alignment of a buffer. */
static void test_workspace(void **state) {
  world w;
  begin(&w, "variants.force.decode=decode_split_kv", 0);
  const nsa_problem alone =
      INIT(nsa_problem, .op = NSA_OP_DECODE, .max_tokens = TOKENS, .max_kv_len = 64,
           .max_seqs = SEQS, .max_q_len = 2, .page_size = PAGE);
  nsa_plan *one = machine_plan(w.m.ctx, &alone);
  const int64_t more = (int64_t)w.decode->workspace.total - (int64_t)one->workspace.total;
  const int64_t gathered = RANKS * TOKENS * 4 * (DV + 2) * HEADS;
  assert_in_range(more, gathered, gathered + 255);
  nsa_plan_destroy(one);
  end(&w);
}

/* Kernels that are one launch cannot exchange; and no other kernel is compiled anew. */
static void test_variants(void **state) {
  static const char *const refused[] = { "decode_cluster", "decode_pipelined", "decode_single_cta",
                                         "decode_select_attend" };
  world w;
  begin(&w, NULL, 0);
  const nsa_problem p =
      INIT(nsa_problem, .op = NSA_OP_DECODE, .max_tokens = TOKENS, .max_kv_len = 64,
           .max_seqs = SEQS, .max_q_len = 2, .page_size = PAGE, .ranks = RANKS);
  nsa_problem alone = p;
  alone.ranks = 0;
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    nsai_reasons reasons = { 0 };
    char text[2048];
    reasons.text = nsai_writer_open(text, sizeof text);
    nsai_variant_find(refused[i])->legal(&w.decode->problem, &w.m.ctx->target, &reasons);
    if (!strstr(text, "problem.ranks is 2, and one launch has no place for an exchange"))
      fail_msg("%s: %s", refused[i], text);
  }
  nsa_plan *one = machine_plan(w.m.ctx, &alone);
  static const char *const over_ranks[] = { "decode_split_kv_attend", "decode_split_kv_partial",
                                            "decode_split_kv_combine" };
  for (int i = 0; i < 3; i++) {
    const nsai_kernel_spec *spec = nsai_choice_kernel(&w.decode->choice, over_ranks[i]);
    assert_non_null(spec);
    assert_string_equal(spec->constants[spec->constant_count - 1].name, "kRanks");
    spec = nsai_choice_kernel(&one->choice, over_ranks[i]);
    if (spec) assert_string_not_equal(spec->constants[spec->constant_count - 1].name, "kRanks");
  }
  assert_null(nsai_choice_kernel(&one->choice, "decode_split_kv_partial"));
  nsa_plan_destroy(one);
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
  w.seen.moves = true;
  int32_t *raw = toy_ints(&w.batch.block_table), *entries = toy_ints(&w.batch.entry_table);
  expect_checked(&w, NULL, true);
  machine_record()->memory_calls = 0;
  machine_expect("decode", decode(&w), NSA_OK, NULL);
  /* Lengths once, rows of both tables; the ranks' lengths to the device and back. */
  assert_int_equal(machine_record()->memory_calls, 1 + 2 * SEQS + 2);
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

/* Ranks compare lengths only where the values of batches are looked at. */
static void test_lengths(void **state) {
  static const char *const full = "runtime.check_inputs=full";
  world w;
  begin(&w, NULL, 0);
  w.seen.moves = true, w.seen.differs = -1;
  machine_expect("basic", decode(&w), NSA_OK, NULL);
  assert_int_equal(w.seen.gathers, 1);
  end(&w);
  begin(&w, full, NSA_COMM_CAPTURES);
  w.seen.moves = true, w.seen.differs = -1;
  machine_record()->capturing = true;
  machine_expect("captured", decode(&w), NSA_OK, NULL);
  assert_int_equal(w.seen.gathers, 1);
  machine_record()->capturing = false;
  w.exec.branches = 1u << NSA_CMP | 1u << NSA_WIN; /* nothing travels */
  machine_expect("no selected branch", decode(&w), NSA_OK, NULL);
  assert_int_equal(w.seen.gathers, 1);
  w.exec.branches = 0;
  w.seen.differs = 0;
  machine_expect("alike", decode(&w), NSA_OK, NULL);
  assert_int_equal(w.seen.gathers, 3);
  w.seen.differs = -1;
  machine_expect("others", decode(&w), NSA_E_RANKS,
                 "batch.kv_len[1] is 19 on rank 0 and 20 on rank 1");
  assert_int_equal(machine_record()->launches, 0);
  machine_expect("dead", decode(&w), NSA_E_RANKS, "has ended");
  end(&w);
}

/* ---- prefills ---- */

/* Of 6 and 2 new tokens this rank has the last 2 and all. */
static nsa_shard *make_shard(const world *w) {
  static const int64_t lengths[] = { 6, 2 };
  static const nsa_piece pieces[] = { { .rank = 0, .sequence = 0, .begin = 0, .length = 4 },
                                      { .rank = 1, .sequence = 0, .begin = 4, .length = 2 },
                                      { .rank = 1, .sequence = 1, .begin = 0, .length = 2 } };
  nsa_shard *shard = NULL;
  const nsa_shard_options o =
      INIT(nsa_shard_options, .ranks = RANKS, .num_seqs = SEQS, .lengths = lengths,
           .layout = NSA_SHARD_GIVEN, .given = pieces, .given_count = 3);
  machine_expect("shard", nsa_shard_create(w->m.ctx, &o, &shard), NSA_OK, NULL);
  return shard;
}

typedef struct prefill {
  world w;
  nsa_plan *plan;
  nsa_shard *shard;
} prefill;

static void begin_prefill(prefill *f, const char *override, uint32_t flags) {
  begin(&f->w, override, flags);
  const nsa_problem p =
      INIT(nsa_problem, .op = NSA_OP_PREFILL, .max_tokens = TOKENS, .max_kv_len = 64,
           .max_seqs = SEQS, .page_size = PAGE, .ranks = RANKS, .unit_tokens = PAGE);
  f->plan = machine_plan(f->w.m.ctx, &p);
  f->shard = make_shard(&f->w);
  f->w.batch.shard = f->shard;
  nsai_agreed_add(&f->w.comm->plans, f->plan->digest);
  nsai_agreed_add(&f->w.comm->shards, f->shard->digest);
}

static void end_prefill(prefill *f) {
  nsa_plan_destroy(f->plan);
  nsa_shard_destroy(f->shard);
  end(&f->w);
}

static nsa_status run_prefill(prefill *f) {
  machine_record()->launches = 0;
  return nsa_prefill(f->plan, &f->w.exec, &f->w.batch, &f->w.io);
}

static NsaiPackPages packed;
static int reads[2]; /* kernels that read raw pages, and entries */

static double note_prefill(const fake_cuda_launch *launch, const void *params) {
  if (!strcmp(launch->name, "ranks_pack_pages")) {
    memcpy(&packed, params, sizeof packed);
    return 1;
  }
  const NsaiCacheBatch *batch = params;
  if (batch->pages == packed.pages)
    reads[0]++;
  else if (batch->pages == packed.entries)
    reads[1]++;
  else
    fail_msg("%s reads another table", launch->name);
  assert_ptr_equal(batch->kv_len, packed.kv_len);
  assert_int_equal(batch->num_seqs, 2);
  assert_int_equal(batch->q_tokens, TOKENS);
  assert_int_equal(batch->page_list_stride, 4);
  assert_int_equal(batch->cu_q[1], 2);
  assert_int_equal(batch->cu_q[2], TOKENS);
  return 1;
}

/* The pages of two sequences of 4 pages, 2 on a rank: K of 24 and V of 16, in turn. */
static void test_prefill(void **state) {
  enum { OWN = SEQS * 2, V_BYTES = OWN * PAGE * KV_HEADS * DV * 2 };
  prefill f;
  begin_prefill(&f, "variants.disable=[\"*.*_sm90*\"]", 0); /* others begin with maps */
  machine_record()->kernel = note_prefill;
  reads[0] = reads[1] = 0;
  const nsa_status status = run_prefill(&f);
  machine_record()->kernel = NULL;
  machine_expect("prefill", status, NSA_OK, NULL);
  assert_int_equal(f.w.seen.gathers, 2);
  assert_int_equal(f.w.seen.launches, 1); /* behind the first kernel */
  assert_int_equal(f.w.seen.bytes, V_BYTES);
  assert_true(f.w.seen.in_place);
  assert_ptr_equal(f.w.seen.send, packed.to[1]);
  assert_ptr_equal(packed.from[1].data, f.w.io.kv.v[0].data);
  assert_null(packed.to[2]);
  assert_ptr_equal(packed.batch.pages, f.w.batch.block_table.data);
  assert_ptr_equal(packed.entry_pages, f.w.batch.entry_table.data);
  assert_int_equal(packed.batch.num_seqs, SEQS);
  assert_int_equal(packed.rank, RANK);
  assert_int_equal(packed.ranks, RANKS);
  assert_int_equal(packed.unit_pages, 1);
  assert_int_equal(packed.rank_pages, 2);
  assert_int_equal(packed.columns, 4);
  for (int i = 0; i < 2; i++) assert_int_equal(packed.sequence[i], i);
  for (int i = 0; i < 2; i++) assert_int_equal(packed.behind[i], 0);
  assert_true(reads[0] >= 2 && reads[1] >= 1);
  assert_false(machine_record()->launch[1].overlaps); /* it waits for the gathers */
  end_prefill(&f);
}

/* A transport that fails, and one that is not captured. */
static void test_prefill_failures(void **state) {
  prefill f;
  begin_prefill(&f, "runtime.log_level=off", 0);
  machine_record()->capturing = true;
  machine_expect("capture", run_prefill(&f), NSA_E_UNSUPPORTED, "NSA_COMM_CAPTURES");
  machine_record()->capturing = false;
  f.w.seen.status = NSA_E_INTERNAL;
  machine_expect("transport", run_prefill(&f), NSA_E_RANKS, "all_gather");
  machine_expect_launches("ranks_pack_pages");
  machine_expect("dead", run_prefill(&f), NSA_E_RANKS, "has ended");
  end_prefill(&f);
  begin_prefill(&f, NULL, NSA_COMM_CAPTURES);
  machine_record()->capturing = true;
  machine_expect("capture", run_prefill(&f), NSA_OK, NULL);
  machine_record()->capturing = false;
  end_prefill(&f);
}

static void test_prefill_lengths(void **state) {
  prefill f;
  begin_prefill(&f, "runtime.check_inputs=full", 0);
  f.w.seen.moves = true;
  machine_expect("alike", run_prefill(&f), NSA_OK, NULL);
  assert_int_equal(f.w.seen.gathers, 3); /* lengths, K and V */
  f.w.seen.differs = 7;
  machine_expect("others", run_prefill(&f), NSA_E_RANKS,
                 "batch.kv_len[1] is 27 on rank 0 and 20 on rank 1");
  assert_int_equal(machine_record()->launches, 0);
  end_prefill(&f);
}

/* What the pages of all ranks and the tables take, up to the alignment of four buffers. */
static void test_prefill_workspace(void **state) {
  prefill f;
  begin_prefill(&f, NULL, 0);
  const nsai_workspace *w = &f.plan->workspace;
  const int64_t pages = RANKS * SEQS * 2, pieces = 2 * SEQS; /* max_pieces by default */
  assert_int_equal(w->pages.pool[0].bytes, pages * PAGE * KV_HEADS * DK * 2);
  assert_int_equal(w->pages.pool[1].bytes, pages * PAGE * KV_HEADS * DV * 2);
  assert_int_equal(w->pages.pool[2].bytes, 0);
  assert_int_equal(w->pages.tables.bytes, pieces * (2 * 4 + 2) * 4);
  assert_int_equal(w->pages.uploaded.bytes, (3 * pieces + 1) * 4);
  for (int i = 0; i < 2; i++)
    assert_true(w->pages.pool[i].offset + w->pages.pool[i].bytes <= w->total);
  end_prefill(&f);
}

/* Numbers of pages are 32 bits. */
static void test_prefill_refused(void **state) {
  nsa_plan *plan = NULL;
  machine m;
  machine_init(&m, &(machine_request){ .gpu = true });
  const nsa_problem p =
      INIT(nsa_problem, .op = NSA_OP_PREFILL, .max_tokens = TOKENS, .max_kv_len = 1 << 30,
           .max_seqs = 64, .page_size = PAGE, .ranks = RANKS);
  machine_expect("plan", nsa_plan_create(m.ctx, &p, NULL, NULL, &plan), NSA_E_UNSUPPORTED,
                 "whose numbers exceed 32 bits");
  assert_null(plan);
  machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_order),
    cmocka_unit_test(test_tables),
    cmocka_unit_test(test_tables_of_products),
    cmocka_unit_test(test_tables_of_rankings),
    cmocka_unit_test(test_rank),
    cmocka_unit_test(test_workspace),
    cmocka_unit_test(test_variants),
    cmocka_unit_test(test_captures),
    cmocka_unit_test(test_failures),
    cmocka_unit_test(test_full),
    cmocka_unit_test(test_lengths),
    cmocka_unit_test(test_prefill),
    cmocka_unit_test(test_prefill_failures),
    cmocka_unit_test(test_prefill_lengths),
    cmocka_unit_test(test_prefill_workspace),
    cmocka_unit_test(test_prefill_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
