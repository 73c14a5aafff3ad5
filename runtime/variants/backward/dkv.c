/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Launches of the kernels over keys: partial sums of dK and dV of each branch.
 */
#include "variants/backward/backward.h"
#include "variants/backward/kv.h"

/* Keys of a tile: a box of them, or 16 to a warp. */
static int64_t tile_keys(const nsai_kernel *kernel) {
  return kernel->tma_box_keys ? kernel->tma_box_keys : kernel->threads / 32 * 16;
}

/* Tiles of keys that cover `rows` of all sequences: data/sequence.cuh. */
static int64_t key_tiles(const nsai_run *run, const nsai_kernel *kernel, int64_t rows) {
  int64_t keys = tile_keys(kernel);
  return run->batch ? rows / keys + run->sizes.num_seqs : nsai_ceil_div(rows, keys);
}

static NsaiBackwardKv keys_params(const nsai_dkv_pass *b, int branch, int partial) {
  const nsai_run *run = b->run;
  return (NsaiBackwardKv){ .seq = nsai_compressed_sequences(run),
                           .q = nsai_view(&run->io->q),
                           .d_o = nsai_backward_d_o(run),
                           .k = nsai_backward_keys(run, branch, 0),
                           .v = nsai_backward_keys(run, branch, 1),
                           .statistics = nsai_buffer_at(run, run->plan->workspace.row_statistics),
                           .partial = nsai_buffer_at(run, b->form->buffer[partial]),
                           .head_begin = b->head,
                           .heads = b->heads,
                           .kv_heads = run->plan->problem.model.kv_heads,
                           .splits = 1,
                           .scale = (float)nsai_run_scale(run),
                           .scale_log2 = nsai_run_scale_log2(run) };
}

/* The lists of the query rows. */
static void set_lists(const nsai_dkv_pass *b, NsaiBackwardKv *p) {
  p->lists = b->selected.lists;
  p->list_token_stride = b->selected.list_token_stride;
  p->list_head_stride = b->selected.list_head_stride;
}

static nsa_status set_maps(const nsai_run *run, const nsai_kernel *kernel, int64_t keys,
                           const NsaiBackwardKv *kv, NsaiBackwardKvTma *p) {
  const nsai_model *m = &run->plan->problem.model;
  const NsaiView pair[2] = { kv->k, kv->v };
  p->kv = *kv;
  NSAI_TRY(nsai_map_rows(run, kernel, "q", &kv->q, m->head_dim_qk, &p->q));
  NSAI_TRY(nsai_map_rows(run, kernel, "grads.d_o", &kv->d_o, m->head_dim_v, &p->d_o));
  return nsai_map_keys(run, kernel, pair, keys, &p->k, &p->v);
}

/* dK and dV of a branch, with tensor maps where the kernel takes them; `keys`: rows of k and v that
 * may be read. */
static nsa_status launch(const nsai_run *run, const nsai_kernel *kernel, int64_t grid, int64_t keys,
                         const NsaiBackwardKv *kv) {
  NsaiBackwardKvTma p = { 0 };
  if (!kernel->tma_box_keys)
    return nsai_launch(run->queue, kernel, (uint64_t)grid,
                       1 + nsai_dkv_is_split(&run->plan->problem.model), kv);
  NSAI_TRY(set_maps(run, kernel, keys, kv, &p));
  return nsai_launch(run->queue, kernel, (uint64_t)grid, 1, &p);
}

/* The same by persistent CTAs, which take the tiles of `grid` CTAs. */
static nsa_status launch_persistent(const nsai_run *run, const nsai_kernel *kernel, int64_t grid,
                                    int64_t keys, const NsaiBackwardKv *kv, int *tickets,
                                    const int *item_order) {
  NsaiBackwardDkvPersistent p = { .tickets = tickets, .item_order = item_order };
  NSAI_TRY(set_maps(run, kernel, keys, kv, &p.keys));
  return nsai_launch(run->queue, kernel, (uint64_t)nsai_smaller(grid, kernel->most_ctas), 1, &p);
}

