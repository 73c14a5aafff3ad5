/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tiles: what fits is what the kernels' static_asserts allow, for every combination of every
 * variant over many models and all architectures; and candidates as text.
 */
#include "support/config.h"
#include "support/init.h"

#include "driver/arch.h"
#include "variants/attend/flash_sm80.h"
#include "variants/attend/flash_sm90.h"

#include <math.h>

static int seen; /* combinations of one model */

static int64_t constant(const nsai_kernel_spec *spec, const char *name) {
  for (int i = 0; i < spec->constant_count; i++)
    if (!strcmp(spec->constants[i].name, name)) return spec->constants[i].value;
  fail_msg("%s has no %s", spec->entry, name);
  return 0;
}

static bool is(const nsai_kernel_spec *spec, const char *entry) {
  return !strcmp(spec->entry, entry);
}

/* ---- the kernels' side ---- */

/* The static_asserts of attend/mainloop_sm80.cuh. */
static bool flash_allows(const nsai_kernel_spec *s) {
  int64_t rows = constant(s, "kRows"), warps = constant(s, "kWarps");
  int64_t group = constant(s, "kGroupPadded"), tokens = rows / group;
  assert_int_equal(s->threads, 32 * warps);
  assert_int_equal(s->tile_tokens, tokens);
  return tokens >= 1 && tokens * group == rows && rows / (16 * warps) >= 1 &&
         rows % (16 * warps) == 0 && constant(s, "kKeys") % 16 == 0;
}

/* Those of attend/mainloop_sm90.cuh. */
static bool flash_sm90_allows(const nsai_kernel_spec *s) {
  int64_t rows = constant(s, "kRows"), keys = constant(s, "kKeys");
  int64_t group = constant(s, "kGroupPadded"), queries = constant(s, "kQueryStages");
  int64_t panels_qk = (constant(s, "kHeadDimQk") + 63) / 64;
  int64_t panels_v = (constant(s, "kHeadDimV") + 63) / 64, stages = constant(s, "kStages");
  assert_int_equal(s->threads, 128 + 2 * rows);
  assert_int_equal(s->tile_tokens, rows / group);
  assert_int_equal(s->shared_bytes,
                   128 * (queries * rows * panels_qk + stages * keys * (panels_qk + panels_v)) +
                       32 * queries + 8 * (2 * queries + 4 * stages));
  assert_int_equal(s->tma_box_heads, group);
  assert_int_equal(s->tma_box_heads * s->tma_box_tokens, 64);
  assert_int_equal(s->tma_box_keys, keys);
  return (rows == 128 || rows == 192) && group <= 64 && keys % 16 == 0 && queries >= 1;
}

/* Those of attend/window_combine_sm90.cuh: the ring of partial results comes behind what the main
 * loop has. */
static bool window_combine_allows(const nsai_kernel_spec *s, uint32_t shared_bytes) {
  nsai_kernel_spec window = *s;
  int64_t row = 2 * constant(s, "kSelectCount") * constant(s, "kHeadDimV");
  int64_t ring = constant(s, "kRing");
  assert_int_equal(s->threads, 640);
  assert_int_equal(constant(s, "kRows"), 128);
  window.threads = 384;
  window.shared_bytes -= (uint32_t)(ring * (row + 16) + 32);
  return flash_sm90_allows(&window) && row % 16 == 0 && ring >= 8 &&
         s->shared_bytes <= shared_bytes;
}

