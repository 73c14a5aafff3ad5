/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The rules of a decode step: how it is split, which kernels take how many sequences, and which models and devices
 * these take, in which shapes.
 */
#include "support/cmocka_all.h"

#include "plan/spec.h"
#include "variants/decode/decode.h"

#include <stdio.h>
#include <string.h>

/* ---- splits ---- */

/* Whatever number of sequences comes, its parts have their places. */
static void expect_results(const nsai_problem *p, const nsai_kernel_spec *scan, int32_t sms) {
  nsai_decode_most most = nsai_decode_most_of(p, scan, NULL, sms);
  for (int32_t seqs = 1; seqs <= p->max_seqs; seqs = seqs * 3 / 2 + 1)
    for (int64_t each = 1; each <= p->max_q_len && each * seqs <= p->max_tokens; each++)
      for (int packed = 0; packed < 2; packed++) {
        nsai_decode_sizes sizes = { .problem = p,
                                    .scan = scan,
                                    .split_kv = true,
                                    .sms = sms,
                                    .tokens = each * seqs,
                                    .num_seqs = seqs,
                                    .packed = packed,
                                    .branches = 7 };
        nsai_decode_split s = nsai_decode_split_make(&sizes);
        int64_t parts = s.window_splits + s.selected_splits, items = s.tiles * p->model.kv_heads;
        assert_true(s.scan_splits >= 1 && s.scan_least >= 1);
        assert_true(s.tiles >= 1 && s.tiles <= most.tiles);
        assert_true(items * s.scan_splits <= most.scan_results);
        assert_true(each * seqs * p->model.kv_heads * parts <= most.attend_results);
        assert_int_equal(s.window_splits > 0, p->model.window > 0);
        assert_int_equal(s.selected_splits > 0, p->model.select_count > 0);
      }
}

static void test_results(void **state) {
  static const int64_t lengths[] = { 1, 31, 4096, 65536, 1 << 20 };
  static const int32_t seqs[] = { 1, 7, 64, 1000 };
  static const int32_t q_lens[] = { 1, 4, 16 };
  for (int i = 0; i < 5 * 4 * 3 * 4; i++) {
    nsai_problem p = { .op = NSA_OP_DECODE,
                       .selection = NSA_SELECT_OWN,
                       .max_kv_len = lengths[i % 5],
                       .max_seqs = seqs[i / 5 % 4],
                       .max_q_len = q_lens[i / 20 % 3] };
    p.model = (nsai_model){ .heads = i % 2 ? 64 : 12, .kv_heads = 4, .block = 32, .stride = 16 };
    p.model.select_block = i % 7 ? 64 : 48;
    p.model.select_count = i / 60 % 2 ? 16 : 0;
    p.model.window = i / 60 / 2 ? 512 : 0;
    p.max_tokens = (int64_t)p.max_seqs * p.max_q_len;
    nsai_kernel_spec scan = { .threads = 128, .tile_tokens = i % 2 ? p.max_q_len < 4 ? 1 : 4 : 4 };
    expect_results(&p, &scan, i % 3 ? 132 : 0);
  }
}

/* Sequences of up to 4 tokens have a tile each; as many as tokens allow, where few of them can be long. */
static void test_tiles(void **state) {
  nsai_problem p = { .op = NSA_OP_DECODE,
                     .selection = NSA_SELECT_OWN,
                     .max_kv_len = 65536,
                     .max_tokens = 128,
                     .max_seqs = 32,
                     .max_q_len = 4 };
  p.model =
      (nsai_model){ .heads = 64, .kv_heads = 4, .block = 32, .stride = 16, .select_block = 64 };
  const nsai_kernel_spec scan = { .threads = 256, .tile_tokens = 4 };
  nsai_decode_sizes sizes = {
    .problem = &p, .scan = &scan, .split_kv = true, .sms = 132, .packed = true
  };
  assert_int_equal(nsai_decode_most_of(&p, &scan, NULL, 132).tiles, 32);
  sizes.tokens = 128, sizes.num_seqs = 32;
  assert_int_equal(nsai_decode_split_make(&sizes).tiles, 32);
  assert_int_equal(nsai_decode_split_make(&sizes).seq_tiles, 1);
  p.max_q_len = 16;
  assert_int_equal(nsai_decode_most_of(&p, &scan, NULL, 132).tiles, 128 / 4 + 32);
  assert_int_equal(nsai_decode_split_make(&sizes).tiles, 128 / 4 + 32);
  assert_int_equal(nsai_decode_split_make(&sizes).seq_tiles, 0);
  sizes.num_seqs = 8;
  assert_int_equal(nsai_decode_split_make(&sizes).tiles, 8 * 4);
  assert_int_equal(nsai_decode_split_make(&sizes).seq_tiles, 4);
  sizes.packed = false;
  assert_int_equal(nsai_decode_split_make(&sizes).seq_tiles, 4);
}

