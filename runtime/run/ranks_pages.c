/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A prefill over ranks on the GPU, where lengths and tables are on the device: sizes of what travels
 * follow from capacities (plan/ranks_memory.h). One kernel packs this rank's raw pages and writes the batch
 * of its pieces, an all-gather of each tensor follows, and then the kernels of one rank's prefill run.
 */
#include "base/math.h"
#include "ranks/shard.h"
#include "run/check_tensor.h"
#include "run/params.h"
#include "run/ranks.h"

static nsa_status gather(const nsai_run *run, nsa_io *io) {
  const nsai_ranks_pages *w = &run->plan->workspace.pages;
  const int64_t pages = run->batch->num_seqs * w->rank_pages; /* of a rank */
  nsai_queue_break(run->queue);
  for (int i = 0; i < NSAI_RANKS_PAGED; i++) {
    nsa_tensor *t = i % 2 ? &io->kv.v[i / 2] : &io->kv.k[i / 2];
    const int64_t bytes = pages * w->page_bytes[i];
    char *pool = nsai_buffer_at(run, w->pool[i]);
    if (!bytes) continue;
    NSAI_TRY(nsai_comm_all_gather(run->comm, pool + nsai_comm_rank(run->comm) * bytes, pool,
                                  (uint64_t)bytes, run->queue->stream));
    t->data = pool;
    t->shape[0] = pages * run->plan->problem.ranks;
    t->stride[2] = t->shape[3];
    t->stride[1] = t->shape[2] * t->stride[2];
    t->stride[0] = t->shape[1] * t->stride[1];
  }
  return NSA_OK;
}

static nsa_tensor table_of(int32_t *data, int64_t rows, int64_t columns) {
  return (nsa_tensor){
    .data = data, .shape = { rows, columns }, .stride = { columns, 1 }, .ndim = 2, .dtype = NSA_I32
  };
}

/* The batch of the pieces, as the kernel writes it. */
static void view_batch(const nsai_run *run, int32_t pieces, nsa_batch *out) {
  const nsai_ranks_pages *w = &run->plan->workspace.pages;
  const nsa_tensor *entries = &run->batch->entry_table;
  int32_t *tables = nsai_buffer_at(run, w->tables), *pages = tables + 2 * (int64_t)pieces;
  int64_t columns = w->columns;
  /* No sequence is longer than the caller's tables. */
  columns = nsai_smaller(columns, run->batch->block_table.shape[1]);
  *out = (nsa_batch)NSA_BATCH_INIT;
  out->num_seqs = pieces;
  out->cu_q.data = nsai_buffer_at(run, w->uploaded);
  out->kv_len.data = tables;
  if (run->plan->problem.window_ring) out->slots.data = tables + pieces;
  out->block_table = table_of(pages, pieces, w->columns);
  out->block_table.shape[1] = columns;
  if (!nsai_present(entries)) return;
  out->entry_table = table_of(pages + w->columns * pieces, pieces, w->columns);
  out->entry_table.shape[1] = nsai_smaller(w->columns, entries->shape[1]);
}

static nsa_status attend(const nsai_run *given, const nsa_io *io, int32_t pieces) {
  nsai_run run = *given;
  nsa_batch batch;
  view_batch(given, pieces, &batch);
  run.io = io;
  run.batch = &batch;
  run.shard = NULL;
  run.sizes.num_seqs = pieces;
  run.sizes.packed = true;
  return nsai_enqueue_forward(&run);
}

nsa_status nsai_enqueue_prefill_over_ranks(const nsai_run *given) {
  const nsa_shard *shard = given->shard;
  const int32_t rank = nsai_comm_rank(given->comm);
  const int32_t pieces = shard->rank_begin[rank + 1] - shard->rank_begin[rank];
  const nsai_span all = { .token_end = given->sizes.tokens };
  nsai_run run = *given;
  nsa_batch batch = *given->batch;
  nsa_io io = *given->io;
  batch.num_seqs = shard->num_seqs;
  run.batch = &batch;
  nsai_queue_break(run.queue);
  NSAI_TRY(nsai_ranks_upload(&run, nsai_buffer_at(&run, run.plan->workspace.pages.uploaded),
                             nsai_shard_places(shard, rank), (3 * (size_t)pieces + 1) * 4));
  NSAI_TRY(nsai_enqueue_stage(&run, NSAI_STAGE_GATHER_PAGES, &all));
  NSAI_TRY(gather(&run, &io));
  return pieces ? attend(&run, &io, pieces) : NSA_OK;
}
