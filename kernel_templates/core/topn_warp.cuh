// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Finds the kFree best of the keys that key_at(i) returns, by one warp and in little code: code
// that runs once is bound by instruction fetch. kFree <= 32. Keys are those of core/topn.cuh; 0
// means no key.
//
// The maxima of the lanes give a lower bound for the winners. Usually at most 32 keys exceed it;
// these are ranked. Otherwise the kFree-th greatest key is found by repeated maximum searches.
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

constexpr int kLoads = 128; // keys in flight

// Loads the lane's keys of [begin, begin + kLoads), 0 from `count` on.
template <class KeyAt>
NSAI_DEVICE void load_keys(u64 (&key)[kLoads / 32], const KeyAt &key_at, int begin, int count,
                           int lane) {
#pragma unroll
  for (int i = 0; i < kLoads / 32; ++i) {
    const int at = begin + 32 * i + lane;
    key[i] = at < count ? key_at(at) : 0;
  }
}

// One of the kFree greatest keys and its index in their original order. key is 0 if there are
// fewer; slots from kFree on are unused.
struct BestKey {
  u64 key;
  int slot;
};

// Returns one key per lane, out of `count` keys. `queue` [32] in shared memory belongs to this warp
// and is 16-byte aligned.
template <int kFree, class KeyAt>
NSAI_DEVICE BestKey warp_best(const KeyAt &key_at, int count, u64 *queue, int lane) {
  static_assert(1 <= kFree && kFree <= 32, "each lane holds one key");
  const u32 before = (1u << lane) - 1;
  u32 greatest = 0, *orders = (u32 *)queue; // [32], the lanes' maxima
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kLoads) {
    u64 key[kLoads / 32];
    load_keys(key, key_at, begin, count, lane);
#pragma unroll
    for (int i = 0; i < kLoads / 32; ++i) greatest = max(greatest, order_in(key[i]));
  }
  orders[lane] = greatest;
  __syncwarp(); // all maxima are written
  int above = 0;
#pragma unroll 4
  for (int i = 0; i < 32; i += 4) {
    const uint4 x = *(const uint4 *)(orders + i);
    above += (x.x > greatest) + (x.y > greatest) + (x.z > greatest) + (x.w > greatest);
  }
  __syncwarp(); // all lanes have read the maxima, which the queue overwrites
  // An order that the maxima of kFree lanes reach; 0 if fewer lanes have a key.
  const u32 reached = __reduce_min_sync(kAllLanes, above < kFree ? greatest : ~0u);
  // Lower bound for chosen keys; 1 admits every key.
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
    __syncwarp(); // the queue is overwritten
  }
  __syncwarp(); // the queue is written
  const u64 key = lane < found ? queue[lane] : 0;
  int rank = 0;
#pragma unroll 8
  for (int i = 0; i < found; ++i) rank += queue[i] > key;
  const bool chosen = key != 0 && rank < kFree;
  const u32 all = __ballot_sync(kAllLanes, chosen); // all lanes have read the queue
  __syncwarp();
  return BestKey{ chosen ? key : 0,
                  chosen ? __popc(all & before) : __popc(all) + __popc(~all & before) };
}
