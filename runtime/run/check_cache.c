/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The checks of a cache, and the bytes of a page. What the host can see is checked on every device,
 * the values of the batch's arrays where it may look at them (check_values.h).
 */
#include "run/check_cache.h"

#include "base/math.h"
#include "plan/context.h"
#include "ranks/shard.h"
#include "run/check_index.h"
#include "run/check_ranks.h"
#include "run/check_scales.h"
#include "run/check_tensor.h"
#include "run/check_values.h"

#include <nsa/kv_cache.h>
#include <stdio.h>

/* A batch over a cache, and what its arrays are held against. */
typedef struct cached {
  const nsai_check *check;
  const nsa_batch *batch;
  int64_t tokens; /* rows of q, or new tokens */
  int64_t pages;  /* of the cache's tensors, or their rows; NSAI_ANY: none lies in either */
  int64_t
      entry_pages; /* over ranks: of entries, coarse keys and index keys; `pages` has raw tokens alone */
  int64_t page_size; /* or the capacity of a row; NSAI_ANY as above */
  int64_t rings;     /* rows of the window's ring; NSAI_ANY: none */
  int64_t ring_size; /* tokens of each */
} cached;

static cached cached_begin(const nsai_check *check, const nsa_batch *batch) {
  int32_t page_size = check->problem->page_size;
  return (cached){ .check = check,
                   .batch = batch,
                   .pages = NSAI_ANY,
                   .entry_pages = NSAI_ANY,
                   .page_size = page_size ? page_size : NSAI_ANY,
                   .rings = NSAI_ANY,
                   .ring_size = NSAI_ANY };
}

/* ---- tensors of the cache ---- */

/* Fewest tokens of a ring: a query must find its window when the new tokens behind it have been
 * written. */
static int64_t least_ring(const nsai_problem *p) {
  int64_t seen = (int64_t)p->model.window + p->max_q_len - 1;
  return seen < p->max_kv_len ? seen : p->max_kv_len;
}

/* Entries, or coarse keys, of a row without pages. */
static int64_t row_entries(const nsai_problem *p, int32_t stride) {
  return (p->max_kv_len + stride - 1) / stride;
}

static nsa_status check_rows_length(const nsa_tensor *t, const char *name, int64_t least,
                                    const char *why) {
  if (t->shape[1] >= least) return NSA_OK;
  return nsai_fail(NSA_E_ARG, "%s has shape[1] = %lld, expected at least %lld: %s", name,
                   (long long)t->shape[1], (long long)least, why);
}

/* What of a cache's shape is mistaken most: heads before tokens, and another size of pages.
 * `pages`: what its rows are; NULL: it does not lie in pages. */
static nsa_status check_middle(const cached *c, const nsa_tensor *t, const nsai_tensor_spec *e,
                               const char *pages) {
  int64_t rows = e->shape[1], heads = e->shape[2];
  if (!nsai_present(t) || c->check->level == NSAI_CHECK_OFF || t->ndim != 4) return NSA_OK;
  bool fits = rows == NSAI_ANY || t->shape[1] == rows;
  if (t->shape[1] == heads && t->shape[2] != heads && (rows == NSAI_ANY || t->shape[2] == rows))
    return nsai_fail(
        NSA_E_ARG,
        "%s has shape[1] = %lld, which are its heads: where they lie before the tokens "
        "(HND), exchange the two middle dimensions and their strides",
        e->name, (long long)heads);
  if (fits || !pages) return NSA_OK;
  return nsai_fail(NSA_E_ARG, "%s has shape[1] = %lld, expected %lld: %s", e->name,
                   (long long)t->shape[1], (long long)rows, pages);
}

/* A tensor whose dtype is not what the plan says: codes for values, or values for codes. */
static nsa_status check_codes(const nsa_tensor *t, const nsai_tensor_spec *e, const char *field) {
  bool codes = e->types == NSAI_DTYPE_E4M3;
  if (!nsai_present(t) || (t->dtype == NSA_E4M3) == codes) return NSA_OK;
  return nsai_fail(
      NSA_E_ARG,
      "%s has %s, but the plan's problem.%s is %s: give such a tensor, or make the plan "
      "for the other dtype",
      e->name, codes ? "not dtype e4m3" : "dtype e4m3", field,
      codes ? "NSA_E4M3" : "the model's dtype");
}

