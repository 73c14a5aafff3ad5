/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The KV-stationary variant of the selected branch.
 */
#include "plan/spec.h"

#include <math.h>
#include <string.h>

#define TILE_ROWS 64 /* of a product */

static nsai_tiles kv_tiles(int32_t rows, int32_t warps, int32_t blocks) {
  return (nsai_tiles){
    { [NSAI_TILE_ROWS] = rows, [NSAI_TILE_WARPS] = warps, [NSAI_TILE_CTAS] = blocks }
  };
}

/* K and V of a block, Q and O of each warp's 16 rows, the tokens of an item. */
static uint32_t kv_shared(const nsai_model *m, const nsai_tiles *s) {
  uint32_t rows = nsai_tile_bytes(16, m->head_dim_qk) + nsai_tile_bytes(16, m->head_dim_v);
  return nsai_panel_bytes(m->select_block, m->head_dim_qk) +
         nsai_panel_bytes(m->select_block, m->head_dim_v) +
         (uint32_t)s->of[NSAI_TILE_WARPS] * rows + 4 * (uint32_t)s->of[NSAI_TILE_ROWS];
}

/* Q beside the scores, then P beside O; and what else the loop holds, more of it where rows that are
 * no multiple of 128 bytes lie unswizzled, most where those of V are long, too. */
static int32_t kv_registers(const nsai_model *m) {
  int32_t keys = m->select_block, p = keys / 4, o = nsai_padded_dim(m->head_dim_v) / 2;
  if (m->dtype == NSA_BF16 && m->head_dim_v < 128) p *= 2; /* kSplitBlockP */
  int32_t scores = nsai_padded_dim(m->head_dim_qk) / 4 + keys / 2;
  /* Measured: Dv 224 and 240 spill beside Dk 160 to 208, and do not beside 128 and less, and 256. */
  bool odd_wide = nsai_padded_dim(m->head_dim_v) > 192 && nsai_padded_dim(m->head_dim_v) % 64 &&
                  m->head_dim_qk > 128 && m->head_dim_qk < 256;
  int32_t rest = m->head_dim_qk % 64 == 0 && m->head_dim_v % 64 == 0 ? 40
                 : odd_wide                                          ? 128
                 : m->head_dim_v > 128                               ? 72
                                                                     : 56;
  return (scores > p + o ? scores : p + o) + rest;
}

static bool kv_holds(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  int32_t threads = 32 * s->of[NSAI_TILE_WARPS] * s->of[NSAI_TILE_CTAS];
  return kv_registers(&p->model) <= nsai_register_limit(threads) &&
         nsai_holds_blocks(t, kv_shared(&p->model, s), s->of[NSAI_TILE_CTAS]);
}

/* As many warpgroups on a multiprocessor as registers and shared memory hold: each waits for its
 * rows, products and softmax in turn. (H200, D 128: 7.79 ms with four, 7.85 with three.) */
static nsai_tiles choose_kv(const nsai_problem *p, const nsai_target *t, nsai_decider *by) {
  const nsai_tiles in_order[] = { kv_tiles(2048, 8, 2), kv_tiles(1024, 4, 3),
                                  kv_tiles(1024, 4, 2) };
  *by = NSAI_BY_DEFAULT;
  for (size_t i = (size_t)t->register_fallback; i < sizeof in_order / sizeof *in_order; i++)
    if (kv_holds(p, t, &in_order[i])) return in_order[i];
  return kv_tiles(1024, 4, 1);
}

static void fit_kv(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                   nsai_reasons *reasons) {
  uint32_t bytes = kv_shared(&p->model, s);
  nsai_fit_block(t, bytes, reasons);
}

static double cost_kv(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s) {
  if (!kv_holds(p, t, s)) return INFINITY;
  double tiles = s->of[NSAI_TILE_WARPS] / 4.0 * s->of[NSAI_TILE_CTAS];
  return 1 + 2 / tiles + 64.0 / s->of[NSAI_TILE_ROWS];
}

const nsai_space nsai_space_selected_kv_stationary_sm90 = {
  3,
  { { NSAI_TILE_ROWS, { 256, 512, 1024, 2048 }, "what a block's keys are copied for, and balance" },
    { NSAI_TILE_WARPS, { 4, 8, 12 }, "warpgroups that share a block's keys" },
    { NSAI_TILE_CTAS, { 1, 2, 3, 4 }, "others fill the waits of one; registers are divided" } },
  choose_kv,
  fit_kv,
  cost_kv,
};

/* One row of 16 columns has been off by 4.8e-3 where blocks nearly cancel; 4e-3 is allowed. */
#define LEAST_BF16_COLUMNS 64

