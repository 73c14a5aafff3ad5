/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The scenario's memory and its steps: appends, decode steps, rejected drafts, ends of
 * sequences.
 */
#include "scenario.h"

#include "base/float16.h"
#include "base/math.h"
#include "verify/cache_tensors.h"
#include "verify/parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NOWHERE 0x7ffffff0 /* a page id that must never be used */

uint64_t chk_cache_next(chk_scenario *sc) {
  return nsai_verify_mix(sc->random += 0x9e3779b97f4a7c15u); /* splitmix64 */
}

/* ---- memory on both sides ---- */

static size_t element_bytes(int32_t dtype) {
  return dtype == NSA_I64 ? 8 : dtype == NSA_F32 || dtype == NSA_I32 ? 4 : 2;
}

/* A tensor whose elements have `gpu_bytes` bytes on the GPU. */
static nsa_status make_tensor(chk_scenario *sc, int what, int32_t dtype, size_t gpu_bytes,
                              int32_t ndim, const int64_t *shape) {
  chk_cache_tensor *t = &sc->tensor[what];
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
  NSAI_TRY(nsai_verify_buffer_create(sc->device, (size_t)count * gpu_bytes, 0xff, &t->gpu));
  return nsai_verify_buffer_image(&t->gpu) ? NSA_OK : nsai_fail_nomem("an image", t->bytes);
}

nsa_status chk_cache_make(chk_scenario *sc, int what, int32_t dtype, int32_t ndim,
                          const int64_t *shape) {
  return make_tensor(sc, what, dtype, element_bytes(dtype), ndim, shape);
}

uint8_t *chk_cache_fetched(const chk_cache_tensor *t) {
  return t->gpu.image ? t->gpu.image + NSAI_VERIFY_GUARD : NULL;
}

/* Of a tensor of the cache. */
static int64_t gpu_element(const chk_cache_tensor *t) { return t->codes ? 1 : 2; }

/* Moves pages between `gpu` and memory where they are far apart, in either direction. */
static nsa_status move_pages(const chk_scenario *sc, const chk_cache_tensor *t, bool out) {
  size_t bytes = (size_t)(t->view.stride[0] * gpu_element(t));
  for (int64_t page = 0; t->far && page < t->view.shape[0]; page++) {
    uint8_t *near = t->gpu.device + NSAI_VERIFY_GUARD + (size_t)page * bytes;
    uint8_t *far = t->far + page * t->page_stride * gpu_element(t);
    NSAI_TRY(nsai_verify_device_copy(sc->device, out ? far : near, out ? near : far, bytes));
  }
  return NSA_OK;
}

nsa_status chk_cache_upload(chk_scenario *sc, int what) {
  chk_cache_tensor *t = &sc->tensor[what];
  if (t->codes)
    chk_cache_encode(sc, what);
  else
    memcpy(chk_cache_fetched(t), t->host, t->bytes);
  NSAI_TRY(nsai_verify_buffer_upload(sc->device, &t->gpu));
  return move_pages(sc, t, true);
}

nsa_status chk_cache_fetch(chk_scenario *sc, int what) {
  NSAI_TRY(move_pages(sc, &sc->tensor[what], false));
  return nsai_verify_buffer_fetch(sc->device, &sc->tensor[what].gpu);
}

nsa_tensor chk_cache_view(const chk_scenario *sc, int what, bool gpu) {
  const chk_cache_tensor *t = &sc->tensor[what];
  nsa_tensor view = t->view;
  if (!t->host) return (nsa_tensor){ 0 };
  if (gpu && t->codes) view.dtype = NSA_E4M3;
  view.data = gpu ? (void *)(t->gpu.device + NSAI_VERIFY_GUARD) : (void *)t->host;
  if (gpu && t->far) {
    view.data = t->far;
    view.stride[0] = t->page_stride;
  }
  return view;
}

/* The last page begins after 2^31 elements. */
static nsa_status spread_pages(chk_scenario *sc, int what) {
  chk_cache_tensor *t = &sc->tensor[what];
  int64_t last = t->view.shape[0] - 1;
  void *far;
  t->page_stride = (((int64_t)1 << 31) / last / 64 + 1) * 64;
  if (t->page_stride < t->view.stride[0]) t->page_stride = t->view.stride[0];
  NSAI_TRY(nsai_verify_device_alloc(
      sc->device, (size_t)((last * t->page_stride + t->view.stride[0]) * gpu_element(t)), &far));
  t->far = far;
  return move_pages(sc, t, true);
}

/* [rows, tokens, heads, dim]; with `hnd` in memory [rows, heads, tokens, dim]. */
static nsa_status make_cache(chk_scenario *sc, int what, const nsa_tensor *t) {
  const bool codes = chk_cache_dtype(&sc->options, what) == NSA_E4M3;
  NSAI_TRY(make_tensor(sc, what, t->dtype, codes ? 1 : 2, 4, t->shape));
  sc->tensor[what].codes = codes;
  if (sc->options.hnd) {
    sc->tensor[what].view.stride[1] = t->shape[3];
    sc->tensor[what].view.stride[2] = t->shape[1] * t->shape[3];
  }
  return sc->options.spread ? spread_pages(sc, what) : NSA_OK;
}