/* How decode_split_kv_attend splits a step of so many sequences of `q_len` tokens, 16 heads to each of 4 KV heads; 64k. */
static nsai_decode_split split_of(int32_t seqs, int32_t q_len, int32_t selection,
                                  uint32_t branches) {
  nsai_problem p = { .op = NSA_OP_DECODE,
                     .selection = selection,
                     .max_kv_len = 65536,
                     .max_tokens = (int64_t)seqs * q_len,
                     .max_seqs = seqs,
                     .max_q_len = q_len };
  p.model = (nsai_model){ .heads = 64,
                          .kv_heads = 4,
                          .block = 32,
                          .stride = 16,
                          .select_block = 64,
                          .select_count = 16,
                          .window = 512 };
  nsai_kernel_spec scan = { .threads = 128, .tile_tokens = q_len > 1 ? 4 : 1 };
  nsai_constant_add(&scan, "kMinBlocks", 3);
  return nsai_decode_split_make(&(nsai_decode_sizes){ .problem = &p,
                                                      .scan = &scan,
                                                      .split_kv = true,
                                                      .sms = 132,
                                                      .tokens = p.max_tokens,
                                                      .num_seqs = seqs,
                                                      .branches = branches });
}

/* Blocks of threads that take a window and then some of their tile's blocks; or apart, of single tokens and of
 * ranges. */
static void test_attend(void **state) {
  const uint32_t all = 7, selected = 1u << NSA_SEL, window = 1u << NSA_WIN;
  nsai_decode_split s = split_of(32, 4, NSA_SELECT_OWN, all);
  assert_int_equal(s.tiles, 32);
  assert_int_equal(s.selected_splits, 3); /* of 396 at once, 128 each */
  assert_int_equal(s.window_splits, 1);
  assert_int_equal(s.attend_items, 3 * 32);
  s = split_of(4, 4, NSA_SELECT_BLOCKS, all);
  assert_int_equal(s.attend_items, s.selected_splits * s.tiles);
  assert_in_range(s.window_splits, 2,
                  s.selected_splits); /* no part waits long for one with the window */
  s = split_of(32, 4, NSA_SELECT_OWN, selected);
  assert_int_equal(s.window_splits, 0);
  assert_int_equal(s.attend_items, s.selected_splits * s.tiles);
  s = split_of(32, 4, NSA_SELECT_OWN, window);
  assert_int_equal(s.selected_splits, 0);
  assert_int_equal(s.attend_items, s.window_splits * s.tiles);
  s = split_of(8, 4, NSA_SELECT_RANGES, all);
  assert_int_equal(s.attend_items, s.selected_splits * 4 * s.tiles + s.window_splits * s.tiles);
  s = split_of(8, 1, NSA_SELECT_OWN, all);
  assert_int_equal(s.attend_items, (s.selected_splits + s.window_splits) * s.tiles);
}

/* One sequence, 64 heads to its KV head, whose rows four warps have: decode_split_kv_compressed's threads count for nothing. */
static void test_attend_groups(void **state) {
  nsai_problem p = { .op = NSA_OP_DECODE,
                     .selection = NSA_SELECT_OWN,
                     .max_kv_len = 65536,
                     .max_tokens = 1,
                     .max_seqs = 1 };
  p.model = (nsai_model){ .heads = 64, .kv_heads = 1, .block = 32, .stride = 16, .window = 512 };
  p.model.head_dim_qk = p.model.head_dim_v = 128;
  p.model.select_block = 64;
  p.model.select_count = 16;
  p.max_q_len = 1;
  for (int32_t threads = 128; threads <= 256; threads *= 2) {
    nsai_kernel_spec scan = { .threads = threads, .tile_tokens = 1 }, attend = { .threads = 128 };
    nsai_decode_split s = nsai_decode_split_make(&(nsai_decode_sizes){ .problem = &p,
                                                                       .scan = &scan,
                                                                       .attend = &attend,
                                                                       .split_kv = true,
                                                                       .sms = 132,
                                                                       .tokens = 1,
                                                                       .num_seqs = 1,
                                                                       .branches = 7 });
    assert_int_equal(s.selected_splits, 32); /* a stage of 32 keys each: 16 blocks of 64 keys */
    assert_int_equal(s.window_splits, 16);
  }
}

