/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "decode/reads.h"

#include "base/math.h"

#include <stdlib.h>
#include <string.h>

/* ---- expected -------------------------------------------------------------------------------- */

/* Number of tokens that a sequence has in a block. */
static int64_t block_tokens(const nsai_model *g, int64_t context, int64_t block) {
  return nsai_smaller(g->select_block, context - block * g->select_block);
}

/* For one token, or several that select the same: all blocks except the current one are
 * complete. */
static int64_t chosen_by_one(const nsai_model *g, int64_t context) {
  int64_t current = (context - 1) % g->select_block + 1;
  return nsai_smaller(context, (int64_t)(g->select_count - 1) * g->select_block + current);
}

/* From the lists of a sequence's tokens for one head, counting each block once. `seen` [blocks]
 * must be zero and is zero afterwards. */
static int64_t chosen_by_all(const nsai_model *g, const bench_decode_cell *cell,
                             const int32_t *blocks, char *seen) {
  const int64_t row = (int64_t)g->kv_heads * g->select_count;
  int64_t sum = 0;
  for (int undo = 0; undo < 2; undo++)
    for (int32_t i = 0; i < cell->q_len; i++)
      for (int32_t k = 0; k < g->select_count; k++) {
        int32_t block = blocks[i * row + k];
        if (block < 0) continue;
        if (!undo && !seen[block]) sum += block_tokens(g, cell->context, block);
        seen[block] = !undo;
      }
  return sum;
}

static int64_t chosen(const nsai_model *g, const bench_decode_cell *cell, const int32_t *blocks) {
  int64_t count = nsai_select_block_count(g, cell->context), sum = 0;
  char *seen = blocks && cell->q_len > 1 ? calloc((size_t)count, 1) : NULL;
  if (!seen) return cell->batch * g->kv_heads * chosen_by_one(g, cell->context);
  for (int64_t s = 0; s < cell->batch; s++)
    for (int32_t head = 0; head < g->kv_heads; head++)
      sum += chosen_by_all(g, cell,
                           blocks + (s * cell->q_len * g->kv_heads + head) * g->select_count, seen);
  free(seen);
  return sum;
}

static int64_t row_bytes(const nsai_model *g, const bench_decode_cell *cell, int branch) {
  const int32_t dtype = branch == NSA_CMP ? cell->dtypes.cmp : cell->dtypes.kv;
  const bool index = branch == NSA_CMP && g->by == NSAI_BY_INDEX;
  return (dtype == NSA_E4M3 ? 1 : 2) * (index ? g->index_dim : g->head_dim_qk + g->head_dim_v);
}

void bench_decode_expect(const nsai_model *g, const bench_decode_cell *cell, const int32_t *blocks,
                         bench_decode_reads *out) {
  const int64_t rows = cell->batch * g->kv_heads;
  *out = (bench_decode_reads){ 0 };
  out->tokens[NSA_CMP] = rows * nsai_block_count(g, cell->context);
  if (g->by == NSAI_BY_INDEX) /* one key for each token, which all heads share */
    out->tokens[NSA_CMP] = cell->batch * cell->context;
  if (g->select_count) out->tokens[NSA_SEL] = chosen(g, cell, blocks);
  if (g->window)
    out->tokens[NSA_WIN] = rows * nsai_smaller(g->window + cell->q_len - 1, cell->context);
  for (int b = 0; b < NSA_BRANCHES; b++) out->bytes += out->tokens[b] * row_bytes(g, cell, b);
}

/* ---- actual ---------------------------------------------------------------------------------- */

/* Adds up counters of [sequences, Hkv, branches, 2]. */
static void add_up(const int64_t *counters, int64_t rows, bench_decode_reads *out) {
  *out = (bench_decode_reads){ 0 };
  for (int64_t i = 0; i < rows * NSA_BRANCHES; i++) {
    out->tokens[i % NSA_BRANCHES] += counters[2 * i];
    out->bytes += counters[2 * i + 1];
  }
}

/* [a, b, c, d] or [a, b, c] without gaps. */
static nsa_tensor packed(void *data, int32_t dtype, int32_t ndim, const int64_t *shape) {
  nsa_tensor t = { .data = data, .dtype = dtype, .ndim = ndim };
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; stride *= shape[i--]) t.shape[i] = shape[i], t.stride[i] = stride;
  return t;
}

typedef struct buffers {
  void *reads, *blocks; /* on the device */
  size_t reads_bytes, blocks_bytes;
  int64_t *host_reads;
  int32_t *host_blocks;
} buffers;

static nsa_status make_buffers(nsai_verify_cache *w, buffers *b) {
  const nsai_model *g = w->options.model;
  const int64_t rows = w->options.batch * g->kv_heads;
  b->reads_bytes = (size_t)(rows * NSA_BRANCHES * 2) * sizeof *b->host_reads;
  b->blocks_bytes = (size_t)(rows * w->options.q_len * g->select_count) * sizeof *b->host_blocks;
  b->host_reads = malloc(b->reads_bytes);
  b->host_blocks = malloc(b->blocks_bytes + 1);
  if (!b->host_reads || !b->host_blocks) return nsai_fail_nomem("counters", b->blocks_bytes);
  NSAI_TRY(nsai_verify_cache_alloc(w, b->reads_bytes, &b->reads));
  NSAI_TRY(nsai_verify_device_set(w->device, b->reads, 0, b->reads_bytes));
  if (!b->blocks_bytes) return NSA_OK;
  return nsai_verify_cache_alloc(w, b->blocks_bytes, &b->blocks);
}

static nsa_status run(nsai_verify_cache *w, const nsa_plan *plan, const nsa_exec *exec,
                      buffers *b) {
  const nsai_model *g = w->options.model;
  nsa_batch batch = nsai_verify_cache_batch(w, 0);
  nsa_io io = w->io;
  io.kv_reads =
      packed(b->reads, NSA_I64, 4, (int64_t[]){ w->options.batch, g->kv_heads, NSA_BRANCHES, 2 });
  if (b->blocks)
    io.block_idx =
        packed(b->blocks, NSA_I32, 3,
               (int64_t[]){ w->options.batch * w->options.q_len, g->kv_heads, g->select_count });
  NSAI_TRY(nsa_decode(plan, exec, &batch, &io));
  NSAI_TRY(nsai_verify_device_wait(w->device, NULL));
  NSAI_TRY(nsai_verify_device_download(w->device, b->host_reads, b->reads, b->reads_bytes));
  if (!b->blocks) return NSA_OK;
  return nsai_verify_device_download(w->device, b->host_blocks, b->blocks, b->blocks_bytes);
}

nsa_status bench_decode_count(nsai_verify_cache *w, const nsa_plan *plan, const nsa_exec *exec,
                              bench_decode_cell *cell) {
  buffers b = { 0 };
  nsa_status status;
  NSAI_TRY_TO(done, make_buffers(w, &b));
  NSAI_TRY_TO(done, run(w, plan, exec, &b));
  add_up(b.host_reads, w->options.batch * w->options.model->kv_heads, &cell->actual);
  bench_decode_expect(w->options.model, cell, b.blocks ? b.host_blocks : NULL, &cell->expected);
done:
  free(b.host_reads);
  free(b.host_blocks);
  return status;
}
