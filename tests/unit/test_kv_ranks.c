/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A cache whose raw pages lie on ranks, which are threads on the CPU device, beside a cache of one rank
 * that takes the same steps. In a decode step blocks, the compressed branch and the window have its bits,
 * the selected branch is equal to rounding, and all ranks have the same bits. In a prefill each rank's
 * rows have its bits. A page that a rank need not have is
 * gone: it is NaN, or another sequence's.
 */
#include "support/cmocka_all.h"

#include "kv_fixture.h"
#include "plan/context.h"
#include "ranks/shard.h"
#include "run/check_tensor.h"

#include <math.h>
#include <nsa/ranks.h>
#include <pthread.h>

#define MOST_RANKS 8
#define SEQS 4
static const int32_t lengths[SEQS] = { 144, 70, 5, 97 };

/* The ranks of a case, and one cache with all pages. */
typedef struct group {
  int32_t ranks;
  kv_fixture one;
  kv_fixture w[MOST_RANKS];
  nsa_comm *comms[MOST_RANKS];
} group;

/* What a rank's thread does; cmocka's assertions belong to the main one. */
typedef struct task {
  group *g;
  int32_t rank;
  kv_call *call;    /* NULL: nsa_comm_agree */
  nsa_shard *shard; /* NULL: of a decode */
  nsa_status status;
  char error[256];
} task;

static void *run_task(void *user) {
  task *t = user;
  kv_fixture *w = &t->g->w[t->rank];
  const nsa_plan *const plan = t->shard ? w->prefill : w->decode;
  nsa_exec exec = w->exec;
  exec.comm = t->g->comms[t->rank];
  if (t->shard) /* each has its own lengths */
    t->status = nsa_comm_agree(exec.comm, &plan, 1, t->shard, 0);
  else if (!t->call)
    t->status = nsa_comm_agree(exec.comm, &plan, 1, NULL, 0);
  if (t->call && !t->status)
    t->status = (t->shard ? nsa_prefill : nsa_decode)(plan, &exec, &t->call->batch, &t->call->io);
  if (t->status != NSA_OK) snprintf(t->error, sizeof t->error, "%s", nsa_last_error());
  return NULL;
}

/* Runs one call on every rank; `shard`: a prefill. */
static void run_tasks(group *g, kv_call *calls, nsa_shard *shard, task *tasks) {
  pthread_t threads[MOST_RANKS];
  for (int32_t r = 0; r < g->ranks; r++) {
    tasks[r] = (task){ .g = g, .rank = r, .call = calls ? &calls[r] : NULL, .shard = shard };
    assert_int_equal(pthread_create(&threads[r], NULL, run_task, &tasks[r]), 0);
  }
  for (int32_t r = 0; r < g->ranks; r++) assert_int_equal(pthread_join(threads[r], NULL), 0);
}

static void on_all_ranks(const char *what, group *g, kv_call *calls, nsa_shard *shard) {
  task tasks[MOST_RANKS];
  run_tasks(g, calls, shard, tasks);
  for (int32_t r = 0; r < g->ranks; r++)
    if (tasks[r].status) fail_msg("%s: rank %d: %s", what, r, tasks[r].error);
}

static void group_init(group *g, const machine_request *model, const kv_options *options) {
  kv_options whole = *options;
  memset(g, 0, sizeof *g);
  g->ranks = options->ranks;
  whole.ranks = whole.unit_tokens = whole.decode_selection = 0;
  kv_init(&g->one, model, &whole, SEQS, lengths);
  for (int32_t r = 0; r < g->ranks; r++) {
    kv_options mine = *options;
    mine.rank = r;
    kv_init(&g->w[r], model, &mine, SEQS, lengths);
  }
  machine_expect("loopback", nsa_comm_loopback(g->w[0].ctx, g->ranks, NULL, g->comms), NSA_OK,
                 NULL);
  on_all_ranks("agree", g, NULL, NULL);
}

static void group_free(group *g) {
  for (int32_t r = 0; r < g->ranks; r++) nsa_comm_destroy(g->comms[r]);
  for (int32_t r = 0; r < g->ranks; r++) kv_free(&g->w[r]);
  kv_free(&g->one);
}

