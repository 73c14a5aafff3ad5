/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "cache_error.h"

#include "base/math.h"
#include "verify/cache_tensors.h"

#include <math.h>
#include <nsa/kv_cache.h>
#include <stdlib.h>
#include <string.h>

#define QUERIES 64 /* positions, in the second half of the prompt */
#define PAGE 64
#define CHANNELS 4 /* of the outliers */
#define OUTLIER 10.0f
#define MOST_OWNED 64

/* A cache with its plans, and what its decode step gave. */
typedef struct side {
  nsa_plan *append, *decode;
  nsa_plan *given; /* attends on the other cache's lists; of the codes alone */
  nsai_verify_kv cache;
} side;

typedef struct experiment {
  const bench_cache_error_request *request;
  const nsai_verify_device *device;
  const nsai_model *g;
  int32_t threads;
  nsa_ctx *ctx;
  side plain, codes;
  nsa_exec exec;
  nsa_kv prompt;
  nsa_tensor prompt_keys; /* of an index */
  nsa_batch append, decode;
  nsa_io io;       /* inputs and outputs of a step */
  int32_t *kv_len; /* [QUERIES] */
  void *owned[MOST_OWNED];
  int owned_count;
} experiment;

/* What a step gave, in host memory. */
typedef struct outcome {
  nsa_tensor o, o_cmp, idx, importance;
} outcome;

