/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The world's memory, and its walk: appends, decode steps, drafts that are rejected, ends.
 */
#include "internal.h"

#include "base/float16.h"
#include "verify/cache_tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NOWHERE 0x7ffffff0 /* an id of a page that must not be looked at */

uint64_t chk_kv_next(chk_kv_scenario *w) {
  uint64_t z = w->random += 0x9e3779b97f4a7c15ull; /* splitmix64 */
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

/* ---- memory on both sides ---- */

static size_t element_bytes(int32_t dtype) {
  return dtype == NSA_I64 ? 8 : dtype == NSA_F32 || dtype == NSA_I32 ? 4 : 2;
}

nsa_status chk_kv_make(chk_kv_scenario *w, int what, int32_t dtype, int32_t ndim,
                       const int64_t *shape) {
  chk_kv_tensor *t = &w->tensor[what];
  int64_t count = 1;
  t->view = (nsa_tensor){ .dtype = dtype, .ndim = ndim };
  for (int i = ndim - 1; i >= 0; i--) {
    t->view.shape[i] = shape[i];
    t->view.stride[i] = count;
    count *= shape[i];
  }
  t->bytes = (size_t)count * element_bytes(dtype);
  t->host = malloc(t->bytes + 1);
  if (!t->host) return nsai_fail_nomem("a tensor", t->bytes);
  memset(t->host, 0xff, t->bytes);
  NSAI_TRY(nsai_verify_buffer_create(w->device, t->bytes, 0xff, &t->gpu));
  return nsai_verify_buffer_image(&t->gpu) ? NSA_OK : nsai_fail_nomem("an image", t->bytes);
}

uint8_t *chk_kv_fetched(const chk_kv_tensor *t) {
  return t->gpu.image ? t->gpu.image + NSAI_VERIFY_GUARD : NULL;
}

/* Pages that lie far apart from `gpu` to there, or back. */
static nsa_status move_pages(const chk_kv_scenario *w, const chk_kv_tensor *t, bool out) {
  size_t bytes = (size_t)t->view.stride[0] * 2;
  for (int64_t page = 0; t->far && page < t->view.shape[0]; page++) {
    uint8_t *near = t->gpu.device + NSAI_VERIFY_GUARD + (size_t)page * bytes;
    uint8_t *far = t->far + page * t->page_stride * 2;
    NSAI_TRY(nsai_verify_device_copy(w->device, out ? far : near, out ? near : far, bytes));
  }
  return NSA_OK;
}

nsa_status chk_kv_upload(chk_kv_scenario *w, int what) {
  chk_kv_tensor *t = &w->tensor[what];
  memcpy(chk_kv_fetched(t), t->host, t->bytes);
  NSAI_TRY(nsai_verify_buffer_upload(w->device, &t->gpu));
  return move_pages(w, t, true);
}

nsa_status chk_kv_fetch(chk_kv_scenario *w, int what) {
  NSAI_TRY(move_pages(w, &w->tensor[what], false));
  return nsai_verify_buffer_fetch(w->device, &w->tensor[what].gpu);
}

nsa_tensor chk_kv_view(const chk_kv_scenario *w, int what, bool gpu) {
  const chk_kv_tensor *t = &w->tensor[what];
  nsa_tensor view = t->view;
  if (!t->host) return (nsa_tensor){ 0 };
  view.data = gpu ? (void *)(t->gpu.device + NSAI_VERIFY_GUARD) : (void *)t->host;
  if (gpu && t->far) {
    view.data = t->far;
    view.stride[0] = t->page_stride;
  }
  return view;
}

/* The last page begins behind 2^31 elements. */
static nsa_status spread_pages(chk_kv_scenario *w, int what) {
  chk_kv_tensor *t = &w->tensor[what];
  int64_t last = t->view.shape[0] - 1;
  void *far;
  t->page_stride = (((int64_t)1 << 31) / last / 64 + 1) * 64;
  if (t->page_stride < t->view.stride[0]) t->page_stride = t->view.stride[0];
  NSAI_TRY(nsai_verify_device_alloc(w->device,
                                    (size_t)(last * t->page_stride + t->view.stride[0]) * 2, &far));
  t->far = far;
  return move_pages(w, t, true);
}

/* [rows, tokens, heads, dim]; with `hnd` in memory [rows, heads, tokens, dim]. */
static nsa_status make_cache(chk_kv_scenario *w, int what, const nsa_tensor *t) {
  NSAI_TRY(chk_kv_make(w, what, t->dtype, 4, t->shape));
  if (w->opts.hnd) {
    w->tensor[what].view.stride[1] = t->shape[3];
    w->tensor[what].view.stride[2] = t->shape[1] * t->shape[3];
  }
  return w->opts.spread ? spread_pages(w, what) : NSA_OK;
}

static bool is_ring(const chk_kv_scenario *w, int what) {
  return w->opts.ring && (what == CHK_KV_K + NSA_WIN || what == CHK_KV_V + NSA_WIN);
}

static nsa_status make_caches(chk_kv_scenario *w) {
  const chk_kv_options *f = &w->opts;
  const int32_t stride = f->model.stride;
  int64_t rows = f->page_size > 0 ? w->pages : f->seqs + 1;
  int64_t tokens = f->page_size > 0 ? f->page_size : (f->max_kv_len + stride - 1) / stride * stride;
  nsa_kv cache;
  nsai_verify_cache_declare(&f->model, rows, tokens, &cache);
  for (int i = 0; i < NSAI_VERIFY_CACHE_TENSORS; i++) {
    nsa_tensor *t = nsai_verify_cache_tensor(&cache, i);
    if (is_ring(w, CHK_KV_K + i)) t->shape[0] = f->seqs + 1, t->shape[1] = w->ring;
    if (t->ndim) NSAI_TRY(make_cache(w, CHK_KV_K + i, t));
  }
  return NSA_OK;
}

#define SHAPE(...) ((const int64_t[]){ __VA_ARGS__ })

/* Of `t` rows, chosen or brought. */
static nsa_status make_lists(chk_kv_scenario *w, int64_t t) {
  const chk_kv_options *f = &w->opts;
  int64_t heads = f->model.kv_heads, n = f->model.select_count;
  int64_t blocks = nsai_select_block_count(&f->model, f->max_kv_len);
  bool ranges = f->selection == NSA_SELECT_RANGES;
  if (f->probed) {
    NSAI_TRY(chk_kv_make(w, CHK_KV_SOME_ROWS, NSA_I32, 1, SHAPE(CHK_KV_PROBES)));
    NSAI_TRY(chk_kv_make(w, CHK_KV_SOME, NSA_F32, 3, SHAPE(CHK_KV_PROBES, heads, blocks)));
  }
  if (f->selection == NSA_SELECT_OWN)
    return chk_kv_make(w, CHK_KV_IDX, NSA_I32, 3, SHAPE(t, heads, n));
  if (f->shared_lists)
    return chk_kv_make(w, CHK_KV_SELECTION, NSA_I32, ranges ? 3 : 2, SHAPE(t, n, 2));
  return chk_kv_make(w, CHK_KV_SELECTION, NSA_I32, ranges ? 4 : 3, SHAPE(t, heads, n, 2));
}

static nsa_status make_rest(chk_kv_scenario *w) {
  const chk_kv_options *f = &w->opts;
  const nsai_model *g = &f->model;
  int64_t t = w->most_tokens, s = f->seqs, blocks = nsai_select_block_count(g, f->max_kv_len);
  NSAI_TRY(chk_kv_make(w, CHK_KV_CU_Q, NSA_I32, 1, SHAPE(s + 1)));
  NSAI_TRY(chk_kv_make(w, CHK_KV_LEN, NSA_I32, 1, SHAPE(s)));
  NSAI_TRY(chk_kv_make(w, CHK_KV_TABLE, NSA_I32, 2, SHAPE(s, w->most_pages)));
  NSAI_TRY(chk_kv_make(w, CHK_KV_STARTS, NSA_I32, 1, SHAPE(s + 1)));
  NSAI_TRY(chk_kv_make(w, CHK_KV_LISTS, NSA_I32, 1, SHAPE(s * w->most_pages)));
  NSAI_TRY(chk_kv_make(w, CHK_KV_SLOTS, NSA_I32, 1, SHAPE(s)));
  NSAI_TRY(chk_kv_make(w, CHK_KV_MAPPING, NSA_I64, 1, SHAPE(t)));
  NSAI_TRY(chk_kv_make(w, CHK_KV_Q, g->dtype, 3, SHAPE(t, g->heads, g->head_dim_qk)));
  if (g->gate == NSAI_GATE_MLP)
    NSAI_TRY(chk_kv_make(w, CHK_KV_GATE, g->dtype, 2, SHAPE(t, g->gate_channels)));
  else
    NSAI_TRY(chk_kv_make(w, CHK_KV_GATE, g->dtype, 3, SHAPE(t, g->heads, 3)));
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    NSAI_TRY(chk_kv_make(w, CHK_KV_LSE + pair, NSA_F32, 2, SHAPE(t, g->heads)));
    NSAI_TRY(
        chk_kv_make(w, CHK_KV_O_BRANCH + pair, g->dtype, 3, SHAPE(t, g->heads, g->head_dim_v)));
    if (!nsai_reads_pair(g, pair)) continue;
    NSAI_TRY(
        chk_kv_make(w, CHK_KV_NEW_K + pair, g->dtype, 3, SHAPE(t, g->kv_heads, g->head_dim_qk)));
    NSAI_TRY(
        chk_kv_make(w, CHK_KV_NEW_V + pair, g->dtype, 3, SHAPE(t, g->kv_heads, g->head_dim_v)));
  }
  NSAI_TRY(chk_kv_make(w, CHK_KV_O, g->dtype, 3, SHAPE(t, g->heads, g->head_dim_v)));
  NSAI_TRY(chk_kv_make(w, CHK_KV_PROBE_ROWS, NSA_I32, 1, SHAPE(t)));
  NSAI_TRY(chk_kv_make(w, CHK_KV_PROBE, NSA_F32, 3, SHAPE(s * f->max_q_len, g->kv_heads, blocks)));
  if (f->counted)
    NSAI_TRY(chk_kv_make(w, CHK_KV_READS, NSA_I64, 4, SHAPE(s, g->kv_heads, NSA_BRANCHES, 2)));
  if (!g->select_count) return NSA_OK;
  return make_lists(w, t);
}

