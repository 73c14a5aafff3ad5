// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The KV-stationary half of the backward pass: a tile of keys over the query rows that see them,
// for one branch. backward_dkv_compressed, backward_dkv_selected, backward_dkv_ranges and
// backward_dkv_window share it; they differ in the policy `Rows`: token(i) and seen(i) of the i-th
// token, and next(), which finds more rows if they do not all come at once.
//
//   S^T = scale K Q^T      dU^T = V dO^T      P' = g 2^(S - LSE)      dS = P' (dU - u)
//   dV += P'^T dO          dK += dS^T Q                               -> partial [keys, Dk + Dv]
//
// The products deliver P' and dS already transposed; they enter the next products from registers.
//
// CTA: kKeys keys of one KV head, 16 per warp, with dK and dV in registers. Query rows pass by in
// tiles of kRows: row r is head r % G of token r / G of those that see the keys. Every existing key
// is written, with zeros if no query sees it.
//
// Shared memory: nsai_smem_dkv() of params/smem.h.
//
// kSplit: 1: separate CTAs (grid.y) compute dK and dV, for head dims whose two sums do not fit into
// registers together.
//
// kWgmma: 1: a warpgroup multiplies 64 keys by wgmma (sm_90a).
//
// Config: Element, kHeadDimQk, kHeadDimV, kGroup, kKeys, kRows, kWarps, kWgmma, kStages (1, 2),
// kSplit, kEntries (words of shared memory for `Rows`: 0, the most tokens of an item, or see
// backward_dkv_ranges), kThreads, kMinBlocks, kSharedBytes, kGate, kBlock (l), kStride (d), kWindow
// (w), kSelectBlock (l').
#pragma once
#include "backward/pipelines/dkv_tiles.cuh"
#include "backward/products.cuh"
#include "core/launch.cuh"

template <class Config> struct DkvTraits {
  static constexpr int kColsQk = padded_dim(Config::kHeadDimQk),
                       kColsV = padded_dim(Config::kHeadDimV);
  static constexpr int kN = Config::kRows / 8; // n8 tiles of S^T
  static constexpr int kWidth = Config::kHeadDimQk + Config::kHeadDimV;
  using K = ProductTile<Config::kWgmma, Config::kKeys, kColsQk>;
  using V = ProductTile<Config::kWgmma, Config::kKeys, kColsV>;
  using Q = ProductTile<Config::kWgmma, Config::kRows, kColsQk>;
  using DO = ProductTile<Config::kWgmma, Config::kRows, kColsV>;
  static constexpr int kAlign = Config::kWgmma ? 1024 : 128; // alignment of a stage

  // Shared memory layout: offsets in bytes; those from kQ on are relative to a stage.
  static constexpr int kSK = 0, kSV = kSK + K::kBytes, kSStage = kSV + V::kBytes;
  static constexpr int kQ = 0, kDO = kQ + Q::kBytes, kStatistics = kDO + DO::kBytes,
                       kSeen = kStatistics + 16 * Config::kRows;
  static constexpr int kStageBytes = (kSeen + 4 * Config::kRows + kAlign - 1) / kAlign * kAlign;
  static constexpr int kSEntries = kSStage + Config::kStages * kStageBytes;
  static constexpr int kBytes = kSEntries + 4 * Config::kEntries;
  static_assert(kBytes == Config::kSharedBytes, "the host computes another size of shared memory");
  static_assert(Config::kKeys == 16 * Config::kWarps && Config::kThreads == 32 * Config::kWarps,
                "each warp has 16 keys");
  static_assert(!Config::kWgmma || Config::kKeys == 64, "a warpgroup multiplies 64 keys");
  static_assert(Config::kRows % 16 == 0, "dK and dV take 16 rows at a time");
};

