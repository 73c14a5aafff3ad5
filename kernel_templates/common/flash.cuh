// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Flash attention over contiguous key ranges with mma.sync: the loop of attend_compressed_mma, attend_window_mma and
// dense_mma, which differ in nothing but the keys a query sees (`Keys`, below).
//
//   o[t, h] = softmax over keys i in [begin(t), end(t)) of (scale * q[t, h] . k[i]) V
//
// Grid     x = kv_heads * tiles, KV head major, so that the K and V of one head at a time live in L2.
//          tiles = seq.cu_q ? q_tokens / T + num_seqs : ceil(q_tokens / T), T = kRows / kGroupPadded tokens.
// CTA      kRows query rows of one KV head, token major: row r is head r % kGroupPadded of the group, token
//          r / kGroupPadded of the tile. Every warp owns kRows / kWarps rows, kM tiles of 16, with their softmax and O in
//          registers; each K and V fragment it reads from shared memory feeds kM products.
// Shared   Q [kRows, Dk] | K [kKeys, Dk] | V [kKeys, Dv], pitch(D) bytes a row with C = ceil(D / 16) * 2 chunks of 16 bytes:
//          pitch = 16 * (C % 8 == 0 ? C : C | 1);  kSharedBytes = (kRows + kKeys) * pitch(Dk) + kKeys * pitch(Dv).
// Copies   cp.async by all threads: V of a tile arrives during Q K^T, K of the next tile during softmax and P V. One buffer
//          each: a second CTA on the SM fills the waits at the two barriers of a tile.
// Bound    by mma.sync issue where Dk, Dv >= 128; by exponentials at 64 and below.
//
// Config: Element, kHeadDimQk, kHeadDimV, kGroup, kGroupPadded, kRows, kKeys, kWarps, kThreads, kMinBlocks, kSharedBytes,
// kGate, kGateFloat.
#pragma once
#include "common/copy.cuh"
#include "common/epilogue.cuh"
#include "common/mma.cuh"
#include "common/params.h"
#include "common/sequence.cuh"
#include "common/softmax.cuh"
#include "common/tile.cuh"
#include "common/types.cuh"

// Keys that a query sees: [begin, end), both ascending with the query's position. The policy `Keys` of a kernel has
//   KeyRange visible(int position)                                    keys in units of rows of the sequence's k and v
//   int first_row(const NsaiSequences &seqs, const QueryTile &tile)   row of k and v of the sequence's key 0
//   constexpr bool kLongestFirst                                      later tiles have more keys: start with them
struct KeyRange {
  int begin, end;
};

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
  static constexpr int kTokens = Config::kRows / Config::kGroupPadded; // of a tile
  static constexpr int kWarpRows = Config::kRows / Config::kWarps;
  static constexpr int kM = kWarpRows / 16;                        // m16 tiles of a warp
  static constexpr int kN = Config::kKeys / 8;                     // n8 tiles of S
  static constexpr int kO = padded_dim(Config::kHeadDimV) / 8;     // n8 tiles of O
  static constexpr int kSteps = padded_dim(Config::kHeadDimQk) / 16; // k16 steps of Q K^T
  static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0, "rows are read in chunks of 16 bytes");
  static_assert((Config::kGroupPadded & (Config::kGroupPadded - 1)) == 0 && Config::kGroup <= Config::kGroupPadded,
                "kGroupPadded is the next power of two");
  static_assert(kTokens >= 1 && kTokens * Config::kGroupPadded == Config::kRows, "a tile holds whole tokens");
  static_assert(kM >= 1 && kM * 16 * Config::kWarps == Config::kRows, "a warp owns whole m16 tiles");
  static_assert(Config::kKeys % 16 == 0, "P V takes 16 keys at a time");
  static_assert(Config::kThreads == 32 * Config::kWarps, "all warps compute");
  static_assert(sizeof(Shared) == Config::kSharedBytes, "the host's formula for shared memory");
};

// Address of chunk pair `step` of the row that `base` (pair 0) points into; see Tile for the swizzle. A tile begins at a
// multiple of 128 bytes, so bits 4 to 6 of `base` are the swizzled chunk and nothing else.
template <class T> NSAI_DEVICE u32 at_step(u32 base, int step) {
  if constexpr (T::kSwizzled) return (base ^ ((step & 3) << 5)) + (step >> 2) * 128;
  else return base + step * 32;
}

// A row of global memory on its way to a tile; rows that are not present are not read but zero.
struct SourceRow {
  const u16 *data;
  bool present;
};

