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
#include "core/topn.cuh"
#include "core/topn_cta.cuh"
#include "decode/cluster/pool.cuh"
#include "decode/cluster/producer.cuh"
#include "decode/cluster/ranges.cuh"
#include "decode/cluster/reduce.cuh"

template <class C> struct Search {
  static constexpr int kFree = kFreeBlocks<C> > 0 ? kFreeBlocks<C> : 1;
  static constexpr int kSentBest = C::kCluster * kFree; // where blocks tell no more than these
  static constexpr int kKeys = kSentBest + C::kMostBlocks + 2;
  static constexpr int kMaxSent = kKeys / C::kCluster;
  static constexpr int kAtOnce =
      kProducerThreads<C> / 2; // so few keys are ranked at once: zeros lie behind them
  float pooled[C::kKeptBlocks][16];
  __align__(16) float carries[C::kWarps + 1][16]; // into the block's first run, and behind each
  FewBest<kFree, 256> best;                       // few enough to be ranked one by one
  u64 keys[kKeys]; // that all blocks tell; behind them those of a block that tells its best alone
  int list[C::kSelectCount + 1];
};

// What a warp's last key weighs in the block behind it; behind the last run to the next block, where it
// counts on `barrier`.
template <class C>
NSAI_DEVICE void share_carry(Search<C> &search, u32 barrier, const ClusterBlockRange &block_range,
                             const StepPool<C> &pool, int rank, int warp) {
  const bool sends = warp + 1 == block_range.runs && rank + 1 < C::kCluster;
  pool.end([&](int row, float carry) {
    search.carries[warp + 1][row] = carry;
    if (sends)
      cluster_send(cluster_address(shared_address(&search.carries[0][row]), rank + 1), carry,
                   cluster_address(barrier, rank + 1));
  });
}

// A block tells the others `told` keys: all of its own, whether they are searched or not, or its best.
template <class C> struct CtaBlocks : SearchedBlocks {
  static constexpr int kBehind = C::kSelectLocal > 0 ? 0 : 1; // candidates that have a spill alone
  int all, sent;
  NSAI_DEVICE bool few() const { return sent == all && C::kCluster * sent <= Search<C>::kAtOnce; }
};
template <class C>
NSAI_DEVICE CtaBlocks<C> find_cta_blocks(ClusterBlockRange block_range, int candidates, int rank) {
  block_range.extent = recomputed(block_range.extent); // here, and not before the first copies
  const int all = block_range.extent + CtaBlocks<C>::kBehind;
  return CtaBlocks<C>{ find_searched<C>(block_range, candidates, rank), all,
                       all > Search<C>::kMaxSent ? kFreeBlocks<C> : all };
}

// Head lane % 16's log-sum-exp over all blocks, in powers of two. Whole warps.
template <class C> NSAI_DEVICE float find_lse(const float2 (*sStats)[16], int lane) {
  constexpr int kHalf = C::kCluster / 2; // of the blocks, for each half of the lanes
  const float2 half = add_stats<kHalf>(&sStats[lane / 16 * kHalf][lane % 16]);
  const float2 other =
      make_float2(__shfl_xor_sync(~0u, half.x, 16), __shfl_xor_sync(~0u, half.y, 16));
  const float2 all = add_stats(half, other);
  return all.x + log2_approx(all.y);
}

// Who searches.
template <class C> struct ProducerThreads {
  static constexpr int kThreads = kProducerThreads<C>;
  int thread; // of these
  NSAI_DEVICE void sync() const { sync_producers<C>(); }
};

// A lane's part in that, found before there are any values: kLanes of them share a block.
template <class C> struct KeySender {
  static constexpr int kHeads = kLaneHeads<C>, kLanes = kBlockLanes<C>;
  static constexpr int kTo = ceil_div(C::kCluster, kLanes); // blocks of threads that it tells
  int thread, lane;
  int first;               // of the warp's blocks
  u32 barrier;             // of candidates
  u32 remote_barrier[kTo]; // that of the other blocks
  NSAI_DEVICE KeySender(const ProducerThreads<C> &searchers, u32 barrier)
      : thread(searchers.thread), lane(thread % kLanes), first(thread / 32 * (32 / kLanes)),
        barrier(barrier) {
#pragma unroll
    for (int i = 0; i < kTo; ++i)
      remote_barrier[i] = cluster_address(barrier, min(lane + i * kLanes, C::kCluster - 1));
  }
};

