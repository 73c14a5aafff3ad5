/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The loss of an index branch and its gradients, on the CPU device, against the formulas of
 * include/nsa/index_kl.h written down once more: plain loops in double, which share nothing with the
 * library, and finite differences of the loss in place of the formulas of its gradients.
 */
#include "support/cmocka_all.h"

#include "machine.h"
#include "reference/reference.h"

#include <math.h>

#define STEP                                                                                       \
  1e-4 /* of finite differences: errors of 1e-8 from the third derivative, 1e-11 by rounding */

/* ---- the formulas ---- */

static double value_at(const nsa_tensor *t, int64_t at) {
  if (t->dtype != NSA_BF16) return (double)toy_floats(t)[at];
  const uint32_t bits = (uint32_t)((const uint16_t *)t->data)[at] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return (double)value;
}

/* A contiguous tensor as doubles, which the caller frees. */
static double *doubles_of(const nsa_tensor *t) {
  double *out = calloc((size_t)toy_count(t) + 1, sizeof *out);
  assert_non_null(out);
  for (int64_t i = 0; i < toy_count(t); i++) out[i] = value_at(t, i);
  return out;
}

/* A problem in double: index tensors that can be moved, and for each row, head and key whether the key
 * is chosen, and the attention's mean probability of it. */
typedef struct plain {
  const nsai_model *g;
  int64_t rows, keys; /* of all sequences */
  bool all;           /* every token that a row sees is chosen: a warm-up */
  double *qi, *ki;
  bool *chosen; /* [rows, Hi, keys] */
  double *mean; /* [rows, Hi, keys] */
} plain;

static int64_t cell(const plain *x, int64_t row, int64_t head, int64_t key) {
  return (row * x->g->kv_heads + head) * x->keys + key;
}

/* One row: position t, keys from `first`. */
static void fill_row(const toy *toy_, plain *x, int64_t row, int64_t first, int64_t t,
                     int64_t head) {
  const nsai_model *g = x->g;
  const nsa_tensor *q = &toy_->io.q;
  const nsa_tensor *k = &toy_->io.kv.k[g->per_branch && !x->all ? NSA_SEL : 0];
  const int64_t group = g->heads / g->kv_heads, dim = g->head_dim_qk;
  if (t < 0) return;
  for (int64_t p = 0; p <= t; p++)
    x->chosen[cell(x, row, head, first + p)] =
        x->all || toy_selects(toy_, row, head, p / g->select_block);
  for (int64_t h = head * group; h < (head + 1) * group; h++) {
    double total = 0, *weight = calloc((size_t)(t + 2), sizeof *weight);
    assert_non_null(weight);
    for (int64_t p = 0; p <= t; p++) {
      double s = 0;
      if (!x->chosen[cell(x, row, head, first + p)]) continue;
      for (int64_t e = 0; e < dim; e++)
        s += value_at(q, (row * g->heads + h) * dim + e) *
             value_at(k, ((first + p) * g->kv_heads + head) * dim + e);
      total += weight[p] = exp(s / sqrt((double)dim));
    }
    for (int64_t p = 0; p <= t && total > 0; p++)
      x->mean[cell(x, row, head, first + p)] += weight[p] / total / (double)group;
    free(weight);
  }
}

static plain plain_of(const toy *t, bool all) {
  const int32_t *q = toy_ints(&t->batch.cu_q), *kv = toy_ints(&t->batch.cu_kv);
  plain x = { .g = &t->model, .rows = t->tokens, .keys = t->kv_tokens, .all = all };
  const size_t cells = (size_t)(x.rows * t->model.kv_heads * x.keys) + 1;
  x.qi = doubles_of(&t->io.index_q), x.ki = doubles_of(&t->io.k_idx);
  x.chosen = calloc(cells, sizeof *x.chosen), x.mean = calloc(cells, sizeof *x.mean);
  assert_true(x.chosen && x.mean);
  for (int s = 0; s < t->batch.num_seqs; s++)
    for (int64_t row = q[s]; row < q[s + 1]; row++)
      for (int64_t head = 0; head < t->model.kv_heads; head++)
        fill_row(t, &x, row, kv[s], kv[s + 1] - kv[s] - q[s + 1] + row, head);
  return x;
}

