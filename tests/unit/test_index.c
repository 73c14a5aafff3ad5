/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The selection by an index branch, on the CPU device, against the formulas of docs/algorithm.md
 * written down once more: plain loops over one sequence in double, which share nothing with the
 * library. Over a cache: here drafts, and test_kv_cache.c, test_kv_pages.c.
 */
#include "support/cmocka_all.h"

#include "kv_fixture.h"
#include "reference/reference.h"

#include <math.h>

#define MAX_BLOCKS 64

/* ---- the formulas ---- */

/* One sequence of a packed batch: its rows in the tensors, and its lengths. */
typedef struct plain {
  const nsai_model *g;
  const nsa_io *io;
  int64_t first_q, first_kv, q_len, kv_len;
} plain;

/* I[t, head, j] of row `row`, which stands at t. */
static double block_score(const plain *x, int64_t row, int64_t t, int64_t head, int64_t j) {
  const nsai_model *g = x->g;
  double largest = -INFINITY;
  for (int64_t p = j * g->select_block; p < (j + 1) * g->select_block && p <= t; p++) {
    double score = 0;
    for (int64_t e = 0; e < g->index_dim; e++)
      score += toy_at(&x->io->index_q, x->first_q + row, head, e) *
               toy_at(&x->io->k_idx, x->first_kv + p, 0, e);
    largest = fmax(largest, score / sqrt(g->index_dim)); /* not NaN, where the other is a number */
  }
  return largest;
}

/* Marks the chosen ones of the blocks up to t: forced ones, then the best one of the others, again and
 * again, each time the first of equal ones. */
static void choose(const nsai_model *g, int64_t t, const double *score, bool *taken) {
  const int64_t blocks = t / g->select_block + 1;
  int64_t count = 0;
  for (int64_t j = 0; j < blocks; j++) {
    taken[j] = j < g->select_init || j + g->select_local >= blocks;
    count += taken[j];
  }
  for (; count < g->select_count && count < blocks; count++) {
    int64_t best = -1;
    for (int64_t j = 0; j < blocks; j++)
      if (!taken[j] && (best < 0 || score[j] > score[best])) best = j;
    taken[best] = true;
  }
}

/* Attention of one row over the tokens up to t of the chosen blocks, or of the last `window`. */
static void attend(const plain *x, int64_t row, int64_t t, int64_t h, const bool *blocks, int pair,
                   double *out) {
  const nsai_model *g = x->g;
  const nsa_tensor *k = &x->io->kv.k[pair], *v = &x->io->kv.v[pair];
  const int64_t head = h / (g->heads / g->kv_heads);
  double largest = -INFINITY, total = 0;
  for (int64_t e = 0; e < g->head_dim_v; e++) out[e] = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int64_t p = 0; p <= t; p++) {
      if (blocks ? !blocks[p / g->select_block] : p <= t - g->window) continue;
      double s = 0;
      for (int64_t e = 0; e < g->head_dim_qk; e++)
        s += toy_at(&x->io->q, x->first_q + row, h, e) * toy_at(k, x->first_kv + p, head, e);
      s /= sqrt(g->head_dim_qk);
      if (!pass) {
        largest = fmax(largest, s);
        continue;
      }
      total += exp(s - largest);
      for (int64_t e = 0; e < g->head_dim_v; e++)
        out[e] += exp(s - largest) * toy_at(v, x->first_kv + p, head, e);
    }
  for (int64_t e = 0; e < g->head_dim_v; e++) out[e] /= total;
}

/* ---- comparing ---- */

static void compare_output(const plain *x, int64_t row, int64_t t, int64_t h, const bool *taken) {
  const nsai_model *g = x->g;
  double selected[64], window[64] = { 0 };
  assert_true(g->head_dim_v <= 64 && g->gate == NSAI_GATE_NONE);
  attend(x, row, t, h, taken, g->per_branch ? NSA_SEL : 0, selected);
  if (g->window) attend(x, row, t, h, NULL, g->per_branch ? NSA_WIN : 0, window);
  for (int64_t e = 0; e < g->head_dim_v; e++) {
    const double want = selected[e] + window[e], got = toy_at(&x->io->o, x->first_q + row, h, e);
    const double bound = g->dtype == NSA_BF16 ? 4e-3 : 1e-5;
    if (!(fabs(got - want) <= bound * (1 + fabs(want))))
      fail_msg("o of row %d, head %d: %g, expected %g", (int)row, (int)h, got, want);
  }
}

