// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_split_kv_combine: combines the splits of a decode step into branches, applies the gates
// and stores the outputs.
//
//   M = max over splits of reference, c = 2^(reference - M)
//   O_b = sum of c o / sum of c sum -> o_branch,   lse_b = (M + log2(sum of c sum)) ln 2 -> lse
//   o = sum over branches of gate_b O_b
//
//   splits (decode_split_kv_compressed, decode_split_kv_attend) -> o [T, Hq, Dv], lse, o_branch
//
// Grid: x = ceil(T * Hq / (r * 8 / row_warps)); a CTA has 8 warps and a warp r = 32 / kRowLanes
// rows. row_warps warps share the same rows: each adds up every row_warps-th split, in a fixed
// order. Rows behind the last sequence are left untouched. Bound by latency if there are few rows,
// otherwise by instructions.
//
// Config: those of decode/work.cuh, Element, kHeadDimV, kGate, kRowLanes, kThreads, kMinBlocks.
#pragma once
#include "core/epilogue.cuh"
#include "core/launch.cuh"
#include "core/softmax.cuh"
#include "decode/work.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

static_assert(Config::kThreads == 256, "8 warps, of which 1, 2, 4 or 8 share a row");

constexpr int kBranches = NSAI_BRANCH_COUNT, kWarps = Config::kThreads / 32;
constexpr int kLanes = Config::kRowLanes, kWarpRows = 32 / kLanes; // lanes per row; rows per warp
constexpr int kJ =
    (Config::kHeadDimV + 4 * kLanes - 1) / (4 * kLanes); // groups of four columns per lane

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
};