static void plain_free(plain *x) { free(x->qi), free(x->ki), free(x->chosen), free(x->mean); }

/* The sum over J of Pm log(Pm / Pi) of one row. */
static double row_loss(const plain *x, int64_t row, int64_t head) {
  const int64_t dim = x->g->index_dim;
  double total = 0, loss = 0, mass = 0;
  for (int64_t p = 0; p < x->keys; p++) {
    const double mean = x->mean[cell(x, row, head, p)];
    double s = 0;
    if (!x->chosen[cell(x, row, head, p)]) continue;
    for (int64_t e = 0; e < dim; e++)
      s += x->qi[(row * x->g->kv_heads + head) * dim + e] * x->ki[p * dim + e];
    s /= sqrt((double)dim);
    total += exp(s); /* toy scores are small */
    mass += mean;
    if (mean > 0) loss += mean * (log(mean) - s);
  }
  return total > 0 ? loss + mass * log(total) : 0;
}

static double whole_loss(const plain *x) {
  double sum = 0;
  for (int64_t row = 0; row < x->rows; row++)
    for (int64_t head = 0; head < x->g->kv_heads; head++) sum += row_loss(x, row, head);
  return x->rows ? sum / ((double)x->rows * x->g->kv_heads) : 0;
}

/* d loss / d qi or ki, element `at`. */
static double slope(const plain *x, bool of_keys, int64_t at) {
  const int64_t dim = x->g->index_dim, row = at / (x->g->kv_heads * dim);
  double *element = of_keys ? &x->ki[at] : &x->qi[at], kept = *element, loss[2];
  for (int side = 0; side < 2; side++) {
    *element = side ? kept + STEP : kept - STEP;
    loss[side] = 0;
    for (int64_t r = of_keys ? 0 : row; r < (of_keys ? x->rows : row + 1); r++)
      for (int64_t head = 0; head < x->g->kv_heads; head++)
        if (!of_keys || x->chosen[cell(x, r, head, at / dim)]) loss[side] += row_loss(x, r, head);
  }
  *element = kept;
  return (loss[1] - loss[0]) / (2 * STEP) / ((double)x->rows * x->g->kv_heads);
}

/* ---- comparing ---- */

static nsa_index_grads make_grads(toy *t, int32_t dtype) {
  nsa_index_grads g = NSA_INDEX_GRADS_INIT;
  g.loss = toy_tensor(t, NSA_F32, 1, 1, 0, 0);
  g.d_index_q = toy_tensor(t, dtype, 3, t->tokens, t->model.index_heads, t->model.index_dim);
  g.d_k_idx = toy_tensor(t, dtype, 3, t->kv_tokens, 1, t->model.index_dim);
  return g;
}

static void run(toy *t, const nsa_index_grads *g, int threads) {
  machine_expect("index_kl",
                 nsai_reference_index_kl(&t->model, NSA_SELECT_BLOCKS, &t->batch, &t->io, g,
                                         threads),
                 NSA_OK, NULL);
}

/* By finite differences. The LSE of the forward is a float32: it moves Pm by 1e-6 at most, also where
 * the gradient vanishes. */
static void compare_tensor(const plain *x, bool of_keys, const nsa_tensor *got, double factor) {
  const int64_t count = toy_count(got);
  double largest = 0, *want = calloc((size_t)count + 1, sizeof *want);
  const double relative = got->dtype == NSA_BF16 ? 4e-3 : 1e-6;
  const double least = 1e-6 * factor / ((double)x->rows * x->g->kv_heads);
  assert_non_null(want);
  for (int64_t i = 0; i < count; i++) {
    want[i] = factor * slope(x, of_keys, i);
    largest = fmax(largest, fabs(want[i]));
  }
  for (int64_t i = 0; i < count; i++)
    if (!(fabs(value_at(got, i) - want[i]) <= relative * fabs(want[i]) + 1e-5 * largest + least))
      fail_msg("%s, element %d of %d: %g, expected %g", of_keys ? "d_k_idx" : "d_index_q", (int)i,
               (int)count, value_at(got, i), want[i]);
  free(want);
}