/* Which kernel takes so many sequences of 4 KV heads on 132 multiprocessors; 0: the chain. */
static nsai_role single_of_window(int32_t seqs, int64_t longest, bool split_kv, int32_t window) {
  nsai_problem p = {
    .op = NSA_OP_DECODE, .selection = NSA_SELECT_OWN, .max_kv_len = longest, .max_tokens = seqs
  };
  p.model = (nsai_model){ .heads = 64, .kv_heads = 4, .block = 32, .stride = 16, .window = window };
  p.model.select_block = 64;
  p.max_seqs = seqs;
  p.max_q_len = 1;
  nsai_kernel_spec scan = { .threads = 128, .tile_tokens = 1 };
  nsai_decode_split s = nsai_decode_split_make(&(nsai_decode_sizes){ .problem = &p,
                                                                     .scan = &scan,
                                                                     .split_kv = split_kv,
                                                                     .two_per_sm = true,
                                                                     .one_per_sm = split_kv,
                                                                     .cluster_2 = split_kv,
                                                                     .cluster_4 = split_kv,
                                                                     .sms = 132,
                                                                     .tokens = seqs,
                                                                     .num_seqs = seqs,
                                                                     .branches = 7 });
  if (s.single != NSAI_ROLES) assert_int_equal(s.scan_splits, 1);
  return s.single == NSAI_ROLES ? 0 : s.single;
}

static nsai_role single_of(int32_t seqs, int64_t longest, bool split_kv) {
  return single_of_window(seqs, longest, split_kv, 512);
}

static void test_single(void **state) {
  static const struct {
    int32_t seqs;
    nsai_role role;
  } rows[] = { { 1, NSAI_KERNEL_DECODE_CLUSTER_4 },    { 7, NSAI_KERNEL_DECODE_CLUSTER_4 },
               { 8, NSAI_KERNEL_DECODE_CLUSTER_2 }, /* 30 clusters of four run at once */
               { 16, NSAI_KERNEL_DECODE_CLUSTER_2 },   { 17, NSAI_KERNEL_DECODE_ONE_PER_SM },
               { 33, NSAI_KERNEL_DECODE_ONE_PER_SM },  { 40, NSAI_KERNEL_DECODE_TWO_PER_SM },
               { 66, NSAI_KERNEL_DECODE_TWO_PER_SM },  { 67, 0 }, /* a wave of 4 more */
               { 132, NSAI_KERNEL_DECODE_TWO_PER_SM }, { 256, NSAI_KERNEL_DECODE_TWO_PER_SM } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_int_equal(single_of(rows[i].seqs, 65536, true), rows[i].role);
    assert_int_equal(single_of(rows[i].seqs, 1 << 20, true), 0); /* one may be much longer */
    assert_int_equal(single_of(rows[i].seqs, 1 << 20, false), NSAI_KERNEL_DECODE_TWO_PER_SM);
  }
  assert_int_equal(single_of(14, 16384, true), NSAI_KERNEL_DECODE_CLUSTER_2);
  assert_int_equal(single_of(15, 16384, true), NSAI_KERNEL_DECODE_ONE_PER_SM);
  assert_int_equal(single_of(15, 16448, true), NSAI_KERNEL_DECODE_CLUSTER_2);
  assert_int_equal(single_of_window(1, 65536, true, 4096), NSAI_KERNEL_DECODE_CLUSTER_4);
  assert_int_equal(single_of_window(1, 65536, true, 4097), 0);
  assert_int_equal(single_of_window(3, 65536, true, 65536), 0);
  assert_int_equal(single_of_window(4, 65536, true, 65536), NSAI_KERNEL_DECODE_CLUSTER_4);
  assert_int_equal(single_of_window(1, 1024, true, 65536), NSAI_KERNEL_DECODE_CLUSTER_4);
}

