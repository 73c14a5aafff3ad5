/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Variants of the backward pass: backward_q (what is known of each query row, and dQ) and backward_kv (dK
 * and dV of every pair).
 */
#include "plan/spec.h"
#include "variants/attend/invert.h"
#include "variants/select/sort.h"

#include <string.h>

#define WARPS 4
#define THREADS (32 * WARPS)
#define BLOCKS 2 /* of 128 threads: each has all the 255 registers that an instruction can name */

/* What no kernel can do. */
static void refuse_lists(const nsai_problem *p, nsai_reasons *reasons) {
  if (p->model.select_count && p->selection != NSA_SELECT_RANGES &&
      p->max_tokens > NSAI_KV_MOST_TOKENS)
    nsai_refuse(reasons, "max_tokens is %lld: lists of tokens hold at most %lld; split the batch",
                (long long)p->max_tokens, (long long)NSAI_KV_MOST_TOKENS);
}

static void refuse(const nsai_problem *p, nsai_reasons *reasons) {
  nsai_legal_common(p, reasons);
  refuse_lists(p, reasons);
}

void nsai_legal_backward_q_sm80(const nsai_problem *p, const nsai_target *t,
                                nsai_reasons *reasons) {
  (void)t;
  refuse(p, reasons);
}

void nsai_legal_backward_kv_sm80(const nsai_problem *p, const nsai_target *t,
                                 nsai_reasons *reasons) {
  (void)t;
  refuse(p, reasons);
}

static void refuse_wgmma(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  refuse(p, reasons);
  if (strcmp(t->arch, "sm_90a")) nsai_refuse(reasons, "%s has no wgmma, sm_90a has", t->arch);
}

void nsai_legal_backward_q_sm90(const nsai_problem *p, const nsai_target *t,
                                nsai_reasons *reasons) {
  refuse_wgmma(p, t, reasons);
}

void nsai_legal_backward_kv_sm90(const nsai_problem *p, const nsai_target *t,
                                 nsai_reasons *reasons) {
  refuse_wgmma(p, t, reasons);
}

bool nsai_sensible_backward_sm90(const nsai_problem *p, const nsai_target *t) {
  (void)p;
  return !t->register_fallback; /* registers: the portable kernels serve */
}

/* What the keys of a branch follow from. */
static void add_branches(const nsai_problem *p, nsai_kernel_spec *spec) {
  const nsai_model *m = &p->model;
  nsai_constant_add(spec, "kBlock", m->block);
  nsai_constant_add(spec, "kStride", m->stride);
  nsai_constant_add(spec, "kWindow", m->window);
  nsai_constant_add(spec, "kSelectBlock", m->select_block);
  nsai_constant_add(spec, "kSelectCount", m->select_count);
}

/* What the rows' lists hold; kernels of keys read them inverted, or have one of their own for ranges. */
static void add_lists(const nsai_problem *p, nsai_kernel_spec *spec) {
  nsai_constant_add(spec, "kRanges", p->selection == NSA_SELECT_RANGES);
}

/* Bytes of a tile, as mma.sync or as wgmma reads it: ProductTile of backward/products.cuh. */
static uint32_t tile_bytes(bool wgmma, int32_t rows, int32_t dim) {
  return wgmma ? nsai_panel_bytes(rows, dim) : nsai_tile_bytes(rows, dim);
}

/* The shared memory that a block of threads may take. */
static uint32_t most_shared(bool wgmma, const nsai_target *t) {
  return wgmma ? t->shared_bytes : NSAI_PORTABLE_SHARED_BYTES;
}

/* ---- backward_q (backward/dq_mainloop.cuh) ---- */

#define ROWS 64 /* of the largest group: a tile holds whole tokens */

typedef struct rows_tiles {
  bool wgmma;
  int32_t keys, stages;
} rows_tiles;

static uint32_t rows_shared(const nsai_model *m, const rows_tiles *s) {
  uint32_t rows =
      tile_bytes(s->wgmma, ROWS, m->head_dim_qk) + tile_bytes(s->wgmma, ROWS, m->head_dim_v);
  uint32_t keys =
      tile_bytes(s->wgmma, s->keys, m->head_dim_qk) + tile_bytes(s->wgmma, s->keys, m->head_dim_v);
  return rows + (uint32_t)s->stages * keys + 8 * WARPS;
}

