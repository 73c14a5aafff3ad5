// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// kv_cache_append: writes new tokens into a KV cache and, with phi mean, the compressed entries
// that end with them.
//
//   cache[position(token)] = new_kv[token]                                       each pair, K and V
//   entries[i] = 1/l * sum over x in [0, l) of pair 0[i*d + x]     i*d + l - 1 = position(token)
//
// The earlier tokens of a block may be new tokens of the same call. Those are read from new_kv,
// because another CTA writes them to the cache at the same time; all others are read from the
// cache. The sum runs as in compress_mean, so both give the same bits.
//
// In a cache of codes (core/e4m3.cuh) a new token is stored as code(x / scale), and entries are made
// of codes alone: of the call's own tokens, too, whose codes are computed again. The sum of codes is
// exact up to l = 73, so that every split of a sequence into calls gives the same bits:
//
//   entries[i] = sum of codes * f,  f = scale / (l * scale of the entries), or scale / l if these
//                                   are no codes; rounded once
//
// With kNormBlock it also writes the coarse keys that end with a token: of K alone, each the mean of
// kNormBlock tokens that end on a multiple of kNormStride, and no codes.
//
// With kIndexDim it also writes the token's index key, which has one head, as elements or as codes.
//
// With kRanks entries, coarse keys and index keys have a block table of their own.
//
// Grid: x = T, one CTA per token; a thread moves 16 bytes of a head's row at a time. Tokens with t
// < 0 or t >= max_kv_len, tokens behind all sequences and tokens with slot_mapping -1 write
// nothing. Bound by memory or latency.
//
// Config: Element, kHeadDimQk, kHeadDimV, kBlock (l), kStride (d), kPageSize (P; 0: no pages),
// kRing (pair 2 lies in ring buffers), kMean (entries are written), kRawCodes (the pairs hold
// codes), kEntryCodes, kEntryDimV (columns of an entry's V; 0: entries have none), kNormBlock (0: no
// coarse keys), kNormStride, kIndexDim (0: no index keys), kIndexCodes (these are codes), kThreads,
// kMinBlocks, kRanks (which may be missing).
#pragma once
#include "core/e4m3.cuh"
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/cache_rows.cuh"
#include "data/new_entries.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

// Loads in flight per thread for a mean. 16 would spill if the chunks of a row are no power of two.
constexpr int kLoads = 8;

// A new token.
struct NewToken {
  Sequence seq;
  int s;
  int position;
};

// The parameters of kernels that write codes or read them.
template <class C> NSAI_DEVICE const NsaiCodedAppend &coded(const NsaiAppend &p) {
  static_assert(C::kRawCodes || C::kEntryCodes, "the kernel takes an NsaiCodedAppend");
  return (const NsaiCodedAppend &)p;
}

// Where the compressed entries or coarse keys of sequence s lie; kPageRows: those of a page.
template <class C, int kPageRows>
NSAI_DEVICE CachedRows<kPageRows> find_entry_rows(const NsaiAppend &p, int s) {
  if constexpr (kOverRanks<C>) {
    const NsaiRanksAppend &ranks = (const NsaiRanksAppend &)p;
    return CachedRows<kPageRows>{ ranks.entry_pages + s * ranks.entry_page_stride, 0, 0 };
  } else {
    return find_rows<kPageRows>(p.batch, s, 0);
  }
}

// Where its index keys lie: they have a row for each token, as `rows` has.
template <class C, class Rows>
NSAI_DEVICE Rows find_index_rows(const NsaiAppend &p, int s, const Rows &rows) {
  if constexpr (kOverRanks<C>)
    return find_entry_rows<C, C::kPageSize>(p, s);
  else
    return rows;
}

template <class C> constexpr bool kMakesCoarseKeys = C::kNormBlock > 0;

// What is averaged: the compressed entries, or coarse keys.
template <class C> struct Entries {
  static constexpr int kBlock = C::kBlock, kStride = C::kStride, kDimV = C::kEntryDimV;
  static constexpr bool kCodes = C::kEntryCodes;
  static NSAI_DEVICE const NsaiCachePair &of(const NsaiAppend &p) { return p.entries; }
};
template <class C> struct CoarseKeys {
  static constexpr int kBlock = C::kNormBlock, kStride = C::kNormStride, kDimV = 0;
  static constexpr bool kCodes = false;
  static NSAI_DEVICE NsaiCachePair of(const NsaiAppend &p) {
    return NsaiCachePair{ ((const NsaiNormedAppend &)p).norms, {}, 0, 0 };
  }
};

