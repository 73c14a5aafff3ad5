// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// How the CTAs of decode_cluster find a token's best selection blocks. Each CTA computes the
// importance of its own blocks from their pooled values (decode/cluster/pool.cuh) and all CTAs'
// statistics, and sends it to all CTAs (only its best, if it has many blocks). Each CTA then finds
// the best of all (core/topn_cta.cuh). The producer warps do this while the consumers go on.
//
// Config: those of decode/cluster/ranges.cuh and producer.cuh, kMostBlocks (most selection blocks
// of a CTA).
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
  static constexpr int kSentBest = C::kCluster * kFree; // if CTAs send only their best
  static constexpr int kKeys = kSentBest + C::kMostBlocks + 2;
  static constexpr int kMaxSent = kKeys / C::kCluster;
  static constexpr int kAtOnce =
      kProducerThreads<C> / 2; // most keys that are ranked at once; unused ones are zero
  float pooled[C::kKeptBlocks][16];
  __align__(16) float carries[C::kWarps + 1][16]; // into the CTA's first run, and after each run
  FewBest<kFree, 256> best;                       // few enough to be ranked one by one
  // Keys that all CTAs send; behind them this CTA's own, if it sends only its best.
  u64 keys[kKeys];
  int list[C::kSelectCount + 1];
};

// Shares the carry behind the warp's run; that of the CTA's last run goes to the next CTA, where
// its bytes count on `barrier`.
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

// A CTA sends `sent` keys: all of its own, whether they are searched or not, or only its best.
template <class C> struct CtaBlocks : SearchedBlocks {
  // Candidates that consist of a carry alone.
  static constexpr int kBehind = C::kSelectLocal > 0 ? 0 : 1;
  int all, sent;
  NSAI_DEVICE bool few() const { return sent == all && C::kCluster * sent <= Search<C>::kAtOnce; }
};
template <class C>
NSAI_DEVICE CtaBlocks<C> find_cta_blocks(ClusterBlockRange block_range, int candidates, int rank) {
  block_range.extent = recomputed(block_range.extent); // recompute: not before the first copies
  const int all = block_range.extent + CtaBlocks<C>::kBehind;
  return CtaBlocks<C>{ find_searched<C>(block_range, candidates, rank), all,
                       all > Search<C>::kMaxSent ? kFreeBlocks<C> : all };
}

// log-sum-exp of head lane % 16 over all CTAs, base 2. Whole warps take part.
template <class C> NSAI_DEVICE float find_lse(const float2 (*sStats)[16], int lane) {
  constexpr int kHalf = C::kCluster / 2; // CTAs for each half of the lanes
  const float2 half = add_stats<kHalf>(&sStats[lane / 16 * kHalf][lane % 16]);
  const float2 other =
      make_float2(__shfl_xor_sync(~0u, half.x, 16), __shfl_xor_sync(~0u, half.y, 16));
  const float2 all = add_stats(half, other);
  return all.x + log2_approx(all.y);
}

// The threads that search.
template <class C> struct ProducerThreads {
  static constexpr int kThreads = kProducerThreads<C>;
  int thread; // index among them
  NSAI_DEVICE void sync() const { sync_producers<C>(); }
};

// Precomputed per-lane state of send_keys(); kLanes lanes share a selection block.
template <class C> struct KeySender {
  static constexpr int kHeads = kLaneHeads<C>, kLanes = kBlockLanes<C>;
  static constexpr int kTo = ceil_div(C::kCluster, kLanes); // CTAs that a lane sends to
  int thread, lane;
  int first;               // first block of the warp
  u32 barrier;             // of the candidates
  u32 remote_barrier[kTo]; // the same in other CTAs
  NSAI_DEVICE KeySender(const ProducerThreads<C> &searchers, u32 barrier)
      : thread(searchers.thread), lane(thread % kLanes), first(thread / 32 * (32 / kLanes)),
        barrier(barrier) {
#pragma unroll
    for (int i = 0; i < kTo; ++i)
      remote_barrier[i] = cluster_address(barrier, min(lane + i * kLanes, C::kCluster - 1));
  }
};

// Sends the CTA's keys to all CTAs, or stores them locally if it sends only its best.
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

// Sends the CTA's best keys to all CTAs.
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
  sync_producers<C>(); // all threads have read the best keys
  if (searchers.thread < 32) clear_best(search.best, searchers.thread);
  sync_producers<C>(); // it is cleared
}

// Writes the best of all CTAs' keys to the list in ascending order, if there are few keys.
template <class C>
NSAI_DEVICE void list_few(const ProducerThreads<C> &searchers, Search<C> &search) {
  const int producer_warp = searchers.thread / 32, lane = searchers.thread % 32;
  const RankedKey x = rank_key(searchers, search.keys); // keys lie in index order
  const bool wins = x.counts && x.rank < kFreeBlocks<C>;
  const u32 winners = __ballot_sync(kAllLanes, wins);
  if (lane == 0) search.best.groups[producer_warp] = __popc(winners);
  sync_producers<C>(); // all warps' winners are counted
  int slot = votes_below(winners, lane);
#pragma unroll
  for (int i = 0; i < kProducerWarps<C>; ++i) slot += i < producer_warp ? search.best.groups[i] : 0;
  if (wins) search.list[C::kSelectInit + slot] = (int)index_in(x.key);
}

// The same for any number of keys. If CTAs send only their best, those are found first.
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
      sync_producers<C>(); // the CTA's own keys are written
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
