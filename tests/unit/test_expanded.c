/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Prefills over compressed entries in e4m3 that are first expanded into the workspace: which rows
 * serve, what is launched, and where the entries of which sequences lie, on the GPU of the fake
 * driver.
 */
#include "support/cmocka_all.h"

#include "expanded_fixture.h"
#include "params/kv_cache.h"

#define YAML                                                                                       \
  "nsa: 1\nmodel: {heads: 64, kv_heads: 4, head_dim: 128, kv_sharing: shared, gate: none}\n"       \
  "serving: {page_size: 64, cmp_dtype: e4m3}\n"
#define LEAST 17 /* new tokens of a sequence that are worth it */
#define SEQUENCE_BYTES(tokens) ((tokens) / 16 * 4 * 128 * 2) /* of K, and of V */

static NsaiExpandEntries expand;
static NsaiExpanded read_by; /* the kernel of the compressed branch */

static double note_params(const fake_cuda_launch *launch, const void *params) {
  if (!strcmp(launch->name, "kv_cache_expand_entries")) memcpy(&expand, params, sizeof expand);
  if (!strcmp(launch->name, "attend_compressed_topn_sm90"))
    read_by = ((const NsaiExpandedCompressedTopn *)params)->expanded;
  if (!strcmp(launch->name, "attend_compressed_sm90"))
    read_by = ((const NsaiExpandedAttendTma *)params)->expanded;
  return 1;
}

static void begin(expanded_run *r, const char *override) {
  *r = (expanded_run){ .kv_dtype = NSA_BF16, .cmp_dtype = NSA_E4M3, .note = note_params };
  expanded_open(r, YAML, override);
}

static void prefill(expanded_run *r, int64_t tokens, int32_t seqs, uint32_t branches) {
  memset(&expand, 0, sizeof expand);
  memset(&read_by, 0, sizeof read_by);
  expanded_prefill(r, tokens, seqs, 1024, branches);
}

static bool launched(const char *name) {
  const fake_cuda_state *record = machine_record();
  for (int i = 0; i < record->launches; i++)
    if (!strcmp(record->launch[i].name, name)) return true;
  return false;
}

/* ---- which row ---- */

static void expect_row(expanded_run *r, const nsa_problem *p, const char *part) {
  machine_expect_story(r->ctx, p, part);
}

static void test_choice(void **state) {
  expanded_run r;
  begin(&r, NULL);
  nsa_problem p = INIT(nsa_problem, .op = NSA_OP_PREFILL, .max_tokens = 8192, .max_kv_len = 65536);
  expect_row(&r, &p, "attend_compressed_topn_expanded_sm90: chosen");
  p.max_kv_len = 1025;
  expect_row(&r, &p, "attend_compressed_topn_expanded_sm90: chosen");
  p.max_kv_len = 1024; /* too short for importance in the same pass */
  expect_row(&r, &p, "attend_compressed_expanded_sm90 rows=192 keys=64 stages=2: chosen");
  p.max_kv_len = 1048576;
  expect_row(&r, &p, "attend_compressed_topn_expanded_sm90: chosen");
  p.max_kv_len = 1048592; /* another entry */
  expect_row(&r, &p, "attend_compressed_topn_sm90: chosen");
  expect_row(&r, &p,
             "the entries of a sequence of problem.max_kv_len (1048592) take more than 128 MiB");
  p.max_kv_len = 65536;
  p.cmp_dtype = NSA_NONE;
  expect_row(&r, &p, "attend_compressed_topn_sm90: chosen");
  expect_row(&r, &p, "it expands compressed entries of a cache in e4m3");
  expanded_close(&r);
}

/* ---- launches ---- */

static void test_launches(void **state) {
  expanded_run r;
  begin(&r, "variants.force.attend_window=attend_window_sm90");
  expanded_plan(&r, 2048, 1, 65536);
  prefill(&r, 2048, 1, 0);
  expanded_expect("kv_cache_expand_entries attend_window_sm90 attend_compressed_topn_sm90 "
                  "attend_selected_sm90_mma");
  /* 64 of 4096 entries a CTA, of each of 4 heads */
  assert_int_equal(machine_record()->launch[0].grid_x, 64 * 4);
  assert_int_equal(machine_record()->launch[0].grid_y, 1);
  prefill(&r, LEAST - 1, 1, 0); /* too few tokens, as the kernel of the branch finds, too */
  expanded_expect("attend_window_sm90 attend_compressed_topn_sm90 attend_selected_sm90_mma");
  assert_int_equal(read_by.least_tokens, LEAST);
  prefill(&r, LEAST, 1, 1u << NSA_CMP);
  expanded_expect("kv_cache_expand_entries attend_compressed_topn_sm90");
  prefill(&r, 2048, 1, 1u << NSA_WIN);
  expanded_expect("attend_window_sm90");
  expanded_plan(&r, LEAST - 1, 8, 65536); /* has no workspace for any */
  prefill(&r, LEAST - 1, 1, 1u << NSA_CMP);
  expanded_expect("attend_compressed_topn_sm90");
  assert_true(read_by.least_tokens >= LEAST);
  expanded_close(&r);
  begin(&r, "variants.force.attend_compressed=attend_compressed_topn_sm90");
  expanded_plan(&r, 2048, 1, 65536);
  prefill(&r, 2048, 1, 0);
  assert_false(launched("kv_cache_expand_entries"));
  expanded_close(&r);
}

