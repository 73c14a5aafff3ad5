// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// A cursor over one token's sorted selection that yields one tile of keys at a time, in ascending
// order. Tiles lie on a fixed grid of kKeys. Blocks and ranges need not match the grid: an entry
// may span several tiles, and a tile may hold several entries. The cursor keeps only the current
// entry and the next one.
//
// Config: kKeys (16, 32, 64), kSelectBlock (l'), kSelectCount (n), kRanges.
#pragma once
#include "core/types.cuh"

template <int kKeys> struct KeyBitsOf { using Word = u32; };
template <> struct KeyBitsOf<64> { using Word = u64; };

template <class Config> struct ListCursor {
  static constexpr int kKeys = Config::kKeys;
  static_assert(kKeys == 16 || kKeys == 32 || kKeys == 64,
                "the keys of a tile are the bits of a word");
  using KeyBits = typename KeyBitsOf<kKeys>::Word; // bit i: the token sees key i of the tile
  static constexpr KeyBits kAllKeys = (KeyBits)~0ull >> (8 * sizeof(KeyBits) - kKeys);
  static constexpr int kNever = 0x7fffffff;

  const int *gList;         // [n] blocks or [n, 2] ranges, ascending and disjoint, then -1
  int limit;                // t + 1: keys from here on are not visible
  int index;                // of the entry loaded ahead
  int next_begin, next_end; // that entry as stored; loading it ahead hides the latency
  int begin, end;           // remaining keys of the current entry; begin kNever: no more

  // A token that is not present, or that stands before the first key, gets an empty list.
  NSAI_DEVICE void open(const int *list, int position, bool present) {
    gList = list;
    limit = position + 1;
    index = present && limit > 0 ? 0 : Config::kSelectCount;
    load_next();
    advance();
  }

  // Returns the visible keys of tile [first, first + kKeys) and moves behind it. No remaining key
  // may lie before `first`.
  NSAI_DEVICE KeyBits take(int first) {
    const int stop = first + kKeys;
    KeyBits bits = 0;
    while (begin < stop) {
      // Bits [begin - first, until - first). An entry holds a visible key, so until > begin.
      int until = min(end, stop);
      bits |= (kAllKeys >> (kKeys - (until - begin))) << (begin - first);
      if (end > stop)
        begin = stop;
      else
        advance();
    }
    return bits;
  }

private:
  NSAI_DEVICE void load_next() {
    next_begin = next_end = -1;
    if (index >= Config::kSelectCount) return;
    if constexpr (Config::kRanges) {
      next_begin = gList[2 * index];
      next_end = gList[2 * index + 1];
    } else {
      next_begin = gList[index];
    }
  }

  NSAI_DEVICE void advance() {
    if (next_begin < 0) {
      begin = end = kNever;
      return;
    }
    begin = Config::kRanges ? next_begin : next_begin * Config::kSelectBlock;
    if (begin < 0 || begin >= limit) { // invalid entry: it must not cause a read of keys
      begin = end = kNever;
      return;
    }
    end = min(Config::kRanges ? next_end : begin + Config::kSelectBlock, limit);
    ++index;
    load_next();
  }
};