/* Those of attend/selected_pipeline.cuh, attend/selected_mma.cuh, attend/selected_wgmma.cuh. */
static bool ring_allows(const nsai_kernel_spec *s) {
  int64_t warps = constant(s, "kWarps"), stages = constant(s, "kStages");
  int64_t group = constant(s, "kGroupPadded"), tokens = 16 * warps / group;
  int64_t panels_qk = (constant(s, "kHeadDimQk") + 63) / 64;
  int64_t panels_v = (constant(s, "kHeadDimV") + 63) / 64;
  assert_int_equal(s->threads, 32 * warps + 128);
  assert_int_equal(s->tile_tokens, tokens);
  assert_int_equal(s->ctas_per_sm, constant(s, "kMinBlocks"));
  assert_int_equal(s->tma_box_keys, 64);
  assert_int_equal(constant(s, "kKeys"), 64);
  int64_t producers = tokens > 32 ? 4 : 1;
  int64_t ring = stages * ((panels_qk + panels_v) * 64 * 128 + 8 * tokens + 16 + 8 * producers) +
                 8 * producers;
  assert_true(s->shared_bytes >= ring &&
              s->shared_bytes < ring + 1024 + 16 * warps * 128 * panels_qk);
  return warps % 4 == 0 && warps <= 12 && warps * constant(s, "kMinBlocks") >= 8 && group <= 64 &&
         stages >= 2;
}

/* Those of attend/selected_sm80.cuh. */
static bool selected_sm80_allows(const nsai_kernel_spec *s) {
  int64_t warps = constant(s, "kWarps");
  assert_int_equal(s->threads, 32 * (warps + 1));
  return 16 * warps % constant(s, "kGroupPadded") == 0 && constant(s, "kStages") >= 2;
}

/* Those of attend/selected_kv_stationary_sm90.cuh; what a block of threads may ask for is the
 * device's affair. */
static bool kv_allows(const nsai_kernel_spec *s, uint32_t shared_bytes) {
  int64_t keys = constant(s, "kSelectBlock"), warps = constant(s, "kWarps");
  assert_int_equal(s->threads, 32 * warps);
  assert_int_equal(s->tile_tokens, constant(s, "kRows"));
  return keys % 16 == 0 && keys <= 128 && warps % 4 == 0 && constant(s, "kRows") % 64 == 0 &&
         s->shared_bytes <= shared_bytes;
}

/* Those of select/importance.cuh. */
static bool importance_allows(const nsai_kernel_spec *s) {
  int64_t warps = constant(s, "kWarps"), rows = constant(s, "kRows");
  int64_t group = constant(s, "kGroupPadded");
  assert_int_equal(rows, 32 * warps);
  assert_int_equal(s->threads, rows);
  return group <= rows && group <= 64 && constant(s, "kKeys") % 32 == 0;
}

/* Those of select/scores_sm90.cuh. */
static bool scores_sm90_allows(const nsai_kernel_spec *s, const nsai_target *t) {
  int64_t rows = constant(s, "kRows"), group = constant(s, "kGroupPadded");
  assert_int_equal(constant(s, "kKeys"), 128);
  assert_int_equal(s->threads, 2 * rows + 32);
  assert_int_equal(s->tile_tokens, rows / group);
  return rows % 64 == 0 && constant(s, "kStages") >= 2 &&
         nsai_holds_ctas(t, s->shared_bytes, (int32_t)constant(s, "kMinBlocks"));
}

/* Kernels beside the one that has the tiles. */
static bool has_no_tiles(const nsai_variant *v, const nsai_kernel_spec *s) {
  if (!strcmp(v->name, "importance_sm90")) return !is(s, "select_importance_sm90");
  return !strncmp(s->entry, "data_", 5) || is(s, "attend_selected_combine") ||
         is(s, "attend_window_combine_sm90");
}

static bool kernel_allows(const nsai_kernel_spec *s, const nsai_target *t) {
  bool attends =
      is(s, "attend_compressed_sm80") || is(s, "attend_window_sm80") || is(s, "attend_dense_sm80");
  if (s->threads > 1024 || s->threads * constant(s, "kMinBlocks") > 2048) return false;
  if (is(s, "attend_selected_kv_stationary_sm90")) return kv_allows(s, t->shared_bytes);
  if (is(s, "select_importance_sm90") || is(s, "select_normalizer_sm90"))
    return scores_sm90_allows(s, t);
  if (s->shared_bytes > (s->tma_box_keys ? t->shared_bytes : 99 * 1024)) return false;
  if (s->tma_box_keys && !s->tma_box_heads) {
    int64_t ctas = constant(s, "kMinBlocks");
    return nsai_holds_ctas(t, s->shared_bytes, (int32_t)ctas) && ring_allows(s);
  }
  if (s->tma_box_keys) return flash_sm90_allows(s);
  if (attends) return flash_allows(s);
  if (is(s, "attend_selected_sm80")) return selected_sm80_allows(s);
  if (is(s, "select_importance")) return importance_allows(s);
  if (is(s, "compress_mean"))
    return s->threads >= (constant(s, "kHeadDimQk") + constant(s, "kHeadDimV")) / 8;
  return s->threads % 32 == 0;
}

