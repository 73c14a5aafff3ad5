// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The compressed entries that an append completes, as GEMM rows whose number the host knows:
// sequence s owns the rows from (its first new token) / d + s on. That leaves enough room, as for
// the tiles of data/sequence.cuh; left-over rows hold no entry.
#pragma once
#include "core/types.cuh"
#include "data/cache_rows.cuh"
#include "params/kv_cache.h"

// Whether the caller wants a new token to be written.
NSAI_DEVICE bool is_kept(const long long *slot_mapping, int token) {
  return !slot_mapping || slot_mapping[token] >= 0;
}

struct NewEntry {
  int s;     // sequence
  int index; // index of the entry: position of its last token, in strides
  int first; // position of its first token
  bool exists;
};

template <int kBlock, int kStride>
NSAI_DEVICE NewEntry find_new_entry(const NsaiCacheBatch &batch, const long long *slot_mapping,
                                    int row) {
  auto first_row = [&](int i) {
    return (batch.cu_q ? batch.cu_q[i] : i * batch.q_each) / kStride + i;
  };
  const int s = find_sequence(batch.num_seqs, row, first_row);
  const int room = find_room(batch, s);
  const Sequence seq = load_appended_sequence(batch, s, room);
  // Negative if the first new tokens stand before the sequence.
  const int old = seq.kv_len - seq.q_len;
  const int index = max(old, 0) / kStride + row - first_row(s);
  const int end = index * kStride + kStride - 1; // position of its last token
  const bool whole = row >= first_row(s) && end >= kBlock - 1 && end < min(seq.kv_len, room);
  return NewEntry{ s, index, end - (kBlock - 1),
                   whole && is_kept(slot_mapping, seq.q_begin + end - old) };
}