void chk_kv_fill_scaled(chk_kv_scenario *w, int what, int64_t rows, double deviation) {
  chk_kv_tensor *t = &w->tensor[what];
  uint16_t *to = (uint16_t *)(void *)t->host;
  int64_t count = rows * t->view.stride[0];
  for (int64_t i = 0; i < count; i++) {
    uint64_t bits = chk_kv_next(w);
    double sum = 0;
    for (int k = 0; k < 4; k++) sum += (double)(bits >> 16 * k & 0xffff) / 65536.0 - 0.5;
    float x = (float)(sum * 1.7320508 * deviation);
    to[i] = t->view.dtype == NSA_F16 ? nsai_f16_from_float(x) : nsai_bf16_from_float(x);
  }
}

/* Gate weights are what a sigmoid gives: where signs let branches cancel, what is left has the errors of
 * much larger terms. */
static void drop_signs(chk_kv_scenario *w, int64_t rows) {
  chk_kv_tensor *t = &w->tensor[CHK_KV_GATE];
  uint16_t *gate = (uint16_t *)(void *)t->host;
  for (int64_t i = 0; i < rows * t->view.stride[0]; i++) gate[i] &= 0x7fff;
}

void chk_kv_fill(chk_kv_scenario *w, int what, int64_t rows) {
  chk_kv_fill_scaled(w, what, rows, 1);
  if (what == CHK_KV_GATE && w->opts.model.gate == NSAI_GATE_WEIGHTS) drop_signs(w, rows);
}

