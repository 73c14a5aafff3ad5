// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// data_sort_ranges: sorts and merges a caller's token ranges into the ascending lists that the
// selected branch reads.
//
//   in  [T, heads, n, 2] half-open (start, end) in any order; clipped to [0, t + 1), empty if end
//       <= start
//   out [T, heads, n, 2] ascending, overlapping and adjacent ranges merged, then (-1, -1)
//
// Grid: x = ceil(T * heads / (kThreads / 32)); one warp per list, in registers. Bound by launch and
// latency: 2n ints in, 2n out.
//
// Config: kSelectCount (n), kThreads (a multiple of 32; 128), kMinBlocks (1), kSharedBytes (0),
// kCached.
#pragma once
#include "core/launch.cuh"
#include "core/sort.cuh"
#include "core/types.cuh"
#include "data/position.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

static_assert(Config::kSelectCount > 0, "a selection has ranges");
static_assert(Config::kThreads % 32 == 0, "a warp sorts a list");
static_assert(Config::kSharedBytes == 0, "lists are sorted in registers");

// Maximum of x over this lane and all lanes below it.
NSAI_DEVICE int max_so_far(int x) {
  int lane = threadIdx.x & 31;
#pragma unroll
  for (int delta = 1; delta < 32; delta *= 2) {
    int other = __shfl_up_sync(~0u, x, delta);
    if (lane >= delta && other > x) x = other;
  }
  return x;
}

template <class Config, class Params> NSAI_DEVICE void sort_range_list(const Params &params) {
  const NsaiSortSelection &p = packed_of(params);
  constexpr int kCount = Config::kSelectCount;
  constexpr int kPerLane = sort_keys_per_lane(kCount);
  constexpr u64 kNone = 0xffffffffull << 32; // sorts last, and its end is the smallest
  const int lane = threadIdx.x & 31;
  const long long list = (long long)blockIdx.x * (Config::kThreads / 32) + threadIdx.x / 32;
  if (list >= (long long)sequences_of(params).q_tokens * p.heads) return;
  const int token = (int)(list / p.heads), head = (int)(list % p.heads);

  const int t = token_position(sequences_of(params), token);
  const int *gIn = p.in + token * p.in_token_stride + head * p.in_head_stride; // [n, 2]
  u64 rRange[kPerLane]; // start << 32 | end, element 32 * j + lane
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    int i = 32 * j + lane;
    int start = i < kCount ? max(gIn[i * p.in_entry_stride], 0) : 0;
    int end = i < kCount ? min(gIn[i * p.in_entry_stride + 1], t + 1) : 0;
    rRange[j] = start < end ? (u64)start << 32 | (u32)end : kNone;
  }
  sort_warp(rRange, lane);

  // A range begins a new merged range if it starts beyond all ends before it. The lane that begins
  // the next merged range also writes the end of the previous one.
  int *gOut = p.out + list * (2 * kCount); // [n, 2]
  int written = 0, reach = -1;             // warp-uniform: merged ranges begun, largest end so far
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    int start = (int)(rRange[j] >> 32);
    int ends = max_so_far((int)(u32)rRange[j]);
    int ends_before = __shfl_up_sync(~0u, ends, 1);
    ends_before = lane == 0 ? reach : max(reach, ends_before);
    bool begins = rRange[j] != kNone && start > ends_before;
    u32 all = __ballot_sync(~0u, begins);
    int at = written + votes_below(all, lane);
    if (begins) {
      gOut[2 * at] = start;
      if (at > 0) gOut[2 * at - 1] = ends_before;
    }
    written += __popc(all);
    reach = max(reach, __shfl_sync(~0u, ends, 31));
  }
  if (lane == 0 && written > 0) gOut[2 * written - 1] = reach;
  for (int i = 2 * written + lane; i < 2 * kCount; i += 32) gOut[i] = -1;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    data_sort_ranges(const __grid_constant__ ParamsOf<Config::kCached, NsaiSortSelection,
                                                      NsaiCachedSortSelection>::Type p) {
  begin_kernel();
  sort_range_list<Config>(p);
}