// The block's keys to all blocks; or to where it searches its best.
template <class C>
NSAI_DEVICE void send_keys(const KeySender<C> &sender, Search<C> &search,
                           const float2 (*sStats)[16], const ClusterBlockRange &block_range,
                           const CtaBlocks<C> &cta_blocks, const float *pooled, int rank) {
  constexpr int kHeads = KeySender<C>::kHeads, kLanes = KeySender<C>::kLanes;
  const int thread = sender.thread, lane = sender.lane;
  if (sender.first >= cta_blocks.all) return;
  const float mine = find_lse<C>(sStats, thread % 32);
  float lse[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) lse[h] = __shfl_sync(~0u, mine, lane * kHeads + h);
#pragma unroll 1
  for (int begin = sender.first; begin < cta_blocks.all; begin += kProducerThreads<C> / kLanes) {
    const int at = begin + thread % 32 / kLanes, j = block_range.first_block + at;
    const bool counts = cta_blocks.begin <= j && j < cta_blocks.end;
    float x = 0.0f;
    if (counts) {
      const CarryAt carry = find_carry<C>(block_range, at, j);
      float heads[kHeads] = {};
      if (j < block_range.blocks) load_heads(heads, pooled + at * 16 + lane * kHeads);
      x = add_heads<C>(heads, j < block_range.blocks, search.carries[carry.run] + lane * kHeads,
                       carry.exists, lse, lane);
    }
    x = lanes_sum<kLanes>(x);
    const u64 key = counts ? key_of(order_of(x), j) : 0;
    if (at >= cta_blocks.all) continue;
    if (cta_blocks.sent < cta_blocks.all) {
      if (lane == 0) search.keys[Search<C>::kSentBest + at] = key;
      continue;
    }
    const u32 to = shared_address(&search.keys[rank * cta_blocks.sent + at]) - sender.barrier;
#pragma unroll
    for (int i = 0; i < KeySender<C>::kTo; ++i)
      if (lane + i * kLanes < C::kCluster)
        cluster_send(sender.remote_barrier[i] + to, key, sender.remote_barrier[i]);
  }
}

// The best of this block's to all blocks.
template <class C>
NSAI_DEVICE void send_best(const ProducerThreads<C> &searchers, Search<C> &search, u32 barrier,
                           const CtaBlocks<C> &cta_blocks, int rank) {
#pragma unroll 1
  for (int i = searchers.thread; i < C::kCluster * cta_blocks.sent; i += kProducerThreads<C>) {
    const int slot = i / C::kCluster;
    const u32 remote_barrier = cluster_address(barrier, i % C::kCluster);
    const u32 to = shared_address(&search.keys[rank * cta_blocks.sent + slot]) - barrier;
    cluster_send(remote_barrier + to, search.best.best[slot], remote_barrier);
  }
  sync_producers<C>(); // the best are read
  if (searchers.thread < 32) clear_best(search.best, searchers.thread);
  sync_producers<C>(); // all threads know it
}

// The best of what all blocks told into the list, ascending: of few keys.
template <class C>
NSAI_DEVICE void list_few(const ProducerThreads<C> &searchers, Search<C> &search) {
  const int producer_warp = searchers.thread / 32, lane = searchers.thread % 32;
  const RankedKey x = rank_key(searchers, search.keys); // which lie by their indices
  const bool wins = x.counts && x.rank < kFreeBlocks<C>;
  const u32 winners = __ballot_sync(kAllLanes, wins);
  if (lane == 0) search.best.groups[producer_warp] = __popc(winners);
  sync_producers<C>(); // all warps' winners are counted
  int slot = __popc(winners & ((1u << lane) - 1));
#pragma unroll
  for (int i = 0; i < kProducerWarps<C>; ++i) slot += i < producer_warp ? search.best.groups[i] : 0;
  if (wins) search.list[C::kSelectInit + slot] = (int)index_in(x.key);
}

// The same of any keys; where blocks tell their best alone, first of this block's.
template <class C>
NSAI_DEVICE void list_best(const ProducerThreads<C> &searchers, Search<C> &search, u32 barrier,
                           const CtaBlocks<C> &cta_blocks, int rank) {
  constexpr int kFree = kFreeBlocks<C>;
  if (cta_blocks.few()) {
    cluster_receive(barrier, 0);
    list_few<C>(searchers, search);
    return;
  }
#pragma unroll 1
  for (bool all = cta_blocks.sent == cta_blocks.all;; all = true) {
    if (all)
      cluster_receive(barrier, 0);
    else
      sync_producers<C>(); // the block's own are there
    find_best<Search<C>::kKeys>(searchers, search.best,
                                search.keys + (all ? 0 : Search<C>::kSentBest),
                                all ? C::kCluster * cta_blocks.sent : cta_blocks.all);
    if (all) break;
    send_best<C>(searchers, search, barrier, cta_blocks, rank);
  }
  if (searchers.thread >= kFree) return;
  const u32 index = index_in(search.best.best[searchers.thread]);
  int slot = 0;
#pragma unroll
  for (int i = 0; i < kFree; ++i) slot += index_in(search.best.best[i]) < index;
  search.list[C::kSelectInit + slot] = (int)index;
}