/* A tensor of the cache, raw or with entries; an append writes it. */
static nsa_status check_cache_tensor(const cached *c, const nsa_tensor *t,
                                     const nsai_tensor_spec *e, const char *pages, bool entries) {
  NSAI_TRY(check_codes(t, e, entries ? "cmp_dtype" : "kv_dtype"));
  NSAI_TRY(check_middle(c, t, e, c->check->problem->page_size ? pages : NULL));
  NSAI_TRY(nsai_check_tensor(c->check, t, e));
  return c->check->problem->op == NSA_OP_APPEND ? nsai_check_tensor_memory(c->check, t, e->name)
                                                : NSA_OK;
}

/* The type of a part of the cache. */
static int types_of(int32_t dtype) {
  return dtype == NSA_E4M3 ? NSAI_DTYPE_E4M3 : NSAI_DTYPE_MODEL;
}

/* K or V of a pair, in pages or rows. */
static nsa_status check_raw(cached *c, const nsa_tensor *t, const char *name, int32_t dim) {
  const nsai_problem *p = c->check->problem;
  nsai_tensor_spec e = {
    name, 4, { c->pages, c->page_size, p->model.kv_heads, dim }, types_of(p->kv_dtype)
  };
  NSAI_TRY(check_cache_tensor(c, t, &e, "the tokens of a page, problem.page_size", false));
  c->pages = t->shape[0];
  c->page_size = t->shape[1];
  if (p->page_size) return NSA_OK;
  return check_rows_length(t, name, p->max_kv_len, "a row holds problem.max_kv_len tokens");
}

/* The same of the window's pair, in rings. */
static nsa_status check_ring(cached *c, const nsa_tensor *t, const char *name, int32_t dim) {
  const nsai_problem *p = c->check->problem;
  nsai_tensor_spec e = {
    name, 4, { c->rings, c->ring_size, p->model.kv_heads, dim }, types_of(p->kv_dtype)
  };
  NSAI_TRY(check_cache_tensor(c, t, &e, NULL, false));
  c->rings = t->shape[0];
  c->ring_size = t->shape[1]; /* K and V turn at the same token */
  return check_rows_length(
      t, name, least_ring(p),
      "a ring holds the window and the problem.max_q_len - 1 tokens behind it");
}

/* The number of pages of what is kept beside raw tokens: the same pages, but over ranks. */
static int64_t *entry_pages(cached *c) {
  return nsai_problem_divides_cache(c->check->problem) ? &c->entry_pages : &c->pages;
}

/* Compressed K or V, under the pages of the raw ones. */
static nsa_status check_entries(cached *c, const nsa_tensor *t, const char *side, int32_t dim) {
  const nsai_problem *p = c->check->problem;
  char name[24];
  snprintf(name, sizeof name, "io.kv.%s_cmp", side);
  int64_t entries = p->page_size ? p->page_size / p->model.stride : NSAI_ANY;
  nsai_tensor_spec e = {
    name, 4, { *entry_pages(c), entries, p->model.kv_heads, dim }, types_of(p->cmp_dtype)
  };
  NSAI_TRY(check_cache_tensor(c, t, &e,
                              "the entries of a page, problem.page_size / model.compress.stride",
                              true));
  *entry_pages(c) = t->shape[0];
  if (p->page_size) return NSA_OK;
  return check_rows_length(t, name, row_entries(p, p->model.stride),
                           "a row holds an entry for each stride of problem.max_kv_len");
}

/* The coarse keys, under the same pages. */
static nsa_status check_norms(cached *c, const nsa_tensor *t) {
  static const char name[] = "io.k_norm";
  const nsai_problem *p = c->check->problem;
  const nsai_model *m = &p->model;
  if (!m->norm_block) {
    if (!nsai_present(t)) return NSA_OK;
    return nsai_fail(NSA_E_ARG, "%s is given, but the model has no select.normalizer: leave it out",
                     name);
  }
  const int64_t rows = p->page_size ? p->page_size / m->norm_stride : NSAI_ANY;
  nsai_tensor_spec e = {
    name, 4, { *entry_pages(c), rows, m->kv_heads, m->head_dim_qk }, NSAI_DTYPE_MODEL
  };
  NSAI_TRY(check_middle(
      c, t, &e,
      p->page_size ? "the coarse keys of a page, problem.page_size / model.select.normalizer.stride"
                   : NULL));
  NSAI_TRY(nsai_check_tensor(c->check, t, &e));
  if (p->op == NSA_OP_APPEND) NSAI_TRY(nsai_check_tensor_memory(c->check, t, name));
  *entry_pages(c) = t->shape[0];
  if (p->page_size) return NSA_OK;
  return check_rows_length(t, name, row_entries(p, m->norm_stride),
                           "a row holds a coarse key for each stride of problem.max_kv_len");
}

