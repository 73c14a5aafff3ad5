// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// FlashAttention main loop on mma.sync and cp.async (sm_80 and later). attend_compressed_sm80,
// attend_window_sm80 and attend_dense_sm80 share it; they differ only in the keys that a query
// sees, which is the policy `Keys` (data/key_range.cuh).
//
//   o[t, h] = softmax over keys i in [begin(t), end(t)) of (scale * q[t, h] . k[i]) V
//
//   q [T, Hq, Dk], k [rows, Hkv, Dk], v [rows, Hkv, Dv] -> NsaiEpilogue
//
// Grid: x = kv_heads * tiles, KV head major, so that L2 holds the K and V of one head at a time.
// tiles = seq.cu_q ? q_tokens / T + num_seqs : ceil(q_tokens / T), where a tile has T = kRows /
// kGroupPadded tokens.
//
// CTA: kRows query rows of one KV head, token-major: row r is head r % kGroupPadded of the query
// group and token r / kGroupPadded of the tile. Each warp owns kRows / kWarps rows, that is kM m16
// tiles, and keeps their softmax state and O in registers. Each K or V fragment that a warp reads
// from shared memory feeds kM products.
//
// Shared memory: nsai_smem_flash_sm80() of params/smem.h.
//
// Copies: all threads issue cp.async. V of a tile arrives during Q K^T; K of the next tile arrives
// during softmax and P V. K and V have one buffer each; a second CTA on the SM hides the two waits
// per key tile.
//
// Bound by the issue rate of mma.sync where Dk, Dv >= 128, and by exponentials at 64 and below.
//
// Source: packed tensors, or a KV cache whose block table is read for each key tile
// (data/source.cuh). Alignment of base and strides: 16 bytes for q, k, v; 8 bytes for o and
// o_branch.
//
// Of a cache of codes (core/e4m3.cuh) a thread loads its part of a tile to registers where it would
// start the copies. It converts the codes to elements, which are exact, and stores them where the
// buffer must be complete next. The scale of K becomes part of the softmax scale, that of V of O.
//
// The host chooses kRows, kKeys and kWarps so that they fit the registers
// (runtime/variants/attend).
//
// Config: Element, kHeadDimQk, kHeadDimV, kGroup, kGroupPadded, kRows, kKeys, kWarps, kThreads,
// kMinBlocks, kSharedBytes, kGate; also those of data/source.cuh (attend_dense_sm80 takes packed
// tensors only).
#pragma once
#include "core/code_fragments.cuh"
#include "core/copy.cuh"
#include "core/copy_rows.cuh"
#include "core/epilogue.cuh"
#include "core/launch.cuh"
#include "core/mma.cuh"
#include "core/softmax.cuh"
#include "core/tile.cuh"
#include "core/types.cuh"
#include "data/key_range.cuh"
#include "data/sequence.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

template <class Config> struct FlashShared {
  using Q = Tile<Config::kRows, padded_dim(Config::kHeadDimQk)>;
  using K = Tile<Config::kKeys, padded_dim(Config::kHeadDimQk)>;
  using V = Tile<Config::kKeys, padded_dim(Config::kHeadDimV)>;
  unsigned char q[Q::kBytes]; // [kRows, Dk]
  unsigned char k[K::kBytes]; // [kKeys, Dk]
  unsigned char v[V::kBytes]; // [kKeys, Dv]
};

template <class Config> struct Flash {
  using Shared = FlashShared<Config>;
  static constexpr int kTokens = Config::kRows / Config::kGroupPadded; // tokens of a tile
  static constexpr int kWarpRows = Config::kRows / Config::kWarps;
  static constexpr int kM = kWarpRows / 16;                          // m16 tiles of a warp
  static constexpr int kN = Config::kKeys / 8;                       // n8 tiles of S
  static constexpr int kO = padded_dim(Config::kHeadDimV) / 8;       // n8 tiles of O
  static constexpr int kSteps = padded_dim(Config::kHeadDimQk) / 16; // k16 steps of Q K^T
  static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0,
                "rows are read in chunks of 16 bytes");
  static_assert((Config::kGroupPadded & (Config::kGroupPadded - 1)) == 0 &&
                    Config::kGroup <= Config::kGroupPadded,
                "kGroupPadded is the next power of two");
  static_assert(kTokens >= 1 && kTokens * Config::kGroupPadded == Config::kRows,
                "a tile holds whole tokens");
  static_assert(kM >= 1 && kM * 16 * Config::kWarps == Config::kRows,
                "a warp owns whole m16 tiles");
  static_assert(Config::kKeys % 16 == 0, "P V takes 16 keys at a time");
  static_assert(Config::kThreads == 32 * Config::kWarps, "all warps compute");
  static_assert(sizeof(Shared) == Config::kSharedBytes,
                "the host computes another size of shared memory");
};

