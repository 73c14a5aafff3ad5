// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What the KV-stationary kernels of nsa_index_kl share: the item of a CTA, a part of one block's list of
// tokens (data/inverted_lists.cuh).
#pragma once
#include "core/softmax.cuh"
#include "core/types.cuh"
#include "data/inverted_lists.cuh"
#include "params/index_kl.h"

struct IndexItem {
  int head;   // among those of the launch
  int number; // of the head's items
  NsaiKvItem item;
  const u32 *gEntries; // [item.count]
  // Row of q of an entry's token.
  static NSAI_DEVICE int token(const NsaiIndexKl &p, u32 entry) {
    return p.token_begin + entry_token(entry);
  }
  // Keys of the block from `first` on that a token sees.
  NSAI_DEVICE int seen(int token, int first) const {
    return min(item.keys, token + item.shift + 1) - first;
  }
};

// The sum of 2^lse over a row's entries, whose numbers are gIndices [n]; negative: no entry. It is
// 2^most * sum; 0 without an entry.
struct EntrySum {
  float most, sum;
  NSAI_DEVICE float lse() const { return most + log2_approx(sum); }
};
template <class Config> NSAI_DEVICE EntrySum sum_entries(const float *gLse, const int *gIndices) {
  float most = kNoReference, sum = 0.0f;
#pragma unroll 4
  for (int i = 0; i < Config::kSelectCount; ++i)
    if (gIndices[i] >= 0) most = fmaxf(most, gLse[gIndices[i]]);
#pragma unroll 4
  for (int i = 0; i < Config::kSelectCount; ++i)
    if (gIndices[i] >= 0) sum += exp2_approx(gLse[gIndices[i]] - most);
  return EntrySum{ most, sum };
}

// The lists of a head of the launch.
NSAI_DEVICE int list_of_head(const NsaiIndexKl &p, int head) {
  return p.shared_lists ? 0 : p.head_begin + head;
}

// Grid: x = heads * item_capacity, head-major. Returns false where the head has fewer items.
NSAI_DEVICE bool find_item(const NsaiIndexKl &p, IndexItem &at) {
  at.head = blockIdx.x / p.item_capacity;
  at.number = blockIdx.x % p.item_capacity;
  const int list = list_of_head(p, at.head);
  if (at.number >= p.item_counts[list]) return false;
  at.item = p.items[(long long)list * p.item_capacity + at.number];
  at.gEntries = p.entries + list * p.entry_capacity + at.item.begin;
  return true;
}

// The index keys of a block from key `first` on.
NSAI_DEVICE const u16 *index_keys(const NsaiIndexKl &p, const NsaiKvItem &item, int first) {
  return (const u16 *)p.k_idx.data + (item.kv_row + first) * p.k_idx.token_stride; // [.., Di]
}

// The index query of a token in a head of the launch.
NSAI_DEVICE const u16 *index_query(const NsaiIndexKl &p, int token, int head) {
  return (const u16 *)p.index_q.data + token * p.index_q.token_stride +
         (p.head_begin + head) * p.index_q.head_stride; // [Di]
}
