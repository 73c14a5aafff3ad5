/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_backward on the CPU device: every gradient against differences of a float64 loss, sequences
 * together and alone, sums and dtypes of the outputs.
 */
#include "support/cmocka_all.h"

#include "base/float16.h"
#include "gradients.h"
#include "reference/reference.h"

#include <math.h>

#define STEP 0x1p-13 /* of differences */

static nsa_status direct(toy *t, int32_t selection, uint32_t branches, const nsa_grads *g,
                         int threads) {
  return nsai_reference_backward(&t->model, selection, branches, &t->batch, &t->io, g, threads);
}

/* ---- differences ---- */

/* Sum of d_o * o in float64, with the selection as it is. */
static double loss(toy *t, int32_t selection, uint32_t branches, const nsa_tensor *d_o) {
  int64_t heads = t->model.heads, count = t->tokens * heads, dim = t->model.head_dim_v;
  int64_t *token = calloc((size_t)count, sizeof *token);
  int32_t *head = calloc((size_t)count, sizeof *head);
  double *o = calloc((size_t)(count * dim), sizeof *o), sum = 0;
  assert_true(token && head && o);
  for (int64_t i = 0; i < count; i++) {
    token[i] = i / heads;
    head[i] = (int32_t)(i % heads);
  }
  nsai_reference_rows rows = { .count = count, .token = token, .head = head, .o = o };
  selection = selection == NSA_SELECT_TOPN ? NSA_SELECT_BLOCKS : selection;
  machine_expect("rows",
                 nsai_reference_forward_rows(&t->model, selection, branches, &t->batch, &t->io,
                                             &rows, 2),
                 NSA_OK, NULL);
  for (int64_t i = 0; i < count * dim; i++) sum += o[i] * toy_floats(d_o)[i];
  free(token);
  free(head);
  free(o);
  return sum;
}

/* Where the differences of an input are taken. */
typedef struct direction {
  toy *t;
  int32_t selection;
  uint32_t branches;
  const pair *pair;
  const nsa_tensor *d_o, *along;
} direction;

/* How far the loss at input + step and input - step is from what the gradient says. `length`: of
 * the way between them. */
static double residual(const direction *d, double step, double *length) {
  nsa_tensor kept = *d->pair->input, moved = tensor_like(d->t, &kept, NSA_F32);
  double sum = 0, squares = 0, sign = 1;
  float *to = toy_floats(&moved);
  for (int side = 0; side < 2; side++, sign = -sign) {
    for (int64_t e = 0; e < toy_count(&kept); e++) {
      double from = toy_floats(&kept)[e];
      to[e] = (float)(from + sign * step * toy_floats(d->along)[e]);
      sum -= sign * (to[e] - from) * toy_floats(d->pair->gradient)[e];
      squares += 2 * (to[e] - from) * (to[e] - from);
    }
    *d->pair->input = moved;
    sum += sign * loss(d->t, d->selection, d->branches, d->d_o);
  }
  *d->pair->input = kept;
  *length = sqrt(squares);
  return sum;
}

static double norm_of(const nsa_tensor *x) {
  double squares = 0;
  for (int64_t e = 0; e < toy_count(x); e++) squares += (double)toy_floats(x)[e] * toy_floats(x)[e];
  return sqrt(squares);
}

/* One direction: random, or with the signs of the gradient so that nothing cancels. Two steps take
 * out the third derivative, whose part is eight times larger at twice the step. */
static void check_direction(direction *d, bool aligned) {
  nsa_tensor along = tensor_like(d->t, d->pair->input, NSA_F32);
  double length, twice;
  toy_randomize(d->t, &along);
  for (int64_t e = 0; aligned && e < toy_count(&along); e++)
    toy_floats(&along)[e] = copysignf(toy_floats(&along)[e], toy_floats(d->pair->gradient)[e]);
  d->along = &along;
  double near = residual(d, STEP, &length), far = residual(d, 2 * STEP, &twice);
  double bound = (1e-6 * norm_of(d->pair->gradient) + 1e-9 * norm_of(d->d_o)) * length;
  if (!(fabs(8 * near - far) / 6 <= bound))
    fail_msg("d_%s (%s): off by %g, bound %g", d->pair->name, aligned ? "aligned" : "random",
             (8 * near - far) / 6, bound);
}

