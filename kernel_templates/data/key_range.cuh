// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The keys that a query sees, for attention over contiguous key ranges (attend/mainloop_sm80.cuh,
// attend/mainloop_sm90.cuh), and the corresponding mask. A policy `Keys` has
//
//   KeyRange visible(int position)
//       in rows of the sequence's k and v; both bounds increase with the position
//   int first_row(const NsaiSequences &seqs, const QueryTile &tile)
//       row of k and v of the sequence's key 0
//   constexpr int kFirstIndex
//       index of key 0 in a KV cache (data/cache_rows.cuh)
//   constexpr bool kEntries
//       keys are compressed entries
//   constexpr bool kLongestFirst
//       later tiles have more keys and should start first
#pragma once
#include "core/types.cuh"
#include "data/cache_rows.cuh"
#include "data/sequence.cuh"
#include "params/attention.h"

// Bytes of keys and values that stay in L2 beside all else that passes through it: a guess. H200 and H100
// have 50 MB and more.
constexpr int kBytesOfL2 = 17 << 20;

struct KeyRange {
  int begin, end; // [begin, end)
};

// Compressed branch: blocks i with i * d + l - 1 <= t.
template <class Config> struct CompressedKeys {
  static_assert(Config::kBlock % Config::kStride == 0, "the stride divides the block");
  static constexpr bool kLongestFirst = true;
  static constexpr int kFirstIndex = entry_index<Config::kBlock, Config::kStride>(0);
  static constexpr bool kEntries = true;
  // The blocks that are complete at position t: as many as a sequence of t + 1 tokens has.
  static NSAI_DEVICE KeyRange visible(int t) {
    return KeyRange{ 0, block_count<Config::kBlock, Config::kStride>(t + 1) };
  }
  static NSAI_DEVICE int first_row(const NsaiSequences &seqs, const QueryTile &tile) {
    return first_block_row<Config::kStride>(seqs, tile.s);
  }
};

// Window branch: tokens p with t - w < p <= t.
template <class Config> struct WindowKeys {
  static_assert(Config::kWindow >= 1, "a window of 0 means that the branch is absent");
  static constexpr bool kLongestFirst = false; // all tiles but the first few are equal
  static constexpr int kFirstIndex = 0;
  static constexpr bool kEntries = false;
  static NSAI_DEVICE KeyRange visible(int t) {
    return KeyRange{ max(t - Config::kWindow + 1, 0), max(t + 1, 0) };
  }
  static NSAI_DEVICE int first_row(const NsaiSequences &, const QueryTile &tile) {
    return tile.seq.kv_begin;
  }
};

// Ordinary causal attention: tokens p with p <= t.
struct DenseKeys {
  static constexpr bool kLongestFirst = true;
  static constexpr int kFirstIndex = 0;
  static constexpr bool kEntries = false;
  static NSAI_DEVICE KeyRange visible(int t) { return KeyRange{ 0, max(t + 1, 0) }; }
  static NSAI_DEVICE int first_row(const NsaiSequences &, const QueryTile &tile) {
    return tile.seq.kv_begin;
  }
};

// Masks scores s [16, 8 * kN], C fragments, of row r (0: group, 1: group + 8) to -inf outside
// `seen`. Column 0 is key `first`.
template <int kN> NSAI_DEVICE void mask_row(float (&s)[kN][4], int r, KeyRange seen, int first) {
  int lane_first = first + 2 * (threadIdx.x & 3);
  int begin = seen.begin - lane_first, end = seen.end - lane_first;
#pragma unroll
  for (int j = 0; j < kN; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (8 * j + c < begin || 8 * j + c >= end) s[j][2 * r + c] = kMinusInf;
}