static void compare_with(const toy *t, const nsa_index_grads *g, bool all) {
  const double c = g->coefficient != 0 ? g->coefficient : 1;
  plain x = plain_of(t, all);
  const double want = c * whole_loss(&x), got = (double)toy_floats(&g->loss)[0];
  if (!(fabs(got - want) <= 1e-5 * fabs(want) + 1e-6 * c))
    fail_msg("loss %g, expected %g", got, want);
  compare_tensor(&x, false, &g->d_index_q, c);
  compare_tensor(&x, true, &g->d_k_idx, c);
  plain_free(&x);
}

static void compare(const toy *t, const nsa_index_grads *g) { compare_with(t, g, false); }

/* ---- models ---- */

static nsai_model indexed(int32_t group) {
  nsai_model g = toy_model(NSAI_PHI_NONE);
  g.by = NSAI_BY_INDEX;
  g.pool = NSAI_POOL_MAX;
  g.gate = NSAI_GATE_NONE;
  g.window = 0;
  g.kv_heads = g.index_heads = 2;
  g.heads = 2 * group;
  g.head_dim_qk = g.head_dim_v = 16;
  g.index_dim = 8;
  g.select_block = 8, g.select_count = 4, g.select_init = 0, g.select_local = 1;
  return g;
}

static void choose(toy *t) {
  machine_expect("forward",
                 nsai_reference_forward(&t->model, NSA_SELECT_TOPN, 0, &t->batch, &t->io, 2),
                 NSA_OK, NULL);
}

static void check(const nsai_model *g, int32_t seqs, const int32_t *q_len, const int32_t *kv_len) {
  toy t;
  toy_init(&t, g, seqs, q_len, kv_len);
  choose(&t);
  nsa_index_grads grads = make_grads(&t, NSA_F32);
  grads.coefficient = 2.5;
  run(&t, &grads, 2);
  compare(&t, &grads);
  toy_free(&t);
}

static uint64_t state;
static int32_t draw(int32_t low, int32_t high) {
  state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
  return low + (int32_t)((state >> 33) % (uint64_t)(high - low + 1));
}

/* ---- tests ---- */

/* Fewer blocks than can be chosen, as many, and more; lengths that end before, at and behind a block's
 * edge; groups of 4 and 16 heads. */
static void test_block_edges(void **unused) {
  static const int32_t lengths[] = { 1, 7, 8, 9, 31, 32, 33, 40, 45 };
  for (int32_t group = 4; group <= 16; group += 12)
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
      const nsai_model g = indexed(group);
      check(&g, 1, &lengths[i], &lengths[i]);
    }
}

/* Old tokens, an empty sequence, rows before a sequence's start. */
static void test_packed(void **unused) {
  static const int32_t q_len[] = { 5, 9, 0, 21 }, kv_len[] = { 43, 4, 3, 37 };
  const nsai_model g = indexed(4);
  toy t;
  check(&g, 4, q_len, kv_len);
  toy_init(&t, &g, 4, q_len, kv_len);
  choose(&t);
  nsa_index_grads grads = make_grads(&t, NSA_F32);
  run(&t, &grads, 1);
  for (int64_t i = 0; i < 5 * g.kv_heads * g.index_dim; i++) /* rows 5 to 9 stand before token 0 */
    assert_true(toy_floats(&grads.d_index_q)[5 * g.kv_heads * g.index_dim + i] == 0);
  for (int64_t i = 47 * g.index_dim; i < 50 * g.index_dim; i++) /* keys without queries */
    assert_true(toy_floats(&grads.d_k_idx)[i] == 0);
  toy_free(&t);
}

