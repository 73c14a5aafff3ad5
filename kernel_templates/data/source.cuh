// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Where kernels that serve both find queries, keys and values: in packed tensors, or, with
// Config::kCached, in a KV cache (data/cache_rows.cuh). Such a kernel takes the packed form's struct X
// alone, or inside an NsaiCachedX, which adds the cache; its code reads either through the functions
// below, which are overloaded for both.
//
// Config::kCached; kPageRows, with kCached: rows of a page of the tensors that the kernel reads, tokens
// or compressed entries, or 0 where these lie in rows or rings.
#pragma once
#include "core/types.cuh"
#include "data/cache_rows.cuh"
#include "data/sequence.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

template <bool kCached, class Packed, class Cached> struct ParamsOf { using Type = Packed; };
template <class Packed, class Cached> struct ParamsOf<true, Packed, Cached> {
  using Type = Cached;
};

// X itself, which has `seq`, or the X inside of an NsaiCachedX, which has `batch`; and that of them
// which says how tokens fall into sequences.
template <class P> NSAI_DEVICE auto packed_of(const P &p) -> decltype(p.seq, (p)) { return p; }
template <class P> NSAI_DEVICE auto packed_of(const P &p) -> decltype((p.packed)) {
  return p.packed;
}
template <class P> NSAI_DEVICE auto sequences_of(const P &p) -> decltype((p.seq)) { return p.seq; }
template <class P> NSAI_DEVICE auto sequences_of(const P &p) -> decltype((p.batch)) {
  return p.batch;
}

// ---- sequences of a cache, by the names that packed ones have in data/sequence.cuh

NSAI_DEVICE Sequence load_sequence(const NsaiCacheBatch &batch, int s) {
  return load_cached_sequence(batch, s);
}

NSAI_DEVICE int find_row_sequence(const NsaiCacheBatch &batch, int row) {
  return find_cached_sequence(batch, row);
}

// Tiles are numbered as those of several packed sequences are, whether the batch has cu_q or not.
template <int kTokens>
NSAI_DEVICE QueryTile find_query_tile(const NsaiCacheBatch &batch, int tile) {
  auto first_tile = [&](int s) {
    return (batch.cu_q ? batch.cu_q[s] : s * batch.q_each) / kTokens + s;
  };
  int s = find_sequence(batch.num_seqs, tile, first_tile);
  return QueryTile{ s, load_cached_sequence(batch, s), (tile - first_tile(s)) * kTokens };
}

NSAI_DEVICE bool numbers_tiles_by_sequence(const NsaiCacheBatch &) { return true; }
NSAI_DEVICE bool numbers_tiles_by_sequence(const NsaiSequences &seqs) { return seqs.cu_q; }

// ---- rows of a cache

// `kRows` rows from index `first` on, of which this thread takes every kStep-th from `row` on. Those from
// `left` on count as the last one before, which exists, so that no list of pages is read beyond its end.
// All pages are looked up before the first row is copied.
template <int kPageRows, int kRows, int kStep> struct CachedRun {
  static constexpr int kCount = ceil_div(kRows, kStep);
  const CachedRows<kPageRows> &rows;
  int first, row, left;
  int page[kCount];
  NSAI_DEVICE CachedRun(const CachedRows<kPageRows> &all, int first_index, int own, int count)
      : rows(all), first(first_index), row(own), left(count) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) page[i] = rows.page(index(i));
  }
  NSAI_DEVICE int index(int i) const { return first + min(row + i * kStep, left - 1); }
  // Where the thread's row i begins, from head 0's first row of the tensor on.
  NSAI_DEVICE long long offset(const NsaiCacheTensor &x, int i) const {
    return row_offset(x, page[i], rows.slot(index(i)));
  }
};

// Something of K, and the same of V.
template <class Side> struct Sides { Side k, v; };
