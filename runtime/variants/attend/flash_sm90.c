/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/flash_sm90.h"

#include <math.h>
#include <string.h>

#define CONSUMER_ROWS 64   /* of a warpgroup: what one wgmma takes */
#define MOST_QUERY_TILES 2 /* one that is computed, one that arrives */

/* ---- tiles ---- */

static nsai_tiles make_tiles(int32_t rows, int32_t keys, int32_t stages) {
  return (nsai_tiles){
    { [NSAI_TILE_ROWS] = rows, [NSAI_TILE_KEYS] = keys, [NSAI_TILE_STAGES] = stages }
  };
}

/* With so many tiles of queries. */
static uint32_t shared_bytes(const nsai_problem *p, const nsai_tiles *s, int32_t queries) {
  return nsai_smem_flash_sm90(s->of[NSAI_TILE_ROWS], s->of[NSAI_TILE_KEYS], queries,
                              s->of[NSAI_TILE_STAGES], p->model.head_dim_qk, p->model.head_dim_v,
                              nsai_problem_is_cached(p));
}

/* Tiles of queries in shared memory: as many as are of use, where they fit. */
static int32_t query_tiles(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  int32_t queries = MOST_QUERY_TILES;
  while (queries > 1 && shared_bytes(p, s, queries) > t->shared_bytes) queries--;
  return queries;
}

static void fit(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                nsai_reasons *reasons) {
  uint32_t bytes = shared_bytes(p, s, 1);
  nsai_fit_cta(t, bytes, reasons);
}

/* O, the scores of a tile of keys, the probabilities of the tile before (twice where they are split
 * in two, core/softmax.cuh: kSplitP), and what else the loop holds, against
 * Flash::kConsumerRegisters. */
static bool registers_do(const nsai_problem *p, const nsai_tiles *s) {
  const nsai_model *m = &p->model;
  int32_t keys = s->of[NSAI_TILE_KEYS];
  int32_t parts = m->dtype == NSA_BF16 && m->head_dim_v < 64 ? 2 : 1;
  int32_t needs = (nsai_padded_dim(m->head_dim_v) + keys) / 2 + parts * keys / 4 + 32;
  /* The producers of a cache leave less. Found by compiling (NVRTC 13.0): 156 is what Dv 128 needs
   * with 80 keys, which does not spill. */
  /* Codes take more, and a longer Q leaves less. */
  if (nsai_problem_has_codes(p) && m->head_dim_qk > 128) needs += 10;
  bool cached = nsai_problem_is_cached(p), three = s->of[NSAI_TILE_ROWS] > 2 * CONSUMER_ROWS;
  return needs <= (three                       ? cached ? 156 : 160
                   : nsai_problem_has_codes(p) ? 200
                   : cached                    ? 208
                                               : 240);
}

/* A tile of keys costs waits, a tile of queries an epilogue; keys that no query sees are computed
 * at both edges. */
static double cost(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  if (!registers_do(p, s)) return INFINITY;
  double keys = s->of[NSAI_TILE_KEYS], rows = s->of[NSAI_TILE_ROWS];
  double single = query_tiles(p, t, s) < MOST_QUERY_TILES ? 0.02 : 0;
  return 1 + 8 / keys + 40 / rows + single + 0.01 * s->of[NSAI_TILE_STAGES];
}

static bool fits(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  return shared_bytes(p, s, 1) <= t->shared_bytes && registers_do(p, s);
}

/* Three warpgroups hide more of each other's waits than two, also with fewer keys at a time: D
 * 128, compressed at 64k tokens 6.3 ms against 6.8, a window of 512 2.16 against 2.37 (H200). Of
 * what fits their registers 112 keys were as fast as 128 or faster (D 64), and waste less of a
 * window. */
static nsai_tiles choose(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  const nsai_tiles list[] = { make_tiles(192, 112, 2), make_tiles(192, 96, 2),
                              make_tiles(192, 80, 2),  make_tiles(128, 128, 2),
                              make_tiles(128, 80, 2),  make_tiles(128, 64, 2) };
  const int last = sizeof list / sizeof *list - 1; /* fits every head dim */
  int i = t->register_fallback ? last : 0;
  *by = NSAI_BY_ARCHITECTURE;
  while (i < last && !fits(p, t, &list[i])) i++;
  return list[i];
}

const nsai_space nsai_flash_sm90_space = { 3, NSAI_FLASH_SM90_RANGES, choose, fit, cost };

#define FEWEST_KEYS 64 /* of a tile */

/* Where the longest sequence has no more entries than the smallest tile of keys holds, larger ones only
 * waste. (H200, 1k tokens, D 128, 192 rows, 64 keys for 80: 64/4 heads 0.0234 for 0.0285 ms with random
 * inputs, 0.0232 for 0.0294 with correlated ones; 64/8 heads 0.0278 for 0.0285.) */
static nsai_tiles choose_compressed(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  nsai_tiles tiles = choose(p, t, by);
  if (nsai_block_count(&p->model, p->max_kv_len) <= FEWEST_KEYS)
    tiles.of[NSAI_TILE_KEYS] = FEWEST_KEYS;
  return tiles;
}

const nsai_space nsai_flash_sm90_compressed_space = { 3, NSAI_FLASH_SM90_RANGES, choose_compressed,
                                                      fit, cost };

/* ---- rows ---- */

void nsai_flash_sm90_legal(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  nsai_legal_common(p, reasons);
  if (strcmp(t->arch, "sm_90a"))
    nsai_refuse(reasons, "needs wgmma and the registers' division of sm_90a, the target is %s",
                t->arch);
}

/* With a compiler that needs more registers than any tiles leave, the portable kernels serve. */
bool nsai_flash_sm90_sensible(const nsai_problem *p, const nsai_target *t) {
  (void)p;
  return t->register_fallback < NSAI_SMALLEST_TILES;
}

void nsai_flash_sm90_specify(const nsai_request *r, const char *entry, nsai_kernel_spec *spec) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  int32_t rows = r->tiles->of[NSAI_TILE_ROWS], group = nsai_padded_group(m);
  int32_t queries = query_tiles(p, r->target, r->tiles);
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = m->dtype,
                              .threads = 2 * (rows + CONSUMER_ROWS),
                              .shared_bytes = shared_bytes(p, r->tiles, queries),
                              .tile_tokens = rows / group,
                              .ctas_per_sm = 1,
                              .tma_box_heads = group,
                              .tma_box_tokens = CONSUMER_ROWS / group,
                              .tma_box_keys = r->tiles->of[NSAI_TILE_KEYS],
                              .compile_cost = 480 };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_constant_add(spec, "kRows", rows);
  nsai_constant_add(spec, "kKeys", r->tiles->of[NSAI_TILE_KEYS]);
  nsai_constant_add(spec, "kStages", r->tiles->of[NSAI_TILE_STAGES]);
  nsai_constant_add(spec, "kQueryStages", queries);
  nsai_constant_add(spec, "kMinBlocks", 1);
}
