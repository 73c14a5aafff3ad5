/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/cache_tensors.h"

#include "base/math.h"
#include "verify/inputs.h"

#include <nsa/kv_cache.h>

#include <stdlib.h>
#include <string.h>

#define MEMORY_SHARE 0.6 /* of the device's memory, for the caches */
#define CPU_MEMORY 1e9   /* bytes */
#define SCATTER 7919     /* a prime: page i is stored at i * SCATTER mod the number of pages */
#define COLD_BYTES 256e6 /* bytes that other steps must read before the same copy is read again */
#define MOST_COPIES 96   /* nodes of a graph have a cost too */

nsa_status nsai_verify_cache_alloc(nsai_verify_cache *w, size_t bytes, void **out) {
  if (w->owned_count == (int)(sizeof w->owned / sizeof *w->owned))
    return nsai_fail(NSA_E_INTERNAL, "too many buffers of a decode cache");
  NSAI_TRY(nsai_verify_device_alloc(w->device, bytes, out));
  w->owned[w->owned_count++] = *out;
  return NSA_OK;
}

void nsai_verify_cache_destroy(nsai_verify_cache *w) {
  if (!w->device) return;
  for (int i = 0; i < w->owned_count; i++) nsai_verify_device_free(w->device, w->owned[i]);
  w->owned_count = 0;
  nsai_verify_device_free(w->device, w->workspace);
  w->workspace = NULL;
}

nsa_status nsai_verify_cache_workspace(nsai_verify_cache *w, uint64_t bytes) {
  if (w->workspace && w->workspace_bytes >= bytes) return NSA_OK;
  nsai_verify_device_free(w->device, w->workspace);
  w->workspace = NULL;
  NSAI_TRY(nsai_verify_device_alloc(w->device, bytes, &w->workspace));
  w->workspace_bytes = bytes;
  return NSA_OK;
}

int64_t nsai_verify_cache_copies(double bytes) {
  return nsai_smaller(1 + (int64_t)(COLD_BYTES / bytes), MOST_COPIES);
}

/* ---- tensors --------------------------------------------------------------------------------- */

nsa_tensor *nsai_verify_cache_tensor(nsai_verify_kv *cache, int index) {
  nsa_tensor *const rest[] = { &cache->k_idx, &cache->kv.k_cmp, &cache->kv.v_cmp, &cache->k_norm };
  if (index < NSA_BRANCHES) return &cache->kv.k[index];
  if (index < 2 * NSA_BRANCHES) return &cache->kv.v[index - NSA_BRANCHES];
  return rest[index - 2 * NSA_BRANCHES];
}

void nsai_verify_cache_declare(const nsai_model *g, nsai_verify_cache_dtypes dtypes, int64_t pages,
                               int64_t tokens, nsai_verify_kv *out) {
  const int32_t raw = dtypes.kv == NSA_E4M3 ? NSA_E4M3 : g->dtype;
  const int32_t compressed = dtypes.cmp == NSA_E4M3 ? NSA_E4M3 : g->dtype;
  const int64_t entries = (tokens + g->stride - 1) / g->stride;
  const int64_t raw_k[] = { pages, tokens, g->kv_heads, g->head_dim_qk };
  const int64_t raw_v[] = { pages, tokens, g->kv_heads, g->head_dim_v };
  *out = (nsai_verify_kv){ { { { 0 } } } };
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    if (!nsai_reads_pair(g, pair)) continue;
    out->kv.k[pair] = nsai_verify_tensor(raw, 4, raw_k);
    out->kv.v[pair] = nsai_verify_tensor(raw, 4, raw_v);
  }
  if (g->by == NSAI_BY_INDEX)
    out->k_idx = nsai_verify_tensor(compressed, 4, (int64_t[]){ pages, tokens, 1, g->index_dim });
  if (!nsai_compresses(g)) return;
  out->kv.k_cmp =
      nsai_verify_tensor(compressed, 4, (int64_t[]){ pages, entries, g->kv_heads, g->head_dim_qk });
  if (!g->keys_only)
    out->kv.v_cmp = nsai_verify_tensor(compressed, 4,
                                       (int64_t[]){ pages, entries, g->kv_heads, g->head_dim_v });
  if (!g->norm_block) return;
  const int64_t norms = (tokens + g->norm_stride - 1) / g->norm_stride;
  out->k_norm =
      nsai_verify_tensor(g->dtype, 4, (int64_t[]){ pages, norms, g->kv_heads, g->head_dim_qk });
}

