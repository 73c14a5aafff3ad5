/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "variants/attend/expanded.h"

#include "base/math.h"

#define THREADS 256
#define MIN_CTAS 4 /* of a multiprocessor; a thread holds four loads */

/* New tokens of a sequence from which on its entries are expanded. A guess: a tile of 8 to 16 query
 * tokens converts the codes of a sequence once, and expanding writes and reads twice as much. */
#define LEAST_TOKENS 17

/* What expanded entries may take of the workspace: those of 16 sequences of 64k tokens, or of one of
 * 1M, with 4 KV heads, 128 columns and stride 16. Where there are more sequences, only those with the
 * most new tokens have theirs expanded. */
#define MOST_BYTES ((int64_t)128 << 20)

#define MOST_SLOTS 65535 /* the y of a grid */

/* Entries of the longest sequence, by their indices. */
static int64_t most_entries(const nsai_problem *p) { return p->max_kv_len / p->model.stride; }

static int64_t slot_bytes(const nsai_problem *p, int64_t dim) {
  return NSAI_PRODUCT(most_entries(p), p->model.kv_heads, dim, 2);
}

static int64_t sequence_bytes(const nsai_problem *p) {
  return slot_bytes(p, p->model.head_dim_qk + p->model.head_dim_v);
}

/* Sequences that a plan has workspace for. */
static int64_t most_slots(const nsai_problem *p) {
  const int64_t most = nsai_smaller(p->max_tokens / LEAST_TOKENS, MOST_SLOTS);
  const int64_t wanted = nsai_smaller(nsai_problem_most_seqs(p), most);
  const int64_t bytes = sequence_bytes(p);
  return bytes ? nsai_smaller(wanted, MOST_BYTES / bytes) : wanted;
}

void nsai_legal_expanded(const nsai_problem *p, nsai_reasons *reasons) {
  if (!nsai_problem_is_cached(p) || !p->cmp_dtype)
    nsai_refuse(reasons,
                "it expands compressed entries of a cache in e4m3, which problem.cmp_dtype "
                "does not ask for");
  else if (sequence_bytes(p) > MOST_BYTES)
    nsai_refuse(reasons,
                "the entries of a sequence of problem.max_kv_len (%lld) take more than %lld MiB of "
                "workspace in 16 bits",
                (long long)p->max_kv_len, (long long)(MOST_BYTES >> 20));
}

void nsai_expand_specify(const nsai_problem *p, nsai_kernel_spec *expand,
                         nsai_kernel_spec *reader) {
  const nsai_model *m = &p->model;
  *expand = (nsai_kernel_spec){ .entry = "kv_cache_expand_entries",
                                .dtype = m->dtype,
                                .threads = THREADS };
  nsai_constant_add(expand, "kHeadDimQk", m->head_dim_qk);
  nsai_constant_add(expand, "kHeadDimV", m->head_dim_v);
  nsai_constant_add(expand, "kPageRows", p->page_size / m->stride);
  nsai_constant_add(expand, "kBlock", m->block);
  nsai_constant_add(expand, "kStride", m->stride);
  nsai_constant_add(expand, "kMinBlocks", MIN_CTAS);
  nsai_constant_add(reader, "kExpanded", true);
}

void nsai_expanded_workspace(const nsai_problem *p, int64_t *k_bytes, int64_t *v_bytes) {
  *k_bytes = NSAI_PRODUCT(most_slots(p), slot_bytes(p, p->model.head_dim_qk));
  *v_bytes = NSAI_PRODUCT(most_slots(p), slot_bytes(p, p->model.head_dim_v));
}

/* [slots, Hkv, entries, dim], with slots as pages. */
static NsaiCacheTensor expanded_tensor(const nsai_run *run, nsai_buffer buffer, int64_t dim) {
  const nsai_problem *p = &run->plan->problem;
  return (NsaiCacheTensor){ nsai_buffer_at(run, buffer), most_entries(p) * p->model.kv_heads * dim,
                            dim, most_entries(p) * dim };
}

NsaiExpanded nsai_expanded_entries(const nsai_run *run, nsai_buffer k, nsai_buffer v) {
  const nsai_problem *p = &run->plan->problem;
  const int64_t slots = most_slots(p);
  NsaiExpanded out = { .k = expanded_tensor(run, k, p->model.head_dim_qk),
                       .v = expanded_tensor(run, v, p->model.head_dim_v),
                       .least_tokens = LEAST_TOKENS };
  if (run->sizes.num_seqs > slots) {
    /* So that tokens / least_tokens, rounded down, is at most `slots`. */
    const int64_t least = run->sizes.tokens / (slots + 1) + 1;
    out.least_tokens = (int)nsai_larger(least, LEAST_TOKENS);
    out.by_tokens = 1;
  }
  return out;
}

nsa_status nsai_expand_enqueue(const nsai_run *run, const nsai_kernel *kernel,
                               const NsaiExpanded *to) {
  const nsai_problem *p = &run->plan->problem;
  const int64_t with_most = run->sizes.tokens / to->least_tokens;
  const int64_t slots = to->by_tokens ? with_most : run->sizes.num_seqs;
  const int64_t pieces = nsai_ceil_div(most_entries(p), NSAI_EXPANDED_AT_ONCE);
  const NsaiExpandEntries params = { .batch = nsai_entry_batch(run),
                                     .entries = nsai_cache_entries(&run->io->kv),
                                     .to = *to,
                                     .kv_heads = p->model.kv_heads };
  if (!with_most || !pieces) return NSA_OK;
  return nsai_launch(run->queue, kernel, (uint64_t)(pieces * p->model.kv_heads), (uint64_t)slots,
                     &params);
}
