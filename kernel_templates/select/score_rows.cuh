// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What the kernels of index scores share: which tokens they rank, and the rows of importance that they
// write.
//
// Config: kGroup, kThreads, kKeys, kSelectBlock (l'), kSelectCount (n), kSelectInit, kSelectLocal, kProbe,
// kCountReads; those of select/token_tile.cuh.
#pragma once
#include "core/topn.cuh"
#include "core/types.cuh"
#include "params/attention.h"
#include "select/token_tile.cuh"

constexpr int kStoreBlocks = 4; // that the lanes of a row store together

// Whether some token of the tile has a block that select_topn may leave out.
template <class C> NSAI_DEVICE bool is_ranked(const TokenTile &tokens) {
  if constexpr (C::kProbe || C::kCountReads) return true;
  return needs_search<C>(candidate_count<C>(tokens.seq.position(tokens.end - 1)));
}

// Tiles of keys between two that begin with a block.
constexpr NSAI_DEVICE int common_divisor(int a, int b) { return b ? common_divisor(b, a % b) : a; }
template <class C>
constexpr int kUnitTiles = C::kSelectBlock / common_divisor(C::kSelectBlock, C::kKeys);

// The tiles of keys that a CTA takes of those that `keys` keys have: whole blocks.
template <class C> NSAI_DEVICE KeyTiles find_block_tiles(int keys) {
  const int tiles = ceil_div(keys, C::kKeys);
  const int each = ceil_div(ceil_div(tiles, kUnitTiles<C>), (int)gridDim.y) * kUnitTiles<C>;
  const int begin = min((int)blockIdx.y * each, tiles);
  return KeyTiles{ begin, min(begin + each, tiles) };
}

// Where the scores of a CTA's heads go.
struct ScoreRows {
  const NsaiImportance &p;
  const TokenTile &tokens;
  int group;
  NSAI_DEVICE float *at(int query, int head) const {
    return p.importance + (long long)(tokens.out_base + query) * p.importance_token_stride +
           head * p.importance_head_stride; // [blocks]
  }
};

// Zeros behind the candidates of a probed row, which may be none.
template <class C> NSAI_DEVICE void clear_columns(const ScoreRows &out) {
  const TokenTile &tokens = out.tokens;
  const bool present = tokens.begin < tokens.end;
  const int candidates = present ? candidate_count<C>(tokens.seq.position(tokens.begin)) : 0;
  for (int head = 0; head < C::kGroup; ++head) {
    float *gRow = out.at(tokens.first, out.group * C::kGroup + head); // [columns]
    for (int j = candidates + threadIdx.x; j < out.p.columns; j += C::kThreads) gRow[j] = 0;
  }
}