// Eight columns of K or V within a head's row.
template <class C, int kDimV = C::kHeadDimV> struct Piece {
  bool is_k;
  int head, column;
  NSAI_DEVICE Piece(int i) {
    constexpr int kChunksK = C::kHeadDimQk / 8, kChunks = kChunksK + kDimV / 8;
    const int chunk = i % kChunks;
    is_k = chunk < kChunksK;
    head = i / kChunks;
    column = (is_k ? chunk : chunk - kChunksK) * 8;
  }
  static constexpr int kPerHead = (C::kHeadDimQk + kDimV) / 8;
  NSAI_DEVICE const u16 *new_kv(const NsaiAppend &p, int pair, int token) const {
    const NsaiView &x = is_k ? p.k[pair] : p.v[pair];
    return (const u16 *)x.data + token * x.token_stride + head * x.head_stride + column;
  }
  // kCodes: the tensor holds codes.
  template <bool kCodes = false, class Rows>
  NSAI_DEVICE u16 *cached(const NsaiCachePair &pair, const Rows &rows, int index) const {
    const NsaiCacheTensor &x = is_k ? pair.k : pair.v;
    return (u16 *)x.data + row_offset(x, rows.page(index), rows.slot(index)) +
           head * x.head_stride + (kCodes ? column / 2 : column);
  }
  NSAI_DEVICE float scale(const NsaiPairScales &scales) const {
    return scale_of(is_k ? scales.k : scales.v, head);
  }
};

template <class C, class Rows>
NSAI_DEVICE void copy_token(const NsaiAppend &p, const Rows &rows, int pair, int token,
                            int position) {
  for (int i = threadIdx.x; i < p.kv_heads * Piece<C>::kPerHead; i += C::kThreads) {
    const Piece<C> piece(i);
    const Chunk &x = *(const Chunk *)piece.new_kv(p, pair, token);
    if constexpr (C::kRawCodes)
      *(uint2 *)piece.template cached<true>(p.cache[pair], rows, position) =
          pack_eight<typename C::Element>(x, piece.scale(coded<C>(p).scales[pair]));
    else
      *(Chunk *)piece.cached(p.cache[pair], rows, position) = x;
  }
}

template <class C, class Rows>
NSAI_DEVICE void copy_index_key(const NsaiIndexedAppend &p, const Rows &rows, int token,
                                int position) {
  static_assert(C::kIndexDim % 8 == 0, "rows are copied 16 bytes at a time");
  const u16 *from = (const u16 *)p.new_index.data + token * p.new_index.token_stride;
  u16 *to =
      (u16 *)p.index.data + row_offset(p.index, rows.page(position), rows.slot(position)); // [Di]
  for (int column = threadIdx.x * 8; column < C::kIndexDim; column += C::kThreads * 8)
    if constexpr (C::kIndexCodes)
      *(uint2 *)(to + column / 2) =
          pack_eight<typename C::Element>(*(const Chunk *)(from + column),
                                          scale_of(((const NsaiIndexCodedAppend &)p).scale, 0));
    else
      *(Chunk *)(to + column) = *(const Chunk *)(from + column);
}

// The sum of a piece over the tokens of an entry, in codes. codes_of(i): the piece of token i < l.
template <int kBlock, class CodesOf> NSAI_DEVICE void sum_codes(float (&sum)[8], CodesOf codes_of) {
  for (int begin = 0; begin < kBlock; begin += kLoads) {
    uint2 codes[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      codes[i] = make_uint2(0, 0);
      if (kBlock % kLoads == 0 || begin + i < kBlock) codes[i] = codes_of(begin + i);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const Chunk x = expand_eight<Fp16>(codes[i]); // exact
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        sum[2 * w] += Fp16::low(x.w[w]);
        sum[2 * w + 1] += Fp16::high(x.w[w]);
      }
    }
  }
}

// Stores a piece of an entry.
template <class C, bool kCodes> NSAI_DEVICE void store_piece(u16 *to, const float (&x)[8]) {
  u32 pairs[4];
#pragma unroll
  for (int w = 0; w < 4; ++w)
    pairs[w] =
        kCodes ? pack_codes(x[2 * w], x[2 * w + 1]) : C::Element::pack(x[2 * w], x[2 * w + 1]);
  if constexpr (kCodes)
    *(uint2 *)to = make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
  else
    *(Chunk *)to = Chunk{ { pairs[0], pairs[1], pairs[2], pairs[3] } };
}

