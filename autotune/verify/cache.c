/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/cache.h"

#include "base/math.h"
#include "reference/reference.h"
#include "verify/cache_tensors.h"
#include "verify/compare.h"
#include "verify/inputs.h"

#include <math.h>
#include <nsa/kv_cache.h>
#include <stdlib.h>
#include <string.h>

#define NAN_FILL 0xff /* in bf16, fp16 and f32 */
#define SCATTER 7919  /* a prime: page i is stored at i * SCATTER mod the number of pages */
#define STREAM_GATE 30001
#define STREAM_ENTRIES 30010

/* ---- shapes ---------------------------------------------------------------------------------- */

static const nsai_model *model_of(const nsai_verify_cache_setup *w) { return &w->c.problem.model; }

static int32_t longest(const nsai_verify_cache_setup *w) {
  int32_t most = 1;
  for (int32_t s = 0; s < w->c.seqs; s++)
    if (w->c.len[s] > most) most = w->c.len[s];
  return most;
}

/* Tokens of a page, or of a row without pages. */
static int64_t page_tokens(const nsai_verify_cache_setup *w) {
  return w->c.problem.page_size ? w->c.problem.page_size : longest(w);
}

static int64_t page_count(const nsai_verify_cache_setup *w, int32_t len) {
  return nsai_ceil_div(len, page_tokens(w));
}

/* All pages, plus one that belongs to no sequence; without pages, one row per sequence. */
static int64_t all_pages(const nsai_verify_cache_setup *w) {
  int64_t count = 1;
  if (!w->c.problem.page_size) return w->c.seqs;
  for (int32_t s = 0; s < w->c.seqs; s++) count += page_count(w, w->c.len[s]);
  return count;
}

static void declare(nsai_verify_cache_setup *w, int slot, int32_t dtype, int32_t ndim,
                    const int64_t *shape) {
  w->view[slot] = nsai_verify_tensor(dtype, ndim, shape);
}

static void declare_gate(nsai_verify_cache_setup *w) {
  const nsai_model *g = model_of(w);
  const int64_t columns = (int64_t)g->heads * NSA_BRANCHES, pitch = (columns + 7) / 8 * 8;
  const int64_t width = g->gate_hidden ? g->gate_hidden : g->gate_channels;
  if (g->gate == NSAI_GATE_NONE) return;
  if (g->gate != NSAI_GATE_MLP) {
    declare(w, NSAI_VERIFY_CACHE_GATE, g->dtype, 3,
            (int64_t[]){ w->tokens, g->heads, NSA_BRANCHES });
    return;
  }
  declare(w, NSAI_VERIFY_CACHE_GATE, g->dtype, 2, (int64_t[]){ w->tokens, g->gate_channels });
  if (g->gate_hidden)
    declare(w, NSAI_VERIFY_CACHE_GATE_W1, g->dtype, 2,
            (int64_t[]){ g->gate_channels, g->gate_hidden });
  declare(w, NSAI_VERIFY_CACHE_GATE_W2, g->dtype, 2, (int64_t[]){ width, pitch });
  w->view[NSAI_VERIFY_CACHE_GATE_W2].shape[1] = columns; /* rows padded to 16 bytes */
}

static void declare_cache(nsai_verify_cache_setup *w) {
  nsai_verify_kv cache;
  const nsai_verify_cache_dtypes dtypes = { w->c.problem.kv_dtype, w->c.problem.cmp_dtype };
  nsai_verify_cache_declare(model_of(w), dtypes, all_pages(w), page_tokens(w), &cache);
  for (int i = 0; i < NSAI_VERIFY_CACHE_TENSORS; i++)
    w->view[NSAI_VERIFY_CACHE_K + i] = *nsai_verify_cache_tensor(&cache, i);
  if (w->c.problem.page_size)
    declare(w, NSAI_VERIFY_CACHE_TABLE, NSA_I32, 2,
            (int64_t[]){ w->c.seqs, page_count(w, longest(w)) });
}