static void test_random_models(void **unused) {
  state = 20261127;
  for (int i = 0; i < 40; i++) {
    int32_t kv_len[3], q_len[3];
    nsai_model g = indexed(draw(1, 5));
    g.heads = g.heads / 2 * (g.kv_heads = g.index_heads = draw(1, 3));
    g.head_dim_qk = 8 * draw(1, 3), g.index_dim = draw(3, 12);
    g.select_block = draw(1, 12), g.select_count = draw(1, 5);
    g.select_init = draw(0, g.select_count);
    g.select_local = draw(0, g.select_count - g.select_init);
    g.window = draw(0, 1) ? 9 : 0;
    g.per_branch = draw(0, 1);
    g.dtype = draw(0, 1) ? NSA_BF16 : NSA_F32;
    for (int s = 0; s < 3; s++) {
      kv_len[s] = draw(0, 3) ? draw(1, 40) : draw(0, 2);
      q_len[s] = draw(0, 1) ? kv_len[s] : draw(0, kv_len[s] + 2);
    }
    check(&g, 3, q_len, kv_len);
  }
}

/* Gradients in the model's dtype are those in f32, rounded once. */
static void test_dtypes(void **unused) {
  const int32_t len = 37;
  nsai_model g = indexed(4);
  toy t;
  g.dtype = NSA_BF16;
  toy_init(&t, &g, 1, &len, &len);
  choose(&t);
  nsa_index_grads narrow = make_grads(&t, NSA_BF16), wide = make_grads(&t, NSA_F32);
  run(&t, &narrow, 2);
  run(&t, &wide, 2);
  compare(&t, &narrow);
  compare(&t, &wide);
  toy_same("loss", &narrow.loss, &wide.loss, 1);
  toy_free(&t);
}

/* Equal index keys: Pi is even over J, and the gradients of qi vanish but for rounding. */
static void test_equal_scores(void **unused) {
  const int32_t len = 45;
  const nsai_model g = indexed(4);
  toy t;
  toy_init(&t, &g, 1, &len, &len);
  for (int32_t p = 1; p < len; p++)
    memcpy(toy_floats(&t.io.k_idx) + p * g.index_dim, t.io.k_idx.data, (size_t)g.index_dim * 4);
  choose(&t);
  nsa_index_grads grads = make_grads(&t, NSA_F32);
  run(&t, &grads, 2);
  compare(&t, &grads);
  for (int64_t i = 0; i < toy_count(&grads.d_index_q); i++)
    assert_true(fabsf(toy_floats(&grads.d_index_q)[i]) < 1e-7f);
  toy_free(&t);
}

/* An index that is the attention itself: no loss and no gradient. */
static void test_perfect_index(void **unused) {
  const int32_t len = 45;
  nsai_model g = indexed(1);
  toy t;
  g.heads = g.kv_heads = g.index_heads = 1;
  g.index_dim = g.head_dim_qk;
  toy_init(&t, &g, 1, &len, &len);
  memcpy(t.io.index_q.data, t.io.q.data, (size_t)toy_count(&t.io.q) * 4);
  memcpy(t.io.k_idx.data, t.io.kv.k[0].data, (size_t)toy_count(&t.io.k_idx) * 4);
  choose(&t);
  nsa_index_grads grads = make_grads(&t, NSA_F32);
  run(&t, &grads, 2);
  assert_true(fabsf(toy_floats(&grads.loss)[0]) < 1e-6f);
  for (int64_t i = 0; i < toy_count(&grads.d_index_q); i++)
    assert_true(fabsf(toy_floats(&grads.d_index_q)[i]) < 1e-7f);
  for (int64_t i = 0; i < toy_count(&grads.d_k_idx); i++)
    assert_true(fabsf(toy_floats(&grads.d_k_idx)[i]) < 1e-6f);
  toy_free(&t);
}

/* Scores of hundreds, where Pi and Pm underflow: the loss goes through logarithms and stays finite. */
static void test_large_scores(void **unused) {
  const int32_t len = 45;
  const nsai_model g = indexed(4);
  toy t;
  toy_init(&t, &g, 1, &len, &len);
  for (int64_t i = 0; i < toy_count(&t.io.index_q); i++) toy_floats(&t.io.index_q)[i] *= 2e3f;
  for (int64_t i = 0; i < toy_count(&t.io.q); i++) toy_floats(&t.io.q)[i] *= 2e3f;
  choose(&t);
  nsa_index_grads grads = make_grads(&t, NSA_F32);
  run(&t, &grads, 2);
  assert_true(isfinite(toy_floats(&grads.loss)[0]) && toy_floats(&grads.loss)[0] > 100);
  for (int64_t i = 0; i < toy_count(&grads.d_index_q); i++)
    assert_true(isfinite(toy_floats(&grads.d_index_q)[i]));
  for (int64_t i = 0; i < toy_count(&grads.d_k_idx); i++)
    assert_true(isfinite(toy_floats(&grads.d_k_idx)[i]));
  toy_free(&t);
}