// Starts the copy of a tile's Q [kRows, Dk]. Padding heads and tokens from q_len on become zero.
template <class Config>
NSAI_DEVICE void load_queries(u32 tile, const NsaiView &q, const QueryTile &at, int group) {
  using T = typename FlashShared<Config>::Q;
  using Lanes = CopyLanes<T, Config::kThreads>;
  const u16 *from = (const u16 *)q.data + (at.seq.q_begin + at.first_query) * q.token_stride +
                    group * Config::kGroup * q.head_stride + Lanes::chunk(threadIdx.x) * 8;
  int tokens = at.seq.q_len - at.first_query;
#pragma unroll
  for (int i = 0; i < ceil_div(Config::kRows, Lanes::kPass); ++i) {
    int row = Lanes::row(threadIdx.x) + i * Lanes::kPass;
    int token = row / Config::kGroupPadded, head = row % Config::kGroupPadded;
    if (Config::kRows % Lanes::kPass == 0 || row < Config::kRows)
      copy_row<T, Config::kHeadDimQk, Config::kThreads>(tile, row, Lanes::chunk(threadIdx.x),
                                                        from + token * q.token_stride +
                                                            head * q.head_stride,
                                                        head < Config::kGroup && token < tokens);
  }
}

// Address of this thread's first chunk in the tile that begins with key `first`; `view` is K or V
// [rows, heads, dim].
template <class Config, class T>
NSAI_DEVICE const u16 *first_chunk(const NsaiView &view, long long first, int group) {
  using Lanes = CopyLanes<T, Config::kThreads>;
  return (const u16 *)view.data + (first + Lanes::row(threadIdx.x)) * view.token_stride +
         group * view.head_stride + Lanes::chunk(threadIdx.x) * 8;
}

// K or V of a query tile in packed tensors; `from` is this thread's first chunk of the next key
// tile.
struct PackedSide {
  const NsaiView &x;
  const u16 *from;
};

// Starts the copy of the next tile [kKeys, kDim] of K or V, whose keys begin at first + ahead. Keys
// from `end` on become zero.
template <class Config, class T, int kDim>
NSAI_DEVICE void load_keys(u32 tile, PackedSide &side, int first, int end, int ahead) {
  using Lanes = CopyLanes<T, Config::kThreads>;
  const long long stride = side.x.token_stride;
  const int left = end - first - ahead;
  int thread = recomputed(threadIdx.x);
#pragma unroll
  for (int i = 0; i < ceil_div(Config::kKeys, Lanes::kPass); ++i) {
    int row = Lanes::row(thread) + i * Lanes::kPass;
    if (Config::kKeys % Lanes::kPass == 0 || row < Config::kKeys)
      copy_row<T, kDim, Config::kThreads>(tile, row, Lanes::chunk(thread), side.from, row < left);
    side.from += min(Lanes::kPass, Config::kKeys - i * Lanes::kPass) * stride;
  }
}

// K or V of a query tile in a KV cache.
template <int kPageRows, int kFirstIndex> struct CachedSide {
  const NsaiCacheTensor &x;
  CachedRows<kPageRows> rows;
  int group;
};