/* ---- contexts and plans ---- */

static const char *const phi_words[] = { "mean", "linear",
                                         "mlp\n    hidden: 48\n    activation: silu", "external" };

static const char *const gate_words[] = {
  "weights", "logits", "mlp\n  gate_mlp: {channels: 64, hidden: 32, activation: silu}"
};

static nsa_status make_context(chk_kv_scenario *w, const char *cache_dir, bool gpu, nsa_ctx **out) {
  const nsai_model *g = &w->opts.model;
  char text[1400];
  nsa_options options = NSA_OPTIONS_INIT;
  snprintf(text, sizeof text,
           "nsa: 1\nmodel:\n  heads: %d\n  kv_heads: %d\n  head_dim_qk: %d\n  head_dim_v: %d\n"
           "  compress:\n    block: %d\n    stride: %d\n    phi: %s\n"
           "  select:\n    block: %d\n    count: %d\n    init: %d\n    local: %d\n"
           "  window: %d\n  gate: %s\n  kv_sharing: %s\n  dtype: %s\nruntime:\n  device: %s\n"
           "  count_reads: %s\n",
           g->heads, g->kv_heads, g->head_dim_qk, g->head_dim_v, g->block, g->stride,
           phi_words[g->phi], g->select_block, g->select_count, g->select_init, g->select_local,
           g->window, gate_words[g->gate], g->per_branch ? "per_branch" : "shared",
           g->dtype == NSA_F16 ? "fp16" : "bf16", gpu && w->device->driver ? "auto" : "cpu",
           w->opts.counted ? "true" : "false");
  size_t used = strlen(text);
  if (cache_dir)
    snprintf(text + used, sizeof text - used, "  cache_dir: \"%s\"\n", cache_dir);
  else
    snprintf(text + used, sizeof text - used, "  cache_mode: off\n");
  used = strlen(text);
  if (gpu && w->opts.variant && w->opts.op == NSA_OP_DECODE)
    snprintf(text + used, sizeof text - used, "variants:\n  force: {decode: %s}\n",
             w->opts.variant);
  options.yaml_text = text;
  return nsa_create(NULL, &options, out);
}

