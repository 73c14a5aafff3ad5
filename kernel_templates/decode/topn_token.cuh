// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Block importance of one token from pooled probabilities, and top-n selection, for
// decode_split_kv_select and decode_single_cta. All threads of the CTA take part.
//
//   I[j] = sum over the group's heads h of 2^(pooled[j, h] - lse[h]); plus the carry, 2^(carry[h] -
//   lse[h]), if a run of keys begins with block j
//
// Each warp owns a piece of the row of blocks. It computes their importance once and keeps it in
// shared memory; beyond kKept blocks per warp it recomputes importance, bit-identically. (H200, one
// sequence of 1M tokens, of which a quarter was kept: 221 us a step, 43 of them the scan.) The maxima
// over every 32nd block give a lower bound for the winners. In nearly every row at most 32
// candidates exceed it; these are ranked instead of sorted. Otherwise each warp searches its own
// piece, and one warp searches what they found.
//
// Config: those of decode/work.cuh, kSelectCount (n), kSelectInit, kSelectLocal, kThreads,
// kKeptBlocks (whose importance is kept).
#pragma once
#include "core/softmax.cuh"
#include "core/topn.cuh"
#include "decode/work.cuh"
#include "params/kv_cache.h"

constexpr int kSelectWarps = Config::kThreads / 32;
constexpr int kKept = ceil_div(Config::kKeptBlocks, kSelectWarps); // per warp, in floats

template <class C> struct SelectShared {
  float kept[kSelectWarps][kKept];
  u64 queue[kSelectWarps][kQueue];
  u32 greatest[kSelectWarps][32]; // maxima, as orders
  int listed[kSelectWarps];       // entries of the queues
  int found[kSelectWarps][Topn<C>::kFree > 0 ? Topn<C>::kFree : 1];
};

// The importance of one token, block by block.
template <class C> struct ScanImportance {
  const float *gPooled;  // [blocks, 16], at the token's first row
  int stride;            // floats between a block's groups of 16 rows, minus 16
  const float *gCarries; // [runs, kScanRows], at the token's first row
  const float *sLse;     // [kGroupPadded], base 2, 16-byte aligned
  int blocks;            // number of pooled blocks
  int each;              // blocks per run

  // Lanes that share a block, with kHeads heads each, so that a warp reads whole sectors.
  static constexpr int kHeads = C::kGroupPadded % 4 ? C::kGroupPadded : 4;
  static constexpr int kLanes = C::kGroupPadded / kHeads, kBlocks = 32 / kLanes;
  // Blocks per lane whose rows are in flight together, as far as registers allow. (NVRTC 13.0.)
  static constexpr int kAtOnce = kHeads < 4 ? 8 : kLanes > 4 ? 4 : 6;
  static_assert(kLanes <= 32, "a warp holds at least one block");

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
  // Sums over the heads from `first` on. Padding heads hold values as well and are left out here.
  NSAI_DEVICE float add(const Heads &v, const Heads &lse, int first) const {
    float sum = 0.0f;
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
      if (C::kGroup == C::kGroupPadded || first + h < C::kGroup)
        sum += exp2_approx(v.x[h] - lse.x[h]);
    return sum;
  }
  // Sums over a block's lanes; all of them get the result.
  static NSAI_DEVICE float add_lanes(float partial) {
    if constexpr (kLanes == 1) return partial;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kLanes; ++i) sum += __shfl_sync(~0u, partial, i, kLanes);
    return sum;
  }
  // Sums a whole row in one lane, in the same order.
  NSAI_DEVICE float add_row(const float *row, int stride) const {
    float sum = 0.0f;
// Not unrolled: this rare path should not cost registers.
#pragma unroll 1
    for (int h = 0; h < C::kGroupPadded; h += kHeads)
      sum += add(load(row + h + (long long)(h / kPoolRows) * stride), load(sLse + h), h);
    return sum;
  }
  NSAI_DEVICE const float *pooled(int j) const { return gPooled + (long long)j * kPoolRows; }
  NSAI_DEVICE const float *carry(int run) const { return gCarries + (long long)run * C::kScanRows; }
  // The block that receives a run's carry.
  NSAI_DEVICE int block_behind(int run) const { return min((run + 1) * each, blocks); }

  NSAI_DEVICE float of(int j) const {
    float sum = j < blocks ? add_row(pooled(j), stride) : 0.0f;
    const int run = (j - 1) / each;
    if (0 < j && j <= blocks && block_behind(run) == j) sum += add_row(carry(run), 0);
    return sum;
  }

  // A lane's first rows of a piece.
  struct Rows {
    Heads v[kAtOnce];
  };
  NSAI_DEVICE Rows load_rows(int begin, int lane) const {
    Rows rows;
    const int head = lane % kLanes * kHeads;
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n)
      rows.v[n] = load(pooled(max(min(begin + lane / kLanes + kBlocks * n, blocks - 1), 0)) + head +
                       (long long)(head / kPoolRows) * stride);
    return rows;
  }

  // Stores of(begin + i) in sKept[i] for i < count. One warp; `rows` is load_rows(begin).
  NSAI_DEVICE void keep(Rows rows, float *sKept, int begin, int count, int lane) const {
    const int head = lane % kLanes * kHeads, lane_block = lane / kLanes;
    const int runs = ceil_div(blocks, each), first_run = max(ceil_div(begin, each) - 1, 0);
    const Heads lse = load(sLse + head);
    for (int first = 0; first < count; first += kBlocks * kAtOnce) {
      if (first) rows = load_rows(begin + first, lane);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int i = first + lane_block + kBlocks * n;
        const float sum = add_lanes(add(rows.v[n], lse, head));
        if (i < count && lane % kLanes == 0) sKept[i] = begin + i < blocks ? sum : 0.0f;
      }
    }
    __syncwarp(); // sums without carries are written
    for (int from = first_run; from < runs && block_behind(from) - begin < count; from += kBlocks) {
      const int run = min(from + lane_block, runs - 1), i = block_behind(run) - begin;
      const float sum = add_lanes(add(load(carry(run) + head), lse, head));
      if (from + lane_block < runs && 0 <= i && i < count && lane % kLanes == 0) sKept[i] += sum;
    }
    __syncwarp(); // carries are added
  }
};

