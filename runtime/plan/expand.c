/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "plan/expand.h"

#include "base/math.h"
#include "params/kv_cache.h"

/* Tokens of a cache for each new token up to which they are expanded. (H200, a prompt of 64k tokens in
 * equal chunks, all of the cache in e4m3, ms over codes, and expanded: of 2048 tokens, 32, 29.4 and 28.5;
 * of 1024, 64, 31.9 and 31.6, or with correlated inputs 26.7 and 27.0.) */
#define REACH 64

#define MOST_SEQS 65535 /* the y of a grid */

nsai_problem nsai_expanded_problem(const nsai_problem *p) {
  nsai_problem seen = *p;
  seen.kv_dtype = seen.cmp_dtype = 0;
  seen.page_size = 0;
  return seen;
}

int64_t nsai_expand_length(const nsai_problem *p, int branch, int64_t tokens, int64_t longest) {
  if (branch != NSA_WIN || !p->window_ring) return longest;
  const int64_t seen = p->model.window - 1 + nsai_smaller(tokens, p->max_q_len);
  return nsai_round_up(nsai_smaller(seen, longest), NSAI_WINDOW_BOX_ROWS);
}

int64_t nsai_expand_reach(int64_t tokens) { return NSAI_PRODUCT(tokens, REACH); }

int64_t nsai_expand_capacity(const nsai_problem *p, int branch) {
  const nsai_model *m = &p->model;
  const int64_t row = branch == NSAI_INDEX_KEYS
                          ? NSAI_PRODUCT(m->index_dim, 2)
                          : NSAI_PRODUCT(m->kv_heads, m->head_dim_qk + m->head_dim_v, 2);
  const int64_t length = nsai_expand_length(p, branch, p->max_tokens, p->max_kv_len);
  const int64_t all = NSAI_PRODUCT(nsai_smaller(nsai_problem_most_seqs(p), p->max_tokens), length);
  return nsai_smaller(nsai_smaller(all, nsai_expand_reach(p->max_tokens)), p->expand_bytes / row);
}

bool nsai_expand_serves(const nsai_problem *p, int branch, int64_t tokens, int32_t seqs,
                        int64_t longest) {
  const int64_t rows = NSAI_PRODUCT(seqs, nsai_expand_length(p, branch, tokens, longest));
  return seqs <= MOST_SEQS && rows <= nsai_expand_reach(tokens) &&
         rows <= nsai_expand_capacity(p, branch);
}
