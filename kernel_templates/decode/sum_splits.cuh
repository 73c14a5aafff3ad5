// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The sum of a row's splits, as decode_split_kv_combine and decode_split_kv_partial form it:
//
//   M = max over splits of reference, c = 2^(reference - M);  o = sum of c o, total = sum of c sum
//
// A CTA has 8 warps and a warp kWarpRows = 32 / kRowLanes rows. row_warps (1, 2, 4 or 8) warps share the
// same rows: each adds up every row_warps-th split, and the first of them adds up the warps' results.
// All of this has a fixed order.
//
// Config: those of decode/work.cuh, kHeadDimV, kRowLanes, kThreads.
#pragma once
#include "core/epilogue.cuh"
#include "core/softmax.cuh"
#include "decode/work.cuh"
#include "params/kv_cache.h"

static_assert(Config::kThreads == 256, "8 warps, of which 1, 2, 4 or 8 share a row");

constexpr int kWarps = Config::kThreads / 32;
constexpr int kLanes = Config::kRowLanes, kWarpRows = 32 / kLanes; // lanes per row; rows per warp
constexpr int kJ =
    (Config::kHeadDimV + 4 * kLanes - 1) / (4 * kLanes); // groups of four columns per lane

// The row of [T, Hq] that a group of lanes takes; behind the last it has none.
NSAI_DEVICE u32 summed_row(const NsaiDecode &p, int warp, int lane) {
  return (blockIdx.x * (kWarps / p.row_warps) + warp / p.row_warps) * kWarpRows + lane / kLanes;
}

// The result of one row and branch, or of some of its splits.
struct BranchRow {
  float reference, total;
  float4 o[kJ]; // relative to `reference`
};

// The splits of one row.
struct RowSplits {
  const float *gO; // of the first split
  const float *gStats;
  long long stride; // rows from one split to the next
  int count;
  static constexpr int kStrideO = Config::kHeadDimV, kStrideStats = 2; // floats of a row
};

// The ranks' results of one row, which take the place of its splits.
struct RowRanks {
  const float *gO; // of the first rank
  const float *gStats;
  long long stride; // floats from one rank to the next
  int count;
  static constexpr int kStrideO = 1, kStrideStats = 1;
};

template <class C>
NSAI_DEVICE RowSplits splits_of(const NsaiDecodeSplits &x, int rows, long long work_item, int row,
                                int begin, int end) {
  const long long at = split_row(x, rows, work_item, begin, row);
  return RowSplits{ x.o + at * C::kHeadDimV, x.stats + at * 2, rows, end - begin };
}

// Where row `index` of [T, Hq] lies among the results of a rank (NsaiRanksDecode), which begin at `from`.
template <class C, class T> NSAI_DEVICE T *partial_o(T *from, u32 index) {
  return from + (long long)index * C::kHeadDimV;
}
template <class C, class T> NSAI_DEVICE T *partial_stats(const NsaiDecode &p, T *from, u32 index) {
  const long long rows = (long long)p.batch.q_tokens * p.kv_heads * C::kGroup;
  return from + rows * C::kHeadDimV + 2 * (long long)index;
}

// Adds factor * o, where o has another reference.
NSAI_DEVICE void add_scaled(float4 (&sum)[kJ], float factor, const float4 (&o)[kJ]) {
#pragma unroll
  for (int j = 0; j < kJ; ++j) sum[j] = add_scaled(sum[j], factor, o[j]);
}

// Raises the reference of `row` to `reference` if that is higher.
NSAI_DEVICE void raise_row(BranchRow &row, float reference) {
  const float higher = fmaxf(row.reference, reference),
              factor = exp2_approx(row.reference - higher);
#pragma unroll
  for (int j = 0; j < kJ; ++j)
    row.o[j] = make_float4(factor * row.o[j].x, factor * row.o[j].y, factor * row.o[j].z,
                           factor * row.o[j].w);
  row.total *= factor;
  row.reference = higher;
}

// Combines the warp's splits: every `step`-th from `first` on, kAtOnce of them in flight. O of a
// split without keys is loaded but has no meaning.
constexpr int kAtOnce = kJ > 1 ? 2 : 4;
template <class C, class Splits>
NSAI_DEVICE BranchRow combine_splits(const Splits &splits, int first, int step) {
  BranchRow out = { kNoReference, 0.0f, {} };
  for (int begin = first; begin < splits.count; begin += kAtOnce * step) {
    float2 stats[kAtOnce];
    float4 x[kAtOnce][kJ];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const long long row = (begin + i * step) * splits.stride;
      stats[i] = make_float2(kNoReference, 0.0f);
      if (begin + i * step >= splits.count) continue;
      stats[i] = *(const float2 *)(splits.gStats + Splits::kStrideStats * row);
#pragma unroll
      for (int j = 0; j < kJ; ++j)
        if (has_row_column<C::kHeadDimV, kLanes>(j))
          x[i][j] = *(const float4 *)(splits.gO + row * Splits::kStrideO + row_column<kLanes>(j));
    }
    float highest = kNoReference;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) highest = fmaxf(highest, stats[i].x);
    raise_row(out, highest);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (stats[i].y == 0.0f) continue;
      const float factor = exp2_approx(stats[i].x - out.reference);
      out.total = fmaf(factor, stats[i].y, out.total);
      add_scaled(out.o, factor, x[i]);
    }
  }
  return out;
}

// The warps' results of kCount branches in shared memory.
template <int kCount> struct WarpResults {
  float4 o[kCount][kWarps][kJ][32];
  float2 stats[kCount][kWarps][kWarpRows];
};

// Stores the warp's own of branch b.
template <class Results>
NSAI_DEVICE void store_warp(Results &shared, int b, const BranchRow &mine, int warp, int lane) {
#pragma unroll
  for (int j = 0; j < kJ; ++j) shared.o[b][warp][j][lane] = mine.o[j];
  if (lane % kLanes == 0)
    shared.stats[b][warp][lane / kLanes] = make_float2(mine.reference, mine.total);
}

// Combines the results of the warps that share a row, in warp order.
template <class Results>
NSAI_DEVICE BranchRow gather_warps(const Results &shared, int b, int warp, int row_warps,
                                   int lane) {
  BranchRow out = { kNoReference, 0.0f, {} };
  for (int w = warp; w < warp + row_warps; ++w)
    out.reference = fmaxf(out.reference, shared.stats[b][w][lane / kLanes].x);
  for (int w = warp; w < warp + row_warps; ++w) {
    const float2 stats = shared.stats[b][w][lane / kLanes];
    const float factor = exp2_approx(stats.x - out.reference);
    float4 x[kJ];
#pragma unroll
    for (int j = 0; j < kJ; ++j) x[j] = shared.o[b][w][j][lane];
    out.total = fmaf(factor, stats.y, out.total);
    add_scaled(out.o, factor, x);
  }
  return out;
}
