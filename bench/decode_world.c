/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "decode_world.h"

#include <stdlib.h>
#include <string.h>

#define PROMPT 65536     /* tokens of one append; longer contexts repeat them */
#define MEMORY_SHARE 0.6 /* of the device's, for the caches */
#define CPU_MEMORY 1e9   /* bytes */
#define SCATTER 7919     /* a prime: page i lies at i * SCATTER mod their number */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

nsa_status decode_world_alloc(decode_world *w, size_t bytes, void **out) {
  if (w->owned_count == (int)(sizeof w->owned / sizeof *w->owned))
    return nsai_fail(NSA_E_INTERNAL, "too many buffers of a decode world");
  NSAI_TRY(nsai_trial_device_alloc(w->device, bytes, out));
  w->owned[w->owned_count++] = *out;
  return NSA_OK;
}

void decode_world_destroy(decode_world *w) {
  for (int i = 0; i < w->owned_count; i++) nsai_trial_device_free(w->device, w->owned[i]);
  w->owned_count = 0;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static nsa_tensor tensor_of(int32_t dtype, int32_t ndim, const int64_t *shape) {
  nsa_tensor t = { .ndim = ndim, .dtype = dtype };
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    t.shape[i] = shape[i];
    t.stride[i] = stride;
    stride *= shape[i];
  }
  return t;
}

static size_t bytes_of(const nsa_tensor *t) {
  size_t element = t->dtype == NSA_BF16 || t->dtype == NSA_F16 ? 2 : 4;
  return (size_t)(t->shape[0] * t->stride[0]) * element;
}

static nsa_status alloc_tensor(decode_world *w, int32_t dtype, int32_t ndim, const int64_t *shape,
                               nsa_tensor *out) {
  *out = tensor_of(dtype, ndim, shape);
  return decode_world_alloc(w, bytes_of(out), &out->data);
}

static nsa_status upload_ints(decode_world *w, const int32_t *values, const nsa_tensor *to) {
  return nsai_trial_device_upload(w->device, to->data, values, bytes_of(to));
}

/* How a tensor of a step or of a prompt gets its numbers. */
typedef void (*fill_fn)(const nsai_trial_inputs *in, int branch, const nsa_tensor *t);

static void fill_queries(const nsai_trial_inputs *in, int branch, const nsa_tensor *t) {
  (void)branch;
  nsai_trial_fill_queries(in, t);
}

#define STREAM_GATE 20001

static void fill_gates(const nsai_trial_inputs *in, int branch, const nsa_tensor *t) {
  (void)branch;
  nsai_trial_fill_normal(in, STREAM_GATE, 1, t);
}

/* [rows, heads, dim] on the device, filled on the host. */
static nsa_status make_filled(decode_world *w, const nsai_trial_inputs *in, fill_fn fill,
                              int branch, int64_t rows, int64_t heads, int64_t dim,
                              nsa_tensor *out) {
  NSAI_TRY(alloc_tensor(w, w->geometry->dtype, 3, (int64_t[]){ rows, heads, dim }, out));
  nsa_tensor host = *out;
  host.data = malloc(bytes_of(&host));
  if (!host.data) return nsai_fail_nomem("inputs", bytes_of(&host));
  fill(in, branch, &host);
  nsa_status status = nsai_trial_device_upload(w->device, out->data, host.data, bytes_of(&host));
  free(host.data);
  return status;
}

/* K and V of every pair that the model reads. */
static nsa_status make_pairs(decode_world *w, const nsai_trial_inputs *in, int64_t rows,
                             nsa_kv *out) {
  const nsai_geometry *g = w->geometry;
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!nsai_reads_pair(g, b)) continue;
    NSAI_TRY(
        make_filled(w, in, nsai_trial_fill_keys, b, rows, g->kv_heads, g->head_dim_qk, &out->k[b]));
    NSAI_TRY(make_filled(w, in, nsai_trial_fill_values, b, rows, g->kv_heads, g->head_dim_v,
                         &out->v[b]));
  }
  return NSA_OK;
}

