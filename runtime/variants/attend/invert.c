/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/invert.h"

#include "base/math.h"

#include "params/attention.h"

static nsai_kernel_spec list_spec(const nsai_problem *p, const char *entry, int32_t threads,
                                  int32_t compile_cost) {
  nsai_kernel_spec spec = {
    .entry = entry, .dtype = p->model.dtype, .threads = threads, .compile_cost = compile_cost
  };
  nsai_constant_add(&spec, "kSelectBlock", p->model.select_block);
  nsai_constant_add(&spec, "kSelectCount", p->model.select_count);
  nsai_constant_add(&spec, "kMinBlocks", 1);
  return spec;
}

/* A warp takes its tokens one by one: the more warps, the shorter. */
#define FILL_THREADS 512

void nsai_invert_specify(const nsai_problem *p, int32_t item_rows,
                         nsai_kernel_spec kernel[NSAI_INVERT_KERNELS]) {
  nsai_kernel_spec count = list_spec(p, "data_invert_count", 256, 90),
                   scan = list_spec(p, "data_invert_scan", 1024, 100),
                   fill = list_spec(p, "data_invert_fill", FILL_THREADS, 200);
  nsai_constant_add(&count, "kCounters", NSAI_KV_COUNTERS);
  nsai_constant_add(&scan, "kRows", item_rows);
  nsai_constant_add(&fill, "kCounters", NSAI_KV_COUNTERS);
  fill.shared_bytes = nsai_smem_invert_fill(FILL_THREADS / 32, NSAI_KV_COUNTERS);
  kernel[NSAI_INVERT_COUNT] = count;
  kernel[NSAI_INVERT_SCAN] = scan;
  kernel[NSAI_INVERT_FILL] = fill;
}

#define ALL_THREADS 256

void nsai_invert_all_specify(const nsai_problem *p, int32_t item_rows,
                             nsai_kernel_spec kernel[NSAI_INVERT_KERNELS]) {
  nsai_invert_specify(p, item_rows, kernel);
  kernel[NSAI_INVERT_COUNT] = list_spec(p, "data_invert_all_count", ALL_THREADS, 90);
  kernel[NSAI_INVERT_FILL] = list_spec(p, "data_invert_all_fill", ALL_THREADS, 100);
}

void nsai_invert_workspace(const nsai_problem *p, int64_t chunk_tokens, int64_t item_rows,
                           int64_t bytes[NSAI_INVERT_BUFFERS]) {
  const nsai_model *m = &p->model;
  const int64_t blocks = nsai_kv_blocks(m, p->max_kv_tokens, p->max_seqs);
  const int64_t entries = NSAI_PRODUCT(m->kv_heads, chunk_tokens, m->select_count);
  /* Parts of nsai_kv_part_tokens: of `blocks` tokens and more, or as large as they get. */
  const int64_t counts = nsai_larger(chunk_tokens + nsai_larger(blocks, NSAI_KV_LEAST_PART),
                                     (chunk_tokens / NSAI_KV_MOST_PART + 1) * blocks);
  bytes[NSAI_INVERT_COUNTS] = NSAI_PRODUCT(m->kv_heads, counts, 4);
  bytes[NSAI_INVERT_STARTS] = NSAI_PRODUCT(m->kv_heads, blocks, 4);
  bytes[NSAI_INVERT_ENTRIES] = bytes[NSAI_INVERT_ENTRY_INDICES] = NSAI_PRODUCT(entries, 4);
  bytes[NSAI_INVERT_ITEMS] =
      NSAI_PRODUCT(m->kv_heads, nsai_kv_items(m, chunk_tokens, blocks, item_rows),
                   sizeof(NsaiKvItem));
  bytes[NSAI_INVERT_ITEM_COUNTS] = m->kv_heads * 4;
}

