// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Where the rows of a KV cache lie (include/nsa/kv_cache.h), computed from arrays in device memory
// only.
//
// A row is a raw token or a compressed entry. Its index within the sequence is the token's
// position, or entry_index() of the compressed block, which is the position of the block's last
// token in strides. With these indices all three layouts have the same form:
//
//   pages of R rows  page = list[index / R], slot = index % R   R: P tokens, or P / d entries
//   rows             page = the sequence's row, slot = index
//   ring             page = the sequence's row, slot = index % ring
//
// The row begins at page * page_stride + slot * row_stride + head * head_stride.
#pragma once
#include "core/types.cuh"
#include "data/sequence.cuh"
#include "params/kv_cache.h"

// New tokens of sequence s, and its length as stored in the array; kv_begin has no meaning.
NSAI_DEVICE Sequence read_sequence(const NsaiCacheBatch &batch, int s) {
  const int begin = batch.cu_q ? batch.cu_q[s] : s * batch.q_each;
  const int end = batch.cu_q ? min(batch.cu_q[s + 1], batch.q_tokens) : begin + batch.q_each;
  return Sequence{ begin, end - begin, 0, max(batch.kv_len[s], 0) };
}

// Number of tokens of sequence s that can be stored: limited by the plan and by the pages of its
// list. It depends on nothing that read_sequence() loads, so both loads overlap.
NSAI_DEVICE int find_room(const NsaiCacheBatch &batch, int s) {
  if (!batch.page_starts) return batch.max_kv_len;
  const long long pages = max(batch.page_starts[s + 1] - batch.page_starts[s], 0);
  return (int)min(pages * batch.page_size, (long long)batch.max_kv_len);
}

// Sequence s of a batch over a cache: load_sequence() for such batches. Rows of q beyond its end
// and keys without a page do not exist, whatever the arrays say.
NSAI_DEVICE Sequence load_cached_sequence(const NsaiCacheBatch &batch, int s) {
  Sequence seq = read_sequence(batch, s);
  seq.kv_len = min(seq.kv_len, find_room(batch, s));
  return seq;
}

// The same with a length that was loaded earlier; it is not read again.
NSAI_DEVICE Sequence load_cached_sequence(const NsaiCacheBatch &batch, int s, int kv_len) {
  Sequence seq = read_sequence(batch, s);
  seq.kv_len = min(max(kv_len, 0), find_room(batch, s));
  return seq;
}

// Sequence s of a batch that is appended to: each token keeps its position, and tokens from `room`
// on are not stored. kv_len is limited to room + q_len, beyond which nothing changes.
NSAI_DEVICE Sequence load_appended_sequence(const NsaiCacheBatch &batch, int s, int room) {
  Sequence seq = read_sequence(batch, s);
  seq.kv_len = min(seq.kv_len, room + seq.q_len);
  return seq;
}

// The sequence of row `token` of q; the last sequence for rows behind all sequences.
NSAI_DEVICE int find_cached_sequence(const NsaiCacheBatch &batch, int token) {
  if (!batch.cu_q) return min(batch.q_each > 1 ? token / batch.q_each : token, batch.num_seqs - 1);
  return find_sequence(batch.num_seqs, token, [&](int i) { return batch.cu_q[i]; });
}

// Index of compressed block i among its sequence's entries: the position of its last token, in
// strides.
template <int kBlock, int kStride> constexpr NSAI_DEVICE int entry_index(int i) {
  return i + kBlock / kStride - 1;
}

// The rows of one sequence in tensors of one layout. kPageRows: R; 0: rows or ring.
template <int kPageRows> struct CachedRows {
  static_assert((kPageRows & (kPageRows - 1)) == 0, "pages are powers of two");
  const int *list; // [pages], block table of the sequence
  int row;         // if there are no pages
  int ring;        // tokens; 0: no ring

  // Reads the block table; `index` must be below the sequence's length.
  NSAI_DEVICE int page(int index) const {
    if constexpr (kPageRows > 0) return list[index / kPageRows];
    return row;
  }
  NSAI_DEVICE int slot(int index) const {
    if constexpr (kPageRows > 0) return index % kPageRows;
    return ring ? index % ring : index;
  }
};

template <int kPageRows>
NSAI_DEVICE CachedRows<kPageRows> find_rows(const NsaiCacheBatch &batch, int s, int ring) {
  if constexpr (kPageRows > 0) {
    const long long begin = batch.page_starts ? batch.page_starts[s] : s * batch.page_list_stride;
    return CachedRows<kPageRows>{ batch.pages + begin, 0, 0 };
  }
  return CachedRows<kPageRows>{ nullptr, batch.slots ? batch.slots[s] : s, ring };
}

// Elements from the start of a tensor to a row of head 0.
NSAI_DEVICE long long row_offset(const NsaiCacheTensor &x, int page, int slot) {
  return page * x.page_stride + slot * x.row_stride;
}
