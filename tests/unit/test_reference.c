/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Properties of the CPU device that hold without a second implementation. Where the same sums are
 * taken in the same order, results must be the same bits.
 */
#include "support/cmocka_all.h"

#include "base/float16.h"
#include "reference/reference.h"
#include "reference/tensor.h"
#include "toy.h"

#include <math.h>

static void run_io(const toy *t, const nsa_batch *batch, const nsa_io *io) {
  assert_int_equal(nsai_reference_forward(&t->model, NSA_SELECT_TOPN, 0, batch, io, 2), NSA_OK);
}

/* Runs `count` tokens from `first` on as a sequence of its own, with its part of K and V. */
static void run_slice(const toy *t, nsa_io io, int64_t first, int64_t count, int64_t kv_first,
                      int64_t kv_count) {
  nsa_tensor *rows[] = { &io.q,           &io.gate.value,  &io.o,           &io.block_idx,
                         &io.o_branch[0], &io.o_branch[1], &io.o_branch[2], &io.lse[0],
                         &io.lse[1],      &io.lse[2] };
  for (int i = 0; i < 10; i++) *rows[i] = toy_slice(*rows[i], first, count);
  io.kv.k[0] = toy_slice(io.kv.k[0], kv_first, kv_count);
  io.kv.v[0] = toy_slice(io.kv.v[0], kv_first, kv_count);
  run_io(t, NULL, &io);
}

static void one(toy *t, const nsai_model *g, int32_t q_len, int32_t kv_len) {
  toy_init(t, g, 1, &q_len, &kv_len);
}

static void test_all_selected_is_dense(void **state) {
  nsai_model g = toy_model(NSAI_PHI_MEAN);
  g.select_count = 8; /* of 8 blocks */
  g.window = 500;
  toy t;
  one(&t, &g, 113, 113);
  run_io(&t, &t.batch, &t.io);
  nsa_io dense = t.io;
  toy_outputs(&t, &dense, t.tokens);
  assert_int_equal(nsai_reference_dense(&g, &t.batch, &dense, 2), NSA_OK);
  for (int b = NSA_SEL; b <= NSA_WIN; b++) {
    toy_same("o", &t.io.o_branch[b], &dense.o, t.tokens);
    toy_same("lse", &t.io.lse[b], &dense.lse[0], t.tokens);
  }
  toy_free(&t);
}

/* Everything after position `at` becomes NaN; what was computed up to there must not move. */
static void test_future(void **state) {
  nsai_model g = toy_model(*(nsai_phi_kind *)*state);
  toy t;
  one(&t, &g, 90, 90);
  run_io(&t, &t.batch, &t.io);
  for (int64_t at = t.tokens - 2; at >= 0; at -= 3) {
    nsa_tensor *inputs[] = { &t.io.q, &t.io.kv.k[0], &t.io.kv.v[0], &t.io.gate.value };
    for (int i = 0; i < 4; i++) {
      nsa_tensor rest = toy_slice(*inputs[i], at + 1, t.tokens - at - 1);
      memset(rest.data, 0xff, (size_t)toy_count(&rest) * 4);
    }
    nsa_io io = t.io;
    toy_outputs(&t, &io, t.tokens);
    run_io(&t, &t.batch, &io);
    toy_same_outputs("future", &t.io, &io, at + 1);
    for (int i = 0; i < 8; i++) free(t.owned[--t.owned_count]); /* toy_outputs' eight */
  }
  toy_free(&t);
}

/* prefill(a + b) == prefill(a); append(b), for every a. */
static void test_split(void **state) {
  nsai_model g = toy_model(*(nsai_phi_kind *)*state);
  toy t;
  one(&t, &g, 70, 70);
  run_io(&t, &t.batch, &t.io);
  for (int64_t at = 0; at <= t.tokens; at++) {
    nsa_io all = t.io;
    toy_outputs(&t, &all, t.tokens);
    for (int half = 0; half < 2; half++) {
      int64_t begin = half ? at : 0, count = half ? t.tokens - at : at;
      run_slice(&t, all, begin, count, 0, begin + count);
    }
    toy_same_outputs("split", &t.io, &all, t.tokens);
    for (int i = 0; i < 8; i++) free(t.owned[--t.owned_count]);
  }
  toy_free(&t);
}