/* ---- where entries lie ---- */

/* The slot of a sequence as data/expanded_entries.cuh finds it; -1: none. */
static int slot_of(const NsaiExpanded *to, int begin, int tokens, int s) {
  if (tokens < to->least_tokens) return -1;
  return to->by_tokens ? begin / to->least_tokens : s;
}

/* Every sequence with enough new tokens has a slot of its own, which is launched for and lies in the
 * workspace; `expanded`: how many there are. */
static void expect_slots(expanded_run *r, int64_t longest, const int *tokens, int seqs,
                         int expanded) {
  int total = 0, found = 0;
  bool taken[4096] = { false };
  for (int s = 0; s < seqs; s++) total += tokens[s];
  prefill(r, total, seqs, 0);
  assert_true(launched("kv_cache_expand_entries"));
  assert_memory_equal(&expand.to, &read_by, sizeof read_by);
  const NsaiExpanded *to = &read_by;
  const int64_t side = SEQUENCE_BYTES(longest);
  const char *first = r->memory, *last = first + r->caps.workspace_bytes;
  assert_int_equal(to->k.page_stride * 2, side);
  assert_int_equal(to->v.page_stride * 2, side);
  for (int s = 0, begin = 0; s < seqs; begin += tokens[s++]) {
    const int slot = slot_of(to, begin, tokens[s], s);
    if (slot < 0) continue;
    assert_in_range(slot, 0, machine_record()->launch[0].grid_y - 1);
    assert_false(taken[slot]);
    taken[slot] = true;
    found++;
    const char *k = (const char *)to->k.data + slot * side,
               *v = (const char *)to->v.data + slot * side;
    assert_true(k >= first && k + side <= (const char *)to->v.data);
    assert_true(v >= (const char *)to->v.data && v + side <= last);
    /* The one sequence that a slot's CTAs look at. */
    if (to->by_tokens) {
      const int row = (slot + 1) * to->least_tokens - 1;
      assert_true(row >= begin && row < begin + tokens[s]);
    }
  }
  assert_int_equal(found, expanded);
}

static void test_slots(void **state) {
  expanded_run r;
  int tokens[256];
  begin(&r, "variants.force.attend_window=attend_window_sm90");
  expanded_plan(&r, 2080, 33, 65536); /* 16 sequences of 8 MiB fit */
  for (int s = 0; s < 32; s++) tokens[s] = 1;
  tokens[32] = 2048;
  expect_slots(&r, 65536, tokens, 33, 1);
  for (int s = 0; s < 16; s++) tokens[s] = s % 2 ? 1 : 259;
  expect_slots(&r, 65536, tokens, 16, 8); /* by their numbers */
  for (int s = 0; s < 33; s++) tokens[s] = 63;
  prefill(&r, 33 * 63, 33, 0); /* 33 long ones: nothing is expanded */
  assert_int_equal(read_by.least_tokens, 33 * 63 / 17 + 1);
  for (int s = 0; s < 33; s++) tokens[s] = s % 4 ? 1 : 128;
  expect_slots(&r, 65536, tokens, 33, 9);
  expanded_plan(&r, 256, 256, 4096); /* 15 slots, by the tokens of the plan */
  for (int s = 0; s < 100; s++) tokens[s] = s % 10 ? 1 : 16;
  tokens[99] = 5;
  tokens[50] = LEAST;
  expect_slots(&r, 4096, tokens, 100, 1);
  for (int s = 0; s < 15; s++) tokens[s] = LEAST;
  tokens[15] = 1;
  expect_slots(&r, 4096, tokens, 16, 15);
  expanded_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_choice),
    cmocka_unit_test(test_launches),
    cmocka_unit_test(test_slots),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