/* ---- one combination ---- */

/* The chosen tiles are the constants of the kernel that has them. */
static void check_constants(const nsai_variant *v, const nsai_tiles *tiles,
                            const nsai_kernel_spec *s) {
  static const char *const names[] = { "kRows", "kKeys", "kWarps", "kStages", "kMinBlocks" };
  for (int i = 0; i < v->space->count; i++) {
    nsai_tile tile = v->space->range[i].tile;
    if (tile == NSAI_TILE_WARPS && (is(s, "compress_mean") || is(s, "select_topn")))
      assert_int_equal(s->threads, 32 * tiles->of[tile]);
    else if (s->shared_bytes || tile == NSAI_TILE_CTAS)
      assert_int_equal(constant(s, names[tile]), tiles->of[tile]);
  }
}

static void check_text(const nsai_candidate *candidate) {
  char text[128], longer[160];
  nsai_candidate back;
  nsai_writer w = nsai_writer_open(text, sizeof text);
  nsai_candidate_print(candidate, &w);
  assert_true(w.used < sizeof text);
  assert_true(nsai_candidate_parse(text, candidate->variant->stage, &back));
  assert_ptr_equal(back.variant, candidate->variant);
  assert_memory_equal(&back.tiles, &candidate->tiles, sizeof back.tiles);
  for (int s = 0; s < NSAI_STAGE_COUNT; s++)
    assert_true(nsai_candidate_parse(text, (nsai_stage)s, &back) ==
                (s == (int)candidate->variant->stage));
  static const char *const tails[] = { " ", " x", "=1", ",", " rows=1", " ctas=1", "\n" };
  for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
    snprintf(longer, sizeof longer, "%s%s", text, tails[i]);
    assert_false(nsai_candidate_parse(longer, candidate->variant->stage, &back));
  }
  char *last = strrchr(text, ' '); /* the last tile is missing */
  if (!last) return;
  *last = 0;
  assert_false(nsai_candidate_parse(text, candidate->variant->stage, &back));
}

static void check_tiles(const nsai_variant *v, const nsai_problem *p, const nsai_target *t,
                        const nsai_tiles *tiles) {
  char text[2048] = "";
  nsai_reasons reasons = { nsai_writer_open(text, sizeof text), 0 };
  nsai_kernel_spec specs[NSAI_MAX_FORM_KERNELS] = { 0 };
  const nsai_request request = { p, t, tiles, false };
  nsai_tiles_reasons(v, p, t, tiles, &reasons);
  v->specify(&request, specs);
  bool allowed = true, any = false;
  for (int i = 0; i < v->kernels; i++) {
    if (!specs[i].entry) continue;
    if (is(&specs[i], "attend_window_combine_sm90"))
      assert_true(window_combine_allows(&specs[i], t->shared_bytes));
    if (has_no_tiles(v, &specs[i])) continue;
    allowed &= kernel_allows(&specs[i], t);
    any = true;
    if (!reasons.count) check_constants(v, tiles, &specs[i]);
  }
  if (any && allowed != !reasons.count)
    fail_msg("%s on %s, Dk %d Dv %d G %d, rows %d keys %d warps %d stages %d blocks %d: the kernel "
             "%s it, fit does not: %s",
             v->name, t->arch, p->model.head_dim_qk, p->model.head_dim_v,
             p->model.heads / p->model.kv_heads, tiles->of[0], tiles->of[1], tiles->of[2],
             tiles->of[3], tiles->of[4], allowed ? "takes" : "refuses", text);
  if (reasons.count) return;
  double cost = nsai_tiles_cost(v, p, t, tiles);
  assert_true(cost > 0); /* infinite, maybe; no NaN */
  check_text(&(nsai_candidate){ v, *tiles });
  seen++;
}