void nsai_legal_attend_selected_kv_stationary_sm90(const nsai_problem *p, const nsai_target *t,
                                                   nsai_reasons *reasons) {
  const nsai_model *m = &p->model;
  nsai_legal_common(p, reasons);
  nsai_legal_packed(p, reasons);
  if (strcmp(t->arch, "sm_90a")) nsai_refuse(reasons, "%s has no wgmma, sm_90a has", t->arch);
  if (p->selection == NSA_SELECT_RANGES)
    nsai_refuse(reasons, "the caller brings ranges: only blocks have lists of tokens");
  if (m->dtype == NSA_BF16 && m->head_dim_v < LEAST_BF16_COLUMNS)
    nsai_refuse(
        reasons,
        "model.head_dim_v is %d: results of blocks are rounded to bf16, of which less than %d "
        "columns do not average the errors",
        m->head_dim_v, LEAST_BF16_COLUMNS);
  if (m->select_block % 16 || m->select_block > 128)
    nsai_refuse(reasons, "model.select.block is %d: it takes multiples of 16 up to 128",
                m->select_block);
}

/* Every (head, token, block) costs the same here, whatever the group and the lists: 13.6 to 14.7 ms at
 * 64k tokens, 64 heads, D 128 and 16 blocks (H200, groups of 4 to 1). A query-stationary tile of 64 rows
 * costs 0.22 ms there for every block in the union of the lists of 64 / G tokens, of which there are n
 * up to 64 n / G, and never more than the sequence has: 41 ms at G 4 and 11 at G 16 with random inputs,
 * so that 20 are to be expected at G 8. With correlated ones attend_selected_sm90_mma takes 16.8 ms at G 2,
 * 11.4 at G 4. */
#define BREAK_EVEN_BLOCKS 64

bool nsai_sensible_attend_selected_kv_stationary_sm90(const nsai_problem *p, const nsai_target *t) {
  const nsai_model *m = &p->model;
  int32_t group = m->heads / m->kv_heads;
  if (t->register_fallback == NSAI_MAX_REGISTER_FALLBACK)
    return false; /* registers: the portable kernel serves */
  if (p->max_kv_len <= (int64_t)BREAK_EVEN_BLOCKS * m->select_block) return false;
  if (kv_registers(m) > nsai_register_limit(32 * 4)) return false;
  return group <= 2 || (group <= 8 && p->overlap == NSA_OVERLAP_LOW);
}

static nsai_kernel_spec standalone_spec(const nsai_problem *p, const char *entry, int32_t threads) {
  nsai_kernel_spec spec = { .entry = entry, .dtype = p->model.dtype, .threads = threads };
  nsai_constant_add(&spec, "kSelectBlock", p->model.select_block);
  nsai_constant_add(&spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(&spec, "kMinBlocks", 1);
  return spec;
}

/* A warp takes its tokens one by one: the more warps, the shorter. */
#define FILL_THREADS 512

void nsai_specify_invert(const nsai_problem *p, int32_t item_rows,
                         nsai_kernel_spec specs[NSAI_ROLES]) {
  nsai_kernel_spec count = standalone_spec(p, "data_invert_count", 256),
                   scan = standalone_spec(p, "data_invert_scan", 1024),
                   fill = standalone_spec(p, "data_invert_fill", FILL_THREADS);
  nsai_constant_add(&count, "kCounters", NSAI_KV_COUNTERS);
  nsai_constant_add(&scan, "kRows", item_rows);
  nsai_constant_add(&fill, "kCounters", NSAI_KV_COUNTERS);
  fill.shared_bytes = (FILL_THREADS / 16 + 4) * NSAI_KV_COUNTERS;
  specs[NSAI_KERNEL_INVERT_COUNT] = count;
  specs[NSAI_KERNEL_INVERT_SCAN] = scan;
  specs[NSAI_KERNEL_INVERT_FILL] = fill;
}

static nsai_kernel_spec combine_spec(const nsai_problem *p) {
  nsai_kernel_spec spec = standalone_spec(p, "attend_selected_combine", 256);
  nsai_heads_add(&spec, p);
  nsai_gate_add(&spec, p);
  return spec;
}

void nsai_specify_attend_selected_kv_stationary_sm90(const nsai_problem *p, const nsai_target *t,
                                                     const nsai_tiles *s,
                                                     nsai_kernel_spec specs[NSAI_ROLES]) {
  nsai_kernel_spec *spec = &specs[NSAI_KERNEL_ATTEND_SELECTED];
  int32_t warps = s->of[NSAI_TILE_WARPS], rows = s->of[NSAI_TILE_ROWS];
  (void)t;
  *spec = (nsai_kernel_spec){ .entry = "attend_selected_kv_stationary_sm90",
                              .dtype = p->model.dtype,
                              .threads = 32 * warps,
                              .shared_bytes = kv_shared(&p->model, s),
                              .tile_tokens = rows };
  nsai_heads_add(spec, p);
  nsai_lists_add(specs, p);
  nsai_constant_add(spec, "kRows", rows);
  nsai_constant_add(spec, "kWarps", warps);
  nsai_constant_add(spec, "kMinBlocks", s->of[NSAI_TILE_CTAS]);
  nsai_specify_invert(p, rows, specs);
  specs[NSAI_KERNEL_COMBINE] = combine_spec(p);
}