/* ---- the cache ------------------------------------------------------------------------------- */

static int64_t page_tokens(const decode_world *w) {
  return w->page_size > 0 ? w->page_size : w->context;
}

static nsa_status alloc_cache(decode_world *w) {
  const nsai_geometry *g = w->geometry;
  const int64_t count = w->copies * w->batch * w->pages, tokens = page_tokens(w);
  const int64_t entries = (tokens + g->stride - 1) / g->stride;
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!nsai_reads_pair(g, b)) continue;
    NSAI_TRY(alloc_tensor(w, g->dtype, 4, (int64_t[]){ count, tokens, g->kv_heads, g->head_dim_qk },
                          &w->cache.k[b]));
    NSAI_TRY(alloc_tensor(w, g->dtype, 4, (int64_t[]){ count, tokens, g->kv_heads, g->head_dim_v },
                          &w->cache.v[b]));
  }
  NSAI_TRY(alloc_tensor(w, g->dtype, 4, (int64_t[]){ count, entries, g->kv_heads, g->head_dim_qk },
                        &w->cache.k_cmp));
  return alloc_tensor(w, g->dtype, 4, (int64_t[]){ count, entries, g->kv_heads, g->head_dim_v },
                      &w->cache.v_cmp);
}

/* Pages lie scattered, as they do after a while of serving; rows in order. */
static nsa_status make_tables(decode_world *w) {
  const int64_t count = w->copies * w->batch * w->pages;
  const int64_t step = w->page_size > 0 && count % SCATTER ? SCATTER : 1;
  int32_t *values = malloc((size_t)count * sizeof *values);
  if (!values) return nsai_fail_nomem("page tables", (size_t)count * sizeof *values);
  for (int64_t i = 0; i < count; i++) values[i] = (int32_t)(i * step % count);
  nsa_status status =
      alloc_tensor(w, NSA_I32, 2, (int64_t[]){ w->copies * w->batch, w->pages }, &w->tables);
  if (!status) status = upload_ints(w, values, &w->tables);
  free(values);
  return status;
}

/* Rows [first, first + count) of the tables as a batch has them. */
static void set_rows(const decode_world *w, int64_t first, int64_t count, nsa_batch *batch) {
  nsa_tensor rows = w->tables;
  rows.data = (int32_t *)w->tables.data + first * w->pages;
  rows.shape[0] = count;
  batch->num_seqs = (int32_t)count;
  if (w->page_size > 0) {
    batch->block_table = rows;
    return;
  }
  rows.ndim = 1; /* one page of each: its row */
  batch->slots = rows;
}

nsa_batch decode_world_batch(const decode_world *w, int64_t copy) {
  nsa_batch batch = NSA_BATCH_INIT;
  set_rows(w, copy * w->batch, w->batch, &batch);
  batch.kv_len = w->lengths;
  return batch;
}

/* Appends `prompt` to every sequence, as often as the context is long. */
static nsa_status fill_cache(decode_world *w, const nsa_plan *plan, const nsa_kv *prompt,
                             const nsa_exec *exec) {
  const int64_t rows = least(w->context, PROMPT), chunks = (w->context + rows - 1) / rows;
  nsa_tensor ends;
  int32_t *values = malloc((size_t)chunks * sizeof *values);
  if (!values) return nsai_fail_nomem("lengths", (size_t)chunks * sizeof *values);
  for (int64_t i = 0; i < chunks; i++) values[i] = (int32_t)least((i + 1) * rows, w->context);
  nsa_status status = alloc_tensor(w, NSA_I32, 1, (int64_t[]){ chunks }, &ends);
  if (!status) status = upload_ints(w, values, &ends);
  for (int64_t i = 0; i < w->copies * w->batch * chunks && !status; i++) {
    const int64_t chunk = i % chunks, tokens = values[chunk] - chunk * rows;
    nsa_batch batch = NSA_BATCH_INIT;
    nsa_kv fresh = *prompt;
    set_rows(w, i / chunks, 1, &batch);
    batch.kv_len = ends;
    batch.kv_len.data = (int32_t *)ends.data + chunk;
    batch.kv_len.shape[0] = 1;
    for (int b = 0; b < NSA_BRANCHES; b++)
      if (fresh.k[b].data) fresh.k[b].shape[0] = fresh.v[b].shape[0] = tokens;
    status = nsa_kv_append(plan, exec, &batch, &w->cache, &fresh, NULL);
  }
  free(values);
  return status ? status : nsai_trial_device_wait(w->device, NULL);
}