static void declare_all(nsai_verify_cache_setup *w) {
  const nsai_model *g = model_of(w);
  declare(w, NSAI_VERIFY_CACHE_Q, g->dtype, 3, (int64_t[]){ w->tokens, g->heads, g->head_dim_qk });
  if (g->by == NSAI_BY_INDEX)
    declare(w, NSAI_VERIFY_CACHE_INDEX_Q, g->dtype, 3,
            (int64_t[]){ w->tokens, g->index_heads, g->index_dim });
  declare_gate(w);
  declare_cache(w);
  declare(w, NSAI_VERIFY_CACHE_LEN, NSA_I32, 1, (int64_t[]){ w->c.seqs });
  if (w->c.problem.op == NSA_OP_PREFILL)
    declare(w, NSAI_VERIFY_CACHE_CU_Q, NSA_I32, 1, (int64_t[]){ w->c.seqs + 1 });
  declare(w, NSAI_VERIFY_CACHE_O, g->dtype, 3, (int64_t[]){ w->tokens, g->heads, g->head_dim_v });
  for (int b = 0; b < NSA_BRANCHES; b++)
    if (nsai_has_branch(g, b))
      declare(w, NSAI_VERIFY_CACHE_LSE + b, NSA_F32, 2, (int64_t[]){ w->tokens, g->heads });
  if (g->select_count)
    declare(w, NSAI_VERIFY_CACHE_IDX, NSA_I32, 3,
            (int64_t[]){ w->tokens, g->kv_heads, g->select_count });
}

/* ---- tensors --------------------------------------------------------------------------------- */

static nsa_tensor view_of(const nsai_verify_cache_setup *w, int slot, bool on_device) {
  nsa_tensor t = w->view[slot];
  if (!t.ndim) return (nsa_tensor){ 0 };
  uint8_t *base = on_device ? w->buffer[slot].device : w->buffer[slot].image;
  t.data = base ? base + NSAI_VERIFY_GUARD : NULL;
  return t;
}

static nsa_batch batch_of(const nsai_verify_cache_setup *w, bool on_device) {
  nsa_batch batch = NSA_BATCH_INIT;
  batch.num_seqs = w->c.seqs;
  batch.cu_q = view_of(w, NSAI_VERIFY_CACHE_CU_Q, on_device);
  batch.kv_len = view_of(w, NSAI_VERIFY_CACHE_LEN, on_device);
  batch.block_table = view_of(w, NSAI_VERIFY_CACHE_TABLE, on_device);
  return batch;
}

static void set_cache(const nsai_verify_cache_setup *w, bool on_device, nsa_io *io) {
  nsai_verify_kv cache;
  for (int i = 0; i < NSAI_VERIFY_CACHE_TENSORS; i++)
    *nsai_verify_cache_tensor(&cache, i) = view_of(w, NSAI_VERIFY_CACHE_K + i, on_device);
  io->kv = cache.kv;
  io->k_norm = cache.k_norm;
  io->k_idx = cache.k_idx;
}

