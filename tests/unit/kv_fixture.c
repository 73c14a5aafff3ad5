/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "kv_fixture.h"

#include "support/cmocka_all.h"

#include "plan/context.h"
#include "reference/reference.h"

#include <math.h>

#define NOWHERE 0x7ffffff0 /* an id of a page that must not be looked at */

/* Bytes of `count` elements. */
static size_t bytes_of(const nsa_tensor *t, int64_t count) {
  return (size_t)count * (t->dtype == NSA_F32 || t->dtype == NSA_I32 ? 4
                          : t->dtype == NSA_E4M3                     ? 1
                                                                     : 2);
}

static char *element(const nsa_tensor *t, int64_t at) { return (char *)t->data + bytes_of(t, at); }

/* ---- the cache ---- */

/* [rows, tokens, heads, dim], NaN; with `hnd` in memory [rows, heads, tokens, dim]. */
static nsa_tensor tensor_of_heads(kv_fixture *w, bool codes, int64_t rows, int64_t tokens,
                                  int64_t heads, int64_t dim) {
  nsa_tensor t =
      toy_tensor(&w->memory, codes ? NSA_E4M3 : w->model.dtype, 3, rows, tokens * heads, dim);
  t.ndim = 4;
  t.shape[0] = rows;
  t.shape[1] = tokens;
  t.shape[2] = heads;
  t.shape[3] = dim;
  t.stride[0] = tokens * heads * dim;
  t.stride[1] = w->options.hnd ? dim : heads * dim;
  t.stride[2] = w->options.hnd ? tokens * dim : dim;
  t.stride[3] = 1;
  return t;
}

static nsa_tensor cache_tensor(kv_fixture *w, bool codes, int64_t rows, int64_t tokens,
                               int64_t dim) {
  return tensor_of_heads(w, codes, rows, tokens, w->model.kv_heads, dim);
}

static void make_cache(kv_fixture *w) {
  const nsai_model *g = &w->model;
  bool paged = w->options.page_size > 0;
  int64_t rows = paged ? KV_PAGES : KV_SEQS + 1, tokens = paged ? w->options.page_size : KV_MAX_LEN;
  const int64_t entry_rows = w->options.ranks ? KV_ENTRY_PAGES : rows;
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    if (!nsai_reads_pair(g, pair)) continue;
    bool ring = w->options.ring && pair == NSA_WIN;
    int64_t n = ring ? KV_SEQS + 1 : rows, p = ring ? KV_RING : tokens;
    w->cache.k[pair] = cache_tensor(w, w->options.kv_codes, n, p, g->head_dim_qk);
    w->cache.v[pair] = cache_tensor(w, w->options.kv_codes, n, p, g->head_dim_v);
  }
  const bool codes = w->options.cmp_codes;
  if (g->norm_block)
    w->k_norm = cache_tensor(w, false, entry_rows, tokens / g->norm_stride, g->head_dim_qk);
  if (g->by == NSAI_BY_INDEX)
    w->k_idx = tensor_of_heads(w, codes, entry_rows, tokens, 1, g->index_dim);
  if (!nsai_compresses(g)) return;
  w->cache.k_cmp = cache_tensor(w, codes, entry_rows, tokens / g->stride, g->head_dim_qk);
  if (g->keys_only) return;
  w->cache.v_cmp = cache_tensor(w, codes, entry_rows, tokens / g->stride, g->head_dim_v);
}

/* A scale that is no power of two: rounding by it, and by its reciprocal, shows. */
static nsa_tensor make_scale(kv_fixture *w, int number) {
  nsa_tensor t =
      toy_tensor(&w->memory, NSA_F32, 1, w->options.head_scales ? w->model.kv_heads : 1, 0, 0);
  for (int64_t i = 0; i < t.shape[0]; i++)
    toy_floats(&t)[i] = 0.0123f * (float)(1 + number) + 0.0037f * (float)i;
  return t;
}

static void make_scales(kv_fixture *w) {
  w->scales = (nsa_io)NSA_IO_INIT;
  for (int pair = 0; pair < NSA_BRANCHES && w->options.kv_codes; pair++) {
    if (!nsai_reads_pair(&w->model, pair)) continue;
    w->scales.k_scale[pair] = make_scale(w, pair);
    w->scales.v_scale[pair] = make_scale(w, pair + NSA_BRANCHES);
  }
  if (!w->options.cmp_codes) return;
  if (w->model.by == NSAI_BY_INDEX) {
    w->scales.k_idx_scale = toy_tensor(&w->memory, NSA_F32, 1, 1, 0, 0);
    toy_floats(&w->scales.k_idx_scale)[0] = 0.0241f;
    return;
  }
  w->scales.k_cmp_scale = make_scale(w, 2 * NSA_BRANCHES);
  if (w->model.keys_only) return;
  w->scales.v_cmp_scale = make_scale(w, 2 * NSA_BRANCHES + 1);
}

