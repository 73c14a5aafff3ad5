// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The kFree best of some keys that key_at(i) finds, by one warp, in little code: what runs once is bound by
// instructions that have to be fetched. kFree <= 32. Keys are those of core/topn.cuh, 0 where there is
// none.
//
// The greatest of each lane bound from below what can win. As a rule 32 or fewer are left, which are
// ranked; else the kFree-th greatest is found one after the other.
#pragma once
#include "core/topn.cuh"

NSAI_DEVICE u64 warp_greatest(u64 x) {
#pragma unroll 1
  for (int delta = 16; delta; delta /= 2) {
    const u64 other = __shfl_xor_sync(kAllLanes, x, delta);
    x = other > x ? other : x;
  }
  return x;
}

constexpr int kLoads = 128; // keys on their way at once

// The lane's keys of [begin, begin + kLoads), 0 from `count` on.
template <class KeyAt>
NSAI_DEVICE void load_keys(u64 (&key)[kLoads / 32], const KeyAt &key_at, int begin, int count,
                           int lane) {
#pragma unroll
  for (int i = 0; i < kLoads / 32; ++i) {
    const int at = begin + 32 * i + lane;
    key[i] = at < count ? key_at(at) : 0;
  }
}

// One of the kFree greatest, in their order among the keys, or 0 where there are fewer; places from kFree on
// are of none.
struct BestKey {
  u64 key;
  int slot;
};

// Of `count` keys, one a lane. `queue` [32] is the warp's, in shared memory at 16 bytes.
template <int kFree, class KeyAt>
NSAI_DEVICE BestKey warp_best(const KeyAt &key_at, int count, u64 *queue, int lane) {
  static_assert(1 <= kFree && kFree <= 32, "a key a lane");
  const u32 before = (1u << lane) - 1;
  u32 greatest = 0, *orders = (u32 *)queue; // [32], of the lanes' greatest
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kLoads) {
    u64 key[kLoads / 32];
    load_keys(key, key_at, begin, count, lane);
#pragma unroll
    for (int i = 0; i < kLoads / 32; ++i) greatest = max(greatest, order_in(key[i]));
  }
  orders[lane] = greatest;
  __syncwarp(); // all orders are there
  int above = 0;
#pragma unroll 4
  for (int i = 0; i < 32; i += 4) {
    const uint4 x = *(const uint4 *)(orders + i);
    above += (x.x > greatest) + (x.y > greatest) + (x.z > greatest) + (x.w > greatest);
  }
  // An order that kFree lanes' greatest have; 0 where fewer lanes have a key.
  const u32 reached =
      __reduce_min_sync(kAllLanes, above < kFree ? greatest : ~0u); // and all are read
  // What is chosen is not below `least`; 1: whatever is a key.
  u64 least = reached ? (u64)reached << 32 : 1;
  int found = 0;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    found = 0;
#pragma unroll 1
    for (int begin = 0; begin < count; begin += kLoads) {
      u64 key[kLoads / 32];
      load_keys(key, key_at, begin, count, lane);
#pragma unroll
      for (int i = 0; i < kLoads / 32; ++i) {
        const u32 winners = __ballot_sync(kAllLanes, key[i] >= least);
        const int at = found + __popc(winners & before);
        if (key[i] >= least && at < 32) queue[at] = key[i];
        found += __popc(winners);
      }
    }
    if (found <= 32) break;
    u64 below = ~0ull;
#pragma unroll 1
    for (int i = 0; i < kFree; ++i) {
      u64 x = 0;
#pragma unroll 1
      for (int j = lane; j < count; j += 32) {
        const u64 key = key_at(j);
        if (key < below && key > x) x = key;
      }
      below = warp_greatest(x);
    }
    least = below;
    __syncwarp(); // the queue is written anew
  }
  __syncwarp(); // the queue is written
  const u64 key = lane < found ? queue[lane] : 0;
  int rank = 0;
#pragma unroll 8
  for (int i = 0; i < found; ++i) rank += queue[i] > key;
  const bool chosen = key != 0 && rank < kFree;
  const u32 all = __ballot_sync(kAllLanes, chosen); // and the queue is read
  __syncwarp();
  return BestKey{ chosen ? key : 0,
                  chosen ? __popc(all & before) : __popc(all) + __popc(~all & before) };
}
