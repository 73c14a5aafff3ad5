/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Prefills over raw tokens in e4m3 that are first expanded into the workspace: which rows serve, when
 * they expand and what they launch, and where the tokens lie, on the GPU of the fake driver.
 */
#include "support/cmocka_all.h"

#include "expanded_fixture.h"
#include "params/kv_cache.h"

#include <stdio.h>

#define YAML                                                                                       \
  "nsa: 1\nmodel: {heads: 64, kv_heads: 4, head_dim: 128, kv_sharing: %s, gate: none}\n"           \
  "serving: {page_size: 64, kv_dtype: e4m3}\n"
#define REACH 64 /* tokens of a cache that a new one is worth */
#define ROWS_BYTES(rows) ((int64_t)(rows)*4 * 128 * 2) /* of K, and of V */
#define RING 4096
#define WINDOW 512

#define MOST_EXPANDED 4

static NsaiExpandTokens expand[MOST_EXPANDED];
static int expanded;
static NsaiCodedAttendTma window;           /* what attend_window_sm90 */
static NsaiCodedAttendSelectedTma selected; /* and attend_selected_sm90_mma were given */

static double note_params(const fake_cuda_launch *launch, const void *params) {
  if (!strcmp(launch->name, "kv_cache_expand_tokens") && expanded < MOST_EXPANDED)
    memcpy(&expand[expanded++], params, sizeof *expand);
  if (!strcmp(launch->name, "attend_window_sm90")) memcpy(&window, params, sizeof window);
  if (!strcmp(launch->name, "attend_selected_sm90_mma")) memcpy(&selected, params, sizeof selected);
  return 1;
}

static void begin(expanded_run *r, bool per_branch, const char *override) {
  char yaml[sizeof YAML + 16];
  snprintf(yaml, sizeof yaml, YAML, per_branch ? "per_branch" : "shared");
  *r = (expanded_run){
    .kv_dtype = NSA_E4M3, .cmp_dtype = NSA_BF16, .per_branch = per_branch, .note = note_params
  };
  expanded_open(r, yaml, override);
}

/* A call whose table has pages for `longest` tokens. */
static void prefill(expanded_run *r, int64_t tokens, int32_t seqs, int64_t longest,
                    uint32_t branches) {
  expanded = 0;
  memset(expand, 0, sizeof expand);
  expanded_prefill(r, tokens, seqs, longest / 64, branches);
}

/* ---- which row ---- */

static void test_choice(void **state) {
  expanded_run r;
  begin(&r, false, NULL);
  nsa_problem p = INIT(nsa_problem, .op = NSA_OP_PREFILL, .max_tokens = 8192, .max_kv_len = 65536);
  machine_expect_story(r.ctx, &p, "attend_selected_expanded_sm90_mma warps=8 stages=7: chosen");
  machine_expect_story(r.ctx, &p, "attend_window_expanded_sm90 rows=192 keys=80 stages=2: chosen");
  p.overlap = NSA_OVERLAP_HIGH;
  machine_expect_story(r.ctx, &p, "attend_selected_window_expanded_sm90 warps=12");
  p.overlap = 0;
  p.max_kv_len = 262144; /* 512 MiB */
  machine_expect_story(r.ctx, &p, "attend_window_expanded_sm90 rows=192 keys=80 stages=2: chosen");
  p.max_kv_len = 262145;
  machine_expect_story(r.ctx, &p, "attend_selected_sm90_mma warps=8 stages=7: chosen");
  machine_expect_story(r.ctx, &p,
                       "of problem.max_kv_len (262145) take more than "
                       "thresholds.prefill_expand_bytes (536870912)");
  p.max_kv_len = 65536;
  p.max_tokens = 1023;
  machine_expect_story(
      r.ctx, &p,
      "problem.max_tokens (1023) new tokens are too few to expand 65536 of a sequence "
      "of problem.max_kv_len (65536) for");
  p.max_tokens = 1024;
  machine_expect_story(r.ctx, &p, "attend_window_expanded_sm90 rows=192 keys=80 stages=2: chosen");
  p.kv_dtype = NSA_NONE;
  machine_expect_story(r.ctx, &p, "it expands raw tokens of a cache in e4m3");
  expanded_close(&r);
  begin(&r, false, "thresholds.prefill_expand_bytes=0");
  p.kv_dtype = 0;
  machine_expect_story(r.ctx, &p, "attend_selected_sm90_mma warps=8 stages=7: chosen");
  expanded_close(&r);
  begin(&r, true, NULL);
  p.window_ring = 1;
  p.max_tokens = 128; /* of the window's rings little is read */
  machine_expect_story(r.ctx, &p, "attend_selected_sm90_mma warps=8 stages=7: chosen");
  machine_expect_story(r.ctx, &p, "attend_window_expanded_sm90 rows=");
  expanded_close(&r);
}

/* ---- launches ---- */

/* The shared memory of a kernel tells whether its stages hold codes. */
static uint32_t shared_of(const char *name) {
  const fake_cuda_state *record = machine_record();
  for (int i = 0; i < record->launches; i++)
    if (!strcmp(record->launch[i].name, name)) return record->launch[i].shared_bytes;
  fail_msg("%s was not launched", name);
  return 0;
}