/* ---- all combinations ---- */

static void check_choice(const nsai_variant *v, const nsai_problem *p, const nsai_target *t) {
  char text[2048] = "";
  nsai_reasons reasons = { nsai_writer_open(text, sizeof text), 0 };
  nsai_decider by;
  nsai_tiles tiles = nsai_variant_tiles(v, p, t, &by);
  assert_in_range(by, NSAI_BY_DEVICE, NSAI_BY_DEFAULT);
  nsai_tiles_reasons(v, p, t, &tiles, &reasons);
  if (reasons.count)
    fail_msg(
        "%s on %s, Dk %d Dv %d G %d, register fallback %d: the heuristic's choice does not fit: %s",
        v->name, t->arch, p->model.head_dim_qk, p->model.head_dim_v,
        p->model.heads / p->model.kv_heads, t->register_fallback, text);
  assert_true(nsai_tiles_cost(v, p, t, &tiles) > 0);
}

/* A value that no range has, or a tile that the variant does not have, is refused. */
static void check_strange_values(const nsai_variant *v, const nsai_problem *p,
                                 const nsai_target *t) {
  static const int32_t strange[] = { 0, -1, 9, 48, 1000, INT32_MAX };
  for (int i = 0; i < v->space->count; i++)
    for (size_t k = 0; k < sizeof strange / sizeof *strange; k++) {
      nsai_tiles tiles = nsai_variant_tiles(v, p, t, NULL);
      nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
      tiles.of[v->space->range[i].tile] = strange[k];
      nsai_tiles_reasons(v, p, t, &tiles, &reasons);
      assert_int_equal(reasons.count, 1);
    }
}

static void check_space(const nsai_variant *v, const nsai_problem *p, const nsai_target *t) {
  nsai_tiles tiles = { { 0 } };
  while (nsai_tiles_next(v->space, &tiles)) check_tiles(v, p, t, &tiles);
  check_strange_values(v, p, t);
}

static void check_variants(const nsai_config *config, const nsai_problem *p) {
  for (int32_t a = 0; nsai_arch_at(a); a++)
    for (int i = 0; nsai_variants[i]; i++) {
      const nsai_arch *arch = nsai_arch_at(a);
      const nsai_variant *v = nsai_variants[i];
      nsai_target t = { arch->name, NULL, (uint32_t)arch->shared_bytes, 0 };
      nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
      if (!nsai_stage_needed(p, v->stage)) continue;
      nsai_variant_reasons(config, p, &t, v, &reasons);
      if (reasons.count) continue;
      if (!v->space) {
        check_text(&(nsai_candidate){ v, { { 0 } } });
        continue;
      }
      check_space(v, p, &t);
      for (; t.register_fallback <= NSAI_LAST_RESORT; t.register_fallback++) check_choice(v, p, &t);
    }
}

static void check_model(int32_t group, int32_t dk, int32_t dv, const char *dtype) {
  char text[512];
  snprintf(text, sizeof text,
           "nsa: 1\nmodel: {heads: %d, kv_heads: 2, head_dim_qk: %d, head_dim_v: %d, dtype: %s}\n",
           2 * group, dk, dv, dtype);
  nsai_config *config = load(&REQUEST(.text = text));
  for (int i = 0; i < 5; i++) { /* forwards: long, all blocks chosen, given twice; dense */
    nsai_problem p;
    nsa_problem asked = INIT(nsa_problem, .op = i == 4 ? NSA_OP_DENSE : NSA_OP_FORWARD,
                             .max_tokens = i == 1 ? 64 : 65536, .max_seqs = 1,
                             .selection = i == 2   ? NSA_SELECT_BLOCKS
                                          : i == 3 ? NSA_SELECT_RANGES
                                                   : NSA_SELECT_TOPN,
                             .max_probe_rows = i == 1);
    if (nsai_problem_resolve(config, &asked, &p) != NSA_OK) fail_msg("%s", nsa_last_error());
    check_variants(config, &p);
  }
  nsai_config_destroy(config);
}