static void free_outcome(outcome *r) {
  free(r->o.data);
  free(r->o_cmp.data);
  free(r->idx.data);
  free(r->importance.data);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static nsa_status alloc(experiment *x, nsa_tensor *t) {
  if (x->owned_count == MOST_OWNED) return nsai_fail(NSA_E_INTERNAL, "too many tensors");
  NSAI_TRY(nsai_verify_device_alloc(x->device, nsai_verify_tensor_bytes(t), &t->data));
  x->owned[x->owned_count++] = t->data;
  return NSA_OK;
}

static nsa_status make(experiment *x, int32_t dtype, int32_t ndim, const int64_t *shape,
                       nsa_tensor *out) {
  *out = nsai_verify_tensor(dtype, ndim, shape);
  return alloc(x, out);
}

#define SHAPE(...) ((const int64_t[]){ __VA_ARGS__ })

static nsa_status make_ints(experiment *x, const int32_t *values, int64_t rows, int64_t columns,
                            nsa_tensor *out) {
  NSAI_TRY(make(x, NSA_I32, columns ? 2 : 1, SHAPE(rows, columns), out));
  return nsai_verify_device_upload(x->device, out->data, values, nsai_verify_tensor_bytes(out));
}

static nsa_status download(const experiment *x, const nsa_tensor *t, nsa_tensor *out) {
  NSAI_TRY(nsai_verify_tensor_alloc(t->dtype, t->ndim, t->shape, out));
  return nsai_verify_device_download(x->device, out->data, t->data, nsai_verify_tensor_bytes(out));
}

/* ---- plans ----------------------------------------------------------------------------------- */

static nsa_status make_plan(const experiment *x, const bench_cached_dtypes *dtypes, int32_t op,
                            int32_t selection, nsa_plan **out) {
  nsa_problem p = NSA_PROBLEM_INIT;
  const bool appends = op == NSA_OP_APPEND;
  p.op = op;
  p.page_size = x->request->page_size > 0 ? x->request->page_size : PAGE;
  p.max_kv_len = x->request->context;
  p.max_seqs = appends ? 1 : QUERIES;
  p.max_q_len = appends ? (int32_t)x->request->context : 1;
  p.max_tokens = appends ? x->request->context : QUERIES;
  p.selection = selection;
  p.max_probe_rows = selection == NSA_SELECT_TOPN && x->g->select_count ? QUERIES : 0;
  bench_cached_set(dtypes, &p);
  return nsa_plan_create(x->ctx, &p, NULL, NULL, out);
}

static nsa_status make_side(experiment *x, const bench_cached_dtypes *dtypes, side *s) {
  const int64_t page = x->request->page_size > 0 ? x->request->page_size : PAGE;
  NSAI_TRY(make_plan(x, dtypes, NSA_OP_APPEND, 0, &s->append));
  NSAI_TRY(make_plan(x, dtypes, NSA_OP_DECODE, NSA_SELECT_TOPN, &s->decode));
  if (s == &x->codes && x->g->select_count)
    NSAI_TRY(make_plan(x, dtypes, NSA_OP_DECODE, NSA_SELECT_BLOCKS, &s->given));
  const nsa_plan *const plans[] = { s->append, s->decode, s->given };
  for (int i = 0; i < 3; i++) {
    nsa_caps caps = NSA_CAPS_INIT;
    if (!plans[i]) continue;
    NSAI_TRY(nsa_plan_caps(plans[i], &caps));
    if (caps.workspace_bytes > x->exec.workspace_bytes)
      x->exec.workspace_bytes = caps.workspace_bytes;
  }
  const nsai_verify_cache_dtypes stored = { dtypes->kv, dtypes->cmp };
  nsai_verify_cache_declare(x->g, stored, nsai_ceil_div(x->request->context, page), page,
                            &s->cache);
  for (int i = 0; i < NSAI_VERIFY_CACHE_TENSORS; i++) {
    nsa_tensor *t = nsai_verify_cache_tensor(&s->cache, i);
    if (t->ndim) NSAI_TRY(alloc(x, t));
  }
  return NSA_OK;
}

static nsa_status make_context(chk_plans *plans, const nsai_verify_case *c, nsa_ctx **out) {
  nsa_options options = NSA_OPTIONS_INIT;
  char *yaml = chk_plans_yaml(plans, c);
  if (!yaml) return nsai_fail_nomem("a configuration", 1024);
  options.yaml_text = yaml;
  options.overrides = chk_plans_opts(plans)->overrides;
  nsa_status status = nsa_create(chk_plans_opts(plans)->config, &options, out);
  free(yaml);
  return status;
}

/* ---- a step's tensors ------------------------------------------------------------------------ */

static nsa_status make_batches(experiment *x) {
  const int64_t page = x->request->page_size > 0 ? x->request->page_size : PAGE;
  const int64_t pages = nsai_ceil_div(x->request->context, page);
  nsa_status status;
  int32_t *table = malloc((size_t)(QUERIES * pages) * sizeof *table);
  x->kv_len = malloc(QUERIES * sizeof *x->kv_len);
  if (!table || !x->kv_len) NSAI_TRY_TO(done, nsai_fail_nomem("page tables", QUERIES));
  for (int64_t s = 0; s < QUERIES; s++) { /* they share the pages of one prompt */
    x->kv_len[s] = (int32_t)(x->request->context - s * (x->request->context / 2) / QUERIES);
    for (int64_t i = 0; i < pages; i++) table[s * pages + i] = (int32_t)i;
  }
  x->append = x->decode = (nsa_batch)NSA_BATCH_INIT;
  x->decode.num_seqs = QUERIES;
  NSAI_TRY_TO(done, make_ints(x, x->kv_len, QUERIES, 0, &x->decode.kv_len));
  NSAI_TRY_TO(done, make_ints(x, table, QUERIES, pages, &x->decode.block_table));
  x->append.num_seqs = 1;
  x->append.kv_len = x->decode.kv_len; /* its first: the whole context */
  x->append.block_table = x->decode.block_table;
  x->append.kv_len.shape[0] = x->append.block_table.shape[0] = 1;
done:
  free(table);
  return status;
}

static nsa_status make_step(experiment *x) {
  const nsai_model *g = x->g;
  const int64_t blocks = nsai_select_block_count(g, x->request->context);
  int32_t rows[QUERIES];
  nsa_io *io = &x->io;
  for (int32_t i = 0; i < QUERIES; i++) rows[i] = i;
  *io = (nsa_io)NSA_IO_INIT;
  NSAI_TRY(make(x, g->dtype, 3, SHAPE(QUERIES, g->heads, g->head_dim_qk), &io->q));
  if (nsai_gate_is_given(g))
    NSAI_TRY(make(x, NSA_F32, 3, SHAPE(QUERIES, g->heads, NSA_BRANCHES), &io->gate.value));
  NSAI_TRY(make(x, g->dtype, 3, SHAPE(QUERIES, g->heads, g->head_dim_v), &io->o));
  if (nsai_compresses_values(g))
    NSAI_TRY(make(x, g->dtype, 3, SHAPE(QUERIES, g->heads, g->head_dim_v), &io->o_branch[NSA_CMP]));
  if (g->by == NSAI_BY_INDEX) {
    NSAI_TRY(make(x, g->dtype, 3, SHAPE(QUERIES, g->index_heads, g->index_dim), &io->index_q));
    NSAI_TRY(make(x, g->dtype, 3, SHAPE(x->request->context, 1, g->index_dim), &x->prompt_keys));
  }
  if (g->select_count) {
    NSAI_TRY(make(x, NSA_I32, 3, SHAPE(QUERIES, g->kv_heads, g->select_count), &io->block_idx));
    NSAI_TRY(make_ints(x, rows, QUERIES, 0, &io->probe_rows));
    NSAI_TRY(make(x, NSA_F32, 3, SHAPE(QUERIES, g->kv_heads, blocks), &io->probe_importance));
  }
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!nsai_reads_pair(g, b)) continue;
    NSAI_TRY(make(x, g->dtype, 3, SHAPE(x->request->context, g->kv_heads, g->head_dim_qk),
                  &x->prompt.k[b]));
    NSAI_TRY(make(x, g->dtype, 3, SHAPE(x->request->context, g->kv_heads, g->head_dim_v),
                  &x->prompt.v[b]));
  }
  return NSA_OK;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

