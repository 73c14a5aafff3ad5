/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Variants of the backward pass: backward_q (what is known of each query row, and dQ) and backward_kv (dK
 * and dV of every pair).
 */
#include "stages.h"

#define WARPS 4
#define THREADS (32 * WARPS)
#define BLOCKS 2 /* of 128 threads: each has all the 255 registers that an instruction can name */

/* ---- what no kernel does yet ---- */

static void refuse_weights(const nsai_problem *p, nsai_reasons *reasons) {
  const nsai_geometry *m = &p->model;
  if (m->phi == NSAI_PHI_LINEAR || m->phi == NSAI_PHI_MLP)
    nsai_refuse(
        reasons,
        "model.compress.phi is %s: no kernel has the gradients of its weights yet; mean and "
        "external have kernels, and all run with runtime.device: cpu",
        m->phi == NSAI_PHI_LINEAR ? "linear" : "mlp");
  if (m->gate == NSAI_GATE_MLP)
    nsai_refuse(
        reasons,
        "model.gate is mlp: no kernel has the gradients of its weights yet; give the library "
        "its logits, or set runtime.device to cpu");
}

static void refuse_lists(const nsai_problem *p, nsai_reasons *reasons) {
  if (p->model.select_count && p->selection == NSA_SELECT_RANGES)
    nsai_refuse(reasons,
                "the caller brings ranges: only blocks have lists of tokens; give blocks, or "
                "set runtime.device to cpu");
  if (p->model.select_count && p->max_tokens > NSAI_KV_MOST_TOKENS)
    nsai_refuse(reasons, "max_tokens is %lld: lists of tokens hold at most %lld; split the batch",
                (long long)p->max_tokens, (long long)NSAI_KV_MOST_TOKENS);
}

static void refuse(const nsai_problem *p, nsai_reasons *reasons) {
  nsai_legal_common(p, reasons);
  refuse_weights(p, reasons);
  refuse_lists(p, reasons);
}

void nsai_legal_backward_q_mma(const nsai_problem *p, const nsai_target *t, nsai_reasons *reasons) {
  (void)t;
  refuse(p, reasons);
}

void nsai_legal_backward_kv_mma(const nsai_problem *p, const nsai_target *t,
                                nsai_reasons *reasons) {
  (void)t;
  refuse(p, reasons);
}

/* What the keys of a branch follow from. */
static void add_branches(const nsai_problem *p, nsai_kernel_spec *spec) {
  const nsai_geometry *m = &p->model;
  nsai_constant_add(spec, "kBlock", m->block);
  nsai_constant_add(spec, "kStride", m->stride);
  nsai_constant_add(spec, "kWindow", m->window);
  nsai_constant_add(spec, "kSelectBlock", m->select_block);
  nsai_constant_add(spec, "kSelectCount", m->select_count);
}

/* ---- backward_q (common/gradient_rows.cuh) ---- */

#define ROWS 64 /* of the largest group: a tile holds whole tokens */

static uint32_t rows_shared(const nsai_geometry *m, int32_t keys, int32_t stages) {
  return nsai_tile_bytes(ROWS + stages * keys, m->head_dim_qk) +
         nsai_tile_bytes(ROWS + stages * keys, m->head_dim_v) + 4 * WARPS;
}

static void specify_rows(const nsai_problem *p, const nsai_target *t, const char *entry,
                         nsai_kernel_spec *spec) {
  const nsai_geometry *m = &p->model;
  int32_t keys = m->head_dim_qk > 192 || t->caution ? 16 : 32; /* beside dQ in registers */
  int32_t stages = rows_shared(m, keys, 2) <= NSAI_PORTABLE_SHARED_BYTES ? 2 : 1;
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = m->dtype,
                              .threads = THREADS,
                              .shared_bytes = rows_shared(m, keys, stages),
                              .tokens = ROWS / nsai_padded_group(m) };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  add_branches(p, spec);
  nsai_constant_add(spec, "kRanges", 0);
  nsai_constant_add(spec, "kRows", ROWS);
  nsai_constant_add(spec, "kKeys", keys);
  nsai_constant_add(spec, "kWarps", WARPS);
  nsai_constant_add(spec, "kStages", stages);
  nsai_constant_add(spec, "kMinBlocks", t->caution > 1 ? 1 : BLOCKS);
}