// The importance of the token in row `row` of a work item, in whose first token's sequence the last
// token lies at position `last`. sLse: as in ScanImportance.
template <class C>
NSAI_DEVICE ScanImportance<C> find_importance(const NsaiDecode &p, int work_item, int row, int last,
                                              const float *sLse) {
  const ConsumerGroupRuns runs = find_runs<C>(p, visible_entries<C>(last));
  const long long run_rows = (long long)p.scan.splits * Decode<C>::kConsumerGroups * C::kScanRows;
  return { pooled_row<C>(p, work_item, row),          p.pooled_blocks * kPoolRows - kPoolRows,
           p.carries + work_item * run_rows + row,    sLse,
           runs.granules * Decode<C>::kGranuleBlocks, runs.each * Decode<C>::kGranuleBlocks };
}

// A warp's candidates [begin, begin + count): kept in shared memory, or recomputed.
template <class C> struct Piece {
  const ScanImportance<C> &importance;
  const float *sKept;
  int begin, count;
  NSAI_DEVICE u32 order(int i) const {
    return order_of(i < kKept ? sKept[i] : importance.of(begin + i));
  }
  NSAI_DEVICE u64 key(int i) const { return key_of(order(i), begin + i); }
};

// The first candidate of a warp, and the number of candidates per warp (the last warps may have
// fewer).
struct PieceRange {
  int begin, each;
};
template <class C> NSAI_DEVICE PieceRange find_piece(int candidates, int warp) {
  const int each = ceil_div(candidates - C::kSelectLocal - C::kSelectInit, kSelectWarps);
  return PieceRange{ C::kSelectInit + warp * each, each };
}