/* A caller's lists for all heads, in any order, with gaps, repetitions, blocks in the future, and none
 * at all in one row: the gradients of qi are 0 there. */
static void test_given_blocks(void **unused) {
  static const int32_t lists[4][4] = {
    { 2, 0, -1, 2 }, { 5, 4, 3, 9 }, { -1, -1, -1, -1 }, { 1, 0, 5, 3 }
  };
  const int32_t len = 45;
  const nsai_model g = indexed(4);
  toy t;
  toy_init(&t, &g, 1, &len, &len);
  t.io.block_idx = toy_tensor(&t, NSA_I32, 2, len, 4, 0);
  for (int32_t row = 0; row < len; row++)
    memcpy(toy_ints(&t.io.block_idx) + row * 4, lists[row % 4], sizeof *lists);
  machine_expect("forward", nsai_reference_forward(&g, NSA_SELECT_BLOCKS, 0, &t.batch, &t.io, 2),
                 NSA_OK, NULL);
  nsa_index_grads grads = make_grads(&t, NSA_F32);
  run(&t, &grads, 2);
  compare(&t, &grads);
  for (int64_t i = 0; i < g.kv_heads * g.index_dim; i++)
    assert_true(toy_floats(&grads.d_index_q)[2 * g.kv_heads * g.index_dim + i] == 0);
  toy_free(&t);
}

/* ---- the call ---- */

static const machine_request request = {
  .op = NSA_OP_INDEX_KL, .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true
};

static nsa_status call(const machine *m, const nsa_index_grads *g) {
  return nsa_index_kl(m->plan, &m->exec, &m->toy.batch, &m->toy.io, g);
}

static void same_grads(const nsa_index_grads *a, const nsa_index_grads *b) {
  toy_same("loss", &a->loss, &b->loss, 1);
  toy_same("d_index_q", &a->d_index_q, &b->d_index_q, a->d_index_q.shape[0]);
  toy_same("d_k_idx", &a->d_k_idx, &b->d_k_idx, a->d_k_idx.shape[0]);
}

/* Through the API, on all processors, again, and directly on one thread and on five: the same bits.
 * Tensors that the loss does not read may hold anything. */
static void test_call(void **unused) {
  for (int per_branch = 0; per_branch < 2; per_branch++) {
    machine_request own = request;
    machine m;
    own.per_branch = per_branch;
    machine_init(&m, &own);
    toy *t = &m.toy;
    choose(t);
    nsa_index_grads got = make_grads(t, NSA_F32), want = make_grads(t, NSA_F32);
    machine_expect("call", call(&m, &got), NSA_OK, NULL);
    compare(t, &got);
    for (int threads = 1; threads <= 5; threads += 4) {
      run(t, &want, threads);
      same_grads(&got, &want);
    }
    t->io.kv.v[0] = t->io.kv.v[1] = t->io.o = (nsa_tensor){ 0 };
    if (per_branch) t->io.kv.k[0].shape[0] = t->io.kv.k[2].shape[0] = 1;
    machine_expect("again", call(&m, &want), NSA_OK, NULL);
    same_grads(&got, &want);
    machine_free(&m);
  }
}

/* A warm-up: every token that a row sees, and the LSE and the keys of dense attention. What the selected
 * branch has is not read. Old tokens, an empty sequence, rows before a sequence's start. */
