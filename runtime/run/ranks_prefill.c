/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A prefill over a cache whose raw pages lie on several ranks, on the CPU device. Each rank packs the pages
 * of its own units, one gather of every tensor brings those of all, and then each rank computes its
 * pieces of the new tokens as sequences of a batch over the gathered pages:
 *
 *   pool    [ranks, most, P, Hkv, D]   of each tensor; `most`: pages of the rank that has the most
 *   table   page i of sequence s is the n-th that its owner r counts, in the order of sequences and
 *           positions: r * most + n. It has a row for each piece of this rank
 *   piece   new tokens [begin, begin + length) of a sequence: rows of q that follow those of the piece
 *           before, kv_len = tokens of the sequence before the call + begin + length
 */
#include "base/math.h"
#include "reference/reference.h"
#include "run/check_tensor.h"
#include "run/params.h"
#include "run/ranks.h"

#include <stdlib.h>
#include <string.h>

#define ALL_PROCESSORS 0 /* threads of the CPU device */
#define TENSORS (2 * NSA_BRANCHES)

/* One prefill. */
typedef struct gathered {
  const nsai_run *run;
  int32_t rank;
  int64_t most;        /* pages of the rank that has the most */
  int64_t columns;     /* of the pieces' tables: pages of the longest sequence */
  int32_t *ints;       /* owns the memory of all lists */
  int32_t *table;      /* [num_seqs, columns] */
  char *pool[TENSORS]; /* K and V of pair 0, 1, 2; NULL: not read, or in a ring */
  nsa_batch batch;     /* of the pieces */
  nsa_io io;
} gathered;

static int32_t kv_len_of(const gathered *g, int32_t s) {
  return ((const int32_t *)g->run->batch->kv_len.data)[s];
}

static int32_t owner_of(const nsai_problem *p, int64_t page) {
  return (int32_t)(page * p->page_size / p->unit_tokens % p->ranks);
}

/* Whether a branch that runs reads a pair of raw tokens in pages. */
static bool reads(const nsai_run *run, int pair) {
  const nsai_problem *p = &run->plan->problem;
  static const int branches[] = { NSA_SEL, NSA_WIN };
  for (int i = 0; i < 2; i++) {
    const int b = branches[i];
    const bool ring = b == NSA_WIN && p->window_ring;
    if (nsai_run_has(run, b) && !ring && (p->model.per_branch ? b : 0) == pair) return true;
  }
  return false;
}

static nsa_tensor *tensor_of(nsa_io *io, int item) {
  return item % 2 ? &io->kv.v[item / 2] : &io->kv.k[item / 2];
}

/* Bytes of a page without gaps. */
static int64_t page_bytes(const nsa_tensor *t) {
  return NSAI_PRODUCT(t->shape[1], t->shape[2], t->shape[3], nsai_dtype_bytes(t->dtype));
}

static nsa_status open_lists(gathered *g) {
  const nsai_problem *p = &g->run->plan->problem;
  const nsa_shard *shard = g->run->shard;
  const int64_t pieces = shard->max_pieces, sequences = shard->num_seqs;
  for (int32_t s = 0; s < sequences; s++)
    g->columns = nsai_larger(g->columns, nsai_ceil_div(kv_len_of(g, s), p->page_size));
  const int64_t count = g->columns * (sequences + 2 * pieces) + 3 * pieces + 1;
  g->ints = calloc((size_t)count, sizeof *g->ints);
  if (!g->ints) return nsai_fail_nomem("the lists of a prefill over ranks", (size_t)count * 4);
  g->table = g->ints;
  return NSA_OK;
}

/* Numbers the pages of all ranks. */
static void number_pages(gathered *g) {
  const nsai_problem *p = &g->run->plan->problem;
  int32_t count[NSA_MAX_RANKS] = { 0 };
  for (int32_t s = 0; s < g->run->shard->num_seqs; s++)
    for (int64_t i = 0; i * p->page_size < kv_len_of(g, s); i++)
      g->table[s * g->columns + i] = count[owner_of(p, i)]++;
  for (int32_t r = 0; r < p->ranks; r++) g->most = nsai_larger(g->most, count[r]);
  for (int32_t s = 0; s < g->run->shard->num_seqs; s++)
    for (int64_t i = 0; i * p->page_size < kv_len_of(g, s); i++)
      g->table[s * g->columns + i] += (int32_t)(owner_of(p, i) * g->most);
}

static void copy_page(const nsa_tensor *from, int64_t page, char *to) {
  const int64_t size = nsai_dtype_bytes(from->dtype), row = from->shape[3] * size;
  const char *begin = (const char *)from->data + page * from->stride[0] * size;
  for (int64_t i = 0; i < from->shape[1]; i++)
    for (int64_t h = 0; h < from->shape[2]; h++, to += row)
      memcpy(to, begin + (i * from->stride[1] + h * from->stride[2]) * size, (size_t)row);
}

/* Packs this rank's pages of a tensor, at their places in the pool. */
static void pack(const gathered *g, const nsa_tensor *from, char *pool) {
  const nsai_problem *p = &g->run->plan->problem;
  const nsa_tensor *block_table = &g->run->batch->block_table;
  const int32_t *page = block_table->data;
  for (int32_t s = 0; s < g->run->shard->num_seqs; s++)
    for (int64_t i = 0; i * p->page_size < kv_len_of(g, s); i++)
      if (owner_of(p, i) == g->rank)
        copy_page(from, page[s * block_table->stride[0] + i],
                  pool + g->table[s * g->columns + i] * page_bytes(from));
}

