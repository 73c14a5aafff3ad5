/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "plan/ranks_memory.h"

#include "base/math.h"

#include <nsa/backward.h>
#include <stddef.h>

#define WEIGHT_ALIGN 256

/* Whether a forward may need the keys of the index. All ranks bring them or none, whatever each asks
 * its run for. */
static bool needs_index(const nsai_problem *p) {
  if (p->op != NSA_OP_FORWARD || p->model.by != NSAI_BY_INDEX) return false;
  return p->selection == NSA_SELECT_TOPN || p->index_lse;
}

static void size_tensor(const nsai_problem *p, int index, int32_t heads, int32_t dim,
                        nsai_ranks_memory *out) {
  const nsai_model *m = &p->model;
  nsai_ranks_tensor *t = &out->tensor[index];
  t->exists = true;
  t->entries = index == NSAI_RANKS_K_CMP || index == NSAI_RANKS_V_CMP;
  t->heads = heads;
  t->dim = dim;
  /* Begins of pieces are multiples of the stride, but for those of sequences. */
  t->local_rows = t->entries ? p->max_tokens / m->stride + p->max_pieces : p->max_tokens;
  const int64_t rows = t->entries ? p->max_kv_tokens / m->stride + 1 : p->max_kv_tokens;
  t->whole.bytes = (uint64_t)NSAI_PRODUCT(rows, heads, dim, m->dtype == NSA_F32 ? 4 : 2);
  if (p->op != NSA_OP_BACKWARD) return;
  t->sums.bytes = (uint64_t)NSAI_PRODUCT(rows, heads, dim, 4);
  t->received.bytes = (uint64_t)NSAI_PRODUCT(p->ranks - 1, t->local_rows, heads, dim, 4);
}

void nsai_ranks_memory_size(const nsai_problem *p, nsai_ranks_memory *out) {
  const nsai_model *m = &p->model;
  nsai_ranks_weight weights[NSAI_RANKS_MOST_WEIGHTS];
  int64_t bytes = 0;
  *out = (nsai_ranks_memory){ 0 };
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    if (!nsai_reads_pair(m, pair)) continue;
    size_tensor(p, NSAI_RANKS_K + pair, m->kv_heads, m->head_dim_qk, out);
    size_tensor(p, NSAI_RANKS_V + pair, m->kv_heads, m->head_dim_v, out);
  }
  if (m->phi == NSAI_PHI_EXTERNAL) {
    size_tensor(p, NSAI_RANKS_K_CMP, m->kv_heads, m->head_dim_qk, out);
    if (!m->keys_only) size_tensor(p, NSAI_RANKS_V_CMP, m->kv_heads, m->head_dim_v, out);
  }
  if (needs_index(p)) size_tensor(p, NSAI_RANKS_K_IDX, 1, m->index_dim, out);
  out->offsets.bytes = (uint64_t)NSAI_PRODUCT(4, p->max_pieces, sizeof(int32_t));
  if (p->op != NSA_OP_BACKWARD) return;
  nsai_ranks_weights(m, weights, &bytes);
  out->weights.bytes = (uint64_t)bytes;
}

int64_t nsai_ranks_memory_bytes(const nsai_problem *p) {
  nsai_ranks_memory memory;
  int64_t bytes = 0;
  nsai_ranks_memory_size(p, &memory);
  for (int i = 0; i < NSAI_RANKS_TENSORS; i++) {
    const nsai_ranks_tensor *t = &memory.tensor[i];
    bytes = nsai_size_add(bytes, (int64_t)t->whole.bytes);
    bytes = nsai_size_add(bytes, (int64_t)t->sums.bytes);
    bytes = nsai_size_add(bytes, (int64_t)t->received.bytes);
  }
  return bytes;
}

/* ---- a prefill over a cache ---- */

/* Whether the selected branch or the window reads a pair in pages. */
static bool reads_pages(const nsai_problem *p, int pair) {
  return nsai_attends_pair(&p->model, p->model.window && !p->window_ring, pair);
}

