// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Selects the blocks of one token from its row of importance, by the rule of core/topn.cuh, with all
// threads of a CTA and few waits: every CTA of decode_select_attend selects for itself.
//
//   1. Candidates are divided into kGroups groups, those of a group kGroups apart. A group's key is its
//      greatest candidate's.
//   2. Only candidates that reach the kFree-th greatest group key may be chosen: they lie in kFree groups,
//      and kFree groups have one. Usually there are not many more than kFree.
//   3. A candidate's rank is the number of greater keys among these.
//
// Loops are unrolled only as far as loads need to be in flight together: code that runs once is bound by
// instruction fetch.
//
// Config: kThreads, kSelectBlock (l'), kSelectCount (n), kSelectInit, kSelectLocal, kSigned, kMostBlocks
// (most candidates of a token).
#pragma once
#include "core/topn.cuh"
#include "core/types.cuh"

template <class C> struct Ranking {
  static constexpr int kFree = Topn<C>::kFree;
  static constexpr int kGroups = nsai_smem_rank_groups(kFree);
  static constexpr int kLanes =
      C::kThreads / kGroups; // threads of a group, adjacent lanes of a warp
  static constexpr int kMostPassing = nsai_smem_rank_passing(kFree, C::kMostBlocks);
  static_assert(kFree <= kGroups, "as many groups as may be chosen have a candidate");
  static_assert(kLanes >= 1 && kLanes * kGroups == C::kThreads && kLanes <= 32,
                "threads are divided evenly, and a group lies in one warp");
};

template <class C> struct RankShared {
  __align__(16) u64 groups[Ranking<C>::kGroups];
  __align__(16) u64 passing[Ranking<C>::kMostPassing];     // and zeros
  u64 least;                                               // key of the kFree-th greatest group
  int best[Ranking<C>::kFree > 0 ? Ranking<C>::kFree : 1]; // blocks in order of rank
  int count;                                               // of `passing`
};

constexpr int kRankLoads = 4; // candidates in flight per thread
constexpr int kRankedAtOnce = NSAI_RANKED_AT_ONCE;

// key_of() in 56 bits, so that the sign of a difference compares two of them.
NSAI_DEVICE u64 rank_key(u32 order, int index) {
  return (u64)order << 24 | (~(u32)index & 0xffffffu);
}
NSAI_DEVICE int ranked_block(u64 key) { return (int)(~(u32)key & 0xffffffu); }

// Counts the keys that are greater than `key` among those of one of kLanes lanes. `keys` has
// `count` keys, and zeros up to a multiple of 2 * kPairs * kLanes. Sums in chains of their own.
template <int kLanes, int kPairs>
NSAI_DEVICE int count_greater(const u64 *keys, int lane, int count, u64 key) {
  u32 chain[2] = {};
#pragma unroll 1
  for (int begin = 2 * lane; begin < count; begin += 2 * kPairs * kLanes)
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const ulonglong2 pair = *(const ulonglong2 *)(keys + begin + 2 * i * kLanes);
      chain[0] += (u32)((key - pair.x) >> 63);
      chain[1] += (u32)((key - pair.y) >> 63);
    }
  return (int)(chain[0] + chain[1]);
}

// Loads the candidates of this thread from `begin` on as keys, 0 behind the last.
template <class C>
NSAI_DEVICE void load_candidates(u64 (&keys)[kRankLoads], const float *gI, int begin, int count) {
  using R = Ranking<C>;
  constexpr int kFirst = C::kSelectInit;
  begin += threadIdx.x % R::kLanes * R::kGroups + threadIdx.x / R::kLanes;
  float importance[kRankLoads];
#pragma unroll
  for (int i = 0; i < kRankLoads; ++i) {
    const int at = begin + i * C::kThreads;
    importance[i] = at < count ? gI[kFirst + at] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kRankLoads; ++i) {
    const int at = begin + i * C::kThreads;
    keys[i] = at < count ? rank_key(row_order_of<C>(importance[i]), kFirst + at) : 0;
  }
}

// Adds the keys that reach `least` to shared.passing, in any order. Whole warps take part.
template <class C>
NSAI_DEVICE void keep_passing(RankShared<C> &shared, const u64 (&keys)[kRankLoads], u64 least) {
  const int lane = threadIdx.x % 32;
  u32 votes[kRankLoads];
  int passing = 0;
#pragma unroll
  for (int i = 0; i < kRankLoads; ++i) {
    votes[i] = __ballot_sync(kAllLanes, keys[i] >= least);
    passing += __popc(votes[i]);
  }
  if (!passing) return;
  int slot = 0;
  if (lane == 0) slot = atomicAdd(&shared.count, passing);
  slot = __shfl_sync(kAllLanes, slot, 0);
#pragma unroll
  for (int i = 0; i < kRankLoads; ++i) {
    if (keys[i] >= least) shared.passing[slot + votes_below(votes[i], lane)] = keys[i];
    slot += __popc(votes[i]);
  }
}

// The sum of x over this thread and the kLanes - 1 beside it.
template <int kLanes> NSAI_DEVICE int adjacent_sum(int x) {
#pragma unroll
  for (int delta = 1; delta < kLanes; delta *= 2) x += __shfl_xor_sync(kAllLanes, x, delta);
  return x;
}