/* The inputs, and on the device also the outputs. */
static nsa_io io_of(const nsai_verify_cache_setup *w, bool on_device) {
  nsa_io io = NSA_IO_INIT;
  bool mlp = model_of(w)->gate == NSAI_GATE_MLP;
  io.q = view_of(w, NSAI_VERIFY_CACHE_Q, on_device);
  io.index_q = view_of(w, NSAI_VERIFY_CACHE_INDEX_Q, on_device);
  set_cache(w, on_device, &io);
  *(mlp ? &io.gate.x : &io.gate.value) = view_of(w, NSAI_VERIFY_CACHE_GATE, on_device);
  io.gate.w1 = view_of(w, NSAI_VERIFY_CACHE_GATE_W1, on_device);
  io.gate.w2 = view_of(w, NSAI_VERIFY_CACHE_GATE_W2, on_device);
  if (!on_device) return io;
  io.o = view_of(w, NSAI_VERIFY_CACHE_O, true);
  for (int b = 0; b < NSA_BRANCHES; b++) io.lse[b] = view_of(w, NSAI_VERIFY_CACHE_LSE + b, true);
  io.block_idx = view_of(w, NSAI_VERIFY_CACHE_IDX, true);
  return io;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void fill_numbers(nsai_verify_cache_setup *w, const nsai_verify_inputs *in) {
  const nsai_model *g = model_of(w);
  nsa_tensor q = view_of(w, NSAI_VERIFY_CACHE_Q, false);
  nsai_verify_fill_queries(in, &q);
  nsa_tensor index_q = view_of(w, NSAI_VERIFY_CACHE_INDEX_Q, false);
  if (index_q.ndim) nsai_verify_fill_index_q(in, &index_q);
  const float scale[] = { 1, 1 / sqrtf((float)g->gate_channels + 1),
                          1 / sqrtf((float)(g->gate_hidden ? g->gate_hidden : g->gate_channels) +
                                    1) };
  for (int i = 0; i < 3; i++) {
    nsa_tensor t = view_of(w, NSAI_VERIFY_CACHE_GATE + i, false);
    if (t.ndim) nsai_verify_fill_normal(in, STREAM_GATE + (uint64_t)i, scale[i], &t);
  }
}

/* Assigns pages to every sequence. Table entries after a sequence's last page refer to a page
 * that is never written. */
static void fill_tables(nsai_verify_cache_setup *w) {
  const int64_t pages = all_pages(w);
  nsa_tensor table = view_of(w, NSAI_VERIFY_CACHE_TABLE, false);
  int32_t *len = view_of(w, NSAI_VERIFY_CACHE_LEN, false).data;
  int32_t *cu_q = view_of(w, NSAI_VERIFY_CACHE_CU_Q, false).data;
  const int64_t step = (pages - 1) % SCATTER ? SCATTER : 1;
  int64_t given = 0;
  for (int32_t s = 0; s < w->c.seqs; s++) {
    len[s] = w->c.len[s];
    if (cu_q) cu_q[s + 1] = (s ? cu_q[s] : 0) + w->c.q_len[s];
    for (int64_t i = 0; table.data && i < table.shape[1]; i++) {
      bool has = i < page_count(w, w->c.len[s]);
      ((int32_t *)table.data)[s * table.stride[0] + i] =
          (int32_t)(has ? given++ * step % (pages - 1) : pages - 1);
    }
  }
  if (cu_q) cu_q[0] = 0;
}

/* K and V, and index keys, of all sequences, one after the other. */
static nsa_status make_new_kv(const nsai_verify_cache_setup *w, const nsai_verify_inputs *in,
                              int64_t rows, nsa_io *io) {
  const nsai_model *g = model_of(w);
  nsa_kv *new_kv = &io->new_kv;
  if (g->by == NSAI_BY_INDEX) {
    NSAI_TRY(nsai_verify_tensor_alloc(g->dtype, 3, (int64_t[]){ rows, 1, g->index_dim },
                                      &io->new_k_idx));
    nsai_verify_fill_k_idx(in, &io->new_k_idx);
  }
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!nsai_reads_pair(g, b)) continue;
    NSAI_TRY(nsai_verify_tensor_alloc(g->dtype, 3, (int64_t[]){ rows, g->kv_heads, g->head_dim_qk },
                                      &new_kv->k[b]));
    NSAI_TRY(nsai_verify_tensor_alloc(g->dtype, 3, (int64_t[]){ rows, g->kv_heads, g->head_dim_v },
                                      &new_kv->v[b]));
    nsai_verify_fill_keys(in, b, &new_kv->k[b]);
    nsai_verify_fill_values(in, b, &new_kv->v[b]);
  }
  return NSA_OK;
}

/* Fills compressed entries that would need weights with arbitrary numbers. */
static void fill_entries(nsai_verify_cache_setup *w, const nsai_verify_inputs *in) {
  for (int side = 0; side < (model_of(w)->keys_only ? 1 : 2); side++) {
    nsa_tensor t = view_of(w, NSAI_VERIFY_CACHE_K_CMP + side, false);
    nsa_tensor rows =
        nsai_verify_tensor(t.dtype, 3,
                           (int64_t[]){ t.shape[0] * t.shape[1], t.shape[2], t.shape[3] });
    rows.data = t.data;
    nsai_verify_fill_normal(in, STREAM_ENTRIES + (uint64_t)side, 1, &rows);
  }
}