static void check_gradients(toy *t, int32_t selection, uint32_t branches) {
  pair pairs[MAX_PAIRS];
  nsa_grads g = make_grads(t, NSA_F32);
  int count = list_pairs(&t->io, &g, pairs);
  machine_expect("backward", direct(t, selection, branches, &g, 2), NSA_OK, NULL);
  for (int i = 0; i < count; i++) {
    int owned = t->owned_count; /* the directions go again */
    direction d = { t, selection, branches, &pairs[i], &g.d_o, NULL };
    for (int aligned = 0; aligned < 2; aligned++) check_direction(&d, aligned);
    while (t->owned_count > owned) free(t->owned[--t->owned_count]);
  }
}

/* What a test of differences varies. */
typedef struct variant {
  machine_request request;
  nsai_activation activation;
  int32_t branches;
} variant;

static void check_variant(const variant *v) {
  machine m;
  machine_init(&m, &v->request);
  m.toy.model.phi_activation = v->activation;
  if (v->request.phi == NSAI_PHI_EXTERNAL && v->request.per_branch)
    m.toy.io.kv.k[0] = m.toy.io.kv.v[0] = (nsa_tensor){ 0 }; /* not read */
  choose(&m.toy);
  check_gradients(&m.toy, NSA_SELECT_TOPN, (uint32_t)v->branches);
  machine_free(&m);
}

static void test_models(void **state) {
  static const variant variants[] = {
    { { 0 }, 0, 0 },
    { { .per_branch = true, .gate = NSAI_GATE_LOGITS }, 0, 0 },
    { { .phi = NSAI_PHI_LINEAR }, 0, 0 },
    { { .phi = NSAI_PHI_LINEAR, .per_branch = true }, 0, 0 },
    { { .phi = NSAI_PHI_MLP }, NSAI_ACT_GELU, 0 },
    { { .phi = NSAI_PHI_MLP, .per_branch = true }, NSAI_ACT_SILU, 0 },
    { { .phi = NSAI_PHI_EXTERNAL }, 0, 0 },
    { { .phi = NSAI_PHI_EXTERNAL, .per_branch = true }, 0, 0 },
    { { .gate = NSAI_GATE_NONE }, 0, 0 },
    { { .gate = NSAI_GATE_NONE, .phi = NSAI_PHI_LINEAR }, 0, 1 << NSA_CMP | 1 << NSA_WIN },
    { { .keys_only = true }, 0, 0 },
    { { .keys_only = true, .gate = NSAI_GATE_NONE, .phi = NSAI_PHI_LINEAR }, 0, 0 },
    { { .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true }, 0, 0 },
    { { .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true, .per_branch = true }, 0, 0 },
    { { .gate = NSAI_GATE_MLP }, 0, 0 },
    { { .gate = NSAI_GATE_MLP, .gate_hidden = 7 }, 0, 0 },
    { { .phi = NSAI_PHI_MLP }, NSAI_ACT_SILU, 1 << NSA_SEL | 1 << NSA_WIN },
    { { .per_branch = true }, 0, 1 << NSA_CMP },
  };
  for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) check_variant(&variants[i]);
}

/* Chunks, a sequence with rows before its start, an empty one, one head per group, uneven dims,
 * branches that the model does not have, ranges that overlap. */
