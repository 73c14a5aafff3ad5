// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Queries, keys and values of kernels that serve both packed tensors and, with Config::kCached, a
// KV cache (data/cache_rows.cuh). Such a kernel takes the parameter struct X of the packed form, or
// an NsaiCachedX that contains an X and adds the cache. Its code reads either one through the
// functions below, which are overloaded for both.
//
// Config: kCached; with kCached also kPageRows: rows of a page of the tensors that the kernel reads
// (tokens or compressed entries), or 0 if these lie in rows or ring buffers. Kernels that read codes
// (core/e4m3.cuh), too, have kCodes, and then take an NsaiCodedX that contains an NsaiCachedX; with
// kExpanded an NsaiExpandedX, which also says which entries lie in the workspace as fp16. With kScaled
// all that they read are elements that were codes (kv_cache/expand_tokens.cuh): they take an NsaiCodedX
// for its scales, and are otherwise the kernels of 16 bits.
#pragma once
#include "core/e4m3.cuh"
#include "core/types.cuh"
#include "data/cache_rows.cuh"
#include "data/sequence.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

template <bool kCached, class Packed, class Cached> struct ParamsOf { using Type = Packed; };
template <class Packed, class Cached> struct ParamsOf<true, Packed, Cached> {
  using Type = Cached;
};

// Whether the kernel reads codes; kernels that never do have no Config::kCodes.
template <class C, class = void> struct CodesOf { static constexpr bool kValue = false; };
template <class C> struct CodesOf<C, decltype((void)C::kCodes)> {
  static constexpr bool kValue = C::kCodes;
};
template <class C> constexpr bool kReadsCodes = CodesOf<C>::kValue;

// Whether it applies the scales of codes: of those that it reads, or of elements that were codes.
template <class C, class = void> struct ScaledOf { static constexpr bool kValue = kReadsCodes<C>; };
template <class C> struct ScaledOf<C, decltype((void)C::kScaled)> {
  static constexpr bool kValue = kReadsCodes<C> || C::kScaled;
};
template <class C> constexpr bool kAppliesScales = ScaledOf<C>::kValue;

// The parameters of a kernel that may read codes.
template <class C, class Packed, class Cached, class Coded>
using CodedParamsOf =
    typename ParamsOf<kAppliesScales<C>, typename ParamsOf<C::kCached, Packed, Cached>::Type,
                      Coded>::Type;

// Whether entries in codes may lie in the workspace as fp16 (data/expanded_entries.cuh).
template <class C, class = void> struct ExpandedOf { static constexpr bool kValue = false; };
template <class C> struct ExpandedOf<C, decltype((void)C::kExpanded)> {
  static constexpr bool kValue = C::kExpanded;
};
template <class C> constexpr bool kReadsExpanded = ExpandedOf<C>::kValue;

// The parameters of a kernel that may read those.
template <class C, class Packed, class Cached, class Coded, class Expanded>
using EntryParamsOf =
    typename ParamsOf<kReadsExpanded<C>, CodedParamsOf<C, Packed, Cached, Coded>, Expanded>::Type;

// Whether a cache's raw tokens lie on several ranks; most kernels have no Config::kRanks.
template <class C, class = void> struct RanksOf { static constexpr bool kValue = false; };
template <class C> struct RanksOf<C, decltype((void)C::kRanks)> {
  static constexpr bool kValue = C::kRanks;
};
template <class C> constexpr bool kOverRanks = RanksOf<C>::kValue;

// The Config of products in fp16 where a kernel reads codes: it holds every code, and the conversion
// to it is a single instruction.
template <class C, bool kCodes> struct ProductsOf { using Type = C; };
template <class C> struct ProductsOf<C, true> {
  struct Type : C {
    using Element = Fp16;
  };
};
template <class C> using ProductConfig = typename ProductsOf<C, kReadsCodes<C>>::Type;
template <class C>
constexpr bool kConvertsQuery = C::Element::kPrecision != ProductConfig<C>::Element::kPrecision;

// Elements, or words of two codes, of a row of kDim columns.
template <class C, int kDim> constexpr int kRowWords = nsai_row_words(kReadsCodes<C>, kDim);