/* A packed batch, with an empty sequence, one without keys, and one with more queries than keys. */
static void test_ragged(void **state) {
  nsai_model g = toy_model(*(nsai_phi_kind *)*state);
  const int32_t q_len[] = { 5, 0, 41, 3, 1, 20 }, kv_len[] = { 5, 30, 77, 0, 64, 12 };
  toy t;
  toy_init(&t, &g, 6, q_len, kv_len);
  run_io(&t, &t.batch, &t.io);
  nsa_io all = t.io;
  toy_outputs(&t, &all, t.tokens);
  for (int s = 0; s < 6; s++) {
    int64_t q = toy_ints(&t.batch.cu_q)[s], kv = toy_ints(&t.batch.cu_kv)[s];
    run_slice(&t, all, q, q_len[s], kv, kv_len[s]);
  }
  toy_same_outputs("ragged", &t.io, &all, t.tokens);
  /* Rows before their sequence (all three of s 3, eight of s 5): zeros, -inf, -1, and no NaN. */
  const int64_t empty[] = { 46, 47, 48, 50, 57 };
  for (int i = 0; i < 5; i++) {
    for (int64_t e = 0; e < all.o.stride[0]; e++)
      assert_true(toy_floats(&all.o)[empty[i] * all.o.stride[0] + e] == 0);
    for (int b = 0; b < NSA_BRANCHES; b++)
      for (int64_t h = 0; h < g.heads; h++)
        assert_true(toy_floats(&all.lse[b])[empty[i] * g.heads + h] == -INFINITY);
    for (int64_t e = 0; e < all.block_idx.stride[0]; e++)
      assert_int_equal(toy_ints(&all.block_idx)[empty[i] * all.block_idx.stride[0] + e], -1);
  }
  assert_true(toy_floats(&all.lse[NSA_WIN])[58 * g.heads] > -INFINITY); /* t = 0 */
  /* Rows beyond the last sequence are not written. */
  nsa_batch fewer = t.batch;
  fewer.num_seqs = 3;
  nsa_io partial = t.io;
  toy_outputs(&t, &partial, t.tokens);
  run_io(&t, &fewer, &partial);
  toy_same_outputs("first sequences", &t.io, &partial, 46);
  assert_int_equal(toy_ints(&partial.o)[46 * partial.o.stride[0]], -1);
  assert_int_equal(toy_ints(&partial.lse[NSA_SEL])[46 * g.heads], -1);
  toy_free(&t);
}

/* The tensor with gaps between rows and heads, its values moved there. Gaps hold NaN. */
static nsa_tensor padded(toy *t, nsa_tensor tensor) {
  int64_t inner = tensor.ndim == 3 ? tensor.shape[2] : 1;
  int64_t heads = tensor.ndim > 1 ? tensor.shape[1] : 1;
  nsa_tensor out = toy_tensor(t, tensor.dtype, 3, tensor.shape[0], heads + 2, inner + 3);
  for (int64_t i = 0; i < tensor.shape[0]; i++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t e = 0; e < inner; e++)
        toy_ints(&out)[(i * (heads + 2) + h) * (inner + 3) + e] =
            toy_ints(&tensor)[(i * heads + h) * inner + e];
  memcpy(out.shape, tensor.shape, sizeof out.shape);
  out.ndim = tensor.ndim;
  return out;
}

static nsa_tensor unpadded(toy *t, nsa_tensor tensor) {
  int64_t inner = tensor.ndim == 3 ? tensor.shape[2] : 1;
  nsa_tensor out = toy_tensor(t, tensor.dtype, tensor.ndim, tensor.shape[0], tensor.shape[1], //
                              tensor.shape[2]);
  for (int64_t i = 0; i < tensor.shape[0]; i++)
    for (int64_t h = 0; h < tensor.shape[1]; h++)
      for (int64_t e = 0; e < inner; e++)
        toy_ints(&out)[(i * tensor.shape[1] + h) * inner + e] =
            toy_ints(&tensor)[i * tensor.stride[0] + h * tensor.stride[1] + e];
  return out;
}

static void test_strides(void **state) {
  nsai_model g = toy_model(*(nsai_phi_kind *)*state);
  toy t;
  one(&t, &g, 60, 75);
  run_io(&t, &t.batch, &t.io);
  nsa_io io = t.io;
  nsa_tensor *tensors[] = { &io.q,          &io.kv.k[0],   &io.kv.v[0],     &io.gate.value,
                            &io.phi.k.pe,   &io.phi.k.w,   &io.phi.k.w1,    &io.phi.k.w2,
                            &io.phi.v.pe,   &io.phi.v.w,   &io.phi.v.w1,    &io.phi.v.w2,
                            &io.o,          &io.block_idx, &io.o_branch[0], &io.o_branch[1],
                            &io.o_branch[2] };
  for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
    if (tensors[i]->data) *tensors[i] = padded(&t, *tensors[i]);
  for (int b = 0; b < NSA_BRANCHES; b++) /* last stride 1: rows alone can be padded */
    io.lse[b] = toy_tensor(&t, NSA_F32, 2, t.tokens, g.heads, 0);
  memset(io.o.data, 0xff, (size_t)(io.o.shape[0] * io.o.stride[0]) * 4);
  run_io(&t, &t.batch, &io);
  nsa_tensor *outputs[] = { &io.o, &io.block_idx, &io.o_branch[0], &io.o_branch[1],
                            &io.o_branch[2] };
  for (int i = 0; i < 5; i++) {
    nsa_tensor gap = *outputs[i]; /* the element behind the first head's is not ours */
    assert_int_equal(toy_ints(&gap)[gap.shape[2]], -1);
    *outputs[i] = unpadded(&t, gap);
  }
  toy_same_outputs("strides", &t.io, &io, t.tokens);
  toy_free(&t);
}