static nsa_status alloc_tensor(nsai_verify_cache *w, int32_t dtype, int32_t ndim,
                               const int64_t *shape, nsa_tensor *out) {
  *out = nsai_verify_tensor(dtype, ndim, shape);
  return nsai_verify_cache_alloc(w, nsai_verify_tensor_bytes(out), &out->data);
}

static nsa_status upload_ints(nsai_verify_cache *w, const int32_t *values, const nsa_tensor *to) {
  return nsai_verify_device_upload(w->device, to->data, values, nsai_verify_tensor_bytes(to));
}

/* Fills a tensor of a step or of a prompt. */
typedef void (*fill_fn)(const nsai_verify_inputs *in, int branch, const nsa_tensor *t);

static void fill_queries(const nsai_verify_inputs *in, int branch, const nsa_tensor *t) {
  (void)branch;
  nsai_verify_fill_queries(in, t);
}

#define STREAM_GATE 20001

static void fill_gates(const nsai_verify_inputs *in, int branch, const nsa_tensor *t) {
  (void)branch;
  nsai_verify_fill_normal(in, STREAM_GATE, 1, t);
}

/* [rows, heads, dim] on the device, filled on the host. */
static nsa_status make_filled(nsai_verify_cache *w, const nsai_verify_inputs *in, fill_fn fill,
                              int branch, int64_t rows, int64_t heads, int64_t dim,
                              nsa_tensor *out) {
  NSAI_TRY(alloc_tensor(w, w->options.model->dtype, 3, (int64_t[]){ rows, heads, dim }, out));
  nsa_tensor host = *out;
  host.data = malloc(nsai_verify_tensor_bytes(&host));
  if (!host.data) return nsai_fail_nomem("inputs", nsai_verify_tensor_bytes(&host));
  fill(in, branch, &host);
  nsa_status status =
      nsai_verify_device_upload(w->device, out->data, host.data, nsai_verify_tensor_bytes(&host));
  free(host.data);
  return status;
}

/* K and V of every pair that the model reads. */
static nsa_status make_pairs(nsai_verify_cache *w, const nsai_verify_inputs *in, int64_t rows,
                             nsa_kv *out) {
  const nsai_model *g = w->options.model;
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!nsai_reads_pair(g, b)) continue;
    NSAI_TRY(make_filled(w, in, nsai_verify_fill_keys, b, rows, g->kv_heads, g->head_dim_qk,
                         &out->k[b]));
    NSAI_TRY(make_filled(w, in, nsai_verify_fill_values, b, rows, g->kv_heads, g->head_dim_v,
                         &out->v[b]));
  }
  return NSA_OK;
}

/* Index queries, or index keys. */
static void fill_index_q(const nsai_verify_inputs *in, int branch, const nsa_tensor *t) {
  (void)branch;
  nsai_verify_fill_index_q(in, t);
}

static void fill_k_idx(const nsai_verify_inputs *in, int branch, const nsa_tensor *t) {
  (void)branch;
  nsai_verify_fill_k_idx(in, t);
}

/* The index keys of new tokens. */
static nsa_status make_index_keys(nsai_verify_cache *w, const nsai_verify_inputs *in, int64_t rows,
                                  nsa_tensor *out) {
  const nsai_model *g = w->options.model;
  if (g->by != NSAI_BY_INDEX) return NSA_OK;
  return make_filled(w, in, fill_k_idx, 0, rows, 1, g->index_dim, out);
}