static void test_every_combination(void **state) {
  static const int32_t groups[] = { 1, 3, 16, 64 };
  static const int32_t dims[][2] = { { 16, 16 },   { 64, 64 },   { 128, 128 },
                                     { 192, 128 }, { 256, 256 }, { 136, 112 } };
  for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
      for (int half = 0; half < 2; half++) {
        seen = 0;
        check_model(groups[g], dims[d][0], dims[d][1], half ? "fp16" : "bf16");
        assert_true(seen > 1000); /* a space that has become empty is a mistake */
      }
}

/* ---- what every row says of itself ---- */

/* What rows fill lies on the stack, in arrays of these sizes. */
static void test_limits(void **state) {
  (void)state;
  for (int i = 0; nsai_variants[i]; i++) {
    const nsai_variant *v = nsai_variants[i];
    if (v->kernels > NSAI_MAX_FORM_KERNELS || v->buffers > NSAI_MAX_FORM_BUFFERS ||
        v->numbers > NSAI_MAX_FORM_NUMBERS)
      fail_msg("%s has %d kernels, %d buffers and %d numbers, at most %d, %d and %d are possible: "
               "raise NSAI_MAX_FORM_*",
               v->name, v->kernels, v->buffers, v->numbers, NSAI_MAX_FORM_KERNELS,
               NSAI_MAX_FORM_BUFFERS, NSAI_MAX_FORM_NUMBERS);
  }
}

/* Whether a row of a forward inverts lists, which looks up the sequence of each block of keys. */
static bool inverts(const nsai_variant *v, const nsai_problem *p, const nsai_target *t) {
  nsai_kernel_spec specs[NSAI_MAX_FORM_KERNELS] = { 0 };
  const nsai_tiles tiles = nsai_variant_tiles(v, p, t, NULL);
  const nsai_request request = { p, t, &tiles, false };
  bool found = false;
  v->specify(&request, specs);
  for (int i = 0; i < v->kernels; i++)
    found |= specs[i].entry && !strncmp(specs[i].entry, "data_invert_", strlen("data_invert_"));
  return found;
}

/* Rows with inverted lists must not be given pieces that share keys. Backward passes run piece by piece
 * in any case. */
static void test_sequences_of_keys(void **state) {
  static const char *const models[] = {
    "nsa: 1\nmodel: {heads: 32, kv_heads: 2, head_dim: 128, dtype: bf16}\n",
    "nsa: 1\nmodel: {heads: 4, kv_heads: 4, head_dim: 128, dtype: bf16}\n",
    ("nsa: 1\nmodel: {heads: 32, kv_heads: 2, head_dim: 128, dtype: bf16, gate: weights, "
     "compress: {phi: none}, index: {heads: 2, dim: 64}, select: {by: index, pool: max}}\n"),
  };
  const nsai_arch *arch = nsai_arch_find("sm_90a");
  const nsai_target t = { arch->name, NULL, (uint32_t)arch->shared_bytes, 0, 132 };
  bool found[64] = { false };
  int rows = 0;
  (void)state;
  for (int k = 0; k < 9; k++) {
    nsai_config *config = load(&REQUEST(.text = models[k / 3]));
    static const int32_t selections[] = { NSA_SELECT_TOPN, NSA_SELECT_BLOCKS, NSA_SELECT_RANGES };
    nsai_problem p;
    const nsa_problem asked =
        INIT(nsa_problem, .max_tokens = 65536, .max_seqs = 1, .selection = selections[k % 3],
             .index_lse = k / 3 == 2 && k % 3 < 2);
    if (nsai_problem_resolve(config, &asked, &p) != NSA_OK) fail_msg("%s", nsa_last_error());
    for (int i = 0; nsai_variants[i]; i++) {
      nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
      if (!nsai_stage_needed(&p, nsai_variants[i]->stage)) continue;
      nsai_variant_reasons(config, &p, &t, nsai_variants[i], &reasons);
      if (reasons.count || !inverts(nsai_variants[i], &p, &t)) continue;
      if (!nsai_variants[i]->finds_sequences_of_keys)
        fail_msg("%s inverts lists: set finds_sequences_of_keys", nsai_variants[i]->name);
      assert_in_range(i, 0, 63);
      rows += !found[i];
      found[i] = true;
    }
    nsai_config_destroy(config);
  }
  assert_int_equal(rows, 3);
}

