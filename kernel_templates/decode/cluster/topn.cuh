// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// How the blocks of a cluster of decode_cluster find a token's best selection blocks. Each finds the
// importance of its own, from what was pooled of them (decode/cluster/pool.cuh) and all blocks' stats, and
// tells it to all, or its best alone where there are many; then each finds the best of all
// (core/topn_cta.cuh). By the warps that copy, while the others go on.
//
// Config: those of decode/cluster/ranges.cuh and producer.cuh, kMostBlocks (of a thread block).
#pragma once
#include "core/barrier.cuh"
#include "core/cluster.cuh"
#include "decode/cluster/producer.cuh"
#include "decode/cluster/reduce.cuh"
#include "decode/cluster/pool.cuh"
#include "decode/cluster/ranges.cuh"
#include "core/topn_cta.cuh"
#include "core/topn.cuh"

template <class C> struct Search {
  static constexpr int kFree = kFreeBlocks<C> > 0 ? kFreeBlocks<C> : 1;
  static constexpr int kToldBest = C::kCluster * kFree; // where blocks tell no more than these
  static constexpr int kKeys = kToldBest + C::kMostBlocks + 2;
  static constexpr int kMostTold = kKeys / C::kCluster;
  static constexpr int kAtOnce = kCopiers<C> / 2; // so few keys are ranked at once: zeros lie behind them
  float pooled[C::kKeptBlocks][16];
  __align__(16) float spills[C::kWarps + 1][16]; // into the block's first run, and behind each
  FewBest<kFree, 256> best;                      // few enough to be ranked one by one
  u64 keys[kKeys]; // that all blocks tell; behind them those of a block that tells its best alone
  int list[C::kSelectCount + 1];
};

// What a warp's last key weighs in the block behind it; behind the last run to the next block, where it
// counts on `barrier`.
template <class C>
NSAI_DEVICE void share_spill(Search<C> &search, u32 barrier, const ClusterStretch &stretch,
                             const StepPool<C> &pool, int rank, int warp) {
  const bool sends = warp + 1 == stretch.runs && rank + 1 < C::kCluster;
  pool.end([&](int row, float spill) {
    search.spills[warp + 1][row] = spill;
    if (sends)
      cluster_send(cluster_address(shared_address(&search.spills[0][row]), rank + 1), spill,
                   cluster_address(barrier, rank + 1));
  });
}

// A block tells the others `told` keys: all of its own, whether they are searched or not, or its best.
template <class C> struct OwnBlocks : SearchedBlocks {
  static constexpr int kBehind = C::kSelectLocal > 0 ? 0 : 1; // candidates that have a spill alone
  int all, told;
  NSAI_DEVICE bool few() const { return told == all && C::kCluster * told <= Search<C>::kAtOnce; }
};
template <class C>
NSAI_DEVICE OwnBlocks<C> own_blocks(ClusterStretch stretch, int candidates, int rank) {
  stretch.extent = recomputed(stretch.extent); // here, and not before the first copies
  const int all = stretch.extent + OwnBlocks<C>::kBehind;
  return OwnBlocks<C>{ find_searched<C>(stretch, candidates, rank), all,
                       all > Search<C>::kMostTold ? kFreeBlocks<C> : all };
}

// Head lane % 16's log-sum-exp over all blocks, in powers of two. Whole warps.
template <class C> NSAI_DEVICE float find_lse(const float2 (*sStats)[16], int lane) {
  constexpr int kHalf = C::kCluster / 2; // of the blocks, for each half of the lanes
  const float2 own = add_stats<kHalf>(&sStats[lane / 16 * kHalf][lane % 16]);
  const float2 other = make_float2(__shfl_xor_sync(~0u, own.x, 16), __shfl_xor_sync(~0u, own.y, 16));
  const float2 all = add_stats(own, other);
  return all.x + log2_approx(all.y);
}

// Who searches.
template <class C> struct Copiers {
  static constexpr int kThreads = kCopiers<C>;
  int thread; // of these
  NSAI_DEVICE void sync() const { sync_copiers<C>(); }
};

// A lane's part in that, found before there are any values: kLanes of them share a block.
template <class C> struct KeyTeller {
  static constexpr int kHeads = kLaneHeads<C>, kLanes = kBlockLanes<C>;
  static constexpr int kTo = ceil_div(C::kCluster, kLanes); // blocks of threads that it tells
  int thread, lane;
  int first;      // of the warp's blocks
  u32 barrier;    // of candidates
  u32 there[kTo]; // that of the other blocks
  NSAI_DEVICE KeyTeller(const Copiers<C> &team, u32 barrier)
      : thread(team.thread), lane(thread % kLanes), first(thread / 32 * (32 / kLanes)), barrier(barrier) {
#pragma unroll
    for (int i = 0; i < kTo; ++i)
      there[i] = cluster_address(barrier, min(lane + i * kLanes, C::kCluster - 1));
  }
};