/* What nsa_explain says of a plan that has them all: every number of sequences once, by what takes it. */
static void test_forms(void **state) {
  nsai_kernel_spec specs[NSAI_ROLES] = { 0 };
  nsai_problem p = { .op = NSA_OP_DECODE,
                     .selection = NSA_SELECT_OWN,
                     .max_kv_len = 65536,
                     .max_tokens = 140,
                     .max_q_len = 1 };
  char text[1024];
  const char *at = text;
  nsai_writer w = nsai_writer_open(text, sizeof text);
  p.model = (nsai_model){ .heads = 64, .kv_heads = 4, .block = 32, .stride = 16 };
  p.model.select_block = 64;
  p.max_seqs = 140;
  specs[NSAI_KERNEL_DECODE_SCAN] =
      (nsai_kernel_spec){ .entry = "decode_split_kv_compressed", .threads = 128 };
  specs[NSAI_KERNEL_DECODE_SCAN].tile_tokens = 1;
  specs[NSAI_KERNEL_DECODE_TWO_PER_SM] = (nsai_kernel_spec){ .entry = "one", .threads = 128 };
  specs[NSAI_KERNEL_DECODE_ONE_PER_SM] = (nsai_kernel_spec){ .entry = "one", .threads = 256 };
  specs[NSAI_KERNEL_DECODE_CLUSTER_2] =
      (nsai_kernel_spec){ .entry = "one", .threads = 256, .cluster = 2 };
  specs[NSAI_KERNEL_DECODE_CLUSTER_4] =
      (nsai_kernel_spec){ .entry = "one", .threads = 256, .cluster = 4 };
  nsai_decode_write_forms(&p, specs, 132, &w);
  assert_int_equal(strncmp(at, "  steps of one token: ", 22), 0);
  at += 22;
  for (int32_t seqs = 1; seqs <= 140;) {
    int32_t from = 0, to = 0;
    int length = 0;
    assert_int_equal(sscanf(at, "%d%n to %d%n", &from, &length, &to, &length) >= 1, 1);
    at += length;
    if (!to) to = from;
    assert_int_equal(from, seqs);
    assert_true(to >= from && to <= 140);
    if (seqs == 1) at += strlen(" sequences");
    nsai_role form = single_of(from, 65536, true);
    const char *by = form == NSAI_KERNEL_DECODE_CLUSTER_4    ? " by one of 4 x 256 threads"
                     : form == NSAI_KERNEL_DECODE_CLUSTER_2  ? " by one of 2 x 256 threads"
                     : form == NSAI_KERNEL_DECODE_ONE_PER_SM ? " by one of 256 threads"
                     : form == NSAI_KERNEL_DECODE_TWO_PER_SM ? " by one of 128 threads"
                                                             : " by decode_split_kv";
    for (; seqs <= to; seqs++) assert_int_equal(single_of(seqs, 65536, true), form);
    assert_int_equal(strncmp(at, by, strlen(by)), 0);
    at += strlen(by) + (seqs <= 140 ? 2 : 0); /* ", " */
  }
  assert_string_equal(at, "\n");
  specs[NSAI_KERNEL_DECODE_TWO_PER_SM].entry = NULL;
  specs[NSAI_KERNEL_DECODE_CLUSTER_2].entry = specs[NSAI_KERNEL_DECODE_CLUSTER_4].entry = NULL;
  w = nsai_writer_open(text, sizeof text);
  nsai_decode_write_forms(&p, specs, 132, &w);
  assert_non_null(strstr(text, " by one of 256 threads")); /* beside the chain */
  specs[NSAI_KERNEL_DECODE_ONE_PER_SM].entry = NULL;
  w = nsai_writer_open(text, sizeof text);
  nsai_decode_write_forms(&p, specs, 132, &w);
  assert_int_equal(w.used, 0); /* there is one way */
}

/* ---- what kernels take ---- */