/* The list of a row exactly, its probed scores closely. */
static void compare_row(const plain *x, int64_t row, int64_t head) {
  const nsai_model *g = x->g;
  const int64_t t = x->kv_len - x->q_len + row, group = g->heads / g->kv_heads;
  const int64_t blocks = t < 0 ? 0 : t / g->select_block + 1;
  const nsa_tensor *list = &x->io->block_idx, *probe = &x->io->probe_importance;
  const int32_t *idx =
      toy_ints(list) + (x->first_q + row) * list->stride[0] + head * list->stride[1];
  double score[MAX_BLOCKS];
  bool taken[MAX_BLOCKS];
  int64_t count = 0;
  assert_true(blocks <= MAX_BLOCKS);
  for (int64_t j = 0; j < blocks; j++) score[j] = block_score(x, row, t, head, j);
  if (t >= 0) choose(g, t, score, taken);
  for (int64_t j = 0; probe->data && j < probe->shape[2]; j++) {
    const double want = j < blocks ? score[j] : 0, got = toy_at(probe, x->first_q + row, head, j);
    if (!(got == want || fabs(got - want) <= 1e-5 * fabs(want) + 1e-6))
      fail_msg("score of row %d, head %d, block %d: %g, expected %g", (int)row, (int)head, (int)j,
               got, want);
  }
  for (int64_t j = 0; j < blocks; j++) {
    if (!taken[j]) continue;
    if (count == g->select_count || idx[count] != j)
      fail_msg("row %d, head %d of %d tokens: block %d is not chosen", (int)row, (int)head,
               (int)x->kv_len, (int)j);
    count++;
  }
  for (; count < g->select_count; count++) assert_int_equal(idx[count], -1);
  for (int64_t h = head * group; t >= 0 && h < (head + 1) * group; h++)
    compare_output(x, row, t, h, taken);
}

static void compare(const toy *t) {
  const int32_t *q = toy_ints(&t->batch.cu_q), *kv = toy_ints(&t->batch.cu_kv);
  for (int s = 0; s < t->batch.num_seqs; s++) {
    const plain x = { &t->model, &t->io, q[s], kv[s], q[s + 1] - q[s], kv[s + 1] - kv[s] };
    for (int64_t row = 0; row < x.q_len; row++)
      for (int64_t head = 0; head < t->model.kv_heads; head++) compare_row(&x, row, head);
  }
}

/* Every row is probed. */
static void add_probe(toy *t) {
  const int64_t blocks = nsai_select_block_count(&t->model, t->kv_tokens) + 1;
  t->io.probe_rows = toy_tensor(t, NSA_I32, 1, t->tokens, 0, 0);
  t->io.probe_importance = toy_tensor(t, NSA_F32, 3, t->tokens, t->model.kv_heads, blocks);
  for (int32_t i = 0; i < t->tokens; i++) toy_ints(&t->io.probe_rows)[i] = i;
}

static void run(toy *t) {
  assert_int_equal(nsai_reference_forward(&t->model, NSA_SELECT_TOPN, 0, &t->batch, &t->io, 2),
                   NSA_OK);
}

/* ---- models ---- */

static nsai_model indexed(void) {
  nsai_model g = toy_model(NSAI_PHI_NONE);
  g.by = NSAI_BY_INDEX;
  g.pool = NSAI_POOL_MAX;
  g.index_heads = g.kv_heads;
  g.index_dim = 24;
  g.gate = NSAI_GATE_NONE;
  g.window = 0;
  return g;
}

/* MiniMax-M3's with smaller sizes: 16 blocks, of which the current one is forced. */
static nsai_model like_m3(int32_t group) {
  nsai_model g = indexed();
  g.heads = g.kv_heads * group;
  g.head_dim_qk = g.head_dim_v = 16;
  g.select_block = 8, g.select_count = 16, g.select_init = 0, g.select_local = 1;
  return g;
}

static uint64_t state;
static int32_t draw(int32_t low, int32_t high) {
  state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
  return low + (int32_t)((state >> 33) % (uint64_t)(high - low + 1));
}

static nsai_model random_model(void) {
  nsai_model g = indexed();
  g.kv_heads = g.index_heads = draw(1, 3);
  g.heads = g.kv_heads * draw(1, 5);
  g.head_dim_qk = 8 * draw(2, 4), g.head_dim_v = 8 * draw(2, 4);
  g.index_dim = 8 * draw(2, 9);
  g.select_block = draw(1, 3) == 1 ? draw(1, 5) : draw(6, 40);
  g.select_count = draw(1, 7);
  g.select_init = draw(0, g.select_count);
  g.select_local = draw(0, g.select_count - g.select_init);
  g.window = draw(0, 1) ? draw(1, 30) : 0;
  g.per_branch = draw(0, 1);
  g.dtype = draw(0, 1) ? NSA_BF16 : NSA_F32;
  return g;
}