/* ---- the cache ------------------------------------------------------------------------------- */

static int64_t page_tokens(const nsai_verify_cache *w) {
  return w->options.page_size > 0 ? w->options.page_size : w->options.context;
}

/* New tokens of an append that fills the cache. */
static int64_t prompt_tokens(const nsai_verify_cache *w) {
  return nsai_smaller(w->options.context,
                      w->options.ranks ? NSAI_VERIFY_CACHE_RANKS_PROMPT : NSAI_VERIFY_CACHE_PROMPT);
}

/* Pages of a rank's own units of one sequence, at most. */
static int64_t own_pages(const nsai_verify_cache *w) {
  const int64_t unit = w->options.unit_tokens / w->options.page_size;
  return nsai_ceil_div(nsai_ceil_div(w->pages, unit), w->options.ranks) * unit;
}

/* Pages of a sequence's latest tokens: those of an append or of a step, and those that these reach back to. */
static int64_t late_pages(const nsai_verify_cache *w) {
  const nsai_model *g = w->options.model;
  const int64_t reach = nsai_larger(nsai_larger(g->block, g->window), g->norm_block);
  const int64_t tokens = nsai_larger(prompt_tokens(w), w->options.q_len) + reach;
  return nsai_smaller(nsai_ceil_div(tokens, w->options.page_size) + 1, w->pages);
}

/* Which of a sequence's raw pages has its page `index`. */
static int64_t raw_page(const nsai_verify_cache *w, int64_t index) {
  if (!w->options.ranks) return index;
  const int64_t unit = w->options.unit_tokens / w->options.page_size, number = index / unit;
  if (number % w->options.ranks == w->options.rank)
    return number / w->options.ranks * unit + index % unit;
  return own_pages(w) + index % late_pages(w);
}

static nsa_status alloc_cache(nsai_verify_cache *w) {
  const nsai_verify_cache_dtypes dtypes = { w->options.kv_dtype, w->options.cmp_dtype };
  nsai_verify_cache_declare(w->options.model, dtypes,
                            w->options.copies * w->options.batch * w->raw_pages, page_tokens(w),
                            &w->cache);
  for (int i = 0; i < NSAI_VERIFY_CACHE_TENSORS; i++) {
    nsa_tensor *t = nsai_verify_cache_tensor(&w->cache, i);
    if (i >= 2 * NSA_BRANCHES) t->shape[0] = w->options.copies * w->options.batch * w->pages;
    if (t->ndim) NSAI_TRY(nsai_verify_cache_alloc(w, nsai_verify_tensor_bytes(t), &t->data));
  }
  return NSA_OK;
}

/* Pages are scattered, as after some time of serving; rows are in order. */
static nsa_status make_table(nsai_verify_cache *w, bool raw, nsa_tensor *out) {
  const int64_t rows = w->options.copies * w->options.batch, each = raw ? w->raw_pages : w->pages;
  const int64_t count = rows * each;
  const int64_t step = w->options.page_size > 0 && count % SCATTER ? SCATTER : 1;
  int32_t *values = malloc((size_t)(rows * w->pages) * sizeof *values);
  if (!values) return nsai_fail_nomem("page tables", (size_t)(rows * w->pages) * sizeof *values);
  for (int64_t i = 0; i < rows * w->pages; i++) {
    const int64_t index = i % w->pages;
    const int64_t page = i / w->pages * each + (raw ? raw_page(w, index) : index);
    values[i] = (int32_t)(page * step % count);
  }
  nsa_status status = alloc_tensor(w, NSA_I32, 2, (int64_t[]){ rows, w->pages }, out);
  if (!status) status = upload_ints(w, values, out);
  free(values);
  return status;
}

