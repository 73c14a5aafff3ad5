/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The selection with a pool and with coarse keys, on the CPU device, against the formulas of
 * docs/algorithm.md written down once more: plain loops over one sequence in double, which share
 * nothing with the library. Over a cache: test_kv_cache.c, test_kv_pages.c.
 */
#include "support/cmocka_all.h"

#include "reference/reference.h"
#include "toy.h"

#include <math.h>

/* ---- the formulas ---- */

/* One sequence, and what is wanted of it. */
typedef struct plain {
  const nsai_model *g;
  const nsa_io *io;
  int64_t len;
  double scale;
} plain;

/* x as the model's dtype has it: to nearest, ties to even. */
static double rounded(const nsai_model *g, double x) {
  float value = (float)x;
  uint32_t bits;
  if (g->dtype != NSA_BF16) return (double)value;
  memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
  memcpy(&value, &bits, sizeof value);
  return (double)value;
}

/* q[t, h] . mean of `count` keys of KV head `head` from token `from` on. A mean that is stored has the
 * model's dtype. */
static double score_of_mean(const plain *x, int64_t t, int64_t h, int64_t head, int64_t from,
                            int64_t count, bool stored) {
  double sum = 0;
  for (int64_t e = 0; e < x->g->head_dim_qk; e++) {
    double mean = 0;
    for (int64_t r = 0; r < count; r++) mean += toy_at(&x->io->kv.k[0], from + r, head, e);
    mean /= (double)count;
    sum += toy_at(&x->io->q, t, h, e) * (stored ? rounded(x->g, mean) : mean);
  }
  return sum * x->scale;
}

/* Z: the log-sum-exp over all blocks of `block` tokens, `stride` apart, that are whole by t. */
static double log_sum(const plain *x, int64_t t, int64_t h, int64_t head, int64_t block,
                      int64_t stride, bool stored) {
  double largest = -INFINITY, sum = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int64_t m = 0; m * stride + block - 1 <= t; m++) {
      const double s = score_of_mean(x, t, h, head, m * stride, block, stored);
      if (pass)
        sum += exp(s - largest);
      else
        largest = fmax(largest, s);
    }
  return largest == -INFINITY ? -INFINITY : largest + log(sum);
}

/* I[t, head, j] for all candidates. */
static void importance(const plain *x, int64_t t, int64_t head, double *out) {
  const nsai_model *g = x->g;
  const int64_t blocks = t / g->select_block + 1, group = g->heads / g->kv_heads;
  double z[64];
  for (int64_t h = 0; h < group; h++)
    z[h] = g->norm_block
               ? log_sum(x, t, head * group + h, head, g->norm_block, g->norm_stride, true)
               : log_sum(x, t, head * group + h, head, g->block, g->stride, false);
  for (int64_t j = 0; j < blocks; j++) out[j] = 0;
  for (int64_t i = 0; i * g->stride + g->block - 1 <= t; i++) {
    double a = 0;
    for (int64_t h = 0; h < group; h++)
      if (z[h] != -INFINITY)
        a +=
            exp(score_of_mean(x, t, head * group + h, head, i * g->stride, g->block, false) - z[h]);
    for (int64_t j = 0; j < blocks; j++) {
      int shared = 0; /* strides that compressed block i and selection block j have in common */
      for (int64_t p = i * g->stride; p < i * g->stride + g->block; p += g->stride)
        if (p / g->select_block == j) shared++;
      if (!shared) continue;
      out[j] = g->pool == NSAI_POOL_MAX ? fmax(out[j], a) : out[j] + shared * a;
    }
  }
}

/* Whether the rule chooses block j: it is forced, or fewer others than there is room for go before
 * it. */
static bool chosen(const nsai_model *g, int64_t t, const double *rank, int64_t j) {
  const int64_t blocks = t / g->select_block + 1;
  int64_t forced = 0, before = 0;
  for (int64_t i = 0; i < blocks; i++) {
    const bool is_forced = i < g->select_init || i >= blocks - g->select_local;
    forced += is_forced;
    if (i == j && is_forced) return true;
    before += !is_forced && (rank[i] > rank[j] || (rank[i] == rank[j] && i < j));
  }
  return before < g->select_count - forced;
}