/* Small whole numbers, so that many scores are equal. */
static void make_whole(const nsa_tensor *t) {
  for (int64_t i = 0; i < toy_count(t); i++) {
    const float value = (float)draw(-1, 1);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (t->dtype == NSA_BF16)
      ((uint16_t *)t->data)[i] = (uint16_t)(bits >> 16);
    else
      toy_floats(t)[i] = value;
  }
}

/* ---- tests ---- */

/* Batches of several sequences, some with rows before their start, empty, or with old tokens. */
static void test_random_models(void **unused) {
  state = 20261127;
  for (int i = 0; i < 60; i++) {
    const nsai_model g = random_model();
    int32_t kv_len[3], q_len[3];
    toy t;
    for (int s = 0; s < 3; s++) {
      kv_len[s] = draw(0, 3) ? draw(1, g.select_block < 6 ? 60 : 90) : draw(0, 2);
      q_len[s] = draw(0, 1) ? kv_len[s] : draw(0, kv_len[s] + 2);
    }
    toy_init(&t, &g, 3, q_len, kv_len);
    add_probe(&t);
    if (i % 3 == 0) {
      make_whole(&t.io.index_q);
      make_whole(&t.io.k_idx);
    }
    run(&t);
    compare(&t);
    toy_free(&t);
  }
}

/* Up to 14 to 18 blocks, of which 16 can be chosen, for groups of 4, 8 and 16 heads; each length ends
 * before, at or behind a block's edge, and every row of it is compared. */
static void test_block_edges(void **unused) {
  for (int32_t group = 4; group <= 16; group *= 2)
    for (int32_t len = 15 * 8 - 1; len <= 18 * 8 + 1; len += len % 8 == 1 ? 6 : 1) {
      const nsai_model g = like_m3(group);
      toy t;
      toy_init(&t, &g, 1, &len, &len);
      add_probe(&t);
      run(&t);
      const int32_t *last = toy_ints(&t.io.block_idx) + (len - 1) * t.io.block_idx.stride[0];
      const int32_t blocks = (len + 7) / 8;
      assert_int_equal(last[15], blocks < 16 ? -1 : blocks - 1);
      if (len % 8 == 0 || group == 4) compare(&t);
      toy_free(&t);
    }
}

/* Equal keys: all free places go to the first blocks. */
static void test_equal_keys(void **unused) {
  const nsai_model g = like_m3(4);
  const int32_t len = 20 * 8 + 3;
  toy t;
  toy_init(&t, &g, 1, &len, &len);
  for (int32_t p = 1; p < len; p++)
    memcpy(toy_floats(&t.io.k_idx) + p * g.index_dim, t.io.k_idx.data, (size_t)g.index_dim * 4);
  add_probe(&t);
  run(&t);
  compare(&t);
  for (int head = 0; head < 2; head++) {
    const int32_t *idx = toy_ints(&t.io.block_idx) + (len - 1) * t.io.block_idx.stride[0] +
                         head * t.io.block_idx.stride[1];
    for (int i = 0; i < 15; i++) assert_int_equal(idx[i], i);
    assert_int_equal(idx[15], 20);
  }
  toy_free(&t);
}

/* Only negative scores: the greatest of them, which no 0 stands before, not the smallest in size. */
static void test_negative_scores(void **unused) {
  const nsai_model g = like_m3(4);
  const int32_t len = 20 * 8 + 3;
  toy t;
  toy_init(&t, &g, 1, &len, &len);
  for (int64_t i = 0; i < toy_count(&t.io.index_q); i++)
    toy_floats(&t.io.index_q)[i] = -fabsf(toy_floats(&t.io.index_q)[i]);
  for (int64_t i = 0; i < toy_count(&t.io.k_idx); i++)
    toy_floats(&t.io.k_idx)[i] = fabsf(toy_floats(&t.io.k_idx)[i]);
  add_probe(&t);
  run(&t);
  compare(&t);
  for (int64_t j = 0; j <= 20; j++) assert_true(toy_at(&t.io.probe_importance, len - 1, 0, j) < 0);
  toy_free(&t);
}

