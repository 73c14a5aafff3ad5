// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Selects the n selection blocks that a token attends to, given its row of importance, by one warp.
//
//   Candidates: j <= t / l'. Forced: j < n_init and the n_local last candidates. The rest follow by
//   descending importance, ties by lower index, until n are selected or no candidate is left. The
//   list is ascending, then -1.
//
// With n or fewer candidates all are listed and nothing is read. Otherwise the n_free = n - n_init
// - n_local best unforced candidates are found in one streaming pass over the row:
//
//   best   in registers: 32 * kSlots keys in descending order over the lanes; a key is (order of
//          importance, ~index) as u64
//   queue  in shared memory: candidates that beat the n_free-th best, appended by ballot and rank
//
// When 32 or more keys have gathered in the queue, they are sorted and merged into `best`; if that
// never happens, they are ranked. A candidate that cannot win costs a load, a comparison and its
// share of a ballot. Sorting is paid for 32 keys at a time, even if importance rises along the row.
//
// Importance is >= 0, so its bits are ordered like integers. NaN and negative values rank below 0,
// by index among themselves: any input yields n different candidates. Scores of an index
// (Config::kSigned) may be negative, and NaN is -inf.
//
// Config: kSelectBlock (l'), kSelectCount (n), kSelectInit, kSelectLocal.
#pragma once
#include "core/sort.cuh"
#include "core/types.cuh"

constexpr u32 kAllLanes = 0xffffffffu;
constexpr int kUnroll = 4;           // loads in flight per lane
constexpr int kBatch = 32 * kUnroll; // candidates between two looks at the queue
constexpr int kQueue = 31 + kBatch;  // left over, plus a batch

// Number of blocks that are searched, n_free; 0 if nothing is selected.
template <class C>
constexpr int kFreeBlocks =
    C::kSelectCount > 0 ? C::kSelectCount - C::kSelectInit - C::kSelectLocal : 0;

template <class C> struct Topn {
  static_assert(C::kSelectInit + C::kSelectLocal <= C::kSelectCount,
                "forced blocks are among the n");
  static_assert(0 < C::kSelectCount && C::kSelectCount <= 256,
                "the best keys are held in registers, at most 8 per lane");
  static constexpr int kFree = kFreeBlocks<C>;
  static constexpr int kSlots = kFree > 128 ? 8 : kFree > 64 ? 4 : kFree > 32 ? 2 : 1;
};

// Number of candidate blocks of the token at position t.
template <class C> NSAI_DEVICE int candidate_count(int t) {
  return t < 0 ? 0 : t / C::kSelectBlock + 1;
}

// Whether importance decides which of so many candidates are selected.
template <class C> NSAI_DEVICE bool needs_search(int candidates) {
  return kFreeBlocks<C> > 0 && candidates > C::kSelectCount;
}

// ---- ordering

// Maps importance to an order: 0 for an empty slot, 1 for NaN and negative values, otherwise the
// bits of x >= 0 (plus 2).
NSAI_DEVICE u32 order_of(float x) { return x >= 0 ? (__float_as_uint(x) & 0x7fffffffu) + 2 : 1; }

// Maps any score to an order: 0 for an empty slot; NaN as -inf, whose order is greater than 0; -0 as 0.
NSAI_DEVICE u32 signed_order_of(float x) {
  const u32 bits = __float_as_uint(x == x ? x + 0.0f : kMinusInf);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
template <class C> NSAI_DEVICE u32 row_order_of(float x) {
  if constexpr (C::kSigned) return signed_order_of(x);
  return order_of(x);
}

// Keys compare by importance, then by lower index; greater is better.
NSAI_DEVICE u64 key_of(u32 order, int index) { return (u64)order << 32 | ~(u32)index; }
NSAI_DEVICE u32 order_in(u64 key) { return (u32)(key >> 32); }
NSAI_DEVICE u32 index_in(u64 key) { return ~(u32)key; }

// Sorts a bitonic sequence of 32 keys.
template <bool kSmall> NSAI_DEVICE u64 merge_lanes(u64 x, bool descending, int lane) {
#pragma unroll(kSmall ? 1 : 5)
  for (int lanes = 16; lanes > 0; lanes /= 2) x = exchange(x, lanes, descending, lane);
  return x;
}

// Merges 32 keys into the descending `best`; the 32 worst of all are dropped.
template <bool kSmall, int kSlots>
NSAI_DEVICE void merge_best(u64 (&best)[kSlots], u64 key, int lane) {
  u64 sorted[1] = { key };
  if constexpr (kSmall)
    sorted[0] = sort_lanes(key, lane);
  else
    sort_warp(sorted, lane);
  u64 x = sorted[0];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    // Descending against ascending: the greater ones of all pairs are the 32 best of both, and both
    // halves are bitonic.
    u64 better = best[slot] > x ? best[slot] : x, worse = best[slot] > x ? x : best[slot];
    best[slot] = merge_lanes<kSmall>(better, true, lane);
    if (slot + 1 < kSlots) x = merge_lanes<kSmall>(worse, false, lane);
  }
}

// ---- few candidates

// Rank of this lane's x among those of all lanes, greatest first; of equal values the lower lane
// comes first.
template <bool kSmall = false> NSAI_DEVICE int rank_of(u32 x, int lane) {
  int rank = 0;
#pragma unroll(kSmall ? 8 : 32)
  for (int i = 0; i < 32; ++i) {
    u32 other = __shfl_sync(kAllLanes, x, i);
    rank += other > x || (other == x && i < lane);
  }
  return rank;
}