static void test_threads(void **state) {
  nsai_model g = toy_model(*(nsai_phi_kind *)*state);
  const int32_t q_len[] = { 70, 3, 200 }, kv_len[] = { 90, 1, 200 };
  toy t;
  toy_init(&t, &g, 3, q_len, kv_len);
  const int threads[] = { 1, 2, 5, 0, 1000 };
  assert_int_equal(nsai_reference_forward(&g, NSA_SELECT_TOPN, 0, &t.batch, &t.io, 1), NSA_OK);
  for (int i = 0; i < 5; i++) {
    nsa_io io = t.io;
    toy_outputs(&t, &io, t.tokens);
    assert_int_equal(nsai_reference_forward(&g, NSA_SELECT_TOPN, 0, &t.batch, &io, threads[i]),
                     NSA_OK);
    toy_same_outputs("threads", &t.io, &io, t.tokens);
  }
  toy_free(&t);
}

/* The own selection handed back as a longer list: shuffled, doubled, with -1 and future blocks. */
static void test_caller_blocks(void **state) {
  nsai_model g = toy_model(NSAI_PHI_MEAN), wide = g;
  wide.select_count = 12;
  toy t;
  one(&t, &g, 130, 130);
  run_io(&t, &t.batch, &t.io);
  nsa_io io = t.io;
  toy_outputs(&t, &io, t.tokens);
  io.block_idx = toy_tensor(&t, NSA_I32, 3, t.tokens, g.kv_heads, 12);
  for (int64_t r = 0; r < t.tokens * g.kv_heads; r++) {
    const int32_t *own = toy_ints(&t.io.block_idx) + r * 4;
    int32_t future = (int32_t)(r / g.kv_heads / g.select_block + 1);
    const int32_t list[12] = { future, own[3], own[1], -1,     own[0],    own[3],
                               -7,     own[2], own[1], own[0], INT32_MAX, INT32_MIN };
    memcpy(toy_ints(&io.block_idx) + r * 12, list, sizeof list);
  }
  assert_int_equal(nsai_reference_forward(&wide, NSA_SELECT_BLOCKS, 0, &t.batch, &io, 2), NSA_OK);
  io.block_idx = t.io.block_idx; /* an input here */
  toy_same_outputs("caller's blocks", &t.io, &io, t.tokens);
  toy_free(&t);
}

/* Head 0's blocks for both KV heads: as a list per head, and as one shared list. */
static void test_shared_lists(void **state) {
  nsai_model g = toy_model(NSAI_PHI_MEAN);
  toy t;
  one(&t, &g, 100, 100);
  run_io(&t, &t.batch, &t.io);
  nsa_io each = t.io, shared = t.io, ranges = t.io;
  toy_outputs(&t, &each, t.tokens);
  toy_outputs(&t, &shared, t.tokens);
  toy_outputs(&t, &ranges, t.tokens);
  shared.block_idx = toy_tensor(&t, NSA_I32, 2, t.tokens, 4, 0);
  ranges.ranges = toy_tensor(&t, NSA_I32, 3, t.tokens, 4, 2);
  for (int64_t i = 0; i < t.tokens; i++)
    for (int64_t j = 0; j < 4; j++) {
      int32_t block = toy_ints(&t.io.block_idx)[i * 8 + j];
      toy_ints(&each.block_idx)[i * 8 + j] = toy_ints(&each.block_idx)[i * 8 + 4 + j] = block;
      toy_ints(&shared.block_idx)[i * 4 + j] = block;
      int32_t *range = toy_ints(&ranges.ranges) + (i * 4 + j) * 2;
      range[0] = block * g.select_block;
      range[1] = block < 0 ? 0 : range[0] + g.select_block;
      if (block < 0) range[0] = 0; /* empty */
    }
  assert_int_equal(nsai_reference_forward(&g, NSA_SELECT_BLOCKS, 0, &t.batch, &each, 2), NSA_OK);
  assert_int_equal(nsai_reference_forward(&g, NSA_SELECT_BLOCKS, 0, &t.batch, &shared, 2), NSA_OK);
  assert_int_equal(nsai_reference_forward(&g, NSA_SELECT_RANGES, 0, &t.batch, &ranges, 2), NSA_OK);
  toy_same("shared list", &each.o, &shared.o, t.tokens);
  toy_same("shared ranges", &each.o, &ranges.o, t.tokens);
  toy_free(&t);
}