int32_t kv_new_page(kv_fixture *w) {
  if (w->freed_count) return w->freed[--w->freed_count];
  assert_true(w->pages_used < KV_PAGES);
  return w->pages_used++ * 27 % KV_PAGES; /* 27 is odd: every page once */
}

void kv_copy_page(kv_fixture *w, int32_t from, int32_t to) {
  nsa_tensor *all[] = { &w->cache.k[0], &w->cache.v[0], &w->cache.k[1],  &w->cache.v[1],
                        &w->cache.k[2], &w->cache.v[2], &w->cache.k_cmp, &w->cache.v_cmp,
                        &w->k_norm,     &w->k_idx };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]->data)
      memcpy(element(all[i], to * all[i]->stride[0]), element(all[i], from * all[i]->stride[0]),
             bytes_of(all[i], all[i]->stride[0]));
}

/* ---- the fixture ---- */

static nsa_plan *make_plan(const kv_fixture *w, int32_t op, int32_t max_q_len) {
  nsa_problem p = INIT(nsa_problem, .op = op, .page_size = w->options.page_size,
                       .max_seqs = KV_SEQS, .max_tokens = KV_MAX_TOKENS, .max_kv_len = KV_MAX_LEN,
                       .max_q_len = max_q_len, .window_ring = w->options.ring,
                       .selection = op == NSA_OP_DECODE ? w->options.decode_selection : 0,
                       .ranks = w->options.ranks, .unit_tokens = w->options.unit_tokens,
                       .kv_dtype = w->options.kv_codes ? NSA_E4M3 : 0,
                       .cmp_dtype = w->options.cmp_codes ? NSA_E4M3 : 0,
                       .index_lse = w->model.by == NSAI_BY_INDEX && op != NSA_OP_APPEND);
  nsa_plan *plan = machine_plan(w->ctx, &p);
  return plan;
}

const int32_t kv_page_sizes[KV_PAGE_SIZES] = { NSA_NONE, 16, 32, 64, 128 };

const machine_request kv_indexed = {
  .phi = NSAI_PHI_NONE, .gate = NSAI_GATE_NONE, .pool = NSAI_POOL_MAX, .indexed = true
};

int32_t kv_length(const kv_fixture *w, int s) {
  const int32_t *cu = toy_ints(&w->toy.batch.cu_q);
  return cu[s + 1] - cu[s];
}

void kv_init(kv_fixture *w, const machine_request *model, const kv_options *options, int32_t seqs,
             const int32_t *lengths) {
  char yaml[1024];
  memset(w, 0, sizeof *w);
  w->options = *options;
  w->seqs = seqs;
  machine_yaml(model, yaml, sizeof yaml);
  w->ctx = machine_context(yaml, options->model, false);
  w->model = w->ctx->config->model;
  w->append = make_plan(w, NSA_OP_APPEND, options->ring ? KV_CHUNK : 0);
  w->prefill = make_plan(w, NSA_OP_PREFILL, options->ring ? KV_CHUNK : 0);
  w->decode = make_plan(w, NSA_OP_DECODE, KV_STEP);
  w->exec = (nsa_exec)NSA_EXEC_INIT;
  const nsa_plan *const plans[] = { w->append, w->prefill, w->decode };
  for (int i = 0; i < 3; i++) {
    nsa_caps caps = NSA_CAPS_INIT;
    if (!plans[i]) continue;
    machine_expect("nsa_plan_caps", nsa_plan_caps(plans[i], &caps), NSA_OK, NULL);
    if (caps.workspace_bytes > w->exec.workspace_bytes)
      w->exec.workspace_bytes = caps.workspace_bytes;
  }
  w->exec.workspace = aligned_alloc(256, w->exec.workspace_bytes); /* caps.workspace_align */
  assert_non_null(w->exec.workspace);
  toy_init(&w->toy, &w->model, seqs, lengths, lengths);
  for (int s = 0; s < KV_SEQS; s++)
    for (int i = 0; i < KV_MAX_LIST; i++) w->page[s][i] = w->entry_page[s][i] = NOWHERE;
  make_cache(w);
  make_scales(w);
}