/* The index keys, under the pages of the raw ones: one of each token. A call that neither writes them
 * nor ranks by them needs none. */
static nsa_status check_index_keys(cached *c, const nsa_io *io) {
  static const char name[] = "io.k_idx";
  const nsa_tensor *t = &io->k_idx;
  const nsai_problem *p = c->check->problem;
  const bool needed = p->op == NSA_OP_APPEND || nsai_check_ranks(c->check, io);
  if (p->model.by != NSAI_BY_INDEX || (!needed && !nsai_present(t))) return NSA_OK;
  nsai_tensor_spec e = {
    name, 4, { *entry_pages(c), c->page_size, 1, p->model.index_dim }, types_of(p->cmp_dtype)
  };
  NSAI_TRY(check_cache_tensor(c, t, &e, "the tokens of a page, problem.page_size", true));
  *entry_pages(c) = t->shape[0];
  return NSA_OK;
}

static nsa_status check_pair(cached *c, const nsa_kv *kv, int pair) {
  const nsai_model *m = &c->check->problem->model;
  bool ring = c->check->problem->window_ring && pair == NSA_WIN;
  nsa_status (*check)(cached *, const nsa_tensor *, const char *, int32_t) =
      ring ? check_ring : check_raw;
  char names[2][24];
  for (int i = 0; i < 2; i++) snprintf(names[i], sizeof names[i], "io.kv.%c[%d]", "kv"[i], pair);
  NSAI_TRY(check(c, &kv->k[pair], names[0], m->head_dim_qk));
  return check(c, &kv->v[pair], names[1], m->head_dim_v);
}

static nsa_status check_cache(cached *c, const nsa_io *io, bool entries) {
  const nsai_model *m = &c->check->problem->model;
  const nsa_kv *kv = &io->kv;
  for (int pair = 0; pair < NSA_BRANCHES; pair++)
    if (nsai_reads_pair(m, pair)) NSAI_TRY(check_pair(c, kv, pair));
  NSAI_TRY(check_norms(c, &io->k_norm));
  NSAI_TRY(check_index_keys(c, io));
  if (!nsai_compresses(m)) NSAI_TRY(nsai_check_no_entries(m, &kv->k_cmp, false, "io.kv.k_cmp"));
  if (!nsai_compresses(m)) return nsai_check_no_entries(m, &kv->v_cmp, true, "io.kv.v_cmp");
  if (!entries) return NSA_OK;
  NSAI_TRY(check_entries(c, &kv->k_cmp, "k", m->head_dim_qk));
  if (m->keys_only) return nsai_check_no_entries(m, &kv->v_cmp, true, "io.kv.v_cmp");
  return check_entries(c, &kv->v_cmp, "v", m->head_dim_v);
}

/* ---- the batch, as the host sees it ---- */

static nsa_status refuse(const nsa_tensor *t, const char *name, const char *why) {
  if (!nsai_present(t)) return NSA_OK;
  return nsai_fail(NSA_E_ARG, "batch.%s is given, but %s: leave it out", name, why);
}

/* The tables of a cache over ranks. A call that touches no entries may still be given the batch of one
 * that does. */
static nsa_status check_tables(const cached *c) {
  static const char why[] = "a cache over ranks has tables, batch.block_table and entry_table";
  const nsa_batch *b = c->batch;
  nsai_tensor_spec raw = { "batch.block_table", 2, { b->num_seqs, NSAI_ANY }, NSAI_DTYPE_I32 };
  nsai_tensor_spec entries = { "batch.entry_table", 2, { b->num_seqs, NSAI_ANY }, NSAI_DTYPE_I32 };
  NSAI_TRY(refuse(&b->page_indptr, "page_indptr", why));
  NSAI_TRY(refuse(&b->page_indices, "page_indices", why));
  NSAI_TRY(nsai_check_tensor(c->check, &b->block_table, &raw));
  return c->entry_pages == NSAI_ANY
             ? nsai_check_optional_tensor(c->check, &b->entry_table, &entries)
             : nsai_check_tensor(c->check, &b->entry_table, &entries);
}