static bool is_ring(const chk_scenario *sc, int what) {
  return sc->options.ring && (what == CHK_CACHE_K + NSA_WIN || what == CHK_CACHE_V + NSA_WIN);
}

static nsa_status make_caches(chk_scenario *sc) {
  const chk_cache_options *o = &sc->options;
  const int32_t stride = o->model.stride;
  int64_t rows = o->page_size > 0 ? sc->pages : o->seqs + 1;
  int64_t tokens = o->page_size > 0 ? o->page_size : nsai_round_up(o->max_kv_len, stride);
  nsai_verify_kv cache;
  nsai_verify_cache_declare(&o->model, (nsai_verify_cache_dtypes){ 0 }, rows, tokens, &cache);
  for (int i = 0; i < NSAI_VERIFY_CACHE_TENSORS; i++) {
    nsa_tensor *t = nsai_verify_cache_tensor(&cache, i);
    if (is_ring(sc, CHK_CACHE_K + i)) t->shape[0] = o->seqs + 1, t->shape[1] = sc->ring;
    if (t->ndim) NSAI_TRY(make_cache(sc, CHK_CACHE_K + i, t));
  }
  return NSA_OK;
}

#define SHAPE(...) ((const int64_t[]){ __VA_ARGS__ })

/* Lists for `t` rows, selected or supplied. */
static nsa_status make_lists(chk_scenario *sc, int64_t t) {
  const chk_cache_options *o = &sc->options;
  int64_t heads = o->model.kv_heads, n = o->model.select_count;
  int64_t blocks = nsai_select_block_count(&o->model, o->max_kv_len);
  bool ranges = o->selection == NSA_SELECT_RANGES;
  if (o->probed) {
    NSAI_TRY(chk_cache_make(sc, CHK_CACHE_SOME_ROWS, NSA_I32, 1, SHAPE(CHK_CACHE_PROBES)));
    NSAI_TRY(
        chk_cache_make(sc, CHK_CACHE_SOME, NSA_F32, 3, SHAPE(CHK_CACHE_PROBES, heads, blocks)));
  }
  if (o->selection == NSA_SELECT_TOPN)
    return chk_cache_make(sc, CHK_CACHE_IDX, NSA_I32, 3, SHAPE(t, heads, n));
  if (o->shared_lists)
    return chk_cache_make(sc, CHK_CACHE_SELECTION, NSA_I32, ranges ? 3 : 2, SHAPE(t, n, 2));
  return chk_cache_make(sc, CHK_CACHE_SELECTION, NSA_I32, ranges ? 4 : 3, SHAPE(t, heads, n, 2));
}

static nsa_status make_rest(chk_scenario *sc) {
  const chk_cache_options *o = &sc->options;
  const nsai_model *g = &o->model;
  int64_t t = sc->most_tokens, s = o->seqs, blocks = nsai_select_block_count(g, o->max_kv_len);
  NSAI_TRY(chk_cache_make(sc, CHK_CACHE_CU_Q, NSA_I32, 1, SHAPE(s + 1)));
  NSAI_TRY(chk_cache_make(sc, CHK_CACHE_LEN, NSA_I32, 1, SHAPE(s)));
  NSAI_TRY(chk_cache_make(sc, CHK_CACHE_TABLE, NSA_I32, 2, SHAPE(s, sc->most_pages)));
  NSAI_TRY(chk_cache_make(sc, CHK_CACHE_STARTS, NSA_I32, 1, SHAPE(s + 1)));
  NSAI_TRY(chk_cache_make(sc, CHK_CACHE_LISTS, NSA_I32, 1, SHAPE(s * sc->most_pages)));
  NSAI_TRY(chk_cache_make(sc, CHK_CACHE_SLOTS, NSA_I32, 1, SHAPE(s)));
  NSAI_TRY(chk_cache_make(sc, CHK_CACHE_MAPPING, NSA_I64, 1, SHAPE(t)));
  NSAI_TRY(chk_cache_make(sc, CHK_CACHE_Q, g->dtype, 3, SHAPE(t, g->heads, g->head_dim_qk)));
  if (g->by == NSAI_BY_INDEX) {
    NSAI_TRY(
        chk_cache_make(sc, CHK_CACHE_INDEX_Q, g->dtype, 3, SHAPE(t, g->index_heads, g->index_dim)));
    NSAI_TRY(chk_cache_make(sc, CHK_CACHE_INDEX_LSE, NSA_F32, 2, SHAPE(t, g->index_heads)));
    NSAI_TRY(chk_cache_make(sc, CHK_CACHE_FRESH_INDEX, g->dtype, 3, SHAPE(t, 1, g->index_dim)));
  }
  if (g->gate == NSAI_GATE_MLP)
    NSAI_TRY(chk_cache_make(sc, CHK_CACHE_GATE, g->dtype, 2, SHAPE(t, g->gate_channels)));
  else if (g->gate != NSAI_GATE_NONE)
    NSAI_TRY(chk_cache_make(sc, CHK_CACHE_GATE, g->dtype, 3, SHAPE(t, g->heads, 3)));
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    NSAI_TRY(chk_cache_make(sc, CHK_CACHE_LSE + pair, NSA_F32, 2, SHAPE(t, g->heads)));
    NSAI_TRY(chk_cache_make(sc, CHK_CACHE_O_BRANCH + pair, g->dtype, 3,
                            SHAPE(t, g->heads, g->head_dim_v)));
    if (!nsai_reads_pair(g, pair)) continue;
    NSAI_TRY(chk_cache_make(sc, CHK_CACHE_FRESH_K + pair, g->dtype, 3,
                            SHAPE(t, g->kv_heads, g->head_dim_qk)));
    NSAI_TRY(chk_cache_make(sc, CHK_CACHE_FRESH_V + pair, g->dtype, 3,
                            SHAPE(t, g->kv_heads, g->head_dim_v)));
  }
  NSAI_TRY(chk_cache_make(sc, CHK_CACHE_O, g->dtype, 3, SHAPE(t, g->heads, g->head_dim_v)));
  NSAI_TRY(chk_cache_make(sc, CHK_CACHE_PROBE_ROWS, NSA_I32, 1, SHAPE(t)));
  NSAI_TRY(chk_cache_make(sc, CHK_CACHE_PROBE, NSA_F32, 3,
                          SHAPE(s * o->max_q_len, g->kv_heads, blocks)));
  if (o->counted)
    NSAI_TRY(
        chk_cache_make(sc, CHK_CACHE_READS, NSA_I64, 4, SHAPE(s, g->kv_heads, NSA_BRANCHES, 2)));
  if (!g->select_count) return NSA_OK;
  return make_lists(sc, t);
}