// Writes the blocks of shared.passing that are chosen to shared.best. All threads take part.
template <class C> NSAI_DEVICE void rank_passing(RankShared<C> &shared) {
  constexpr int kLanes = 2; // threads per key
  const int part = threadIdx.x % kLanes, found = shared.count;
#pragma unroll 1
  for (int begin = 0; begin < found; begin += C::kThreads / kLanes) {
    const int at = begin + threadIdx.x / kLanes;
    const u64 key = at < found ? shared.passing[at] : 0;
    const int rank = adjacent_sum<kLanes>(
        count_greater<kLanes, kRankedAtOnce / (2 * kLanes)>(shared.passing, part, found, key));
    if (key && part == 0 && rank < Ranking<C>::kFree) shared.best[rank] = ranked_block(key);
  }
}

// Writes the blocks of shared.best to sList [kFree], ascending. All threads take part.
template <class C> NSAI_DEVICE void list_best(const RankShared<C> &shared, int *sList) {
  constexpr int kFree = Ranking<C>::kFree;
  constexpr int kLanes = C::kThreads >= 4 * kFree ? 4 : C::kThreads >= 2 * kFree ? 2 : 1;
  const int at = threadIdx.x / kLanes, block = shared.best[min(at, kFree - 1)];
  int below = 0;
#pragma unroll 4
  for (int i = 0; i < ceil_div(kFree, kLanes); ++i) {
    const int other = threadIdx.x % kLanes + i * kLanes;
    if (kFree % kLanes == 0 || other < kFree) below += (u32)(shared.best[other] - block) >> 31;
  }
  below = adjacent_sum<kLanes>(below);
  if (at < kFree && threadIdx.x % kLanes == 0) sList[below] = block;
}

// Writes the part of a token's list, ascending and then -1, that depends only on the number of candidates. All
// threads take part.
template <class C> NSAI_DEVICE void list_forced(int *sList, int candidates) {
  constexpr int kCount = C::kSelectCount, kFound = C::kSelectInit + kFreeBlocks<C>;
#pragma unroll 1
  for (int i = threadIdx.x; i < kCount; i += C::kThreads) {
    if (candidates <= kCount)
      sList[i] = i < candidates ? i : -1; // all of them
    else if (i < C::kSelectInit || i >= kFound)
      sList[i] = i < kFound ? i : candidates - kCount + i;
  }
}

// Completes the list of a token with so many candidates, sList [n], that list_forced() has begun.
// gI [candidates] is read only if importance decides. All threads take part, and sList is complete
// for all on return.
template <class C>
NSAI_DEVICE void rank_blocks(RankShared<C> &shared, int *sList, const float *gI, int candidates) {
  using R = Ranking<C>;
  const int thread = threadIdx.x, group = thread / R::kLanes, part = thread % R::kLanes;
  if constexpr (R::kFree > 0) {
    if (needs_search<C>(candidates)) {
      const int count = candidates - C::kSelectInit - C::kSelectLocal; // more than kFree
      u64 least = ~(u64)0;                                             // that no key reaches
      u64 keys[kRankLoads];
      // Reads the candidates to find the least key, and again to keep those that reach it.
#pragma unroll 1
      for (int pass = 0; pass < 2; ++pass) {
        u64 greatest = 0;
#pragma unroll 1
        for (int begin = 0; begin < count; begin += kRankLoads * C::kThreads) {
          if (!pass || count > kRankLoads * C::kThreads) load_candidates<C>(keys, gI, begin, count);
#pragma unroll
          for (int i = 0; i < kRankLoads; ++i) greatest = keys[i] > greatest ? keys[i] : greatest;
          keep_passing<C>(shared, keys, least);
        }
        if (pass) break;
#pragma unroll
        for (int delta = 1; delta < R::kLanes; delta *= 2) {
          const u64 other = __shfl_xor_sync(kAllLanes, greatest, delta);
          greatest = other > greatest ? other : greatest;
        }
        if (part == 0) shared.groups[group] = greatest;
        if (thread == 0) shared.count = 0;
#pragma unroll 1
        for (int i = thread; i < R::kMostPassing; i += C::kThreads) shared.passing[i] = 0;
        __syncthreads(); // the groups' keys are written
        constexpr int kPairs = R::kGroups / (2 * R::kLanes) < 4 ? R::kGroups / (2 * R::kLanes) : 4;
        static_assert(R::kGroups % (2 * kPairs * R::kLanes) == 0, "no group is behind the last");
        const int above = adjacent_sum<R::kLanes>(
            count_greater<R::kLanes, kPairs>(shared.groups, part, R::kGroups, greatest));
        // Keys differ, and at least kFree groups have one, so this is true of one group.
        if (part == 0 && above == R::kFree - 1) shared.least = greatest;
        __syncthreads(); // the least key is written
        least = shared.least;
      }
      __syncthreads(); // all passing keys are written
      rank_passing<C>(shared);
      __syncthreads(); // the best blocks are written
      list_best<C>(shared, sList + C::kSelectInit);
    }
  }
  __syncthreads(); // the list is written
}
