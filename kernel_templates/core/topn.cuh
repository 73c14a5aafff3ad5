// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Which n selection blocks a token attends to, given its row of importance, by one warp.
//
//   candidates: j <= t / l'. Forced: j < n_init and the n_local last candidates. The rest by
//   importance descending, equal importance by lower index, until n are taken or no candidate is
//   left. Ascending, then -1.
//
// With n candidates or fewer all are listed and nothing is read. Else the n_free = n - n_init -
// n_local best of the unforced ones are searched in one streaming pass over the row:
//   best   in registers: 32 * kSlots keys in descending order over the lanes,
//          (order of importance, ~index) as u64
//   queue  in shared memory: candidates that beat the n_free-th best, appended by ballot and rank
// Where 32 or more have gathered they are sorted and merged in; where they never do, they are ranked. So a
// candidate that cannot win costs a load, a comparison and its share of a ballot, and the sorting is paid
// for 32 at a time, also where importance rises along the row.
// Importance is >= 0, so that its bits order as integers. NaN and negative values rank below 0, by
// index among themselves: any input gives n different candidates.
//
// Config: kSelectBlock (l'), kSelectCount (n), kSelectInit, kSelectLocal.
#pragma once
#include "core/types.cuh"

constexpr u32 kAllLanes = 0xffffffffu;
constexpr int kUnroll = 4;           // loads in flight per lane
constexpr int kBatch = 32 * kUnroll; // candidates between two looks at the queue
constexpr int kQueue = 31 + kBatch;  // what is left from before, and a batch

template <class C> struct Topn {
  static_assert(C::kSelectInit + C::kSelectLocal <= C::kSelectCount,
                "forced blocks count among the n");
  static_assert(0 < C::kSelectCount && C::kSelectCount <= 256,
                "the best are held in registers, 8 a lane at most");
  static constexpr int kFree = C::kSelectCount - C::kSelectInit - C::kSelectLocal;
  static constexpr int kSlots = kFree > 128 ? 8 : kFree > 64 ? 4 : kFree > 32 ? 2 : 1;
};

// Blocks that the token at position t chooses from.
template <class C> NSAI_DEVICE int candidate_count(int t) {
  return t < 0 ? 0 : t / C::kSelectBlock + 1;
}

// Blocks that are searched, n_free; none where nothing is selected.
template <class C>
constexpr int kFreeBlocks =
    C::kSelectCount > 0 ? C::kSelectCount - C::kSelectInit - C::kSelectLocal : 0;

// ---- ordering

// What importance is ordered by: 0 stands for an empty place, 1 for NaN and negatives, then x >= 0
// as its bits.
NSAI_DEVICE u32 order_of(float x) { return x >= 0 ? (__float_as_uint(x) & 0x7fffffffu) + 2 : 1; }

// Greater means better: by importance, then by lower index.
NSAI_DEVICE u64 key_of(u32 order, int index) { return (u64)order << 32 | ~(u32)index; }
NSAI_DEVICE u32 order_in(u64 key) { return (u32)(key >> 32); }
NSAI_DEVICE u32 index_in(u64 key) { return ~(u32)key; }

// One step of a bitonic network: lanes whose numbers differ in bit `lanes` compare; the lower one
// keeps the greater value where `descending`.
template <class Key> NSAI_DEVICE Key exchange(Key x, int lanes, bool descending, int lane) {
  Key other = __shfl_xor_sync(kAllLanes, x, lanes);
  bool keep_greater = ((lane & lanes) == 0) == descending;
  return (x > other) == keep_greater ? x : other;
}

// Sorts a bitonic sequence of 32.
NSAI_DEVICE u64 merge_lanes(u64 x, bool descending, int lane) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x = exchange(x, lanes, descending, lane);
  return x;
}

// Sorts any 32, ascending.
template <class Key> NSAI_DEVICE Key sort_lanes(Key x, int lane) {
#pragma unroll
  for (int size = 2; size <= 32; size *= 2)
#pragma unroll
    for (int lanes = size / 2; lanes > 0; lanes /= 2)
      x = exchange(x, lanes, (lane & size) != 0, lane);
  return x;
}

// Merges 32 keys into the descending `best`; the 32 worst of all fall out.
template <int kSlots> NSAI_DEVICE void merge_best(u64 (&best)[kSlots], u64 x, int lane) {
  x = sort_lanes(x, lane);
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    // Descending against ascending: the greater of each pair are the 32 best of both, and either
    // half is bitonic.
    u64 better = best[slot] > x ? best[slot] : x, worse = best[slot] > x ? x : best[slot];
    best[slot] = merge_lanes(better, true, lane);
    if (slot + 1 < kSlots) x = merge_lanes(worse, false, lane);
  }
}