// Fills tile T [kRows, kDim] with rows source(0), source(1) .. and zeros in the columns that pad the tile. Lanes side by side
// read the chunks of one row side by side.
template <class T, int kRows, int kDim, int kThreads, class Source>
NSAI_DEVICE void load_rows(u32 tile, Source source) {
  constexpr int kLanes = T::kChunks > 4 ? 8 : T::kChunks; // that share a row: 2, 4 or 8
  constexpr int kPass = kThreads / kLanes;                // rows at once
  int lane_chunk = threadIdx.x % kLanes;
#pragma unroll
  for (int i = 0; i < ceil_div(kRows, kPass); ++i) {
    int row = threadIdx.x / kLanes + i * kPass;
    if (kRows % kPass != 0 && row >= kRows) break;
    SourceRow from = source(row);
#pragma unroll
    for (int c = 0; c < T::kChunks; c += kLanes) {
      int chunk = c + lane_chunk;
      if (c + kLanes <= T::kChunks || chunk < T::kChunks)
        copy_async_16(tile + T::offset(row, chunk), from.data + chunk * 8, from.present && chunk * 8 < kDim);
    }
  }
}

// Q of a tile [kRows, Dk]; padding heads and tokens from q_len on are zero.
template <class Config> NSAI_DEVICE void load_queries(u32 tile, const NsaiView &q, const QueryTile &at, int group) {
  const u16 *from = (const u16 *)q.data + (at.seq.q_begin + at.first_query) * q.token_stride +
                    group * Config::kGroup * q.head_stride;
  int tokens = at.seq.q_len - at.first_query;
  load_rows<typename FlashShared<Config>::Q, Config::kRows, Config::kHeadDimQk, Config::kThreads>(tile, [&](int row) {
    int token = row / Config::kGroupPadded, head = row % Config::kGroupPadded;
    return SourceRow{ from + token * q.token_stride + head * q.head_stride, head < Config::kGroup && token < tokens };
  });
}

// Keys [first, first + kKeys) of K or V [keys, kDim] of one head; keys from `end` on are zero.
template <class Config, class T, int kDim>
NSAI_DEVICE void load_keys(u32 tile, const u16 *from, long long stride, int first, int end) {
  load_rows<T, Config::kKeys, kDim, Config::kThreads>(
      tile, [&](int row) { return SourceRow{ from + (first + row) * stride, first + row < end }; });
}