typedef enum inputs { RANDOM, CORRELATED, OUTLIERS, INPUTS } inputs;
static const char *const input_names[INPUTS] = { "random", "correlated", "outliers" };

static void fill_queries(const nsai_verify_inputs *in, int branch, const nsa_tensor *t) {
  (void)branch;
  nsai_verify_fill_queries(in, t);
}

static void fill_index_q(const nsai_verify_inputs *in, int branch, const nsa_tensor *t) {
  (void)branch;
  nsai_verify_fill_index_q(in, t);
}

static void fill_k_idx(const nsai_verify_inputs *in, int branch, const nsa_tensor *t) {
  (void)branch;
  nsai_verify_fill_k_idx(in, t);
}

static void add_outliers(const nsa_tensor *t) {
  for (int64_t row = 0; row < t->shape[0] * t->shape[1]; row++)
    for (int64_t i = 0; i < CHANNELS; i++) {
      const int64_t at = row * t->shape[2] + i * (t->shape[2] / CHANNELS);
      nsai_verify_store(t, at, nsai_verify_load(t, at) + OUTLIER);
    }
}

static void fill_outliers(const nsai_verify_inputs *in, int branch, const nsa_tensor *t) {
  nsai_verify_fill_keys(in, branch, t);
  add_outliers(t);
}

static void fill_index_outliers(const nsai_verify_inputs *in, int branch, const nsa_tensor *t) {
  fill_k_idx(in, branch, t);
  add_outliers(t);
}

/* Gates that give every branch the same weight. */
static void fill_gates(const nsai_verify_inputs *in, int branch, const nsa_tensor *t) {
  (void)branch;
  for (int64_t i = 0; i < t->shape[0] * t->stride[0]; i++)
    nsai_verify_store(t, i, in->model->gate == NSAI_GATE_LOGITS ? 0 : 0.5f);
}

static nsa_status fill(const experiment *x, const nsai_verify_inputs *in, int branch,
                       void (*fn)(const nsai_verify_inputs *, int, const nsa_tensor *),
                       const nsa_tensor *t) {
  nsa_tensor host;
  NSAI_TRY(nsai_verify_tensor_alloc(t->dtype, t->ndim, t->shape, &host));
  fn(in, branch, &host);
  nsa_status status =
      nsai_verify_device_upload(x->device, t->data, host.data, nsai_verify_tensor_bytes(t));
  free(host.data);
  return status;
}