/* Ranges of any alignment, overlapping, reversed and over both ends, against the window branch:
 * their union is the last w tokens. */
static void test_ranges(void **state) {
  nsai_model g = toy_model(NSAI_PHI_MEAN);
  toy t;
  one(&t, &g, 100, 100);
  t.io.ranges = toy_tensor(&t, NSA_I32, 3, t.tokens, g.kv_heads, 8);
  t.io.ranges.ndim = 4; /* [T, Hkv, 4, 2] */
  t.io.ranges.shape[2] = 4;
  t.io.ranges.shape[3] = 2;
  t.io.ranges.stride[2] = 2;
  t.io.ranges.stride[3] = 1;
  for (int32_t r = 0; r < t.tokens * g.kv_heads; r++) {
    int32_t p = r / g.kv_heads, begin = p - g.window + 1;
    const int32_t row[8] = { p - 3, p + 50, begin, begin + 9, 50, 7, begin + 5, p - 2 };
    memcpy(toy_ints(&t.io.ranges) + (int64_t)r * 8, row, sizeof row);
  }
  assert_int_equal(nsai_reference_forward(&g, NSA_SELECT_RANGES, 0, &t.batch, &t.io, 2), NSA_OK);
  toy_same("ranges", &t.io.o_branch[NSA_SEL], &t.io.o_branch[NSA_WIN], t.tokens);
  toy_same("ranges", &t.io.lse[NSA_SEL], &t.io.lse[NSA_WIN], t.tokens);
  toy_free(&t);
}

/* The rule as a sort would do it: forced first, then importance, then index. */
static void select_plainly(const nsai_model *g, int64_t t, const double *importance, int32_t *idx) {
  int64_t blocks = t / g->select_block + 1, taken = 0;
  bool chosen[64] = { 0 };
  for (int64_t j = 0; j < blocks; j++)
    if (j < g->select_init || j >= blocks - g->select_local) taken += chosen[j] = true;
  for (; taken < g->select_count && taken < blocks; taken++) {
    int64_t best = -1;
    for (int64_t j = 0; j < blocks; j++)
      if (!chosen[j] && (best < 0 || importance[j] > importance[best])) best = j;
    chosen[best] = true;
  }
  int64_t count = 0;
  for (int64_t j = 0; j < blocks; j++)
    if (chosen[j]) idx[count++] = (int32_t)j;
  while (count < g->select_count) idx[count++] = -1;
}

static void test_select_rule(void **state) {
  nsai_model g = toy_model(NSAI_PHI_MEAN);
  toy t = { .random = 1, .model = g };
  nsa_tensor random = toy_tensor(&t, NSA_F32, 1, 64, 0, 0);
  for (int levels = 1; levels < 9; levels++) /* few levels: many ties */
    for (int init = 0; init < 4; init++)
      for (int local = 0; local < 4; local++)
        for (int n = init + local > 0 ? init + local : 1; n < 20; n += 3)
          for (int64_t at = 0; at < 60 * g.select_block; at += 37) {
            double importance[64];
            int32_t got[20], want[20];
            g.select_init = init;
            g.select_local = local;
            g.select_count = n;
            toy_randomize(&t, &random);
            for (int j = 0; j < 64; j++)
              importance[j] = floor(fabs(toy_floats(&random)[j]) * levels);
            nsai_reference_select_row(&g, at, importance, got);
            select_plainly(&g, at, importance, want);
            assert_memory_equal(got, want, (size_t)n * sizeof *got);
          }
  toy_free(&t);
}

static void check_row(const nsai_model *g, int64_t t, const double *importance,
                      const int32_t *want) {
  int32_t got[8];
  nsai_reference_select_row(g, t, importance, got);
  assert_memory_equal(got, want, (size_t)g->select_count * sizeof *got);
}