void chk_cache_fill_scaled(chk_scenario *sc, int what, int64_t rows, double deviation) {
  chk_cache_tensor *t = &sc->tensor[what];
  uint16_t *to = (uint16_t *)(void *)t->host;
  int64_t count = rows * t->view.stride[0];
  for (int64_t i = 0; i < count; i++) {
    uint64_t bits = chk_cache_next(sc);
    double sum = 0;
    for (int k = 0; k < 4; k++) sum += (double)(bits >> 16 * k & 0xffff) / 65536.0 - 0.5;
    float x = (float)(sum * 1.7320508 * deviation);
    to[i] = t->view.dtype == NSA_F16 ? nsai_f16_from_float(x) : nsai_bf16_from_float(x);
  }
}

/* Gate weights must not be negative, like the results of a sigmoid: if branches cancelled, the
 * remainder would have the errors of much larger terms. */
static void drop_signs(chk_scenario *sc, int64_t rows) {
  chk_cache_tensor *t = &sc->tensor[CHK_CACHE_GATE];
  uint16_t *gate = (uint16_t *)(void *)t->host;
  for (int64_t i = 0; i < rows * t->view.stride[0]; i++) gate[i] &= 0x7fff;
}

void chk_cache_fill(chk_scenario *sc, int what, int64_t rows) {
  chk_cache_fill_scaled(sc, what, rows, 1);
  if (what == CHK_CACHE_GATE && sc->options.model.gate == NSAI_GATE_WEIGHTS) drop_signs(sc, rows);
}

/* ---- contexts and plans ---- */

char *chk_cache_yaml(const chk_cache_options *o, int32_t device, const char *cache_dir,
                     const nsai_variant *force) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  chk_write_config(out, &o->model, device, cache_dir);
  fprintf(out, "  count_reads: %s\n", o->counted ? "true" : "false");
  if (force)
    fprintf(out, "variants:\n  force: {%s: %s}\n", nsai_stage_name(force->stage), force->name);
  /* Without memory the text would be cut off. */
  bool failed = ferror(out);
  if (!fclose(out) && !failed) return text;
  free(text);
  return NULL;
}

static nsa_status make_context(chk_scenario *sc, const chk_plans_options *given, bool gpu,
                               nsa_ctx **out) {
  const int32_t device = gpu && sc->device->driver ? sc->device->ordinal : NSAI_VERIFY_DEVICE_CPU;
  nsa_options options = NSA_OPTIONS_INIT;
  char *text =
      chk_cache_yaml(&sc->options, device, given->cache_dir, gpu ? sc->options.force : NULL);
  if (!text) return nsai_fail_nomem("a configuration", 0);
  options.yaml_text = text;
  if (gpu) options.overrides = given->overrides;
  nsa_status status = nsa_create(gpu ? given->config : NULL, &options, out);
  free(text);
  return status;
}

void chk_cache_set_dtypes(const chk_cache_options *o, bool gpu, nsa_problem *p) {
  p->kv_dtype = gpu && o->kv_codes ? NSA_E4M3 : NSA_NONE;
  p->cmp_dtype = gpu && o->cmp_codes ? NSA_E4M3 : NSA_NONE;
}

bool chk_cache_has_index_lse(const chk_scenario *sc) {
  return sc->options.model.by == NSAI_BY_INDEX && sc->options.selection != NSA_SELECT_RANGES;
}