static nsa_status fill_all(const experiment *x, inputs kind) {
  const nsai_verify_inputs in = { x->g,
                                  kind == CORRELATED ? NSAI_VERIFY_FILL_CORRELATED
                                                     : NSAI_VERIFY_FILL_RANDOM,
                                  x->request->c->seed, x->threads };
  NSAI_TRY(fill(x, &in, 0, fill_queries, &x->io.q));
  if (nsai_gate_is_given(x->g)) NSAI_TRY(fill(x, &in, 0, fill_gates, &x->io.gate.value));
  if (x->prompt_keys.data) {
    NSAI_TRY(fill(x, &in, 0, fill_index_q, &x->io.index_q));
    NSAI_TRY(fill(x, &in, 0, kind == OUTLIERS ? fill_index_outliers : fill_k_idx, &x->prompt_keys));
  }
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!nsai_reads_pair(x->g, b)) continue;
    NSAI_TRY(
        fill(x, &in, b, kind == OUTLIERS ? fill_outliers : nsai_verify_fill_keys, &x->prompt.k[b]));
    NSAI_TRY(fill(x, &in, b, nsai_verify_fill_values, &x->prompt.v[b]));
  }
  return NSA_OK;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static nsa_status append(const experiment *x, const side *s) {
  nsa_io io = NSA_IO_INIT;
  io.kv = s->cache.kv;
  io.k_norm = s->cache.k_norm;
  io.k_idx = s->cache.k_idx;
  io.new_kv = x->prompt;
  io.new_k_idx = x->prompt_keys;
  return nsa_kv_append(s->append, &x->exec, &x->append, &io);
}

static nsa_status attend(const experiment *x, const side *s, const nsa_plan *plan, outcome *out) {
  nsa_io io = x->io;
  io.kv = s->cache.kv;
  io.k_norm = s->cache.k_norm;
  io.k_idx = s->cache.k_idx;
  if (plan == s->given) io.probe_rows = io.probe_importance = (nsa_tensor){ 0 };
  NSAI_TRY(nsa_decode(plan, &x->exec, &x->decode, &io));
  NSAI_TRY(nsai_verify_device_wait(x->device, NULL));
  NSAI_TRY(download(x, &io.o, &out->o));
  if (io.o_branch[NSA_CMP].data) NSAI_TRY(download(x, &io.o_branch[NSA_CMP], &out->o_cmp));
  if (!x->g->select_count) return NSA_OK;
  NSAI_TRY(download(x, &io.block_idx, &out->idx));
  return io.probe_importance.data ? download(x, &io.probe_importance, &out->importance) : NSA_OK;
}

/* ---- figures --------------------------------------------------------------------------------- */

/* In percent. */
static double relative_error(const nsa_tensor *got, const nsa_tensor *want) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < want->shape[0] * want->stride[0]; i++) {
    const double w = (double)nsai_verify_load(want, i), g = (double)nsai_verify_load(got, i);
    error += (g - w) * (g - w);
    norm += w * w;
  }
  return norm > 0 ? 100 * sqrt(error / norm) : 0;
}

static bool contains(const int32_t *list, int32_t count, int32_t block) {
  for (int32_t i = 0; i < count; i++)
    if (list[i] == block) return true;
  return false;
}

/* Sums over the blocks that `list` chose freely. */
typedef struct chosen {
  double count, foreign, importance; /* foreign: not in the other list */
} chosen;

static void add_row(const nsai_model *g, int32_t last, const int32_t *list, const int32_t *other,
                    const float *importance, chosen *sum) {
  for (int32_t i = 0; i < g->select_count; i++) {
    const int32_t block = list[i];
    if (block < g->select_init || block > last - g->select_local) continue;
    sum->count++;
    sum->foreign += !contains(other, g->select_count, block);
    sum->importance += (double)importance[block];
  }
}

/* Shares in percent: of the free blocks that changed, and of their importance that is lost. */
static void compare_lists(const experiment *x, const outcome *want, const outcome *got,
                          double *changed, double *lost) {
  const nsai_model *g = x->g;
  chosen own = { 0 }, best = { 0 };
  const int64_t blocks = want->importance.shape[2];
  for (int64_t row = 0; row < QUERIES * g->kv_heads; row++) {
    const int32_t last = (x->kv_len[row / g->kv_heads] - 1) / g->select_block;
    const int32_t *lists[] = { (const int32_t *)got->idx.data + row * g->select_count,
                               (const int32_t *)want->idx.data + row * g->select_count };
    const float *importance = (const float *)want->importance.data + row * blocks;
    add_row(g, last, lists[0], lists[1], importance, &own);
    add_row(g, last, lists[1], lists[0], importance, &best);
  }
  *changed = own.count > 0 ? 100 * own.foreign / own.count : 0;
  *lost = best.importance > 0 ? 100 * (1 - own.importance / best.importance) : 0;
}