static void test_select_edges(void **state) {
  nsai_model g = toy_model(NSAI_PHI_MEAN);
  const double equal[8] = { 1, 1, 1, 1, 1, 1, 1, 1 }, nan[8] = { 0, NAN, NAN, 0, -1, 5, 0, 0 };
  check_row(&g, -1, equal, (const int32_t[]){ -1, -1, -1, -1 });
  check_row(&g, 0, equal, (const int32_t[]){ 0, -1, -1, -1 }); /* all forced ones coincide */
  check_row(&g, 31, equal, (const int32_t[]){ 0, 1, -1, -1 }); /* fewer candidates than n */
  check_row(&g, 127, equal, (const int32_t[]){ 0, 1, 6, 7 });  /* a tie: the lower index */
  check_row(&g, 127, nan, (const int32_t[]){ 0, 5, 6, 7 });
  g.select_count = 7;
  check_row(&g, 127, nan, (const int32_t[]){ 0, 1, 3, 4, 5, 6, 7 }); /* NaN last, but taken */
}

/* The public stage, with the importance that the forward's probe gives. */
static void test_select_stage(void **state) {
  nsai_model g = toy_model(NSAI_PHI_MEAN);
  const int32_t q_len[] = { 30, 61 }, kv_len[] = { 80, 61 };
  toy t;
  toy_init(&t, &g, 2, q_len, kv_len);
  t.io.probe_rows = toy_tensor(&t, NSA_I32, 1, t.tokens, 0, 0);
  for (int32_t i = 0; i < t.tokens; i++) toy_ints(&t.io.probe_rows)[i] = i;
  t.io.probe_importance = toy_tensor(&t, NSA_F32, 3, t.tokens, g.kv_heads, 7);
  run_io(&t, &t.batch, &t.io);
  nsa_io io = t.io;
  toy_outputs(&t, &io, t.tokens);
  assert_int_equal(nsai_reference_select(&g, &t.batch, &io, &t.io.probe_importance, 2), NSA_OK);
  toy_same("selection", &t.io.block_idx, &io.block_idx, t.tokens);
  const float *first = toy_floats(&t.io.probe_importance); /* t = 50: blocks 0 .. 3 */
  assert_true(first[0] > 0 && first[2] > 0 && first[4] == 0 && first[6] == 0);
  toy_free(&t);
}

/* A gate of zero, a branch left out of the mask, and a branch switched off by n or w agree. */
static void test_branch_absent(void **state) {
  for (int b = 0; b < NSA_BRANCHES; b++) {
    nsai_model g = toy_model(NSAI_PHI_MEAN), off = g;
    toy t;
    one(&t, &g, 60, 60);
    for (int64_t i = b; i < toy_count(&t.io.gate.value); i += NSA_BRANCHES)
      toy_floats(&t.io.gate.value)[i] = 0;
    run_io(&t, &t.batch, &t.io);
    for (int64_t i = b; i < toy_count(&t.io.gate.value); i += NSA_BRANCHES)
      toy_floats(&t.io.gate.value)[i] = NAN; /* not read any more */
    nsa_io masked = t.io, absent = t.io;
    toy_outputs(&t, &masked, t.tokens);
    toy_outputs(&t, &absent, t.tokens);
    assert_int_equal(nsai_reference_forward(&g, NSA_SELECT_TOPN, 7u & ~(1u << b), &t.batch, &masked,
                                            2),
                     NSA_OK);
    toy_same("mask", &t.io.o, &masked.o, t.tokens);
    toy_same("mask", &t.io.block_idx, &masked.block_idx, t.tokens);
    for (int64_t i = 0; i < toy_count(&masked.o_branch[b]); i++)
      assert_true(toy_floats(&masked.o_branch[b])[i] == 0);
    for (int64_t i = 0; i < toy_count(&masked.lse[b]); i++)
      assert_true(toy_floats(&masked.lse[b])[i] == -INFINITY);
    if (b != NSA_CMP) {
      if (b == NSA_SEL) off.select_count = off.select_init = off.select_local = 0;
      if (b == NSA_WIN) off.window = 0;
      assert_int_equal(nsai_reference_forward(&off, NSA_SELECT_TOPN, 0, &t.batch, &absent, 2),
                       NSA_OK);
      toy_same("off", &t.io.o, &absent.o, t.tokens);
    }
    toy_free(&t);
  }
}

static void test_scaled_values(void **state) {
  nsai_model g = toy_model(NSAI_PHI_MEAN);
  toy t;
  one(&t, &g, 60, 60);
  run_io(&t, &t.batch, &t.io);
  for (int64_t i = 0; i < toy_count(&t.io.kv.v[0]); i++) toy_floats(&t.io.kv.v[0])[i] *= 4;
  nsa_io io = t.io;
  toy_outputs(&t, &io, t.tokens);
  run_io(&t, &t.batch, &io);
  for (int64_t i = 0; i < toy_count(&t.io.o); i++) toy_floats(&t.io.o)[i] *= 4; /* exact */
  toy_same("o", &t.io.o, &io.o, t.tokens);
  toy_free(&t);
}

