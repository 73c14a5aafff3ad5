// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The kFree best of some keys in shared memory, by all threads of a block, with few waits and
// jumps: what runs once is bound by these. Keys are those of common/topn.cuh, all different, 0 where there is
// none.
//
// Only those keys are ranked whose order is not below that of the kFree-th greatest of 32 groups' greatest:
// kFree groups have one that is not. A key's rank is how many are greater.
#pragma once
#include "common/copy.cuh"
#include "common/topn.cuh"
#include "common/types.cuh"

// What the block's threads tell each other: 0 at first.
template <int kFree, int kFew> struct FewBest {
  static_assert(0 < kFree && kFree <= 32, "as many as groups");
  u64 few[kFew];
  __align__(16) u32 groups[32]; // greatest orders, of every 32nd key
  u64 best[kFree];              // descending
  int found;                    // of the few
};

// By all threads, and before all know it.
template <int kFree, int kFew> NSAI_DEVICE void clear_best(FewBest<kFree, kFew> &x) {
  if (threadIdx.x < 32) x.groups[threadIdx.x] = 0, x.few[threadIdx.x] = 0;
  if (threadIdx.x < kFree) x.best[threadIdx.x] = 0;
  if (threadIdx.x == 0) x.found = 0;
}

// The kFree best of keys [count], of kMost at most, into x.best.
template <int kThreads, int kMost, int kFree, int kFew>
NSAI_DEVICE void find_best(FewBest<kFree, kFew> &x, const u64 *keys, int count) {
  // Straight on, whatever the count: a jump costs as much as ten instructions.
  constexpr int kEach = ceil_div(kMost, kThreads);
  u64 key[kEach];
  u32 top = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = threadIdx.x + i * kThreads;
    key[i] = at < count ? keys[at] : 0;
    top = max(top, order_in(key[i]));
  }
  atomicMax(&x.groups[threadIdx.x % 32], top);
  __syncthreads(); // all groups' greatest are there
  const u32 group = x.groups[threadIdx.x % 32];
  u32 chain[4] = {}; // orders are below 2^31, so that the sign of a difference tells which is greater
#pragma unroll
  for (int g = 0; g < 32; g += 4) {
    const Chunk other = load_shared(shared_address(&x.groups[g]));
#pragma unroll
    for (int i = 0; i < 4; ++i) chain[i] += (group - other.w[i]) >> 31;
  }
  const u32 above = (chain[0] + chain[1]) + (chain[2] + chain[3]);
  const u32 least = __reduce_min_sync(kAllLanes, above < kFree ? max(group, 1) : ~0u);
  // Every warp takes its places at once: of single threads' counting the compiler makes much more.
  u32 passing[kEach];
  int places = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    passing[i] = __ballot_sync(kAllLanes, order_in(key[i]) >= least);
    places += __popc(passing[i]);
  }
  const int lane = threadIdx.x % 32;
  int place = 0;
  if (lane == 0 && places > 0) place = atomicAdd(&x.found, places);
  place = __shfl_sync(kAllLanes, place, 0);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = place + __popc(passing[i] & ((1u << lane) - 1));
    if (passing[i] >> lane & 1 && at < kFew) x.few[at] = key[i];
    place += __popc(passing[i]);
  }
  __syncthreads(); // the few are there
  const int few = x.found;
  if (few <= 32) { // as nearly always: kParts threads a key
    constexpr int kParts = kThreads / 32;
    const int part = threadIdx.x % kParts;
    const u64 mine = x.few[threadIdx.x / kParts]; // 0 behind the few
    int rank = 0;
#pragma unroll
    for (int i = 0; i < 32 / kParts; ++i) rank += x.few[part + i * kParts] > mine;
#pragma unroll
    for (int apart = 1; apart < kParts; apart *= 2) rank += __shfl_xor_sync(kAllLanes, rank, apart);
    if (mine && part == 0 && rank < kFree) x.best[rank] = mine;
  } else {
    if (few <= kFew) keys = x.few, count = few;
#pragma unroll 1
    for (int at = threadIdx.x; at < count; at += kThreads) {
      const u64 mine = keys[at];
      int rank = 0;
#pragma unroll 4
      for (int i = 0; i < count; ++i) rank += keys[i] > mine;
      if (mine && rank < kFree) x.best[rank] = mine;
    }
  }
  __syncthreads(); // the best are there
}