static void test_warm_up(void **unused) {
  static const int32_t q_len[] = { 5, 9, 0, 21 }, kv_len[] = { 43, 4, 3, 37 };
  for (int per_branch = 0; per_branch < 2; per_branch++) {
    nsai_model g = indexed(4);
    toy t;
    g.per_branch = per_branch;
    toy_init(&t, &g, 4, q_len, kv_len);
    t.io.lse[0] = toy_tensor(&t, NSA_F32, 2, t.tokens, g.heads, 0);
    nsa_io dense = t.io;
    dense.index_q = dense.k_idx = dense.o = (nsa_tensor){ 0 };
    machine_expect("dense", nsai_reference_dense(&g, &t.batch, &dense, 2), NSA_OK, NULL);
    t.io.block_idx = t.io.lse[NSA_SEL] = t.io.kv.k[1] = (nsa_tensor){ 0 };
    nsa_index_grads grads = make_grads(&t, NSA_F32), again = make_grads(&t, NSA_F32);
    for (int threads = 1; threads <= 5; threads += 4)
      machine_expect("index_kl",
                     nsai_reference_index_kl(&g, NSA_SELECT_ALL, &t.batch, &t.io,
                                             threads == 1 ? &again : &grads, threads),
                     NSA_OK, NULL);
    same_grads(&grads, &again);
    compare_with(&t, &grads, true);
    toy_free(&t);
  }
}

/* Through the API; where the top-n has every block, both are the same. */
static void test_warm_up_call(void **unused) {
  machine m;
  nsa_problem p = machine_problem(NSA_OP_INDEX_KL, 64, 0);
  machine_init(&m, &request);
  toy *t = &m.toy;
  p.max_seqs = 2;
  p.selection = NSA_SELECT_ALL;
  nsa_plan *plan = machine_plan(m.ctx, &p);
  t->io.lse[0] = toy_tensor(t, NSA_F32, 2, t->tokens, t->model.heads, 0);
  nsa_io dense = t->io;
  dense.index_q = dense.k_idx = (nsa_tensor){ 0 };
  machine_expect("dense", nsai_reference_dense(&t->model, &t->batch, &dense, 2), NSA_OK, NULL);
  t->io.block_idx = t->io.lse[NSA_SEL] = (nsa_tensor){ 0 };
  nsa_index_grads grads = make_grads(t, NSA_F32);
  machine_expect("all", nsa_index_kl(plan, &m.exec, &t->batch, &t->io, &grads), NSA_OK, NULL);
  compare_with(t, &grads, true);
  const nsa_io io = t->io;
  t->io.lse[0] = (nsa_tensor){ 0 };
  machine_expect("lse", nsa_index_kl(plan, &m.exec, &t->batch, &t->io, &grads), NSA_E_ARG,
                 "io.lse[0] is missing");
  t->io = io;
  nsa_plan_destroy(plan);
  machine_free(&m);
}

/* An output is the same whichever others are wanted. */
static void test_subsets(void **unused) {
  machine m;
  machine_init(&m, &request);
  choose(&m.toy);
  nsa_index_grads all = make_grads(&m.toy, NSA_F32);
  machine_expect("all", call(&m, &all), NSA_OK, NULL);
  for (int i = 0; i < 3; i++) {
    nsa_index_grads one = make_grads(&m.toy, NSA_F32), given = one;
    if (i != 0) given.loss = (nsa_tensor){ 0 };
    if (i != 1) given.d_index_q = (nsa_tensor){ 0 };
    if (i != 2) given.d_k_idx = (nsa_tensor){ 0 };
    machine_expect("one", call(&m, &given), NSA_OK, NULL);
    if (i == 0) toy_same("loss", &given.loss, &all.loss, 1);
    if (i == 1) toy_same("d_index_q", &given.d_index_q, &all.d_index_q, m.toy.tokens);
    if (i == 2) toy_same("d_k_idx", &given.d_k_idx, &all.d_k_idx, m.toy.kv_tokens);
  }
  machine_free(&m);
}