// Writes the entry, or the coarse key, whose last token is at `position`; all of its tokens exist.
template <class C, class E, class Rows>
NSAI_DEVICE void write_entry(const NsaiAppend &p, const Rows &rows, const NewToken &at) {
  const int first = at.position - (E::kBlock - 1);
  const int old = at.seq.kv_len - at.seq.q_len; // tokens before the new ones
  const auto entries = find_entry_rows<C, C::kPageSize / E::kStride>(p, at.s);
  const int index = at.position / E::kStride; // of the entry
  for (int i = threadIdx.x; i < p.kv_heads * Piece<C, E::kDimV>::kPerHead; i += C::kThreads) {
    const Piece<C, E::kDimV> piece(i);
    float sum[8] = {};
    if constexpr (C::kRawCodes) {
      const float scale = piece.scale(coded<C>(p).scales[0]);
      sum_codes<E::kBlock>(sum, [&](int x) {
        const int position = first + x, token = at.seq.q_begin + position - old;
        if (position < old || !is_kept(p.slot_mapping, token))
          return *(const uint2 *)piece.template cached<true>(p.cache[0], rows, position);
        return pack_eight<typename C::Element>(*(const Chunk *)piece.new_kv(p, 0, token), scale);
      });
      float unit = E::kBlock;
      if constexpr (E::kCodes) unit *= piece.scale(coded<C>(p).entry_scales);
      const float factor = __fdiv_rn(scale, unit);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = __fmul_rn(sum[i], factor);
      store_piece<C, E::kCodes>(piece.template cached<E::kCodes>(E::of(p), entries, index), sum);
      continue;
    }
    for (int begin = 0; begin < E::kBlock; begin += kLoads) {
      Chunk chunk[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int position = first + begin + i, token = at.seq.q_begin + position - old;
        const bool exists = E::kBlock % kLoads == 0 || begin + i < E::kBlock;
        const bool is_new = exists && position >= old && is_kept(p.slot_mapping, token);
        chunk[i] = Chunk{};
        if (exists)
          chunk[i] = *(const Chunk *)(is_new ? piece.new_kv(p, 0, token)
                                             : piece.cached(p.cache[0], rows, position));
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i)
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          sum[2 * w] += C::Element::low(chunk[i].w[w]);
          sum[2 * w + 1] += C::Element::high(chunk[i].w[w]);
        }
    }
    constexpr float kInverse = 1.0f / E::kBlock;
    if constexpr (E::kCodes) {
      const float scale = piece.scale(coded<C>(p).entry_scales);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = __fdiv_rn(__fmul_rn(sum[i], kInverse), scale);
      store_piece<C, E::kCodes>(piece.template cached<true>(E::of(p), entries, index), sum);
      continue;
    }
    Chunk mean;
#pragma unroll
    for (int w = 0; w < 4; ++w)
      mean.w[w] = C::Element::pack(sum[2 * w] * kInverse, sum[2 * w + 1] * kInverse);
    *(Chunk *)piece.cached(E::of(p), entries, index) = mean;
  }
}

template <class C> NSAI_DEVICE void append(const NsaiAppend &p) {
  // ---- coordinates
  const int token = blockIdx.x;
  const int s = find_cached_sequence(p.batch, token);
  const int room = find_room(p.batch, s);
  const Sequence seq = load_appended_sequence(p.batch, s, room);
  const int query = token - seq.q_begin, position = seq.position(query);
  const bool exists = 0 <= query && query < seq.q_len && 0 <= position && position < room;
  if (!exists || !is_kept(p.slot_mapping, token)) return;
  const NewToken at = { seq, s, position };
  const auto rows = find_rows<C::kPageSize>(p.batch, s, 0);

  // ---- the token
#pragma unroll
  for (int pair = 0; pair < 3; ++pair) {
    if (!(p.pairs >> pair & 1)) continue;
    if (C::kRing && pair == 2)
      copy_token<C>(p, find_rows<0>(p.batch, s, p.cache[pair].ring), pair, token, at.position);
    else
      copy_token<C>(p, rows, pair, token, at.position);
  }

  if constexpr (C::kIndexDim > 0)
    copy_index_key<C>((const NsaiIndexedAppend &)p, find_index_rows<C>(p, s, rows), token,
                      at.position);

  // ---- the compressed block that ends with it
  if constexpr (C::kMean) {
    if (at.position >= C::kBlock - 1 && (at.position + 1) % C::kStride == 0)
      write_entry<C, Entries<C>>(p, rows, at);
  }

  // ---- the coarse key that ends with it
  if constexpr (kMakesCoarseKeys<C>) {
    if (at.position >= C::kNormBlock - 1 && (at.position + 1) % C::kNormStride == 0)
      write_entry<C, CoarseKeys<C>>(p, rows, at);
  }
}

using OneTableParams = ParamsOf<
    (Config::kIndexDim > 0),
    ParamsOf<kMakesCoarseKeys<Config>,
             ParamsOf<Config::kRawCodes || Config::kEntryCodes, NsaiAppend, NsaiCodedAppend>::Type,
             NsaiNormedAppend>::Type,
    ParamsOf<Config::kIndexCodes, NsaiIndexedAppend, NsaiIndexCodedAppend>::Type>::Type;
using AppendParams = ParamsOf<kOverRanks<Config>, OneTableParams, NsaiRanksAppend>::Type;

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    kv_cache_append(const __grid_constant__ AppendParams p) {
  begin_kernel();
  append<Config>((const NsaiAppend &)p);
}
