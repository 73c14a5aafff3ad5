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
// Over ranks the selected branch's splits are the results that decode_split_kv_partial made on each rank.
//
// Grid: x = ceil(T * Hq / (r * 8 / row_warps)), where a warp has r rows and row_warps warps share them
// (decode/sum_splits.cuh). Rows behind the last sequence are left untouched. Bound by latency if there
// are few rows, otherwise by instructions.
//
// Config: those of decode/sum_splits.cuh, Element, kGate, kMinBlocks, kRanks (which may be missing).
#pragma once
#include "core/epilogue.cuh"
#include "core/launch.cuh"
#include "core/softmax.cuh"
#include "decode/sum_splits.cuh"
#include "decode/work.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

constexpr int kBranches = NSAI_BRANCH_COUNT;

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

struct SharedStorage : WarpResults<kBranches> {
  // O of the row's first split from decode_split_kv_compressed and from decode_split_kv_attend.
  const float *splits[kWarps][kWarpRows][2];
};

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

// The ranks' results of row `index` of [T, Hq] for the selected branch; none without that branch.
template <class C> NSAI_DEVICE RowRanks ranks_of(const NsaiDecode &p, u32 index, bool has_branch) {
  if constexpr (kOverRanks<C>) {
    const NsaiRanksDecode &ranks = over_ranks<C>(p);
    return RowRanks{ partial_o<C>(ranks.gathered, index),
                     partial_stats<C>(p, ranks.gathered, index), ranks.rank_stride,
                     has_branch ? ranks.ranks : 0 };
  } else {
    return {};
  }
}

template <class C> NSAI_DEVICE void combine(const NsaiDecode &p) {
  __shared__ SharedStorage shared;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // ---- coordinates; warps without a row still take part in barriers
  const int heads = C::kGroup * p.kv_heads;
  const u32 index = summed_row(p, warp, lane);
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
    BranchRow mine = kOverRanks<C> && b == kSelected
                         ? combine_splits<C>(ranks_of<C>(p, index, splits.count > 0),
                                             warp % p.row_warps, p.row_warps)
                         : combine_splits<C>(splits, warp % p.row_warps, p.row_warps);
    if (p.row_warps == 1) {
      if (works && (wanted >> b & 1))
        finish_branch<C>(p.out[b], output_row, mine, gates[b], p.branches >> b & 1, sum, lane);
      continue;
    }
    store_warp(shared, b, mine, warp, lane);
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
    decode_split_kv_combine(const __grid_constant__ DecodeParams<Config, false> p) {
  combine<Config>((const NsaiDecode &)p);
}