/* The pages of the sequences, in one of the two forms. */
static nsa_status check_lists(const cached *c) {
  const nsa_batch *b = c->batch;
  int64_t n = b->num_seqs;
  if (nsai_problem_divides_cache(c->check->problem)) return check_tables(c);
  NSAI_TRY(refuse(&b->entry_table, "entry_table",
                  "entries lie in the pages of raw tokens, unless the plan has problem.ranks"));
  if (!c->check->problem->page_size) {
    static const char why[] = "the plan's cache has no pages (problem.page_size)";
    NSAI_TRY(refuse(&b->block_table, "block_table", why));
    NSAI_TRY(refuse(&b->page_indptr, "page_indptr", why));
    return refuse(&b->page_indices, "page_indices", why);
  }
  nsai_tensor_spec table = { "batch.block_table", 2, { n, NSAI_ANY }, NSAI_DTYPE_I32 };
  nsai_tensor_spec starts = { "batch.page_indptr", 1, { n + 1 }, NSAI_DTYPE_I32 };
  nsai_tensor_spec list = { "batch.page_indices", 1, { NSAI_ANY }, NSAI_DTYPE_I32 };
  if (!nsai_present(&b->page_indptr) && !nsai_present(&b->page_indices))
    return nsai_check_tensor(c->check, &b->block_table, &table);
  NSAI_TRY(refuse(&b->block_table, "block_table", "so are batch.page_indptr or page_indices"));
  NSAI_TRY(nsai_check_tensor(c->check, &b->page_indptr, &starts));
  return nsai_check_tensor(c->check, &b->page_indices, &list);
}

/* Which rows of a cache without pages, and of rings, are whose. */
static nsa_status check_slots(const cached *c) {
  const nsai_problem *p = c->check->problem;
  const nsa_batch *b = c->batch;
  bool rows = !p->page_size && c->pages != NSAI_ANY, rings = c->rings != NSAI_ANY;
  nsai_tensor_spec slots = { "batch.slots", 1, { b->num_seqs }, NSAI_DTYPE_I32 };
  if (p->page_size && !p->window_ring)
    return refuse(&b->slots, "slots", "the plan's cache has pages and no rings");
  if (nsai_present(&b->slots)) return nsai_check_tensor(c->check, &b->slots, &slots);
  if ((rows && c->pages < b->num_seqs) || (rings && c->rings < b->num_seqs))
    return nsai_fail(
        NSA_E_ARG,
        "io.kv has %lld rows for %d sequences: give batch.slots, which says whose they are",
        (long long)(rows && c->pages < b->num_seqs ? c->pages : c->rings), b->num_seqs);
  return NSA_OK;
}

/* New tokens by sequence. */
static nsa_status check_new_tokens(const cached *c) {
  const nsai_problem *p = c->check->problem;
  const nsa_batch *b = c->batch;
  nsai_tensor_spec cu_q = { "batch.cu_q", 1, { (int64_t)b->num_seqs + 1 }, NSAI_DTYPE_I32 };
  if (c->check->shard) return nsai_check_rank_tokens(c->check->shard, c->check->rank, c->tokens);
  if (nsai_present(&b->cu_q)) return nsai_check_tensor(c->check, &b->cu_q, &cu_q);
  if (c->tokens % b->num_seqs)
    return nsai_fail(
        NSA_E_ARG,
        "batch.cu_q is missing, and %lld tokens are not the same number for each of %d "
        "sequences",
        (long long)c->tokens, b->num_seqs);
  if (c->tokens / b->num_seqs > p->max_q_len)
    return nsai_fail(NSA_E_ARG,
                     "every sequence has %lld new tokens, the plan was made for at most %d: raise "
                     "problem.max_q_len",
                     (long long)(c->tokens / b->num_seqs), p->max_q_len);
  return NSA_OK;
}

