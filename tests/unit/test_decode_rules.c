/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The rules of a decode step: how it is split, which kernels take how many sequences, and which
 * models and devices these take, in which shapes.
 */
#include "support/cmocka_all.h"

#include "config/config.h"
#include "measured_model.h"
#include "variants/decode/batch.h"
#include "variants/decode/split.h"

/* ---- problems ---- */

/* A decode of so many sequences of up to 64k tokens, `q_len` new ones each, over pages of 64. */
static nsai_problem decode_of(int32_t seqs, int32_t q_len) {
  return (nsai_problem){ .op = NSA_OP_DECODE,
                         .selection = NSA_SELECT_TOPN,
                         .model = measured_model,
                         .max_kv_len = 65536,
                         .max_tokens = (int64_t)seqs * q_len,
                         .max_seqs = seqs,
                         .max_q_len = q_len,
                         .page_size = 64 };
}

/* ---- splits ---- */

/* Whatever number of sequences comes, its parts have their places. */
static void expect_results(const nsai_problem *p, const nsai_kernel_spec *scan, int32_t sms) {
  nsai_decode_most most = nsai_decode_most_of(p, scan, NULL, sms);
  for (int32_t seqs = 1; seqs <= p->max_seqs; seqs = seqs * 3 / 2 + 1)
    for (int64_t each = 1; each <= p->max_q_len && each * seqs <= p->max_tokens; each++)
      for (int packed = 0; packed < 2; packed++) {
        nsai_decode_sizes sizes = { .problem = p,
                                    .scan = scan,
                                    .sms = sms,
                                    .step = { each * seqs, seqs, packed },
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
                       .selection = NSA_SELECT_TOPN,
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

/* Sequences of up to 4 tokens have a tile each; as many as tokens allow, where few of them can be
 * long. */
static void test_tiles(void **state) {
  nsai_problem p = decode_of(32, 4);
  p.model.select_count = p.model.window = 0;
  const nsai_kernel_spec scan = { .threads = 256, .tile_tokens = 4 };
  nsai_decode_sizes sizes = { .problem = &p, .scan = &scan, .sms = 132, .step = { 128, 32, true } };
  assert_int_equal(nsai_decode_most_of(&p, &scan, NULL, 132).tiles, 32);
  assert_int_equal(nsai_decode_split_make(&sizes).tiles, 32);
  assert_int_equal(nsai_decode_split_make(&sizes).seq_tiles, 1);
  p.max_q_len = 16;
  assert_int_equal(nsai_decode_most_of(&p, &scan, NULL, 132).tiles, 128 / 4 + 32);
  assert_int_equal(nsai_decode_split_make(&sizes).tiles, 128 / 4 + 32);
  assert_int_equal(nsai_decode_split_make(&sizes).seq_tiles, 0);
  sizes.step.num_seqs = 8;
  assert_int_equal(nsai_decode_split_make(&sizes).tiles, 8 * 4);
  assert_int_equal(nsai_decode_split_make(&sizes).seq_tiles, 4);
  sizes.step.packed = false;
  assert_int_equal(nsai_decode_split_make(&sizes).seq_tiles, 4);
}

/* How decode_split_kv_attend splits a step of so many sequences of `q_len` tokens, 16 heads to each
 * of 4 KV heads; 64k. */
static nsai_decode_split split_of(int32_t seqs, int32_t q_len, int32_t selection,
                                  uint32_t branches) {
  nsai_problem p = decode_of(seqs, q_len);
  p.selection = selection;
  nsai_kernel_spec scan = { .threads = 128, .tile_tokens = q_len > 1 ? 4 : 1 };
  nsai_constant_add(&scan, "kMinBlocks", 3);
  return nsai_decode_split_make(&(nsai_decode_sizes){ .problem = &p,
                                                      .scan = &scan,
                                                      .sms = 132,
                                                      .step = { p.max_tokens, seqs, false },
                                                      .branches = branches });
}

/* Blocks of threads that take a window and then some of their tile's blocks; or apart, of single
 * tokens and of ranges. */
static void test_attend(void **state) {
  const uint32_t all = 7, selected = 1u << NSA_SEL, window = 1u << NSA_WIN;
  nsai_decode_split s = split_of(32, 4, NSA_SELECT_TOPN, all);
  assert_int_equal(s.tiles, 32);
  assert_int_equal(s.selected_splits, 3); /* of 396 at once, 128 each */
  assert_int_equal(s.window_splits, 1);
  assert_int_equal(s.attend_items, 3 * 32);
  s = split_of(4, 4, NSA_SELECT_BLOCKS, all);
  assert_int_equal(s.attend_items, s.selected_splits * s.tiles);
  assert_in_range(s.window_splits, 2,
                  s.selected_splits); /* no part waits long for one with the window */
  s = split_of(32, 4, NSA_SELECT_TOPN, selected);
  assert_int_equal(s.window_splits, 0);
  assert_int_equal(s.attend_items, s.selected_splits * s.tiles);
  s = split_of(32, 4, NSA_SELECT_TOPN, window);
  assert_int_equal(s.selected_splits, 0);
  assert_int_equal(s.attend_items, s.window_splits * s.tiles);
  s = split_of(8, 4, NSA_SELECT_RANGES, all);
  assert_int_equal(s.attend_items, s.selected_splits * 4 * s.tiles + s.window_splits * s.tiles);
  s = split_of(8, 1, NSA_SELECT_TOPN, all);
  assert_int_equal(s.attend_items, (s.selected_splits + s.window_splits) * s.tiles);
}

/* One sequence, 64 heads to its KV head, whose rows four warps have: decode_split_kv_compressed's
 * threads count for nothing. */
static void test_attend_groups(void **state) {
  nsai_problem p = decode_of(1, 1);
  p.model.kv_heads = 1;
  for (int32_t threads = 128; threads <= 256; threads *= 2) {
    nsai_kernel_spec scan = { .threads = threads, .tile_tokens = 1 }, attend = { .threads = 128 };
    nsai_decode_split s = nsai_decode_split_make(&(nsai_decode_sizes){ .problem = &p,
                                                                       .scan = &scan,
                                                                       .attend = &attend,
                                                                       .sms = 132,
                                                                       .step = { 1, 1, false },
                                                                       .branches = 7 });
    assert_int_equal(s.selected_splits, 32); /* a stage of 32 keys each: 16 blocks of 64 keys */
    assert_int_equal(s.window_splits, 16);
  }
}

/* ---- what kernels take ---- */

extern const nsai_variant nsai_decode_cluster, nsai_decode_pipelined, nsai_decode_select_attend,
    nsai_decode_single_cta, nsai_decode_split_kv;

static const nsai_target h200 = { "sm_90a", "NVIDIA H200", 232448, 0, 132 },
                         unknown = { "sm_90a", NULL, 232448, 0, 132 },
                         small = { "sm_120", NULL, 101376, 0, 84 },
                         old = { "sm_80", NULL, 166912, 0, 108 };
/* Chosen with clusters of so many blocks; 0: refused with this text. */
static void expect_cluster(const nsai_problem *p, const nsai_target *t, int32_t cluster,
                           const char *text) {
  char story[2048];
  nsai_reasons reasons = { nsai_writer_open(story, sizeof story), 0 };
  nsai_decider by;
  nsai_decode_cluster.legal(p, t, &reasons);
  if (text && !strstr(story, text)) fail_msg("no '%s' in: %s", text, story);
  if ((reasons.count > 0) != (cluster == 0)) fail_msg("%d reasons: %s", reasons.count, story);
  if (!cluster) return;
  nsai_tiles tiles = nsai_decode_cluster.space->choose(p, t, &by);
  assert_int_equal(tiles.of[NSAI_TILE_CLUSTER], cluster);
  nsai_decode_cluster.space->fit(p, t, &tiles, &reasons);
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
  assert_false(nsai_decode_cluster.sensible(&p, &h200));
  p.max_tokens = 16;
  expect_cluster(&p, &h200, 2, NULL);
  p.max_kv_len = 16384;
  assert_false(nsai_decode_cluster.sensible(&p, &h200));
  p.max_kv_len = 65536;
  p.max_tokens = 1;
  assert_true(nsai_decode_cluster.sensible(&p, &h200));
  p.max_kv_len = 1 << 19; /* 32767 compressed keys of four KV heads */
  assert_true(nsai_decode_cluster.sensible(&p, &h200));
  p.max_tokens = 4; /* more than run at once */
  assert_false(nsai_decode_cluster.sensible(&p, &h200));
  p.max_kv_len = 1 << 18; /* 4096 selection blocks */
  assert_false(nsai_decode_cluster.sensible(&p, &h200));
  p.max_tokens = 1;
  p.max_kv_len = 1 << 20; /* 16384, which decode_split_kv_select does not keep */
  assert_true(nsai_decode_cluster.sensible(&p, &h200));
  p.max_tokens = 2; /* clusters of 16 alone hold these */
  assert_false(nsai_decode_cluster.sensible(&p, &h200));
  p.max_kv_len = 65536;
  p.max_tokens = 1;
  p.model.select_count = 64;
  expect_cluster(&p, &h200, 0, "61 blocks");
  p.model = measured_model;
  p.model.heads = 128;
  expect_cluster(&p, &h200, 0, "32 heads");
}

/* MiniMax-M3: blocks chosen by an index, and no other branch. */
static nsai_problem index_of(int32_t seqs) {
  nsai_problem p = decode_of(seqs, 1);
  nsai_model *m = &p.model;
  m->phi = NSAI_PHI_NONE;
  m->by = NSAI_BY_INDEX;
  m->pool = NSAI_POOL_MAX;
  m->index_heads = 4;
  m->index_dim = m->select_block = p.page_size = 128;
  m->select_init = 0;
  m->select_local = 1;
  m->window = 0;
  m->gate = NSAI_GATE_NONE;
  return p;
}

/* MiniCPM4: compressed keys that serve the selection alone. */
static nsai_problem coarse_of(int32_t seqs) {
  nsai_problem p = decode_of(seqs, 1);
  nsai_model *m = &p.model;
  m->heads = 32;
  m->kv_heads = 2;
  m->keys_only = 1;
  m->pool = NSAI_POOL_MAX;
  m->norm_block = 128;
  m->norm_stride = 64;
  m->select_count = 96;
  m->select_local = 33;
  m->window = 0;
  m->gate = NSAI_GATE_NONE;
  return p;
}

/* NULL: legal. */
static void expect_select_attend(const nsai_problem *p, const nsai_target *t, const char *text) {
  char story[2048] = "";
  nsai_reasons reasons = { nsai_writer_open(story, sizeof story), 0 };
  nsai_decode_select_attend.legal(p, t, &reasons);
  assert_int_equal(reasons.count > 0, text != NULL);
  if (text && !strstr(story, text)) fail_msg("no '%s' in: %s", text, story);
}

static void test_select_attend_rules(void **state) {
  nsai_problem p = index_of(1);
  expect_select_attend(&p, &h200, NULL);
  expect_select_attend(&p, &small, NULL);
  expect_select_attend(&p, &old, "sm_90 or later");
  p.count_reads = true;
  expect_select_attend(&p, &h200, "count_reads");
  p = index_of(1);
  p.max_probe_rows = 1;
  expect_select_attend(&p, &h200, "rows are probed");
  p = index_of(1);
  p.selection = NSA_SELECT_BLOCKS;
  expect_select_attend(&p, &h200, "problem.selection");
  p = index_of(1);
  p.model.window = 64;
  expect_select_attend(&p, &h200, "branches beside");
  p = index_of(1);
  p.model.heads = 128;
  expect_select_attend(&p, &h200, "32 heads");
  p = index_of(1);
  p.model.select_count = 130;
  expect_select_attend(&p, &h200, "129 blocks");
  p.model.select_count = 129;
  expect_select_attend(&p, &h200, NULL);
  p.max_kv_len = 1 << 27; /* 8192 candidates for each of 128 blocks */
  expect_select_attend(&p, &h200, "shared memory");
  p = coarse_of(1);
  expect_select_attend(&p, &h200, NULL);
  p.model.keys_only = 0;
  expect_select_attend(&p, &h200, "branches beside");
}

/* Every combination that fits is what the kernel asserts: the threads of a group lie in one warp, and
 * stages and slices find room. */
static void test_select_attend_tiles(void **state) {
  static const int32_t counts[] = { 1, 2, 21, 22, 41, 42, 129 };
  const nsai_variant *v = &nsai_decode_select_attend;
  int fitting = 0;
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    nsai_problem p = index_of(3);
    nsai_tiles tiles = { { 0 } };
    p.model.select_count = counts[i];
    p.model.head_dim_v = i % 2 ? 128 : 64;
    while (nsai_tiles_next(v->space, &tiles)) {
      const nsai_request request = { &p, &h200, &tiles, false };
      nsai_kernel_spec specs[NSAI_MAX_FORM_KERNELS] = { 0 };
      nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
      v->space->fit(&p, &h200, &tiles, &reasons);
      if (reasons.count) continue;
      v->specify(&request, specs);
      const int32_t groups = nsai_smem_rank_groups(counts[i] - 1);
      assert_int_equal(specs[0].threads % groups, 0);
      assert_in_range(specs[0].threads / groups, 1, 32);
      assert_true(groups >= counts[i] - 1);
      assert_true(specs[0].shared_bytes <= h200.shared_bytes);
      assert_true(v->space->cost(&p, &h200, &tiles) > 0);
      fitting++;
    }
  }
  assert_true(fitting > 100);
}

static nsai_tiles pipelined_tiles(int32_t warps, int32_t ctas, int32_t cluster) {
  return (nsai_tiles){
    { [NSAI_TILE_WARPS] = warps, [NSAI_TILE_CTAS] = ctas, [NSAI_TILE_CLUSTER] = cluster }
  };
}

/* Whether decode_pipelined takes the problem with these tiles; then the kernel is in `spec`. */
static bool specify_pipelined(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                              nsai_kernel_spec *spec) {
  const nsai_request request = { p, t, s, false };
  nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
  nsai_decode_pipelined.legal(p, t, &reasons);
  if (!reasons.count) nsai_tiles_reasons(&nsai_decode_pipelined, p, t, s, &reasons);
  *spec = (nsai_kernel_spec){ 0 };
  if (!reasons.count) nsai_decode_pipelined.specify(&request, spec);
  return !reasons.count;
}

/* Whether decode_pipelined takes the problem in each of its shapes: clusters of four wide CTAs,
 * pairs of them, these alone, two narrow ones to a multiprocessor. */
static void expect_shapes(const nsai_problem *p, const nsai_target *t, bool fours, bool others) {
  static const int32_t shapes[][3] = { { 8, 1, 4 }, { 8, 1, 2 }, { 8, 1, 1 }, { 4, 2, 1 } };
  for (int i = 0; i < 4; i++) {
    const nsai_tiles tiles = pipelined_tiles(shapes[i][0], shapes[i][1], shapes[i][2]);
    nsai_kernel_spec spec;
    assert_int_equal(specify_pipelined(p, t, &tiles, &spec), i ? others : fours);
    if (!spec.entry) continue;
    assert_string_equal(spec.entry, "decode_pipelined");
    assert_int_equal(spec.threads, 64 * shapes[i][0]);
    assert_int_equal(spec.cluster, shapes[i][2] > 1 ? shapes[i][2] : 0);
    assert_true(nsai_holds_ctas(t, spec.shared_bytes, shapes[i][1]));
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

/* The last blocks are read for both branches where these have one K and V, in which the window
 * holds the blocks. */
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
    nsai_kernel_spec spec;
    const nsai_tiles wide = pipelined_tiles(8, 1, 1);
    assert_true(specify_pipelined(&p, &h200, &wide, &spec));
    assert_int_equal(constant_of(&spec, "kWindowSelectedBlocks"), cases[i].both);
  }
}

/* Less shared memory, fewer selection blocks whose pooled values decode_pipelined keeps there: the
 * most that fit, a power of two from 8 on, or none. */
static void test_pipelined_kept(void **state) {
  const nsai_problem p = decode_of(64, 1);
  const int64_t row = 16 * sizeof(float); /* of a block, all heads */
  int64_t kept = 256;
  int sizes = 1;
  nsai_target t = h200;
  const nsai_tiles wide = pipelined_tiles(8, 1, 1);
  nsai_kernel_spec spec;
  for (; specify_pipelined(&p, &t, &wide, &spec); t.shared_bytes -= 256) {
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

/* The kernels of decode_split_kv with the heuristic's tiles. */
static const nsai_kernel_spec *kernel_of(nsai_kernel_spec *specs, const char *entry) {
  for (int i = 0; i < nsai_decode_split_kv.kernels; i++)
    if (specs[i].entry && !strcmp(specs[i].entry, entry)) return &specs[i];
  fail_msg("no %s", entry);
  return NULL;
}

static void specify_split_kv(const nsai_problem *p, nsai_kernel_spec *specs) {
  const nsai_tiles tiles = nsai_variant_tiles(&nsai_decode_split_kv, p, &h200, NULL);
  const nsai_request request = { p, &h200, &tiles, false };
  nsai_decode_split_kv.specify(&request, specs);
}

/* Threads of decode_split_kv_compressed and decode_split_kv_attend for drafts of 64/4 heads of 128;
 * a multiprocessor has the shared memory of two of their blocks, or of a wide one. */
static void expect_threads(int32_t seqs, int32_t q_len, int32_t threads) {
  const nsai_problem p = decode_of(seqs, q_len);
  nsai_kernel_spec specs[NSAI_MAX_FORM_KERNELS] = { 0 };
  specify_split_kv(&p, specs);
  static const char *const entries[] = { "decode_split_kv_compressed", "decode_split_kv_attend" };
  for (int i = 0; i < 2; i++) {
    const nsai_kernel_spec *spec = kernel_of(specs, entries[i]);
    assert_int_equal(spec->threads, threads);
    assert_true(nsai_holds_ctas(&h200, spec->shared_bytes, threads > 256 ? 1 : 2));
  }
  expect_results(&p, kernel_of(specs, entries[0]), h200.sms);
}

static void test_drafts(void **state) {
  expect_threads(16, 4, 512); /* 64 tiles on 132 multiprocessors */
  expect_threads(17, 4, 256);
  expect_threads(16, 8, 256); /* 128 rows */
  expect_threads(16, 1, 128);
}

/* Heads whose registers leave decode_split_kv_compressed one consumer group of 64 rows per CTA. */
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
    nsai_kernel_spec specs[NSAI_MAX_FORM_KERNELS] = { 0 };
    specify_split_kv(&p, specs);
    assert_int_equal(kernel_of(specs, "decode_split_kv_compressed")->threads, cases[i].threads);
  }
}

/* ---- forms by batch size ---- */

/* The forms of a plan. */
static void choose(const nsai_problem *p, const nsai_target *t, const char *force,
                   const nsai_decisions *decisions, nsai_choice *out) {
  nsai_config config = { 0 };
  config.variants.force[NSAI_STAGE_DECODE] = (char *)force;
  assert_int_equal(nsai_choose(&config, p, t, decisions, NULL, out), NSA_OK);
}

/* What takes a step of so many sequences: its name, cluster and threads; cluster and threads are 0
 * of decode_split_kv. */
typedef struct taker {
  const char *name;
  int32_t cluster, threads;
} taker;

static taker taker_of(const nsai_choice *choice, const nsai_problem *p, const nsai_target *t,
                      int32_t seqs) {
  const nsai_step step = { seqs, seqs, false };
  const nsai_chosen_form *form = nsai_choice_form_for(choice, NSAI_STAGE_DECODE, p, t, &step);
  const nsai_kernel_spec *spec = &choice->specs[form->first_kernel];
  if (!form->variant->suits) return (taker){ form->variant->name, 0, 0 };
  return (taker){ form->variant->name, spec->cluster, spec->threads };
}

static void expect_taker(const nsai_choice *choice, const nsai_problem *p, const nsai_target *t,
                         int32_t seqs, taker expected) {
  const taker got = taker_of(choice, p, t, seqs);
  if (strcmp(got.name, expected.name) || got.cluster != expected.cluster ||
      got.threads != expected.threads)
    fail_msg("%d sequences go by %s of %d x %d threads", seqs, got.name, got.cluster, got.threads);
}

#define FOURS                                                                                      \
  { "decode_pipelined", 4, 512 }
#define PAIRS                                                                                      \
  { "decode_pipelined", 2, 512 }
#define WIDE                                                                                       \
  { "decode_pipelined", 0, 512 }
#define NARROW                                                                                     \
  { "decode_pipelined", 0, 256 }
#define SPLIT                                                                                      \
  { "decode_split_kv", 0, 0 }

/* Of 4 KV heads on 132 multiprocessors. */
static void test_takers(void **state) {
  static const struct {
    int32_t seqs;
    taker by;
  } rows[] = { { 1, FOURS },    { 7, FOURS },   { 8, PAIRS }, /* 30 clusters of four run at once */
               { 16, PAIRS },   { 17, WIDE },   { 33, WIDE },
               { 40, NARROW },  { 66, NARROW }, { 67, SPLIT }, /* a wave of 4 more */
               { 132, NARROW }, { 256, NARROW } };
  nsai_choice all, longer;
  nsai_problem p = decode_of(256, 1), q = p;
  choose(&p, &h200, NULL, NULL, &all);
  assert_int_equal(all.form_count, 5);
  q.max_kv_len = 1 << 19; /* one sequence may be much longer than the others */
  choose(&q, &h200, NULL, NULL, &longer);
  assert_int_equal(longer.form_count, 1);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    expect_taker(&all, &p, &h200, rows[i].seqs, rows[i].by);
    expect_taker(&longer, &q, &h200, rows[i].seqs, (taker)SPLIT);
  }
}

/* How the length and what a token attends to move the ends. */
static void test_taker_lengths(void **state) {
  static const struct {
    int64_t longest;
    int32_t window, seqs;
    taker by;
  } rows[] = { { 16384, 512, 14, PAIRS },  { 16384, 512, 15, WIDE },  { 16448, 512, 15, PAIRS },
               { 65536, 3072, 1, FOURS },  { 65536, 3073, 1, SPLIT }, { 65536, 65536, 3, SPLIT },
               { 65536, 65536, 4, FOURS }, { 1024, 65536, 1, FOURS } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    nsai_choice choice;
    nsai_problem p = decode_of(140, 1);
    p.max_kv_len = rows[i].longest;
    p.model.window = rows[i].window;
    choose(&p, &h200, NULL, NULL, &choice);
    expect_taker(&choice, &p, &h200, rows[i].seqs, rows[i].by);
  }
}

/* Plans hold the forms that some step of theirs takes, and no other. */
static void test_held_forms(void **state) {
  static const struct {
    int32_t seqs, forms;
  } rows[] = { { 5, 2 }, { 6, 2 }, { 7, 3 }, { 16, 3 }, { 17, 4 }, { 33, 4 }, { 34, 5 } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    nsai_choice choice;
    nsai_problem p = decode_of(rows[i].seqs, 1);
    p.model.window = 8193; /* else decode_cluster serves the smallest */
    p.model.select_count = 0;
    choose(&p, &h200, NULL, NULL, &choice);
    assert_int_equal(choice.form_count, rows[i].forms);
    assert_string_equal(choice.variant[NSAI_STAGE_DECODE]->name, "decode_split_kv");
  }
}

/* decode_single_cta where decode_pipelined is not legal. */
static void test_single_cta_forms(void **state) {
  const nsai_problem p = decode_of(256, 1);
  nsai_choice choice;
  choose(&p, &old, NULL, NULL, &choice);
  assert_int_equal(choice.form_count, 3);
  expect_taker(&choice, &p, &old, 16, (taker)SPLIT);
  expect_taker(&choice, &p, &old, 17, (taker){ "decode_single_cta", 0, 256 }); /* 3/5 of 108 */
  expect_taker(&choice, &p, &old, 27, (taker){ "decode_single_cta", 0, 256 });
  expect_taker(&choice, &p, &old, 54, (taker){ "decode_single_cta", 0, 128 });
}

/* decode_select_attend by the largest clusters that run at once. */
static void test_select_attend_forms(void **state) {
  static const struct {
    int32_t seqs;
    taker index, coarse;
  } rows[] = {
    { 1, { "decode_select_attend", 16, 128 }, { "decode_select_attend", 16, 256 } },
    { 2, { "decode_select_attend", 16, 128 }, { "decode_select_attend", 16, 256 } },
    { 3, { "decode_select_attend", 16, 128 }, { "decode_select_attend", 16, 256 } },
    { 4, { "decode_select_attend", 8, 128 }, { "decode_select_attend", 16, 128 } },
    { 7, { "decode_select_attend", 8, 128 }, { "decode_select_attend", 16, 128 } },
    { 8, { "decode_select_attend", 4, 128 }, { "decode_select_attend", 8, 128 } },
    { 15, { "decode_select_attend", 4, 128 }, { "decode_select_attend", 8, 128 } },
    { 16, { "decode_select_attend", 2, 128 }, { "decode_select_attend", 4, 128 } },
    { 17, { "decode_select_attend", 2, 128 }, { "decode_select_attend", 4, 128 } },
    { 33, { "decode_select_attend", 2, 128 }, { "decode_select_attend", 2, 128 } },
    { 64, { "decode_select_attend", 0, 128 }, { "decode_select_attend", 2, 128 } },
    { 66, { "decode_select_attend", 0, 128 }, { "decode_select_attend", 2, 128 } },
    { 67, SPLIT, { "decode_select_attend", 0, 128 } },
    { 128, SPLIT, { "decode_select_attend", 0, 128 } },
  };
  const nsai_problem index = index_of(128), coarse = coarse_of(128);
  nsai_choice by_index, by_coarse;
  choose(&index, &h200, NULL, NULL, &by_index);
  choose(&coarse, &h200, NULL, NULL, &by_coarse);
  assert_int_equal(by_index.form_count, 7);
  assert_int_equal(by_coarse.form_count, 7);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    expect_taker(&by_index, &index, &h200, rows[i].seqs, rows[i].index);
    expect_taker(&by_coarse, &coarse, &h200, rows[i].seqs, rows[i].coarse);
  }
  const nsai_problem one = index_of(1);
  choose(&one, &h200, NULL, NULL, &by_index);
  assert_int_equal(by_index.form_count, 2);
  choose(&one, &unknown, NULL, NULL, &by_index);
  expect_taker(&by_index, &one, &unknown, 1, (taker){ "decode_select_attend", 8, 128 });
  choose(&one, &small, NULL, NULL, &by_index);
  expect_taker(&by_index, &one, &small, 1, (taker)SPLIT);
  nsai_problem many = one;
  many.model.select_count = 65; /* 8320 keys */
  choose(&many, &h200, NULL, NULL, &by_index);
  expect_taker(&by_index, &many, &h200, 1, (taker)SPLIT);
}