// A thread's codes of a tile [kKeys, kDim], eight for each of its 16-byte chunks.
template <class Config, class T> struct LoadedCodes {
  using Lanes = CopyLanes<T, Config::kThreads>;
  static constexpr int kRows = ceil_div(Config::kKeys, Lanes::kPass),
                       kChunks = ceil_div(T::kChunks, Lanes::kLanes);
  uint2 of[kRows][kChunks];

  // Loads those of the keys from first + ahead on. Keys from `end` on, and columns beyond kDim,
  // become zero.
  template <int kDim, int kPageRows, int kFirstIndex>
  NSAI_DEVICE void load(const CachedSide<kPageRows, kFirstIndex> &side, int first, int end,
                        int ahead) {
    const int left = end - first - ahead, thread = recomputed(threadIdx.x);
    const CachedRun<kPageRows, Config::kKeys, Lanes::kPass> run(side.rows,
                                                                first + ahead + kFirstIndex,
                                                                Lanes::row(thread), left);
    const u16 *gHead = (const u16 *)side.x.data + side.group * side.x.head_stride +
                       Lanes::chunk(thread) * 4; // [rows, kDim / 2 words]
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const u16 *from = gHead + run.offset(side.x, i);
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
        of[i][c] = Lanes::row(thread) + i * Lanes::kPass < left &&
                           (Lanes::chunk(thread) + c * Lanes::kLanes) * 8 < kDim
                       ? *(const uint2 *)(from + c * Lanes::kLanes * 4)
                       : make_uint2(0, 0);
    }
  }

  // Stores them to a tile as elements.
  NSAI_DEVICE void store(u32 tile) const {
    const int thread = recomputed(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int row = Lanes::row(thread) + i * Lanes::kPass,
                  chunk = Lanes::chunk(thread) + c * Lanes::kLanes;
        if ((Config::kKeys % Lanes::kPass == 0 || row < Config::kKeys) &&
            (T::kChunks % Lanes::kLanes == 0 || chunk < T::kChunks))
          store_shared(tile + T::offset(row, chunk),
                       expand_eight<typename Config::Element>(of[i][c]));
      }
  }
};
struct NoCodes {
  NSAI_DEVICE void store(u32) const {}
};

template <class Config, class T, int kDim, int kPageRows, int kFirstIndex>
NSAI_DEVICE void load_keys(u32 tile, const CachedSide<kPageRows, kFirstIndex> &side, int first,
                           int end, int ahead) {
  using Lanes = CopyLanes<T, Config::kThreads>;
  const int left = end - first - ahead;
  int thread = recomputed(threadIdx.x);
  const CachedRun<kPageRows, Config::kKeys, Lanes::kPass> run(side.rows,
                                                              first + ahead + kFirstIndex,
                                                              Lanes::row(thread), left);
  const u16 *gHead = (const u16 *)side.x.data + side.group * side.x.head_stride +
                     Lanes::chunk(thread) * 8; // [rows, kDim]
#pragma unroll
  for (int i = 0; i < ceil_div(Config::kKeys, Lanes::kPass); ++i) {
    int row = Lanes::row(thread) + i * Lanes::kPass;
    if (Config::kKeys % Lanes::kPass == 0 || row < Config::kKeys)
      copy_row<T, kDim, Config::kThreads>(tile, row, Lanes::chunk(thread),
                                          gHead + run.offset(side.x, i), row < left);
  }
}

// Starts the copy of a tile by load_keys() or, of codes, loads it to be stored later.
template <class Config, class T, int kDim, class Side>
NSAI_DEVICE auto fetch_keys(u32 tile, Side &side, int first, int end, int ahead) {
  if constexpr (kReadsCodes<Config>) {
    LoadedCodes<Config, T> codes;
    codes.template load<kDim>(side, first, end, ahead);
    return codes;
  } else {
    load_keys<Config, T, kDim>(tile, side, first, end, ahead);
    return NoCodes();
  }
}

template <class Config, class Keys>
NSAI_DEVICE Sides<PackedSide> find_sides(const NsaiAttend &p, const QueryTile &tile, int begin,
                                         int group) {
  using Shared = FlashShared<Config>;
  int first_row = Keys::first_row(p.seq, tile) + begin;
  return { { p.k, first_chunk<Config, typename Shared::K>(p.k, first_row, group) },
           { p.v, first_chunk<Config, typename Shared::V>(p.v, first_row, group) } };
}

template <class Config, class Keys>
NSAI_DEVICE Sides<CachedSide<Config::kPageRows, Keys::kFirstIndex>>
find_sides(const NsaiCachedAttend &p, const QueryTile &tile, int, int group) {
  auto rows = find_rows<Config::kPageRows>(p.batch, tile.s, p.pair.ring);
  return { { p.pair.k, rows, group }, { p.pair.v, rows, group } };
}

template <class Config, class Keys>
NSAI_DEVICE auto find_sides(const NsaiCodedAttend &p, const QueryTile &tile, int begin, int group) {
  return find_sides<Config, Keys>(p.cached, tile, begin, group);
}