/* Attention of one row over the tokens up to t that `takes` allows; with `select` blocks. */
static void attend(const plain *x, int64_t t, int64_t h, const bool *blocks, int64_t window,
                   double *out) {
  const nsai_model *g = x->g;
  const int64_t head = h / (g->heads / g->kv_heads);
  double largest = -INFINITY, total = 0;
  for (int64_t e = 0; e < g->head_dim_v; e++) out[e] = 0;
  for (int pass = 0; pass < 2; pass++)
    for (int64_t p = 0; p <= t; p++) {
      if (blocks ? !blocks[p / g->select_block] : p <= t - window) continue;
      const double s = score_of_mean(x, t, h, head, p, 1, false);
      if (!pass) {
        largest = fmax(largest, s);
        continue;
      }
      total += exp(s - largest);
      for (int64_t e = 0; e < g->head_dim_v; e++)
        out[e] += exp(s - largest) * toy_at(&x->io->kv.v[0], p, head, e);
    }
  for (int64_t e = 0; e < g->head_dim_v; e++) out[e] /= total;
}

/* ---- comparing ---- */

/* Block indices of a row exactly, its probed importance closely. */
static void compare_blocks(const plain *x, int64_t t, int64_t head, bool *taken) {
  const nsai_model *g = x->g;
  const int64_t blocks = t / g->select_block + 1;
  const int32_t *idx = toy_ints(&x->io->block_idx) + t * x->io->block_idx.stride[0] +
                       head * x->io->block_idx.stride[1];
  double *rank = calloc((size_t)blocks, sizeof *rank);
  int64_t count = 0;
  assert_non_null(rank);
  importance(x, t, head, rank);
  for (int64_t j = 0; j < blocks; j++) {
    const double probed = toy_at(&x->io->probe_importance, t, head, j);
    if (!(fabs(probed - rank[j]) <= 1e-5 * rank[j] + 1e-30))
      fail_msg("importance of token %d, head %d, block %d: %g, expected %g", (int)t, (int)head,
               (int)j, probed, rank[j]);
    taken[j] = chosen(g, t, rank, j);
    if (taken[j] && (count == g->select_count || idx[count] != j))
      fail_msg("token %d, head %d of %d: block %d is not chosen", (int)t, (int)head, (int)x->len,
               (int)j);
    count += taken[j];
  }
  for (; count < g->select_count; count++) assert_int_equal(idx[count], -1);
  free(rank);
}

static void compare_output(const plain *x, int64_t t, int64_t h, const bool *taken) {
  const nsai_model *g = x->g;
  double selected[64], window[64] = { 0 };
  assert_true(g->head_dim_v <= 64 && g->keys_only && g->gate == NSAI_GATE_NONE);
  attend(x, t, h, taken, 0, selected);
  if (g->window) attend(x, t, h, NULL, g->window, window);
  for (int64_t e = 0; e < g->head_dim_v; e++) {
    const double want = selected[e] + window[e], got = toy_at(&x->io->o, t, h, e);
    const double bound = g->dtype == NSA_BF16 ? 4e-3 : 1e-5;
    if (!(fabs(got - want) <= bound * (1 + fabs(want))))
      fail_msg("o of token %d, head %d: %g, expected %g", (int)t, (int)h, got, want);
  }
}

static void add_probe(toy *t) {
  const int64_t blocks = nsai_select_block_count(&t->model, t->kv_tokens);
  t->io.probe_rows = toy_tensor(t, NSA_I32, 1, t->tokens, 0, 0);
  t->io.probe_importance = toy_tensor(t, NSA_F32, 3, t->tokens, t->model.kv_heads, blocks);
  for (int32_t i = 0; i < t->tokens; i++) toy_ints(&t->io.probe_rows)[i] = i;
}

static void run(toy *t) {
  assert_int_equal(nsai_reference_forward(&t->model, NSA_SELECT_TOPN, 0, &t->batch, &t->io, 2),
                   NSA_OK);
}

/* Every row from `from` on of one sequence. */
static void compare(const toy *t, int64_t from) {
  const plain x = { &t->model, &t->io, t->tokens, 1 / sqrt(t->model.head_dim_qk) };
  const int64_t group = t->model.heads / t->model.kv_heads;
  bool *taken = calloc((size_t)nsai_select_block_count(&t->model, x.len), sizeof *taken);
  assert_non_null(taken);
  for (int64_t row = from; row < t->tokens; row++)
    for (int64_t head = 0; head < t->model.kv_heads; head++) {
      compare_blocks(&x, row, head, taken);
      for (int64_t h = head * group; t->model.keys_only && h < (head + 1) * group; h++)
        compare_output(&x, row, h, taken);
    }
  free(taken);
}