static nsa_status make_tables(nsai_verify_cache *w) {
  NSAI_TRY(make_table(w, true, &w->tables));
  return w->options.ranks ? make_table(w, false, &w->entry_tables) : NSA_OK;
}

/* Rows [first, first + count) of the tables, as a batch has them. */
static void set_rows(const nsai_verify_cache *w, int64_t first, int64_t count, nsa_batch *batch) {
  nsa_tensor rows = w->tables;
  rows.data = (int32_t *)w->tables.data + first * w->pages;
  rows.shape[0] = count;
  batch->num_seqs = (int32_t)count;
  if (w->options.page_size > 0) {
    batch->block_table = rows;
    if (!w->options.ranks) return;
    rows.data = (int32_t *)w->entry_tables.data + first * w->pages;
    batch->entry_table = rows;
    return;
  }
  rows.ndim = 1; /* each has one page: its row */
  batch->slots = rows;
}

nsa_batch nsai_verify_cache_sequences(const nsai_verify_cache *w, int64_t first, int64_t count) {
  nsa_batch batch = NSA_BATCH_INIT;
  set_rows(w, first, count, &batch);
  batch.kv_len = w->lengths; /* all are equal */
  batch.kv_len.shape[0] = count;
  return batch;
}

nsa_batch nsai_verify_cache_batch(const nsai_verify_cache *w, int64_t copy) {
  return nsai_verify_cache_sequences(w, copy * w->options.batch, w->options.batch);
}

/* rows of compressed entries that are generated; further ones repeat them */
#define MOST_ENTRIES 65536
#define STREAM_ENTRIES 20010

/* Fills compressed entries that no append computes with arbitrary numbers. */
static nsa_status fill_entries(nsai_verify_cache *w, const nsai_verify_inputs *in, int side) {
  const nsa_tensor *t = side ? &w->cache.kv.v_cmp : &w->cache.kv.k_cmp;
  if (!t->ndim) return NSA_OK; /* the model has none */
  const int64_t all = t->shape[0] * t->shape[1], rows = nsai_smaller(all, MOST_ENTRIES);
  nsa_tensor host = nsai_verify_tensor(t->dtype, 3, (int64_t[]){ rows, t->shape[2], t->shape[3] });
  const size_t row = nsai_verify_tensor_bytes(&host) / (size_t)rows;
  nsa_status status = NSA_OK;
  host.data = malloc(nsai_verify_tensor_bytes(&host));
  if (!host.data) return nsai_fail_nomem("compressed entries", nsai_verify_tensor_bytes(&host));
  nsai_verify_fill_normal(in, STREAM_ENTRIES + (uint64_t)side, 1, &host);
  for (int64_t i = 0; i < all && !status; i += rows)
    status = nsai_verify_device_upload(w->device, (char *)t->data + (size_t)i * row, host.data,
                                       (size_t)nsai_smaller(rows, all - i) * row);
  free(host.data);
  return status;
}

