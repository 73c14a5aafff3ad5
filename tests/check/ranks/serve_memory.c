/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The memory of one rank: its caches, its pools of pages, and which pages its sequences hold.
 *
 * Raw pages of a rank: those of its own units, and those with tokens from `reach` before the new ones
 * on. A sequence's new tokens never begin before those of an earlier call, because only drafts of the
 * last call are rejected; so a page that was given back is never needed again.
 */
#include "base/math.h"
#include "ranks/serve.h"
#include "run/check_tensor.h"

#include <stdlib.h>
#include <string.h>

/* ---- tensors --------------------------------------------------------------------------------- */

nsa_status chk_memory_make(chk_memory *m, chk_serve_tensor *t, int32_t dtype, int32_t ndim,
                           const int64_t *shape) {
  t->view = nsai_verify_tensor(dtype, ndim, shape);
  const size_t bytes = nsai_verify_tensor_bytes(&t->view);
  NSAI_TRY(nsai_verify_buffer_create(m->device, bytes, 0xff, &t->memory));
  return nsai_verify_buffer_image(&t->memory) ? NSA_OK : nsai_fail_nomem("an image", bytes);
}

static nsa_tensor with_data(const chk_serve_tensor *t, uint8_t *memory) {
  nsa_tensor view = t->view;
  if (!t->memory.device) return (nsa_tensor){ 0 };
  view.data = memory + NSAI_VERIFY_GUARD;
  return view;
}

nsa_tensor chk_serve_view(const chk_serve_tensor *t) { return with_data(t, t->memory.device); }
nsa_tensor chk_serve_image(const chk_serve_tensor *t) { return with_data(t, t->memory.image); }

/* ---- pools ----------------------------------------------------------------------------------- */

chk_kind chk_memory_kind(const chk_memory *m, int what) {
  if (what >= 2 * NSA_BRANCHES) return CHK_KIND_ENTRIES;
  return m->s->o.ring && what % NSA_BRANCHES == NSA_WIN ? CHK_KIND_RING : CHK_KIND_RAW;
}

const chk_pool *chk_memory_pool(const chk_memory *m, int what) {
  const chk_kind kind = chk_memory_kind(m, what);
  if (kind == CHK_KIND_RING) return NULL;
  return kind == CHK_KIND_ENTRIES && m->rank >= 0 ? &m->entries : &m->raw;
}

/* Pages of one sequence of a rank at most: its units, and those that reach back from a chunk. */
static int64_t most_raw_pages(const chk_memory *m) {
  const chk_serve *s = m->s;
  const int64_t all = nsai_ceil_div(s->o.max_kv_len, s->o.page_size);
  if (m->rank < 0) return all;
  const int64_t unit = s->unit_tokens / s->o.page_size,
                units = nsai_ceil_div(nsai_ceil_div(all, unit), s->ranks);
  const int64_t late = nsai_ceil_div(s->reach + s->chunk + s->o.max_q_len, s->o.page_size) + 2;
  return nsai_smaller(all, units * unit + late);
}

/* The numbers of pages are shuffled, on each rank otherwise. */
static nsa_status make_pool(const chk_memory *m, int64_t pages, chk_pool *pool) {
  const int64_t each = m->s->table_pages;
  nsai_verify_random random = {
    nsai_verify_key(m->s->seed + (uint64_t)pages, 9 + (uint64_t)m->rank), 0
  };
  pool->pages = pool->free_count = (int32_t)pages;
  pool->free_page = malloc((size_t)pages * sizeof *pool->free_page);
  if (!pool->free_page) return nsai_fail_nomem("pages", (size_t)pages);
  for (int32_t i = 0; i < pages; i++) {
    const int64_t at = nsai_verify_pick(&random, 0, i);
    pool->free_page[i] = pool->free_page[at];
    pool->free_page[at] = i;
  }
  for (int s = 0; s < m->s->o.seqs; s++) {
    pool->held[s] = malloc((size_t)each * sizeof *pool->held[s]);
    if (!pool->held[s]) return nsai_fail_nomem("pages of a sequence", (size_t)each);
  }
  return NSA_OK;
}

static void free_pool(chk_pool *pool) {
  free(pool->free_page);
  for (int s = 0; s < CHK_SERVE_SEQS; s++) free(pool->held[s]);
}

/* Fills a page of every tensor of the pool with NaN. */
static nsa_status poison_page(chk_memory *m, const chk_pool *pool, int32_t page) {
  for (int what = 0; what < NSAI_VERIFY_CACHE_TENSORS; what++) {
    chk_serve_tensor *t = &m->cache[what];
    if (!t->memory.device || chk_memory_pool(m, what) != pool) continue;
    const size_t bytes = (size_t)t->view.stride[0] * (size_t)nsai_dtype_bytes(t->view.dtype);
    NSAI_TRY(nsai_verify_device_set(m->device,
                                    t->memory.device + NSAI_VERIFY_GUARD + (size_t)page * bytes,
                                    0xff, bytes));
  }
  return NSA_OK;
}

static nsa_status give_back(chk_memory *m, chk_pool *pool, int32_t *page) {
  NSAI_TRY(poison_page(m, pool, *page));
  pool->free_page[pool->free_count++] = *page;
  *page = -1;
  return NSA_OK;
}

/* Whether this rank holds a page of raw tokens; `oldest`: the first token that all ranks hold. */
static bool holds(const chk_memory *m, int64_t index, int64_t oldest) {
  const int64_t size = m->s->o.page_size;
  return m->rank < 0 || (index + 1) * size > oldest ||
         index * size / m->s->unit_tokens % m->s->ranks == m->rank;
}

