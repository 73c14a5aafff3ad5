/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Pages of the KV cache on the CPU device: shared, copied, written over, free, and what of them
 * must be neither read nor written.
 */
#include "support/cmocka_all.h"

#include "kv_fixture.h"

#include <math.h>

static const machine_request shared = { 0 };
/* Its cache has coarse keys, and no compressed values. */
static const machine_request normalized = {
  .gate = NSAI_GATE_NONE, .keys_only = true, .pool = NSAI_POOL_MAX, .normalized = true
};

/* Its cache has index keys, and no compressed ones. */
static const machine_request indexed = {
  .phi = NSAI_PHI_NONE, .gate = NSAI_GATE_NONE, .pool = NSAI_POOL_MAX, .indexed = true
};

/* ---- pages of several sequences ---- */

/* Gives sequence 1 the first tokens of sequence 0. */
static void share_tokens(kv_fixture *w, int32_t count) {
  const nsa_kv *kv = &w->toy.io.kv;
  const nsa_tensor *const all[] = { &kv->k[0], &kv->v[0], &w->toy.io.k_idx };
  int32_t to = kv_length(w, 0);
  for (int i = 0; i < 3; i++) {
    const nsa_tensor *t = all[i];
    if (!t->data) continue;
    memcpy(toy_floats(t) + to * t->stride[0], t->data, (size_t)(count * t->stride[0]) * 4);
  }
}

/* A prefix of `prefix` tokens, computed once, serves two sequences: whole pages are shared, one
 * that is begun is copied before it is written. */
static void share_prefix(const machine_request *model, int32_t page_size, int32_t prefix) {
  static const int32_t lengths[] = { 142, 144 };
  const kv_options options = { .page_size = page_size };
  const int32_t first[] = { prefix, 0 }, rest[] = { 142 - prefix, 144 - prefix };
  kv_fixture w;
  kv_init(&w, model, &options, 2, lengths);
  share_tokens(&w, prefix);
  kv_oracle(&w);
  kv_step(&w, first, false);
  int32_t whole = prefix / page_size;
  for (int32_t p = 0; p < whole; p++) w.page[1][p] = w.page[0][p];
  w.page_count[1] = whole;
  if (prefix % page_size) {
    w.page[1][w.page_count[1]++] = kv_new_page(&w);
    kv_copy_page(&w, w.page[0][whole], w.page[1][whole]);
  }
  w.len[1] = prefix;
  kv_step(&w, rest, false);
  kv_free(&w);
}

static void test_sharing(void **state) {
  for (size_t i = 1; i < KV_PAGE_SIZES; i++) {
    share_prefix(&shared, kv_page_sizes[i], 45);
    share_prefix(&shared, kv_page_sizes[i], kv_page_sizes[i]);
    share_prefix(&normalized, kv_page_sizes[i], 45);
    share_prefix(&indexed, kv_page_sizes[i], 45);
  }
}

/* The whole prompt in an append that skips what is there: shared pages are not touched. */
static void skip_prefix(const machine_request *model) {
  static const int32_t lengths[] = { 80, 95 };
  const kv_options options = { .page_size = 16 };
  const int32_t prefix[] = { 32, 0 }, all[] = { 32, 60 }, none[] = { 0, 0 };
  kv_fixture w;
  kv_call c;
  kv_init(&w, model, &options, 2, lengths);
  share_tokens(&w, 32);
  kv_oracle(&w);
  kv_step(&w, prefix, false);
  w.page[1][0] = w.page[0][0];
  w.page[1][1] = w.page[0][1];
  w.page_count[1] = 2;
  kv_call_init(&c, &w, all, none);
  c.batch.slot_mapping = toy_tensor(&c.memory, NSA_F32, 2, 92, 2, 0); /* room for i64, -1 */
  c.batch.slot_mapping.dtype = NSA_I64;
  c.batch.slot_mapping.ndim = 1;
  c.batch.slot_mapping.stride[0] = 1;
  int64_t *slot = c.batch.slot_mapping.data;
  for (int32_t t = 32; t < 60; t++) slot[32 + t] = w.page[1][t / 16] * 16 + t % 16;
  for (int i = 0; i < 2; i++) { /* tokens that are skipped are not read */
    const nsa_tensor *t = i ? &c.io.new_kv.v[0] : &c.io.new_kv.k[0];
    memset(t->data, 0xff, (size_t)(64 * t->stride[0]) * 4);
  }
  kv_append(&c);
  kv_attend(&c, false);
  kv_compare(&c, "skipped");
  kv_call_free(&c);
  kv_free(&w);
}