// Sorts 32 * kSlots values ascending, kSlots a power of two; value slot * 32 + lane lies in
// v[slot].
template <int kSlots> NSAI_DEVICE void sort_ascending(u32 (&v)[kSlots], int lane) {
#pragma unroll
  for (int size = 2; size <= 32 * kSlots; size *= 2) {
#pragma unroll
    for (int distance = size / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        bool descending = ((slot * 32 + lane) & size) != 0;
        int other = slot ^ distance / 32;
        if (distance < 32) {
          v[slot] = exchange(v[slot], distance, descending, lane);
        } else if (slot < other) {
          u32 low = min(v[slot], v[other]), high = max(v[slot], v[other]);
          v[slot] = descending ? high : low;
          v[other] = descending ? low : high;
        }
      }
    }
  }
}

// ---- few candidates

// The place of this lane's x among those of all lanes, from the greatest on; of equal ones the lower
// lane comes first.
NSAI_DEVICE int rank_of(u32 x, int lane) {
  int rank = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    u32 other = __shfl_sync(kAllLanes, x, i);
    rank += other > x || (other == x && i < lane);
  }
  return rank;
}

// An order that `count` of the candidates have, or a greater one, given each lane's greatest; 1 <=
// count <= 32.
NSAI_DEVICE u32 order_reached(u32 greatest, int count, int lane) {
  u32 owner = __ballot_sync(kAllLanes, rank_of(greatest, lane) == count - 1);
  return __shfl_sync(kAllLanes, greatest, __ffs(owner) - 1);
}

// ---- search

// Writes the indices of the kFree best of `count` candidates to gOut, ascending; there are more than
// kFree, and kFree of them have a greater order than `bar`. load(i): the i-th one's key; their indices
// ascend. `queue` [kQueue] is the warp's.
template <int kFree, int kSlots, class Load>
NSAI_DEVICE void search(int *gOut, int count, Load load, u64 *queue, int lane, u32 bar) {
  constexpr int kLast = (kFree - 1) / 32, kLane = (kFree - 1) % 32; // where the n_free-th best lies
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
      if (wins) queue[queued + __popc(winners & ((1u << lane) - 1))] = key[i];
      queued += __popc(winners);
    }
    const bool last = begin + kBatch >= count;
    if (queued < (last ? 1 : 32)) continue; // not worth a merge
    __syncwarp();                           // the queue is written
    if (kFree <= 32 && last && !merged && queued <= 32) {
      // Never more than 32: they lie in the queue by their indices.
      u64 key = lane < queued ? queue[lane] : 0;
      bool chosen = rank_of(order_in(key), lane) < kFree;
      u32 all = __ballot_sync(kAllLanes, chosen);
      if (chosen) gOut[__popc(all & ((1u << lane) - 1))] = (int)index_in(key);
      __syncwarp(); // the queue is read
      return;
    }
    while (queued >= (last ? 1 : 32)) {
      int taken = min(queued, 32);
      queued -= taken;
      merge_best(best, lane < taken ? queue[queued + lane] : 0, lane);
    }
    merged = true;
    __syncwarp(); // the queue is read
    // A later candidate, whose index is higher, must be greater to beat the n_free-th best.
    bar = max(bar, order_in(__shfl_sync(kAllLanes, best[kLast], kLane)));
  }

  u32 v[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot)
    v[slot] = slot * 32 + lane < kFree ? index_in(best[slot]) : ~0u;
  sort_ascending(v, lane);
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot)
    if (slot * 32 + lane < kFree) gOut[slot * 32 + lane] = (int)v[slot];
}

// Writes what follows of a token's number of candidates alone to its list gOut [n]. True: between the
// forced blocks, from gOut[kSelectInit] on, the best of the others are to be filled in.
template <class C> NSAI_DEVICE bool write_forced(int *gOut, int candidates, int lane) {
  constexpr int kFree = Topn<C>::kFree;
  if (candidates <= C::kSelectCount) { // all of them
    for (int i = lane; i < C::kSelectCount; i += 32) gOut[i] = i < candidates ? i : -1;
    return false;
  }
  // Forced, free, forced: n altogether, since the forced ones cannot coincide here.
  for (int i = lane; i < C::kSelectInit; i += 32) gOut[i] = i;
  for (int i = lane; i < C::kSelectLocal; i += 32)
    gOut[C::kSelectInit + kFree + i] = candidates - C::kSelectLocal + i;
  return kFree > 0;
}