// The scales of the codes that a kernel reads, or that were: those of its pair, or of a branch's.
template <class P> NSAI_DEVICE auto scales_of(const P &p, int) -> decltype(p.scales.k, (p.scales)) {
  return p.scales;
}
template <class P>
NSAI_DEVICE auto scales_of(const P &p, int branch) -> decltype(p.scales[0].k, (p.scales[0])) {
  return p.scales[branch];
}

// The softmax scale with the scale of a KV head's K, if that is or was in codes; and O with that of its V.
template <class C, class P>
NSAI_DEVICE float scale_by_keys(float scale_log2, const P &p, int group, int branch = 0) {
  if constexpr (kAppliesScales<C>) return scale_log2 * scale_of(scales_of(p, branch).k, group);
  return scale_log2;
}
template <class C, int kN, class P>
NSAI_DEVICE void scale_by_values(float (&o)[kN][4], const P &p, int group, int branch = 0) {
  if constexpr (kAppliesScales<C>) scale_columns(o, scale_of(scales_of(p, branch).v, group));
}

// packed_of: X itself, which has a member `seq`, or the X inside an NsaiCachedX, which has a member
// `batch`. sequences_of: the member that says how tokens belong to sequences.
template <class P> NSAI_DEVICE auto packed_of(const P &p) -> decltype(p.seq, (p)) { return p; }
template <class P> NSAI_DEVICE auto packed_of(const P &p) -> decltype((p.packed)) {
  return p.packed;
}
template <class P> NSAI_DEVICE auto packed_of(const P &p) -> decltype((p.cached.packed)) {
  return p.cached.packed;
}
template <class P> NSAI_DEVICE auto sequences_of(const P &p) -> decltype((p.cached.batch)) {
  return p.cached.batch;
}
// The NsaiCachedX inside an NsaiCodedX, or itself.
template <class P> NSAI_DEVICE auto cached_of(const P &p) -> decltype((p.cached)) {
  return p.cached;
}
template <class P> NSAI_DEVICE auto cached_of(const P &p) -> decltype(p.batch, (p)) { return p; }

NSAI_DEVICE const NsaiAttendTma &packed_of(const NsaiAttendTma &p) { return p; }
NSAI_DEVICE const NsaiCompressedTopn &packed_of(const NsaiCompressedTopn &p) { return p; }
template <class P> NSAI_DEVICE auto sequences_of(const P &p) -> decltype((p.seq)) { return p.seq; }
template <class P> NSAI_DEVICE auto sequences_of(const P &p) -> decltype((p.attend.seq)) {
  return p.attend.seq;
}
NSAI_DEVICE const NsaiSequences &sequences_of(const NsaiCompressedTopn &p) {
  return p.attend.attend.seq;
}
NSAI_DEVICE const NsaiSequences &sequences_of(const NsaiIndexScoresTma &p) { return p.packed.seq; }
NSAI_DEVICE const NsaiSequences &sequences_of(const NsaiSelectedWindow &p) {
  return p.selected.attend.seq;
}
template <class P> NSAI_DEVICE auto sequences_of(const P &p) -> decltype((p.batch)) {
  return p.batch;
}

// ---- sequences of a cache, by the names that data/sequence.cuh uses for packed tensors

NSAI_DEVICE Sequence load_sequence(const NsaiCacheBatch &batch, int s) {
  return load_cached_sequence(batch, s);
}

NSAI_DEVICE int find_row_sequence(const NsaiCacheBatch &batch, int row) {
  return find_cached_sequence(batch, row);
}

// Tiles are numbered like those of several packed sequences, whether the batch has cu_q or not.
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

// `kRows` consecutive rows from index `first` on, of which this thread takes every kStep-th from
// `row` on. Rows from `left` on repeat the last existing row, so that no block table is read beyond
// its end. All pages are looked up before the first row is copied.
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
  // Offset of the thread's row i from head 0's first row of the tensor.
  NSAI_DEVICE long long offset(const NsaiCacheTensor &x, int i) const {
    return row_offset(x, page[i], rows.slot(index(i)));
  }
};

// A pair of values for K and V.
template <class Side> struct Sides { Side k, v; };