/* A model whose output is the selected branch and maybe the window, without gates. */
static nsai_model bare(void) {
  nsai_model g = toy_model(NSAI_PHI_MEAN);
  g.head_dim_qk = 16;
  g.gate = NSAI_GATE_NONE;
  g.keys_only = 1;
  g.window = 0;
  g.pool = NSAI_POOL_MAX;
  g.norm_block = 16;
  g.norm_stride = 8;
  return g;
}

static void start(toy *t, const nsai_model *g, int32_t len) {
  toy_init(t, g, 1, &len, &len);
  add_probe(t);
}

/* ---- tests ---- */

static uint64_t state;
static int32_t draw(int32_t low, int32_t high) {
  state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
  return low + (int32_t)((state >> 33) % (uint64_t)(high - low + 1));
}

static nsai_model random_model(void) {
  nsai_model g = bare();
  g.kv_heads = draw(1, 2);
  g.heads = g.kv_heads * draw(1, 5);
  g.stride = draw(1, 4);
  g.block = g.stride * draw(1, 3);
  g.select_block = g.block + g.stride * draw(0, 3);
  g.select_count = draw(1, 6);
  g.select_init = draw(0, g.select_count > 2 ? 2 : 0);
  g.select_local = draw(0, g.select_count - g.select_init);
  g.norm_stride = draw(0, 3) ? draw(1, 6) : 0;
  g.norm_block = g.norm_stride * draw(1, 4);
  g.pool = draw(0, 2) ? NSAI_POOL_MAX : NSAI_POOL_SUM;
  g.window = draw(0, 2) ? 0 : draw(1, 30);
  return g;
}

/* 300 small models, each with and without a compressed branch of its own. */
/* The compressed branch keeps its own softmax: the same without a normaliser. */
static void compare_compressed(toy *t) {
  nsai_model g = t->model;
  nsa_io io = t->io;
  if (g.keys_only) return;
  toy_outputs(t, &io, t->tokens);
  io.probe_rows = io.probe_importance = (nsa_tensor){ 0 };
  g.norm_block = g.norm_stride = 0;
  assert_int_equal(nsai_reference_forward(&g, NSA_SELECT_TOPN, 0, &t->batch, &io, 2), NSA_OK);
  toy_same("o_branch", &t->io.o_branch[NSA_CMP], &io.o_branch[NSA_CMP], t->tokens);
  toy_same("lse", &t->io.lse[NSA_CMP], &io.lse[NSA_CMP], t->tokens);
}

static void test_random(void **unused) {
  (void)unused;
  state = 5;
  for (int i = 0; i < 300; i++) {
    nsai_model g = random_model();
    toy t;
    if (i % 4 == 3) g.keys_only = 0;
    start(&t, &g, draw(1, 90));
    t.random = (uint64_t)i;
    toy_randomize(&t, &t.io.q);
    toy_randomize(&t, &t.io.kv.k[0]);
    for (int64_t e = 0; i % 2 && e < toy_count(&t.io.q); e++) toy_floats(&t.io.q)[e] *= 4;
    run(&t);
    compare(&t, 0);
    compare_compressed(&t);
    toy_free(&t);
  }
}

/* Sizes of a real model, at lengths around whole strides of both kinds of keys: the last rows. Of 13
 * blocks 8 are chosen, 4 of them by rank. */
static void test_sizes(void **unused) {
  static const int32_t lengths[] = { 126, 127, 128, 783, 784, 785, 831, 832, 833 };
  (void)unused;
  nsai_model g = bare();
  g.heads = 4, g.kv_heads = 1;
  g.block = 32, g.stride = 16, g.select_block = 64;
  g.norm_block = 128, g.norm_stride = 64;
  g.select_count = 8, g.select_init = 1, g.select_local = 3;
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    toy t;
    start(&t, &g, lengths[i]);
    run(&t);
    compare(&t, lengths[i] - 3);
    toy_free(&t);
  }
}

/* Before the first coarse key is whole nothing has any importance, and lower indices go first. */
static void test_no_coarse_key(void **unused) {
  (void)unused;
  nsai_model g = bare();
  g.norm_block = 64;
  g.select_count = 2, g.select_init = 0, g.select_local = 1;
  toy t;
  start(&t, &g, 80);
  run(&t);
  for (int64_t row = 0; row < 63; row++)
    for (int64_t j = 0; j < 5; j++) assert_true(toy_at(&t.io.probe_importance, row, 0, j) == 0);
  assert_true(toy_at(&t.io.probe_importance, 63, 0, 0) > 0);
  const int32_t *idx = toy_ints(&t.io.block_idx) + 62 * t.io.block_idx.stride[0];
  assert_int_equal(idx[0], 0);
  assert_int_equal(idx[1], 3);
  compare(&t, 0);
  toy_free(&t);
}