/* A coefficient scales every output; a sequence by itself, added up, is the batch. */
static void test_accumulate(void **unused) {
  machine m;
  machine_init(&m, &request);
  toy *t = &m.toy;
  choose(t);
  nsa_index_grads all = make_grads(t, NSA_F32), sum = make_grads(t, NSA_F32);
  all.coefficient = 4;
  machine_expect("all", call(&m, &all), NSA_OK, NULL);
  toy_floats(&sum.loss)[0] = 0;
  memset(sum.d_index_q.data, 0, (size_t)toy_count(&sum.d_index_q) * 4);
  memset(sum.d_k_idx.data, 0, (size_t)toy_count(&sum.d_k_idx) * 4);
  for (int s = 0; s < 2; s++) {
    const int64_t begin = toy_ints(&t->batch.cu_q)[s];
    const int64_t rows = toy_ints(&t->batch.cu_q)[s + 1] - begin;
    nsa_io io = t->io;
    nsa_index_grads part = sum;
    nsa_tensor *sliced[] = { &io.q,         &io.kv.k[0],      &io.index_q,     &io.k_idx,
                             &io.block_idx, &io.lse[NSA_SEL], &part.d_index_q, &part.d_k_idx };
    for (size_t i = 0; i < sizeof sliced / sizeof *sliced; i++)
      *sliced[i] = toy_slice(*sliced[i], begin, rows);
    part.accumulate = 1;
    part.coefficient = 4.0 * (double)rows / (double)t->tokens;
    machine_expect("part", nsa_index_kl(m.plan, &m.exec, NULL, &io, &part), NSA_OK, NULL);
  }
  const nsa_tensor *a[] = { &all.loss, &all.d_index_q, &all.d_k_idx };
  const nsa_tensor *b[] = { &sum.loss, &sum.d_index_q, &sum.d_k_idx };
  for (int i = 0; i < 3; i++)
    for (int64_t e = 0; e < toy_count(a[i]); e++)
      assert_true(fabsf(toy_floats(a[i])[e] - toy_floats(b[i])[e]) <=
                  1e-6f * fabsf(toy_floats(a[i])[e]) + 1e-9f);
  machine_free(&m);
}

/* Each refusal names the field. */
static void test_refusals(void **unused) {
  machine m;
  machine_init(&m, &request);
  toy *t = &m.toy;
  choose(t);
  const nsa_index_grads good = make_grads(t, NSA_F32);
  const nsa_io io = t->io;
  const struct {
    nsa_tensor *tensor;
    const char *text;
  } missing[] = { { &t->io.q, "io.q is missing" },
                  { &t->io.kv.k[0], "io.kv.k[0] is missing" },
                  { &t->io.index_q, "io.index_q is missing" },
                  { &t->io.k_idx, "io.k_idx is missing" },
                  { &t->io.block_idx, "io.block_idx is missing" },
                  { &t->io.lse[NSA_SEL], "io.lse[1] is missing" } };
  for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
    *missing[i].tensor = (nsa_tensor){ 0 };
    machine_expect("missing", call(&m, &good), NSA_E_ARG, missing[i].text);
    t->io = io;
  }
  nsa_index_grads bad = good;
  bad.coefficient = -1;
  machine_expect("c", call(&m, &bad), NSA_E_ARG, "grads.coefficient is -1");
  bad.coefficient = INFINITY;
  machine_expect("c", call(&m, &bad), NSA_E_ARG, "grads.coefficient is inf");
  bad = good, bad.accumulate = 2;
  machine_expect("accumulate", call(&m, &bad), NSA_E_ARG, "grads.accumulate is 2");
  bad = good, bad.d_k_idx.shape[0]--;
  machine_expect("d_k_idx", call(&m, &bad), NSA_E_ARG, "grads.d_k_idx");
  bad = good, bad.d_index_q.dtype = NSA_I32;
  machine_expect("d_index_q", call(&m, &bad), NSA_E_ARG, "grads.d_index_q");
  bad = good, bad.loss.dtype = NSA_BF16;
  machine_expect("loss", call(&m, &bad), NSA_E_ARG, "grads.loss");
  bad = good, bad.d_index_q.data = t->io.index_q.data;
  machine_expect("overlap", call(&m, &bad), NSA_E_ARG, "grads.d_index_q");
  machine_expect("NULL", call(&m, NULL), NSA_E_ARG, "grads is NULL");
  m.exec.branches = 1u << NSA_SEL;
  machine_expect("branches", call(&m, &good), NSA_E_ARG, "exec.branches is 0x2");
  m.exec.branches = 0;
  machine_expect("op", machine_forward(&m), NSA_E_ARG, "made for problem.op NSA_OP_INDEX_KL");
  machine_expect("good", call(&m, &good), NSA_OK, NULL);
  machine_free(&m);
}

