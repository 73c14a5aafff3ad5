/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the kernels over a cache are given.
 */
#include "run/cached.h"

/* Tokens that no sequence has more of: the plan's, and those that a row of the table has pages for. How many
 * pages a list has is known on the device alone, where find_room() asks. */
static int longest_sequence(const nsai_run *run) {
  const nsai_problem *p = &run->plan->problem;
  const nsa_batch *b = run->batch;
  if (!p->page_size || nsai_present(&b->page_indptr)) return (int)p->max_kv_len;
  int64_t pages = b->block_table.shape[1], all = (p->max_kv_len + p->page_size - 1) / p->page_size;
  return (int)(pages < all ? pages * p->page_size : p->max_kv_len);
}

NsaiCacheBatch nsai_cache_batch(const nsai_run *run) {
  const nsa_batch *b = run->batch;
  bool lists = nsai_present(&b->page_indptr);
  const nsa_tensor *pages = lists ? &b->page_indices : &b->block_table;
  return (NsaiCacheBatch){ .cu_q = b->cu_q.data,
                           .kv_len = b->kv_len.data,
                           .pages = pages->data,
                           .page_starts = lists ? b->page_indptr.data : NULL,
                           .slots = b->slots.data,
                           .page_list_stride = lists ? 0 : pages->stride[0],
                           .num_seqs = b->num_seqs,
                           .q_tokens = (int)run->sizes.tokens,
                           .q_each = (int)(run->sizes.tokens / b->num_seqs),
                           .max_kv_len = longest_sequence(run),
                           .page_size = (int)run->plan->problem.page_size };
}

NsaiCacheTensor nsai_cache_tensor(const nsa_tensor *t) {
  return (NsaiCacheTensor){ t->data, t->stride[0], t->stride[1], t->stride[2] };
}

NsaiCachePair nsai_cache_pair(const nsai_run *run, const nsa_kv *kv, int branch) {
  const nsai_problem *p = &run->plan->problem;
  int source = p->model.per_branch ? branch : 0;
  NsaiCachePair pair = { nsai_cache_tensor(&kv->k[source]), nsai_cache_tensor(&kv->v[source]), 0,
                         0 };
  if (p->window_ring && branch == NSA_WIN) pair.ring = (int)kv->k[source].shape[1];
  return pair;
}

NsaiCachePair nsai_cache_entries(const nsa_kv *kv) {
  return (NsaiCachePair){ nsai_cache_tensor(&kv->k_cmp), nsai_cache_tensor(&kv->v_cmp), 0, 0 };
}
