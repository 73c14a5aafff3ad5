// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Importance of one token from what decode_scan has pooled, and the top-n by it, for decode_select and
// decode_whole; every thread of the CTA takes part.
//
//   I[j] = sum over the group's heads h of 2^(pooled[j, h] - lse[h]), and of the spill where a run begins
//          with block j
//
// Each warp searches a piece of the row, and one searches what they found. A piece's importance is computed
// once and kept in shared memory, as far as it reaches; beyond kKept blocks a warp it is computed again,
// to the same bits. The greatest of each lane bound from below what can win: so 32 candidates or fewer
// are left of nearly every piece, which are ranked, not sorted.
//
// Config: those of common/decode.cuh, kSelectCount (n), kSelectInit, kSelectLocal, kThreads.
#pragma once
#include "common/decode.cuh"
#include "common/params_cache.h"
#include "common/softmax.cuh"
#include "common/topn.cuh"

constexpr int kSelectWarps = Config::kThreads / 32;
constexpr int kKept = 4096 / kSelectWarps; // floats of a warp; of all: 256k tokens where l' is 64

template <class C> struct SelectShared {
  float kept[kSelectWarps][kKept];
  u64 queue[kSelectWarps][kQueue];
  int found[kSelectWarps][Topn<C>::kFree > 0 ? Topn<C>::kFree : 1];
};

// One token's importance, block by block.
template <class C> struct ScanImportance {
  const float *gPooled; // [blocks, kScanRows] from the token's first row on
  const float *gSpills; // [runs, kScanRows], the same
  const float *sLse;    // [kGroupPadded], base 2, at a multiple of 16 bytes
  int blocks;           // that were pooled
  int each;             // of a run

  // Lanes that share a block, each with kHeads of its heads: a warp reads whole sectors.
  static constexpr int kHeads = C::kGroupPadded % 4 ? C::kGroupPadded : 4;
  static constexpr int kLanes = C::kGroupPadded / kHeads, kBlocks = 32 / kLanes;
  static constexpr int kAtOnce = kHeads == 4 ? 4 : 8; // blocks of a lane whose rows are on their way together
  static_assert(kLanes <= 32, "a warp has a block");

  struct Heads {
    float x[kHeads];
  };
  static NSAI_DEVICE Heads load(const float *row) {
    Heads v;
    if constexpr (kHeads == 4) {
      const float4 x = *(const float4 *)row;
      v.x[0] = x.x, v.x[1] = x.y, v.x[2] = x.z, v.x[3] = x.w;
    } else {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) v.x[h] = row[h];
    }
    return v;
  }
  // Of the heads from `first` on; those that pad a group are written as the others are, and left out here.
  NSAI_DEVICE float add(const Heads &v, const Heads &lse, int first) const {
    float sum = 0.0f;
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
      if (C::kGroup == C::kGroupPadded || first + h < C::kGroup) sum += exp2_approx(v.x[h] - lse.x[h]);
    return sum;
  }
  // Of a block's lanes, all of which get it.
  static NSAI_DEVICE float add_lanes(float part) {
    if constexpr (kLanes == 1) return part;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) sum += __shfl_sync(~0u, part, i, kLanes);
    return sum;
  }
  // Of a whole row by one lane, in the same order.
  NSAI_DEVICE float add_row(const float *row) const {
    float sum = 0.0f;
#pragma unroll 1 // what is seldom needed shall hold no registers
    for (int h = 0; h < C::kGroupPadded; h += kHeads) sum += add(load(row + h), load(sLse + h), h);
    return sum;
  }
  NSAI_DEVICE const float *pooled(int j) const { return gPooled + (long long)j * C::kScanRows; }
  NSAI_DEVICE const float *spill(int run) const { return gSpills + (long long)run * C::kScanRows; }
  // The block that a run's spill goes to.
  NSAI_DEVICE int block_behind(int run) const { return min((run + 1) * each, blocks); }

  NSAI_DEVICE float of(int j) const {
    float sum = j < blocks ? add_row(pooled(j)) : 0.0f;
    const int run = (j - 1) / each;
    if (0 < j && j <= blocks && block_behind(run) == j) sum += add_row(spill(run));
    return sum;
  }

  // of(begin + i) to sKept[i], i < count, by a warp.
  NSAI_DEVICE void keep(float *sKept, int begin, int count, int lane) const {
    const int head = lane % kLanes * kHeads, place = lane / kLanes;
    const Heads lse = load(sLse + head);
    for (int first = place; first - place < count; first += kBlocks * kAtOnce) {
      Heads v[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
        v[n] = load(pooled(max(min(begin + first + kBlocks * n, blocks - 1), 0)) + head);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int i = first + kBlocks * n;
        const float sum = add_lanes(add(v[n], lse, head));
        if (i < count && lane % kLanes == 0) sKept[i] = begin + i < blocks ? sum : 0.0f;
      }
    }
    __syncwarp(); // what was pooled is kept
    if (blocks == 0) return;
    for (int run = max(ceil_div(begin, each) - 1, 0) + lane; run < ceil_div(blocks, each); run += 32) {
      const int i = block_behind(run) - begin;
      if (0 <= i && i < count) sKept[i] += add_row(spill(run));
    }
    __syncwarp(); // with the spills
  }
};