void nsai_ranks_pages_size(const nsai_problem *p, nsai_ranks_pages *out) {
  const nsai_model *m = &p->model;
  const int64_t pieces = p->max_pieces, unit_pages = p->unit_tokens / p->page_size;
  *out = (nsai_ranks_pages){ 0 };
  out->columns = nsai_ceil_div(p->max_kv_len, p->page_size);
  out->rank_pages = nsai_ceil_div(nsai_ceil_div(out->columns, unit_pages), p->ranks) * unit_pages;
  for (int i = 0; i < NSAI_RANKS_PAGED; i++) {
    if (!reads_pages(p, i / 2)) continue;
    const int32_t dim = i % 2 ? m->head_dim_v : m->head_dim_qk;
    out->page_bytes[i] = NSAI_PRODUCT(p->page_size, m->kv_heads, dim,
                                      p->kv_dtype           ? 1
                                      : m->dtype == NSA_F32 ? 4
                                                            : 2);
    out->pool[i].bytes =
        (uint64_t)NSAI_PRODUCT(p->ranks, p->max_seqs, out->rank_pages, out->page_bytes[i]);
  }
  out->uploaded.bytes = (uint64_t)NSAI_PRODUCT(3 * pieces + 1, sizeof(int32_t));
  out->tables.bytes = (uint64_t)NSAI_PRODUCT(pieces, 2 * out->columns + 2, sizeof(int32_t));
}

/* ---- weights ---- */

typedef struct weight_list {
  nsai_ranks_weight *out;
  int count;
  int64_t bytes;
} weight_list;

static void add(weight_list *list, size_t tensor, int32_t ndim, int64_t a, int64_t b, int64_t c) {
  list->out[list->count++] = (nsai_ranks_weight){
    .tensor = tensor, .shape = { a, b, c }, .ndim = ndim, .offset = (uint64_t)list->bytes
  };
  list->bytes = nsai_size_add(list->bytes, nsai_round_up(NSAI_PRODUCT(a, b, c, 4), WEIGHT_ALIGN));
}

static void add_phi(weight_list *list, const nsai_model *m, size_t side, int64_t dim) {
  const int64_t g = m->kv_heads, wide = NSAI_PRODUCT(m->block, dim), h = m->phi_hidden;
  add(list, side + offsetof(nsa_phi_side, pe), 3, g, m->block, dim);
  if (m->phi == NSAI_PHI_LINEAR) {
    add(list, side + offsetof(nsa_phi_side, w), 3, g, wide, dim);
    return;
  }
  add(list, side + offsetof(nsa_phi_side, w1), 3, g, wide, h);
  add(list, side + offsetof(nsa_phi_side, b1), 2, 1, g, h);
  add(list, side + offsetof(nsa_phi_side, w2), 3, g, h, dim);
  add(list, side + offsetof(nsa_phi_side, b2), 2, 1, g, dim);
}

static void add_gate(weight_list *list, const nsai_model *m) {
  const size_t gate = offsetof(nsa_grads, d_gate);
  const int64_t c = m->gate_channels, h = m->gate_hidden, out = (int64_t)m->heads * NSA_BRANCHES;
  if (h) {
    add(list, gate + offsetof(nsa_gate, w1), 2, 1, c, h);
    add(list, gate + offsetof(nsa_gate, b1), 1, 1, 1, h);
  }
  add(list, gate + offsetof(nsa_gate, w2), 2, 1, h ? h : c, out);
  add(list, gate + offsetof(nsa_gate, b2), 1, 1, 1, out);
}

int nsai_ranks_weights(const nsai_model *m, nsai_ranks_weight out[NSAI_RANKS_MOST_WEIGHTS],
                       int64_t *bytes) {
  weight_list list = { .out = out };
  if (nsai_phi_has_weights(m)) {
    add_phi(&list, m, offsetof(nsa_grads, d_phi.k), m->head_dim_qk);
    if (!m->keys_only) add_phi(&list, m, offsetof(nsa_grads, d_phi.v), m->head_dim_v);
  }
  if (m->gate == NSAI_GATE_MLP) add_gate(&list, m);
  *bytes = list.bytes;
  return list.count;
}
