/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The KV cache on the CPU device, through the public API: appended to in any steps and laid out in
 * any way, it gives the rows of one forward, bit for bit.
 */
#include "support/cmocka_all.h"

#include "kv_fixture.h"

#include <math.h>
#include <pthread.h>

/* ---- continuity ---- */

/* Steps of all sequences until each is at its end: each of at most `most` tokens, some of none. */
static void walk(kv_fixture *w, int32_t most, bool decode) {
  uint32_t random = 7;
  for (bool more = true; more;) {
    int32_t q_len[KV_SEQS] = { 0 }, all = 0;
    more = false;
    for (int s = 0; s < w->seqs; s++) {
      random = random * 1664525u + 1013904223u; /* Numerical Recipes' generator */
      int32_t rest = kv_length(w, s) - w->len[s];
      q_len[s] = (int32_t)(random >> 8) % (most + 1);
      if (q_len[s] > rest) q_len[s] = rest;
      all += q_len[s];
      more = more || q_len[s] < rest;
    }
    if (all) kv_step(w, q_len, decode);
  }
}

static void walk_options(const machine_request *model, const kv_options *options) {
  static const int32_t lengths[] = { 131, 70, 5, 33 };
  kv_fixture w;
  kv_init(&w, model, options, 4, lengths);
  kv_oracle(&w);
  walk(&w, KV_CHUNK, false);
  /* Rejects half and decodes it again; a ring has lost what precedes, but for the beginning. */
  for (int s = 0; s < 4; s++) w.len[s] = options->ring ? 0 : kv_length(&w, s) / 2;
  walk(&w, KV_STEP, true);
  kv_free(&w);
}

/* Every layout, with three pairs and rings as well as with one pair. */
static void test_memory_layouts(void **state) {
  for (size_t i = 0; i < KV_PAGE_SIZES; i++)
    for (int bits = 0; bits < 16; bits++) {
      kv_options options = { .page_size = kv_page_sizes[i],
                             .hnd = bits & 1,
                             .lists = bits & 2,
                             .ring = bits & 4,
                             .slots = bits & 8 };
      bool paged = kv_page_sizes[i] > 0;
      if ((options.lists && !paged) || (options.slots && paged && !options.ring)) continue;
      walk_options(&(machine_request){ .per_branch = true }, &options);
      if (!options.ring) walk_options(&(machine_request){ 0 }, &options);
    }
}

static void test_kinds(void **state) {
  static const kv_options options = { .page_size = 16, .hnd = true };
  walk_options(&(machine_request){ .phi = NSAI_PHI_LINEAR }, &options);
  walk_options(&(machine_request){ .phi = NSAI_PHI_MLP, .per_branch = true }, &options);
  walk_options(&(machine_request){ .gate = NSAI_GATE_LOGITS }, &options);
  walk_options(&(machine_request){ .gate = NSAI_GATE_NONE }, &options);
  for (nsai_phi_kind phi = NSAI_PHI_MEAN; phi < NSAI_PHI_EXTERNAL; phi++)
    walk_options(&(machine_request){ .phi = phi, .keys_only = true }, &options);
}

/* Other models: blocks that do not overlap or hold several pages, groups of 1, 2 and 7 heads,
 * branches that are off, 16-bit types. */
static void test_models(void **state) {
  static const kv_options cases[] = {
    { .page_size = 16, .model = { "model.compress.block=16", "model.compress.stride=16" } },
    { .page_size = 16, .model = { "model.compress.block=48", "model.select.block=48" } },
    { .page_size = 32, .model = { "model.compress.block=4", "model.select.block=8" } },
    { .page_size = 64, .model = { "model.compress.stride=1", "model.window=1" } },
    { .page_size = 16, .model = { "model.heads=2", "model.select.init=0" } },
    { .page_size = 16, .model = { "model.heads=14", "model.kv_heads=2", "model.window=100" } },
    { .page_size = 32, .model = { "model.select.count=0" } },
    { .page_size = 32, .model = { "model.window=0", "model.head_dim_v=32" } },
    { .page_size = 16, .hnd = true, .model = { "model.dtype=bf16" } },
    { .page_size = NSA_NONE, .model = { "model.dtype=fp16", "model.compress.stride=2" } },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    walk_options(&(machine_request){ 0 }, &cases[i]);
    walk_options(&(machine_request){ .per_branch = true }, &cases[i]);
  }
}

