// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Bitonic sort of 32 * kPerLane keys in the registers of a warp; element 32 * j + lane is x[j] of
// each lane.
#pragma once
#include "core/types.cuh"

// Sorts in ascending order. Key is u32 or u64. All 32 lanes take part.
template <class Key, int kPerLane> NSAI_DEVICE void sort_warp(Key (&x)[kPerLane]) {
  static_assert((kPerLane & (kPerLane - 1)) == 0, "a bitonic network sorts powers of two");
  int lane = threadIdx.x & 31;
  // After the pass for `run`, runs of `run` elements are sorted, odd ones in descending order.
#pragma unroll
  for (int run = 2; run <= 32 * kPerLane; run *= 2) {
#pragma unroll
    for (int delta = run / 2; delta > 0; delta /= 2) {
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        bool descending = (32 * j + lane) & run;
        if (delta >= 32) {
          int k = j ^ (delta / 32);
          if (k < j) continue; // the pair is handled at k
          if ((x[k] < x[j]) != descending) {
            Key other = x[k];
            x[k] = x[j];
            x[j] = other;
          }
        } else {
          Key other = __shfl_xor_sync(~0u, x[j], delta);
          bool upper = lane & delta;
          x[j] = (upper != descending) == (other > x[j]) ? other : x[j];
        }
      }
    }
  }
}

// Smallest power of two of keys per lane that is enough for `count` keys.
constexpr NSAI_DEVICE int sort_keys_per_lane(int count) {
  int per_lane = 1;
  while (32 * per_lane < count) per_lane *= 2;
  return per_lane;
}