// Starts the copies of row tile `number` into a stage; rows behind the last are zeros. Returns
// whether some row of this thread does not see all kKeys keys.
template <class Config, class Rows>
NSAI_DEVICE bool load_query_rows(const NsaiBackwardKv &p, const Rows &rows, int head, int count,
                                 int number, u32 stage) {
  using F = DkvTraits<Config>;
  const int first = number * Config::kRows;
  const int first_head = head * Config::kGroup;
  auto token_of = [&](int row) { return rows.token(min(first + row, count - 1) / Config::kGroup); };
  auto head_of = [&](int row) { return first_head + (first + row) % Config::kGroup; };
  load_tile<typename F::Q, Config::kRows, Config::kHeadDimQk, Config::kThreads>(
      stage + F::kQ, [&](int row, const u16 *&from) {
        from = (const u16 *)p.q.data + token_of(row) * p.q.token_stride +
               head_of(row) * p.q.head_stride;
        return first + row < count;
      });
  load_tile<typename F::DO, Config::kRows, Config::kHeadDimV, Config::kThreads>(
      stage + F::kDO, [&](int row, const u16 *&from) {
        from = (const u16 *)p.d_o.data + token_of(row) * p.d_o.token_stride +
               head_of(row) * p.d_o.head_stride;
        return first + row < count;
      });
  bool masked = false;
  for (int row = threadIdx.x; row < Config::kRows; row += Config::kThreads) {
    const bool present = first + row < count;
    const long long at = statistics_at(Rows::kBranch, p.seq.q_tokens, token_of(row),
                                       Config::kGroup * p.kv_heads, head_of(row));
    copy_async_16(stage + F::kStatistics + 16 * row, (const RowStatistics *)p.statistics + at,
                  present);
    const u32 seen = present ? rows.seen((first + row) / Config::kGroup) : 0u;
    store_shared_word(stage + F::kSeen + 4 * row, seen);
    masked |= seen != (u32)Config::kKeys << 16;
  }
  return masked;
}

// Turns S [16 keys, 8 rows] of one n8 tile of rows into P'. kMasked 0: every row sees every key.
template <class Config, bool kMasked>
NSAI_DEVICE void probabilities(float (&s)[4], u32 stage, int first_row, int key, float scale_log2) {
  using F = DkvTraits<Config>;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int row = first_row + 2 * (threadIdx.x & 3) + c;
    const uint2 x = load_shared_pair(stage + F::kStatistics + 16 * row); // LSE, gate
    const u32 seen = kMasked ? load_shared_word(stage + F::kSeen + 4 * row) : 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float e = gated_probability<Config>(s[2 * r + c], scale_log2, __uint_as_float(x.x),
                                                __uint_as_float(x.y));
      const bool sees =
          !kMasked || (key + 8 * r >= (int)(seen & 0xffff) && key + 8 * r < (int)(seen >> 16));
      s[2 * r + c] = sees ? e : 0.0f;
    }
  }
}

// Turns dU into dS = P' (dU - u).
template <class Config>
NSAI_DEVICE void score_gradients(float (&du)[4], const float (&s)[4], u32 stage, int first_row) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int row = first_row + 2 * (threadIdx.x & 3) + c;
    const float inner =
        __uint_as_float(load_shared_word(stage + DkvTraits<Config>::kStatistics + 16 * row + 8));
#pragma unroll
    for (int r = 0; r < 2; ++r) du[2 * r + c] = s[2 * r + c] * (du[2 * r + c] - inner);
  }
}

// Probabilities of the whole tile: s [16 keys, kRows].
template <class Config, int kN>
NSAI_DEVICE void all_probabilities(float (&s)[kN][4], u32 stage, bool masked, int key,
                                   float scale_log2) {
  if (masked) {
#pragma unroll
    for (int j = 0; j < kN; ++j) probabilities<Config, true>(s[j], stage, 8 * j, key, scale_log2);
  } else {
#pragma unroll
    for (int j = 0; j < kN; ++j) probabilities<Config, false>(s[j], stage, 8 * j, key, scale_log2);
  }
}