/* Blocks that an index chooses. */
static const machine_request indexed = {
  .phi = NSAI_PHI_NONE, .gate = NSAI_GATE_NONE, .pool = NSAI_POOL_MAX, .indexed = true
};

/* Index keys under every layout of the cache, beside codes, rings and 16 bits, in blocks that hold
 * several pages and in pages that hold several blocks. */
static void test_indexed(void **state) {
  static const char *const models[][3] = { { "model.window=20" },
                                           { "model.dtype=bf16", "model.window=0" },
                                           { "model.select.block=48", "model.gate=logits" },
                                           { "model.select.block=8", "model.select.local=1",
                                             "model.select.init=0" } };
  for (size_t i = 0; i < KV_PAGE_SIZES; i++)
    for (int bits = 0; bits < 32; bits++) {
      const bool paged = kv_page_sizes[i] > 0;
      machine_request model = indexed;
      kv_options options = { .page_size = kv_page_sizes[i],
                             .hnd = bits & 1,
                             .lists = (bits & 2) && paged,
                             .slots = (bits & 2) && !paged,
                             .ring = bits & 4 };
      model.per_branch = options.ring;
      if (options.ring && bits >> 3 == 1) continue; /* a ring belongs to a window */
      memcpy(options.model, models[bits >> 3], sizeof models[0]);
      walk_options(&model, &options);
    }
}

/* One prefill of `at` tokens, one of the rest, for every at; then that again, token by token. */
static void every_split(const machine_request *model) {
  static const int32_t length = 75;
  const kv_options options = { .page_size = 32 };
  kv_fixture w;
  kv_init(&w, model, &options, 1, &length);
  kv_oracle(&w);
  for (int32_t at = 0; at <= length; at++) {
    int32_t rest = length - at, one = 1;
    w.len[0] = 0;
    if (at) kv_step(&w, &at, false);
    if (rest) kv_step(&w, &rest, false);
    if (at % 8) continue;
    for (w.len[0] = at; w.len[0] < length;) kv_step(&w, &one, true);
  }
  kv_free(&w);
}

static void test_every_split(void **state) {
  every_split(&(machine_request){ .phi = *(nsai_phi_kind *)*state });
}

/* The selection by a pool and coarse keys, with compressed keys alone and without gates. */
static const machine_request normalized = {
  .gate = NSAI_GATE_NONE, .keys_only = true, .pool = NSAI_POOL_MAX, .normalized = true
};

static void test_every_split_indexed(void **state) { every_split(&indexed); }

static void test_every_split_normalized(void **state) {
  machine_request model = normalized;
  every_split(&model);
  model.pool = NSAI_POOL_SUM;
  model.keys_only = false;
  every_split(&model);
}

/* Coarse keys under every layout of the cache, of codes, in 16 bits, of blocks that hold pages. */
static void test_normalized(void **state) {
  for (size_t i = 0; i < KV_PAGE_SIZES; i++)
    for (int bits = 0; bits < 8; bits++) {
      const bool paged = kv_page_sizes[i] > 0;
      const kv_options options = { .page_size = kv_page_sizes[i],
                                   .hnd = bits & 1,
                                   .lists = (bits & 2) && paged,
                                   .slots = (bits & 2) && !paged,
                                   .ring = (bits & 5) == 5 };
      machine_request model = normalized;
      if (bits & 4) model = (machine_request){ .normalized = true, .per_branch = true };
      walk_options(&model, &options);
    }
  static const kv_options cases[] = {
    { .page_size = 16, .model = { "model.select.normalizer.block=48" } },
    { .page_size = 16, .model = { "model.select.normalizer.stride=16", "model.window=0" } },
    { .page_size = 32,
      .model = { "model.select.normalizer.block=2", "model.select.normalizer.stride=1" } },
    { .page_size = 16, .hnd = true, .model = { "model.dtype=bf16" } },
    { .page_size = NSA_NONE, .model = { "model.dtype=fp16" } },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) walk_options(&normalized, &cases[i]);
}

/* Prefill chunks and decode rows in one batch. */
static void mix(const machine_request *model) {
  static const int32_t lengths[] = { 100, 90, 60, 20 };
  static const int32_t first[] = { 0, 50, 0, 17 }, then[] = { 64, 1, 0, 1 },
                       last[] = { 36, 1, 60, 2 };
  const kv_options options = { .page_size = 64, .lists = true };
  kv_fixture w;
  kv_init(&w, model, &options, 4, lengths);
  kv_oracle(&w);
  kv_step(&w, first, false);
  kv_step(&w, then, false);
  kv_step(&w, last, false);
  kv_free(&w);
}