static nsa_status make_plan(chk_kv_scenario *w, nsa_ctx *ctx, int32_t op, int32_t selection,
                            int32_t probes, nsa_plan **out) {
  nsa_problem p = NSA_PROBLEM_INIT;
  p.op = op;
  p.page_size = w->opts.page_size;
  p.max_seqs = w->opts.seqs;
  p.max_tokens = op == NSA_OP_APPEND ? w->most_tokens : w->opts.seqs * w->opts.max_q_len;
  p.max_kv_len = w->opts.max_kv_len;
  p.max_q_len = op == NSA_OP_APPEND ? w->chunk : w->opts.max_q_len;
  p.window_ring = w->opts.ring;
  p.selection = selection;
  p.max_probe_rows = probes < p.max_tokens ? probes : (int32_t)p.max_tokens;
  return nsa_plan_create(ctx, &p, NULL, NULL, out);
}

static nsa_status make_plans(chk_kv_scenario *w, const char *cache_dir) {
  const int32_t op = w->opts.op, selection = w->opts.selection;
  bool selects = w->opts.model.select_count > 0 && selection == NSA_SELECT_OWN;
  uint64_t bytes = 0;
  NSAI_TRY(make_context(w, cache_dir, true, &w->gpu));
  NSAI_TRY(make_context(w, cache_dir, false, &w->cpu));
  NSAI_TRY(make_plan(w, w->gpu, NSA_OP_APPEND, 0, 0, &w->gpu_append));
  NSAI_TRY(make_plan(w, w->gpu, op, selection, w->opts.probed ? CHK_KV_PROBES : 0, &w->gpu_attend));
  NSAI_TRY(make_plan(w, w->cpu, NSA_OP_APPEND, 0, 0, &w->cpu_append));
  NSAI_TRY(make_plan(w, w->cpu, op, selection, selects ? INT32_MAX : 0, &w->cpu_select));
  NSAI_TRY(make_plan(w, w->cpu, op, selects ? NSA_SELECT_BLOCKS : selection, 0, &w->cpu_attend));
  for (int i = 0; i < 2; i++) {
    nsa_caps caps = NSA_CAPS_INIT;
    NSAI_TRY(nsa_plan_caps(i ? w->gpu_append : w->gpu_attend, &caps));
    if (caps.workspace_bytes > bytes) bytes = caps.workspace_bytes;
  }
  w->gpu_exec = w->cpu_exec = (nsa_exec)NSA_EXEC_INIT;
  NSAI_TRY(nsai_verify_buffer_create(w->device, bytes, 0xff, &w->workspace));
  w->gpu_exec.workspace = w->workspace.device + NSAI_VERIFY_GUARD;
  w->gpu_exec.workspace_bytes = bytes;
  w->gpu_exec.stream = w->device->stream;
  return NSA_OK;
}

/* ---- one call ---- */

static int32_t *ints(chk_kv_scenario *w, int what) {
  return (int32_t *)(void *)w->tensor[what].host;
}

static void write_pages(chk_kv_scenario *w) {
  int32_t *table = ints(w, CHK_KV_TABLE), *starts = ints(w, CHK_KV_STARTS);
  int32_t *lists = ints(w, CHK_KV_LISTS), used = 0;
  for (int s = 0; s < w->opts.seqs; s++) {
    starts[s] = used;
    for (int i = 0; i < w->most_pages; i++)
      table[s * w->most_pages + i] = i < w->page_count[s] ? w->page[s][i] : NOWHERE;
    for (int i = 0; i < w->page_count[s]; i++) lists[used++] = w->page[s][i];
  }
  starts[w->opts.seqs] = used;
}

void chk_kv_take_pages(chk_kv_scenario *w) {
  for (int s = 0; w->opts.page_size > 0 && s < w->opts.seqs; s++)
    while (w->page_count[s] * w->opts.page_size < w->len[s])
      w->page[s][w->page_count[s]++] = w->free_page[--w->free_count];
}

/* The place that a new token's page list says. */
static int64_t mapped(const chk_kv_scenario *w, int s, int64_t position) {
  int64_t size = w->opts.page_size;
  return w->page[s][position / size] * size + position % size;
}

