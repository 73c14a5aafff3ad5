// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// A tile of query rows and the key tiles that its rows see, for backward/dq_mainloop.cuh, which
// describes grid, shared memory and Config.
#pragma once
#include "backward/products.cuh"
#include "data/key_range.cuh"
#include "data/list_cursor.cuh"
#include "data/sequence.cuh"

template <class Config> struct DqTraits {
  static constexpr int kTokens = Config::kRows / Config::kGroupPadded; // per tile
  static constexpr int kWarpRows = Config::kRows / Config::kWarps;
  static constexpr int kM = kWarpRows / 16;    // m16 tiles of a warp
  static constexpr int kN = Config::kKeys / 8; // n8 tiles of S
  static constexpr int kColsQk = padded_dim(Config::kHeadDimQk),
                       kColsV = padded_dim(Config::kHeadDimV);
  using Q = ProductTile<Config::kWgmma, Config::kRows, kColsQk>;
  using DO = ProductTile<Config::kWgmma, Config::kRows, kColsV>;
  using K = ProductTile<Config::kWgmma, Config::kKeys, kColsQk>;
  using V = ProductTile<Config::kWgmma, Config::kKeys, kColsV>;
  using Cursor = ListCursor<Config>;
  using Bits = typename Cursor::KeyBits;

  // Shared memory layout: offsets in bytes.
  static constexpr int kSQ = 0, kSDO = kSQ + Q::kBytes, kSStage = kSDO + DO::kBytes;
  static constexpr int kStageBytes = K::kBytes + V::kBytes; // K, then V
  static constexpr int kSNext = kSStage + Config::kStages * kStageBytes;
  static constexpr int kBytes = kSNext + 8 * Config::kWarps;
  static_assert(kBytes == Config::kSharedBytes, "the host computes another size of shared memory");
  static_assert(!Config::kWgmma || (Config::kRows == 64 && Config::kWarps == 4),
                "a warpgroup multiplies 64 rows");
  static_assert(kTokens >= 1 && kTokens * Config::kGroupPadded == Config::kRows,
                "a tile holds whole tokens");
  static_assert(kM >= 1 && kM * 16 * Config::kWarps == Config::kRows,
                "a warp owns whole m16 tiles");
  static_assert(Config::kThreads == 32 * Config::kWarps, "all warps compute");
};

constexpr int kNoTile = 0x7fffffff;

// A tile of query rows.
template <class Config> struct RowTile {
  using F = DqTraits<Config>;
  QueryTile tile;
  int group;    // KV head
  int tokens;   // of the tile
  int position; // of the first token; negative before the sequence's first key
  u32 shared;   // address of shared memory

  NSAI_DEVICE int row(int m, int r) const {
    return (int)(recomputed(threadIdx.x) / 32) * F::kWarpRows + m * 16 + r * 8 +
           (int)(threadIdx.x & 31) / 4;
  }
  NSAI_DEVICE int token(int row) const { return row / Config::kGroupPadded; }
  NSAI_DEVICE int head(int row) const {
    return group * Config::kGroup + row % Config::kGroupPadded;
  }
  NSAI_DEVICE int q_row(int row) const { return tile.seq.q_begin + tile.first_query + token(row); }
  // exists: q has such a row. present: it also stands at a position t >= 0.
  NSAI_DEVICE bool exists(int row) const {
    return row % Config::kGroupPadded < Config::kGroup && token(row) < tokens;
  }
  NSAI_DEVICE bool present(int row) const { return exists(row) && position + token(row) >= 0; }
};

// ---- walks over the key tiles of a branch. `next()` returns the first key of the current tile, or
// kNoTile, uniformly for all threads. `take` returns the keys that this lane's rows see, and moves
// on.

template <class Config, class Keys> struct RangeWalk {
  using F = DqTraits<Config>;
  const RowTile<Config> &at;
  int first, end; // keys that remain

  NSAI_DEVICE RangeWalk(const RowTile<Config> &tile)
      : at(tile), first(Keys::visible(tile.position).begin),
        end(Keys::visible(tile.position + tile.tokens - 1).end) {}
  NSAI_DEVICE int next() { return first < end ? first : kNoTile; }
  NSAI_DEVICE int last_key() const { return end; }

  NSAI_DEVICE void take(typename F::Bits (&bits)[F::kM][2]) {
#pragma unroll
    for (int m = 0; m < F::kM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = at.row(m, r);
        const KeyRange seen = Keys::visible(at.position + at.token(row));
        const int a = max(seen.begin - first, 0), b = min(seen.end - first, Config::kKeys);
        bits[m][r] =
            at.present(row) && a < b ? (F::Cursor::kAllKeys >> (Config::kKeys - (b - a))) << a : 0;
      }
    first += Config::kKeys;
  }
};

template <class Config> struct ListWalk {
  using F = DqTraits<Config>;
  const RowTile<Config> &at;
  int first;
  int *sNext; // [2, kWarps]: double-buffered, so that one barrier suffices
  int buffer = 0;
  typename F::Cursor cursor[F::kM][2];

  NSAI_DEVICE ListWalk(const RowTile<Config> &tile, const NsaiBackwardQ &p, int *next)
      : at(tile), sNext(next) {
#pragma unroll
    for (int m = 0; m < F::kM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = at.row(m, r);
        const bool present = at.present(row);
        cursor[m][r].open(p.lists + at.group * p.list_head_stride +
                              (present ? at.q_row(row) : 0) * p.list_token_stride,
                          at.position + at.token(row), present);
      }
  }

  // First key of the next tile that any row of the CTA sees.
  NSAI_DEVICE int next() {
    int begin = F::Cursor::kNever;
#pragma unroll
    for (int m = 0; m < F::kM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) begin = min(begin, cursor[m][r].begin);
    begin = __reduce_min_sync(~0u, begin);
    int *sBuffer = sNext + buffer * Config::kWarps;
    buffer ^= 1;
    if (threadIdx.x % 32 == 0) sBuffer[threadIdx.x / 32] = begin;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < Config::kWarps; ++w) begin = min(begin, sBuffer[w]);
    first = begin == F::Cursor::kNever ? kNoTile : begin / Config::kKeys * Config::kKeys;
    return first;
  }
  NSAI_DEVICE int last_key() const { return at.tile.seq.kv_len; }

  NSAI_DEVICE void take(typename F::Bits (&bits)[F::kM][2]) {
#pragma unroll
    for (int m = 0; m < F::kM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) bits[m][r] = cursor[m][r].take(first);
  }
};