/* ---- comparing ---- */

/* A tensor beside that of one rank: the same bits, or equal to rounding. */
static void compare(const char *what, const nsa_tensor *got, const nsa_tensor *want,
                    double tolerance) {
  if (!got->data) return;
  if (tolerance == 0) toy_same(what, got, want, got->shape[0]);
  for (int64_t row = 0; tolerance > 0 && row < got->shape[0]; row++)
    for (int64_t e = 0; e < got->stride[0]; e++) {
      const double x = toy_at(got, row, 0, e), y = toy_at(want, row, 0, e);
      if (x == y) continue; /* both may be -inf, of a padded row */
      if (!(fabs(x - y) <= tolerance * (1 + fabs(y))))
        fail_msg("%s: row %d is %g, expected %g", what, (int)row, x, y);
    }
}

/* float32 partial results: 2^-24 of a sum, more of its logarithm. bf16 outputs may round otherwise. */
static double tolerance_of(const kv_fixture *w) { return w->model.dtype == NSA_F32 ? 2e-6 : 0.008; }

static void compare_rank(const kv_call *c, const nsa_io *want) {
  const double near = tolerance_of(c->fixture);
  const nsa_io *got = &c->io;
  compare("block_idx", &got->block_idx, &want->block_idx, 0);
  compare("index_lse", &got->index_lse, &want->index_lse, 0);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    compare("lse", &got->lse[b], &want->lse[b], b == NSA_SEL ? 2e-6 : 0);
    compare("o_branch", &got->o_branch[b], &want->o_branch[b], b == NSA_SEL ? near : 0);
  }
  compare("o", &got->o, &want->o, near);
}

/* ---- steps ---- */

/* One step of all sequences, on every rank; `decode`: with the queries of the new tokens. */
static void step(group *g, const int32_t *q_len, bool decode) {
  kv_call calls[MOST_RANKS], one;
  int32_t at[SEQS];
  for (int s = 0; s < SEQS; s++) at[s] = q_len[s] ? g->one.len[s] : -1;
  kv_call_init(&one, &g->one, q_len, at);
  kv_append(&one);
  if (decode) kv_attend(&one, true);
  for (int32_t r = 0; r < g->ranks; r++) {
    kv_call_init(&calls[r], &g->w[r], q_len, at);
    if (g->w[r].options.decode_selection) calls[r].io.block_idx = one.io.block_idx;
    kv_append(&calls[r]);
  }
  if (decode) on_all_ranks("decode", g, calls, NULL);
  for (int32_t r = 0; r < g->ranks && decode; r++) {
    compare_rank(&calls[r], &one.io);
    toy_same_outputs("ranks", &calls[0].io, &calls[r].io, calls[0].tokens);
  }
  for (int32_t r = 0; r < g->ranks; r++) kv_call_free(&calls[r]);
  for (int s = 0; s < SEQS; s++) g->one.len[s] += q_len[s];
  kv_call_free(&one);
}

/* ---- prefills ---- */

/* The rows of a rank's pieces of a tensor that has those of all new tokens. */
static nsa_tensor rows_of(toy *memory, const nsa_tensor *all, const nsa_shard *shard,
                          int32_t rank) {
  const int64_t row = all->stride[0] * nsai_dtype_bytes(all->dtype);
  if (!all->data) return *all;
  nsa_tensor out = toy_tensor(memory, all->dtype, all->ndim, shard->rank_tokens[rank],
                              all->shape[1], all->ndim > 2 ? all->shape[2] : 0);
  char *to = out.data;
  for (int32_t i = shard->rank_begin[rank]; i < shard->rank_begin[rank + 1]; i++) {
    const nsa_piece *p = &shard->pieces[i];
    memcpy(to, (const char *)all->data + (shard->seq_begin[p->sequence] + p->begin) * row,
           (size_t)(p->length * row));
    to += p->length * row;
  }
  return out;
}