static const nsai_target h200 = { "sm_90a", "NVIDIA H200", 232448, 0, 132 },
                         unknown = { "sm_90a", NULL, 232448, 0, 132 },
                         small = { "sm_120", NULL, 101376, 0, 84 },
                         old = { "sm_80", NULL, 166912, 0, 108 };
static const nsai_model model = { .heads = 64,
                                  .kv_heads = 4,
                                  .head_dim_qk = 128,
                                  .head_dim_v = 128,
                                  .block = 32,
                                  .stride = 16,
                                  .select_block = 64,
                                  .select_count = 16,
                                  .select_init = 1,
                                  .select_local = 2,
                                  .window = 512,
                                  .dtype = NSA_BF16 };

/* A decode of so many sequences of up to 64k tokens, `q_len` new ones each, over pages of 64. */
static nsai_problem decode_of(int32_t seqs, int32_t q_len) {
  return (nsai_problem){ .op = NSA_OP_DECODE,
                         .selection = NSA_SELECT_OWN,
                         .model = model,
                         .max_kv_len = 65536,
                         .max_tokens = (int64_t)seqs * q_len,
                         .max_seqs = seqs,
                         .max_q_len = q_len,
                         .page_size = 64 };
}

/* Chosen with clusters of so many blocks; 0: refused with this text. */
static void expect_cluster(const nsai_problem *p, const nsai_target *t, int32_t cluster,
                           const char *text) {
  char story[2048];
  nsai_reasons reasons = { nsai_writer_open(story, sizeof story), 0 };
  nsai_decider by;
  nsai_legal_decode_cluster(p, t, &reasons);
  if (text && !strstr(story, text)) fail_msg("no '%s' in: %s", text, story);
  if ((reasons.count > 0) != (cluster == 0)) fail_msg("%d reasons: %s", reasons.count, story);
  if (!cluster) return;
  nsai_tiles tiles = nsai_space_decode_cluster.choose(p, t, &by);
  assert_int_equal(tiles.of[NSAI_TILE_CLUSTER], cluster);
  nsai_space_decode_cluster.fit(p, t, &tiles, &reasons);
  assert_int_equal(reasons.count, 0);
}

static int64_t constant_of(const nsai_kernel_spec *spec, const char *name) {
  for (int i = 0; i < spec->constant_count; i++)
    if (!strcmp(spec->constants[i].name, name)) return spec->constants[i].value;
  fail_msg("%s has no %s", spec->entry, name);
  return 0;
}

/* What it refuses, and the shapes that the rule chooses. */
static void test_cluster_rules(void **state) {
  nsai_problem p = decode_of(1, 1);
  expect_cluster(&p, &h200, 16, NULL);
  expect_cluster(&p, &unknown, 8, NULL);
  expect_cluster(&p, &small, 0, "shared memory");
  expect_cluster(&p, &old, 0, "sm_90 or later");
  p.max_kv_len = 1 << 20;
  expect_cluster(&p, &h200, 16, NULL);
  p.max_kv_len = 1 << 22;
  expect_cluster(&p, &h200, 0, "max_kv_len");
  p.max_kv_len = 65536;
  p.max_tokens = 1000;
  expect_cluster(&p, &h200, 2, NULL);
  assert_false(nsai_sensible_decode_cluster(&p, &h200));
  p.max_tokens = 16;
  expect_cluster(&p, &h200, 2, NULL);
  p.max_kv_len = 16384;
  assert_false(nsai_sensible_decode_cluster(&p, &h200));
  p.max_kv_len = 65536;
  p.max_tokens = 1;
  assert_true(nsai_sensible_decode_cluster(&p, &h200));
  p.max_kv_len = 1 << 19; /* 32767 compressed keys of four KV heads */
  assert_true(nsai_sensible_decode_cluster(&p, &h200));
  p.max_tokens = 4; /* more than run at once */
  assert_false(nsai_sensible_decode_cluster(&p, &h200));
  p.max_kv_len = 1 << 18; /* 4096 selection blocks */
  assert_false(nsai_sensible_decode_cluster(&p, &h200));
  p.max_tokens = 1;
  p.max_kv_len = 1 << 20; /* 16384, which decode_split_kv_select does not keep */
  assert_true(nsai_sensible_decode_cluster(&p, &h200));
  p.max_tokens = 2; /* clusters of 16 alone hold these */
  assert_false(nsai_sensible_decode_cluster(&p, &h200));
  p.max_kv_len = 65536;
  p.max_tokens = 1;
  p.model.select_count = 64;
  expect_cluster(&p, &h200, 0, "61 blocks");
  p.model = model;
  p.model.heads = 128;
  expect_cluster(&p, &h200, 0, "32 heads");
}

