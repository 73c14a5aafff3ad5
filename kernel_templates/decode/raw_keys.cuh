// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The raw keys that tokens of a decode step attend to, as policies of decode/mainloop.cuh: the
// windows of a tile's tokens, and the selected blocks of one token.
//
// Config: those of decode/work.cuh, kWindow (w).
#pragma once
#include "core/softmax.cuh"
#include "core/types.cuh"
#include "decode/work.cuh"

struct NoPool { // for branches without importance
  static constexpr bool kPools = false;
  template <int kN>
  NSAI_DEVICE void pool_stage(const float (&)[kN][4], const SoftmaxRows &, int) const {}
};

struct EveryKey : NoPool { // every head sees every key
  static constexpr bool kOwned = false;
  int limit;
  NSAI_DEVICE int begin(int) const { return 0; }
  NSAI_DEVICE int end(int) const { return limit; }
};

// The windows of a tile's tokens; each token sees its own.
template <class C> struct WindowsOfTile : NoPool {
  static constexpr bool kOwned = false;
  int limit;
  int base; // position of key 0
  int begins[2], ends[2];
  NSAI_DEVICE WindowsOfTile(const DecodeTile &tile, int tokens, int row_tile, int lane) {
    const int first = tile.seq.position(tile.first_query);
    const bool has_token = 16 * row_tile < tokens * C::kGroupPadded; // this warp
    base = max(first + 1 - C::kWindow, 0);
    limit = max(first + tokens - base, 0);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int query = (16 * row_tile + 8 * r + lane / 4) / C::kGroupPadded;
      const int position = first + min(query, tokens - 1);
      begins[r] = max(position + 1 - C::kWindow, 0) - base;
      ends[r] = has_token ? position + 1 - base : 0;
    }
  }
  NSAI_DEVICE int index(int i) const { return base + i; }
  NSAI_DEVICE int begin(int r) const {
    return Decode<C>::kTileTokens == 1 ? 0 : begins[Decode<C>::half(r)];
  }
  NSAI_DEVICE int end(int r) const {
    return Decode<C>::kTileTokens == 1 ? limit : ends[Decode<C>::half(r)];
  }
};

struct BlocksOfToken : EveryKey {
  const int *sList; // ascending
  NSAI_DEVICE int index(int i) const {
    return sList[i / Config::kSelectBlock] * Config::kSelectBlock + i % Config::kSelectBlock;
  }
};

// The first `count` blocks of sList. The last block may extend beyond the token's position.
NSAI_DEVICE BlocksOfToken find_blocks(const int *sList, int count, int position) {
  BlocksOfToken keys;
  keys.sList = sList;
  keys.limit = count ? listed_keys<Config>(count, sList[count - 1], position) : 0;
  return keys;
}