/* The rank's rows of all tensors of a call. */
static void take_rows(toy *memory, nsa_io *io, const nsa_shard *shard, int32_t rank) {
  nsa_tensor *const all[] = { &io->q,           &io->gate.value, &io->index_q,     &io->block_idx,
                              &io->index_lse,   &io->o,          &io->o_branch[0], &io->o_branch[1],
                              &io->o_branch[2], &io->lse[0],     &io->lse[1],      &io->lse[2] };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    *all[i] = rows_of(memory, all[i], shard, rank);
}

static nsa_shard *make_shard(const group *g, const int32_t *q_len, int64_t alignment) {
  int64_t new_tokens[SEQS];
  nsa_shard *shard = NULL;
  for (int s = 0; s < SEQS; s++) new_tokens[s] = q_len[s];
  const nsa_shard_options options = INIT(nsa_shard_options, .ranks = g->ranks, .num_seqs = SEQS,
                                         .lengths = new_tokens, .alignment = alignment);
  machine_expect("shard", nsa_shard_create(g->w[0].ctx, &options, &shard), NSA_OK, NULL);
  return shard;
}

/* The bits of one rank, row by row. */
static void same_rows(const kv_call *c, const nsa_io *want) {
  const nsa_io *got = &c->io;
  compare("block_idx", &got->block_idx, &want->block_idx, 0);
  compare("index_lse", &got->index_lse, &want->index_lse, 0);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    compare("lse", &got->lse[b], &want->lse[b], 0);
    compare("o_branch", &got->o_branch[b], &want->o_branch[b], 0);
  }
  compare("o", &got->o, &want->o, 0);
}

/* Outputs that no rank has written are found. */
static void poison(nsa_io *io) {
  nsa_tensor *const all[] = { &io->block_idx, &io->o, &io->lse[0], &io->lse[1], &io->lse[2] };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]->data)
      memset(all[i]->data, 0xff,
             (size_t)(all[i]->shape[0] * all[i]->stride[0] * nsai_dtype_bytes(all[i]->dtype)));
}

/* The new tokens of a call: one rank computes them, and all ranks theirs. */
static void prefill(group *g, const int32_t *q_len, int64_t alignment) {
  kv_call calls[MOST_RANKS], one;
  int32_t at[SEQS];
  nsa_shard *shard = make_shard(g, q_len, alignment);
  for (int s = 0; s < SEQS; s++) at[s] = q_len[s] || g->one.len[s] ? g->one.len[s] : -1;
  kv_call_init(&one, &g->one, q_len, at);
  kv_append(&one);
  kv_attend(&one, false);
  for (int32_t r = 0; r < g->ranks; r++) {
    kv_call_init(&calls[r], &g->w[r], q_len, at);
    kv_append(&calls[r]);
    calls[r].batch.cu_q = (nsa_tensor){ 0 };
    calls[r].batch.shard = shard;
    take_rows(&calls[r].memory, &calls[r].io, shard, r);
    poison(&calls[r].io);
  }
  on_all_ranks("prefill", g, calls, shard);
  for (int32_t r = 0; r < g->ranks; r++) {
    nsa_io want = one.io;
    take_rows(&calls[r].memory, &want, shard, r);
    same_rows(&calls[r], &want);
    kv_call_free(&calls[r]);
  }
  for (int s = 0; s < SEQS; s++) g->one.len[s] += q_len[s];
  kv_call_free(&one);
  nsa_shard_destroy(shard);
}

/* Steps of at most `most` tokens of a sequence until every one is at its end. Every third step is a draft
 * of which a part is rejected. */
static void walk(group *g, int32_t most, bool decode) {
  uint32_t random = 11;
  for (int count = 0;; count++) {
    int32_t q_len[SEQS], all = 0;
    for (int s = 0; s < SEQS; s++) {
      random = random * 1664525u + 1013904223u; /* Numerical Recipes' generator */
      const int32_t rest = kv_length(&g->one, s) - g->one.len[s];
      q_len[s] = (int32_t)(random >> 8) % (most + 1);
      if (q_len[s] > rest || count > 100) q_len[s] = rest < most ? rest : most;
      all += rest;
    }
    if (!all) return;
    step(g, q_len, decode);
    for (int s = 0; s < SEQS && decode && count % 3 == 2; s++) g->one.len[s] -= q_len[s] / 2;
  }
}