static void test_mixed(void **state) {
  mix(&(machine_request){ 0 });
  mix(&normalized);
}

/* ---- where everything lies: the rules of kv_cache.h, written down once more ---- */

static void expect_row(const nsa_tensor *cache, const int64_t at[2], const nsa_tensor *want,
                       int64_t row) {
  for (int64_t head = 0; head < cache->shape[2]; head++) {
    const float *got = toy_floats(cache) + at[0] * cache->stride[0] + at[1] * cache->stride[1] +
                       head * cache->stride[2];
    assert_memory_equal(got, toy_floats(want) + row * want->stride[0] + head * want->stride[1],
                        (size_t)cache->shape[3] * 4);
  }
}

static void expect_sequence(const kv_fixture *w, int32_t s) {
  const nsai_model *g = &w->model;
  const nsa_kv *all = &w->toy.io.kv;
  int64_t first = toy_ints(&w->toy.batch.cu_q)[s], size = w->options.page_size;
  int64_t block = toy_ints(&w->toy.batch.cu_cmp)[s], slot = w->options.slots ? KV_SEQS - s : s;
  for (int64_t t = 0; t < w->len[s]; t++) {
    int64_t ring[2] = { slot, t % KV_RING }, at[2] = { slot, t };
    if (size > 0) at[0] = w->page[s][t / size], at[1] = t % size;
    expect_row(&w->cache.k[0], at, &all->k[0], first + t);
    expect_row(&w->cache.v[1], at, &all->v[1], first + t);
    if (!w->options.ring) expect_row(&w->cache.k[2], at, &all->k[2], first + t);
    if (w->options.ring && t + KV_RING >= w->len[s])
      expect_row(&w->cache.v[2], ring, &all->v[2], first + t);
    if ((t + 1) % g->stride || t + 1 < g->block) continue; /* ends no block */
    at[1] /= g->stride;
    expect_row(&w->cache.k_cmp, at, &all->k_cmp, block);
    expect_row(&w->cache.v_cmp, at, &all->v_cmp, block++);
  }
}

static void test_places(void **state) {
  static const int32_t lengths[] = { 70, 33 };
  static const int32_t first[] = { 40, 30 }, then[] = { 30, 3 };
  for (size_t i = 0; i < KV_PAGE_SIZES; i++)
    for (int bits = 0; bits < 4; bits++) {
      kv_options options = { .page_size = kv_page_sizes[i], .hnd = bits & 1, .ring = bits & 2 };
      options.slots = options.ring || kv_page_sizes[i] < 0;
      kv_fixture w;
      kv_init(&w, &(machine_request){ .per_branch = true }, &options, 2, lengths);
      kv_oracle(&w);
      kv_step(&w, first, false);
      kv_step(&w, then, false);
      for (int32_t s = 0; s < 2; s++) expect_sequence(&w, s);
      kv_free(&w);
    }
}

/* ---- the rest of the API ---- */

/* The caller's own compressed keys: phi external, entries written by the rule of kv_cache.h. */
static void test_external(void **state) {
  static const int32_t length = 60;
  const kv_options options = { .page_size = 16 };
  const int32_t zero = 0;
  kv_fixture w, other;
  kv_call c, mean;
  kv_init(&w, &(machine_request){ .phi = NSAI_PHI_EXTERNAL, .per_branch = true }, &options, 1,
          &length);
  kv_init(&other, &(machine_request){ .per_branch = true }, &options, 1, &length);
  kv_oracle(&other); /* the same random tensors */
  kv_call_init(&mean, &other, &length, &zero);
  kv_append(&mean);
  w.cache.k_cmp = other.cache.k_cmp;
  w.cache.v_cmp = other.cache.v_cmp;
  w.want = other.want;
  kv_call_init(&c, &w, &length, &zero);
  assert_null(c.io.new_kv.k[0].data);
  kv_append(&c);
  kv_attend(&c, false);
  kv_compare(&c, "external");
  kv_call_free(&c);
  kv_call_free(&mean);
  kv_free(&w);
  kv_free(&other);
}