/* Forced, decided or timed, a row stands alone, but for a record of decode_split_kv. */
static void test_alone(void **state) {
  static const char *const names[] = { "decode_cluster", "decode_pipelined", "decode_single_cta",
                                       "decode_split_kv" };
  const nsai_problem p = decode_of(64, 1);
  for (int i = 0; i < 4; i++) {
    const nsai_variant *v = nsai_variant_find(names[i]);
    nsai_decisions decisions = { 0 };
    nsai_choice choice;
    choose(&p, &h200, names[i], NULL, &choice);
    assert_int_equal(choice.form_count, 1);
    assert_ptr_equal(choice.forms[0].variant, v);
    decisions.stage[NSAI_STAGE_DECODE] =
        (nsai_candidate){ v, nsai_variant_tiles(v, &p, &h200, NULL) };
    choose(&p, &h200, NULL, &decisions, &choice);
    assert_ptr_equal(choice.variant[NSAI_STAGE_DECODE], v);
    /* A record of one of the rows for some batch sizes has the steps of more than half the
     * batch. */
    assert_int_equal(choice.form_count, i == 3 ? 5 : i ? 6 : 1);
    for (int32_t seqs = 1; seqs <= 64 && (i == 1 || i == 2); seqs++) {
      nsai_choice free;
      choose(&p, &h200, NULL, NULL, &free);
      const taker other = taker_of(&free, &p, &h200, seqs),
                  now = taker_of(&choice, &p, &h200, seqs);
      assert_string_equal(now.name, seqs > 32 ? names[i] : other.name);
      if (seqs <= 32) assert_int_equal(now.cluster, other.cluster);
    }
    decisions.alone = true;
    choose(&p, &h200, NULL, &decisions, &choice);
    assert_int_equal(choice.form_count, 1);
    for (int32_t seqs = 1; seqs <= 64; seqs++) /* whatever suits it */
      assert_string_equal(taker_of(&choice, &p, &h200, seqs).name, names[i]);
  }
}