// Adds one tile of rows to dK (if kMakesK) and dV (if kMakesV) of 64 keys, by the warpgroup. The
// exponentials overlap with dU, and dS overlaps with dV.
template <class Config, bool kMakesK, bool kMakesV, int kK, int kV>
NSAI_DEVICE void add_rows_wgmma(float (&dk)[kK][4], float (&dv)[kV][4], u32 base, u32 stage,
                                bool masked, float scale_log2) {
  using F = DkvTraits<Config>;
  using E = typename Config::Element;
  const int key = (int)(recomputed(threadIdx.x) / 32) * 16 + (int)(threadIdx.x & 31) / 4;
  float s[F::kN][4], du[F::kN][4]; // [64 keys, kRows]
  u32 rP[F::kN / 2][4], rDS[F::kN / 2][4];
  // One wgmma group each for S, dU, dV, dK. A group without products makes ptxas insert a fence
  // (advisory C7519).
  wgmma_fence();
  start_rows<E, typename F::K, typename F::Q, Config::kHeadDimQk>(s, base + F::kSK, stage + F::kQ);
  wgmma_commit();
  if constexpr (kMakesK) {
    start_rows<E, typename F::V, typename F::DO, Config::kHeadDimV>(du, base + F::kSV,
                                                                    stage + F::kDO);
    wgmma_commit();
  }
  wgmma_wait<kMakesK ? 1 : 0>();
  hold(s);
  all_probabilities<Config>(s, stage, masked, key, scale_log2);
  if constexpr (kMakesV) {
    pack_all<E>(rP, s);
    wgmma_fence();
    start_fragments<E, typename F::DO>(dv, rP, stage + F::kDO);
    wgmma_commit();
  }
  if constexpr (kMakesK) {
    wgmma_wait<kMakesV ? 1 : 0>();
    hold(du);
#pragma unroll
    for (int j = 0; j < F::kN; ++j) score_gradients<Config>(du[j], s[j], stage, 8 * j);
    pack_all<E>(rDS, du);
    wgmma_fence();
    start_fragments<E, typename F::Q>(dk, rDS, stage + F::kQ);
    wgmma_commit();
  }
  wgmma_wait<0>();
  if constexpr (kMakesV) hold(dv);
  if constexpr (kMakesK) hold(dk);
}

// Adds one tile of rows to dK (if kMakesK) and dV (if kMakesV) of the warp's 16 keys.
template <class Config, bool kMakesK, bool kMakesV, int kK, int kV>
NSAI_DEVICE void add_rows_mma(float (&dk)[1][kK][4], float (&dv)[1][kV][4], u32 base, u32 stage,
                              bool masked, float scale_log2) {
  using F = DkvTraits<Config>;
  using E = typename Config::Element;
  const int warp_key = recomputed(threadIdx.x) / 32 * 16;
  float s[1][F::kN][4], du[1][F::kN][4]; // [16 keys, kRows]
  multiply_rows<E, typename F::K, typename F::Q, Config::kHeadDimQk>(s, base + F::kSK, warp_key,
                                                                     stage + F::kQ);
  if constexpr (kMakesK)
    multiply_rows<E, typename F::V, typename F::DO, Config::kHeadDimV>(du, base + F::kSV, warp_key,
                                                                       stage + F::kDO);
  all_probabilities<Config>(s[0], stage, masked, warp_key + (int)(threadIdx.x & 31) / 4,
                            scale_log2);
  if constexpr (kMakesK) {
#pragma unroll
    for (int j = 0; j < F::kN; ++j) score_gradients<Config>(du[0][j], s[0][j], stage, 8 * j);
  }
#pragma unroll
  for (int j = 0; j < F::kN; j += 2) {
    u32 x[1][4]; // [16 keys, 16 rows]
    if constexpr (kMakesV) {
      softmax_pack<E>(x[0], s[0][j], s[0][j + 1]);
      multiply_fragments<E, typename F::DO>(dv, x, stage + F::kDO, 8 * j);
    }
    if constexpr (kMakesK) {
      softmax_pack<E>(x[0], du[0][j], du[0][j + 1]);
      multiply_fragments<E, typename F::Q>(dk, x, stage + F::kQ, 8 * j);
    }
  }
}

// Stores the partial sums acc [16, 8 * kN] of the warp's keys, in columns from `column` on.
template <class Config, int kDim, int kN>
NSAI_DEVICE void store_partial(const KeyTile &tile, int column, const float (&acc)[kN][4],
                               float scale) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int key = (int)threadIdx.x / 32 * 16 + r * 8 + (int)(threadIdx.x & 31) / 4;
    float *to = tile.partial + (long long)key * DkvTraits<Config>::kWidth + column;
    for_columns<kDim>(acc, r, scale, [&](int at, const float4 &x) {
      if (key < tile.keys) *(float4 *)(to + at) = x;
    });
  }
}

