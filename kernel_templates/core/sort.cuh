// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Bitonic sort of 32 * kPerLane keys in the registers of a warp; element 32 * j + lane is x[j] of
// each lane.
#pragma once
#include "core/types.cuh"

// One step of a bitonic network: lanes whose indices differ in bit `lanes` compare; the lower lane
// keeps the greater value if `descending`.
template <class Key> NSAI_DEVICE Key exchange(Key x, int lanes, bool descending, int lane) {
  Key other = __shfl_xor_sync(~0u, x, lanes);
  bool keep_greater = ((lane & lanes) == 0) == descending;
  return (x > other) == keep_greater ? x : other;
}

// Sorts in ascending order. Key is u32 or u64. All 32 lanes take part.
template <class Key, int kPerLane> NSAI_DEVICE void sort_warp(Key (&x)[kPerLane], int lane) {
  static_assert((kPerLane & (kPerLane - 1)) == 0, "a bitonic network sorts powers of two");
  // After the pass for `run`, runs of `run` elements are sorted, odd ones in descending order.
#pragma unroll
  for (int run = 2; run <= 32 * kPerLane; run *= 2) {
#pragma unroll
    for (int distance = run / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        bool descending = ((j * 32 + lane) & run) != 0;
        int other = j ^ distance / 32;
        if (distance < 32) {
          x[j] = exchange(x[j], distance, descending, lane);
        } else if (j < other) {
          Key low = min(x[j], x[other]), high = max(x[j], x[other]);
          x[j] = descending ? high : low;
          x[other] = descending ? low : high;
        }
      }
    }
  }
}

// sort_warp() of one key per lane in little code, for where it seldom runs.
template <class Key> NSAI_DEVICE Key sort_lanes(Key x, int lane) {
#pragma unroll 1
  for (int run = 2, distance = 1; run <= 32;) {
    x = exchange(x, distance, (lane & run) != 0, lane);
    distance /= 2;
    if (distance == 0) distance = run, run *= 2;
  }
  return x;
}

// Smallest power of two of keys per lane that is enough for `count` keys.
constexpr NSAI_DEVICE int sort_keys_per_lane(int count) {
  int per_lane = 1;
  while (32 * per_lane < count) per_lane *= 2;
  return per_lane;
}