/* What was expanded lies in the workspace, and is what the kernel reads. */
static void expect_rows(const expanded_run *r, int i, int64_t rows, int seqs,
                        const NsaiCachedAttendTma *by_window) {
  const NsaiCachePair *to = &expand[i].to;
  const char *k = to->k.data, *v = to->v.data;
  const int64_t bytes = ROWS_BYTES(rows) * seqs;
  assert_true(k >= r->memory && v >= k + bytes);
  assert_true(v + bytes <= r->memory + r->caps.workspace_bytes);
  assert_int_equal(to->k.page_stride, rows * 4 * 128);
  assert_int_equal(to->k.head_stride, rows * 128);
  assert_int_equal(to->k.row_stride, 128);
  assert_int_equal(to->pages, seqs);
  if (by_window) {
    assert_memory_equal(to, &by_window->pair, sizeof *to);
    assert_null(by_window->batch.slots);
  }
}

static void test_launches(void **state) {
  static const char together[] = "kv_cache_expand_tokens attend_window_sm90 "
                                 "attend_compressed_topn_sm90 attend_selected_sm90_mma";
  expanded_run r;
  begin(&r, false, NULL);
  expanded_plan(&r, 2048, 4, 65536);
  prefill(&r, 2048, 1, 65536, 0);
  expanded_expect(together);
  /* 64 of 65536 tokens a CTA, of each of 4 heads */
  assert_int_equal(machine_record()->launch[0].grid_x, 1024 * 4);
  assert_int_equal(machine_record()->launch[0].grid_y, 1);
  assert_int_equal(expand[0].behind, 65536);
  expect_rows(&r, 0, 65536, 1, &window.cached);
  assert_memory_equal(&expand[0].to, &selected.cached.pair, sizeof selected.cached.pair);
  assert_int_equal(expand[0].from.pages, EXPANDED_PAGES);
  const uint32_t elements = shared_of("attend_selected_sm90_mma");
  prefill(&r, 1024, 1, 65536, 0); /* just worth it */
  expanded_expect(together);
  prefill(&r, 1023, 1, 65536, 0);
  expanded_expect("attend_window_sm90 attend_compressed_topn_sm90 attend_selected_sm90_mma");
  assert_true(shared_of("attend_selected_sm90_mma") < elements);
  assert_int_equal(selected.cached.pair.pages, EXPANDED_PAGES);
  prefill(&r, 1023, 1, 65472, 0); /* by the pages of its table */
  expanded_expect(together);
  prefill(&r, 2048, 2, 65536, 0);
  expanded_expect(together);
  expect_rows(&r, 0, 65536, 2, &window.cached);
  prefill(&r, 2048, 3, 65536, 0); /* more than they are worth, and than there is room for */
  assert_int_equal(expanded, 0);
  prefill(&r, 2048, 1, 65536, 1u << NSA_WIN); /* those in windows */
  expanded_expect("kv_cache_expand_tokens attend_window_sm90");
  assert_int_equal(expand[0].behind, WINDOW - 1);
  assert_int_equal(machine_record()->launch[0].grid_x, (2048 + WINDOW + 14 + 63) / 64 * 4);
  prefill(&r, 2048, 1, 65536, 1u << NSA_CMP);
  assert_int_equal(expanded, 0);
  expanded_close(&r);
  begin(&r, false, "variants.force.attend_selected=attend_selected_sm90_mma");
  expanded_plan(&r, 2048, 1, 65536);
  prefill(&r, 2048, 1, 65536, 0); /* the window alone */
  expanded_expect(together);
  assert_int_equal(expand[0].behind, WINDOW - 1);
  assert_int_equal(selected.cached.pair.pages, EXPANDED_PAGES);
  expanded_close(&r);
}

/* The window's keys are read before the previous kernel has ended. */
static void test_fused(void **state) {
  expanded_run r;
  begin(&r, false, "variants.force.attend_selected=attend_selected_window_expanded_sm90");
  expanded_plan(&r, 2048, 1, 65536);
  prefill(&r, 2048, 1, 65536, 0);
  expanded_expect("kv_cache_expand_tokens attend_compressed_topn_sm90 attend_selected_window_sm90");
  prefill(&r, 2048, 1, 65536, 1u << NSA_WIN);
  machine_expect_launches("kv_cache_expand_tokens attend_selected_window_sm90");
  assert_int_equal(machine_record()->launch[1].overlaps, 0);
  assert_int_equal(expand[0].behind, WINDOW - 1);
  expanded_close(&r);
}

static void test_pairs(void **state) {
  static const char names[] = "kv_cache_expand_tokens kv_cache_expand_tokens attend_window_sm90 "
                              "attend_compressed_topn_sm90 attend_selected_sm90_mma";
  expanded_run r;
  begin(&r, true, NULL);
  expanded_plan(&r, 2048, 1, 65536);
  prefill(&r, 2048, 1, 65536, 0);
  expanded_expect(names);
  expect_rows(&r, 0, 65536, 1, NULL);
  expect_rows(&r, 1, 65536, 1, &window.cached);
  assert_memory_equal(&expand[0].to, &selected.cached.pair, sizeof selected.cached.pair);
  assert_ptr_not_equal(expand[0].to.k.data, expand[1].to.k.data);
  r.ring = RING;
  expanded_plan(&r, 2048, 2, 65536);
  prefill(&r, 2048, 2, 65536, 0);
  expanded_expect(names);
  expect_rows(&r, 0, 65536, 2, NULL);
  const int64_t ring = (2048 + WINDOW - 1 + 15) / 16 * 16;
  expect_rows(&r, 1, ring, 2, &window.cached);
  assert_int_equal(expand[1].from.ring, RING);
  assert_int_equal(expand[1].to.ring, ring);
  assert_int_equal(expand[0].to.ring, 0);
  expanded_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_choice),
    cmocka_unit_test(test_launches),
    cmocka_unit_test(test_fused),
    cmocka_unit_test(test_pairs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