/* The scores of so many keys fit beside dQ in registers. */
static int32_t choose_row_keys(const nsai_model *m, const nsai_target *t, bool wgmma) {
  if (wgmma) return m->head_dim_qk > 128 ? 32 : 64;
  return m->head_dim_qk > 192 || t->register_fallback ? 16 : 32;
}

static void specify_rows(const nsai_problem *p, const nsai_target *t, bool wgmma, const char *entry,
                         nsai_kernel_spec *spec) {
  const nsai_model *m = &p->model;
  rows_tiles s = { wgmma, choose_row_keys(m, t, wgmma), 2 };
  if (rows_shared(m, &s) > most_shared(wgmma, t)) s.stages = 1;
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = m->dtype,
                              .threads = THREADS,
                              .shared_bytes = rows_shared(m, &s),
                              .tile_tokens = ROWS / nsai_padded_group(m) };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  add_branches(p, spec);
  add_lists(p, spec);
  nsai_constant_add(spec, "kWgmma", wgmma);
  nsai_constant_add(spec, "kRows", ROWS);
  nsai_constant_add(spec, "kKeys", s.keys);
  nsai_constant_add(spec, "kWarps", WARPS);
  nsai_constant_add(spec, "kStages", s.stages);
  nsai_constant_add(spec, "kMinBlocks", t->register_fallback > 1 ? 1 : BLOCKS);
}

/* ---- backward_q through tensor maps (backward/pipelines/dq.cuh) ---- */

#define RING_ROWS 128
#define RING_KEYS 64
#define RING_THREADS 384 /* two warpgroups that compute, and the producers' */
#define RING_STAGES 4    /* at most: one held, one read, two on their way */
#define LEAST_STAGES 3

static uint32_t ring_shared(const nsai_model *m, int32_t stages) {
  uint32_t rows = nsai_panel_bytes(RING_ROWS, m->head_dim_qk) + /* and of a stage's keys: */
                  nsai_panel_bytes(RING_ROWS, m->head_dim_v);
  uint32_t stage =
      nsai_panel_bytes(RING_KEYS, m->head_dim_qk) + nsai_panel_bytes(RING_KEYS, m->head_dim_v);
  uint32_t tokens = (uint32_t)(RING_ROWS / nsai_padded_group(m));
  uint32_t bits = (uint32_t)stages * (2 * 8 * tokens + 3 * 4), barriers = 2 * 8 * (stages + 1u);
  return rows + (uint32_t)stages * stage + NSA_BRANCHES * RING_ROWS * 16 + (bits + 7) / 8 * 8 +
         barriers;
}

static int32_t ring_stages(const nsai_model *m, const nsai_target *t) {
  int32_t stages = RING_STAGES;
  while (stages >= LEAST_STAGES && ring_shared(m, stages) > t->shared_bytes) stages--;
  return stages;
}

/* A lane of the producer has a token. dQ, scores and dU of a row are in registers together. */
static bool takes_ring(const nsai_model *m, const nsai_target *t) {
  int32_t group = nsai_padded_group(m);
  return !t->register_fallback && group >= 4 && group <= 64 && m->head_dim_qk <= 192 &&
         ring_stages(m, t) >= LEAST_STAGES;
}

static void specify_ring(const nsai_problem *p, const nsai_target *t, const char *entry,
                         nsai_kernel_spec *spec) {
  const nsai_model *m = &p->model;
  int32_t stages = ring_stages(m, t), group = nsai_padded_group(m);
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = m->dtype,
                              .threads = RING_THREADS,
                              .shared_bytes = ring_shared(m, stages),
                              .tile_tokens = RING_ROWS / group,
                              .ctas_per_sm = 1,
                              .tma_box_heads = group,
                              .tma_box_tokens = RING_ROWS / 2 / group,
                              .tma_box_keys = RING_KEYS };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  add_branches(p, spec);
  add_lists(p, spec);
  nsai_constant_add(spec, "kKeys", RING_KEYS);
  nsai_constant_add(spec, "kStages", stages);
  nsai_constant_add(spec, "kMinBlocks", 1);
}