static void write_mapping(chk_kv_scenario *w) {
  int64_t *to = (int64_t *)(void *)w->tensor[CHK_KV_MAPPING].host, token = 0;
  for (int s = 0; s < w->opts.seqs; s++)
    for (int i = 0; i < w->q_len[s]; i++, token++) {
      int64_t position = w->len[s] - w->q_len[s] + i;
      to[token] = w->len[s] && position >= 0 ? mapped(w, s, position) : -1;
    }
}

/* Contents of rows that belong to sequences that are there, from tensor `first` on; the others stay NaN. */
static void fill_inputs(chk_kv_scenario *w, int first) {
  for (int what = first; what < CHK_KV_SELECTION; what++) {
    chk_kv_tensor *t = &w->tensor[what];
    if (!t->host) continue;
    chk_kv_fill(w, what, w->tokens);
    size_t row = (size_t)t->view.stride[0] * 2;
    for (int s = 0, token = 0; s < w->opts.seqs; token += w->q_len[s++])
      if (!w->len[s]) memset(t->host + (size_t)token * row, 0xff, (size_t)w->q_len[s] * row);
  }
}

void chk_kv_write_call(chk_kv_scenario *w) {
  w->tokens = 0;
  for (int s = 0; s < w->opts.seqs; s++) {
    ints(w, CHK_KV_CU_Q)[s] = (int32_t)w->tokens;
    ints(w, CHK_KV_LEN)[s] = w->len[s];
    ints(w, CHK_KV_SLOTS)[s] = w->opts.seqs - s;
    w->tokens += w->q_len[s];
  }
  ints(w, CHK_KV_CU_Q)[w->opts.seqs] = (int32_t)w->tokens;
  w->rows = w->tokens;
  write_pages(w);
  if (w->opts.mapping) write_mapping(w);
}

nsa_status chk_kv_poison_outputs(chk_kv_scenario *w) {
  NSAI_TRY(nsai_verify_buffer_poison(w->device, &w->workspace));
  for (int what = CHK_KV_FIRST_OUTPUT; what < CHK_KV_PROBE_ROWS; what++)
    if (w->tensor[what].host) NSAI_TRY(nsai_verify_buffer_poison(w->device, &w->tensor[what].gpu));
  return NSA_OK;
}

nsa_status chk_kv_prepare_append(chk_kv_scenario *w) {
  chk_kv_take_pages(w);
  chk_kv_write_call(w);
  fill_inputs(w, CHK_KV_NEW_K);
  for (int what = CHK_KV_CU_Q; what < CHK_KV_SELECTION; what++)
    if (w->tensor[what].host && what != CHK_KV_Q && what != CHK_KV_GATE)
      NSAI_TRY(chk_kv_upload(w, what));
  return NSA_OK;
}

nsa_status chk_kv_prepare_call(chk_kv_scenario *w) {
  chk_kv_take_pages(w);
  chk_kv_write_call(w);
  fill_inputs(w, CHK_KV_Q);
  chk_kv_choose_selection(w);
  chk_kv_start_reads(w);
  for (int what = CHK_KV_CU_Q; what < CHK_KV_FIRST_OUTPUT; what++)
    if (w->tensor[what].host) NSAI_TRY(chk_kv_upload(w, what));
  return chk_kv_poison_outputs(w);
}

/* The rows of a tensor of the call. */
static nsa_tensor rows_of(const chk_kv_scenario *w, int what, bool gpu) {
  nsa_tensor t = chk_kv_view(w, what, gpu);
  if (t.data) t.shape[0] = w->rows;
  return t;
}

nsa_batch chk_kv_batch(const chk_kv_scenario *w, bool gpu, bool append) {
  const chk_kv_options *f = &w->opts;
  nsa_batch b = NSA_BATCH_INIT;
  b.num_seqs = f->seqs;
  b.kv_len = chk_kv_view(w, CHK_KV_LEN, gpu);
  if (w->packed) b.cu_q = chk_kv_view(w, CHK_KV_CU_Q, gpu);
  if (f->page_size > 0 && f->lists) {
    b.page_indptr = chk_kv_view(w, CHK_KV_STARTS, gpu);
    b.page_indices = chk_kv_view(w, CHK_KV_LISTS, gpu);
  } else if (f->page_size > 0) {
    b.block_table = chk_kv_view(w, CHK_KV_TABLE, gpu);
  }
  if (f->slots) b.slots = chk_kv_view(w, CHK_KV_SLOTS, gpu);
  if (append && f->mapping) b.slot_mapping = rows_of(w, CHK_KV_MAPPING, gpu);
  return b;
}

