// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_split_kv_partial: combines the selected branch's splits of a decode step over ranks into this
// rank's result, which every rank then gets.
//
//   splits (decode_split_kv_attend) -> o [T, Hq, Dv], then reference and sum [T, Hq, 2], f32, in this
//   rank's place of `gathered` (read by the exchange, then by decode_split_kv_combine)
//
// A row whose blocks all lie on other ranks, and a row behind the last sequence, has the sum 0.
//
// Grid: as decode_split_kv_combine. Bound by latency if there are few rows, otherwise by memory.
//
// Config: those of decode/sum_splits.cuh, kMinBlocks, kRanks.
#pragma once
#include "core/launch.cuh"
#include "decode/sum_splits.cuh"
#include "decode/work.cuh"
#include "params/kv_cache.h"

template <class C>
NSAI_DEVICE void store_partial(const NsaiRanksDecode &p, const BranchRow &sum, u32 index,
                               int lane) {
  float *gMine = p.gathered + p.rank * p.rank_stride;
  float *gO = partial_o<C>(gMine, index); // [Dv]
#pragma unroll
  for (int j = 0; j < kJ; ++j)
    if (has_row_column<C::kHeadDimV, kLanes>(j)) *(float4 *)(gO + row_column<kLanes>(j)) = sum.o[j];
  if (lane % kLanes == 0)
    *(float2 *)partial_stats<C>(p.coded.decode, gMine, index) =
        make_float2(sum.reference, sum.total);
}

template <class C> NSAI_DEVICE void combine_own(const NsaiRanksDecode &ranks) {
  __shared__ WarpResults<1> shared;
  const NsaiDecode &p = ranks.coded.decode;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // ---- coordinates
  const int heads = C::kGroup * p.kv_heads;
  const u32 index = summed_row(p, warp, lane);
  const bool exists = index < (u32)p.batch.q_tokens * heads;
  const int row = exists ? (int)(index / heads) : 0, head = exists ? (int)(index % heads) : 0;
  const DecodeToken token = find_token(p.batch, row);
  const long long work_item = (long long)row * p.kv_heads + head / C::kGroup;
  RowSplits splits = splits_of<C>(p.attend, C::kGroup, work_item, head % C::kGroup, p.window_splits,
                                  p.attend.splits);
  if (!exists || !token.present) splits.count = 0;
  begin_kernel(); // so far only the batch was read, which is older

  // ---- the splits
  BranchRow sum = combine_splits<C>(splits, warp % p.row_warps, p.row_warps);
  if (p.row_warps > 1) {
    store_warp(shared, 0, sum, warp, lane);
    __syncthreads(); // all warps' partial results are written
    if (warp % p.row_warps) return;
    sum = gather_warps(shared, 0, warp, p.row_warps, lane);
  }
  if (exists) store_partial<C>(ranks, sum, index, lane);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    decode_split_kv_partial(const __grid_constant__ NsaiRanksDecode p) {
  combine_own<Config>(p);
}