/* Without raw tokens and an index an append has nothing to write, and takes the batch of its decode. */
static void test_external_alone(void **state) {
  static const int32_t q_len[] = { 7, 3 }, at[] = { 0, 0 }, lengths[] = { 37, 20 };
  const kv_options options = { .page_size = 16,
                               .model = { "model.window=0", "model.select.count=0" } };
  int64_t slot[10];
  kv_fixture w;
  kv_call c;
  kv_init(&w, &(machine_request){ .phi = NSAI_PHI_EXTERNAL }, &options, 2, lengths);
  kv_call_init(&c, &w, q_len, at);
  assert_non_null(c.batch.cu_q.data);
  memset(slot, -1, sizeof slot);
  c.batch.slot_mapping =
      (nsa_tensor){ .data = slot, .ndim = 1, .dtype = NSA_I64, .shape = { 10 }, .stride = { 1 } };
  machine_expect("append", nsa_kv_append(w.append, &w.exec, &c.batch, &c.io), NSA_OK, NULL);
  machine_expect("decode", nsa_decode(w.decode, &w.exec, &c.batch, &c.io), NSA_OK, NULL);
  machine_expect("no batch", nsa_kv_append(w.append, &w.exec, NULL, &c.io), NSA_E_ARG,
                 "batch is NULL");
  kv_call_free(&c);
  kv_free(&w);
}

/* A caller's selection, single branches and the probe work over a cache as they do without one. */
static void test_other_inputs(void **state) {
  static const int32_t length = 60;
  const kv_options options = { .page_size = 16 };
  const int32_t zero = 0;
  kv_fixture w;
  kv_call c;
  kv_init(&w, &(machine_request){ 0 }, &options, 1, &length);
  kv_oracle(&w);
  kv_call_init(&c, &w, &length, &zero);
  kv_append(&c);
  w.exec.branches = 1u << NSA_SEL;
  c.io.o_branch[0] = c.io.o_branch[2] = c.io.lse[0] = c.io.lse[2] = (nsa_tensor){ 0 };
  kv_attend(&c, false);
  toy_same("selected", &c.io.o_branch[1], &w.want.o_branch[1], length);
  nsa_problem p = INIT(nsa_problem, .op = NSA_OP_PREFILL);
  p.max_tokens = p.max_kv_len = 64;
  p.page_size = 16;
  p.max_seqs = p.max_probe_rows = 1;
  p.selection = NSA_SELECT_BLOCKS;
  nsa_plan *plan = machine_plan(w.ctx, &p);
  nsa_io io = c.io;
  toy_outputs(&c.memory, &io, length);
  io.block_idx = w.want.block_idx;
  io.probe_rows = toy_tensor(&c.memory, NSA_I32, 1, 1, 0, 0);
  io.probe_importance = toy_tensor(&c.memory, NSA_F32, 3, 1, 2, 4);
  toy_ints(&io.probe_rows)[0] = 59;
  w.exec.branches = 0;
  machine_expect("blocks", nsa_prefill(plan, &w.exec, &c.batch, &io), NSA_OK, NULL);
  toy_same("blocks", &io.o, &w.want.o, length);
  double sum = 0; /* each of 3 heads shares 1 among blocks of two strides */
  for (int j = 0; j < 4; j++) sum += (double)toy_floats(&io.probe_importance)[j];
  assert_true(fabs(sum - 6) < 1e-5);
  nsa_plan_destroy(plan);
  kv_call_free(&c);
  kv_free(&w);
}

static void expect_bytes(const machine_request *model, int32_t page_size, bool ring,
                         uint64_t want) {
  char yaml[1024];
  uint64_t bytes = 0;
  machine_yaml(model, yaml, sizeof yaml);
  nsa_ctx *ctx = machine_context(yaml, NULL, false);
  nsa_problem p = INIT(nsa_problem, .op = NSA_OP_DECODE, .max_seqs = 1, .max_kv_len = 1001,
                       .page_size = page_size, .window_ring = ring);
  machine_expect("bytes", nsa_kv_page_bytes(ctx, &p, &bytes), NSA_OK, NULL);
  assert_int_equal(bytes, want);
  p.op = NSA_OP_FORWARD;
  p.page_size = p.window_ring = 0;
  p.max_tokens = 1;
  machine_expect("no cache", nsa_kv_page_bytes(ctx, &p, &bytes), NSA_E_ARG, "has no cache");
  machine_expect("NULL", nsa_kv_page_bytes(ctx, &p, NULL), NSA_E_ARG, "bytes is NULL");
  machine_expect("NULL", nsa_kv_page_bytes(NULL, &p, &bytes), NSA_E_ARG, NULL);
  nsa_destroy(ctx);
}

/* Rows of 2 heads, 24 + 16 numbers of 4 bytes; a row for each token and pair, and one for each
 * stride. */