// An order that at least `count` candidates reach, given each lane's maximum; 1 <= count <= 32.
template <bool kSmall = false> NSAI_DEVICE u32 order_reached(u32 greatest, int count, int lane) {
  u32 owner = __ballot_sync(kAllLanes, rank_of<kSmall>(greatest, lane) == count - 1);
  return __shfl_sync(kAllLanes, greatest, __ffs(owner) - 1);
}

// Given one key per lane, 0 for none, in index order: writes the indices of the kFree best to
// `list`, ascending.
template <int kFree, bool kSmall = false>
NSAI_DEVICE void list_ranked(int *list, u64 key, int lane) {
  const bool chosen = rank_of<kSmall>(order_in(key), lane) < kFree;
  const u32 all = __ballot_sync(kAllLanes, chosen);
  if (chosen) list[votes_below(all, lane)] = (int)index_in(key);
}

// ---- search

// Writes the indices of the kFree best of `count` candidates to gOut, ascending. There must be more
// than kFree candidates, and kFree of them must exceed `bar`. load(i) returns the i-th candidate's
// key; indices ascend with i. `queue` [kQueue] belongs to this warp.
// kSmall: in less code, for a bar so high that keys are seldom merged.
template <int kFree, int kSlots, bool kSmall = false, class Load>
NSAI_DEVICE void search(int *gOut, int count, Load load, u64 *queue, int lane, u32 bar) {
  // Position of the n_free-th best.
  constexpr int kLast = (kFree - 1) / 32, kLane = (kFree - 1) % 32;
  u64 best[kSlots] = {};
  int queued = 0;
  bool merged = false;

  for (int begin = 0; begin < count; begin += kBatch) {
    u64 key[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      int j = begin + 32 * i + lane;
      key[i] = j < count ? load(j) : 0;
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      bool wins = order_in(key[i]) > bar;
      u32 winners = __ballot_sync(kAllLanes, wins);
      if (wins) queue[queued + votes_below(winners, lane)] = key[i];
      queued += __popc(winners);
    }
    const bool last = begin + kBatch >= count;
    if (queued < (last ? 1 : 32)) continue; // not worth a merge yet
    __syncwarp();                           // the queue is written
    if (kFree <= 32 && last && !merged && queued <= 32) {
      // Never more than 32 keys: they lie in the queue in index order.
      u64 key = lane < queued ? queue[lane] : 0;
      list_ranked<kFree, kSmall>(gOut, key, lane);
      __syncwarp(); // all lanes have read the queue
      return;
    }
    while (queued >= (last ? 1 : 32)) {
      int taken = min(queued, 32);
      queued -= taken;
      merge_best<kSmall>(best, lane < taken ? queue[queued + lane] : 0, lane);
    }
    merged = true;
    __syncwarp(); // all lanes have read the queue
    // A later candidate has a higher index, so it must be greater to beat the n_free-th best.
    bar = max(bar, order_in(__shfl_sync(kAllLanes, best[kLast], kLane)));
  }

  u32 v[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot)
    v[slot] = slot * 32 + lane < kFree ? index_in(best[slot]) : ~0u;
  if constexpr (kSmall && kSlots == 1)
    v[0] = sort_lanes(v[0], lane);
  else
    sort_warp(v, lane);
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot)
    if (slot * 32 + lane < kFree) gOut[slot * 32 + lane] = (int)v[slot];
}

// One less than an order that kFree of the lanes' maxima reach: whatever is not above it cannot
// win.
template <int kFree> NSAI_DEVICE u32 bar_of(u32 greatest, int lane) {
  if constexpr (kFree > 32)
    return 0;
  else
    return order_reached(greatest, kFree, lane) - 1;
}

// search() with the bar that a first pass over the keys finds, for keys that are quickly read.
template <int kFree, int kSlots, class Load>
NSAI_DEVICE void search_twice(int *gOut, int count, Load load, u64 *queue, int lane) {
  u32 greatest = 0;
  for (int i = lane; i < count; i += 32) greatest = max(greatest, order_in(load(i)));
  search<kFree, kSlots>(gOut, count, load, queue, lane, bar_of<kFree>(greatest, lane));
}

// Writes the kFree best of the blocks [begin, begin + count), or all of them if there are no more,
// to sFound, ascending. load(i) returns the key of block begin + i. kTwice: by search_twice().
template <class C, bool kTwice, class Load>
NSAI_DEVICE void search_range(int *sFound, int begin, int count, Load load, u64 *queue, int lane) {
  constexpr int kFree = Topn<C>::kFree, kSlots = Topn<C>::kSlots;
  if (count <= kFree) {
    for (int i = lane; i < count; i += 32) sFound[i] = begin + i;
    return;
  }
  if constexpr (kTwice)
    search_twice<kFree, kSlots>(sFound, count, load, queue, lane);
  else
    search<kFree, kSlots>(sFound, count, load, queue, lane, 0);
}

// Writes the part of a token's list gOut [n] that depends only on its number of candidates. Returns
// true if the best of the other candidates must be filled in, from gOut[kSelectInit] on.
template <class C> NSAI_DEVICE bool write_forced(int *gOut, int candidates, int lane) {
  constexpr int kFree = Topn<C>::kFree;
  if (candidates <= C::kSelectCount) { // select all of them
    for (int i = lane; i < C::kSelectCount; i += 32) gOut[i] = i < candidates ? i : -1;
    return false;
  }
  // Forced, free, forced: n in total, because the forced ones cannot coincide here.
  for (int i = lane; i < C::kSelectInit; i += 32) gOut[i] = i;
  for (int i = lane; i < C::kSelectLocal; i += 32)
    gOut[C::kSelectInit + kFree + i] = candidates - C::kSelectLocal + i;
  return kFree > 0;
}