static void specify_saved(const nsai_problem *p, nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = "backward_row_stats_saved",
                              .dtype = p->model.dtype,
                              .threads = 256 };
  nsai_constant_add(spec, "kHeadDimV", p->model.head_dim_v);
  nsai_gate_add(spec, p);
  nsai_constant_add(spec, "kMinBlocks", 4);
}

static void specify_round(const nsai_problem *p, nsai_kernel_spec *spec) {
  *spec =
      (nsai_kernel_spec){ .entry = "backward_round_do", .dtype = p->model.dtype, .threads = 256 };
  nsai_constant_add(spec, "kHeadDimV", p->model.head_dim_v);
  nsai_constant_add(spec, "kMinBlocks", 4);
}

static void specify_q(const nsai_problem *p, const nsai_target *t, bool wgmma,
                      nsai_kernel_spec specs[NSAI_ROLES]) {
  bool ring = wgmma && takes_ring(&p->model, t);
  specify_round(p, &specs[NSAI_KERNEL_BACKWARD_ROUND]);
  if (p->recompute != NSAI_RECOMPUTE_ALWAYS) specify_saved(p, &specs[NSAI_KERNEL_BACKWARD_SAVED]);
  if (p->recompute != NSAI_RECOMPUTE_NEVER && ring)
    specify_ring(p, t, "backward_row_stats_tma", &specs[NSAI_KERNEL_BACKWARD_STATISTICS]);
  else if (p->recompute != NSAI_RECOMPUTE_NEVER)
    specify_rows(p, t, wgmma, "backward_row_stats", &specs[NSAI_KERNEL_BACKWARD_STATISTICS]);
  if (ring)
    specify_ring(p, t, "backward_dq_tma", &specs[NSAI_KERNEL_BACKWARD_Q]);
  else
    specify_rows(p, t, wgmma, "backward_dq", &specs[NSAI_KERNEL_BACKWARD_Q]);
  if (p->model.select_count) nsai_sort_specify(p, &specs[NSAI_KERNEL_SORT]);
}

void nsai_specify_backward_q_sm80(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                                  nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)s;
  specify_q(p, t, false, specs);
}

void nsai_specify_backward_q_sm90(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                                  nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)s;
  specify_q(p, t, true, specs);
}

/* ---- backward_kv (backward/dkv_mainloop.cuh) ---- */

/* Tokens of an item: so many that a block of average length is one item, so few that the blocks that
 * every token selects are spread over the device. */
#define ITEM_TOKENS 1024

/* Words of shared memory of backward_dkv_ranges: a thousand rows, of a token and its keys each. */
#define RANGE_WORDS 2048

#define TILE_KEYS 64 /* at most; all that wgmma takes */

typedef struct keys_tiles {
  bool wgmma;
  int32_t keys, rows, stages;
} keys_tiles;

/* One of the kernels: at most so many keys, and words of shared memory for its rows; whether it does the
 * selected branch within the window. */
typedef struct keys_use {
  const char *entry;
  int32_t keys, entries;
  bool joins;
} keys_use;

static uint32_t keys_shared(const nsai_model *m, const keys_tiles *s, int32_t entries) {
  uint32_t align = s->wgmma ? 1024 : 128;
  uint32_t stage = tile_bytes(s->wgmma, s->rows, m->head_dim_qk) +
                   tile_bytes(s->wgmma, s->rows, m->head_dim_v) + 20 * (uint32_t)s->rows;
  uint32_t keys =
      tile_bytes(s->wgmma, s->keys, m->head_dim_qk) + tile_bytes(s->wgmma, s->keys, m->head_dim_v);
  return keys + (uint32_t)s->stages * ((stage + align - 1) / align * align) + 4 * (uint32_t)entries;
}

/* The scores of so many rows fit beside the sums in registers. */
static keys_tiles choose_keys(const nsai_model *m, const nsai_target *t, bool wgmma,
                              const keys_use *use) {
  int32_t wide = wgmma ? 64 : 32;
  int32_t rows = t->register_fallback ? wide / 2 : wide;
  keys_tiles in_order[] = { { wgmma, TILE_KEYS, rows, 2 },
                            { wgmma, TILE_KEYS, rows > 16 ? rows / 2 : 16, 2 },
                            { wgmma, TILE_KEYS, 16, 1 } };
  for (size_t i = 0; i < sizeof in_order / sizeof *in_order; i++) {
    if (in_order[i].keys > use->keys) in_order[i].keys = use->keys;
    if (keys_shared(m, &in_order[i], use->entries) <= most_shared(wgmma, t)) return in_order[i];
  }
  return (keys_tiles){ false, 16, 16, 1 };
}

