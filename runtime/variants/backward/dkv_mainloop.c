/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tiles of the kernels over keys without tensor maps (backward/dkv_mainloop.cuh).
 */
#include "variants/backward/backward.h"
#include "variants/backward/kv.h"

typedef struct keys_tiles {
  bool wgmma;
  int32_t keys, rows, stages;
} keys_tiles;

static uint32_t keys_shared(const nsai_model *m, const keys_tiles *s, int32_t entries) {
  return nsai_smem_dkv(s->wgmma, s->keys, s->rows, s->stages, entries, m->head_dim_qk,
                       m->head_dim_v);
}

/* Sums of more columns and the scores of 64 rows spill from the warpgroup's registers. */
static bool is_wide(const nsai_model *m) { return m->head_dim_qk > 192 || m->head_dim_v > 192; }

/* A warpgroup waits for its products at each step: of wide heads, too, two CTAs are to fit into a
 * multiprocessor, which keeps 1 KB for each. A backward pass of 16k tokens and D 256 takes 30.1 ms with
 * one stage of 32 rows, 32.4 with two of 16, and took 42.2 by mma.sync. */
static uint32_t most_shared(const nsai_model *m, const nsai_target *t, bool wgmma) {
  const uint32_t most = nsai_backward_most_shared(wgmma, t);
  return wgmma && (m->head_dim_qk > 128 || m->head_dim_v > 128) ? most / 2 - 512 : most;
}

/* The scores of so many rows fit beside the sums in registers. */
static keys_tiles choose_tiles(const nsai_model *m, const nsai_target *t, bool wgmma,
                               const nsai_dkv_use *use) {
  int32_t wide = wgmma && !is_wide(m) ? 64 : 32;
  int32_t rows = t->register_fallback ? wide / 2 : wide;
  int32_t less = rows > (wgmma ? 32 : 16) ? rows / 2 : rows;
  keys_tiles in_order[] = { { wgmma, NSAI_DKV_TILE_KEYS, rows, 2 },
                            { wgmma, NSAI_DKV_TILE_KEYS, less, 2 },
                            { wgmma, NSAI_DKV_TILE_KEYS, less, 1 },
                            { wgmma, NSAI_DKV_TILE_KEYS, 16, 1 } };
  for (size_t i = 0; i < sizeof in_order / sizeof *in_order; i++) {
    if (in_order[i].keys > use->keys) in_order[i].keys = use->keys;
    if (keys_shared(m, &in_order[i], use->entries) <= most_shared(m, t, wgmma)) return in_order[i];
  }
  return (keys_tiles){ false, 16, 16, 1 };
}

void nsai_dkv_mainloop_specify(const nsai_request *r, bool wgmma, const nsai_dkv_use *use,
                               nsai_kernel_spec *spec) {
  const nsai_problem *p = r->problem;
  const nsai_model *m = &p->model;
  bool warpgroup =
      wgmma && use->keys == NSAI_DKV_TILE_KEYS && !(is_wide(m) && r->target->register_fallback);
  keys_tiles s = choose_tiles(m, r->target, warpgroup, use);
  *spec = (nsai_kernel_spec){ .entry = use->entry,
                              .dtype = m->dtype,
                              .threads = 2 * s.keys, /* 16 to a warp */
                              .shared_bytes = keys_shared(m, &s, use->entries),
                              .tile_tokens = use->entries,
                              .compile_cost = NSAI_DKV_COST };
  nsai_heads_add(spec, p);
  nsai_gate_add(spec, p);
  nsai_backward_branches_add(spec, p);
  nsai_constant_add(spec, "kWgmma", s.wgmma);
  nsai_constant_add(spec, "kKeys", s.keys);
  nsai_constant_add(spec, "kRows", s.rows);
  nsai_constant_add(spec, "kWarps", s.keys / 16);
  nsai_constant_add(spec, "kStages", s.stages);
  nsai_constant_add(spec, "kSplit", nsai_dkv_is_split(m));
  nsai_constant_add(spec, "kEntries", use->entries);
  nsai_constant_add(spec, "kMinBlocks", nsai_backward_min_ctas(r->target));
}