/* Fills the host images of the caches with the reference's append. */
static nsa_status fill_cache(nsai_verify_cache_setup *w, const nsai_verify_inputs *in) {
  nsai_model g = *model_of(w);
  const nsai_reference_cache layout = { .page_size = w->c.problem.page_size };
  nsa_batch batch = batch_of(w, false);
  nsa_io io = NSA_IO_INIT;
  int32_t ends[NSAI_VERIFY_CACHE_SEQS + 1] = { 0 };
  nsa_status status;
  for (int32_t s = 0; s < w->c.seqs; s++) ends[s + 1] = ends[s] + w->c.len[s];
  batch.cu_q = nsai_verify_tensor(NSA_I32, 1, (int64_t[]){ w->c.seqs + 1 });
  batch.cu_q.data = ends;
  if (nsai_compresses(&g) && g.phi != NSAI_PHI_MEAN) {
    g.phi = NSAI_PHI_EXTERNAL;
    fill_entries(w, in);
  }
  set_cache(w, false, &io);
  NSAI_TRY_TO(done, make_new_kv(w, in, ends[w->c.seqs], &io));
  NSAI_TRY_TO(done, nsai_reference_append(&g, &layout, &batch, &io, w->threads));
done:
  for (int b = 0; b < NSA_BRANCHES; b++) {
    free(io.new_kv.k[b].data);
    free(io.new_kv.v[b].data);
  }
  free(io.new_k_idx.data);
  return status;
}

static nsa_status make_buffers(nsai_verify_cache_setup *w) {
  for (int slot = 0; slot < NSAI_VERIFY_CACHE_SLOTS; slot++) {
    if (!w->view[slot].ndim) continue;
    nsai_verify_buffer *b = &w->buffer[slot];
    NSAI_TRY(nsai_verify_buffer_create(w->device, nsai_verify_tensor_bytes(&w->view[slot]),
                                       NAN_FILL, b));
    if (!nsai_verify_buffer_image(b)) return nsai_fail_nomem("a host image", b->bytes);
  }
  return NSA_OK;
}

/* ---- the reference --------------------------------------------------------------------------- */

/* Computes the expected results, on the reference's own blocks or on those of `on`. */
static nsa_status ask_reference(nsai_verify_cache_setup *w, int32_t selection, bool probes) {
  const nsai_model *g = model_of(w);
  const nsai_reference_cache layout = { .page_size = w->c.problem.page_size };
  nsa_batch batch = batch_of(w, false);
  nsa_io io = io_of(w, false);
  nsa_tensor rows = { 0 };
  nsa_status status = NSA_OK;
  io.o = w->want_o;
  for (int b = 0; b < NSA_BRANCHES; b++) io.lse[b] = w->want_lse[b];
  if (g->select_count) io.block_idx = selection == NSA_SELECT_TOPN ? w->topn : w->on;
  if (probes) {
    NSAI_TRY_TO(done, nsai_verify_tensor_alloc(NSA_I32, 1, (int64_t[]){ w->tokens }, &rows));
    for (int64_t i = 0; i < w->tokens; i++) ((int32_t *)rows.data)[i] = (int32_t)i;
    io.probe_rows = rows;
    io.probe_importance = w->importance;
  }
  status = nsai_reference_cached(g, &layout, selection, 0, &batch, &io, w->threads);
done:
  free(rows.data);
  return status;
}

static nsa_status make_expected(nsai_verify_cache_setup *w) {
  const nsai_model *g = model_of(w);
  const int64_t lists[] = { w->tokens, g->kv_heads, g->select_count };
  NSAI_TRY(nsai_verify_tensor_alloc(NSA_F32, 3, (int64_t[]){ w->tokens, g->heads, g->head_dim_v },
                                    &w->want_o));
  for (int b = 0; b < NSA_BRANCHES; b++)
    if (nsai_has_branch(g, b))
      NSAI_TRY(nsai_verify_tensor_alloc(NSA_F32, 2, (int64_t[]){ w->tokens, g->heads },
                                        &w->want_lse[b]));
  if (!g->select_count) return ask_reference(w, NSA_SELECT_TOPN, false);
  NSAI_TRY(nsai_verify_tensor_alloc(NSA_I32, 3, lists, &w->topn));
  NSAI_TRY(nsai_verify_tensor_alloc(NSA_I32, 3, lists, &w->on));
  NSAI_TRY(nsai_verify_tensor_alloc(NSA_F32, 3, (int64_t[]){ w->tokens, g->kv_heads, w->blocks },
                                    &w->importance));
  NSAI_TRY(ask_reference(w, NSA_SELECT_TOPN, true));
  memcpy(w->on.data, w->topn.data, nsai_verify_tensor_bytes(&w->topn));
  return NSA_OK;
}