static void test_skipped(void **state) {
  skip_prefix(&(machine_request){ 0 });
  skip_prefix(&normalized);
}

/* ---- drafts ---- */

/* Wrong drafts of each number are written, rejected, and written over; in pages, rows and rings. */
static void test_drafts(void **state) {
  static const int32_t lengths[] = { 120 };
  for (size_t i = 0; i < KV_PAGE_SIZES; i++)
    for (int kind = 0; kind < 3; kind++) {
      const bool ring = kind == 1;
      const machine_request branches = { .per_branch = true };
      const kv_options options = { .page_size = kv_page_sizes[i], .ring = ring };
      int32_t one = 1, begin = KV_CHUNK;
      kv_fixture w;
      kv_init(&w, kind == 2 ? &normalized : &branches, &options, 1, lengths);
      kv_oracle(&w);
      kv_step(&w, &begin, false);
      for (int32_t drafts = 1; drafts <= KV_STEP; drafts++) {
        kv_call c;
        kv_call_init(&c, &w, &drafts, w.len);
        for (int pair = 0; pair < NSA_BRANCHES; pair++) {
          toy_randomize(&c.memory, &c.io.new_kv.k[pair]);
          toy_randomize(&c.memory, &c.io.new_kv.v[pair]);
        }
        kv_append(&c);
        kv_attend(&c, true);
        kv_call_free(&c);
        kv_step(&w, &one, true); /* one token instead of them */
        kv_step(&w, &drafts, true);
      }
      kv_free(&w);
    }
}

/* ---- rows without keys, and what must not be read ---- */

/* Padded rows beside others, and alone; queries that stand before their sequence. */
static void test_padded(void **state) {
  static const int32_t lengths[] = { 40, 40, 40 };
  const kv_options options = { .page_size = 16 };
  kv_fixture w;
  kv_call c;
  kv_init(&w, &(machine_request){ 0 }, &options, 3, lengths);
  kv_oracle(&w);
  const int32_t begin[] = { 39, 0, 20 }, one[] = { 1, 1, 1 }, two[] = { 2, 0, 2 };
  kv_step(&w, begin, false);
  const int32_t at[] = { 39, -1, 20 }, nowhere[] = { -1, -1, -1 };
  kv_call_init(&c, &w, one, at);
  kv_append(&c);
  kv_attend(&c, true);
  kv_compare(&c, "padded");
  kv_call_free(&c);
  kv_call_init(&c, &w, two, nowhere);
  memset(c.io.gate.value.data, 0xff, /* NaN: of no effect on padded rows */
         (size_t)(c.io.gate.value.shape[0] * c.io.gate.value.stride[0]) * sizeof(float));
  kv_append(&c);
  kv_attend(&c, true);
  kv_compare(&c, "padded alone");
  nsa_tensor table = c.batch.block_table;
  c.batch.block_table.data = NULL; /* nobody has a page */
  c.batch.block_table.shape[1] = 0;
  kv_append(&c);
  kv_attend(&c, false);
  kv_compare(&c, "padded alone, without a list");
  c.batch.block_table = table;
  /* Two queries of which the second is the sequence's first token. */
  toy_ints(&c.batch.kv_len)[2] = 1;
  kv_attend(&c, true);
  for (int64_t e = 0; e < c.io.o.stride[0]; e++)
    assert_true(toy_floats(&c.io.o)[2 * c.io.o.stride[0] + e] == 0);
  assert_true(isfinite(toy_floats(&c.io.lse[NSA_WIN])[3 * w.model.heads]));
  kv_call_free(&c);
  kv_free(&w);
}

