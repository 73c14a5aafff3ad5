/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Finds tokens and compressed blocks: packed one sequence after the other, or in a cache. In a
 * cache a compressed block is stored in the page of its last token e = i*d + l - 1, at slot (e
 * mod P) / d. The entries of a page thus depend only on tokens up to the page's end.
 *
 *   P 16, d 4, l 8        page 0               page 1
 *   tokens           0 1 2 3 .. 14 15    16 17 .. 19 .. 31
 *   block of slot    [-] [0] [1] [2]     [3] [4] [5] [6]       block 3: tokens 12 .. 19
 */
#include "reference/internal.h"
#include "reference/tensor.h"

/* The row of a cache without pages, or of a ring, that belongs to a sequence. */
static int64_t slot_of(const nsa_batch *batch, int64_t sequence) {
  return batch->slots.data ? nsai_ref_load_i32(&batch->slots, sequence) : sequence;
}

/* Page `index` of a sequence's raw tokens, from a block table or a list of pages. */
static int64_t page_of(const nsa_batch *batch, int64_t sequence, int64_t index) {
  const nsa_tensor *table = &batch->block_table;
  if (table->data) return nsai_ref_load_i32(table, sequence * table->stride[0] + index);
  return nsai_ref_load_i32(&batch->page_indices,
                           nsai_ref_load_i32(&batch->page_indptr, sequence) + index);
}

/* The page of what is kept beside raw tokens. */
static int64_t entry_page_of(const nsa_batch *batch, int64_t sequence, int64_t index) {
  const nsa_tensor *table = &batch->entry_table;
  if (!table->data) return page_of(batch, sequence, index);
  return nsai_ref_load_i32(table, sequence * table->stride[0] + index);
}

static int64_t offset3(const nsa_tensor *x, int64_t row, int64_t slot, int64_t head) {
  return row * x->stride[0] + slot * x->stride[1] + head * x->stride[2];
}

int64_t nsai_ref_token_at(const nsai_ref_problem *problem, const nsa_tensor *x, int pair,
                          int64_t sequence, int64_t position, int64_t head) {
  const nsai_reference_cache *cache = problem->cache;
  if (!cache) return nsai_ref_offset2(x, problem->sequences.kv[sequence] + position, head);
  if (pair == NSA_WIN && cache->window_ring)
    return offset3(x, slot_of(problem->batch, sequence), position % x->shape[1], head);
  if (!cache->page_size) return offset3(x, slot_of(problem->batch, sequence), position, head);
  return offset3(x, page_of(problem->batch, sequence, position / cache->page_size),
                 position % cache->page_size, head);
}

/* What belongs to a block that ends with token `end`, one for each `stride` tokens. */
static int64_t entry_at(const nsai_ref_problem *problem, const nsa_tensor *x, int64_t sequence,
                        int64_t end, int64_t stride, int64_t head) {
  const int64_t page_size = problem->cache->page_size;
  if (!page_size) return offset3(x, slot_of(problem->batch, sequence), end / stride, head);
  return offset3(x, entry_page_of(problem->batch, sequence, end / page_size),
                 end % page_size / stride, head);
}

int64_t nsai_ref_index_key_at(const nsai_ref_problem *problem, const nsa_tensor *x,
                              int64_t sequence, int64_t position) {
  if (problem->cache) return entry_at(problem, x, sequence, position, 1, 0);
  return nsai_ref_offset2(x, problem->sequences.kv[sequence] + position, 0);
}

bool nsai_ref_owns(const nsai_ref_problem *problem, int64_t position) {
  const nsai_reference_ranks *ranks = problem->cache ? problem->cache->ranks : NULL;
  return !ranks || position / ranks->unit_tokens % ranks->count == ranks->rank;
}

int64_t nsai_ref_entry_at(const nsai_ref_problem *problem, const nsa_tensor *x, int64_t sequence,
                          int64_t block, int64_t head) {
  const nsai_model *g = problem->model;
  return entry_at(problem, x, sequence, block * g->stride + g->block - 1, g->stride, head);
}

int64_t nsai_ref_norm_at(const nsai_ref_problem *problem, const nsa_tensor *x, int64_t sequence,
                         int64_t block, int64_t head) {
  const nsai_model *g = problem->model;
  const int64_t end = block * g->norm_stride + g->norm_block - 1;
  return entry_at(problem, x, sequence, end, g->norm_stride, head);
}