/* Lists without one valid block: nothing selected, and no NaN. */
static void test_nothing_selected(void **state) {
  nsai_model g = toy_model(NSAI_PHI_MEAN);
  toy t;
  one(&t, &g, 40, 40);
  assert_int_equal(nsai_reference_forward(&g, NSA_SELECT_BLOCKS, 0, &t.batch, &t.io, 2), NSA_OK);
  for (int64_t i = 0; i < toy_count(&t.io.lse[NSA_SEL]); i++)
    assert_true(toy_floats(&t.io.lse[NSA_SEL])[i] == -INFINITY);
  for (int64_t i = 0; i < toy_count(&t.io.o); i++) {
    assert_true(toy_floats(&t.io.o_branch[NSA_SEL])[i] == 0);
    assert_false(isnan(toy_floats(&t.io.o)[i]));
  }
  toy_free(&t);
}

/* Tensors in storage dtype are the float64 rows rounded once; the rows come in any order, and
 * bf16 inputs mean exactly their values. */
static void test_rounding(void **state) {
  nsai_model g = toy_model(NSAI_PHI_MLP);
  g.dtype = *(int32_t *)*state;
  toy t;
  one(&t, &g, 50, 66);
  run_io(&t, &t.batch, &t.io);
  int64_t count = t.tokens * g.heads, dim = g.head_dim_v;
  int64_t *token = malloc((size_t)count * sizeof *token);
  int32_t *head = malloc((size_t)count * sizeof *head);
  nsai_reference_rows rows = { .count = count, .token = token, .head = head };
  rows.o = malloc((size_t)(count * dim) * sizeof(double));
  rows.lse[NSA_SEL] = malloc((size_t)count * sizeof(double));
  assert_true(token && head && rows.o && rows.lse[NSA_SEL]);
  for (int64_t i = 0; i < count; i++) {
    int64_t at = i * 7 % count; /* 7 and 300 have no common factor: each row once */
    token[i] = at / g.heads;
    head[i] = (int32_t)(at % g.heads);
  }
  assert_int_equal(nsai_reference_forward_rows(&g, NSA_SELECT_TOPN, 0, &t.batch, &t.io, &rows, 2),
                   NSA_OK);
  for (int64_t i = 0; i < count; i++) {
    int64_t at = token[i] * g.heads + head[i];
    assert_true(toy_floats(&t.io.lse[NSA_SEL])[at] == (float)rows.lse[NSA_SEL][i]);
    for (int64_t e = 0; e < dim; e++) {
      double value = rows.o[i * dim + e];
      uint16_t half = ((uint16_t *)t.io.o.data)[at * dim + e];
      if (g.dtype == NSA_BF16) assert_int_equal(half, nsai_bf16_from_double(value));
      if (g.dtype == NSA_F16) assert_int_equal(half, nsai_f16_from_double(value));
      if (g.dtype == NSA_F32) assert_true(toy_floats(&t.io.o)[at * dim + e] == (float)value);
    }
  }
  free(rows.o);
  free(rows.lse[NSA_SEL]);
  free(token);
  free(head);
  toy_free(&t);
}

/* Compressed keys written by the compress stage and read back as external ones, with gaps between
 * the sequences. They were rounded to float on the way: hence the tolerance. */
static void test_external(void **state) {
  nsai_model g = toy_model(*(nsai_phi_kind *)*state), external = g;
  external.phi = NSAI_PHI_EXTERNAL;
  const int32_t q_len[] = { 50, 4, 3 }, kv_len[] = { 61, 5, 33 }, blocks[] = { 16, 2, 9 };
  toy t;
  toy_init(&t, &g, 3, q_len, kv_len);
  t.batch.cu_cmp = toy_offsets(&t, 3, blocks); /* true counts: 14, 0, 7 */
  run_io(&t, &t.batch, &t.io);
  nsa_io io = t.io;
  toy_outputs(&t, &io, t.tokens);
  io.kv.k_cmp = toy_tensor(&t, NSA_F32, 3, 27, g.kv_heads, g.head_dim_qk);
  io.kv.v_cmp = toy_tensor(&t, NSA_F32, 3, 27, g.kv_heads, g.head_dim_v);
  assert_int_equal(nsai_reference_compress(&g, &t.batch, &io, 2), NSA_OK);
  assert_true(isnan(toy_floats(&io.kv.k_cmp)[14 * io.kv.k_cmp.stride[0]])); /* left alone */
  assert_int_equal(nsai_reference_forward(&external, NSA_SELECT_TOPN, 0, &t.batch, &io, 2), NSA_OK);
  toy_same("selection", &t.io.block_idx, &io.block_idx, t.tokens);
  for (int64_t i = 0; i < toy_count(&io.o); i++)
    assert_true(fabsf(toy_floats(&io.o)[i] - toy_floats(&t.io.o)[i]) < 1e-4f);
  /* The forward writes them just as well. */
  nsa_io again = io;
  again.kv.k_cmp = toy_tensor(&t, NSA_F32, 3, 27, g.kv_heads, g.head_dim_qk);
  again.kv.v_cmp = toy_tensor(&t, NSA_F32, 3, 27, g.kv_heads, g.head_dim_v);
  run_io(&t, &t.batch, &again);
  toy_same("k_cmp", &io.kv.k_cmp, &again.kv.k_cmp, 27);
  toy_same("v_cmp", &io.kv.v_cmp, &again.kv.v_cmp, 27);
  toy_free(&t);
}