static nsa_kv cache_of(const chk_kv_scenario *w, bool gpu) {
  nsa_kv kv = { 0 };
  for (int i = 0; i < NSAI_VERIFY_CACHE_TENSORS; i++)
    *nsai_verify_cache_tensor(&kv, i) = chk_kv_view(w, CHK_KV_K + i, gpu);
  return kv;
}

nsa_io chk_kv_io(const chk_kv_scenario *w, bool gpu) {
  nsa_io io = NSA_IO_INIT;
  io.softmax_scale = w->opts.softmax_scale;
  io.q = rows_of(w, CHK_KV_Q, gpu);
  io.gate = chk_kv_gate(w, gpu, w->rows);
  io.kv = cache_of(w, gpu);
  io.o = rows_of(w, CHK_KV_O, gpu);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!(w->branches >> b & 1)) continue;
    io.o_branch[b] = rows_of(w, CHK_KV_O_BRANCH + b, gpu);
    io.lse[b] = rows_of(w, CHK_KV_LSE + b, gpu);
  }
  io.block_idx =
      rows_of(w, w->opts.selection == NSA_SELECT_OWN ? CHK_KV_IDX : CHK_KV_SELECTION, gpu);
  if (w->opts.selection == NSA_SELECT_RANGES) io.ranges = io.block_idx, io.block_idx.data = NULL;
  if (gpu && w->opts.probed) {
    io.probe_rows = chk_kv_view(w, CHK_KV_SOME_ROWS, true);
    io.probe_importance = chk_kv_view(w, CHK_KV_SOME, true);
  }
  if (gpu && w->opts.counted) io.reads = chk_kv_view(w, CHK_KV_READS, true);
  return io;
}

nsa_status chk_kv_append(chk_kv_scenario *w, bool gpu) {
  nsa_kv cache = cache_of(w, gpu), new_kv = { 0 };
  nsa_batch batch = chk_kv_batch(w, gpu, true);
  nsa_phi phi = chk_kv_phi(w, gpu);
  for (int i = 0; i < NSA_BRANCHES; i++) {
    new_kv.k[i] = rows_of(w, CHK_KV_NEW_K + i, gpu);
    new_kv.v[i] = rows_of(w, CHK_KV_NEW_V + i, gpu);
  }
  return nsa_kv_append(gpu ? w->gpu_append : w->cpu_append, gpu ? &w->gpu_exec : &w->cpu_exec,
                       &batch, &cache, &new_kv, &phi);
}

/* ---- the walk ---- */

/* A sequence ends; whoever reads its pages from now on finds NaN. */
static void end_sequence(chk_kv_scenario *w, int s) {
  for (int i = 0; i < w->page_count[s]; i++) {
    int32_t page = w->page[s][i];
    w->free_page[w->free_count++] = page;
    for (int what = CHK_KV_K; what <= CHK_KV_V_CMP; what++) {
      chk_kv_tensor *t = &w->tensor[what];
      size_t bytes = (size_t)t->view.stride[0] * 2;
      bool kept = what >= CHK_KV_K_CMP && w->opts.model.phi == NSAI_PHI_EXTERNAL;
      if (t->host && !is_ring(w, what) && !kept)
        memset(t->host + (size_t)page * bytes, 0xff, bytes);
    }
  }
  w->page_count[s] = w->len[s] = 0;
}

/* About half of them. */
static nsa_status end_sequences(chk_kv_scenario *w) {
  for (int s = 0; s < w->opts.seqs; s++)
    if (chk_kv_next(w) % 2 && !w->opts.ring) end_sequence(w, s);
  for (int what = CHK_KV_K; what <= CHK_KV_V_CMP; what++)
    if (w->tensor[what].host) NSAI_TRY(chk_kv_upload(w, what));
  return NSA_OK;
}