/* A device with less shared memory than any architecture has, refuses what does not fit there. */
static void test_small_device(void **state) {
  nsai_problem p = {
    .op = NSA_OP_DENSE,
    .model = { .heads = 2, .kv_heads = 1, .head_dim_qk = 128, .head_dim_v = 128, .dtype = NSA_BF16 }
  };
  nsai_target t = { "sm_80", NULL, 48 << 10, 0 };
  nsai_tiles small = {
    { [NSAI_TILE_ROWS] = 64, [NSAI_TILE_KEYS] = 32, [NSAI_TILE_WARPS] = 4, [NSAI_TILE_CTAS] = 1 }
  };
  nsai_reasons reasons = { nsai_writer_open(NULL, 0), 0 };
  nsai_flash_sm80_space.fit(&p, &t, &small, &reasons);
  assert_int_equal(reasons.count, 0);
  small.of[NSAI_TILE_ROWS] = 256;
  nsai_flash_sm80_space.fit(&p, &t, &small, &reasons);
  assert_int_equal(reasons.count, 1);
}

/* Up to 64 compressed entries take the smallest tile of keys; other branches have as many keys as ever. */
static void test_few_entries(void **state) {
  static const struct {
    int32_t dim, kv_len, entries, compressed, window;
  } rows[] = { { 128, 1055, 64, 64, 80 }, { 128, 1056, 65, 80, 80 }, { 64, 40, 1, 64, 112 } };
  const nsai_target t = { "sm_90a", NULL, 227 << 10, 0 };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const nsai_problem p = { .op = NSA_OP_FORWARD,
                             .max_kv_len = rows[i].kv_len,
                             .model = { .heads = 16,
                                        .kv_heads = 1,
                                        .head_dim_qk = rows[i].dim,
                                        .head_dim_v = rows[i].dim,
                                        .block = 32,
                                        .stride = 16,
                                        .dtype = NSA_BF16 } };
    nsai_decider by;
    assert_int_equal(nsai_block_count(&p.model, p.max_kv_len), rows[i].entries);
    const nsai_tiles compressed = nsai_flash_sm90_compressed_space.choose(&p, &t, &by),
                     window = nsai_flash_sm90_space.choose(&p, &t, &by);
    assert_int_equal(compressed.of[NSAI_TILE_KEYS], rows[i].compressed);
    assert_int_equal(window.of[NSAI_TILE_KEYS], rows[i].window);
    assert_int_equal(compressed.of[NSAI_TILE_ROWS], 192);
  }
}

/* Ranges ascend, and every one says why. */
static void test_ranges(void **state) {
  for (int i = 0; nsai_variants[i]; i++)
    for (int k = 0; nsai_variants[i]->space && k < nsai_variants[i]->space->count; k++) {
      const nsai_range *r = &nsai_variants[i]->space->range[k];
      assert_true(r->why && *r->why && r->values[0] > 0);
      for (int n = 1; n < NSAI_MAX_RANGE && r->values[n]; n++)
        assert_true(r->values[n] > r->values[n - 1]);
      for (int n = 0; n < k; n++)
        assert_int_not_equal(nsai_variants[i]->space->range[n].tile, r->tile);
    }
}

/* Every combination comes once. */
static void test_stepping(void **state) {
  for (int i = 0; nsai_variants[i]; i++) {
    const nsai_space *space = nsai_variants[i]->space;
    static nsai_tiles all[1024];
    nsai_tiles tiles = { { 0 } };
    int count = 0, expected = 1;
    if (!space) continue;
    for (int k = 0; k < space->count; k++) {
      int values = 0;
      while (values < NSAI_MAX_RANGE && space->range[k].values[values]) values++;
      expected *= values;
    }
    while (nsai_tiles_next(space, &tiles)) {
      assert_true(count < 1024);
      for (int k = 0; k < count; k++) assert_memory_not_equal(&all[k], &tiles, sizeof tiles);
      all[count++] = tiles;
    }
    assert_int_equal(count, expected);
  }
}