/* Three equal pairs are one shared pair. */
static void test_pairs(void **state) {
  nsai_model g = toy_model(NSAI_PHI_MEAN), pairs = g;
  pairs.per_branch = 1;
  toy t;
  one(&t, &g, 60, 60);
  run_io(&t, &t.batch, &t.io);
  nsa_io io = t.io;
  toy_outputs(&t, &io, t.tokens);
  for (int b = 1; b < NSA_BRANCHES; b++) {
    io.kv.k[b] = io.kv.k[0];
    io.kv.v[b] = io.kv.v[0];
  }
  assert_int_equal(nsai_reference_forward(&pairs, NSA_SELECT_TOPN, 0, &t.batch, &io, 2), NSA_OK);
  toy_same_outputs("pairs", &t.io, &io, t.tokens);
  toy_free(&t);
}

/* One layer over a single channel of ones is its row of weights as logits for every token; logits
 * may be f32 beside bf16 tensors. */
static void test_gate_forms(void **state) {
  nsai_model g = toy_model(NSAI_PHI_MEAN), layer = g;
  g.dtype = layer.dtype = NSA_BF16;
  g.gate = NSAI_GATE_LOGITS;
  layer.gate = NSAI_GATE_MLP;
  layer.gate_channels = 1;
  toy t;
  one(&t, &g, 40, 40);
  int64_t width = (int64_t)g.heads * NSA_BRANCHES;
  nsa_io io = t.io;
  toy_outputs(&t, &io, t.tokens);
  io.gate.w2 = toy_tensor(&t, NSA_BF16, 2, 1, width, 0);
  toy_randomize(&t, &io.gate.w2);
  io.gate.x = toy_tensor(&t, NSA_BF16, 2, t.tokens, 1, 0);
  t.io.gate.value = toy_tensor(&t, NSA_F32, 3, t.tokens, g.heads, NSA_BRANCHES);
  for (int64_t i = 0; i < t.tokens; i++) {
    ((uint16_t *)io.gate.x.data)[i] = nsai_bf16_from_float(1);
    for (int64_t e = 0; e < width; e++)
      toy_floats(&t.io.gate.value)[i * width + e] =
          nsai_float_from_bf16(((uint16_t *)io.gate.w2.data)[e]);
  }
  run_io(&t, &t.batch, &t.io);
  assert_int_equal(nsai_reference_forward(&layer, NSA_SELECT_TOPN, 0, &t.batch, &io, 2), NSA_OK);
  toy_same_outputs("gates", &t.io, &io, t.tokens);
  toy_free(&t);
}

/* Without gates `o` is what gates of one give. */
static void test_no_gates(void **state) {
  nsai_model g = toy_model(NSAI_PHI_MEAN), none = g;
  none.gate = NSAI_GATE_NONE;
  for (uint32_t branches = 0; branches < 8; branches++) {
    toy t;
    one(&t, &g, 40, 57);
    nsa_io io = t.io;
    toy_outputs(&t, &io, t.tokens);
    for (int64_t i = 0; i < toy_count(&io.gate.value); i++) toy_floats(&io.gate.value)[i] = 1;
    t.io.gate.value = (nsa_tensor){ 0 };
    assert_int_equal(nsai_reference_forward(&g, NSA_SELECT_TOPN, branches, &t.batch, &io, 2), 0);
    assert_int_equal(nsai_reference_forward(&none, NSA_SELECT_TOPN, branches, &t.batch, &t.io, 2),
                     0);
    toy_same("o", &t.io.o, &io.o, t.tokens);
    toy_free(&t);
  }
}

/* A model whose compressed keys serve the selection alone gives what the other branches of the whole
 * model give, and takes no compressed values. */