static nsa_status check_capacities(const cached *c) {
  const nsai_problem *p = c->check->problem;
  if (c->tokens < 0) /* runtime.check_inputs: off */
    return nsai_fail(NSA_E_ARG, "%s has a negative shape[0]",
                     p->op == NSA_OP_APPEND ? "io.new_kv.k" : "io.q");
  if (c->tokens > p->max_tokens)
    return nsai_fail(NSA_E_ARG,
                     "there are %lld new tokens, the plan was made for at most %lld: raise "
                     "problem.max_tokens",
                     (long long)c->tokens, (long long)p->max_tokens);
  if (c->batch->num_seqs > p->max_seqs)
    return nsai_fail(
        NSA_E_ARG, "batch.num_seqs is %d, the plan was made for at most %d: raise problem.max_seqs",
        c->batch->num_seqs, p->max_seqs);
  return NSA_OK;
}

static nsa_status check_batch(const cached *c) {
  const nsa_batch *b = c->batch;
  const char *op = nsai_op_name(c->check->problem->op);
  if (!b) return nsai_fail(NSA_E_ARG, "batch is NULL: %s needs batch.kv_len", op);
  if (b->num_seqs < 1)
    return nsai_fail(NSA_E_ARG, "batch.num_seqs is %d, expected at least 1, or 0 for 1",
                     b->num_seqs);
  NSAI_TRY(refuse(&b->cu_kv, "cu_kv", "batch.kv_len says how long the cache's sequences are"));
  NSAI_TRY(refuse(&b->cu_cmp, "cu_cmp", "the cache's compressed entries lie in its pages"));
  NSAI_TRY(check_capacities(c));
  nsai_tensor_spec kv_len = { "batch.kv_len", 1, { b->num_seqs }, NSAI_DTYPE_I32 };
  NSAI_TRY(nsai_check_tensor(c->check, &b->kv_len, &kv_len));
  NSAI_TRY(check_new_tokens(c));
  NSAI_TRY(check_lists(c));
  NSAI_TRY(check_slots(c));
  if (c->check->problem->op != NSA_OP_APPEND) return NSA_OK; /* only an append writes */
  nsai_tensor_spec mapping = { "batch.slot_mapping", 1, { c->tokens }, NSAI_DTYPE_I64 };
  return nsai_check_optional_tensor(c->check, &b->slot_mapping, &mapping);
}

/* ---- the batch's values: of arrays that the host can read ---- */

/* First new token of a sequence. */
static int64_t first_token(const cached *c, int64_t s) {
  const int32_t *cu_q = c->batch->cu_q.data;
  if (c->check->shard) return c->check->shard->seq_begin[s];
  return cu_q ? cu_q[s] : s * (c->tokens / c->batch->num_seqs);
}

/* A sequence's list of pages. */
typedef struct page_list {
  const char *name, *counts; /* of the array that has the pages, and of that which says how many */
  const int32_t *page;
  int64_t count;
  int64_t pages; /* of the tensors that the list leads to; NSAI_ANY: not known */
} page_list;

static page_list row_of(const nsa_tensor *table, const char *name, int32_t s, int64_t pages) {
  const int32_t *page = table->data;
  /* no data: of padded rows alone, an empty list */
  if (!page) return (page_list){ .name = name, .counts = name, .pages = pages };
  return (page_list){ name, name, page + s * table->stride[0], table->shape[1], pages };
}

/* Of raw tokens, and of everything else except over ranks. */
static page_list list_of(const cached *c, int32_t s) {
  const nsa_batch *b = c->batch;
  const int32_t *starts = b->page_indptr.data, *page = b->page_indices.data;
  if (!starts) return row_of(&b->block_table, "batch.block_table", s, c->pages);
  return (page_list){ "batch.page_indices", "batch.page_indptr", page ? page + starts[s] : NULL,
                      page ? starts[s + 1] - starts[s] : 0, c->pages };
}

/* Whether the list has a page for so many tokens. */
static nsa_status check_page_count(const cached *c, const page_list *list, int32_t s,
                                   int64_t kv_len) {
  const int64_t needed = (kv_len + c->page_size - 1) / c->page_size;
  const bool table = list->name == list->counts;
  if (list->count >= needed) return NSA_OK;
  return nsai_fail(NSA_E_ARG,
                   "%s: sequence %d has %lld pages, its %lld tokens need %lld: %s, or lower "
                   "batch.kv_len[%d]",
                   list->counts, s, (long long)list->count, (long long)kv_len, (long long)needed,
                   table ? "widen the table" : "lengthen its list", s);
}