// Parameters of a kernel that works on packed tensors or on a KV cache.
template <class Config>
using AttendParams = CodedParamsOf<Config, NsaiAttend, NsaiCachedAttend, NsaiCodedAttend>;

// S = Q K^T: s[m] [16, kKeys] for each m16 tile of the warp.
template <class Config>
NSAI_DEVICE void multiply_qk(float (&s)[Flash<Config>::kM][Flash<Config>::kN][4], u32 sQ, u32 sK) {
  using F = Flash<Config>;
  using Q = typename F::Shared::Q;
  using K = typename F::Shared::K;
  int thread = recomputed(threadIdx.x), lane = thread % 32;
  u32 q = sQ + Q::offset(thread / 32 * F::kWarpRows + lane % 16,
                         lane / 16); // matrices: rows 0, 8 | columns 0, 8
  u32 k =
      sK + K::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2); // matrices: columns 0, 8 | keys 0, 8
  clear(s);
#pragma unroll
  for (int step = 0; step < F::kSteps; ++step) {
    u32 a[F::kM][4]; // Q [16, 16]
#pragma unroll
    for (int m = 0; m < F::kM; ++m) ldmatrix_x4(a[m], at_step<Q>(q, step) + m * 16 * Q::kPitch);
#pragma unroll
    for (int j = 0; j < F::kN; j += 2) {
      u32 b[4]; // K [16 keys, 16]
      ldmatrix_x4(b, at_step<K>(k, step) + j * 8 * K::kPitch);
#pragma unroll
      for (int m = 0; m < F::kM; ++m) {
        mma_m16n16k16(typename Config::Element(), s[m][j], s[m][j + 1], a[m], b);
      }
    }
  }
}

// O += P V with P = 2^(s - reference), 16 keys at a time, so that the exponentials of the next keys
// overlap with the products.
template <class Config>
NSAI_DEVICE void multiply_pv(float (&o)[Flash<Config>::kM][Flash<Config>::kO][4],
                             float (&s)[Flash<Config>::kM][Flash<Config>::kN][4],
                             SoftmaxRows (&rows)[Flash<Config>::kM], u32 sV, float scale_log2) {
  using F = Flash<Config>;
  using V = typename F::Shared::V;
  int lane = recomputed(threadIdx.x) % 32;
  u32 v = sV + V::offset(lane % 16, lane / 16); // matrices: keys 0, 8 | columns 0, 8
#pragma unroll
  for (int j = 0; j < F::kN; j += 2) {
    u32 a[F::kM][4], rest[F::kM][4]; // P [16, 16 keys]
#pragma unroll
    for (int m = 0; m < F::kM; ++m) {
      softmax_exponentiate(rows[m], s[m][j], scale_log2);
      softmax_exponentiate(rows[m], s[m][j + 1], scale_log2);
      softmax_pack<typename Config::Element>(a[m], s[m][j], s[m][j + 1]);
      if constexpr (kSplitP<Config>)
        softmax_pack_rest<typename Config::Element>(rest[m], a[m], s[m][j], s[m][j + 1]);
    }
#pragma unroll
    for (int n = 0; n < F::kO; n += 2) {
      u32 b[4]; // V [16 keys, 16]
      ldmatrix_x4_trans(b, at_step<V>(v, n / 2) + j * 8 * V::kPitch);
#pragma unroll
      for (int m = 0; m < F::kM; ++m) {
        mma_m16n16k16(typename Config::Element(), o[m][n], o[m][n + 1], a[m], b);
        if constexpr (kSplitP<Config>) {
          mma_m16n16k16(typename Config::Element(), o[m][n], o[m][n + 1], rest[m], b);
        }
      }
    }
  }
}