nsa_status nsai_verify_cache_setup_create(const nsai_verify_device *device,
                                          const nsai_verify_cache_case *c, int threads,
                                          nsai_verify_cache_setup *w) {
  *w = (nsai_verify_cache_setup){ .device = device, .c = *c, .threads = threads };
  nsai_verify_inputs in = { model_of(w), c->fill, c->seed, threads };
  for (int32_t s = 0; s < c->seqs; s++) w->tokens += c->q_len[s];
  w->blocks = model_of(w)->select_block ? nsai_select_block_count(model_of(w), longest(w)) : 0;
  declare_all(w);
  NSAI_TRY(make_buffers(w));
  fill_numbers(w, &in);
  fill_tables(w);
  NSAI_TRY(fill_cache(w, &in));
  for (int slot = 0; slot < NSAI_VERIFY_CACHE_FIRST_OUTPUT; slot++)
    if (w->view[slot].ndim) NSAI_TRY(nsai_verify_buffer_upload(device, &w->buffer[slot]));
  return make_expected(w);
}

void nsai_verify_cache_setup_destroy(nsai_verify_cache_setup *w) {
  if (!w->device) return;
  for (int slot = 0; slot < NSAI_VERIFY_CACHE_SLOTS; slot++)
    if (w->buffer[slot].device) nsai_verify_buffer_destroy(w->device, &w->buffer[slot]);
  free(w->want_o.data);
  for (int b = 0; b < NSA_BRANCHES; b++) free(w->want_lse[b].data);
  free(w->importance.data);
  free(w->topn.data);
  free(w->on.data);
  *w = (nsai_verify_cache_setup){ 0 };
}

/* ---- verification ---------------------------------------------------------------------------- */

static void verify_guards(const nsai_verify_buffer *b, const char *name,
                          nsai_verify_result *result) {
  const uint8_t *behind = b->image + NSAI_VERIFY_GUARD + b->bytes;
  for (size_t i = 0; i < NSAI_VERIFY_GUARD; i++) {
    if (b->image[i] == NAN_FILL && behind[i] == NAN_FILL) continue;
    nsai_verify_fail(result, "%s: memory outside it changed", name);
    return;
  }
}

/* Position of a row in its sequence; below 0: a padded sequence. */
static int64_t position_of(const nsai_verify_cache_setup *w, int64_t token) {
  int32_t s = 0;
  while (token >= w->c.q_len[s]) token -= w->c.q_len[s++];
  return w->c.len[s] ? w->c.len[s] - w->c.q_len[s] + token : -1;
}

/* Compares the blocks of one row with the reference's; they may differ near the cut. */
static nsa_status verify_list(const nsai_verify_cache_setup *w, int64_t token, int32_t head,
                              nsai_verify_result *result) {
  const nsai_model *g = model_of(w);
  nsa_tensor idx = view_of(w, NSAI_VERIFY_CACHE_IDX, false);
  const int32_t *row = nsai_verify_index_row(&idx, token, head);
  const int64_t t = position_of(w, token);
  const char *complaint = nsai_verify_selection_malformed(g, t, row);
  if (complaint)
    nsai_verify_fail(result, "block_idx row %lld (position %lld) KV head %d: %s", (long long)token,
                     (long long)t, head, complaint);
  if (complaint || t < 0) return NSA_OK;
  double *importance = malloc((size_t)w->blocks * sizeof *importance);
  if (!importance) return nsai_fail_nomem("an importance", (size_t)w->blocks * sizeof *importance);
  const float *from = (const float *)w->importance.data + token * w->importance.stride[0] +
                      head * w->importance.stride[1];
  for (int64_t i = 0; i < w->blocks; i++) importance[i] = (double)from[i];
  nsai_verify_add_figure(result, "cut", nsai_verify_selection_distance(g, t, row, importance),
                         NSAI_VERIFY_CUT_TOLERANCE);
  free(importance);
  return NSA_OK;
}

/* Verifies all lists, then computes the reference on them if they differ from the lists it used
 * before. */
static nsa_status verify_lists(nsai_verify_cache_setup *w, nsai_verify_result *result) {
  nsa_tensor idx = view_of(w, NSAI_VERIFY_CACHE_IDX, false);
  if (!idx.ndim) return NSA_OK;
  for (int64_t token = 0; token < w->tokens && result->outcome != NSAI_VERIFY_FAILED; token++)
    for (int32_t head = 0; head < model_of(w)->kv_heads; head++)
      NSAI_TRY(verify_list(w, token, head, result));
  /* With blocks out of range the reference would read outside its tensors. */
  if (result->outcome == NSAI_VERIFY_FAILED ||
      !memcmp(w->on.data, idx.data, nsai_verify_tensor_bytes(&idx)))
    return NSA_OK;
  memcpy(w->on.data, idx.data, nsai_verify_tensor_bytes(&idx));
  return ask_reference(w, NSA_SELECT_BLOCKS, false);
}