/* A score that is NaN counts as -inf: a block of nothing else goes last. */
static void test_nan(void **unused) {
  const nsai_model g = like_m3(4);
  const int32_t len = 20 * 8 + 3;
  toy t;
  toy_init(&t, &g, 1, &len, &len);
  for (int32_t p = 0; p < 3 * 8; p++) /* all of blocks 0 to 2, and half of block 3 */
    toy_floats(&t.io.k_idx)[p * g.index_dim] = NAN;
  for (int32_t p = 3 * 8; p < 3 * 8 + 4; p++) toy_floats(&t.io.k_idx)[p * g.index_dim] = NAN;
  add_probe(&t);
  run(&t);
  compare(&t);
  for (int head = 0; head < 2; head++) {
    assert_true(toy_at(&t.io.probe_importance, len - 1, head, 0) == -INFINITY);
    assert_true(isfinite(toy_at(&t.io.probe_importance, len - 1, head, 3)));
    assert_true(toy_ints(&t.io.block_idx)[(len - 1) * 32 + head * 16] >= 3);
  }
  toy_free(&t);
}

/* Nothing at t depends on what stands behind t. */
static void test_future(void **unused) {
  const nsai_model g = like_m3(4);
  const int32_t len = 19 * 8 + 5, cut = 17 * 8 + 3;
  toy t, other;
  toy_init(&t, &g, 1, &len, &len);
  toy_init(&other, &g, 1, &len, &len);
  add_probe(&t);
  add_probe(&other);
  for (int64_t i = cut * g.index_dim; i < toy_count(&t.io.k_idx); i++)
    toy_floats(&other.io.k_idx)[i] = 1e3f * toy_floats(&t.io.k_idx)[i];
  for (int64_t i = cut * g.index_heads * g.index_dim; i < toy_count(&t.io.index_q); i++)
    toy_floats(&other.io.index_q)[i] = -toy_floats(&t.io.index_q)[i];
  run(&t);
  run(&other);
  toy_same_outputs("the rows before", &t.io, &other.io, cut);
  toy_same("their scores", &t.io.probe_importance, &other.io.probe_importance, cut);
  toy_free(&t);
  toy_free(&other);
}

/* The top-n alone, of the probed scores; and blocks that a caller brings, which need no index but for a
 * probe. */
static void test_stages(void **unused) {
  const machine_request request = {
    .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true, .max_probe_rows = 40
  };
  machine m, given;
  machine_init(&m, &request);
  toy *t = &m.toy;
  add_probe(t);
  machine_expect("forward", machine_forward(&m), NSA_OK, NULL);
  nsa_io io = t->io;
  io.importance = t->io.probe_importance;
  io.block_idx = toy_tensor(t, NSA_I32, 3, t->tokens, 2, 4);
  machine_expect("select", nsa_select(m.plan, &m.exec, &t->batch, &io), NSA_OK, NULL);
  toy_same("block_idx", &io.block_idx, &t->io.block_idx, t->tokens);
  machine_request blocks = request;
  blocks.selection = NSA_SELECT_BLOCKS;
  machine_init(&given, &blocks);
  nsa_io own = t->io;
  toy_outputs(&given.toy, &own, t->tokens);
  own.block_idx = t->io.block_idx;
  own.index_q = own.probe_rows = own.probe_importance = (nsa_tensor){ 0 };
  own.k_idx = (nsa_tensor){ 0 };
  machine_expect("given", nsa_forward(given.plan, &given.exec, &t->batch, &own), NSA_OK, NULL);
  toy_same("o", &own.o, &t->io.o, t->tokens);
  own.probe_rows = t->io.probe_rows;
  own.probe_importance = toy_tensor(t, NSA_F32, 3, t->tokens, 2, t->io.probe_importance.shape[2]);
  machine_expect("probe", nsa_forward(given.plan, &given.exec, &t->batch, &own), NSA_E_ARG,
                 "io.index_q is missing");
  own.index_q = t->io.index_q;
  own.k_idx = t->io.k_idx;
  machine_expect("probe", nsa_forward(given.plan, &given.exec, &t->batch, &own), NSA_OK, NULL);
  toy_same("probe", &own.probe_importance, &t->io.probe_importance, t->tokens);
  machine_free(&given);
  machine_free(&m);
}

/* Blocks are ranked for the selected branch, where it runs, for io.block_idx and for probes; no other call
 * needs the index. What it is given all the same has the form of what is used. */