/* ---- the world ------------------------------------------------------------------------------- */

/* As many copies as memory takes, at most w->copies. */
static nsa_status limit_copies(decode_world *w) {
  const nsai_geometry *g = w->geometry;
  const double dims = g->head_dim_qk + g->head_dim_v, pairs = g->per_branch ? NSA_BRANCHES : 1;
  const double rows = (double)w->batch * (double)w->pages * (double)page_tokens(w);
  const double bytes = 2 * dims * g->kv_heads * rows * (pairs + 1.0 / g->stride);
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
  w->copies = least(w->copies, (int64_t)(memory / bytes));
  return NSA_OK;
}

static nsa_status make_step(decode_world *w, const nsai_trial_inputs *in) {
  const nsai_geometry *g = w->geometry;
  const int64_t tokens = w->batch * w->q_len;
  w->io = (nsa_io)NSA_IO_INIT;
  NSAI_TRY(make_filled(w, in, fill_queries, 0, tokens, g->heads, g->head_dim_qk, &w->io.q));
  NSAI_TRY(make_filled(w, in, fill_gates, 0, tokens, g->heads, NSA_BRANCHES, &w->io.gate.value));
  NSAI_TRY(alloc_tensor(w, g->dtype, 3, (int64_t[]){ tokens, g->heads, g->head_dim_v }, &w->io.o));
  NSAI_TRY(make_pairs(w, in, tokens, &w->fresh));
  w->io.kv = w->cache;
  int32_t *lengths = malloc((size_t)w->batch * sizeof *lengths);
  if (!lengths) return nsai_fail_nomem("lengths", (size_t)w->batch * sizeof *lengths);
  for (int64_t i = 0; i < w->batch; i++) lengths[i] = (int32_t)w->context;
  nsa_status status = alloc_tensor(w, NSA_I32, 1, (int64_t[]){ w->batch }, &w->lengths);
  if (!status) status = upload_ints(w, lengths, &w->lengths);
  free(lengths);
  return status;
}

nsa_status decode_world_create(chk_session *session, const bench_decode_options *options,
                               const nsai_geometry *g, const nsa_plan *fill,
                               const bench_decode_cell *cell, int64_t copies, decode_world *w) {
  nsai_trial_inputs in = { g, options->c.fill, options->c.seed,
                           chk_session_opts(session)->threads };
  nsa_caps caps = NSA_CAPS_INIT;
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_kv prompt = { 0 };
  *w = (decode_world){ .device = chk_session_device(session),
                       .geometry = g,
                       .context = cell->context,
                       .batch = cell->batch,
                       .q_len = cell->q_len,
                       .page_size = options->page_size,
                       .copies = copies };
  w->pages = w->page_size > 0 ? (w->context + w->page_size - 1) / w->page_size : 1;
  NSAI_TRY(limit_copies(w));
  NSAI_TRY(alloc_cache(w));
  NSAI_TRY(make_tables(w));
  NSAI_TRY(make_step(w, &in));
  NSAI_TRY(make_pairs(w, &in, least(w->context, PROMPT), &prompt));
  NSAI_TRY(nsa_plan_caps(fill, &caps));
  NSAI_TRY(decode_world_alloc(w, caps.workspace_bytes, &exec.workspace));
  exec.workspace_bytes = caps.workspace_bytes;
  exec.stream = (nsa_stream)w->device->stream;
  return fill_cache(w, fill, &prompt, &exec);
}
