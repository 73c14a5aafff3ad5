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
  u64 groups[Ranking<C>::kGroups];
  u64 passing[Ranking<C>::kMostPassing];
  u64 least;                                               // key of the kFree-th greatest group
  int best[Ranking<C>::kFree > 0 ? Ranking<C>::kFree : 1]; // blocks in order of rank
  int count;                                               // of `passing`
};

constexpr int kRankLoads = 4; // candidates in flight per thread

// Calls visit(key) for each candidate of this thread, 0 behind the last; all threads equally often.
template <class C, class Visit>
NSAI_DEVICE void visit_candidates(const float *gI, int count, Visit visit) {
  using R = Ranking<C>;
  constexpr int kFirst = C::kSelectInit;
  const int mine = threadIdx.x % R::kLanes * R::kGroups + threadIdx.x / R::kLanes;
#pragma unroll 1
  for (int begin = 0; begin < count; begin += kRankLoads * C::kThreads) {
    float importance[kRankLoads];
#pragma unroll
    for (int i = 0; i < kRankLoads; ++i) {
      const int at = begin + i * C::kThreads + mine;
      importance[i] = at < count ? gI[kFirst + at] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kRankLoads; ++i) {
      const int at = begin + i * C::kThreads + mine;
      visit(at < count ? key_of(row_order_of<C>(importance[i]), kFirst + at) : 0);
    }
  }
}

// Adds the candidates that reach `least` to shared.passing, in any order.
template <class C>
NSAI_DEVICE void keep_passing(RankShared<C> &shared, const float *gI, int count, u64 least) {
  const int lane = threadIdx.x % 32;
  visit_candidates<C>(gI, count, [&](u64 key) {
    const bool passes = key >= least;
    const u32 votes = __ballot_sync(kAllLanes, passes);
    if (!votes) return;
    int slot = 0;
    if (lane == 0) slot = atomicAdd(&shared.count, __popc(votes));
    slot = __shfl_sync(kAllLanes, slot, 0) + votes_below(votes, lane);
    if (passes) shared.passing[slot] = key;
  });
}

// Writes the blocks of shared.passing that are chosen to shared.best.
template <class C> NSAI_DEVICE void rank_passing(RankShared<C> &shared) {
  constexpr int kLanes = 4; // threads per key
  const int part = threadIdx.x % kLanes, found = shared.count;
#pragma unroll 1
  for (int begin = 0; begin < found; begin += C::kThreads / kLanes) {
    const int at = begin + threadIdx.x / kLanes;
    const u64 key = at < found ? shared.passing[at] : 0;
    int rank = 0;
#pragma unroll 4
    for (int i = part; i < found; i += kLanes) rank += shared.passing[i] > key;
    rank += __shfl_xor_sync(kAllLanes, rank, 1);
    rank += __shfl_xor_sync(kAllLanes, rank, 2);
    if (key && part == 0 && rank < Ranking<C>::kFree) shared.best[rank] = (int)index_in(key);
  }
}

// Writes the list of a token with so many candidates to sList [n]: ascending, then -1. gI [candidates] is
// read only if importance decides. All threads take part, and sList is complete for all on return.
template <class C>
NSAI_DEVICE void rank_blocks(RankShared<C> &shared, int *sList, const float *gI, int candidates) {
  using R = Ranking<C>;
  const int thread = threadIdx.x, group = thread / R::kLanes, part = thread % R::kLanes;
  if (thread < 32) write_forced<C>(sList, candidates, thread);
  if constexpr (R::kFree > 0) {
    if (needs_search<C>(candidates)) {
      const int count = candidates - C::kSelectInit - C::kSelectLocal; // more than kFree
      u64 greatest = 0;
      visit_candidates<C>(gI, count, [&](u64 key) { greatest = key > greatest ? key : greatest; });
#pragma unroll
      for (int delta = 1; delta < R::kLanes; delta *= 2) {
        const u64 other = __shfl_xor_sync(kAllLanes, greatest, delta);
        greatest = other > greatest ? other : greatest;
      }
      if (part == 0) shared.groups[group] = greatest;
      if (thread == 0) shared.count = 0;
      __syncthreads(); // the groups' keys are written
      int above = 0;
#pragma unroll 8
      for (int i = part; i < R::kGroups; i += R::kLanes) above += shared.groups[i] > greatest;
#pragma unroll
      for (int delta = 1; delta < R::kLanes; delta *= 2)
        above += __shfl_xor_sync(kAllLanes, above, delta);
      // Keys differ, and at least kFree groups have one, so this is true of one group.
      if (part == 0 && above == R::kFree - 1) shared.least = greatest;
      __syncthreads(); // the least key is written
      keep_passing<C>(shared, gI, count, shared.least);
      __syncthreads(); // all passing keys are written
      rank_passing<C>(shared);
      __syncthreads(); // the best blocks are written
      for (int i = thread; i < R::kFree; i += C::kThreads) {
        const int block = shared.best[i];
        int below = 0;
#pragma unroll 8
        for (int k = 0; k < R::kFree; ++k) below += shared.best[k] < block;
        sList[C::kSelectInit + below] = block;
      }
    }
  }
  __syncthreads(); // the list is written
}