/* Whether decode_pipelined takes the problem in each of its shapes: clusters of four wide blocks, pairs of them, these
 * alone, two narrow ones to a multiprocessor. */
static void expect_shapes(const nsai_problem *p, const nsai_target *t, bool fours, bool others) {
  static const struct {
    int32_t warps, blocks, cluster;
  } shapes[] = { { 8, 1, 4 }, { 8, 1, 2 }, { 8, 1, 1 }, { 4, 2, 1 } };
  for (int i = 0; i < 4; i++) {
    nsai_kernel_spec spec = { 0 };
    assert_int_equal(nsai_specify_decode_pipelined(p, t, shapes[i].warps, shapes[i].blocks,
                                                   shapes[i].cluster, &spec),
                     i ? others : fours);
    if (!spec.entry) continue;
    assert_string_equal(spec.entry, "decode_pipelined");
    assert_int_equal(spec.threads, 64 * shapes[i].warps);
    assert_int_equal(spec.cluster, shapes[i].cluster > 1 ? shapes[i].cluster : 0);
    assert_true(nsai_holds_blocks(t, spec.shared_bytes, shapes[i].blocks));
  }
}

static void expect_pipelined(const nsai_problem *p, const nsai_target *t, bool taken) {
  expect_shapes(p, t, taken, taken);
}

static void test_pipelined_rules(void **state) {
  nsai_problem p = decode_of(64, 1);
  const nsai_problem plain = p;
  expect_pipelined(&p, &h200, true);
  expect_pipelined(&p, &unknown, true);
  expect_pipelined(&p, &small, false);
  expect_pipelined(&p, &old, false);
  p.max_q_len = 2;
  expect_pipelined(&p, &h200, false);
  p = plain;
  p.count_reads = true;
  expect_pipelined(&p, &h200, false);
  p = plain;
  p.selection = NSA_SELECT_BLOCKS;
  expect_pipelined(&p, &h200, false);
  p = plain;
  p.max_kv_len = 1 << 22;
  expect_pipelined(&p, &h200, false);
  p = plain;
  p.model.select_count = 64; /* 61 are searched */
  expect_pipelined(&p, &h200, false);
  p = plain;
  p.model.heads = 128;
  expect_pipelined(&p, &h200, false);
  p = plain;
  p.model.head_dim_qk = 192; /* registers */
  expect_pipelined(&p, &h200, false);
  p = plain;
  p.model.head_dim_qk = p.model.head_dim_v = 72;
  p.model.heads = 4;
  expect_shapes(&p, &h200, false, true); /* 18 places of four columns */
}

/* The last blocks are read for both branches where these have one K and V, in which the window holds the blocks. */
static void test_pipelined_both(void **state) {
  static const struct {
    int32_t count, local, window;
    bool ring, per_branch;
    int64_t both;
  } cases[] = {
    { 16, 2, 512, false, false, 2 }, { 16, 2, 128, false, false, 2 },
    { 16, 2, 127, false, false, 0 }, { 16, 1, 64, false, false, 1 },
    { 16, 1, 63, false, false, 0 },  { 16, 0, 512, false, false, 0 },
    { 16, 2, 0, false, false, 0 },   { 0, 2, 512, false, false, 0 },
    { 16, 2, 512, true, true, 0 },   { 16, 2, 512, false, true, 0 },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    nsai_problem p = decode_of(64, 1);
    p.window_ring = cases[i].ring;
    p.model.select_count = cases[i].count;
    p.model.select_local = cases[i].local;
    p.model.window = cases[i].window;
    p.model.per_branch = cases[i].per_branch;
    nsai_kernel_spec spec = { 0 };
    assert_true(nsai_specify_decode_pipelined(&p, &h200, 8, 1, 1, &spec));
    assert_int_equal(constant_of(&spec, "kWindowSelectedBlocks"), cases[i].both);
  }
}