template <class Config, class Keys, class Params>
NSAI_DEVICE void flash_attend(const Params &params) {
  using F = Flash<Config>;
  using Shared = typename F::Shared;
  constexpr int kKeys = Config::kKeys;
  const NsaiAttend &p = packed_of(params);
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  Shared &shared = *(Shared *)shared_bytes;
  begin_kernel();

  // ---- coordinates
  int tiles = gridDim.x / p.kv_heads;
  int group = blockIdx.x / tiles, number = blockIdx.x % tiles;
  QueryTile tile = find_query_tile<F::kTokens>(sequences_of(params),
                                               Keys::kLongestFirst ? tiles - 1 - number : number);
  int tokens = min(F::kTokens, tile.seq.q_len - tile.first_query); // tokens of this tile
  if (tokens <= 0 || tile.first_query < 0) return;
  int position = tile.seq.position(tile.first_query);    // of the tile's first token
  int first_token = tile.seq.q_begin + tile.first_query; // its row of q and o
  int begin = Keys::visible(position).begin, end = Keys::visible(position + tokens - 1).end;

  // tile_row: index within the tile of this warp's row `row`. position_of: position of that row's
  // token; rows past the last token take the last token's position.
  auto tile_row = [](int row) { return recomputed(threadIdx.x) / 32 * F::kWarpRows + row; };
  auto position_of = [&](int row) {
    return position + min(tile_row(row) / Config::kGroupPadded, tokens - 1);
  };

  auto sides = find_sides<Config, Keys>(params, tile, begin, group);
  using K = typename Shared::K;
  using V = typename Shared::V;
  u32 sQ = shared_address(shared.q), sK = shared_address(shared.k), sV = shared_address(shared.v);

  float o[F::kM][F::kO][4] = {}; // [16, Dv] each
  SoftmaxRows rows[F::kM];

  // ---- key tiles
  const float scale_log2 = scale_by_keys<Config>(p.scale_log2, params, group);
  load_queries<Config>(sQ, p.q, tile, group);
  if (begin < end) fetch_keys<Config, K, Config::kHeadDimQk>(sK, sides.k, begin, end, 0).store(sK);
  copy_async_commit();
  for (int first = begin; first < end; first += kKeys) {
    // Whether any row of this warp sees one of these keys. The vote tells the compiler that the
    // result is warp-uniform.
    bool seen = __any_sync(~0u, first < Keys::visible(position_of(F::kWarpRows - 1)).end &&
                                    first + kKeys > Keys::visible(position_of(0)).begin);
    float s[F::kM][F::kN][4]; // [16, kKeys] each

    copy_async_wait<0>();
    // K of this tile (and Q) has arrived, and all warps have finished with V of the previous tile.
    __syncthreads();
    const auto v = fetch_keys<Config, V, Config::kHeadDimV>(sV, sides.v, first, end, 0);
    copy_async_commit();
    if (seen) multiply_qk<Config>(s, sQ, sK);
    v.store(sV);

    copy_async_wait<0>();
    // V of this tile has arrived, and all warps have finished with K.
    __syncthreads();
    decltype(fetch_keys<Config, K, Config::kHeadDimQk>(sK, sides.k, first, end, kKeys)) next;
    if (first + kKeys < end)
      next = fetch_keys<Config, K, Config::kHeadDimQk>(sK, sides.k, first, end, kKeys);
    copy_async_commit();
    if (!seen) {
      if (first + kKeys < end) next.store(sK);
      continue;
    }
    bool partly = __any_sync(~0u, first < Keys::visible(position_of(F::kWarpRows - 1)).begin ||
                                      first + kKeys > Keys::visible(position_of(0)).end);
#pragma unroll
    for (int m = 0; m < F::kM; ++m) {
      if (partly) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
          mask_row(s[m], r, Keys::visible(position_of(m * 16 + r * 8 + threadIdx.x % 32 / 4)),
                   first);
      }
      softmax_raise(rows[m], s[m], o[m], scale_log2);
    }
    multiply_pv<Config>(o, s, rows, sV, scale_log2);
    if (first + kKeys < end) next.store(sK);
  }

  // Drains the copy of Q when no key was visible: a CTA must not exit with cp.async in flight.
  copy_async_wait<0>();

  // ---- epilogue
#pragma unroll
  for (int m = 0; m < F::kM; ++m) scale_by_values<Config>(o[m], params, group);
#pragma unroll
  for (int m = 0; m < F::kM; ++m) {
    OutputRow output_row[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int row = tile_row(m * 16 + r * 8 + threadIdx.x % 32 / 4);
      int token = row / Config::kGroupPadded, head = row % Config::kGroupPadded;
      output_row[r] =
          OutputRow{ first_token + token, recomputed(blockIdx.x) / tiles * Config::kGroup + head,
                     head < Config::kGroup && token < tokens };
    }
    store_output<Config>(p.out, p.kv_heads, o[m], rows[m], output_row);
  }
}