/* A prompt in three chunks, of which one has no token of some sequences, then decode steps. Rings have
 * chunks of at most KV_CHUNK tokens. */
static void run_prompt(const machine_request *model, const kv_options *options) {
  static const int32_t chunks[][SEQS] = { { 40, 33, 2, 0 }, { 40, 0, 1, 40 }, { 37, 9, 0, 3 } };
  group g;
  group_init(&g, model, options);
  const int64_t unit = g.one.model.phi == NSAI_PHI_NONE ? 1 : g.one.model.stride;
  for (int i = 0; i < 3; i++) {
    prefill(&g, chunks[i], i == 1 ? 0 : unit);
    if (i == 1) g.one.len[0] -= 7; /* a draft, rejected in part */
  }
  walk(&g, KV_STEP, true);
  group_free(&g);
}

/* A prompt by appends alone, then decode steps. */
static void run_case(const machine_request *model, const kv_options *options) {
  static const int32_t prompt[] = { 80, 33, 2, 40 };
  group g;
  group_init(&g, model, options);
  if (options->ring) {
    step(&g, (const int32_t[]){ 40, 33, 2, 40 }, false);
    step(&g, (const int32_t[]){ 40, 0, 0, 1 }, false);
  } else {
    step(&g, prompt, false);
  }
  walk(&g, KV_STEP, true);
  group_free(&g);
}

static void test_layouts(void **state) {
  for (int32_t ranks = 1; ranks <= 5; ranks += ranks < 3 ? 1 : 2)
    for (int bits = 0; bits < 8; bits++) {
      const kv_options options = { .page_size = bits & 1 ? 32 : 16,
                                   .hnd = bits & 1,
                                   .ring = bits & 2,
                                   .slots = bits & 2,
                                   .ranks = ranks,
                                   .unit_tokens = bits & 4   ? 32
                                                  : bits & 1 ? 64
                                                             : 16 };
      run_case(&(machine_request){ .per_branch = true }, &options);
      if (!options.ring) run_case(&(machine_request){ 0 }, &options);
    }
}

static void test_prompts(void **state) {
  for (int bits = 0; bits < 8; bits++)
    for (int turn = 0; turn < 2; turn++) {
      const kv_options options = { .page_size = bits & 1 ? 32 : 16,
                                   .hnd = bits & 1,
                                   .ring = bits & 2,
                                   .slots = bits & 2,
                                   .ranks = turn ? MOST_RANKS - bits : 1 + bits,
                                   .unit_tokens = bits & 4   ? 32
                                                  : bits & 1 ? 64
                                                             : 16 };
      run_prompt(&(machine_request){ .per_branch = turn || options.ring }, &options);
    }
}

static void test_kinds(void **state) {
  static const kv_options options = { .page_size = 16, .ranks = 3, .unit_tokens = 16 };
  static const kv_options codes = { .page_size = 16,
                                    .ranks = 2,
                                    .unit_tokens = 16,
                                    .kv_codes = true,
                                    .cmp_codes = true,
                                    .head_scales = true,
                                    .model = { "model.head_dim_qk=32" } };
  run_prompt(&(machine_request){ .phi = NSAI_PHI_MLP, .per_branch = true }, &options);
  run_prompt(&(machine_request){ .pool = NSAI_POOL_MAX, .normalized = true }, &options);
  run_prompt(&kv_indexed, &options);
  run_prompt(&(machine_request){ 0 }, &codes);
  kv_options blocks = options;
  blocks.decode_selection = NSA_SELECT_BLOCKS;
  run_case(&(machine_request){ .phi = NSAI_PHI_LINEAR }, &options);
  run_case(&(machine_request){ .phi = NSAI_PHI_MLP, .per_branch = true }, &options);
  run_case(&(machine_request){ .phi = NSAI_PHI_MEAN, .keys_only = true }, &options);
  run_case(&(machine_request){ .pool = NSAI_POOL_MAX, .normalized = true }, &options);
  run_case(&kv_indexed, &options);
  run_case(&(machine_request){ .gate = NSAI_GATE_NONE }, &options);
  run_case(&(machine_request){ 0 }, &codes);
  run_case(&(machine_request){ 0 }, &blocks);
}