static nsa_status check_page(const page_list *list, int32_t s, int64_t i) {
  if (list->page[i] >= 0 && (list->pages == NSAI_ANY || list->page[i] < list->pages)) return NSA_OK;
  return nsai_fail(NSA_E_ARG,
                   "%s: page %lld of sequence %d is %d, expected one of io.kv's %lld pages, which "
                   "are numbered from 0",
                   list->name, (long long)i, s, list->page[i], (long long)list->pages);
}

/* All pages of a sequence. */
static nsa_status check_pages(const cached *c, const page_list *list, int32_t s, int64_t kv_len) {
  NSAI_TRY(check_page_count(c, list, s, kv_len));
  for (int64_t i = 0; i * c->page_size < kv_len; i++) NSAI_TRY(check_page(list, s, i));
  return NSA_OK;
}

/* Page i is -1, which over ranks stands for one that this rank need not have: of another rank's unit, and
 * before all tokens that a new one reaches back to. */
static nsa_status check_absent(const cached *c, int32_t s, int64_t i, int64_t kv_len) {
  const nsai_problem *p = c->check->problem;
  const int64_t begin = i * c->page_size, end = nsai_smaller(begin + c->page_size, kv_len);
  const int64_t kept = nsai_problem_kept_tokens(p);
  const int64_t latest = kv_len - (first_token(c, s + 1) - first_token(c, s)) - kept;
  const int64_t owner = begin / p->unit_tokens % p->ranks;
  if (owner == c->check->rank)
    return nsai_fail(NSA_E_ARG,
                     "batch.block_table: page %lld of sequence %d is -1, but its token %lld lies "
                     "in a unit of rank %lld, which is this one: give the page",
                     (long long)i, s, (long long)begin, (long long)owner);
  if (end <= latest) return NSA_OK;
  return nsai_fail(
      NSA_E_ARG,
      "batch.block_table: page %lld of sequence %d is -1, but its token %lld is among the new "
      "ones and the %lld before them, which every rank has: give a page",
      (long long)i, s, (long long)nsai_larger(begin, latest), (long long)kept);
}

static nsa_status check_raw_pages(const cached *c, int32_t s, int64_t kv_len) {
  const page_list list = list_of(c, s);
  if (!nsai_problem_divides_cache(c->check->problem)) return check_pages(c, &list, s, kv_len);
  NSAI_TRY(check_page_count(c, &list, s, kv_len));
  for (int64_t i = 0; i * c->page_size < kv_len; i++)
    NSAI_TRY(list.page[i] == -1 ? check_absent(c, s, i, kv_len) : check_page(&list, s, i));
  return NSA_OK;
}

/* Both tables of a sequence. */
static nsa_status check_lists_of(const cached *c, int32_t s, int64_t kv_len) {
  const page_list entries = row_of(&c->batch->entry_table, "batch.entry_table", s, c->entry_pages);
  NSAI_TRY(check_raw_pages(c, s, kv_len));
  return nsai_present(&c->batch->entry_table) ? check_pages(c, &entries, s, kv_len) : NSA_OK;
}

static nsa_status check_slot(const cached *c, int32_t s) {
  int32_t slot = ((const int32_t *)c->batch->slots.data)[s];
  int64_t rows = c->check->problem->page_size ? NSAI_ANY : c->pages;
  if (slot < 0 || (rows != NSAI_ANY && slot >= rows) || (c->rings != NSAI_ANY && slot >= c->rings))
    return nsai_fail(NSA_E_ARG, "batch.slots[%d] is %d, expected one of io.kv's %lld rows", s, slot,
                     (long long)(rows != NSAI_ANY && slot >= rows ? rows : c->rings));
  return NSA_OK;
}