static nsa_problem problem_of(const chk_scenario *sc, int32_t op, int32_t selection,
                              int32_t probes) {
  nsa_problem p = NSA_PROBLEM_INIT;
  p.op = op;
  p.page_size = sc->options.page_size;
  p.max_seqs = sc->options.seqs;
  p.max_tokens = op == NSA_OP_APPEND ? sc->most_tokens : sc->options.seqs * sc->options.max_q_len;
  p.max_kv_len = sc->options.max_kv_len;
  p.max_q_len = op == NSA_OP_APPEND ? sc->chunk : sc->options.max_q_len;
  p.window_ring = sc->options.ring;
  p.selection = selection;
  p.index_lse = op != NSA_OP_APPEND && chk_cache_has_index_lse(sc);
  p.max_probe_rows = probes < p.max_tokens ? probes : (int32_t)p.max_tokens;
  return p;
}

static int32_t probes_of(const chk_scenario *sc) {
  return sc->options.probed ? CHK_CACHE_PROBES : 0;
}

static nsa_status make_plan(chk_scenario *sc, nsa_ctx *ctx, int32_t op, int32_t selection,
                            int32_t probes, nsa_plan **out) {
  nsa_problem p = problem_of(sc, op, selection, probes);
  chk_cache_set_dtypes(&sc->options, ctx == sc->gpu, &p);
  return nsa_plan_create(ctx, &p, NULL, NULL, out);
}

/* Of all plans on the CPU device, which asks for one as a GPU does. */
static nsa_status make_cpu_workspace(chk_scenario *sc) {
  const nsa_plan *const plans[] = { sc->cpu_append, sc->cpu_select, sc->cpu_attend };
  uint32_t align = 1;
  for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
    nsa_caps caps = NSA_CAPS_INIT;
    NSAI_TRY(nsa_plan_caps(plans[i], &caps));
    align = caps.workspace_align;
    if (caps.workspace_bytes > sc->cpu_exec.workspace_bytes)
      sc->cpu_exec.workspace_bytes = caps.workspace_bytes;
  }
  sc->cpu_workspace = aligned_alloc(align, sc->cpu_exec.workspace_bytes);
  if (!sc->cpu_workspace)
    return nsai_fail_nomem("the workspace of the CPU device", sc->cpu_exec.workspace_bytes);
  sc->cpu_exec.workspace = sc->cpu_workspace;
  return NSA_OK;
}

static nsa_status make_plans(chk_scenario *sc, const chk_plans_options *given) {
  const int32_t op = sc->options.op, selection = sc->options.selection;
  bool selects = sc->options.model.select_count > 0 && selection == NSA_SELECT_TOPN;
  uint64_t bytes = 0;
  NSAI_TRY(make_context(sc, given, true, &sc->gpu));
  NSAI_TRY(make_context(sc, given, false, &sc->cpu));
  NSAI_TRY(make_plan(sc, sc->gpu, NSA_OP_APPEND, 0, 0, &sc->gpu_append));
  NSAI_TRY(make_plan(sc, sc->gpu, op, selection, probes_of(sc), &sc->gpu_attend));
  NSAI_TRY(make_plan(sc, sc->cpu, NSA_OP_APPEND, 0, 0, &sc->cpu_append));
  NSAI_TRY(make_plan(sc, sc->cpu, op, selection, selects ? INT32_MAX : 0, &sc->cpu_select));
  NSAI_TRY(make_plan(sc, sc->cpu, op, selects ? NSA_SELECT_BLOCKS : selection, 0, &sc->cpu_attend));
  for (int i = 0; i < 2; i++) {
    nsa_caps caps = NSA_CAPS_INIT;
    NSAI_TRY(nsa_plan_caps(i ? sc->gpu_append : sc->gpu_attend, &caps));
    if (caps.workspace_bytes > bytes) bytes = caps.workspace_bytes;
    size_t used = strlen(sc->result->variants);
    snprintf(sc->result->variants + used, sizeof sc->result->variants - used, "%s%.250s",
             used ? " " : "", caps.variants);
  }
  sc->gpu_exec = sc->cpu_exec = (nsa_exec)NSA_EXEC_INIT;
  NSAI_TRY(nsai_verify_buffer_create(sc->device, bytes, 0xff, &sc->workspace));
  sc->gpu_exec.workspace = sc->workspace.device + NSAI_VERIFY_GUARD;
  sc->gpu_exec.workspace_bytes = bytes;
  sc->gpu_exec.stream = sc->device->stream;
  return make_cpu_workspace(sc);
}

/* ---- one call ---- */

static int32_t *ints(chk_scenario *sc, int what) {
  return (int32_t *)(void *)sc->tensor[what].host;
}

static void write_pages(chk_scenario *sc) {
  int32_t *table = ints(sc, CHK_CACHE_TABLE), *starts = ints(sc, CHK_CACHE_STARTS);
  int32_t *lists = ints(sc, CHK_CACHE_LISTS), used = 0;
  for (int s = 0; s < sc->options.seqs; s++) {
    starts[s] = used;
    for (int i = 0; i < sc->most_pages; i++)
      table[s * sc->most_pages + i] = i < sc->page_count[s] ? sc->page[s][i] : NOWHERE;
    for (int i = 0; i < sc->page_count[s]; i++) lists[used++] = sc->page[s][i];
  }
  starts[sc->options.seqs] = used;
}

void chk_cache_take_pages(chk_scenario *sc) {
  for (int s = 0; sc->options.page_size > 0 && s < sc->options.seqs; s++)
    while (sc->page_count[s] * sc->options.page_size < sc->len[s])
      sc->page[s][sc->page_count[s]++] = sc->free_page[--sc->free_count];
}