static void test_page_bytes(void **state) {
  const machine_request shared = { 0 }, three = { .per_branch = true };
  expect_bytes(&shared, 64, false, (64 + 16) * 320);
  expect_bytes(&three, 64, false, (3 * 64 + 16) * 320);
  expect_bytes(&three, 16, true, (2 * 16 + 4) * 320);
  expect_bytes(&shared, NSA_NONE, false, (1001 + 251) * 320);
  /* Without compressed values an entry has 24 numbers. */
  const machine_request keys_only = { .keys_only = true };
  expect_bytes(&keys_only, 64, false, 64 * 320 + 16 * 192);
  expect_bytes(&keys_only, NSA_NONE, false, 1001 * 320 + 251 * 192);
  expect_bytes(&normalized, 64, false, 64 * 320 + (16 + 8) * 192);
  expect_bytes(&normalized, NSA_NONE, false, 1001 * 320 + (251 + 126) * 192);
  /* 40 numbers of an index key, once for all heads. */
  expect_bytes(&indexed, 64, false, 64 * (320 + 160));
  expect_bytes(&indexed, NSA_NONE, false, 1001 * (320 + 160));
}

/* ---- threads ---- */

#define THREADS 4

typedef struct reader {
  const kv_call *call;
  nsa_tensor o;
  nsa_status status;
} reader;

static void *read_cache(void *user) {
  reader *r = user;
  nsa_exec exec = r->call->fixture->exec;
  nsa_io io = r->call->io;
  exec.workspace = aligned_alloc(256, exec.workspace_bytes); /* each run in flight has its own */
  if (!exec.workspace) abort();
  io.o = r->o;
  for (int b = 0; b < NSA_BRANCHES; b++)
    io.o_branch[b] = io.lse[b] = (nsa_tensor){ 0 }; /* the call's own */
  io.block_idx = io.probe_rows = io.probe_importance = io.o_branch[0];
  for (int i = 0; i < 10 && r->status == NSA_OK; i++)
    r->status = nsa_decode(r->call->fixture->decode, &exec, &r->call->batch, &io);
  free(exec.workspace);
  return NULL;
}

/* Several threads run one plan over one cache. */
static void test_threads(void **state) {
  static const int32_t lengths[] = { 90, 33 }, rest[] = { 4, 3 };
  static const int32_t steps[][2] = { { 40, 30 }, { 40, 0 }, { 6, 0 } };
  const kv_options options = { .page_size = 16 };
  kv_fixture w;
  kv_call c;
  pthread_t threads[THREADS];
  reader readers[THREADS];
  kv_init(&w, &(machine_request){ 0 }, &options, 2, lengths);
  kv_oracle(&w);
  for (int i = 0; i < 3; i++) kv_step(&w, steps[i], i == 2);
  kv_call_init(&c, &w, rest, w.len);
  kv_append(&c);
  kv_attend(&c, true);
  kv_compare(&c, "alone");
  for (int i = 0; i < THREADS; i++) {
    const nsa_tensor *o = &c.io.o;
    nsa_tensor own = toy_tensor(&c.memory, NSA_F32, 3, o->shape[0], o->shape[1], o->shape[2]);
    readers[i] = (reader){ &c, own, NSA_OK };
  }
  /* They read the call, which is complete by now. */
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, read_cache, &readers[i]), 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(readers[i].status, NSA_OK);
    c.io.o = readers[i].o;
    kv_compare(&c, "beside others");
  }
  kv_call_free(&c);
  kv_free(&w);
}

int main(void) {
  static nsai_phi_kind mean = NSAI_PHI_MEAN, linear = NSAI_PHI_LINEAR, mlp = NSAI_PHI_MLP;
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_memory_layouts),
    cmocka_unit_test(test_kinds),
    cmocka_unit_test(test_models),
    cmocka_unit_test_prestate(test_every_split, &mean),
    cmocka_unit_test_prestate(test_every_split, &linear),
    cmocka_unit_test_prestate(test_every_split, &mlp),
    cmocka_unit_test(test_every_split_normalized),
    cmocka_unit_test(test_normalized),
    cmocka_unit_test(test_every_split_indexed),
    cmocka_unit_test(test_indexed),
    cmocka_unit_test(test_mixed),
    cmocka_unit_test(test_places),
    cmocka_unit_test(test_external),
    cmocka_unit_test(test_external_alone),
    cmocka_unit_test(test_other_inputs),
    cmocka_unit_test(test_page_bytes),
    cmocka_unit_test(test_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