// If at most 32 candidates of all warps can win, writes the best of them to `list` [kFree], by
// index, and returns true. Otherwise returns false. All candidates must be kept in shared memory.
// All threads take part.
template <class C>
NSAI_DEVICE bool list_few(const Piece<C> &piece, SelectShared<C> &shared, int *list, int warp,
                          int lane) {
  constexpr int kFree = Topn<C>::kFree;
  u32 greatest = 0; // over every 32nd candidate of all warps
#pragma unroll 2
  for (int i = (lane - piece.begin) & 31; i < piece.count; i += 32)
    greatest = max(greatest, order_of(piece.sKept[i]));
  shared.greatest[warp][lane] = greatest;
  __syncthreads(); // all warps' maxima are written
#pragma unroll
  for (int w = 0; w < kSelectWarps; ++w) greatest = max(greatest, shared.greatest[w][lane]);
  const u32 bar = bar_of<kFree>(greatest, lane);
  int listed = 0;
#pragma unroll 2
  for (int begin = 0; begin < piece.count; begin += 32) {
    const int i = begin + lane;
    const u32 order = i < piece.count ? order_of(piece.sKept[i]) : 0;
    const u32 winners = __ballot_sync(~0u, order > bar);
    const int at = listed + votes_below(winners, lane);
    if (order > bar && at < 32) shared.queue[warp][at] = key_of(order, piece.begin + i);
    listed += __popc(winners);
  }
  if (lane == 0) shared.listed[warp] = listed;
  __syncthreads(); // all warps' candidates are written
  const int mine = lane < kSelectWarps ? shared.listed[lane] : 0;
  const int all = __reduce_add_sync(~0u, mine);
  if (all > 32) return false;
  if (warp != 0) return true;
  int from = 0, at = lane; // candidate `lane` is entry `at` of queue `from`
#pragma unroll
  for (int w = 0; w < kSelectWarps; ++w) {
    const int count = __shfl_sync(~0u, mine, w);
    if (from == w && at >= count) at -= count, ++from;
  }
  const u64 key = lane < all ? shared.queue[from][at] : 0;
  list_ranked<kFree>(list, key, lane);
  return true;
}

// Writes the token's free blocks to list [n]; there are more than n candidates. The caller has put
// a barrier after writing what `importance` reads; `rows` are the first of the warp's piece.
template <class C>
NSAI_DEVICE void search_blocks(const ScanImportance<C> &importance,
                               const typename ScanImportance<C>::Rows &rows, int candidates,
                               SelectShared<C> &shared, int *list, int warp, int lane) {
  constexpr int kFree = Topn<C>::kFree;
  const int first = C::kSelectInit, last = candidates - C::kSelectLocal;
  const PieceRange range = find_piece<C>(candidates, warp);
  const int each = range.each, count = max(min(range.begin + each, last) - range.begin, 0);
  importance.keep(rows, shared.kept[warp], range.begin, min(count, kKept), lane);
  const Piece<C> piece = { importance, shared.kept[warp], range.begin, count };
  if constexpr (kFree <= 32)
    if (each <= kKept && list_few<C>(piece, shared, list + first, warp, lane)) return;
  search_range<C, true>(
      shared.found[warp], piece.begin, piece.count, [&](int i) { return piece.key(i); },
      shared.queue[warp], lane);
  __syncthreads(); // all pieces are searched
  if (warp != 0) return;
  // Every piece has `each` candidates, except the last non-empty one.
  constexpr int kMost = kFree;
  const int full = min(each, kMost);
  const int all = (last - first) / each * full + min((last - first) % each, kMost);
  auto found = [&](int i) { return shared.found[i / full][i % full]; };
  auto order = [&](int i) {
    const int from = i / full, j = found(i), at = j - first - from * each;
    return order_of(at < kKept ? shared.kept[from][at] : importance.of(j));
  };
  if (all == kFree) {
    for (int i = lane; i < kFree; i += 32) list[C::kSelectInit + i] = found(i);
    return;
  }
  search_twice<kFree, Topn<C>::kSlots>(
      list + C::kSelectInit, all, [&](int i) { return key_of(order(i), found(i)); },
      shared.queue[0], lane);
}