static void test_keys_only(void **state) {
  for (nsai_phi_kind phi = NSAI_PHI_MEAN; phi <= NSAI_PHI_EXTERNAL; phi++) {
    nsai_model g = toy_model(phi), keys_only = g;
    toy t;
    keys_only.keys_only = 1;
    one(&t, &g, 40, 57);
    t.io.kv.k_cmp = toy_tensor(&t, NSA_F32, 3, 13, 2, 24); /* (57 - 8) / 4 + 1 */
    t.io.kv.v_cmp = toy_tensor(&t, NSA_F32, 3, 13, 2, 16);
    toy_randomize(&t, &t.io.kv.k_cmp);
    toy_randomize(&t, &t.io.kv.v_cmp);
    nsa_io io = t.io;
    toy_outputs(&t, &io, t.tokens);
    io.kv.v_cmp = io.o_branch[NSA_CMP] = io.lse[NSA_CMP] = (nsa_tensor){ 0 };
    io.phi.v = (nsa_phi_side){ 0 };
    const uint32_t others = 1u << NSA_SEL | 1u << NSA_WIN;
    assert_int_equal(nsai_reference_forward(&g, NSA_SELECT_TOPN, others, &t.batch, &t.io, 2), 0);
    assert_int_equal(nsai_reference_forward(&keys_only, NSA_SELECT_TOPN, 0, &t.batch, &io, 2), 0);
    t.io.o_branch[NSA_CMP] = t.io.lse[NSA_CMP] = (nsa_tensor){ 0 };
    toy_same_outputs("keys alone", &t.io, &io, t.tokens);
    toy_free(&t);
  }
}

/* To nearest; or, by draws, to one of both neighbours, and on average to the value itself. */
static void test_rounding_draws(void **state) {
  const int32_t dtypes[] = { NSA_BF16, NSA_F16 };
  const double values[] = { 1.0, 1.001, -1.001, 3.14159, -0.3, 1e-7, -1e-7, 0.0, 240.7 };
  const double ulp[] = { 0x1p-7, 0x1p-10 }; /* of numbers from 1 to 2 */
  (void)state;
  for (int d = 0; d < 2; d++)
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
      double x = values[i], near = x, sum = 0, low = INFINITY, high = -INFINITY;
      double step = fmax(ulp[d] * exp2(floor(log2(fabs(x) + 1e-300))), d ? 0x1p-24 : 0);
      nsai_ref_round((nsai_ref_rounding){ .dtype = dtypes[d] }, 1, &near);
      assert_true(fabs(near - x) <= step / 2);
      for (uint32_t draw = 1; draw <= 4000; draw++) {
        double y = x;
        nsai_ref_round((nsai_ref_rounding){ .dtype = dtypes[d], .draw = draw }, 1, &y);
        sum += y;
        low = fmin(low, y);
        high = fmax(high, y);
      }
      assert_true(near == low || near == high);
      if (near == x) assert_true(low == x && high == x);
      if (near != x) assert_true(low < x && x < high && fabs(high - low - step) < step * 1e-6);
      assert_true(fabs(sum / 4000 - x) <= 0.04 * step);
    }
}

static nsai_phi_kind mean = NSAI_PHI_MEAN, linear = NSAI_PHI_LINEAR, mlp = NSAI_PHI_MLP;
static int32_t f16 = NSA_F16, bf16 = NSA_BF16, f32 = NSA_F32;

#define WITH(test, value)                                                                          \
  { #test " " #value, test, NULL, NULL, &value }

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_rounding_draws),
    cmocka_unit_test(test_all_selected_is_dense),
    WITH(test_future, mean),
    WITH(test_future, mlp),
    WITH(test_split, mean),
    WITH(test_split, linear),
    WITH(test_ragged, mean),
    WITH(test_ragged, mlp),
    WITH(test_strides, linear),
    WITH(test_strides, mlp),
    WITH(test_threads, mean),
    WITH(test_threads, mlp),
    cmocka_unit_test(test_caller_blocks),
    cmocka_unit_test(test_shared_lists),
    cmocka_unit_test(test_ranges),
    cmocka_unit_test(test_select_rule),
    cmocka_unit_test(test_select_edges),
    cmocka_unit_test(test_select_stage),
    cmocka_unit_test(test_branch_absent),
    cmocka_unit_test(test_scaled_values),
    cmocka_unit_test(test_nothing_selected),
    WITH(test_rounding, f16),
    WITH(test_rounding, bf16),
    WITH(test_rounding, f32),
    WITH(test_external, mean),
    WITH(test_external, mlp),
    cmocka_unit_test(test_pairs),
    cmocka_unit_test(test_gate_forms),
    cmocka_unit_test(test_no_gates),
    cmocka_unit_test(test_keys_only),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
