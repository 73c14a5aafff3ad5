// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Compressed entries in codes that kv_cache_expand_entries has written to the workspace as fp16, for
// the prefill kernels of the same call. Every tile of queries reads the entries of its sequence, so
// that a sequence with many new tokens would convert the same codes many times.
//
// The sequences with at least least_tokens new tokens have a slot each. Their numbers are the slots
// or, if there are more sequences than slots, their first new tokens divided by least_tokens: two such
// sequences never begin that close to each other.
#pragma once
#include "data/cache_rows.cuh"
#include "params/kv_cache.h"

// The slot of sequence s; negative if kernels must read its codes.
NSAI_DEVICE int expanded_slot(const NsaiExpanded &expanded, const NsaiCacheBatch &batch, int s) {
  const Sequence seq = read_sequence(batch, s);
  if (seq.q_len < expanded.least_tokens) return -1;
  return expanded.by_tokens ? seq.q_begin / expanded.least_tokens : s;
}

// The only sequence that may have a slot.
NSAI_DEVICE int expanded_sequence(const NsaiExpanded &expanded, const NsaiCacheBatch &batch,
                                  int slot) {
  if (!expanded.by_tokens) return slot;
  // It has its least_tokens tokens or more from one of the slot's on, the slot's last among them.
  return find_cached_sequence(batch, (slot + 1) * expanded.least_tokens - 1);
}

// The rows of a slot, by the indices of entries.
NSAI_DEVICE CachedRows<0> expanded_rows(int slot) { return CachedRows<0>{ nullptr, slot, 0 }; }

// K and V of a KV head in a slot, as tensors of one page and one head.
template <int kDk, int kDv>
NSAI_DEVICE NsaiCachePair expanded_pair(const NsaiExpanded &expanded, int slot, int head) {
  auto rows_of = [&](const NsaiCacheTensor &x, int dim) {
    return NsaiCacheTensor{ (u16 *)x.data + slot * x.page_stride + head * x.head_stride, 0, dim,
                            0 };
  };
  return NsaiCachePair{ rows_of(expanded.k, kDk), rows_of(expanded.v, kDv), 0, 0 };
}