static void test_what_ranks(void **unused) {
  const machine_request request = {
    .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true, .max_probe_rows = 40
  };
  machine m, given;
  machine_init(&m, &request);
  toy *t = &m.toy;
  const nsa_tensor index_q = t->io.index_q, k_idx = t->io.k_idx, idx = t->io.block_idx;
  nsa_io window = t->io;
  toy_outputs(t, &window, t->tokens);
  window.o_branch[NSA_SEL] = window.lse[NSA_SEL] = (nsa_tensor){ 0 };
  window.o_branch[NSA_CMP] = window.lse[NSA_CMP] = window.block_idx = (nsa_tensor){ 0 };
  m.exec.branches = 1u << NSA_WIN;
  machine_expect("with", nsa_forward(m.plan, &m.exec, &t->batch, &window), NSA_OK, NULL);
  window.index_q.shape[2]--;
  machine_expect("shape", nsa_forward(m.plan, &m.exec, &t->batch, &window), NSA_E_ARG,
                 "io.index_q has shape[2] = 39");
  window.index_q = window.k_idx = (nsa_tensor){ 0 };
  machine_expect("without", nsa_forward(m.plan, &m.exec, &t->batch, &window), NSA_OK, NULL);
  window.block_idx = idx;
  machine_expect("wanted", nsa_forward(m.plan, &m.exec, &t->batch, &window), NSA_E_ARG,
                 "io.index_q is missing");
  window.index_q = index_q;
  machine_expect("keys", nsa_forward(m.plan, &m.exec, &t->batch, &window), NSA_E_ARG,
                 "io.k_idx is missing");
  window.k_idx = k_idx;
  window.new_k_idx = k_idx;
  machine_expect("append's", nsa_forward(m.plan, &m.exec, &t->batch, &window), NSA_E_ARG,
                 "io.new_k_idx is given, but there is no cache that nsa_kv_append writes: leave");
  machine_free(&m);

  machine_request blocks = request;
  blocks.selection = NSA_SELECT_BLOCKS;
  machine_init(&given, &blocks);
  t = &given.toy;
  memset(t->io.block_idx.data, 0, (size_t)toy_count(&t->io.block_idx) * 4);
  machine_expect("blocks", machine_forward(&given), NSA_OK, NULL);
  t->io.index_q.dtype = NSA_I32;
  machine_expect("dtype", machine_forward(&given), NSA_E_ARG, "io.index_q has dtype i32");
  t->io.index_q = (nsa_tensor){ 0 };
  t->io.k_idx.shape[0]--;
  machine_expect("rows", machine_forward(&given), NSA_E_ARG, "io.k_idx has shape[0]");
  machine_free(&given);
}

/* A GPU launches nothing of an index for the window alone. */
static void test_window_of_a_gpu(void **unused) {
  const machine_request request = {
    .gpu = true, .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true
  };
  machine m;
  machine_init(&m, &request);
  nsa_io io = m.toy.io;
  for (int b = 0; b < NSA_BRANCHES; b++) io.o_branch[b] = io.lse[b] = (nsa_tensor){ 0 };
  io.index_q = io.k_idx = io.block_idx = (nsa_tensor){ 0 };
  machine_expect("all", nsa_forward(m.plan, &m.exec, &m.toy.batch, &io), NSA_E_ARG,
                 "io.index_q is missing");
  m.exec.branches = 1u << NSA_WIN;
  const int before = machine_record()->launches;
  machine_expect("window", nsa_forward(m.plan, &m.exec, &m.toy.batch, &io), NSA_OK, NULL);
  assert_int_equal(machine_record()->launches, before + 1);
  machine_free(&m);
}

/* NSA_OP_DENSE chooses no blocks. */
static void test_dense(void **unused) {
  const machine_request request = {
    .op = NSA_OP_DENSE, .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true
  };
  static const char *const names[] = { "io.index_q is given, but NSA_OP_DENSE reads every key",
                                       "io.k_idx is given, but NSA_OP_DENSE reads every key",
                                       "io.new_k_idx is given, but NSA_OP_DENSE reads every key" };
  machine m;
  machine_init(&m, &request);
  nsa_io io = NSA_IO_INIT;
  io.q = m.toy.io.q;
  io.o = m.toy.io.o;
  io.kv.k[0] = m.toy.io.kv.k[0];
  io.kv.v[0] = m.toy.io.kv.v[0];
  machine_expect("dense", nsa_dense(m.plan, &m.exec, &m.toy.batch, &io), NSA_OK, NULL);
  nsa_tensor *const all[] = { &io.index_q, &io.k_idx, &io.new_k_idx };
  for (int i = 0; i < 3; i++) {
    *all[i] = io.q;
    machine_expect(names[i], nsa_dense(m.plan, &m.exec, &m.toy.batch, &io), NSA_E_ARG, names[i]);
    *all[i] = (nsa_tensor){ 0 };
  }
  machine_free(&m);
}