/* Everything behind a row becomes NaN, raw tokens and entries; the row does not move. */
static void test_future(void **state) {
  static const int32_t length = 90;
  for (size_t i = 0; i < KV_PAGE_SIZES; i++) {
    const kv_options options = { .page_size = kv_page_sizes[i] };
    kv_fixture w;
    kv_init(&w, &(machine_request){ .phi = *(nsai_phi_kind *)*state }, &options, 1, &length);
    kv_oracle(&w);
    for (int32_t at = length - 2; at >= 0; at -= 7) {
      int32_t kept = at + 1, rest = length - kept, zero = 0;
      kv_call all, future, c;
      kv_call_init(&all, &w, &length, &zero);
      kv_append(&all);
      kv_call_init(&future, &w, &rest, &kept);
      memset(future.io.new_kv.k[0].data, 0xff, (size_t)toy_count(&future.io.new_kv.k[0]) * 4);
      memset(future.io.new_kv.v[0].data, 0xff, (size_t)toy_count(&future.io.new_kv.v[0]) * 4);
      kv_append(&future);
      kv_call_init(&c, &w, &kept, &zero);
      kv_attend(&c, false);
      kv_compare(&c, "future");
      kv_call_free(&all);
      kv_call_free(&future);
      kv_call_free(&c);
    }
    kv_free(&w);
  }
}

/* Pages that no sequence has are neither read nor written. */
static void test_free_pages(void **state) {
  static const int32_t lengths[] = { 77, 50 };
  const kv_options options = { .page_size = 16, .hnd = true };
  kv_fixture w;
  kv_init(&w, &(machine_request){ 0 }, &options, 2, lengths);
  kv_oracle(&w);
  kv_step(&w, lengths, false);
  const nsa_tensor *all[] = { &w.cache.k[0], &w.cache.v[0], &w.cache.k_cmp, &w.cache.v_cmp };
  for (int32_t n = w.pages_used; n < KV_PAGES; n++) {
    int32_t page = kv_new_page(&w);
    for (int i = 0; i < 4; i++)
      for (int64_t e = 0; e < all[i]->stride[0]; e++)
        assert_int_equal(toy_ints(all[i])[page * all[i]->stride[0] + e], -1);
  }
  kv_free(&w);
}

/* Entries that end before the tokens written, or in one that is skipped, stay as they are. */
static void test_other_entries(void **state) {
  static const int32_t length = 60, q_len = 30, at = 30;
  const kv_options options = { .page_size = NSA_NONE };
  int64_t slot[30];
  kv_fixture w;
  kv_call c;
  kv_init(&w, &(machine_request){ 0 }, &options, 1, &length);
  kv_call_init(&c, &w, &q_len, &at);
  for (int i = 0; i < 30; i++) slot[i] = i == 5 ? -1 : at + i; /* token 35 ends a block */
  c.batch.slot_mapping =
      (nsa_tensor){ .data = slot, .ndim = 1, .dtype = NSA_I64, .shape = { 30 }, .stride = { 1 } };
  memset(w.cache.k[0].data, 0, (size_t)toy_count(&w.cache.k[0]) * 4); /* no NaN comes from there */
  kv_append(&c);
  const nsa_tensor *entries = &w.cache.k_cmp;
  for (int i = 0; i < 36; i++) {
    float value = toy_floats(entries)[i * entries->stride[1]];
    bool written = i >= 7 && i < 15; /* entry i of a row ends in token 4 i + 3 */
    if (isfinite(value) != (written && i != 35 / 4)) fail_msg("entry %d", i);
  }
  kv_call_free(&c);
  kv_free(&w);
}

int main(void) {
  static nsai_phi_kind mean = NSAI_PHI_MEAN, mlp = NSAI_PHI_MLP;
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_sharing),
    cmocka_unit_test(test_skipped),
    cmocka_unit_test(test_drafts),
    cmocka_unit_test(test_padded),
    cmocka_unit_test_prestate(test_future, &mean),
    cmocka_unit_test_prestate(test_future, &mlp),
    cmocka_unit_test(test_free_pages),
    cmocka_unit_test(test_other_entries),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