/* The compressed keys and values as the cache stores them. */
static nsai_model compress_toy(kv_fixture *w) {
  toy *t = &w->toy;
  nsai_model g = w->model;
  if (!nsai_compresses(&g)) return g;
  int32_t blocks[KV_SEQS];
  for (int s = 0; s < w->seqs; s++)
    blocks[s] = (int32_t)nsai_block_count(&g, toy_ints(&t->batch.cu_q)[s + 1] -
                                                  toy_ints(&t->batch.cu_q)[s]);
  t->batch.cu_cmp = toy_offsets(t, w->seqs, blocks);
  int64_t rows = toy_ints(&t->batch.cu_cmp)[w->seqs];
  t->io.kv.k_cmp = toy_tensor(t, g.dtype, 3, rows, g.kv_heads, g.head_dim_qk);
  if (!g.keys_only) t->io.kv.v_cmp = toy_tensor(t, g.dtype, 3, rows, g.kv_heads, g.head_dim_v);
  machine_expect("compress", nsai_reference_compress(&g, &t->batch, &t->io, 2), NSA_OK, NULL);
  g.phi = NSAI_PHI_EXTERNAL;
  return g;
}

void kv_oracle(kv_fixture *w) {
  toy *t = &w->toy;
  const nsai_model g = compress_toy(w);
  machine_expect("forward", nsai_reference_forward(&g, NSA_SELECT_TOPN, 0, &t->batch, &t->io, 2),
                 NSA_OK, NULL);
  if (g.by == NSAI_BY_INDEX) {
    t->io.index_lse = toy_tensor(t, NSA_F32, 2, t->tokens, g.index_heads, 0);
    machine_expect("index_lse", nsai_reference_index_lse(&g, NULL, &t->batch, &t->io, 2), NSA_OK,
                   NULL);
  }
  w->want = t->io;
}

void kv_free(kv_fixture *w) {
  nsa_plan_destroy(w->append);
  nsa_plan_destroy(w->prefill);
  nsa_plan_destroy(w->decode);
  nsa_destroy(w->ctx);
  free(w->exec.workspace);
  toy_free(&w->toy);
  toy_free(&w->memory);
}

/* ---- a call ---- */

static bool is_padded(const kv_call *c, int s) { return c->at[s] < 0; }

static int32_t kv_len_of(const kv_call *c, int s) {
  return is_padded(c, s) ? 0 : c->at[s] + c->q_len[s];
}

/* Row of the toy's tensors that a padded row takes, too. */
static int64_t source_row(const kv_call *c, int s, int64_t i) {
  return toy_ints(&c->fixture->toy.batch.cu_q)[s] + (is_padded(c, s) ? 0 : c->at[s]) + i;
}

/* The call's rows of one of the toy's tensors, one sequence behind the other. */
static nsa_tensor gather(kv_call *c, const nsa_tensor *all) {
  nsa_tensor out = toy_tensor(&c->memory, all->dtype, all->ndim, c->tokens, all->shape[1],
                              all->ndim > 2 ? all->shape[2] : 0);
  char *to = out.data;
  size_t bytes = bytes_of(all, all->stride[0]);
  for (int s = 0; s < c->fixture->seqs; s++)
    for (int64_t i = 0; i < c->q_len[s]; i++, to += bytes)
      memcpy(to, (const char *)all->data + source_row(c, s, i) * (int64_t)bytes, bytes);
  return out;
}

/* Gives every sequence the pages that its tokens need. */
static void take_pages(kv_call *c) {
  kv_fixture *w = c->fixture;
  for (int s = 0; s < w->seqs; s++)
    while (w->page_count[s] * w->options.page_size < kv_len_of(c, s)) {
      if (w->options.ranks) /* 19 is no factor of it: every page once */
        w->entry_page[s][w->page_count[s]] = w->entry_pages_used++ * 19 % KV_ENTRY_PAGES;
      assert_true(w->entry_pages_used <= KV_ENTRY_PAGES);
      w->page[s][w->page_count[s]++] = kv_new_page(w);
    }
}

/* Tokens before a sequence's new ones that each rank must have. */
static int32_t kept_tokens(const kv_fixture *w) {
  const nsai_model *g = &w->model;
  int32_t most = w->options.ring ? 0 : g->window;
  if (nsai_phi_runs(g) && g->block > most) most = g->block;
  if (g->norm_block > most) most = g->norm_block;
  return most ? most - 1 : 0;
}

