// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The kFree best of some keys in shared memory, by one warp, in little code: what runs once is bound by
// instructions that have to be fetched. kFree <= 32. Keys are those of common/topn.cuh, 0 where there is
// none.
//
// The greatest of each lane bound from below what can win. As a rule 32 or fewer are left, which are
// ranked; else the kFree-th greatest is found one after the other.
#pragma once
#include "common/topn.cuh"

// rank_of() of common/topn.cuh in less code; lanes that have 0 share a rank behind all others.
NSAI_DEVICE int lane_rank(u32 x, int lane) {
  const u32 below = x ? x - 1 : 0;
  int rank = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) rank += __shfl_sync(kAllLanes, x, i) > (i < lane ? below : x);
  return rank;
}

NSAI_DEVICE u64 warp_greatest(u64 x) {
#pragma unroll 1
  for (int apart = 16; apart; apart /= 2) {
    const u64 other = __shfl_xor_sync(kAllLanes, x, apart);
    x = other > x ? other : x;
  }
  return x;
}

// The kFree greatest of keys [count], in their order there, one a lane, and zeros where there are fewer.
// `queue` [32] is the warp's.
template <int kFree> NSAI_DEVICE u64 few_best(const u64 *keys, int count, u64 *queue, int lane) {
  static_assert(1 <= kFree && kFree <= 32, "a key a lane");
  u32 greatest = 0;
#pragma unroll 2
  for (int i = lane; i < count; i += 32) greatest = max(greatest, order_in(keys[i]));
  // An order that kFree lanes' greatest have; 0 where fewer lanes have a key.
  const u32 owner = __ballot_sync(kAllLanes, lane_rank(greatest, lane) == kFree - 1);
  const u32 reached = owner ? __shfl_sync(kAllLanes, greatest, __ffs(owner) - 1) : 0; // `owner` is uniform
  // What is chosen is not below `least`; 1: whatever is a key.
  u64 least = reached ? (u64)reached << 32 : 1;
  int found = 0;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    found = 0;
#pragma unroll 2
    for (int begin = 0; begin < count; begin += 32) {
      const u64 key = begin + lane < count ? keys[begin + lane] : 0;
      const u32 winners = __ballot_sync(kAllLanes, key >= least);
      const int at = found + __popc(winners & ((1u << lane) - 1));
      if (key >= least && at < 32) queue[at] = key;
      found += __popc(winners);
    }
    if (found <= 32) break;
    u64 below = ~0ull;
#pragma unroll 1
    for (int i = 0; i < kFree; ++i) {
      u64 x = 0;
      for (int j = lane; j < count; j += 32)
        if (keys[j] < below && keys[j] > x) x = keys[j];
      below = warp_greatest(x);
    }
    least = below;
    __syncwarp(); // the queue is written anew
  }
  __syncwarp(); // the queue is written
  const u64 key = lane < found ? queue[lane] : 0;
  const int rank = lane_rank(order_in(key), lane); // all lanes
  const bool chosen = key != 0 && rank < kFree;
  const u32 all = __ballot_sync(kAllLanes, chosen);
  __syncwarp(); // the queue is read
  if (chosen) queue[__popc(all & ((1u << lane) - 1))] = key;
  __syncwarp(); // the best are written
  const u64 best = lane < __popc(all) ? queue[lane] : 0;
  __syncwarp(); // and read
  return best;
}