/* Less shared memory, fewer selection blocks whose pooled values decode_pipelined keeps there: the most that fit, a power
 * of two from 8 on, or none. */
static void test_pipelined_kept(void **state) {
  const nsai_problem p = decode_of(64, 1);
  const int64_t row = 16 * sizeof(float); /* of a block, all heads */
  int64_t kept = 256;
  int sizes = 1;
  nsai_target t = h200;
  nsai_kernel_spec spec = { 0 };
  for (; nsai_specify_decode_pipelined(&p, &t, 8, 1, 1, &spec); t.shared_bytes -= 256) {
    const int64_t now = constant_of(&spec, "kKeptBlocks");
    assert_true(spec.shared_bytes <= t.shared_bytes);
    if (t.shared_bytes == h200.shared_bytes) assert_int_equal(now, kept);
    if (now < 256) assert_true(spec.shared_bytes + (now ? now : 8 - 1) * row > t.shared_bytes);
    if (now == kept) continue;
    assert_int_equal(now, kept > 8 ? kept / 2 : 0);
    kept = now;
    sizes++;
  }
  assert_int_equal(kept, 0);
  assert_int_equal(sizes, 7);
}

/* Threads of decode_split_kv_compressed and decode_split_kv_attend for drafts of 64/4 heads of 128; a multiprocessor has the shared memory
 * of two of their blocks, or of a wide one. */
static void expect_threads(int32_t seqs, int32_t q_len, int32_t threads) {
  const nsai_problem p = decode_of(seqs, q_len);
  nsai_kernel_spec specs[NSAI_ROLES] = { 0 };
  nsai_decider by;
  const nsai_tiles tiles = nsai_space_decode_split_kv.choose(&p, &h200, &by);
  nsai_specify_decode_split_kv(&p, &h200, &tiles, specs);
  for (nsai_role role = NSAI_KERNEL_DECODE_SCAN; role <= NSAI_KERNEL_DECODE_ATTEND; role += 2) {
    assert_int_equal(specs[role].threads, threads);
    assert_true(nsai_holds_blocks(&h200, specs[role].shared_bytes, threads > 256 ? 1 : 2));
  }
  expect_results(&p, &specs[NSAI_KERNEL_DECODE_SCAN], h200.sms);
}

static void test_drafts(void **state) {
  expect_threads(16, 4, 512); /* 64 tiles on 132 multiprocessors */
  expect_threads(17, 4, 256);
  expect_threads(16, 8, 256); /* 128 rows */
  expect_threads(16, 1, 128);
}

/* Heads whose registers leave decode_split_kv_compressed one team of 64 rows to a block of threads. */
static void test_group_registers(void **state) {
  static const struct {
    int32_t dim_qk, dim_v, stride, threads;
  } cases[] = { { 16, 128, 16, 128 }, { 16, 104, 16, 128 }, { 48, 128, 32, 128 },
                { 16, 96, 16, 256 },  { 64, 128, 32, 256 }, { 56, 120, 16, 256 },
                { 96, 160, 16, 128 }, { 64, 160, 32, 128 }, { 96, 144, 16, 128 },
                { 128, 128, 16, 256 } };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    nsai_problem p = decode_of(32, 4);
    p.model.head_dim_qk = cases[i].dim_qk;
    p.model.head_dim_v = cases[i].dim_v;
    p.model.stride = cases[i].stride;
    nsai_kernel_spec specs[NSAI_ROLES] = { 0 };
    nsai_decider by;
    const nsai_tiles tiles = nsai_space_decode_split_kv.choose(&p, &h200, &by);
    nsai_specify_decode_split_kv(&p, &h200, &tiles, specs);
    assert_int_equal(specs[NSAI_KERNEL_DECODE_SCAN].threads, cases[i].threads);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_single),         cmocka_unit_test(test_forms),
    cmocka_unit_test(test_results),        cmocka_unit_test(test_tiles),
    cmocka_unit_test(test_attend),         cmocka_unit_test(test_attend_groups),
    cmocka_unit_test(test_cluster_rules),  cmocka_unit_test(test_pipelined_rules),
    cmocka_unit_test(test_pipelined_kept), cmocka_unit_test(test_pipelined_both),
    cmocka_unit_test(test_drafts),         cmocka_unit_test(test_group_registers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