// The block's keys to all blocks; or to where it searches its best.
template <class C>
NSAI_DEVICE void tell_keys(const KeyTeller<C> &teller, Search<C> &search, const float2 (*sStats)[16],
                           const ClusterStretch &stretch, const OwnBlocks<C> &own, const float *pooled,
                           int rank) {
  constexpr int kHeads = KeyTeller<C>::kHeads, kLanes = KeyTeller<C>::kLanes;
  const int thread = teller.thread, lane = teller.lane;
  if (teller.first >= own.all) return;
  const float mine = find_lse<C>(sStats, thread % 32);
  float lse[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) lse[h] = __shfl_sync(~0u, mine, lane * kHeads + h);
#pragma unroll 1
  for (int begin = teller.first; begin < own.all; begin += kCopiers<C> / kLanes) {
    const int at = begin + thread % 32 / kLanes, j = stretch.first_block + at;
    const bool counts = own.begin <= j && j < own.end;
    float x = 0.0f;
    if (counts) {
      const SpillAt spill = find_spill<C>(stretch, at, j);
      float heads[kHeads] = {};
      if (j < stretch.blocks) load_heads(heads, pooled + at * 16 + lane * kHeads);
      x = add_heads<C>(heads, j < stretch.blocks, search.spills[spill.run] + lane * kHeads, spill.exists, lse,
                       lane);
    }
    x = lanes_sum<kLanes>(x);
    const u64 key = counts ? key_of(order_of(x), j) : 0;
    if (at >= own.all) continue;
    if (own.told < own.all) {
      if (lane == 0) search.keys[Search<C>::kToldBest + at] = key;
      continue;
    }
    const u32 to = shared_address(&search.keys[rank * own.told + at]) - teller.barrier;
#pragma unroll
    for (int i = 0; i < KeyTeller<C>::kTo; ++i)
      if (lane + i * kLanes < C::kCluster) cluster_send(teller.there[i] + to, key, teller.there[i]);
  }
}

// The best of this block's to all blocks.
template <class C>
NSAI_DEVICE void tell_best(const Copiers<C> &team, Search<C> &search, u32 barrier, const OwnBlocks<C> &own,
                           int rank) {
#pragma unroll 1
  for (int i = team.thread; i < C::kCluster * own.told; i += kCopiers<C>) {
    const int place = i / C::kCluster;
    const u32 there = cluster_address(barrier, i % C::kCluster);
    const u32 to = shared_address(&search.keys[rank * own.told + place]) - barrier;
    cluster_send(there + to, search.best.best[place], there);
  }
  sync_copiers<C>(); // the best are read
  if (team.thread < 32) clear_best(search.best, team.thread);
  sync_copiers<C>(); // all threads know it
}

// The best of what all blocks told into the list, ascending: of few keys.
template <class C> NSAI_DEVICE void list_few(const Copiers<C> &team, Search<C> &search) {
  const int copier = team.thread / 32, lane = team.thread % 32;
  const RankedKey x = rank_key(team, search.keys); // which lie by their indices
  const bool wins = x.counts && x.rank < kFreeBlocks<C>;
  const u32 winners = __ballot_sync(kAllLanes, wins);
  if (lane == 0) search.best.groups[copier] = __popc(winners);
  sync_copiers<C>(); // all warps' winners are counted
  int place = __popc(winners & ((1u << lane) - 1));
#pragma unroll
  for (int i = 0; i < kCopyWarps<C>; ++i) place += i < copier ? search.best.groups[i] : 0;
  if (wins) search.list[C::kSelectInit + place] = (int)index_in(x.key);
}

// The same of any keys; where blocks tell their best alone, first of this block's.
template <class C>
NSAI_DEVICE void list_best(const Copiers<C> &team, Search<C> &search, u32 barrier, const OwnBlocks<C> &own,
                           int rank) {
  constexpr int kFree = kFreeBlocks<C>;
  if (own.few()) {
    cluster_receive(barrier, 0);
    list_few<C>(team, search);
    return;
  }
#pragma unroll 1
  for (bool all = own.told == own.all;; all = true) {
    if (all)
      cluster_receive(barrier, 0);
    else
      sync_copiers<C>(); // the block's own are there
    find_best<Search<C>::kKeys>(team, search.best, search.keys + (all ? 0 : Search<C>::kToldBest),
                                all ? C::kCluster * own.told : own.all);
    if (all) break;
    tell_best<C>(team, search, barrier, own, rank);
  }
  if (team.thread >= kFree) return;
  const u32 index = index_in(search.best.best[team.thread]);
  int place = 0;
#pragma unroll
  for (int i = 0; i < kFree; ++i) place += index_in(search.best.best[i]) < index;
  search.list[C::kSelectInit + place] = (int)index;
}