static void test_junk(void **state) {
  static const struct {
    nsai_stage stage;
    bool good;
    const char *text;
  } cases[] = {
    { NSAI_STAGE_DENSE, true, "dense_sm80 rows=128 keys=64 warps=4 ctas=2" },
    { NSAI_STAGE_DENSE, true, "dense_sm80 ctas=2 warps=4 keys=64 rows=128" },
    { NSAI_STAGE_DENSE, true, "dense_sm80 rows=7 keys=1 warps=2147483647 ctas=9" }, /* for fit() */
    { NSAI_STAGE_DENSE, true, "dense_gemm" },
    { NSAI_STAGE_DENSE, false, "" },
    { NSAI_STAGE_DENSE, false, " dense_sm80 rows=128 keys=64 warps=4 ctas=2" },
    { NSAI_STAGE_DENSE, false, "dense_mm rows=128 keys=64 warps=4 ctas=2" },
    { NSAI_STAGE_DENSE, false, "dense_mma2 rows=128 keys=64 warps=4 ctas=2" },
    { NSAI_STAGE_DENSE, false, "dense_sm80" },
    { NSAI_STAGE_DENSE, false, "dense_sm80 rows=128 keys=64 warps=4" },
    { NSAI_STAGE_DENSE, false, "dense_sm80 rows=128 rows=128 keys=64 warps=4 ctas=2" },
    { NSAI_STAGE_DENSE, false, "dense_sm80 rows=128 keys=64 warps=4 ctas=2 stages=3" },
    { NSAI_STAGE_DENSE, false, "dense_sm80 rows=128 keys=64 warps=4 stages=2" },
    { NSAI_STAGE_DENSE, false, "dense_sm80 rows=128  keys=64 warps=4 ctas=2" },
    { NSAI_STAGE_DENSE, false, "dense_sm80 rows=128,keys=64,warps=4,ctas=2" },
    { NSAI_STAGE_DENSE, false, "dense_sm80 rows= keys=64 warps=4 ctas=2" },
    { NSAI_STAGE_DENSE, false, "dense_sm80 rows=0 keys=64 warps=4 ctas=2" },
    { NSAI_STAGE_DENSE, false, "dense_sm80 rows=-8 keys=64 warps=4 ctas=2" },
    { NSAI_STAGE_DENSE, false, "dense_sm80 rows=2147483648 keys=64 warps=4 ctas=2" },
    { NSAI_STAGE_DENSE, false, "dense_sm80 rows=99999999999999999999 keys=64 warps=4 ctas=2" },
    { NSAI_STAGE_DENSE, false, "dense_sm80 columns=1 rows=128 keys=64 warps=4 ctas=2" },
    { NSAI_STAGE_DENSE, false, "dense_gemm rows=128" },
    { NSAI_STAGE_DENSE, false, "attend_window_sm80 rows=128 keys=64 warps=4 ctas=2" },
    { NSAI_STAGE_ATTEND_WINDOW, false, "dense_sm80 rows=128 keys=64 warps=4 ctas=2" },
    { NSAI_STAGE_SELECT, true, "select_topn warps=8 ctas=4" },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    nsai_candidate c;
    if (nsai_candidate_parse(cases[i].text, cases[i].stage, &c) != cases[i].good)
      fail_msg("\"%s\" is %s", cases[i].text, cases[i].good ? "refused" : "accepted");
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_every_combination),
    cmocka_unit_test(test_small_device),
    cmocka_unit_test(test_few_entries),
    cmocka_unit_test(test_ranges),
    cmocka_unit_test(test_stepping),
    cmocka_unit_test(test_junk),
    cmocka_unit_test(test_limits),
    cmocka_unit_test(test_sequences_of_keys),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