/* The page and offset that a new token's page list gives. */
static int64_t mapped(const chk_scenario *sc, int s, int64_t position) {
  int64_t size = sc->options.page_size;
  return sc->page[s][position / size] * size + position % size;
}

static void write_mapping(chk_scenario *sc) {
  int64_t *to = (int64_t *)(void *)sc->tensor[CHK_CACHE_MAPPING].host, token = 0;
  for (int s = 0; s < sc->options.seqs; s++)
    for (int i = 0; i < sc->q_len[s]; i++, token++) {
      int64_t position = sc->len[s] - sc->q_len[s] + i;
      to[token] = sc->len[s] && position >= 0 ? mapped(sc, s, position) : -1;
    }
}

/* What fills rows that belong to no sequence: NaN, or for queries in every other scenario a great
 * number (in bf16 1.2e30), which must not decide how others are scaled. */
static int unread_byte(const chk_scenario *sc, int what) {
  return what == CHK_CACHE_Q && sc->options.seed % 2 ? 0x71 : 0xff;
}

/* Random contents for rows of existing sequences, from tensor `first` on; the others stay NaN. */
static void fill_inputs(chk_scenario *sc, int first) {
  for (int what = first; what < CHK_CACHE_SELECTION; what++) {
    chk_cache_tensor *t = &sc->tensor[what];
    if (!t->host) continue;
    chk_cache_fill(sc, what, sc->tokens);
    size_t row = (size_t)t->view.stride[0] * 2;
    for (int s = 0, token = 0; s < sc->options.seqs; token += sc->q_len[s++])
      if (!sc->len[s])
        memset(t->host + (size_t)token * row, unread_byte(sc, what), (size_t)sc->q_len[s] * row);
    const size_t used = (size_t)sc->tokens * row;
    if (what == CHK_CACHE_Q) memset(t->host + used, unread_byte(sc, what), t->gpu.bytes - used);
  }
}

void chk_cache_write_call(chk_scenario *sc) {
  sc->tokens = 0;
  for (int s = 0; s < sc->options.seqs; s++) {
    ints(sc, CHK_CACHE_CU_Q)[s] = (int32_t)sc->tokens;
    ints(sc, CHK_CACHE_LEN)[s] = sc->len[s];
    ints(sc, CHK_CACHE_SLOTS)[s] = sc->options.seqs - s;
    sc->tokens += sc->q_len[s];
  }
  ints(sc, CHK_CACHE_CU_Q)[sc->options.seqs] = (int32_t)sc->tokens;
  sc->rows = sc->tokens;
  write_pages(sc);
  if (sc->options.mapping) write_mapping(sc);
}

nsa_status chk_cache_poison_outputs(chk_scenario *sc) {
  NSAI_TRY(nsai_verify_buffer_poison(sc->device, &sc->workspace));
  for (int what = CHK_CACHE_FIRST_OUTPUT; what < CHK_CACHE_PROBE_ROWS; what++)
    if (sc->tensor[what].host)
      NSAI_TRY(nsai_verify_buffer_poison(sc->device, &sc->tensor[what].gpu));
  return NSA_OK;
}

nsa_status chk_cache_prepare_append(chk_scenario *sc) {
  chk_cache_take_pages(sc);
  chk_cache_write_call(sc);
  fill_inputs(sc, CHK_CACHE_FRESH_K);
  for (int what = CHK_CACHE_CU_Q; what < CHK_CACHE_SELECTION; what++)
    if (sc->tensor[what].host && (what < CHK_CACHE_Q || what > CHK_CACHE_GATE))
      NSAI_TRY(chk_cache_upload(sc, what));
  chk_cache_round_new(sc);
  return NSA_OK;
}

nsa_status chk_cache_prepare_call(chk_scenario *sc) {
  chk_cache_take_pages(sc);
  chk_cache_write_call(sc);
  fill_inputs(sc, CHK_CACHE_Q);
  chk_cache_choose_selection(sc);
  chk_cache_start_reads(sc);
  for (int what = CHK_CACHE_CU_Q; what < CHK_CACHE_FIRST_OUTPUT; what++)
    if (sc->tensor[what].host) NSAI_TRY(chk_cache_upload(sc, what));
  chk_cache_round_new(sc);
  return chk_cache_poison_outputs(sc);
}

/* The rows of a tensor of the call. */
static nsa_tensor rows_of(const chk_scenario *sc, int what, bool gpu) {
  nsa_tensor t = chk_cache_view(sc, what, gpu);
  if (t.data) t.shape[0] = sc->rows;
  return t;
}

nsa_batch chk_cache_batch(const chk_scenario *sc, bool gpu, bool append) {
  const chk_cache_options *o = &sc->options;
  nsa_batch b = NSA_BATCH_INIT;
  b.num_seqs = o->seqs;
  b.kv_len = chk_cache_view(sc, CHK_CACHE_LEN, gpu);
  if (sc->packed) b.cu_q = chk_cache_view(sc, CHK_CACHE_CU_Q, gpu);
  if (o->page_size > 0 && o->lists) {
    b.page_indptr = chk_cache_view(sc, CHK_CACHE_STARTS, gpu);
    b.page_indices = chk_cache_view(sc, CHK_CACHE_LISTS, gpu);
  } else if (o->page_size > 0) {
    b.block_table = chk_cache_view(sc, CHK_CACHE_TABLE, gpu);
  }
  if (o->slots) b.slots = chk_cache_view(sc, CHK_CACHE_SLOTS, gpu);
  if (append && o->mapping) b.slot_mapping = rows_of(sc, CHK_CACHE_MAPPING, gpu);
  return b;
}