// Adds the rows that are currently known to dK and dV.
template <class Config, bool kMakesK, bool kMakesV, class Rows, int kK, int kV>
NSAI_DEVICE void add_rows(const NsaiBackwardKv &p, float (&dk)[1][kK][4], float (&dv)[1][kV][4],
                          int tokens, const Rows &rows, int head, u32 base) {
  using F = DkvTraits<Config>;
  const int count = tokens * Config::kGroup, tiles = ceil_div(count, Config::kRows);
  auto stage_at = [&](int number) {
    return base + F::kSStage + (Config::kStages == 2 ? number & 1 : 0) * F::kStageBytes;
  };
  bool masked = false, next_masked = false; // of tile i, and of the next
  if (tiles > 0) next_masked = load_query_rows<Config>(p, rows, head, count, 0, stage_at(0));
  copy_async_commit();
  for (int i = 0; i < tiles; ++i) {
    masked = next_masked;
    if (Config::kStages == 2 && i + 1 < tiles)
      next_masked = load_query_rows<Config>(p, rows, head, count, i + 1, stage_at(i + 1));
    copy_async_commit();
    copy_async_wait<1>();
    if constexpr (Config::kWgmma) shared_proxy_fence();
    masked = __syncthreads_or(masked); // tile i has arrived (and K and V)
    if constexpr (Config::kWgmma)
      add_rows_wgmma<Config, kMakesK, kMakesV>(dk[0], dv[0], base, stage_at(i), masked,
                                               p.scale_log2);
    else
      add_rows_mma<Config, kMakesK, kMakesV>(dk, dv, base, stage_at(i), masked, p.scale_log2);
    __syncthreads(); // all warps have finished with it
    if (Config::kStages == 1 && i + 1 < tiles)
      next_masked = load_query_rows<Config>(p, rows, head, count, i + 1, stage_at(i + 1));
    if (Config::kStages == 1) copy_async_commit();
  }
}

template <class Config, bool kMakesK, bool kMakesV, class Rows>
NSAI_DEVICE void run_keys(const NsaiBackwardKv &p, const KeyTile &tile, Rows &rows, int head,
                          u32 base) {
  using F = DkvTraits<Config>;
  constexpr int kK = kMakesK ? F::kColsQk / 8 : 2, kV = kMakesV ? F::kColsV / 8 : 2;
  float dk[1][kK][4] = {}, dv[1][kV][4] = {}; // [16, Dk], [16, Dv]
  int tokens = tile.tokens;
  do {
    add_rows<Config, kMakesK, kMakesV>(p, dk, dv, tokens, rows, head, base);
  } while (rows.next(tokens));
  copy_async_wait<0>(); // a CTA must not exit with cp.async in flight
  if constexpr (kMakesK) store_partial<Config, Config::kHeadDimQk>(tile, 0, dk[0], p.scale);
  if constexpr (kMakesV)
    store_partial<Config, Config::kHeadDimV>(tile, Config::kHeadDimQk, dv[0], 1.0f);
}

// Loads the tile's K and V together with the first rows, then processes all rows.
template <class Config, class Rows>
NSAI_DEVICE void attend_keys(const NsaiBackwardKv &p, const KeyTile &tile, Rows &rows, u32 base) {
  using F = DkvTraits<Config>;
  const int head = tile.head;
  load_tile<typename F::K, Config::kKeys, Config::kHeadDimQk, Config::kThreads>(
      base + F::kSK, [&](int row, const u16 *&from) {
        from = (const u16 *)p.k.data + (tile.key_row + row) * p.k.token_stride +
               head * p.k.head_stride;
        return row < tile.keys;
      });
  load_tile<typename F::V, Config::kKeys, Config::kHeadDimV, Config::kThreads>(
      base + F::kSV, [&](int row, const u16 *&from) {
        from = (const u16 *)p.v.data + (tile.key_row + row) * p.v.token_stride +
               head * p.v.head_stride;
        return row < tile.keys;
      });
  if constexpr (!Config::kSplit) {
    run_keys<Config, true, true>(p, tile, rows, head, base);
  } else {
    if (blockIdx.y == 0)
      run_keys<Config, true, false>(p, tile, rows, head, base);
    else
      run_keys<Config, false, true>(p, tile, rows, head, base);
  }
}

// The whole of a kernel whose rows need no preparation.
template <class Config, class Rows> NSAI_DEVICE void attend_found_keys(const NsaiBackwardKv &p) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  Rows rows;
  KeyTile tile;
  if (find_rows<Config>(p, rows, tile))
    attend_keys<Config>(p, tile, rows, shared_address(shared_bytes));
}