/* Sequences that are not there get a beginning of any length, in one append of chunks. */
static nsa_status begin_sequences(chk_kv_scenario *w) {
  bool any = true;
  int32_t goal[CHK_KV_MOST_SEQS];
  for (int s = 0; s < w->opts.seqs; s++) {
    bool first = s == 0 && w->opts.least_kv_len > 0;
    bool begins = !w->len[s] && (chk_kv_next(w) % 4 > 0 || first);
    int64_t most = w->opts.short_kv_len ? w->opts.short_kv_len : w->opts.max_kv_len;
    int64_t room = most - w->opts.max_q_len * w->opts.steps;
    int64_t least = w->opts.least_kv_len < room ? w->opts.least_kv_len : 0;
    uint64_t goals = (uint64_t)(room - least);
    goal[s] = begins && room > 0 ? (int32_t)(least + (int64_t)(chk_kv_next(w) % goals)) : w->len[s];
    if (begins && chk_kv_next(w) % 4 == 0 && room > 0) goal[s] = (int32_t)room;
  }
  w->packed = true;
  while (any) {
    any = false;
    for (int s = 0; s < w->opts.seqs; s++) {
      int32_t rest = goal[s] - w->len[s];
      w->q_len[s] = rest < w->chunk ? rest : w->chunk;
      w->len[s] += w->q_len[s];
      any |= rest > 0;
    }
    if (!any) break;
    NSAI_TRY(chk_kv_prepare_append(w));
    NSAI_TRY(chk_kv_append(w, false));
    NSAI_TRY(chk_kv_append(w, true));
    NSAI_TRY(chk_kv_compare_cache(w));
    if (w->result->failure[0]) return NSA_OK;
  }
  return NSA_OK;
}

/* New tokens of a sequence: as many for each or, ragged, any number, and one where it decodes beside
 * chunks. */
static int32_t choose_new(chk_kv_scenario *w) {
  const chk_kv_options *f = &w->opts;
  if (!f->ragged) return f->max_q_len;
  if (f->op == NSA_OP_PREFILL && chk_kv_next(w) % 3 == 0) return 1;
  return (int32_t)(chk_kv_next(w) % (uint64_t)(f->max_q_len + 1));
}

/* New tokens for a step. */
static void choose_step(chk_kv_scenario *w) {
  const chk_kv_options *f = &w->opts;
  w->packed = f->ragged;
  for (int s = 0; s < f->seqs; s++) {
    w->q_len[s] = choose_new(w);
    bool absent = w->len[s] + w->q_len[s] > f->max_kv_len || (!w->len[s] && chk_kv_next(w) % 2);
    bool new_kv = !w->len[s];
    w->len[s] = absent ? 0 : w->len[s] + w->q_len[s];  /* 0: for this call */
    if (new_kv && w->len[s] > 1 && chk_kv_next(w) % 2) /* rows before its first token */
      w->len[s] = 1 + (int32_t)(chk_kv_next(w) % (uint64_t)(w->q_len[s] - 1));
  }
}

static uint32_t all_branches(const nsai_model *g) {
  return 1u << NSA_CMP | (g->select_count ? 1u << NSA_SEL : 0) | (g->window ? 1u << NSA_WIN : 0);
}

/* Some of the branches, one at least. */
static void choose_branches(chk_kv_scenario *w) {
  uint32_t all = all_branches(&w->opts.model);
  do w->branches = all & (uint32_t)chk_kv_next(w);
  while (!w->branches);
}

/* The CPU device has one order: it repeats a step where a self-test damages that. */
static nsa_status step(chk_kv_scenario *w, bool first) {
  int32_t before[CHK_KV_MOST_SEQS];
  memcpy(before, w->len, sizeof before);
  choose_step(w);
  if (w->opts.masks) choose_branches(w);
  NSAI_TRY(chk_kv_prepare_call(w));
  if (w->packed && w->opts.op == NSA_OP_PREFILL) /* as many in each, for a graph */
    w->rows = (int64_t)w->opts.seqs * w->opts.max_q_len;
  NSAI_TRY(chk_kv_append(w, false));
  NSAI_TRY(chk_kv_run_gpu(w));
  if (w->device->driver ? w->opts.repeats > 0 : first && w->inject) NSAI_TRY(chk_kv_repeat(w));
  if (!w->result->failure[0]) NSAI_TRY(chk_kv_compare_cache(w));
  if (!w->result->failure[0]) NSAI_TRY(chk_kv_compare_step(w));
  for (int s = 0; s < w->opts.seqs; s++) {
    if (!w->len[s]) { /* it was padded */
      w->len[s] = before[s];
      continue;
    }
    int32_t drafts = w->q_len[s] < w->len[s] ? w->q_len[s] : w->len[s];
    if (w->opts.op == NSA_OP_DECODE) /* some of them are rejected */
      w->len[s] -= (int32_t)(chk_kv_next(w) % (uint64_t)(drafts + 1));
  }
  return NSA_OK;
}

static nsa_status walk(chk_kv_scenario *w) {
  for (int i = 0; i < w->opts.steps; i++) {
    if (i % 3 == 0) NSAI_TRY(begin_sequences(w));
    if (w->result->failure[0]) return NSA_OK;
    NSAI_TRY(step(w, i == 0));
    if (w->result->failure[0]) return NSA_OK;
    if (i % 3 == 2) NSAI_TRY(end_sequences(w));
  }
  bool has_room = !w->opts.short_kv_len; /* for a sequence as long as the plan's */
  return has_room && chk_kv_next(w) % 2 ? chk_kv_overrun(w) : NSA_OK;
}