static void set_cache(const chk_scenario *sc, bool gpu, nsa_io *io) {
  nsai_verify_kv cache;
  for (int i = 0; i < NSAI_VERIFY_CACHE_TENSORS; i++)
    *nsai_verify_cache_tensor(&cache, i) = chk_cache_view(sc, CHK_CACHE_K + i, gpu);
  io->kv = cache.kv;
  io->k_norm = cache.k_norm;
  io->k_idx = cache.k_idx;
}

nsa_io chk_cache_io(const chk_scenario *sc, bool gpu) {
  nsa_io io = NSA_IO_INIT;
  io.softmax_scale = sc->options.softmax_scale;
  io.q = rows_of(sc, CHK_CACHE_Q, gpu);
  io.index_q = rows_of(sc, CHK_CACHE_INDEX_Q, gpu);
  io.gate = chk_cache_gate(sc, gpu, sc->rows);
  set_cache(sc, gpu, &io);
  io.o = rows_of(sc, CHK_CACHE_O, gpu);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!(sc->branches >> b & 1)) continue;
    io.o_branch[b] = rows_of(sc, CHK_CACHE_O_BRANCH + b, gpu);
    io.lse[b] = rows_of(sc, CHK_CACHE_LSE + b, gpu);
  }
  io.block_idx =
      rows_of(sc, sc->options.selection == NSA_SELECT_TOPN ? CHK_CACHE_IDX : CHK_CACHE_SELECTION,
              gpu);
  if (sc->options.selection == NSA_SELECT_RANGES)
    io.ranges = io.block_idx, io.block_idx.data = NULL;
  if (chk_cache_has_index_lse(sc)) io.index_lse = rows_of(sc, CHK_CACHE_INDEX_LSE, gpu);
  if (gpu && sc->options.probed) {
    io.probe_rows = chk_cache_view(sc, CHK_CACHE_SOME_ROWS, true);
    io.probe_importance = chk_cache_view(sc, CHK_CACHE_SOME, true);
  }
  if (gpu && sc->options.counted) io.kv_reads = chk_cache_view(sc, CHK_CACHE_READS, true);
  if (gpu) chk_cache_add_scales(sc, &io);
  return io;
}

nsa_status chk_cache_append(chk_scenario *sc, bool gpu) {
  nsa_io io = NSA_IO_INIT;
  nsa_batch batch = chk_cache_batch(sc, gpu, true);
  set_cache(sc, gpu, &io);
  io.phi = chk_cache_phi(sc, gpu);
  if (gpu) chk_cache_add_scales(sc, &io);
  for (int i = 0; i < NSA_BRANCHES; i++) {
    io.new_kv.k[i] = rows_of(sc, CHK_CACHE_FRESH_K + i, gpu);
    io.new_kv.v[i] = rows_of(sc, CHK_CACHE_FRESH_V + i, gpu);
  }
  io.new_k_idx = rows_of(sc, CHK_CACHE_FRESH_INDEX, gpu);
  return nsa_kv_append(gpu ? sc->gpu_append : sc->cpu_append, gpu ? &sc->gpu_exec : &sc->cpu_exec,
                       &batch, &io);
}

/* ---- the steps ---- */

/* Ends a sequence; its pages are then filled with NaN. */
static void end_sequence(chk_scenario *sc, int s) {
  for (int i = 0; i < sc->page_count[s]; i++) {
    int32_t page = sc->page[s][i];
    sc->free_page[sc->free_count++] = page;
    for (int what = CHK_CACHE_K; what <= CHK_CACHE_K_NORM; what++) {
      chk_cache_tensor *t = &sc->tensor[what];
      size_t bytes = (size_t)t->view.stride[0] * 2;
      bool kept = what >= CHK_CACHE_K_CMP && sc->options.model.phi == NSAI_PHI_EXTERNAL;
      if (t->host && !is_ring(sc, what) && !kept)
        memset(t->host + (size_t)page * bytes, 0xff, bytes);
    }
  }
  sc->page_count[s] = sc->len[s] = 0;
}

/* Ends about half of them. */
static nsa_status end_sequences(chk_scenario *sc) {
  for (int s = 0; s < sc->options.seqs; s++)
    if (chk_cache_next(sc) % 2 && !sc->options.ring) end_sequence(sc, s);
  for (int what = CHK_CACHE_K; what <= CHK_CACHE_K_NORM; what++)
    if (sc->tensor[what].host) NSAI_TRY(chk_cache_upload(sc, what));
  return NSA_OK;
}