static void refuse_problem(nsa_ctx *ctx, nsa_problem p, const char *text) {
  nsa_caps caps = NSA_CAPS_INIT;
  p.op = NSA_OP_INDEX_KL;
  p.max_tokens = 64;
  machine_expect("problem", nsa_query(ctx, &p, &caps), NSA_E_ARG, text);
}

static void test_problems(void **unused) {
  machine m, other;
  machine_init(&m, &request);
  machine_init(&other, &(machine_request){ .phi = NSAI_PHI_MEAN });
  nsa_problem p = NSA_PROBLEM_INIT;
  refuse_problem(other.ctx, p, "model.select.by is compressed");
  p.selection = NSA_SELECT_RANGES;
  refuse_problem(m.ctx, p, "an index chooses blocks");
  p.selection = 0, p.max_probe_rows = 1;
  refuse_problem(m.ctx, p, "NSA_OP_INDEX_KL has no importance");
  p.max_probe_rows = 0, p.page_size = 64;
  refuse_problem(m.ctx, p, "NSA_OP_INDEX_KL has no cache");
  p = machine_problem(NSA_OP_FORWARD, 64, 0);
  p.selection = NSA_SELECT_ALL;
  nsa_caps caps = NSA_CAPS_INIT;
  machine_expect("forward", nsa_query(m.ctx, &p, &caps), NSA_E_ARG,
                 "problem.selection is NSA_SELECT_ALL, which is the warm-up");
  machine_free(&other);
  machine_free(&m);
}

/* The row by architecture and model. */
static void expect_row(const char *arch, const char *change, const char *row) {
  machine_request gpu = request;
  char yaml[1024], dir[] = "/tmp/nsa-test-index-kl-XXXXXX";
  machine_overrides overrides;
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_problem p = machine_problem(NSA_OP_INDEX_KL, 64, 0);
  nsa_options options = NSA_OPTIONS_INIT;
  nsa_ctx *ctx = NULL;
  assert_non_null(mkdtemp(dir));
  gpu.gpu = true;
  machine_yaml(&gpu, yaml, sizeof yaml);
  machine_overrides_init(&overrides, dir, change);
  options.yaml_text = yaml;
  options.overrides = overrides.list;
  options.arch = arch;
  machine_expect("create", nsa_create(NULL, &options, &ctx), NSA_OK, NULL);
  machine_expect("query", nsa_query(ctx, &p, &caps), NSA_OK, NULL);
  assert_true(caps.supported);
  assert_string_equal(caps.variants, row);
  nsa_destroy(ctx);
  machine_remove(dir);
}

static void test_gpu(void **unused) {
  expect_row("sm_80", NULL, "index_kl=index_kl_sm80");
  expect_row("sm_90a", "model.select.block=64", "index_kl=index_kl_sm90");
  expect_row("sm_90a", "model.select.block=32", "index_kl=index_kl_sm80");
  expect_row("sm_90a", "model.index.dim=256", "index_kl=index_kl_sm80");
  expect_row("sm_120", NULL, "index_kl=index_kl_sm80");
}

int main(void) {
  static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_block_edges),   cmocka_unit_test(test_packed),
    cmocka_unit_test(test_random_models), cmocka_unit_test(test_dtypes),
    cmocka_unit_test(test_equal_scores),  cmocka_unit_test(test_perfect_index),
    cmocka_unit_test(test_large_scores),  cmocka_unit_test(test_given_blocks),
    cmocka_unit_test(test_call),          cmocka_unit_test(test_subsets),
    cmocka_unit_test(test_accumulate),    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_problems),      cmocka_unit_test(test_gpu),
    cmocka_unit_test(test_warm_up),       cmocka_unit_test(test_warm_up_call),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