// An order that kFree of the lanes' greatest have, less one: what is not above it cannot win.
template <int kFree> NSAI_DEVICE u32 bar_of(u32 greatest, int lane) {
  if constexpr (kFree > 32)
    return 0;
  else
    return order_reached(greatest, kFree, lane) - 1;
}

// The best of the candidates [begin, end), by their indices, to sFound [kFree]; all where it has no more.
template <class C>
NSAI_DEVICE void search_piece(const ScanImportance<C> &importance, int begin, int end, float *sKept,
                              int *sFound, u64 *sQueue, int lane) {
  constexpr int kFree = Topn<C>::kFree;
  const int count = max(end - begin, 0);
  u32 greatest = 0;
  importance.keep(sKept, begin, min(count, kKept), lane);
  for (int i = lane; i < count; i += 32)
    greatest = max(greatest, order_of(i < kKept ? sKept[i] : importance.of(begin + i)));
  if (count <= kFree) {
    for (int i = lane; i < count; i += 32) sFound[i] = begin + i;
    return;
  }
  const u32 bar = bar_of<kFree>(greatest, lane);
  search<kFree, Topn<C>::kSlots>(
      sFound, count,
      [&](int i) {
        return key_of(order_of(i < kKept ? sKept[i] : importance.of(begin + i)), begin + i);
      },
      sQueue, lane, bar);
}

// The free ones of the token's blocks into list [n]; more than n candidates. `importance` has what a barrier
// stands behind.
template <class C>
NSAI_DEVICE void search_blocks(const ScanImportance<C> &importance, int candidates, SelectShared<C> &shared,
                               int *list, int warp, int lane) {
  constexpr int kFree = Topn<C>::kFree;
  const int first = C::kSelectInit, last = candidates - C::kSelectLocal;
  const int each = ceil_div(last - first, kSelectWarps);
  search_piece<C>(importance, first + warp * each, min(first + (warp + 1) * each, last),
                  shared.kept[warp], shared.found[warp], shared.queue[warp], lane);
  __syncthreads(); // all pieces are searched
  if (warp != 0) return;
  // Every piece has `each` candidates, but the last one that has any.
  constexpr int kMost = kFree;
  const int full = min(each, kMost);
  const int all = (last - first) / each * full + min((last - first) % each, kMost);
  auto found = [&](int i) { return shared.found[i / full][i % full]; };
  auto order = [&](int i) {
    const int piece = i / full, j = found(i), at = j - first - piece * each;
    return order_of(at < kKept ? shared.kept[piece][at] : importance.of(j));
  };
  if (all == kFree) {
    for (int i = lane; i < kFree; i += 32) list[C::kSelectInit + i] = found(i);
    return;
  }
  u32 greatest = 0;
  for (int i = lane; i < all; i += 32) greatest = max(greatest, order(i));
  search<kFree, Topn<C>::kSlots>(
      list + C::kSelectInit, all, [&](int i) { return key_of(order(i), found(i)); },
      shared.queue[0], lane, bar_of<kFree>(greatest, lane));
}