template <class C>
NSAI_DEVICE RowSplits splits_of(const NsaiDecodeSplits &x, int rows, long long work_item, int row,
                                int begin, int end) {
  const long long at = split_row(x, rows, work_item, begin, row);
  return RowSplits{ x.o + at * C::kHeadDimV, x.stats + at * 2, rows, end - begin };
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
template <class C>
NSAI_DEVICE BranchRow combine_splits(const RowSplits &splits, int first, int step) {
  BranchRow out = { kNoReference, 0.0f, {} };
  for (int begin = first; begin < splits.count; begin += kAtOnce * step) {
    float2 stats[kAtOnce];
    float4 x[kAtOnce][kJ];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const long long row = (begin + i * step) * splits.stride;
      stats[i] = make_float2(kNoReference, 0.0f);
      if (begin + i * step >= splits.count) continue;
      stats[i] = *(const float2 *)(splits.gStats + 2 * row);
#pragma unroll
      for (int j = 0; j < kJ; ++j)
        if (has_row_column<C::kHeadDimV, kLanes>(j))
          x[i][j] = *(const float4 *)(splits.gO + row * C::kHeadDimV + row_column<kLanes>(j));
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

// Whether to discard the splits' O from L2 after this last read, so that it is not written back to
// DRAM. Requires rows of whole lines and spare registers. (H200, 32 sequences of 64k, 4 new tokens:
// during the next decode_split_kv_compressed 6 MB instead of 20 MB are written back, and the
// compressed branch takes 84.4 instead of 88.6 us.)
constexpr int kLineFloats = 32;
template <class C> constexpr bool kDiscards = C::kHeadDimV % kLineFloats == 0 && kWarpRows > 1;

template <class C>
NSAI_DEVICE void discard_splits(const float *gO, const NsaiDecodeSplits &x, int rows, int lane) {
  constexpr int kLines = C::kHeadDimV / kLineFloats;
#pragma unroll 1
  for (int i = lane % kLanes; i < x.splits * kLines; i += kLanes)
    discard_line(gO + (i / kLines * rows * C::kHeadDimV + i % kLines * kLineFloats));
}

struct SharedStorage {
  float4 o[kBranches][kWarps][kJ][32];
  float2 stats[kBranches][kWarps][kWarpRows];
  // O of the row's first split from decode_split_kv_compressed and from decode_split_kv_attend.
  const float *splits[kWarps][kWarpRows][2];
};

// Combines the results of the warps that share a row, in warp order.
NSAI_DEVICE BranchRow gather_warps(const SharedStorage &shared, int b, int warp, int row_warps,
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

// Normalises a branch, stores its lse and o_branch if wanted, and adds it to the gated sum if the
// branch is part of it.
template <class C>
NSAI_DEVICE void finish_branch(const NsaiEpilogue &out, const OutputRow &row, BranchRow &branch,
                               u32 loaded_gate, bool counts, float4 (&sum)[kJ], int lane) {
  const float inverse = inverse_of(branch.total);
  // An empty row may be a padding row, whose gate may hold anything.
  const float gate = branch.total == 0.0f ? 0.0f : gate_value<C>(out, loaded_gate);
  if (out.lse && lane % kLanes == 0) store_lse(out, row, branch.reference, branch.total);
#pragma unroll
  for (int j = 0; j < kJ; ++j) {
    float4 &x = branch.o[j];
    x = make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse);
    if (branch.total == 0.0f || !counts) continue;
    sum[j] = add_scaled(sum[j], gate, x);
  }
  if (out.o_branch.data) store_row_elements<C, kLanes>(out.o_branch, row, branch.o);
}

template <class C> NSAI_DEVICE void combine(const NsaiDecode &p) {
  __shared__ SharedStorage shared;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // ---- coordinates; warps without a row still take part in barriers
  const int heads = C::kGroup * p.kv_heads;
  const u32 index =
      (blockIdx.x * (kWarps / p.row_warps) + warp / p.row_warps) * kWarpRows + lane / kLanes;
  const bool exists = index < (u32)p.batch.q_tokens * heads;
  const int row = exists ? (int)(index / heads) : 0, head = exists ? (int)(index % heads) : 0;
  const int group = head / C::kGroup, in_group = head % C::kGroup;
  const DecodeToken token = find_token(p.batch, row);
  const ScanRow scanned = find_scan_row<C>(p, token, group);
  const bool works = exists && token.present;
  const long long work_item = (long long)row * p.kv_heads + group;
  const OutputRow output_row = { row, head, works };
  const int wanted = p.branches | (p.probes ? 1 : 0);
  const float **const sSplits = shared.splits[warp][lane / kLanes]; // saves registers
  if (kDiscards<C> && lane % kLanes == 0) {
    // Skip rows that find_scan_row() maps to another token's tile.
    const bool own = !p.seq_tiles || token.query / Decode<C>::kTileTokens < p.seq_tiles;
    const RowSplits splits =
        splits_of<C>(p.scan, C::kScanRows, scanned.work_item, scanned.row + in_group, 0, 0);
    sSplits[0] = own ? splits.gO : nullptr;
    sSplits[1] = splits_of<C>(p.attend, C::kGroup, work_item, in_group, 0, 0).gO;
  }
  u32 gates[kBranches];
#pragma unroll
  for (int b = 0; b < kBranches; ++b)
    gates[b] = p.branches >> b & 1 ? load_gate<C>(p.out[b], output_row) : 0;
  // The batch and the gates were written before the step's first kernel ran, and the splits of
  // decode_split_kv_compressed before decode_split_kv_attend ran: they may be read before waiting for
  // the previous kernel.
  const bool early = p.attend.splits > 0;
  if (!early) begin_kernel();

  // ---- each warp's splits of every branch, in the order of the sum
  float4 sum[kJ] = {};
#pragma unroll
  for (int b = 0; b < kBranches; ++b) {
    if (b == 1 && early) begin_kernel();
    RowSplits splits =
        b == 0   ? splits_of<C>(p.scan, C::kScanRows, scanned.work_item, scanned.row + in_group, 0,
                              p.scan.splits)
        : b == 1 ? splits_of<C>(p.attend, C::kGroup, work_item, in_group, p.window_splits,
                                p.attend.splits)
                 : splits_of<C>(p.attend, C::kGroup, work_item, in_group, 0, p.window_splits);
    if (!works || !(wanted >> b & 1)) splits.count = 0;
    BranchRow mine = combine_splits<C>(splits, warp % p.row_warps, p.row_warps);
    if (p.row_warps == 1) {
      if (works && (wanted >> b & 1))
        finish_branch<C>(p.out[b], output_row, mine, gates[b], p.branches >> b & 1, sum, lane);
      continue;
    }
#pragma unroll
    for (int j = 0; j < kJ; ++j) shared.o[b][warp][j][lane] = mine.o[j];
    if (lane % kLanes == 0)
      shared.stats[b][warp][lane / kLanes] = make_float2(mine.reference, mine.total);
  }

  // ---- rows that several warps share
  if (p.row_warps > 1) {
    __syncthreads(); // all warps' partial results are written
    if (warp % p.row_warps) return;
#pragma unroll
    for (int b = 0; b < kBranches; ++b) {
      if (!works || !(wanted >> b & 1)) continue;
      BranchRow all = gather_warps(shared, b, warp, p.row_warps, lane);
      finish_branch<C>(p.out[b], output_row, all, gates[b], p.branches >> b & 1, sum, lane);
    }
  }
  // sSplits is written, and all lanes of the row have read its splits.
  if constexpr (kDiscards<C>) __syncwarp();
  if (!works) return;
  store_row_elements<C, kLanes>(p.out[0].o, output_row, sum);
  if constexpr (kDiscards<C>) {
    if (sSplits[0]) discard_splits<C>(sSplits[0], p.scan, C::kScanRows, lane);
    discard_splits<C>(sSplits[1], p.attend, C::kGroup, lane);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    decode_split_kv_combine(const __grid_constant__ NsaiDecode p) {
  combine<Config>(p);
}