static nsa_status run_inputs(experiment *x, inputs kind, FILE *out) {
  outcome plain = { 0 }, own = { 0 }, same = { 0 };
  double changed = 0, lost = 0;
  nsa_status status;
  NSAI_TRY_TO(done, fill_all(x, kind));
  NSAI_TRY_TO(done, append(x, &x->plain));
  NSAI_TRY_TO(done, append(x, &x->codes));
  NSAI_TRY_TO(done, attend(x, &x->codes, x->codes.decode, &own));
  NSAI_TRY_TO(done, attend(x, &x->plain, x->plain.decode, &plain)); /* leaves its lists */
  const outcome *on_lists = &own;
  if (x->codes.given) {
    NSAI_TRY_TO(done, attend(x, &x->codes, x->codes.given, &same));
    compare_lists(x, &plain, &own, &changed, &lost);
    on_lists = &same;
  }
  fprintf(out, "%12s %14.2f %8.2f %12.2f %9.2f %8.3f\n", input_names[kind],
          relative_error(&on_lists->o, &plain.o), relative_error(&own.o_cmp, &plain.o_cmp),
          relative_error(&own.o, &plain.o), changed, lost);
done:
  free_outcome(&plain);
  free_outcome(&own);
  free_outcome(&same);
  return status;
}

static nsa_status run(experiment *x, FILE *out) {
  static const bench_cached_dtypes plain = { NSA_NONE, NSA_NONE };
  NSAI_TRY(make_batches(x));
  NSAI_TRY(make_side(x, &plain, &x->plain));
  NSAI_TRY(make_side(x, &x->request->dtypes, &x->codes));
  NSAI_TRY(make_step(x));
  nsa_tensor workspace;
  NSAI_TRY(make(x, NSA_I32, 1, SHAPE(nsai_ceil_div((int64_t)x->exec.workspace_bytes, 4) + 1),
                &workspace));
  x->exec.workspace = workspace.data;
  x->exec.stream = (nsa_stream)x->device->stream;
  fprintf(out, "\nerror in %% of a cache of %lld tokens", (long long)x->request->context);
  bench_cached_describe(&x->request->dtypes, out);
  fprintf(out,
          ", against the model's dtype\n%12s %14s %8s %12s %9s %8s\n%12s %14s %8s %12s %9s %8s\n",
          "", "o", "o", "o", "free", "", "inputs", "same lists", "cmp", "own lists", "changed",
          "lost");
  for (int kind = 0; kind < INPUTS; kind++) NSAI_TRY(run_inputs(x, (inputs)kind, out));
  return NSA_OK;
}

nsa_status bench_cache_error(chk_plans *plans, const bench_cache_error_request *request,
                             FILE *out) {
  experiment x = { .request = request,
                   .device = chk_plans_device(plans),
                   .g = &request->c->model,
                   .threads = chk_plans_opts(plans)->threads,
                   .exec = NSA_EXEC_INIT };
  nsa_status status;
  NSAI_TRY_TO(done, make_context(plans, request->c, &x.ctx));
  NSAI_TRY_TO(done, run(&x, out));
done:
  nsai_verify_device_wait(x.device, NULL);
  for (int i = 0; i < 2; i++) {
    side *s = i ? &x.codes : &x.plain;
    nsa_plan_destroy(s->append);
    nsa_plan_destroy(s->decode);
    nsa_plan_destroy(s->given);
  }
  nsa_destroy(x.ctx);
  for (int i = 0; i < x.owned_count; i++) nsai_verify_device_free(x.device, x.owned[i]);
  free(x.kv_len);
  return status;
}

#define MOST_CONTEXT 65536

nsa_status bench_cache_error_longest(chk_plans *plans, bench_cache_error_request *request,
                                     const int64_t *contexts, int count, FILE *out) {
  if (request->dtypes.kv != NSA_E4M3 && request->dtypes.cmp != NSA_E4M3) return NSA_OK;
  request->context = 0;
  for (int i = 0; i < count; i++)
    if (contexts[i] > request->context) request->context = contexts[i];
  if (request->context > MOST_CONTEXT) request->context = MOST_CONTEXT;
  return bench_cache_error(plans, request, out);
}