/* Sums of more columns and the scores of 64 rows spill from the warpgroup's registers. */
static bool is_wide(const nsai_model *m) { return m->head_dim_qk > 192 || m->head_dim_v > 192; }

static void specify_keys(const nsai_problem *p, const nsai_target *t, bool wgmma,
                         const keys_use *use, nsai_kernel_spec *spec) {
  const nsai_model *m = &p->model;
  keys_tiles s = choose_keys(m, t, wgmma && use->keys == TILE_KEYS && !is_wide(m), use);
  *spec = (nsai_kernel_spec){ .entry = use->entry,
                              .dtype = m->dtype,
                              .threads = 2 * s.keys, /* 16 to a warp */
                              .shared_bytes = keys_shared(m, &s, use->entries),
                              .tile_tokens = use->entries };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  add_branches(p, spec);
  nsai_constant_add(spec, "kWgmma", s.wgmma);
  nsai_constant_add(spec, "kKeys", s.keys);
  nsai_constant_add(spec, "kRows", s.rows);
  nsai_constant_add(spec, "kWarps", s.keys / 16);
  nsai_constant_add(spec, "kStages", s.stages);
  nsai_constant_add(spec, "kSplit", nsai_backward_is_split(m));
  nsai_constant_add(spec, "kEntries", use->entries);
  nsai_constant_add(spec, "kMinBlocks", t->register_fallback > 1 ? 1 : BLOCKS);
}

/* ---- backward_kv through tensor maps (backward/pipelines/dkv.cuh) ---- */

#define STAGE_ROWS 64
#define KEY_STAGES 4 /* at most: one held, one read, two on their way */
#define LEAST_KEY_STAGES 3

static uint32_t key_ring_shared(const nsai_model *m, const keys_use *use, int32_t stages) {
  int32_t keys = use->keys;
  uint32_t tile = nsai_panel_bytes(keys, m->head_dim_qk) + nsai_panel_bytes(keys, m->head_dim_v);
  uint32_t stage =
      nsai_panel_bytes(STAGE_ROWS, m->head_dim_qk) + nsai_panel_bytes(STAGE_ROWS, m->head_dim_v);
  uint32_t joined = use->joins; /* LSE and u of rows once more; a byte for each token and tile */
  uint32_t known = (16 + 8 * joined) * STAGE_ROWS + 16 + 2 * 8;
  uint32_t listed = joined * 2 * (uint32_t)(STAGE_ROWS * m->kv_heads / m->heads);
  return tile + (uint32_t)stages * (stage + known) + 8 + listed;
}

static int32_t key_ring_stages(const nsai_model *m, const nsai_target *t, const keys_use *use) {
  int32_t stages = KEY_STAGES;
  while (stages >= LEAST_KEY_STAGES && key_ring_shared(m, use, stages) > t->shared_bytes) stages--;
  return stages;
}

/* A stage holds whole tokens; of a list each is a box, which are to be few. dK, dV and scores of 64 keys
 * fit into a warpgroup's registers. */
static bool takes_key_ring(const nsai_model *m, const nsai_target *t, const keys_use *use) {
  int32_t group = m->heads / m->kv_heads;
  return !t->register_fallback && group == nsai_padded_group(m) &&
         group >= (use->entries ? 4 : 1) && group <= STAGE_ROWS && m->head_dim_qk <= 128 &&
         m->head_dim_v <= 128 && key_ring_stages(m, t, use) >= LEAST_KEY_STAGES;
}

