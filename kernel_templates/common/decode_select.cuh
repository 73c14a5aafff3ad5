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
  const float *sLse;    // [kGroupPadded], base 2
  int blocks;           // that were pooled
  int each;             // of a run

  static constexpr int kRow = C::kGroupPadded % 4 ? C::kGroup : (C::kGroup + 3) / 4 * 4; // floats
  // Blocks of a lane whose rows are on their way together.
  static constexpr int kAtOnce = kRow > 32 ? 1 : kRow > 16 ? 2 : 4;

  // Rows of heads that pad a group are written as the others are, and left out here.
  static NSAI_DEVICE void load(float (&v)[kRow], const float *row) {
    if constexpr (kRow % 4 == 0) {
#pragma unroll
      for (int h = 0; h < kRow; h += 4) {
        const float4 x = *(const float4 *)(row + h);
        v[h] = x.x, v[h + 1] = x.y, v[h + 2] = x.z, v[h + 3] = x.w;
      }
    } else {
#pragma unroll
      for (int h = 0; h < kRow; ++h) v[h] = row[h];
    }
  }
  NSAI_DEVICE float add(const float (&v)[kRow]) const {
    float sum = 0.0f;
#pragma unroll
    for (int h = 0; h < C::kGroup; ++h) sum += exp2_approx(v[h] - sLse[h]);
    return sum;
  }
  NSAI_DEVICE float add_row(const float *row) const {
    float v[kRow];
    load(v, row);
    return add(v);
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
    for (int first = lane; first - lane < count; first += 32 * kAtOnce) {
      float v[kAtOnce][kRow];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) load(v[n], pooled(max(min(begin + first + 32 * n, blocks - 1), 0)));
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int i = first + 32 * n;
        if (i < count) sKept[i] = begin + i < blocks ? add(v[n]) : 0.0f;
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

// What was pooled of a tile is read for the last time, and need not go to memory: whole lines of it alone.
// Every thread takes part. (H200, 64k tokens: 64 sequences 190 -> 184 us, 256 777 -> 710 us.)
template <class C> NSAI_DEVICE void discard_pooled(const float *gPooled, int blocks) {
  const u64 begin = ((u64)gPooled + 127) / 128 * 128;
  const u64 end = (u64)(gPooled + (long long)blocks * C::kScanRows) / 128 * 128;
  for (u64 line = begin + threadIdx.x * 128; line < end; line += C::kThreads * 128)
    discard_line((const void *)line);
}

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
