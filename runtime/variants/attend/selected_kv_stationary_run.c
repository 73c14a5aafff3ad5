/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The selected branch, KV-stationary. Per chunk of tokens the lists of blocks become lists of tokens;
 * then, as many query heads at a time as the workspace has rows for, each block is attended by its
 * tokens, and each token's partial results are combined. Nothing depends on what the lists hold.
 */
#include "run/run.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static nsa_status launch(const nsai_run *run, nsai_role role, int64_t grid_x, int64_t grid_y,
                         const void *params) {
  return nsai_launch(run->queue, &run->plan->kernels[role], (uint64_t)grid_x, (uint32_t)grid_y,
                     params);
}

NsaiInvert nsai_invert_params(const nsai_run *run, const NsaiAttendSelected *s, int64_t begin,
                              int64_t end, int64_t item_rows) {
  const nsai_model *m = &run->plan->problem.model;
  const nsai_kv_workspace *kv = &run->plan->workspace.kv;
  int64_t blocks = nsai_kv_blocks(m, run->sizes.kv_tokens, run->sizes.num_seqs);
  int64_t part = nsai_kv_part_tokens(blocks);
  return (NsaiInvert){ .seq = s->seq,
                       .lists = s->lists,
                       .list_token_stride = s->list_token_stride,
                       .list_head_stride = s->list_head_stride,
                       .counts = nsai_buffer_at(run, kv->counts),
                       .starts = nsai_buffer_at(run, kv->starts),
                       .entries = nsai_buffer_at(run, kv->entries),
                       .entry_indices = nsai_buffer_at(run, kv->entry_indices),
                       .items = nsai_buffer_at(run, kv->items),
                       .item_counts = nsai_buffer_at(run, kv->item_counts),
                       .entry_capacity = (end - begin) * m->select_count,
                       .item_capacity = (int)nsai_kv_items(m, end - begin, blocks, item_rows),
                       .heads = s->list_head_stride ? m->kv_heads : 1,
                       .token_begin = (int)begin,
                       .token_end = (int)end,
                       .part_tokens = (int)part,
                       .parts = (int)ceil_div(end - begin, part),
                       .blocks = (int)blocks };
}

/* Entries are written to all places of a head's lists at once: of so many bytes L2 makes lines. */
#define FILL_BYTES ((int64_t)32 << 20)

nsa_status nsai_enqueue_invert(const nsai_run *run, NsaiInvert p) {
  int64_t ranges = ceil_div(p.blocks, NSAI_KV_COUNTERS);
  int64_t heads = p.entry_capacity ? FILL_BYTES / (4 * p.entry_capacity) : p.heads;
  NSAI_TRY(launch(run, NSAI_KERNEL_INVERT_COUNT, (int64_t)p.heads * p.parts, ranges, &p));
  NSAI_TRY(launch(run, NSAI_KERNEL_INVERT_SCAN, p.heads, 1, &p));
  if (!heads) heads = 1;
  for (int64_t head = 0; head < p.heads; head += heads) {
    p.head_begin = (int)head;
    NSAI_TRY(
        launch(run, NSAI_KERNEL_INVERT_FILL, smaller(heads, p.heads - head) * p.parts, ranges, &p));
  }
  return NSA_OK;
}

/* Attention and sum for the query heads [begin, end). */
static nsa_status attend_heads(const nsai_run *run, const NsaiAttendSelected *s,
                               const NsaiInvert *index, int32_t begin, int32_t end) {
  const nsai_kv_workspace *kv = &run->plan->workspace.kv;
  NsaiAttendKv attend = { .q = s->q,
                          .k = s->k,
                          .v = s->v,
                          .items = index->items,
                          .item_counts = index->item_counts,
                          .entries = index->entries,
                          .partial = nsai_buffer_at(run, kv->o),
                          .partial_lse = nsai_buffer_at(run, kv->lse),
                          .entry_capacity = index->entry_capacity,
                          .item_capacity = index->item_capacity,
                          .shared_lists = !index->list_head_stride,
                          .token_begin = index->token_begin,
                          .chunk_tokens = index->token_end - index->token_begin,
                          .head_begin = begin,
                          .heads = end - begin,
                          .scale_log2 = s->scale_log2 };
  NsaiCombine combine = { .entry_indices = index->entry_indices,
                          .partial = attend.partial,
                          .partial_lse = attend.partial_lse,
                          .out = s->out,
                          .entry_capacity = attend.entry_capacity,
                          .shared_lists = attend.shared_lists,
                          .token_begin = attend.token_begin,
                          .chunk_tokens = attend.chunk_tokens,
                          .head_begin = begin,
                          .heads = end - begin,
                          .kv_heads = s->kv_heads };
  int64_t rows = (int64_t)combine.heads * combine.chunk_tokens; /* a warp each */
  int64_t warps = run->plan->kernels[NSAI_KERNEL_COMBINE].threads / 32;
  NSAI_TRY(launch(run, NSAI_KERNEL_ATTEND_SELECTED, (int64_t)attend.heads * attend.item_capacity, 1,
                  &attend));
  return launch(run, NSAI_KERNEL_COMBINE, ceil_div(rows, warps), 1, &combine);
}

nsa_status nsai_enqueue_selected_kv(const nsai_run *run, const NsaiAttendSelected *selected) {
  const nsai_model *m = &run->plan->problem.model;
  const nsai_kv_workspace *kv = &run->plan->workspace.kv;
  int64_t item_rows = run->plan->kernels[NSAI_KERNEL_ATTEND_SELECTED].tile_tokens;
  for (int64_t begin = 0; begin < run->sizes.tokens; begin += kv->chunk_tokens) {
    int64_t end = smaller(begin + kv->chunk_tokens, run->sizes.tokens);
    int64_t heads = smaller(kv->rows / ((end - begin) * m->select_count), m->heads);
    NsaiInvert index = nsai_invert_params(run, selected, begin, end, item_rows);
    NSAI_TRY(nsai_enqueue_invert(run, index));
    for (int64_t head = 0; head < m->heads; head += heads)
      NSAI_TRY(attend_heads(run, selected, &index, (int32_t)head,
                            (int32_t)smaller(head + heads, m->heads)));
  }
  return NSA_OK;
}