/* With phi external the host writes the compressed entries, here of whole pages. */
static nsa_status take(chk_memory *m, const chk_script *call, chk_pool *pool, int s,
                       int32_t index) {
  if (!pool->free_count)
    return nsai_fail(NSA_E_INTERNAL, "rank %d has no page left of %d", m->rank, pool->pages);
  const int32_t page = pool->held[s][index] = pool->free_page[--pool->free_count];
  const int64_t sequence = call->begun[s] * CHK_SERVE_SEQS + s;
  for (int what = 2 * NSA_BRANCHES; what < NSAI_VERIFY_CACHE_TENSORS; what++)
    if (m->s->o.model.phi == NSAI_PHI_EXTERNAL && m->cache[what].memory.device &&
        chk_memory_pool(m, what) == pool)
      NSAI_TRY(chk_memory_fill_page(m, what, sequence, index, page));
  return NSA_OK;
}

static nsa_status move_pool(chk_memory *m, const chk_script *call, chk_pool *pool) {
  const int32_t size = m->s->o.page_size;
  for (int s = 0; s < m->s->o.seqs; s++) {
    for (int32_t i = 0; call->ended[s] && i < pool->count[s]; i++)
      if (pool->held[s][i] >= 0) NSAI_TRY(give_back(m, pool, &pool->held[s][i]));
    if (call->ended[s]) pool->count[s] = 0;
    if (!call->len[s]) continue;
    const int64_t oldest = (int64_t)call->len[s] - call->q_len[s] - m->s->reach;
    for (int32_t i = 0; i < pool->count[s]; i++)
      if (pool == &m->raw && pool->held[s][i] >= 0 && !holds(m, i, oldest))
        NSAI_TRY(give_back(m, pool, &pool->held[s][i]));
    for (; pool->count[s] < nsai_ceil_div(call->len[s], size); pool->count[s]++) {
      const int32_t index = pool->count[s];
      pool->held[s][index] = -1;
      if (pool == &m->entries || holds(m, index, oldest)) NSAI_TRY(take(m, call, pool, s, index));
    }
  }
  return NSA_OK;
}

nsa_status chk_memory_move_pages(chk_memory *m, const chk_script *call) {
  NSAI_TRY(nsai_verify_device_wait(m->device, NULL));
  NSAI_TRY(move_pool(m, call, &m->raw));
  return m->rank >= 0 ? move_pool(m, call, &m->entries) : NSA_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* [pages, tokens, heads, dim]; with `hnd` in memory [pages, heads, tokens, dim]. */
static nsa_status make_caches(chk_memory *m) {
  const chk_cache_options *o = &m->s->o;
  const nsai_verify_cache_dtypes dtypes = { o->kv_codes ? NSA_E4M3 : NSA_NONE,
                                            o->cmp_codes ? NSA_E4M3 : NSA_NONE };
  nsai_verify_kv cache;
  nsai_verify_cache_declare(&o->model, dtypes, 1, o->page_size, &cache);
  for (int i = 0; i < NSAI_VERIFY_CACHE_TENSORS; i++) {
    const nsa_tensor *t = nsai_verify_cache_tensor(&cache, i);
    const chk_pool *pool = chk_memory_pool(m, i);
    const int64_t shape[4] = { pool ? pool->pages : o->seqs + 1, pool ? t->shape[1] : m->s->ring,
                               t->shape[2], t->shape[3] };
    if (!t->ndim) continue;
    NSAI_TRY(chk_memory_make(m, &m->cache[i], t->dtype, 4, shape));
    if (!o->hnd) continue;
    m->cache[i].view.stride[1] = shape[3];
    m->cache[i].view.stride[2] = shape[1] * shape[3];
  }
  return NSA_OK;
}

nsa_status chk_memory_create(chk_memory *m) {
  const chk_serve *s = m->s;
  const int64_t seqs = s->o.seqs, spare = m->rank < 0 ? 0 : m->rank % 3;
  NSAI_TRY(make_pool(m, seqs * most_raw_pages(m) + spare, &m->raw));
  if (m->rank >= 0)
    NSAI_TRY(make_pool(m, seqs * nsai_ceil_div(s->o.max_kv_len, s->o.page_size) + 2 - spare,
                       &m->entries));
  NSAI_TRY(make_caches(m));
  NSAI_TRY(chk_memory_make_inputs(m));
  const uint64_t steps = (uint64_t)nsai_larger((int64_t)m->append.caps.workspace_bytes,
                                               (int64_t)m->decode.caps.workspace_bytes),
                 bytes = (uint64_t)nsai_larger((int64_t)steps,
                                               (int64_t)m->prefill.caps.workspace_bytes);
  m->exec = (nsa_exec)NSA_EXEC_INIT;
  NSAI_TRY(nsai_verify_buffer_create(m->device, bytes, 0xff, &m->workspace));
  m->exec.workspace = m->workspace.device + NSAI_VERIFY_GUARD;
  m->exec.workspace_bytes = bytes;
  m->exec.stream = m->device->stream;
  return NSA_OK;
}

void chk_memory_destroy(chk_memory *m) {
  if (!m->device) return;
  nsai_verify_device_wait(m->device, NULL);
  for (int i = 0; i < NSAI_VERIFY_CACHE_TENSORS; i++)
    nsai_verify_buffer_destroy(m->device, &m->cache[i].memory);
  for (int i = 0; i < CHK_SERVE_TENSORS; i++)
    nsai_verify_buffer_destroy(m->device, &m->tensor[i].memory);
  nsai_verify_buffer_destroy(m->device, &m->workspace);
  free_pool(&m->raw);
  free_pool(&m->entries);
}