/* Over a cache, too, the window alone ranks nothing. */
static void test_window_of_a_cache(void **unused) {
  static const int32_t lengths[] = { 40 }, news[] = { 39, 1 };
  const kv_options options = { .page_size = 16 };
  const machine_request request = {
    .phi = NSAI_PHI_NONE, .gate = NSAI_GATE_NONE, .pool = NSAI_POOL_MAX, .indexed = true
  };
  kv_fixture w;
  kv_call c;
  kv_init(&w, &request, &options, 1, lengths);
  kv_oracle(&w);
  kv_step(&w, &news[0], false);
  kv_call_init(&c, &w, &news[1], w.len);
  kv_append(&c);
  c.io.index_q = c.io.k_idx = c.io.block_idx = c.io.index_lse = (nsa_tensor){ 0 };
  c.io.o_branch[NSA_SEL] = c.io.lse[NSA_SEL] = (nsa_tensor){ 0 };
  for (int decode = 0; decode < 2; decode++) {
    w.exec.branches = 0;
    machine_expect("all",
                   decode ? nsa_decode(w.decode, &w.exec, &c.batch, &c.io)
                          : nsa_prefill(w.prefill, &w.exec, &c.batch, &c.io),
                   NSA_E_ARG, "io.k_idx is missing");
    w.exec.branches = 1u << NSA_WIN;
    kv_attend(&c, decode);
  }
  w.exec.branches = 0;
  kv_call_free(&c);
  kv_free(&w);
}

/* Eight drafts of a step choose each for itself: against the formulas, over shuffled pages. */
static void test_drafts(void **unused) {
  static const int32_t lengths[] = { 144, 75 }, old[] = { 136, 67 }, drafts[] = { 8, 8 };
  const kv_options options = { .page_size = 16, .model = { "model.select.local=1" } };
  const machine_request request = {
    .phi = NSAI_PHI_NONE, .gate = NSAI_GATE_NONE, .pool = NSAI_POOL_MAX, .indexed = true
  };
  kv_fixture w;
  kv_init(&w, &request, &options, 2, lengths);
  kv_oracle(&w);
  compare(&w.toy);
  kv_step(&w, old, false);
  kv_step(&w, drafts, true);
  const nsa_tensor *idx = &w.toy.io.block_idx;
  int differing = 0;
  for (int64_t row = 137; row < 144; row++)
    differing += memcmp(toy_ints(idx) + row * idx->stride[0],
                        toy_ints(idx) + (row - 1) * idx->stride[0], 32) != 0;
  assert_true(differing > 0);
  kv_free(&w);
}

/* A GPU has kernels for every operation. */
static void test_gpu(void **unused) {
  const machine_request request = {
    .gpu = true, .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true
  };
  char yaml[1024], dir[] = "/tmp/nsa-test-index-XXXXXX";
  machine_overrides overrides;
  assert_non_null(mkdtemp(dir));
  machine_yaml(&request, yaml, sizeof yaml);
  machine_overrides_init(&overrides, dir, NULL);
  nsa_ctx *ctx = machine_context(yaml, overrides.list, true);
  for (int32_t op = NSA_OP_FORWARD; op <= NSA_OP_BACKWARD; op++) {
    nsa_problem p = INIT(nsa_problem, .op = op, .max_tokens = 64, .max_seqs = 2, .max_kv_len = 64);
    nsa_caps caps = NSA_CAPS_INIT;
    machine_expect("query", nsa_query(ctx, &p, &caps), NSA_OK, NULL);
    assert_true(caps.supported);
  }
  nsa_destroy(ctx);
  machine_remove(dir);
}

int main(void) {
  static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_random_models),
    cmocka_unit_test(test_block_edges),
    cmocka_unit_test(test_equal_keys),
    cmocka_unit_test(test_negative_scores),
    cmocka_unit_test(test_nan),
    cmocka_unit_test(test_future),
    cmocka_unit_test(test_stages),
    cmocka_unit_test(test_what_ranks),
    cmocka_unit_test(test_dense),
    cmocka_unit_test(test_window_of_a_gpu),
    cmocka_unit_test(test_window_of_a_cache),
    cmocka_unit_test(test_drafts),
    cmocka_unit_test(test_gpu),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