static void size_scenario(chk_kv_scenario *w) {
  const chk_kv_options *f = &w->opts;
  const nsai_model *g = &f->model;
  int64_t seen = (int64_t)g->window + (f->max_q_len > 40 ? f->max_q_len : 40) - 1;
  w->chunk = !f->ring ? f->max_kv_len : f->max_q_len > 40 ? f->max_q_len : 40;
  if (f->chunk) w->chunk = f->chunk;
  w->ring = seen < f->max_kv_len ? seen : f->max_kv_len;
  w->most_tokens = (int64_t)f->seqs * (w->chunk > f->max_q_len ? w->chunk : f->max_q_len);
  w->most_pages = f->page_size > 0 ? f->max_kv_len / f->page_size + 2 : 1;
  w->pages =
      (int32_t)(f->seqs * (f->short_kv_len ? f->short_kv_len / f->page_size + 2 : w->most_pages));
  w->branches = all_branches(g);
}

nsa_status chk_kv_create(chk_kv_scenario *w, const char *cache_dir) {
  size_scenario(w);
  w->free_page = malloc((size_t)w->pages * sizeof *w->free_page);
  if (!w->free_page) return nsai_fail_nomem("pages", (size_t)w->pages);
  for (int s = 0; s < w->opts.seqs; s++) {
    w->page[s] = malloc((size_t)w->most_pages * sizeof **w->page);
    if (!w->page[s]) return nsai_fail_nomem("pages", (size_t)w->most_pages);
  }
  for (int i = 0; i <= NSA_BRANCHES; i++) {
    size_t count = (size_t)w->opts.seqs * (size_t)w->opts.model.heads;
    w->sums[i] = calloc(count, sizeof **w->sums);
    if (!w->sums[i]) return nsai_fail_nomem("sums", count);
  }
  for (int32_t i = 0; i < w->pages; i++) w->free_page[w->free_count++] = i;
  for (int32_t i = w->pages - 1; i > 0; i--) {
    int32_t at = (int32_t)(chk_kv_next(w) % (uint64_t)(i + 1)), page = w->free_page[i];
    w->free_page[i] = w->free_page[at];
    w->free_page[at] = page;
  }
  NSAI_TRY(make_caches(w));
  NSAI_TRY(make_rest(w));
  NSAI_TRY(chk_kv_make_weights(w));
  if (w->opts.model.phi == NSAI_PHI_EXTERNAL)
    for (int what = CHK_KV_K_CMP; what <= CHK_KV_V_CMP; what++) {
      chk_kv_fill(w, what, w->tensor[what].view.shape[0]);
      NSAI_TRY(chk_kv_upload(w, what));
    }
  return make_plans(w, cache_dir);
}

void chk_kv_destroy(chk_kv_scenario *w) {
  nsai_verify_device_wait(w->device, NULL);
  if (w->graph) w->device->driver->cuGraphExecDestroy(w->graph);
  nsa_plan *plans[] = { w->gpu_append, w->gpu_attend, w->cpu_append, w->cpu_select, w->cpu_attend };
  for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) nsa_plan_destroy(plans[i]);
  nsa_destroy(w->gpu);
  nsa_destroy(w->cpu);
  for (int i = 0; i < CHK_KV_TENSORS; i++) {
    free(w->tensor[i].host);
    if (w->tensor[i].host) nsai_verify_buffer_destroy(w->device, &w->tensor[i].gpu);
    nsai_verify_device_free(w->device, w->tensor[i].far);
  }
  nsai_verify_buffer_destroy(w->device, &w->workspace);
  for (int s = 0; s < CHK_KV_MOST_SEQS; s++) free(w->page[s]);
  for (int i = 0; i <= NSA_BRANCHES; i++) free(w->sums[i]);
  free(w->free_page);
}

nsa_status chk_kv_walk(const nsai_verify_device *device, const chk_kv_options *opts,
                       const char *cache_dir, int *inject, chk_kv_result *result) {
  chk_kv_scenario w = {
    .opts = *opts, .device = device, .random = opts->seed, .inject = inject, .result = result
  };
  *result = (chk_kv_result){ 0 };
  nsa_status status = chk_kv_create(&w, cache_dir);
  if (!status) status = walk(&w);
  if (!status) chk_kv_verify(&w);
  chk_kv_destroy(&w);
  return status;
}