/* Takes the memory of a pool: last pages of ranks that have fewer are zeros. */
static nsa_status open_pool(gathered *g, int item) {
  const nsa_tensor *t = tensor_of(&g->io, item);
  const int64_t pages = g->most * g->run->plan->problem.ranks;
  g->pool[item] = calloc((size_t)pages, (size_t)page_bytes(t));
  if (g->pool[item]) return NSA_OK;
  return nsai_fail_nomem("the pages of all ranks", (size_t)(pages * page_bytes(t)));
}

/* Replaces the tensors of raw tokens by those of all ranks. */
static nsa_status gather(gathered *g) {
  const int32_t ranks = g->run->plan->problem.ranks;
  for (int item = 0; item < TENSORS && g->most; item++)
    if (reads(g->run, item / 2)) NSAI_TRY(open_pool(g, item));
  for (int item = 0; item < TENSORS; item++) {
    nsa_tensor *t = tensor_of(&g->io, item);
    char *pool = g->pool[item];
    if (!pool) continue;
    const int64_t bytes = g->most * page_bytes(t);
    pack(g, t, pool);
    NSAI_TRY(
        nsai_comm_all_gather(g->run->comm, pool + g->rank * bytes, pool, (uint64_t)bytes, NULL));
    t->data = pool;
    t->shape[0] = g->most * ranks;
    t->stride[2] = t->shape[3];
    t->stride[1] = t->shape[2] * t->stride[2];
    t->stride[0] = t->shape[1] * t->stride[1];
  }
  return NSA_OK;
}

static nsa_tensor ints_of(int32_t *data, int32_t ndim, int64_t rows, int64_t columns) {
  nsa_tensor t = { .data = data, .dtype = NSA_I32, .ndim = ndim };
  t.shape[0] = rows, t.shape[1] = ndim > 1 ? columns : 0;
  t.stride[0] = columns, t.stride[1] = ndim > 1 ? 1 : 0;
  return t;
}

/* A row of one of the caller's tables, as far as the sequence has pages. */
static void copy_row(const gathered *g, int32_t *to, const nsa_tensor *table, int32_t s) {
  const int64_t pages = nsai_ceil_div(kv_len_of(g, s), g->run->plan->problem.page_size);
  if (table->data && pages)
    memcpy(to, (const int32_t *)table->data + s * table->stride[0], (size_t)pages * sizeof *to);
}

/* The batch of this rank's pieces. */
static void make_batch(gathered *g) {
  const nsa_batch *given = g->run->batch;
  const nsa_shard *shard = g->run->shard;
  const int32_t first = shard->rank_begin[g->rank], count = shard->rank_begin[g->rank + 1] - first;
  int32_t *tables = g->table + shard->num_seqs * g->columns, *entries = tables + count * g->columns;
  int32_t *cu_q = entries + count * g->columns, *kv_len = cu_q + count + 1, *slots = kv_len + count;
  for (int32_t i = 0; i < count; i++) {
    const nsa_piece *piece = &shard->pieces[first + i];
    const int32_t s = piece->sequence;
    const int64_t new_tokens = shard->seq_begin[s + 1] - shard->seq_begin[s];
    const int64_t end = kv_len_of(g, s) - new_tokens + piece->begin + piece->length;
    cu_q[i + 1] = cu_q[i] + (int32_t)piece->length;
    kv_len[i] = (int32_t)nsai_larger(end, 0); /* of a padded row: 0 */
    slots[i] = given->slots.data ? ((const int32_t *)given->slots.data)[s] : s;
    memcpy(tables + i * g->columns, g->table + s * g->columns, (size_t)g->columns * 4);
    copy_row(g, entries + i * g->columns, &given->entry_table, s);
  }
  g->batch = (nsa_batch)NSA_BATCH_INIT;
  g->batch.num_seqs = count;
  g->batch.cu_q = ints_of(cu_q, 1, count + 1, 1);
  g->batch.kv_len = ints_of(kv_len, 1, count, 1);
  g->batch.block_table = ints_of(tables, 2, count, g->columns);
  if (nsai_present(&given->entry_table))
    g->batch.entry_table = ints_of(entries, 2, count, g->columns);
  if (g->run->plan->problem.window_ring) g->batch.slots = ints_of(slots, 1, count, 1);
}

static nsa_status compute(const gathered *g) {
  const nsai_problem *p = &g->run->plan->problem;
  const nsai_reference_cache cache = { .page_size = p->page_size, .window_ring = p->window_ring };
  if (!g->batch.num_seqs) return NSA_OK;
  NSAI_TRY(nsai_reference_cached(&p->model, &cache, p->selection, g->run->branches, &g->batch,
                                 &g->io, ALL_PROCESSORS));
  if (!nsai_present(&g->io.index_lse)) return NSA_OK;
  return nsai_reference_index_lse(&p->model, &cache, &g->batch, &g->io, ALL_PROCESSORS);
}

static nsa_status prefill(gathered *g) {
  NSAI_TRY(open_lists(g));
  number_pages(g);
  NSAI_TRY(gather(g));
  make_batch(g);
  return compute(g);
}

static nsa_status prefill_on_cpu(const nsai_run *run) {
  gathered g = { .run = run, .rank = nsai_comm_rank(run->comm), .io = *run->io };
  const nsa_status status = prefill(&g);
  free(g.ints);
  for (int item = 0; item < TENSORS; item++) free(g.pool[item]);
  return status;
}

nsa_status nsai_prefill_over_ranks(const nsai_run *run) {
  nsa_status status = nsai_compare_lengths(run);
  if (!status) status = run->driver ? nsai_enqueue_prefill_over_ranks(run) : prefill_on_cpu(run);
  if (status) nsai_comm_fail(run->comm, nsa_last_error());
  return status;
}