static void poison_page(kv_fixture *w, int32_t page) {
  for (int i = 0; i < 2 * NSA_BRANCHES; i++) {
    const nsa_tensor *t = i % 2 ? &w->cache.v[i / 2] : &w->cache.k[i / 2];
    if (t->data && !(w->options.ring && i / 2 == NSA_WIN))
      memset(element(t, page * t->stride[0]), 0xff, bytes_of(t, t->stride[0]));
  }
}

/* Gives back the pages of other ranks' units which the call does not need, before those that it needs are
 * taken. */
static void free_pages(kv_call *c) {
  kv_fixture *w = c->fixture;
  const int32_t size = w->options.page_size;
  for (int s = 0; s < w->seqs && w->options.ranks; s++)
    for (int32_t i = 0; i < w->page_count[s] && !is_padded(c, s); i++) {
      const bool own = i * size / w->options.unit_tokens % w->options.ranks == w->options.rank;
      if (own || w->page[s][i] < 0 || (i + 1) * size > c->at[s] - kept_tokens(w)) continue;
      poison_page(w, w->page[s][i]);
      w->freed[w->freed_count++] = w->page[s][i];
      w->page[s][i] = -1;
    }
}

static void make_lists(kv_call *c) {
  kv_fixture *w = c->fixture;
  nsa_batch *b = &c->batch;
  free_pages(c);
  take_pages(c);
  if (w->options.ranks) {
    b->entry_table = toy_tensor(&c->memory, NSA_I32, 2, w->seqs, KV_MAX_LIST, 0);
    memcpy(b->entry_table.data, w->entry_page, (size_t)w->seqs * sizeof w->entry_page[0]);
  }
  if (!w->options.lists) {
    b->block_table = toy_tensor(&c->memory, NSA_I32, 2, w->seqs, KV_MAX_LIST, 0);
    memcpy(b->block_table.data, w->page, (size_t)w->seqs * sizeof w->page[0]);
    return;
  }
  b->page_indptr = toy_offsets(&c->memory, w->seqs, w->page_count);
  b->page_indices = toy_tensor(&c->memory, NSA_I32, 1, toy_ints(&b->page_indptr)[w->seqs], 0, 0);
  for (int s = 0; s < w->seqs; s++)
    memcpy(toy_ints(&b->page_indices) + toy_ints(&b->page_indptr)[s], w->page[s],
           (size_t)w->page_count[s] * 4);
}

static void make_batch(kv_call *c) {
  kv_fixture *w = c->fixture;
  nsa_batch *b = &c->batch;
  bool uniform = true;
  *b = (nsa_batch)NSA_BATCH_INIT;
  b->num_seqs = w->seqs;
  b->kv_len = toy_tensor(&c->memory, NSA_I32, 1, w->seqs, 0, 0);
  for (int s = 0; s < w->seqs; s++) {
    toy_ints(&b->kv_len)[s] = kv_len_of(c, s);
    uniform = uniform && c->q_len[s] == c->q_len[0];
  }
  if (!uniform) b->cu_q = toy_offsets(&c->memory, w->seqs, c->q_len);
  if (w->options.page_size > 0) make_lists(c);
  if (!w->options.slots) return;
  b->slots = toy_tensor(&c->memory, NSA_I32, 1, w->seqs, 0, 0);
  for (int s = 0; s < w->seqs; s++) toy_ints(&b->slots)[s] = KV_SEQS - s;
}

void kv_call_init(kv_call *c, kv_fixture *w, const int32_t *q_len, const int32_t *at) {
  memset(c, 0, sizeof *c);
  c->fixture = w;
  for (int s = 0; s < w->seqs; s++) {
    c->q_len[s] = q_len[s];
    c->at[s] = at[s];
    c->tokens += q_len[s];
  }
  c->memory.model = w->model;
  make_batch(c);
  c->io = w->scales;
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    if (!nsai_reads_pair(&w->model, pair)) continue;
    c->io.new_kv.k[pair] = gather(c, &w->toy.io.kv.k[pair]);
    c->io.new_kv.v[pair] = gather(c, &w->toy.io.kv.v[pair]);
  }
  c->io.q = gather(c, &w->toy.io.q);
  if (w->k_idx.data) {
    c->io.index_q = gather(c, &w->toy.io.index_q);
    c->io.new_k_idx = gather(c, &w->toy.io.k_idx);
    c->io.k_idx = w->k_idx;
    c->io.index_lse = toy_tensor(&c->memory, NSA_F32, 2, c->tokens, w->model.index_heads, 0);
  }
  if (w->toy.io.gate.value.data) c->io.gate.value = gather(c, &w->toy.io.gate.value);
  c->io.kv = w->cache;
  c->io.k_norm = w->k_norm;
  c->io.phi = w->toy.io.phi;
  toy_outputs(&c->memory, &c->io, c->tokens);
  if (!w->model.select_count) c->io.o_branch[1] = c->io.lse[1] = (nsa_tensor){ 0 };
  if (!w->model.window) c->io.o_branch[2] = c->io.lse[2] = (nsa_tensor){ 0 };
}