static void test_shapes(void **state) {
  static const int32_t q_len[] = { 5, 9, 0, 21 }, kv_len[] = { 20, 4, 3, 37 };
  for (int i = 0; i < 5; i++) {
    nsai_model g = toy_model(i == 1 ? NSAI_PHI_LINEAR : NSAI_PHI_MEAN);
    int32_t selection = i == 4 ? NSA_SELECT_RANGES : NSA_SELECT_TOPN;
    toy t;
    if (i == 1) g.heads = g.kv_heads = 3;
    if (i == 2) g.window = 0;
    if (i == 3) g.select_count = g.select_init = g.select_local = 0;
    if (i == 3) g.head_dim_qk = 20, g.head_dim_v = 36;
    toy_init(&t, &g, 4, q_len, kv_len);
    choose(&t);
    t.io.ranges = (nsa_tensor){ .ndim = 3, .dtype = NSA_I32 };
    if (i == 4) {
      t.io.ranges = toy_tensor(&t, NSA_I32, 3, t.tokens, 4, 2);
      for (int64_t e = 0; e < toy_count(&t.io.ranges); e++)
        toy_ints(&t.io.ranges)[e] = (int32_t)(e * 7 % 40 - 2);
    }
    check_gradients(&t, selection, 0);
    toy_free(&t);
  }
}

/* ---- the call ---- */

/* Through the API, on all processors, and directly on one thread: the same bits. */
static void test_call(void **state) {
  static const machine_request requests[] = {
    { .op = NSA_OP_BACKWARD },
    { .op = NSA_OP_BACKWARD, .phi = NSAI_PHI_LINEAR, .gate = NSAI_GATE_LOGITS },
    { .op = NSA_OP_BACKWARD, .phi = NSAI_PHI_MLP, .per_branch = true, .gate = NSAI_GATE_MLP },
    { .op = NSA_OP_BACKWARD, .phi = NSAI_PHI_EXTERNAL, .selection = NSA_SELECT_BLOCKS },
    { .op = NSA_OP_BACKWARD, .phi = NSAI_PHI_NONE, .pool = NSAI_POOL_MAX, .indexed = true },
  };
  for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
    machine m;
    pair a[MAX_PAIRS], b[MAX_PAIRS];
    machine_init(&m, &requests[i]);
    toy *t = &m.toy;
    choose(t);
    nsa_grads got = make_grads(t, NSA_F32), want = make_grads(t, NSA_F32);
    want.d_o = got.d_o;
    t->io.o = (nsa_tensor){ 0 }; /* optional */
    machine_expect("nsa_backward", nsa_backward(m.plan, &m.exec, &t->batch, &t->io, &got), NSA_OK,
                   NULL);
    machine_expect("direct", direct(t, requests[i].selection, 0, &want, 1), NSA_OK, NULL);
    int count = list_pairs(&t->io, &got, a);
    list_pairs(&t->io, &want, b);
    for (int k = 0; k < count; k++) {
      toy_same(a[k].name, a[k].gradient, b[k].gradient, a[k].gradient->shape[0]);
      for (int64_t e = 0; e < toy_count(a[k].gradient); e++)
        assert_true(isfinite(toy_floats(a[k].gradient)[e]));
    }
    machine_free(&m);
  }
}

/* Any subset of the outputs: the others' values do not depend on it. */
static void test_subsets(void **state) {
  machine m;
  pair a[MAX_PAIRS], b[MAX_PAIRS];
  machine_init(&m, &(machine_request){ .phi = NSAI_PHI_MLP, .gate = NSAI_GATE_MLP });
  toy *t = &m.toy;
  choose(t);
  nsa_grads all = make_grads(t, NSA_F32);
  machine_expect("all", direct(t, 0, 0, &all, 2), NSA_OK, NULL);
  int count = list_pairs(&t->io, &all, a);
  for (int k = 0; k < count; k++) {
    nsa_grads one = NSA_GRADS_INIT;
    list_pairs(&t->io, &one, b);
    one.d_o = all.d_o;
    *b[k].gradient = tensor_like(t, b[k].input, NSA_F32);
    machine_expect("one", direct(t, 0, 0, &one, 2), NSA_OK, NULL);
    toy_same(b[k].name, a[k].gradient, b[k].gradient, a[k].gradient->shape[0]);
  }
  machine_free(&m);
}