static void specify_key_ring(const nsai_problem *p, const nsai_target *t, const keys_use *use,
                             nsai_kernel_spec *spec) {
  const nsai_model *m = &p->model;
  int32_t stages = key_ring_stages(m, t, use), group = m->heads / m->kv_heads;
  *spec = (nsai_kernel_spec){ .entry = use->entry,
                              .dtype = m->dtype,
                              .threads = RING_THREADS,
                              .shared_bytes = key_ring_shared(m, use, stages),
                              .tile_tokens = use->entries,
                              .tma_box_heads = group,
                              .tma_box_tokens = use->entries ? 1 : STAGE_ROWS / group,
                              .tma_box_keys = use->keys };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  add_branches(p, spec);
  nsai_constant_add(spec, "kKeys", use->keys);
  nsai_constant_add(spec, "kStages", stages);
  nsai_constant_add(spec, "kEntries", use->entries);
  nsai_constant_add(spec, "kJoins", use->joins);
  nsai_constant_add(spec, "kMinBlocks", 1);
}

static void specify_sum(const nsai_problem *p, nsai_kernel_spec *spec) {
  *spec =
      (nsai_kernel_spec){ .entry = "backward_dkv_sum", .dtype = p->model.dtype, .threads = 256 };
  nsai_constant_add(spec, "kHeadDimQk", p->model.head_dim_qk);
  nsai_constant_add(spec, "kHeadDimV", p->model.head_dim_v);
  add_branches(p, spec);
  add_lists(p, spec);
  nsai_constant_add(spec, "kRun", nsai_sum_run(&p->model));
  nsai_constant_add(spec, "kMinBlocks", 2);
}

/* Blocks of at most 32 keys would leave half of wgmma's 64 empty. */
static int32_t block_keys(const nsai_model *m) {
  int32_t keys = nsai_padded_dim(m->select_block);
  return keys > 32 ? TILE_KEYS : keys;
}

/* One branch's kernel: through tensor maps where it can be. */
static void specify_branch(const nsai_problem *p, const nsai_target *t, bool wgmma,
                           const keys_use *plain, const keys_use *boxed, nsai_kernel_spec *spec) {
  if (wgmma && takes_key_ring(&p->model, t, boxed))
    specify_key_ring(p, t, boxed, spec);
  else
    specify_keys(p, t, wgmma, plain, spec);
}

static void specify_kv(const nsai_problem *p, const nsai_target *t, bool wgmma,
                       nsai_kernel_spec specs[NSAI_ROLES]) {
  const nsai_model *m = &p->model;
  const keys_use compressed[] = { { "backward_dkv_compressed", TILE_KEYS, 0, false },
                                  { "backward_dkv_compressed_tma", 2 * TILE_KEYS, 0, false } };
  const keys_use window[] = { { "backward_dkv_window", TILE_KEYS, 0, false },
                              { "backward_dkv_window_tma", 2 * TILE_KEYS, 0,
                                nsai_backward_joins(m) } };
  const keys_use selected[] = { { "backward_dkv_selected", block_keys(m), ITEM_TOKENS, false },
                                { "backward_dkv_selected_tma", TILE_KEYS, ITEM_TOKENS, false } };
  const keys_use ranges = { "backward_dkv_ranges", TILE_KEYS, RANGE_WORDS, false };
  bool whole = wgmma && block_keys(m) == TILE_KEYS;
  specify_branch(p, t, wgmma, &compressed[0], &compressed[1],
                 &specs[NSAI_KERNEL_BACKWARD_COMPRESSED]);
  if (m->window)
    specify_branch(p, t, wgmma, &window[0], &window[1], &specs[NSAI_KERNEL_BACKWARD_WINDOW]);
  if (m->select_count && p->selection == NSA_SELECT_RANGES) {
    specify_keys(p, t, wgmma, &ranges, &specs[NSAI_KERNEL_BACKWARD_SELECTED]);
  } else if (m->select_count) {
    nsai_kernel_spec *spec = &specs[NSAI_KERNEL_BACKWARD_SELECTED];
    specify_branch(p, t, whole, &selected[0], &selected[1], spec);
    nsai_invert_specify(p, ITEM_TOKENS, &specs[NSAI_KERNEL_INVERT_COUNT]);
  }
  specify_sum(p, &specs[NSAI_KERNEL_BACKWARD_SUM]);
  if (nsai_phi_has_weights(m)) nsai_specify_phi_back(p, specs);
  if (m->gate == NSAI_GATE_MLP) nsai_specify_gate_back(p, specs);
}

void nsai_specify_backward_kv_sm80(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                                   nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)s;
  specify_kv(p, t, false, specs);
}

void nsai_specify_backward_kv_sm90(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                                   nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)s;
  specify_kv(p, t, true, specs);
}