// S = Q K^T: s[m] [16, kKeys] of every m16 tile of the warp. `q`, `k`: this lane's ldmatrix row of step 0.
template <class Config>
NSAI_DEVICE void multiply_qk(float (&s)[Flash<Config>::kM][Flash<Config>::kN][4], u32 q, u32 k) {
  using F = Flash<Config>;
  using Q = typename F::Shared::Q;
  using K = typename F::Shared::K;
#pragma unroll
  for (int m = 0; m < F::kM; ++m)
#pragma unroll
    for (int j = 0; j < F::kN; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) s[m][j][c] = 0.0f;
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
        mma_m16n8k16(typename Config::Element(), s[m][j], a[m], b[0], b[1]);
        mma_m16n8k16(typename Config::Element(), s[m][j + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Scores s [16, 8 * kN] of row r (0: group, 1: group + 8) outside `seen` become -inf. Column 0 is key `first`.
template <int kN> NSAI_DEVICE void mask_row(float (&s)[kN][4], int r, KeyRange seen, int first) {
  int lane_first = first + 2 * (threadIdx.x & 3);
  int begin = seen.begin - lane_first, end = seen.end - lane_first;
#pragma unroll
  for (int j = 0; j < kN; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (8 * j + c < begin || 8 * j + c >= end) s[j][2 * r + c] = kMinusInf;
}

// O += P V with P = 2^(s - reference), 16 keys at a time: exponentials of the next keys run beside the products.
// `v`: this lane's ldmatrix row of key 0, columns 0.
template <class Config>
NSAI_DEVICE void multiply_pv(float (&o)[Flash<Config>::kM][Flash<Config>::kO][4],
                             float (&s)[Flash<Config>::kM][Flash<Config>::kN][4],
                             SoftmaxRows (&rows)[Flash<Config>::kM], u32 v, float scale_log2) {
  using F = Flash<Config>;
  using V = typename F::Shared::V;
#pragma unroll
  for (int j = 0; j < F::kN; j += 2) {
    u32 a[F::kM][4]; // P [16, 16 keys]
#pragma unroll
    for (int m = 0; m < F::kM; ++m) {
      softmax_exponentiate(rows[m], s[m][j], scale_log2);
      softmax_exponentiate(rows[m], s[m][j + 1], scale_log2);
      softmax_pack<typename Config::Element>(a[m], s[m][j], s[m][j + 1]);
    }
#pragma unroll
    for (int n = 0; n < F::kO; n += 2) {
      u32 b[4]; // V [16 keys, 16]
      ldmatrix_x4_trans(b, at_step<V>(v, n / 2) + j * 8 * V::kPitch);
#pragma unroll
      for (int m = 0; m < F::kM; ++m) {
        mma_m16n8k16(typename Config::Element(), o[m][n], a[m], b[0], b[1]);
        mma_m16n8k16(typename Config::Element(), o[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

template <class Config, class Keys> NSAI_DEVICE void flash_attend(const NsaiAttend &p) {
  using F = Flash<Config>;
  using Shared = typename F::Shared;
  constexpr int kKeys = Config::kKeys;
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  Shared &shared = *(Shared *)shared_bytes;

  // ---- coordinates -------------------------------------------------------------------------------------------------
  int tiles = gridDim.x / p.kv_heads;
  int group = blockIdx.x / tiles, number = blockIdx.x % tiles;
  QueryTile tile = find_query_tile<F::kTokens>(p.seq, Keys::kLongestFirst ? tiles - 1 - number : number);
  int tokens = min(F::kTokens, tile.seq.q_len - tile.first_query); // of this tile
  if (tokens <= 0) return;
  int position = tile.seq.position(tile.first_query); // of the tile's first token
  int begin = Keys::visible(position).begin, end = Keys::visible(position + tokens - 1).end;

  int warp = __shfl_sync(~0u, threadIdx.x / 32, 0); // the shuffle tells the compiler that the warp agrees
  int lane = threadIdx.x % 32, warp_row = warp * F::kWarpRows;
  int warp_first = position + min(warp_row / Config::kGroupPadded, tokens - 1); // positions of the warp's tokens
  int warp_last = position + min((warp_row + F::kWarpRows - 1) / Config::kGroupPadded, tokens - 1);
  KeyRange some = { Keys::visible(warp_first).begin, Keys::visible(warp_last).end }; // seen by one of its rows
  KeyRange all = { Keys::visible(warp_last).begin, Keys::visible(warp_first).end };  // seen by each

  long long first_row = Keys::first_row(p.seq, tile);
  const u16 *gK = (const u16 *)p.k.data + first_row * p.k.token_stride + group * p.k.head_stride; // [keys, Dk]
  const u16 *gV = (const u16 *)p.v.data + first_row * p.v.token_stride + group * p.v.head_stride; // [keys, Dv]
  u32 sQ = shared_address(shared.q), sK = shared_address(shared.k), sV = shared_address(shared.v);

  // Rows that this lane hands to ldmatrix: 16 x 16 of Q and of V by (row, columns), of K by (columns, key).
  u32 q_lane = sQ + Shared::Q::offset(warp_row + lane % 16, lane / 16);
  u32 k_lane = sK + Shared::K::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  u32 v_lane = sV + Shared::V::offset(lane % 16, lane / 16);

  float o[F::kM][F::kO][4] = {}; // [16, Dv] each
  SoftmaxRows rows[F::kM];

  // ---- key tiles ---------------------------------------------------------------------------------------------------
  load_queries<Config>(sQ, p.q, tile, group);
  if (begin < end)
    load_keys<Config, typename Shared::K, Config::kHeadDimQk>(sK, gK, p.k.token_stride, begin, end);
  copy_async_commit();
  for (int first = begin; first < end; first += kKeys) {
    bool seen = first < some.end && first + kKeys > some.begin; // by the warp
    float s[F::kM][F::kN][4];                                   // [16, kKeys] each

    copy_async_wait<0>();
    __syncthreads(); // K of this tile is there (and Q); everyone is done with V of the tile before
    load_keys<Config, typename Shared::V, Config::kHeadDimV>(sV, gV, p.v.token_stride, first, end);
    copy_async_commit();
    if (seen) multiply_qk<Config>(s, q_lane, k_lane);

    copy_async_wait<0>();
    __syncthreads(); // V of this tile is there; everyone is done with K
    if (first + kKeys < end)
      load_keys<Config, typename Shared::K, Config::kHeadDimQk>(sK, gK, p.k.token_stride, first + kKeys, end);
    copy_async_commit();
    if (!seen) continue;
    bool whole = first >= all.begin && first + kKeys <= all.end;
#pragma unroll
    for (int m = 0; m < F::kM; ++m) {
      if (!whole) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          int token = (warp_row + m * 16 + r * 8 + lane / 4) / Config::kGroupPadded;
          mask_row(s[m], r, Keys::visible(position + token), first);
        }
      }
      softmax_raise(rows[m], s[m], o[m], p.scale_log2);
    }
    multiply_pv<Config>(o, s, rows, v_lane, p.scale_log2);
  }

  // ---- epilogue ----------------------------------------------------------------------------------------------------
#pragma unroll
  for (int m = 0; m < F::kM; ++m) {
    OutputRow place[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int row = warp_row + m * 16 + r * 8 + lane / 4;
      int token = row / Config::kGroupPadded, head = row % Config::kGroupPadded;
      place[r] = OutputRow{ tile.seq.q_begin + tile.first_query + token, group * Config::kGroup + head,
                            head < Config::kGroup && token < tokens };
    }
    store_output<Config>(p.out, p.kv_heads, o[m], rows[m], place);
  }
}