/* What a model does not read gets nothing; a branch that does not run gets zeros. */
static void test_zeros(void **state) {
  machine m;
  machine_init(&m, &(machine_request){
                       .op = NSA_OP_BACKWARD, .phi = NSAI_PHI_LINEAR, .per_branch = true });
  toy *t = &m.toy;
  choose(t);
  nsa_grads g = make_grads(t, NSA_F32);
  for (int b = 0; b < NSA_BRANCHES; b++) t->io.o_branch[b] = t->io.lse[b] = (nsa_tensor){ 0 };
  m.exec.branches = 1u << NSA_WIN;
  machine_expect("window", nsa_backward(m.plan, &m.exec, &t->batch, &t->io, &g), NSA_OK, NULL);
  const nsa_tensor *zeros[] = { &g.d_kv.k[0], &g.d_kv.v[0], &g.d_kv.k[1],  &g.d_kv.v[1],
                                &g.d_phi.k.w, &g.d_phi.v.w, &g.d_phi.k.pe, &g.d_phi.v.pe };
  for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++)
    for (int64_t e = 0; e < toy_count(zeros[i]); e++) assert_true(toy_floats(zeros[i])[e] == 0);
  for (int64_t e = 0; e < toy_count(&g.d_gate.value); e++)
    assert_true((toy_floats(&g.d_gate.value)[e] == 0) == (e % NSA_BRANCHES != NSA_WIN));
  machine_free(&m);
}

/* ---- sequences, sums, dtypes ---- */

static double distance(const nsa_tensor *a, const nsa_tensor *b) {
  double error = 0, norm = 0;
  for (int64_t e = 0; e < toy_count(a); e++) {
    double x = toy_floats(a)[e], y = toy_floats(b)[e];
    error += (x - y) * (x - y);
    norm += y * y;
  }
  return sqrt(error / norm);
}

/* Sequence by sequence without a batch: rows are the same bits; the weights' gradients, added up by
 * `accumulate`, the same sums. */
static void test_packed(void **state) {
  machine m;
  machine_init(&m, &(machine_request){
                       .op = NSA_OP_BACKWARD, .phi = NSAI_PHI_MLP, .gate = NSAI_GATE_LOGITS });
  toy *t = &m.toy;
  choose(t);
  nsa_grads all = make_grads(t, NSA_F32), sum = make_grads(t, NSA_F32);
  pair a[MAX_PAIRS], b[MAX_PAIRS];
  machine_expect("all", nsa_backward(m.plan, &m.exec, &t->batch, &t->io, &all), NSA_OK, NULL);
  int count = list_pairs(&t->io, &sum, b);
  list_pairs(&t->io, &all, a);
  for (int k = 0; k < count; k++)
    memset(b[k].gradient->data, 0, (size_t)toy_count(b[k].gradient) * 4);
  for (int s = 0; s < 2; s++) {
    int64_t begin = toy_ints(&t->batch.cu_q)[s], rows = toy_ints(&t->batch.cu_q)[s + 1] - begin;
    nsa_io io = t->io;
    nsa_grads part = sum;
    nsa_tensor *sliced[] = { &io.q,           &io.kv.k[0],     &io.kv.v[0],       &io.gate.value,
                             &io.o,           &io.block_idx,   &part.d_q,         &part.d_o,
                             &part.d_kv.k[0], &part.d_kv.v[0], &part.d_gate.value };
    part.accumulate = 1;
    part.d_o = all.d_o;
    for (int i = 0; i < NSA_BRANCHES; i++) io.o_branch[i] = io.lse[i] = (nsa_tensor){ 0 };
    for (size_t i = 0; i < sizeof sliced / sizeof *sliced; i++)
      *sliced[i] = toy_slice(*sliced[i], begin, rows);
    machine_expect("part", nsa_backward(m.plan, &m.exec, NULL, &io, &part), NSA_OK, NULL);
  }
  for (int k = 0; k < count; k++) {
    if (!strcmp(a[k].name, "k.b2")) continue; /* vanishes: noise alone */
    if (a[k].gradient->shape[0] == t->tokens)
      toy_same(a[k].name, a[k].gradient, b[k].gradient, t->tokens);
    else if (!(distance(b[k].gradient, a[k].gradient) < 1e-6))
      fail_msg("%s: %g", a[k].name, distance(b[k].gradient, a[k].gradient));
  }
  machine_free(&m);
}