nsa_status nsai_dkv_compressed_enqueue(const nsai_dkv_pass *b) {
  const nsai_kernel *kernel = &b->form->kernel[NSAI_DKV_COMPRESSED];
  NsaiBackwardKv p = keys_params(b, NSA_CMP, NSAI_DKV_COMPRESSED_SUMS);
  p.heads = (int)nsai_smaller(b->form->number[NSAI_DKV_COMPRESSED_HEADS], p.kv_heads - b->head);
  p.rows = nsai_dkv_block_rows(b->run);
  p.tiles = (int)key_tiles(b->run, kernel, p.rows);
  p.splits = (int)b->form->number[NSAI_DKV_SPLITS];
  const int64_t grid = (int64_t)p.heads * p.splits * p.tiles, keys = nsai_present_blocks(b->run);
  if (!b->dq.sums) return launch(b->run, kernel, grid, keys, &p);
  NsaiBackwardDkvDq all = { .sums = b->dq.sums, .order = b->dq.order, .blocks = b->dq.blocks };
  NSAI_TRY(set_maps(b->run, kernel, keys, &p, &all.keys));
  return nsai_launch(b->run->queue, kernel, (uint64_t)grid, 1, &all);
}

nsa_status nsai_dkv_window_enqueue(const nsai_dkv_pass *b) {
  const nsai_kernel *kernel = &b->form->kernel[NSAI_DKV_WINDOW];
  NsaiBackwardKv p = keys_params(b, NSA_WIN, NSAI_DKV_WINDOW_SUMS);
  p.rows = b->run->sizes.kv_tokens;
  p.tiles = (int)key_tiles(b->run, kernel, p.rows);
  p.joined = b->index.near > 0;
  set_lists(b, &p);
  const int64_t grid = (int64_t)b->heads * p.tiles, keys = b->run->sizes.kv_tokens;
  if (kernel->most_ctas)
    return launch_persistent(b->run, kernel, grid, keys, &p, b->tickets + NSAI_DKV_WINDOW_TICKETS,
                             NULL);
  return launch(b->run, kernel, grid, keys, &p);
}

/* The selected branch where the caller brings ranges. */
static nsa_status enqueue_ranges(const nsai_dkv_pass *b, const nsai_kernel *kernel,
                                 NsaiBackwardKv p) {
  p.rows = b->run->sizes.kv_tokens;
  p.tiles = (int)key_tiles(b->run, kernel, p.rows);
  p.splits = (int)b->form->number[NSAI_DKV_RANGE_SPLITS];
  set_lists(b, &p);
  return launch(b->run, kernel, (int64_t)b->heads * p.splits * p.tiles, p.rows, &p);
}

nsa_status nsai_dkv_selected_enqueue(const nsai_dkv_pass *b) {
  const nsai_problem *problem = &b->run->plan->problem;
  const nsai_kernel *kernel = &b->form->kernel[NSAI_DKV_SELECTED];
  NsaiBackwardKv p = keys_params(b, NSA_SEL, NSAI_DKV_SELECTED_SUMS);
  if (problem->selection == NSA_SELECT_RANGES) return enqueue_ranges(b, kernel, p);
  p.items = b->index.items;
  p.item_counts = b->index.item_counts;
  p.entries = b->index.entries;
  p.entry_capacity = b->index.entry_capacity;
  p.item_capacity = b->index.item_capacity;
  p.shared_lists = !b->index.list_head_stride;
  p.tiles = (int)nsai_ceil_div(problem->model.select_block, tile_keys(kernel));
  const int64_t grid = (int64_t)b->heads * p.item_capacity * p.tiles,
                keys = b->run->sizes.kv_tokens;
  if (kernel->most_ctas)
    return launch_persistent(b->run, kernel, grid, keys, &p, b->tickets + NSAI_DKV_SELECTED_TICKETS,
                             b->item_order);
  if (!b->dq.add_slots) return launch(b->run, kernel, grid, keys, &p);
  const NsaiBackwardDkvSlots all = { .keys = p,
                                     .slots = b->dq.slots,
                                     .slot_steps = b->dq.slot_steps };
  return nsai_launch(b->run->queue, kernel, (uint64_t)grid, 1, &all);
}

nsa_status nsai_dkv_slots_enqueue(const nsai_dkv_pass *b) {
  const NsaiBackwardDqSlots p = { .seq = nsai_compressed_sequences(b->run),
                                  .entry_indices = b->index.entry_indices,
                                  .slots = b->dq.slots,
                                  .slot_steps = b->dq.slot_steps,
                                  .sums = b->dq.sums,
                                  .entry_capacity = b->index.entry_capacity,
                                  .blocks = b->dq.blocks,
                                  .shared_lists = !b->index.list_head_stride,
                                  .head_begin = b->head,
                                  .tiles =
                                      (int)nsai_tile_count(b->run, b->dq.add_slots->tile_tokens),
                                  .adds = nsai_run_has(b->run, NSA_CMP) };
  return nsai_launch(b->run->queue, b->dq.add_slots, (uint64_t)b->heads * (uint64_t)p.tiles, 1, &p);
}
