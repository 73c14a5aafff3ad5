// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Finds the kFree best of some keys in shared memory, by several warps of a CTA, with few waits and
// jumps: these bound code that runs once. Keys are those of core/topn.cuh, all different; 0 means
// no key.
//
// The keys are divided into 32 groups. Only keys whose order is at least that of the kFree-th
// greatest group maximum are ranked: kFree groups contain such a key. A key's rank is the number of
// greater keys.
//
// The threads that search are described by `Searchers`: kThreads, `thread` (index among them), and
// sync() for all of them.
#pragma once
#include "core/copy.cuh"
#include "core/topn.cuh"
#include "core/types.cuh"

// What the threads exchange; all zero at first.
template <int kFree, int kFew> struct FewBest {
  static_assert(0 < kFree && kFree <= 32, "at most as many as there are groups");
  u64 few[kFew];
  __align__(16) u32 groups[32]; // maximum orders of every 32nd key
  u64 best[kFree];              // in descending order
  int found;                    // number of keys in `few`
};

// Clears x. One warp, before the other threads use it.
template <int kFree, int kFew> NSAI_DEVICE void clear_best(FewBest<kFree, kFew> &x, int lane) {
  x.groups[lane] = 0, x.few[lane] = 0;
  if (lane < kFree) x.best[lane] = 0;
  if (lane == 0) x.found = 0;
}

// This thread's key of keys [kThreads / 2]; two threads rank one key.
struct RankedKey {
  u64 key;
  int rank;    // number of greater keys
  bool counts; // first of its threads, and a key
};
template <class Searchers>
NSAI_DEVICE RankedKey rank_key(const Searchers &searchers, const u64 *keys) {
  constexpr int kPairs = Searchers::kThreads / 8; // pairs of keys per thread
  const int part = searchers.thread % 2;
  const u64 mine = keys[searchers.thread / 2];
  int rank = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const ulonglong2 pair = *(const ulonglong2 *)(keys + 2 * part + 4 * i);
    rank += (pair.x > mine) + (pair.y > mine);
  }
  rank += __shfl_xor_sync(kAllLanes, rank, 1);
  return RankedKey{ mine, rank, mine && part == 0 };
}

// Finds the kFree best of keys [count], count <= kMost, and writes them to x.best.
template <int kMost, class Searchers, int kFree, int kFew>
NSAI_DEVICE void find_best(const Searchers &searchers, FewBest<kFree, kFew> &x, const u64 *keys,
                           int count) {
  constexpr int kThreads = Searchers::kThreads;
  const int thread = searchers.thread;
  // Straight-line code whatever the count: a jump costs more than it saves. (A guess.)
  constexpr int kEach = ceil_div(kMost, kThreads);
  u64 key[kEach];
  u32 top = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = thread + i * kThreads;
    key[i] = at < count ? keys[at] : 0;
    top = max(top, order_in(key[i]));
  }
  atomicMax(&x.groups[thread % 32], top);
  searchers.sync(); // all groups' maxima are written
  const u32 group = x.groups[thread % 32];
  // Orders are below 2^31, so the sign of a difference says which one is greater.
  u32 chain[4] = {};
#pragma unroll
  for (int g = 0; g < 32; g += 4) {
    const Chunk other = load_shared(shared_address(&x.groups[g]));
#pragma unroll
    for (int i = 0; i < 4; ++i) chain[i] += (group - other.w[i]) >> 31;
  }
  const u32 above = (chain[0] + chain[1]) + (chain[2] + chain[3]);
  const u32 least = __reduce_min_sync(kAllLanes, above < kFree ? max(group, 1) : ~0u);
  // Each warp reserves its slots at once: the compiler turns per-thread atomics into much more
  // code.
  u32 passing[kEach];
  int slots = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    passing[i] = __ballot_sync(kAllLanes, order_in(key[i]) >= least);
    slots += __popc(passing[i]);
  }
  const int lane = thread % 32;
  int slot = 0;
  if (lane == 0 && slots > 0) slot = atomicAdd(&x.found, slots);
  slot = __shfl_sync(kAllLanes, slot, 0);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = slot + votes_below(passing[i], lane);
    if (passing[i] >> lane & 1 && at < kFew) x.few[at] = key[i];
    slot += __popc(passing[i]);
  }
  searchers.sync(); // the few keys are written
  const int few = x.found;
  if (few <= 32) { // nearly always: kParts threads per key
    constexpr int kParts = kThreads / 32;
    const int part = thread % kParts;
    const u64 mine = x.few[thread / kParts]; // 0 behind the last key
    int rank = 0;
#pragma unroll
    for (int i = 0; i < 32 / kParts; ++i) rank += x.few[part + i * kParts] > mine;
#pragma unroll
    for (int delta = 1; delta < kParts; delta *= 2) rank += __shfl_xor_sync(kAllLanes, rank, delta);
    if (mine && part == 0 && rank < kFree) x.best[rank] = mine;
  } else {
    if (few <= kFew) keys = x.few, count = few;
#pragma unroll 1
    for (int at = thread; at < count; at += kThreads) {
      const u64 mine = keys[at];
      int rank = 0;
#pragma unroll 4
      for (int i = 0; i < count; ++i) rank += keys[i] > mine;
      if (mine && rank < kFree) x.best[rank] = mine;
    }
  }
  searchers.sync(); // the best keys are written
}