static void test_accumulate(void **state) {
  machine m;
  machine_init(&m, &(machine_request){ .phi = NSAI_PHI_LINEAR, .gate = NSAI_GATE_MLP });
  toy *t = &m.toy;
  pair a[MAX_PAIRS], b[MAX_PAIRS];
  choose(t);
  nsa_grads plain = make_grads(t, NSA_F32), added = make_grads(t, NSA_F32);
  int count = list_pairs(&t->io, &plain, a);
  list_pairs(&t->io, &added, b);
  added.d_o = plain.d_o;
  added.accumulate = 1;
  for (int k = 0; k < count; k++)
    for (int64_t e = 0; e < toy_count(b[k].gradient); e++) toy_floats(b[k].gradient)[e] = 3;
  machine_expect("plain", direct(t, 0, 0, &plain, 2), NSA_OK, NULL);
  machine_expect("added", direct(t, 0, 0, &added, 2), NSA_OK, NULL);
  for (int k = 0; k < count; k++)
    for (int64_t e = 0; e < toy_count(b[k].gradient); e++) {
      double g = toy_floats(a[k].gradient)[e], sum = toy_floats(b[k].gradient)[e];
      if (!(fabs(sum - (3 + g)) <= 0x1p-23 * (3 + fabs(g)))) fail_msg("%s: %g", a[k].name, sum - g);
    }
  machine_free(&m);
}

/* A bf16 model: gradients in bf16 and in f32. */
static void test_dtypes(void **state) {
  static const int32_t lengths[] = { 17, 23 };
  machine m;
  pair a[MAX_PAIRS], b[MAX_PAIRS];
  machine_init(&m, &(machine_request){ .op = NSA_OP_BACKWARD,
                                       .phi = NSAI_PHI_MLP,
                                       .override = "model.dtype=bf16" });
  nsai_model g = m.toy.model;
  g.dtype = NSA_BF16;
  toy_free(&m.toy);
  toy_init(&m.toy, &g, 2, lengths, lengths);
  toy *t = &m.toy;
  choose(t);
  nsa_grads wide = make_grads(t, NSA_F32), narrow = make_grads(t, NSA_BF16);
  int count = list_pairs(&t->io, &wide, a);
  list_pairs(&t->io, &narrow, b);
  narrow.d_o = wide.d_o;
  machine_expect("f32", nsa_backward(m.plan, &m.exec, &t->batch, &t->io, &wide), NSA_OK, NULL);
  machine_expect("bf16", nsa_backward(m.plan, &m.exec, &t->batch, &t->io, &narrow), NSA_OK, NULL);
  for (int k = 0; k < count; k++)
    for (int64_t e = 0; e < toy_count(a[k].gradient); e++) {
      double want = toy_floats(a[k].gradient)[e];
      double got = nsai_float_from_bf16(((const uint16_t *)b[k].gradient->data)[e]);
      if (!(fabs(got - want) <= 0x1.01p-8 * fabs(want)))
        fail_msg("%s: %g, %g", a[k].name, got, want);
    }
  machine_free(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_models),     cmocka_unit_test(test_shapes), cmocka_unit_test(test_call),
    cmocka_unit_test(test_subsets),    cmocka_unit_test(test_zeros),  cmocka_unit_test(test_packed),
    cmocka_unit_test(test_accumulate), cmocka_unit_test(test_dtypes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