/* Sequences that do not exist get a beginning of any length, in one append of chunks. */
static nsa_status begin_sequences(chk_scenario *sc) {
  bool any = true;
  int32_t goal[CHK_CACHE_MOST_SEQS];
  for (int s = 0; s < sc->options.seqs; s++) {
    bool first = s == 0 && sc->options.least_kv_len > 0;
    bool begins = !sc->len[s] && (chk_cache_next(sc) % 4 > 0 || first);
    int64_t most = sc->options.short_kv_len ? sc->options.short_kv_len : sc->options.max_kv_len;
    int64_t room = most - sc->options.max_q_len * sc->options.steps;
    int64_t least = sc->options.least_kv_len < room ? sc->options.least_kv_len : 0;
    uint64_t goals = (uint64_t)(room - least);
    goal[s] =
        begins && room > 0 ? (int32_t)(least + (int64_t)(chk_cache_next(sc) % goals)) : sc->len[s];
    if (begins && chk_cache_next(sc) % 4 == 0 && room > 0) goal[s] = (int32_t)room;
  }
  sc->packed = true;
  while (any) {
    any = false;
    for (int s = 0; s < sc->options.seqs; s++) {
      int32_t rest = goal[s] - sc->len[s];
      sc->q_len[s] = rest < sc->chunk ? rest : sc->chunk;
      sc->len[s] += sc->q_len[s];
      any |= rest > 0;
    }
    if (!any) break;
    NSAI_TRY(chk_cache_prepare_append(sc));
    NSAI_TRY(chk_cache_append(sc, false));
    NSAI_TRY(chk_cache_append(sc, true));
    NSAI_TRY(chk_cache_compare_cache(sc));
    if (sc->result->failure[0]) return NSA_OK;
  }
  return NSA_OK;
}

/* New tokens of a sequence: the same number for each, or (ragged) any number, and one where it
 * decodes beside chunks. */
static int32_t choose_new(chk_scenario *sc) {
  const chk_cache_options *o = &sc->options;
  if (!o->ragged) return o->max_q_len;
  if (o->op == NSA_OP_PREFILL && chk_cache_next(sc) % 3 == 0) return 1;
  return (int32_t)(chk_cache_next(sc) % (uint64_t)(o->max_q_len + 1));
}

/* Chooses the new tokens of a step. */
static void choose_step(chk_scenario *sc) {
  const chk_cache_options *o = &sc->options;
  sc->packed = o->ragged;
  for (int s = 0; s < o->seqs; s++) {
    sc->q_len[s] = choose_new(sc);
    bool absent =
        sc->len[s] + sc->q_len[s] > o->max_kv_len || (!sc->len[s] && chk_cache_next(sc) % 2);
    bool is_new = !sc->len[s];
    sc->len[s] = absent ? 0 : sc->len[s] + sc->q_len[s]; /* 0: in this call only */
    /* rows before the sequence's first token */
    if (is_new && sc->len[s] > 1 && chk_cache_next(sc) % 2)
      sc->len[s] = 1 + (int32_t)(chk_cache_next(sc) % (uint64_t)(sc->q_len[s] - 1));
  }
}

/* Chooses some of the branches, at least one. */
static void choose_branches(chk_scenario *sc) {
  uint32_t all = nsai_branches(&sc->options.model);
  do sc->branches = all & (uint32_t)chk_cache_next(sc);
  while (!sc->branches);
}

/* The CPU device has only one order of computation; it repeats a step only if a self-test
 * damages the repetition. */
static nsa_status step(chk_scenario *sc, bool first) {
  int32_t before[CHK_CACHE_MOST_SEQS];
  memcpy(before, sc->len, sizeof before);
  choose_step(sc);
  if (sc->options.masks) choose_branches(sc);
  NSAI_TRY(chk_cache_prepare_call(sc));
  if (sc->packed && sc->options.op == NSA_OP_PREFILL) /* the same number in each, for a graph */
    sc->rows = (int64_t)sc->options.seqs * sc->options.max_q_len;
  NSAI_TRY(chk_cache_append(sc, false));
  NSAI_TRY(chk_cache_run_gpu(sc));
  if (sc->device->driver ? sc->options.repeats > 0 : first && sc->inject)
    NSAI_TRY(chk_cache_repeat(sc));
  if (!sc->result->failure[0]) NSAI_TRY(chk_cache_compare_cache(sc));
  if (!sc->result->failure[0]) NSAI_TRY(chk_cache_compare_step(sc));
  for (int s = 0; s < sc->options.seqs; s++) {
    if (!sc->len[s]) { /* it was padding */
      sc->len[s] = before[s];
      continue;
    }
    int32_t drafts = sc->q_len[s] < sc->len[s] ? sc->q_len[s] : sc->len[s];
    if (sc->options.op == NSA_OP_DECODE) /* rejects some of them */
      sc->len[s] -= (int32_t)(chk_cache_next(sc) % (uint64_t)(drafts + 1));
  }
  return NSA_OK;
}

static nsa_status walk(chk_scenario *sc) {
  for (int i = 0; i < sc->options.steps; i++) {
    if (i % 3 == 0) NSAI_TRY(begin_sequences(sc));
    if (sc->result->failure[0]) return NSA_OK;
    NSAI_TRY(step(sc, i == 0));
    if (sc->result->failure[0]) return NSA_OK;
    if (i % 3 == 2) NSAI_TRY(end_sequences(sc));
  }
  bool has_room = !sc->options.short_kv_len; /* for a sequence of the plan's maximal length */
  return has_room && chk_cache_next(sc) % 2 ? chk_cache_overrun(sc) : NSA_OK;
}