static void test_models(void **state) {
  static const kv_options cases[] = {
    { .page_size = 16,
      .ranks = 2,
      .unit_tokens = 48,
      .model = { "model.compress.block=48", "model.select.block=48" } },
    { .page_size = 32, .ranks = 2, .unit_tokens = 32, .model = { "model.select.count=0" } },
    { .page_size = 16, .ranks = 2, .unit_tokens = 16, .model = { "model.window=0" } },
    { .page_size = 16, .ranks = 3, .unit_tokens = 16, .model = { "model.dtype=bf16" } },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    run_case(&(machine_request){ 0 }, &cases[i]), run_prompt(&(machine_request){ 0 }, &cases[i]);
}

static const kv_options quiet = {
  .page_size = 16, .ranks = 2, .unit_tokens = 16, .model = { "runtime.log_level=off" }
};

static void expect_disagreement(group *g, const char *what) {
  task tasks[2];
  run_tasks(g, NULL, NULL, tasks);
  for (int32_t r = 0; r < 2; r++) {
    assert_int_equal(tasks[r].status, NSA_E_RANKS);
    if (!strstr(tasks[r].error, what)) fail_msg("%s", tasks[r].error);
  }
}

/* Ranks that divide tokens otherwise would each leave out what the other does, and one that compares lengths
 * would wait for the other. */
static void test_agreement(void **state) {
  const nsa_problem other =
      INIT(nsa_problem, .op = NSA_OP_DECODE, .page_size = 16, .max_seqs = KV_SEQS,
           .max_tokens = KV_MAX_TOKENS, .max_kv_len = KV_MAX_LEN, .max_q_len = KV_STEP, .ranks = 2,
           .unit_tokens = 32);
  group g;
  group_init(&g, &(machine_request){ 0 }, &quiet);
  g.w[1].ctx->config->runtime.check_inputs = NSAI_CHECK_FULL;
  expect_disagreement(&g,
                      "whether runtime.check_inputs is full of plan 0 (rank 0 has 0, rank 1 1)");
  g.w[1].ctx->config->runtime.check_inputs = NSAI_CHECK_BASIC;
  nsa_plan_destroy(g.w[1].decode);
  g.w[1].decode = machine_plan(g.w[1].ctx, &other);
  expect_disagreement(&g, "problem.unit_tokens");
  group_free(&g);
}

/* All ranks fail, one of them by what it has compared. Others may hear that the communicator has ended. */
static void expect_lengths(const task tasks[2], const char *what) {
  int named = 0;
  for (int32_t r = 0; r < 2; r++) {
    const bool names = strstr(tasks[r].error, what) != NULL;
    assert_int_equal(tasks[r].status, NSA_E_RANKS);
    if (!names && !strstr(tasks[r].error, "ended")) fail_msg("%s", tasks[r].error);
    named += names;
  }
  assert_true(named > 0);
}

/* Lengths of which the ranks have different ones end the communicator. */
static void test_lengths(void **state) {
  static const int32_t q_len[SEQS] = { 40, 20, 5, 0 }, at[SEQS] = { 0, 0, 0, -1 };
  kv_call calls[2];
  task tasks[2];
  group g;
  group_init(&g, &(machine_request){ 0 }, &quiet);
  nsa_shard *shard = make_shard(&g, q_len, 4);
  for (int32_t r = 0; r < 2; r++) {
    kv_call_init(&calls[r], &g.w[r], q_len, at);
    kv_append(&calls[r]);
    calls[r].batch.cu_q = (nsa_tensor){ 0 };
    calls[r].batch.shard = shard;
    take_rows(&calls[r].memory, &calls[r].io, shard, r);
  }
  toy_ints(&calls[1].batch.kv_len)[1] = 19;
  run_tasks(&g, calls, shard, tasks);
  expect_lengths(tasks, "batch.kv_len[1] is 20 on rank 0 and 19 on rank 1");
  for (int32_t r = 0; r < 2; r++) kv_call_free(&calls[r]);
  nsa_shard_destroy(shard);
  group_free(&g);
}

/* `change`: what rank 1 has otherwise. */
static void expect_other_step(void (*change)(kv_call calls[2]), const char *what) {
  static const int32_t q_len[SEQS] = { 2, 1, 1, 0 }, at[SEQS] = { 0, 0, 0, -1 };
  kv_call calls[2];
  task tasks[2];
  group g;
  group_init(&g, &(machine_request){ 0 }, &quiet);
  for (int32_t r = 0; r < 2; r++) {
    kv_call_init(&calls[r], &g.w[r], q_len, at);
    kv_append(&calls[r]);
  }
  run_tasks(&g, NULL, NULL, tasks);
  run_tasks(&g, calls, NULL, tasks);
  for (int32_t r = 0; r < 2; r++) assert_int_equal(tasks[r].status, NSA_OK);
  change(calls);
  run_tasks(&g, calls, NULL, tasks);
  expect_lengths(tasks, what);
  for (int32_t r = 0; r < 2; r++) kv_call_free(&calls[r]);
  group_free(&g);
}

static void shorten(kv_call calls[2]) {
  toy_ints(&calls[1].batch.kv_len)[0] = 1;
  toy_ints(&calls[1].batch.cu_q)[1] = 1;
}

/* The same tokens and lengths, but a token of another sequence. */
static void share_out_otherwise(kv_call calls[2]) {
  for (int32_t r = 0; r < 2; r++) toy_ints(&calls[r].batch.kv_len)[1] = 2;
  toy_ints(&calls[1].batch.cu_q)[1] = 1;
}

static void test_lengths_of_steps(void **state) {
  expect_other_step(shorten, "batch.kv_len[0] is 2 on rank 0 and 1 on rank 1");
  expect_other_step(share_out_otherwise, "batch.cu_q[1] is 2 on rank 0 and 1 on rank 1");
}

/* What a prefill needs beside a decode's arguments; nothing of it reaches another rank. */
static void test_refused(void **state) {
  static const kv_options options = { .page_size = 16, .ranks = 2, .unit_tokens = 16 };
  static const int32_t q_len[SEQS] = { 40, 20, 5, 0 }, at[SEQS] = { 0, 0, 0, -1 };
  kv_call c;
  group g;
  group_init(&g, &(machine_request){ 0 }, &options);
  nsa_shard *shard = make_shard(&g, q_len, 4);
  nsa_exec exec = g.w[0].exec;
  kv_call_init(&c, &g.w[0], q_len, at);
  kv_append(&c);
  const nsa_tensor cu_q = c.batch.cu_q;
  const nsa_plan *plan = g.w[0].prefill;
#define REFUSED(text)                                                                              \
  machine_expect(text, nsa_prefill(plan, &exec, &c.batch, &c.io), NSA_E_ARG, text)
  REFUSED("exec.comm is missing");
  exec.comm = g.comms[0];
  REFUSED("batch.shard is missing: a prefill over 2 ranks");
  c.batch.shard = shard;
  REFUSED("batch.cu_q is given, but over ranks batch.shard");
  c.batch.cu_q = (nsa_tensor){ 0 };
  REFUSED("io.q has 65 tokens, batch.shard gives rank 0");
  take_rows(&c.memory, &c.io, shard, 0);
  c.batch.num_seqs = 3;
  REFUSED("batch.num_seqs is 3, batch.shard has 4 sequences");
  c.batch.num_seqs = 0;
  REFUSED("the ranks have not agreed upon");
#undef REFUSED
  assert_non_null(cu_q.data);
  kv_call_free(&c);
  nsa_shard_destroy(shard);
  group_free(&g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_layouts),          cmocka_unit_test(test_kinds),
    cmocka_unit_test(test_models),           cmocka_unit_test(test_agreement),
    cmocka_unit_test(test_prompts),          cmocka_unit_test(test_lengths),
    cmocka_unit_test(test_lengths_of_steps), cmocka_unit_test(test_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