/* What nsa_explain says: every number of sequences once, by what takes it. */
static void test_forms_text(void **state) {
  nsai_problem p = decode_of(140, 1);
  char text[1024], by[80];
  const char *at = text;
  nsai_choice choice;
  nsai_writer w = nsai_writer_open(text, sizeof text);
  choose(&p, &h200, NULL, NULL, &choice);
  nsai_forms_write(&choice, NSAI_STAGE_DECODE, &p, &h200, &w);
  assert_int_equal(strncmp(at, "  steps of one token: ", 22), 0);
  at += 22;
  for (int32_t seqs = 1; seqs <= 140;) {
    int32_t from = 0, to = 0;
    int length = 0;
    assert_true(sscanf(at, "%d%n to %d%n", &from, &length, &to, &length) >= 1);
    at += length;
    if (!to) to = from;
    assert_int_equal(from, seqs);
    assert_in_range(to, from, 140);
    if (seqs == 1) at += strlen(" sequences");
    const taker expected = taker_of(&choice, &p, &h200, from);
    if (expected.cluster)
      snprintf(by, sizeof by, " by %s of %d x %d threads", expected.name, expected.cluster,
               expected.threads);
    else if (expected.threads)
      snprintf(by, sizeof by, " by %s of %d threads", expected.name, expected.threads);
    else
      snprintf(by, sizeof by, " by %s", expected.name);
    for (; seqs <= to; seqs++) expect_taker(&choice, &p, &h200, seqs, expected);
    assert_int_equal(strncmp(at, by, strlen(by)), 0);
    at += strlen(by) + (seqs <= 140 ? 2 : 0); /* ", " */
  }
  assert_string_equal(at, "\n");
  choose(&p, &h200, "decode_split_kv", NULL, &choice);
  w = nsai_writer_open(text, sizeof text);
  nsai_forms_write(&choice, NSAI_STAGE_DECODE, &p, &h200, &w);
  assert_int_equal(w.used, 0); /* there is one way */
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_takers),
    cmocka_unit_test(test_taker_lengths),
    cmocka_unit_test(test_held_forms),
    cmocka_unit_test(test_single_cta_forms),
    cmocka_unit_test(test_alone),
    cmocka_unit_test(test_forms_text),
    cmocka_unit_test(test_results),
    cmocka_unit_test(test_tiles),
    cmocka_unit_test(test_attend),
    cmocka_unit_test(test_attend_groups),
    cmocka_unit_test(test_cluster_rules),
    cmocka_unit_test(test_pipelined_rules),
    cmocka_unit_test(test_pipelined_kept),
    cmocka_unit_test(test_pipelined_both),
    cmocka_unit_test(test_select_attend_rules),
    cmocka_unit_test(test_select_attend_tiles),
    cmocka_unit_test(test_select_attend_forms),
    cmocka_unit_test(test_drafts),
    cmocka_unit_test(test_group_registers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