/* Appends `prompt` to every sequence until the context is full. */
static nsa_status fill_cache(nsai_verify_cache *w, const nsa_plan *plan, const nsa_io *prompt,
                             const nsa_exec *exec) {
  const int64_t rows = prompt_tokens(w), chunks = nsai_ceil_div(w->options.context, rows);
  nsa_tensor ends;
  int32_t *values = malloc((size_t)chunks * sizeof *values);
  if (!values) return nsai_fail_nomem("lengths", (size_t)chunks * sizeof *values);
  for (int64_t i = 0; i < chunks; i++)
    values[i] = (int32_t)nsai_smaller((i + 1) * rows, w->options.context);
  nsa_status status = alloc_tensor(w, NSA_I32, 1, (int64_t[]){ chunks }, &ends);
  if (!status) status = upload_ints(w, values, &ends);
  for (int64_t i = 0; i < w->options.copies * w->options.batch * chunks && !status; i++) {
    const int64_t chunk = i % chunks, tokens = values[chunk] - chunk * rows;
    nsa_batch batch = NSA_BATCH_INIT;
    nsa_io io = NSA_IO_INIT;
    io.kv = w->cache.kv;
    io.k_norm = w->cache.k_norm;
    io.k_idx = w->cache.k_idx;
    io.new_kv = prompt->new_kv;
    io.new_k_idx = prompt->new_k_idx;
    if (io.new_k_idx.data) io.new_k_idx.shape[0] = tokens;
    set_rows(w, i / chunks, 1, &batch);
    batch.kv_len = ends;
    batch.kv_len.data = (int32_t *)ends.data + chunk;
    batch.kv_len.shape[0] = 1;
    for (int b = 0; b < NSA_BRANCHES; b++)
      if (io.new_kv.k[b].data) io.new_kv.k[b].shape[0] = io.new_kv.v[b].shape[0] = tokens;
    status = nsa_kv_append(plan, exec, &batch, &io);
  }
  free(values);
  return status ? status : nsai_verify_device_wait(w->device, NULL);
}

/* ---- create, destroy ------------------------------------------------------------------------- */

/* Number of copies that fit into memory, at most w->options.copies. */
static nsa_status limit_copies(nsai_verify_cache *w) {
  const nsai_model *g = w->options.model;
  const double dims = g->head_dim_qk + g->head_dim_v, pairs = g->per_branch ? NSA_BRANCHES : 1;
  const double raw = w->options.kv_dtype == NSA_E4M3 ? 1 : 2,
               entry = w->options.cmp_dtype == NSA_E4M3 ? 1 : 2;
  const double rows = (double)w->options.batch * (double)w->pages * (double)page_tokens(w),
               raw_rows = rows / (double)w->pages * (double)w->raw_pages;
  const double entries = nsai_compresses(g) ? entry / g->stride : 0;
  const double bytes =
      dims * g->kv_heads * (raw_rows * raw * pairs + rows * entries) + entry * rows * g->index_dim;
  double memory = CPU_MEMORY;
  if (w->device->driver) {
    size_t all;
    nsai_cu_device ordinal;
    NSAI_TRY(NSAI_CUDA(w->device->driver, cuDeviceGet(&ordinal, w->device->ordinal)));
    NSAI_TRY(NSAI_CUDA(w->device->driver, cuDeviceTotalMem(&all, ordinal)));
    memory = MEMORY_SHARE * (double)all;
  }
  if (bytes > memory)
    return nsai_fail(NSA_E_NOMEM, "a cache of %.1f GB does not fit, there are %.1f GB for it",
                     bytes * 1e-9, memory * 1e-9);
  w->options.copies = nsai_smaller(w->options.copies, (int64_t)(memory / bytes));
  return NSA_OK;
}

/* Drops the first dimension of a tensor that was made with three. */
static void drop_first(nsa_tensor *t) {
  if (!t->data) return;
  t->ndim = 2;
  for (int i = 0; i < 2; i++) {
    t->shape[i] = t->shape[i + 1];
    t->stride[i] = t->stride[i + 1];
  }
}

/* The inputs of the gates: values, or an MLP's input and weights. */
static nsa_status make_gate(nsai_verify_cache *w, const nsai_verify_inputs *in, int64_t tokens) {
  const nsai_model *g = w->options.model;
  nsa_gate *gate = &w->io.gate;
  if (g->gate == NSAI_GATE_NONE) return NSA_OK;
  if (g->gate != NSAI_GATE_MLP)
    return make_filled(w, in, fill_gates, 0, tokens, g->heads, NSA_BRANCHES, &gate->value);
  const int64_t width = g->gate_hidden ? g->gate_hidden : g->gate_channels;
  const int64_t columns = (int64_t)g->heads * NSA_BRANCHES;
  NSAI_TRY(make_filled(w, in, fill_gates, 0, 1, tokens, g->gate_channels, &gate->x));
  if (g->gate_hidden)
    NSAI_TRY(make_filled(w, in, fill_gates, 0, 1, g->gate_channels, g->gate_hidden, &gate->w1));
  /* Rows are padded to 16 bytes. */
  NSAI_TRY(make_filled(w, in, fill_gates, 0, 1, width, (columns + 7) / 8 * 8, &gate->w2));
  nsa_tensor *matrices[] = { &gate->x, &gate->w1, &gate->w2 };
  for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) drop_first(matrices[i]);
  gate->w2.shape[1] = columns;
  return NSA_OK;
}