void kv_call_free(kv_call *c) { toy_free(&c->memory); }

void kv_append(kv_call *c) {
  kv_fixture *w = c->fixture;
  machine_expect("append", nsa_kv_append(w->append, &w->exec, &c->batch, &c->io), NSA_OK, NULL);
}

void kv_attend(kv_call *c, bool decode) {
  kv_fixture *w = c->fixture;
  machine_expect("attend",
                 decode ? nsa_decode(w->decode, &w->exec, &c->batch, &c->io)
                        : nsa_prefill(w->prefill, &w->exec, &c->batch, &c->io),
                 NSA_OK, NULL);
}

/* ---- comparing ---- */

static void compare_row(const char *what, const nsa_tensor *got, int64_t row,
                        const nsa_tensor *want, int64_t want_row) {
  if (!got->data) return; /* of a branch that is off */
  assert_true(got->stride[0] == want->stride[0]);
  if (memcmp(element(got, row * got->stride[0]), element(want, want_row * want->stride[0]),
             bytes_of(got, got->stride[0])))
    fail_msg("%s: row %d, which is row %d of all, differs", what, (int)row, (int)want_row);
}

/* Keys in codes have one rounding less than the packed ones. */
static void compare_sums(const char *what, const nsa_tensor *got, int64_t row,
                         const nsa_tensor *want, int64_t want_row) {
  for (int64_t e = 0; e < got->stride[0]; e++) {
    const float x = toy_floats(got)[row * got->stride[0] + e];
    const float y = toy_floats(want)[want_row * got->stride[0] + e];
    if (!(x - y <= 1e-5f && y - x <= 1e-5f))
      fail_msg("%s: index_lse of row %d is %g, expected %g", what, (int)row, (double)x, (double)y);
  }
}

static void expect_empty(const char *what, const nsa_tensor *t, int64_t row, double value) {
  for (int64_t e = 0; e < t->stride[0]; e++) {
    int64_t at = row * t->stride[0] + e;
    double got = t->dtype == NSA_I32 ? toy_ints(t)[at] : (double)toy_floats(t)[at];
    if (got != value) fail_msg("%s: row %d is not empty", what, (int)row);
  }
}

void kv_compare(const kv_call *c, const char *what) {
  const nsa_io *got = &c->io, *want = &c->fixture->want;
  int64_t row = 0;
  for (int s = 0; s < c->fixture->seqs; s++)
    for (int64_t i = 0; i < c->q_len[s]; i++, row++) {
      if (is_padded(c, s)) {
        expect_empty(what, &got->o, row, 0);
        expect_empty(what, &got->block_idx, row, -1);
        if (got->index_lse.data) expect_empty(what, &got->index_lse, row, -INFINITY);
        for (int b = 0; b < NSA_BRANCHES; b++)
          if (got->lse[b].data) expect_empty(what, &got->lse[b], row, -INFINITY);
        continue;
      }
      int64_t at = source_row(c, s, i);
      compare_row(what, &got->block_idx, row, &want->block_idx, at);
      if (got->index_lse.data) compare_sums(what, &got->index_lse, row, &want->index_lse, at);
      for (int b = 0; b < NSA_BRANCHES; b++) {
        compare_row(what, &got->lse[b], row, &want->lse[b], at);
        compare_row(what, &got->o_branch[b], row, &want->o_branch[b], at);
      }
      compare_row(what, &got->o, row, &want->o, at);
    }
}

void kv_step(kv_fixture *w, const int32_t *q_len, bool decode) {
  char what[64];
  kv_call c;
  kv_call_init(&c, w, q_len, w->len);
  kv_append(&c);
  kv_attend(&c, decode);
  snprintf(what, sizeof what, "%s to %d with pages of %d", decode ? "decode" : "prefill",
           w->len[0] + q_len[0], w->options.page_size);
  kv_compare(&c, what);
  for (int s = 0; s < w->seqs; s++) w->len[s] += q_len[s];
  kv_call_free(&c);
}