static void size_scenario(chk_scenario *sc) {
  const chk_cache_options *o = &sc->options;
  const nsai_model *g = &o->model;
  int64_t seen = (int64_t)g->window + (o->max_q_len > 40 ? o->max_q_len : 40) - 1;
  sc->chunk = !o->ring ? o->max_kv_len : o->max_q_len > 40 ? o->max_q_len : 40;
  if (o->chunk) sc->chunk = o->chunk;
  sc->ring = seen < o->max_kv_len ? seen : o->max_kv_len;
  sc->most_tokens = (int64_t)o->seqs * (sc->chunk > o->max_q_len ? sc->chunk : o->max_q_len);
  sc->most_pages = o->page_size > 0 ? o->max_kv_len / o->page_size + 2 : 1;
  sc->pages =
      (int32_t)(o->seqs * (o->short_kv_len ? o->short_kv_len / o->page_size + 2 : sc->most_pages));
  sc->branches = nsai_branches(g);
}

nsa_problem chk_cache_problem(const chk_cache_options *options, int32_t op) {
  chk_scenario sc = { .options = *options };
  size_scenario(&sc);
  nsa_problem p = problem_of(&sc, op, op == NSA_OP_APPEND ? 0 : options->selection,
                             op == NSA_OP_APPEND ? 0 : probes_of(&sc));
  chk_cache_set_dtypes(options, true, &p);
  return p;
}

nsa_status chk_cache_create(chk_scenario *sc, const chk_plans_options *given) {
  size_scenario(sc);
  sc->free_page = malloc((size_t)sc->pages * sizeof *sc->free_page);
  if (!sc->free_page) return nsai_fail_nomem("pages", (size_t)sc->pages);
  for (int s = 0; s < sc->options.seqs; s++) {
    sc->page[s] = malloc((size_t)sc->most_pages * sizeof **sc->page);
    if (!sc->page[s]) return nsai_fail_nomem("pages", (size_t)sc->most_pages);
  }
  for (int i = 0; i <= NSA_BRANCHES; i++) {
    size_t count = (size_t)sc->options.seqs * (size_t)sc->options.model.heads;
    sc->sums[i] = calloc(count, sizeof **sc->sums);
    if (!sc->sums[i]) return nsai_fail_nomem("sums", count);
  }
  for (int32_t i = 0; i < sc->pages; i++) sc->free_page[sc->free_count++] = i;
  for (int32_t i = sc->pages - 1; i > 0; i--) {
    int32_t at = (int32_t)(chk_cache_next(sc) % (uint64_t)(i + 1)), page = sc->free_page[i];
    sc->free_page[i] = sc->free_page[at];
    sc->free_page[at] = page;
  }
  NSAI_TRY(make_caches(sc));
  NSAI_TRY(make_rest(sc));
  NSAI_TRY(chk_cache_make_scales(sc));
  NSAI_TRY(chk_cache_make_weights(sc));
  if (sc->options.model.phi == NSAI_PHI_EXTERNAL)
    for (int what = CHK_CACHE_K_CMP; what <= CHK_CACHE_V_CMP; what++) {
      if (!sc->tensor[what].host) continue; /* no compressed values */
      chk_cache_fill(sc, what, sc->tensor[what].view.shape[0]);
      NSAI_TRY(chk_cache_upload(sc, what));
    }
  return make_plans(sc, given);
}

void chk_cache_destroy(chk_scenario *sc) {
  nsai_verify_device_wait(sc->device, NULL);
  if (sc->graph) sc->device->driver->cuGraphExecDestroy(sc->graph);
  nsa_plan *plans[] = { sc->gpu_append, sc->gpu_attend, sc->cpu_append, sc->cpu_select,
                        sc->cpu_attend };
  for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) nsa_plan_destroy(plans[i]);
  nsa_destroy(sc->gpu);
  nsa_destroy(sc->cpu);
  for (int i = 0; i < CHK_CACHE_TENSORS; i++) {
    free(sc->tensor[i].host);
    if (sc->tensor[i].host) nsai_verify_buffer_destroy(sc->device, &sc->tensor[i].gpu);
    nsai_verify_device_free(sc->device, sc->tensor[i].far);
  }
  nsai_verify_buffer_destroy(sc->device, &sc->workspace);
  free(sc->cpu_workspace);
  for (int s = 0; s < CHK_CACHE_MOST_SEQS; s++) free(sc->page[s]);
  for (int i = 0; i <= NSA_BRANCHES; i++) free(sc->sums[i]);
  free(sc->free_page);
}

nsa_status chk_cache_walk(const nsai_verify_device *device, const chk_cache_options *options,
                          const chk_plans_options *given, int *inject, chk_cache_result *result) {
  chk_scenario sc = { .options = *options,
                      .device = device,
                      .random = options->seed,
                      .inject = inject,
                      .result = result };
  *result = (chk_cache_result){ 0 };
  nsa_status status = chk_cache_create(&sc, given);
  if (!status) status = walk(&sc);
  if (!status) chk_cache_verify(&sc);
  chk_cache_destroy(&sc);
  return status;
}