/* A written token's slot must be where the pages say, since that is where it will be read. */
static nsa_status check_mapping(const cached *c, int32_t s, int64_t token, int64_t position) {
  const nsa_batch *b = c->batch;
  const int32_t *slots = b->slots.data;
  int64_t slot = ((const int64_t *)b->slot_mapping.data)[token];
  if (slot == -1) return NSA_OK;
  if (slot < 0 || position < 0)
    return nsai_fail(NSA_E_ARG, "batch.slot_mapping[%lld] is %lld, expected -1%s", (long long)token,
                     (long long)slot,
                     position < 0 ? ": the token stands before its sequence" : ", or a slot");
  if (c->page_size == NSAI_ANY) return NSA_OK; /* rings alone: what counts is that it is written */
  int64_t page = slots ? slots[s] : s, place = position;
  if (c->check->problem->page_size) {
    page = list_of(c, s).page[position / c->page_size];
    place = position % c->page_size;
  }
  if (slot == page * c->page_size + place) return NSA_OK;
  return nsai_fail(
      NSA_E_ARG,
      "batch.slot_mapping[%lld] is %lld, but position %lld of sequence %d lies at %lld: give that, "
      "or -1 for a token that is not to be written",
      (long long)token, (long long)slot, (long long)position, s,
      (long long)(page * c->page_size + place));
}

static nsa_status check_sequence(const cached *c, int32_t s) {
  const nsai_problem *p = c->check->problem;
  const nsa_batch *b = c->batch;
  int64_t kv_len = ((const int32_t *)b->kv_len.data)[s];
  if (kv_len < 0 || kv_len > p->max_kv_len)
    return nsai_fail(NSA_E_ARG,
                     "batch.kv_len[%d] is %lld, expected 0 to the plan's %lld: raise "
                     "problem.max_kv_len",
                     s, (long long)kv_len, (long long)p->max_kv_len);
  if (p->page_size) NSAI_TRY(check_lists_of(c, s, kv_len));
  if (kv_len && nsai_present(&b->slots)) NSAI_TRY(check_slot(c, s)); /* a padded row has none */
  if (p->op != NSA_OP_APPEND || !nsai_present(&b->slot_mapping)) return NSA_OK;
  int64_t end = first_token(c, s + 1);
  for (int64_t token = first_token(c, s); token < end; token++)
    NSAI_TRY(check_mapping(c, s, token, kv_len - end + token));
  return NSA_OK;
}

static nsa_status check_sequences(const cached *c) {
  const nsai_problem *p = c->check->problem;
  const nsa_batch *b = c->batch;
  nsai_offset_limits q = { "batch.cu_q", c->tokens, p->max_q_len, "max_q_len" };
  nsai_offset_limits pages = { "batch.page_indptr", b->page_indices.shape[0], INT32_MAX, NULL };
  NSAI_TRY(nsai_check_offsets(&b->cu_q, b->num_seqs, &q));
  NSAI_TRY(nsai_check_offsets(&b->page_indptr, b->num_seqs, &pages));
  for (int32_t s = 0; s < b->num_seqs; s++) NSAI_TRY(check_sequence(c, s));
  return NSA_OK;
}

static nsa_status check_values(const cached *c) {
  nsai_batch_values own, *values = c->check->values ? c->check->values : &own;
  cached read = *c;
  nsa_status status = NSA_OK;
  NSAI_TRY(nsai_batch_values_read(c->check, c->batch, values));
  read.batch = values->batch;
  if (values->batch) NSAI_TRY_TO(done, check_sequences(&read));
done:
  if (values == &own) nsai_batch_values_fini(values);
  return status;
}

/* ---- the calls ---- */

nsa_status nsai_check_cached(const nsai_check *check, const nsa_batch *batch, const nsa_io *io,
                             nsai_run_sizes *sizes) {
  cached c = cached_begin(check, batch);
  c.tokens = sizes->tokens;
  NSAI_TRY(check_cache(&c, io, true));
  NSAI_TRY(check_batch(&c));
  sizes->num_seqs = batch->num_seqs;
  sizes->packed = true;
  return check_values(&c);
}

/* Whether an append has something to write. It has not where the model reads the caller's entries alone:
 * none of its tensors says how many new tokens there are then. */
static bool writes_tokens(const nsai_model *m) {
  bool any = m->by == NSAI_BY_INDEX;
  for (int pair = 0; pair < NSA_BRANCHES; pair++) any |= nsai_reads_pair(m, pair);
  return any;
}