/* Equal keys: all blocks that hold a whole compressed one rank the same, and the first are taken. */
static void test_ties(void **unused) {
  (void)unused;
  for (int pool = 0; pool < 2; pool++) {
    nsai_model g = bare();
    g.pool = (nsai_pool_kind)pool;
    g.select_init = 0, g.select_local = 1;
    toy t;
    start(&t, &g, 160);
    for (int64_t e = 0; e < toy_count(&t.io.kv.k[0]); e++) toy_floats(&t.io.kv.k[0])[e] = 0.25f;
    run(&t);
    const int32_t *idx = toy_ints(&t.io.block_idx) + 159 * t.io.block_idx.stride[0];
    const int32_t from_max[] = { 0, 1, 2, 9 }, from_sum[] = { 1, 2, 3, 9 };
    /* Of the sum, the first block lacks the stride that a compressed block before it would share. */
    for (int i = 0; i < 4; i++) assert_int_equal(idx[i], pool ? from_max[i] : from_sum[i]);
    toy_free(&t);
  }
}

/* In bf16 the coarse keys are rounded, which moves the importance by some thousandths. */
static void test_bf16(void **unused) {
  (void)unused;
  for (int normalized = 0; normalized < 2; normalized++) {
    nsai_model g = bare();
    g.dtype = NSA_BF16;
    if (!normalized) g.norm_block = g.norm_stride = 0;
    toy t;
    start(&t, &g, 130);
    run(&t);
    compare(&t, 0);
    toy_free(&t);
  }
}

/* A row's blocks, importance and output depend on no later token. */
static void test_future(void **unused) {
  (void)unused;
  nsai_model g = bare();
  for (int32_t t = 60; t < 76; t++) {
    toy a, b;
    start(&a, &g, 120);
    start(&b, &g, 120);
    run(&a);
    for (int64_t row = t + 1; row < 120; row++)
      for (int64_t e = 0; e < b.io.kv.k[0].stride[0]; e++) {
        toy_floats(&b.io.kv.k[0])[row * b.io.kv.k[0].stride[0] + e] = 7;
        toy_floats(&b.io.q)[row * b.io.q.stride[0] + e] = -7;
      }
    run(&b);
    toy_same("o", &a.io.o, &b.io.o, t + 1);
    toy_same("block_idx", &a.io.block_idx, &b.io.block_idx, t + 1);
    toy_same("importance", &a.io.probe_importance, &b.io.probe_importance, t + 1);
    toy_free(&a);
    toy_free(&b);
  }
}

/* Sequences of a batch, one behind the other, and any number of threads. */
static void test_batch(void **unused) {
  static const int32_t lengths[] = { 77, 0, 5, 103 };
  (void)unused;
  nsai_model g = bare();
  toy all;
  toy_init(&all, &g, 4, lengths, lengths);
  run(&all);
  nsa_io again = all.io;
  toy_outputs(&all, &again, all.tokens);
  assert_int_equal(nsai_reference_forward(&g, NSA_SELECT_TOPN, 0, &all.batch, &again, 1), NSA_OK);
  toy_same_outputs("threads", &all.io, &again, all.tokens);
  for (int s = 0, first = 0; s < 4; first += lengths[s++]) {
    nsa_io io = all.io;
    nsa_tensor *const rows[] = { &io.q, &io.kv.k[0], &io.kv.v[0] };
    for (int i = 0; i < 3; i++) *rows[i] = toy_slice(*rows[i], first, lengths[s]);
    toy_outputs(&all, &io, lengths[s]);
    assert_int_equal(nsai_reference_forward(&g, NSA_SELECT_TOPN, 0, NULL, &io, 2), NSA_OK);
    const nsa_tensor o = toy_slice(all.io.o, first, lengths[s]);
    const nsa_tensor idx = toy_slice(all.io.block_idx, first, lengths[s]);
    toy_same("o", &o, &io.o, lengths[s]);
    toy_same("block_idx", &idx, &io.block_idx, lengths[s]);
  }
  toy_free(&all);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_random),        cmocka_unit_test(test_sizes),
    cmocka_unit_test(test_no_coarse_key), cmocka_unit_test(test_ties),
    cmocka_unit_test(test_bf16),          cmocka_unit_test(test_future),
    cmocka_unit_test(test_batch),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
