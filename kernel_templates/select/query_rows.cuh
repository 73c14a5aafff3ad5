// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The rows of select_importance, select_normalizer and select_index_scores: Q of a CTA's tokens
// (select/token_tile.cuh) in registers, and their scores over tiles of keys.
//
// A CTA has kWarps warps of two m16 tiles each, which share every K fragment. Rows are token-major over
// kGroupPadded heads: 32 / kGroupPadded tokens per warp, or half a token with more than 32 heads.
//
// Config: Element, kHeadDimQk, kGroup, kGroupPadded, kRows, kKeys, kWarps, kThreads, kBlock, kStride,
// kProbe, kStep (a decode step: keys are split over blockIdx.y), kCountReads (keys are counted; with
// kStep); those of data/source.cuh.
#pragma once
#include "core/copy.cuh"
#include "core/mma.cuh"
#include "core/tile.cuh"
#include "core/types.cuh"
#include "data/read_counter.cuh"
#include "data/sequence.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"
#include "select/importance_keys.cuh"
#include "select/token_tile.cuh"

static_assert(Config::kRows == 32 * Config::kWarps, "a warp has two m16 tiles of rows");
static_assert(Config::kThreads == 32 * Config::kWarps, "all warps compute and copy");
static_assert(Config::kGroupPadded >= Config::kGroup &&
                  (Config::kGroupPadded & (Config::kGroupPadded - 1)) == 0,
              "rows are token-major over a power of two of heads");
static_assert(Config::kGroupPadded <= Config::kRows && Config::kGroupPadded <= 64,
              "a token lies within one CTA and at most two warps");
static_assert(Config::kKeys % 32 == 0, "scores are computed 32 keys at a time");
static_assert(Config::kHeadDimQk % 8 == 0, "rows are copied 16 bytes at a time");

template <class C> struct RowTraits {
  static constexpr int kTokens = C::kRows / C::kGroupPadded;
  static constexpr int kSteps = padded_dim(C::kHeadDimQk) / 16; // k16 steps
  static constexpr int kSliceTiles = 4;                         // n8 tiles in a slice of 32 keys
};

template <class C> using KeyTileOf = typename KeyCopy<C>::KeyTile;

// Loads the four rows of a thread as Q fragments: zeros for padding heads and absent tokens. Calls
// visit(tile, half, present, row of q, query head) for each row.
template <class C, class Visit>
NSAI_DEVICE void load_queries(const NsaiImportance &p, const TokenTile &tokens, int group, int warp,
                              int lane, u32 (&rQ)[2][RowTraits<C>::kSteps][4], Visit visit) {
  const u16 *gQ = (const u16 *)p.q.data; // [T, Hq, Dk]
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int row = 32 * warp + 16 * tile + 8 * half + lane / 4;
      int head = row % C::kGroupPadded, query = tokens.first + row / C::kGroupPadded;
      bool present = head < C::kGroup && tokens.present(query);
      long long token = present ? tokens.seq.q_begin + query : 0;
      int query_head = present ? group * C::kGroup + head : 0;
      const u16 *from = gQ + token * p.q.token_stride + query_head * p.q.head_stride + lane % 4 * 2;
#pragma unroll
      for (int k = 0; k < RowTraits<C>::kSteps; ++k) {
        bool upper = k * 16 + 8 < C::kHeadDimQk;
        rQ[tile][k][half] = present ? *(const u32 *)(from + k * 16) : 0;
        rQ[tile][k][half + 2] = present && upper ? *(const u32 *)(from + k * 16 + 8) : 0;
      }
      visit(tile, half, present, token, query_head);
    }
  }
}

// S = Q K^T of the warp's 32 rows and the 32 keys that begin at shared address `keys`.
template <class C>
NSAI_DEVICE void scores(float (&rS)[2][RowTraits<C>::kSliceTiles][4],
                        const u32 (&rQ)[2][RowTraits<C>::kSteps][4], u32 keys, int lane) {
  using KeyTile = KeyTileOf<C>;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
#pragma unroll
    for (int n = 0; n < RowTraits<C>::kSliceTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) rS[tile][n][i] = 0;
  int key = lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2; // for ldmatrix: n tile, then k half
#pragma unroll
  for (int k = 0; k < RowTraits<C>::kSteps; ++k) {
#pragma unroll
    for (int n = 0; n < RowTraits<C>::kSliceTiles; n += 2) {
      u32 rK[4]; // 16 keys x 16 columns
      ldmatrix_x4(rK, KeyTile::along(keys + KeyTile::offset(key, chunk), 2 * k) +
                          n * 8 * KeyTile::kPitch);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        mma_m16n16k16(typename C::Element{}, rS[tile][n], rS[tile][n + 1], rQ[tile][k], rK);
      }
    }
  }
}

// Sets scores, or P, of keys that a row's token does not see to `hidden`. `first` is the slice's
// first key.
template <class C>
NSAI_DEVICE void mask(float (&rS)[2][RowTraits<C>::kSliceTiles][4], const TokenTile &tokens,
                      int first, float hidden, int warp, int lane) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int query = tokens.first + (32 * warp + 16 * tile + 8 * half + lane / 4) / C::kGroupPadded;
      int visible = visible_blocks<C>(tokens.seq.position(query)) - first - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < RowTraits<C>::kSliceTiles; ++n) {
        if (n * 8 >= visible) rS[tile][n][2 * half] = hidden;
        if (n * 8 + 1 >= visible) rS[tile][n][2 * half + 1] = hidden;
      }
    }
  }
}

// The tiles of keys that a CTA takes: all `tiles` or, of a decode step, its split's.
template <class C> NSAI_DEVICE KeyTiles find_key_tiles(int tiles) {
  if constexpr (!C::kStep) return KeyTiles{ 0, tiles };
  const int each = ceil_div(tiles, (int)gridDim.y), begin = min((int)blockIdx.y * each, tiles);
  return KeyTiles{ begin, min(begin + each, tiles) };
}

// Adds the `keys` keys that a CTA has copied for sequence s and a KV head to the caller's counters.
template <class C>
NSAI_DEVICE void count_keys(const StepRowParams<C> &params, int s, int group, int keys) {
  if constexpr (C::kCountReads) {
    u64 *gReads = find_kv_reads<C>(params.kv_reads, s, group, NSAI_BRANCH_COMPRESSED);
    if (!gReads || threadIdx.x != 0 || keys == 0) return;
    atomicAdd(gReads, (u64)keys);
    atomicAdd(gReads + 1, (u64)keys * (2 * kRowWords<C, C::kHeadDimQk>));
  }
}