static nsa_status make_step(nsai_verify_cache *w, const nsai_verify_inputs *in) {
  const nsai_model *g = w->options.model;
  const int64_t tokens = w->options.batch * w->options.q_len;
  w->io = (nsa_io)NSA_IO_INIT;
  NSAI_TRY(make_filled(w, in, fill_queries, 0, tokens, g->heads, g->head_dim_qk, &w->io.q));
  NSAI_TRY(make_gate(w, in, tokens));
  NSAI_TRY(alloc_tensor(w, g->dtype, 3, (int64_t[]){ tokens, g->heads, g->head_dim_v }, &w->io.o));
  NSAI_TRY(make_pairs(w, in, tokens, &w->io.new_kv));
  w->io.kv = w->cache.kv;
  w->io.k_norm = w->cache.k_norm;
  w->io.k_idx = w->cache.k_idx;
  NSAI_TRY(make_index_keys(w, in, tokens, &w->io.new_k_idx));
  if (g->by == NSAI_BY_INDEX)
    NSAI_TRY(
        make_filled(w, in, fill_index_q, 0, tokens, g->index_heads, g->index_dim, &w->io.index_q));
  int32_t *lengths = malloc((size_t)w->options.batch * sizeof *lengths);
  if (!lengths) return nsai_fail_nomem("lengths", (size_t)w->options.batch * sizeof *lengths);
  for (int64_t i = 0; i < w->options.batch; i++) lengths[i] = (int32_t)w->options.context;
  nsa_status status = alloc_tensor(w, NSA_I32, 1, (int64_t[]){ w->options.batch }, &w->lengths);
  if (!status) status = upload_ints(w, lengths, &w->lengths);
  free(lengths);
  return status;
}

nsa_status nsai_verify_cache_create(const nsai_verify_device *device,
                                    const nsai_verify_cache_options *options,
                                    const nsa_plan *append, nsai_verify_cache *w) {
  nsai_verify_inputs in = { options->model, options->fill, options->seed, options->threads };
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_io prompt = NSA_IO_INIT;
  *w = (nsai_verify_cache){ .device = device, .options = *options };
  w->pages = options->page_size > 0 ? nsai_ceil_div(options->context, options->page_size) : 1;
  w->raw_pages = options->ranks ? own_pages(w) + late_pages(w) : w->pages;
  NSAI_TRY(limit_copies(w));
  NSAI_TRY(alloc_cache(w));
  NSAI_TRY(make_tables(w));
  NSAI_TRY(make_step(w, &in));
  const int64_t rows = prompt_tokens(w);
  NSAI_TRY(make_pairs(w, &in, rows, &prompt.new_kv));
  NSAI_TRY(make_index_keys(w, &in, rows, &prompt.new_k_idx));
  NSAI_TRY(nsa_plan_caps(append, &caps));
  NSAI_TRY(nsai_verify_cache_workspace(w, caps.workspace_bytes));
  exec.workspace = w->workspace;
  exec.workspace_bytes = w->workspace_bytes;
  exec.stream = (nsa_stream)device->stream;
  for (int side = 0; side < 2 && options->model->phi != NSAI_PHI_MEAN; side++)
    NSAI_TRY(fill_entries(w, &in, side));
  return fill_cache(w, append, &prompt, &exec);
}