NsaiInvert nsai_invert_params(const nsai_run *run, const NsaiAttendSelected *s, int64_t begin,
                              int64_t end, int64_t item_rows,
                              const nsai_buffer buffer[NSAI_INVERT_BUFFERS]) {
  const nsai_model *m = &run->plan->problem.model;
  int64_t blocks = nsai_kv_blocks(m, run->sizes.kv_tokens, run->sizes.num_seqs);
  int64_t part = nsai_kv_part_tokens(blocks);
  return (NsaiInvert){ .seq = s->seq,
                       .lists = s->lists,
                       .list_token_stride = s->list_token_stride,
                       .list_head_stride = s->list_head_stride,
                       .counts = nsai_buffer_at(run, buffer[NSAI_INVERT_COUNTS]),
                       .starts = nsai_buffer_at(run, buffer[NSAI_INVERT_STARTS]),
                       .entries = nsai_buffer_at(run, buffer[NSAI_INVERT_ENTRIES]),
                       .entry_indices = nsai_buffer_at(run, buffer[NSAI_INVERT_ENTRY_INDICES]),
                       .items = nsai_buffer_at(run, buffer[NSAI_INVERT_ITEMS]),
                       .item_counts = nsai_buffer_at(run, buffer[NSAI_INVERT_ITEM_COUNTS]),
                       .entry_capacity = (end - begin) * m->select_count,
                       .item_capacity = (int)nsai_kv_items(m, end - begin, blocks, item_rows),
                       .heads = s->list_head_stride ? m->kv_heads : 1,
                       .token_begin = (int)begin,
                       .token_end = (int)end,
                       .part_tokens = (int)part,
                       .parts = (int)nsai_ceil_div(end - begin, part),
                       .blocks = (int)blocks };
}

/* Entries are written to all lists of a head at once: of so many bytes L2 makes lines. */
#define FILL_BYTES ((int64_t)32 << 20)

nsa_status nsai_invert_enqueue(const nsai_run *run, const nsai_kernel kernel[NSAI_INVERT_KERNELS],
                               NsaiInvert p) {
  const uint64_t parts = (uint64_t)p.heads * (uint64_t)p.parts;
  const uint32_t ranges = (uint32_t)nsai_ceil_div(p.blocks, NSAI_KV_COUNTERS);
  int64_t heads = p.entry_capacity ? FILL_BYTES / (4 * p.entry_capacity) : p.heads;
  NSAI_TRY(nsai_launch(run->queue, &kernel[NSAI_INVERT_COUNT], parts, ranges, &p));
  NSAI_TRY(nsai_launch(run->queue, &kernel[NSAI_INVERT_SCAN], (uint64_t)p.heads, 1, &p));
  if (!heads) heads = 1;
  for (int64_t head = 0; head < p.heads; head += heads) {
    const int64_t grid = nsai_smaller(heads, p.heads - head) * p.parts;
    p.head_begin = (int)head;
    NSAI_TRY(nsai_launch(run->queue, &kernel[NSAI_INVERT_FILL], (uint64_t)grid, ranges, &p));
  }
  return NSA_OK;
}

nsa_status nsai_invert_all_enqueue(const nsai_run *run,
                                   const nsai_kernel kernel[NSAI_INVERT_KERNELS], NsaiInvert p) {
  const nsai_kernel *count = &kernel[NSAI_INVERT_COUNT];
  p.heads = p.parts = 1;
  NSAI_TRY(
      nsai_launch(run->queue, count, (uint64_t)nsai_ceil_div(p.blocks, count->threads), 1, &p));
  NSAI_TRY(nsai_launch(run->queue, &kernel[NSAI_INVERT_SCAN], 1, 1, &p));
  return nsai_launch_elements(run, &kernel[NSAI_INVERT_FILL], p.entry_capacity, &p);
}

void nsai_invert_order_specify(const nsai_problem *p, nsai_kernel_spec *spec) {
  *spec =
      (nsai_kernel_spec){ .entry = "data_invert_order", .dtype = p->model.dtype, .threads = 1024 };
  nsai_constant_add(spec, "kMinBlocks", 1);
}

nsa_status nsai_invert_order_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                                     const NsaiInvert *lists, int *order) {
  const NsaiInvertOrder p = { .items = lists->items,
                              .item_counts = lists->item_counts,
                              .entries = lists->entries,
                              .order = order,
                              .entry_capacity = lists->entry_capacity,
                              .item_capacity = lists->item_capacity,
                              .tokens = lists->token_end - lists->token_begin };
  return nsai_launch(run->queue, kernel, (uint64_t)lists->heads, 1, &p);
}