void nsai_specify_backward_q_mma(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                                 nsai_kernel_spec specs[NSAI_ROLES]) {
  (void)s;
  specify_rows(p, t, "backward_statistics", &specs[NSAI_KERNEL_BACKWARD_STATISTICS]);
  specify_rows(p, t, "backward_q", &specs[NSAI_KERNEL_BACKWARD_Q]);
  if (p->model.select_count) nsai_specify_sort(p, &specs[NSAI_KERNEL_SORT]);
}

/* ---- backward_kv (common/gradient_keys.cuh) ---- */

/* Tokens of an item: so many that a block of average length is one item, so few that the blocks that
 * every token selects are spread over the device. */
#define ITEM_TOKENS 1024

typedef struct keys_tiles {
  int32_t keys, rows, stages;
} keys_tiles;

static uint32_t keys_shared(const nsai_geometry *m, const keys_tiles *s, int32_t entries) {
  uint32_t stage = nsai_tile_bytes(s->rows, m->head_dim_qk) +
                   nsai_tile_bytes(s->rows, m->head_dim_v) + 20 * (uint32_t)s->rows;
  return nsai_tile_bytes(s->keys, m->head_dim_qk) + nsai_tile_bytes(s->keys, m->head_dim_v) +
         (uint32_t)s->stages * ((stage + 127) / 128 * 128) + 4 * (uint32_t)entries;
}

/* The scores of 32 rows fit beside the sums. */
static keys_tiles choose_keys(const nsai_geometry *m, const nsai_target *t, int32_t most_keys,
                              int32_t entries) {
  keys_tiles in_order[] = { { 64, t->caution ? 16 : 32, 2 }, { 64, 16, 2 }, { 64, 16, 1 } };
  for (size_t i = 0; i < sizeof in_order / sizeof *in_order; i++) {
    if (in_order[i].keys > most_keys) in_order[i].keys = most_keys;
    if (keys_shared(m, &in_order[i], entries) <= NSAI_PORTABLE_SHARED_BYTES) return in_order[i];
  }
  return (keys_tiles){ 16, 16, 1 };
}

static void specify_keys(const nsai_problem *p, const nsai_target *t, const char *entry,
                         int32_t most_keys, int32_t entries, nsai_kernel_spec *spec) {
  const nsai_geometry *m = &p->model;
  keys_tiles s = choose_keys(m, t, most_keys, entries);
  *spec = (nsai_kernel_spec){ .entry = entry,
                              .dtype = m->dtype,
                              .threads = 2 * s.keys, /* 16 to a warp */
                              .shared_bytes = keys_shared(m, &s, entries),
                              .tokens = entries };
  nsai_heads_add(spec, p);
  add_branches(p, spec);
  nsai_constant_add(spec, "kKeys", s.keys);
  nsai_constant_add(spec, "kRows", s.rows);
  nsai_constant_add(spec, "kWarps", s.keys / 16);
  nsai_constant_add(spec, "kStages", s.stages);
  nsai_constant_add(spec, "kSplit", nsai_backward_is_split(m));
  nsai_constant_add(spec, "kEntries", entries);
  nsai_constant_add(spec, "kMinBlocks", t->caution > 1 ? 1 : BLOCKS);
}

static void specify_sum(const nsai_problem *p, nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = "backward_sum", .dtype = p->model.dtype, .threads = 256 };
  nsai_heads_add(spec, p);
  add_branches(p, spec);
  nsai_constant_add(spec, "kMinBlocks", 2);
}

void nsai_specify_backward_kv_mma(const nsai_problem *p, const nsai_target *t, const nsai_tiles *s,
                                  nsai_kernel_spec specs[NSAI_ROLES]) {
  const nsai_geometry *m = &p->model;
  (void)s;
  specify_keys(p, t, "backward_compressed", 64, 0, &specs[NSAI_KERNEL_BACKWARD_COMPRESSED]);
  if (m->window) specify_keys(p, t, "backward_window", 64, 0, &specs[NSAI_KERNEL_BACKWARD_WINDOW]);
  if (m->select_count) {
    int32_t keys = nsai_padded_dim(m->select_block) < 64 ? nsai_padded_dim(m->select_block) : 64;
    specify_keys(p, t, "backward_selected", keys, ITEM_TOKENS,
                 &specs[NSAI_KERNEL_BACKWARD_SELECTED]);
    nsai_specify_invert(p, ITEM_TOKENS, specs);
  }
  specify_sum(p, &specs[NSAI_KERNEL_BACKWARD_SUM]);
}