static void verify_lse(const nsai_verify_cache_setup *w, int branch, nsai_verify_result *result) {
  static const char *const names[NSA_BRANCHES] = { "lse[0]", "lse[1]", "lse[2]" };
  nsa_tensor got = view_of(w, NSAI_VERIFY_CACHE_LSE + branch, false);
  const float *x = got.data, *want = w->want_lse[branch].data;
  double worst = 0;
  if (!got.ndim) return;
  for (int64_t i = 0; i < got.shape[0] * got.shape[1]; i++) {
    double difference = fabs((double)x[i] - (double)want[i]);
    double error = x[i] == want[i] ? 0 : difference / fmax(1, fabs((double)want[i]));
    if (!(error <= worst)) worst = isfinite(error) ? error : (double)INFINITY;
  }
  nsai_verify_add_figure(result, names[branch], worst, NSAI_VERIFY_LSE_TOLERANCE);
}

static nsa_status verify_outputs(nsai_verify_cache_setup *w, nsai_verify_result *result) {
  nsa_tensor o = view_of(w, NSAI_VERIFY_CACHE_O, false);
  NSAI_TRY(verify_lists(w, result));
  if (result->outcome == NSAI_VERIFY_FAILED) return NSA_OK;
  nsai_verify_compare_tensors("o", nsai_verify_tolerance_of(NSAI_VERIFY_WHOLE, model_of(w)->dtype),
                              &o, &w->want_o, result);
  for (int b = 0; b < NSA_BRANCHES; b++) verify_lse(w, b, result);
  return NSA_OK;
}

/* Runs the plan in a workspace of exactly the size it asks for, and fetches the outputs. */
static nsa_status run_plan(nsai_verify_cache_setup *w, const nsai_trial_plan *plan,
                           nsai_verify_buffer *workspace) {
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_batch batch = batch_of(w, true);
  nsa_io io = io_of(w, true);
  NSAI_TRY(nsai_verify_buffer_create(w->device, plan->caps.workspace_bytes, NAN_FILL, workspace));
  for (int slot = NSAI_VERIFY_CACHE_FIRST_OUTPUT; slot < NSAI_VERIFY_CACHE_SLOTS; slot++)
    if (w->view[slot].ndim) NSAI_TRY(nsai_verify_buffer_poison(w->device, &w->buffer[slot]));
  exec.workspace = workspace->device + NSAI_VERIFY_GUARD;
  exec.workspace_bytes = plan->caps.workspace_bytes;
  exec.stream = (nsa_stream)w->device->stream;
  NSAI_TRY(w->c.problem.op == NSA_OP_DECODE ? nsa_decode(plan->plan, &exec, &batch, &io)
                                            : nsa_prefill(plan->plan, &exec, &batch, &io));
  NSAI_TRY(nsai_verify_device_wait(w->device, NULL));
  for (int slot = NSAI_VERIFY_CACHE_FIRST_OUTPUT; slot < NSAI_VERIFY_CACHE_SLOTS; slot++)
    if (w->view[slot].ndim) NSAI_TRY(nsai_verify_buffer_fetch(w->device, &w->buffer[slot]));
  return nsai_verify_buffer_fetch(w->device, workspace);
}

nsa_status nsai_verify_cache_check(nsai_verify_cache_setup *w, const nsai_trial_plan *plan,
                                   nsai_verify_result *result) {
  nsai_verify_buffer workspace = { 0 };
  nsa_status status;
  NSAI_TRY_TO(done, run_plan(w, plan, &workspace));
  verify_guards(&workspace, "workspace", result);
  for (int slot = NSAI_VERIFY_CACHE_FIRST_OUTPUT; slot < NSAI_VERIFY_CACHE_SLOTS; slot++)
    if (w->view[slot].ndim) verify_guards(&w->buffer[slot], "an output", result);
  if (result->outcome != NSAI_VERIFY_FAILED) NSAI_TRY_TO(done, verify_outputs(w, result));
done:
  if (workspace.device) nsai_verify_buffer_destroy(w->device, &workspace);
  return status;
}