/* The new tokens of the pairs that the model reads, and their index keys; fills the number of tokens. */
static nsa_status check_new_kv(cached *c, const nsa_io *io) {
  const nsa_kv *new_kv = &io->new_kv;
  const nsai_model *m = &c->check->problem->model;
  int64_t rows = NSAI_ANY;
  bool any = false;
  char names[2][24];
  if (nsai_present(&new_kv->k_cmp) || nsai_present(&new_kv->v_cmp))
    return nsai_fail(NSA_E_ARG, "io.new_kv.%s is given, but %s: leave it out",
                     nsai_present(&new_kv->k_cmp) ? "k_cmp" : "v_cmp",
                     !nsai_compresses(m) ? "model.compress is none"
                     : m->phi == NSAI_PHI_EXTERNAL
                         ? "with phi external the caller writes the cache's "
                           "compressed entries itself"
                         : "the append makes the compressed entries");
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    if (!nsai_reads_pair(m, pair)) continue;
    for (int i = 0; i < 2; i++)
      snprintf(names[i], sizeof names[i], "io.new_kv.%c[%d]", "kv"[i], pair);
    nsai_tensor_spec k = { names[0], 3, { rows, m->kv_heads, m->head_dim_qk }, NSAI_DTYPE_MODEL };
    NSAI_TRY(nsai_check_tensor(c->check, &new_kv->k[pair], &k));
    rows = new_kv->k[pair].shape[0];
    any = true;
    nsai_tensor_spec v = { names[1], 3, { rows, m->kv_heads, m->head_dim_v }, NSAI_DTYPE_MODEL };
    NSAI_TRY(nsai_check_tensor(c->check, &new_kv->v[pair], &v));
  }
  if (any) c->tokens = rows;
  if (m->by != NSAI_BY_INDEX) return NSA_OK;
  nsai_tensor_spec index = { "io.new_k_idx", 3, { rows, 1, m->index_dim }, NSAI_DTYPE_MODEL };
  return nsai_check_tensor(c->check, &io->new_k_idx, &index);
}

nsa_status nsai_check_append(const nsai_check *check, const nsa_batch *batch, const nsa_io *io,
                             nsai_run_sizes *sizes) {
  const nsai_model *m = &check->problem->model;
  cached c = cached_begin(check, batch);
  *sizes = (nsai_run_sizes){ 0 };
  NSAI_TRY(nsai_check_no_index(check, io));
  NSAI_TRY(check_cache(&c, io, m->phi != NSAI_PHI_EXTERNAL));
  NSAI_TRY(check_new_kv(&c, io));
  NSAI_TRY(nsai_check_phi(check, &io->phi));
  NSAI_TRY(nsai_check_scales(check, io));
  if (!batch || writes_tokens(m)) NSAI_TRY(check_batch(&c));
  sizes->tokens = c.tokens;
  sizes->num_seqs = batch->num_seqs;
  return writes_tokens(m) ? check_values(&c) : NSA_OK;
}

/* Raw K and V of all pairs that lie in pages. */
static int64_t raw_bytes(const nsai_problem *p) {
  const nsai_model *m = &p->model;
  int64_t rows = 0;
  for (int pair = 0; pair < NSA_BRANCHES; pair++)
    if (nsai_reads_pair(m, pair) && !(p->window_ring && pair == NSA_WIN))
      rows += p->page_size ? p->page_size : p->max_kv_len;
  return rows * m->kv_heads * (m->head_dim_qk + m->head_dim_v) *
         nsai_dtype_bytes(p->kv_dtype ? p->kv_dtype : m->dtype);
}

/* Compressed entries, coarse keys and index keys. */
static int64_t entry_bytes(const nsai_problem *p) {
  const nsai_model *m = &p->model;
  const int64_t tokens = p->page_size ? p->page_size : p->max_kv_len;
  const int64_t size = nsai_dtype_bytes(p->cmp_dtype ? p->cmp_dtype : m->dtype);
  const int64_t entry = m->head_dim_qk + (m->keys_only ? 0 : m->head_dim_v);
  const int64_t entries = !nsai_compresses(m) ? 0
                          : p->page_size      ? p->page_size / m->stride
                                              : row_entries(p, m->stride);
  const int64_t norms = !m->norm_block ? 0
                        : p->page_size ? p->page_size / m->norm_stride
                                       : row_entries(p, m->norm_stride);
  return m->kv_heads *
             (entries * entry * size + norms * m->head_dim_qk * nsai_dtype_bytes(m->dtype)) +
         tokens * m->index_dim * size; /* 0 without an index */
}

uint64_t nsai_cache_page_bytes(const nsai_problem *p) {
  return (uint64_t)(raw_bytes(p) + (nsai_problem_divides_cache(p) ? 0 : entry_bytes(p)));
}
