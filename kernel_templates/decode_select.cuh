// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_select: importance from what decode_scan has pooled, and the top-n by it.
//
//   lse[h]  = log2 of the sum over parts of 2^reference * sum
//   I[j]    = sum over the group's heads h of 2^(pooled[j, h] - lse[h]), and of the spill where a run
//             begins with block j
//   pooled, spills, stats of parts (decode_scan) -> idx [T, Hkv, n] (decode_attend)
//
// Grid: x = T * kv_heads, one CTA each: common/decode_select.cuh.
//
// Config: those of common/decode_select.cuh, kMinBlocks.
#pragma once
#include "common/decode.cuh"
#include "common/decode_select.cuh"
#include "common/launch.cuh"
#include "common/params_cache.h"
#include "common/softmax.cuh"
#include "common/topn.cuh"

struct SharedPlan {
  __align__(16) float lse[Config::kGroupPadded];
  SelectShared<Config> search;
};

// lse of the token's heads into shared memory, half a warp a head.
template <class C>
NSAI_DEVICE void combine_lse(const NsaiDecode &p, const ScanRow &at, float *sLse, int warp, int lane) {
  for (int first = 2 * warp; first < C::kGroup; first += 2 * kSelectWarps) {
    const int h = first + lane / 16;
    const bool exists = h < C::kGroup;
    float highest = kNoReference, total = 0.0f;
#pragma unroll 4
    for (int part = lane % 16; part < p.scan.parts; part += 16) {
      if (!exists) continue;
      const float2 stats =
          *(const float2 *)(p.scan.stats + 2 * part_row(p.scan, C::kScanRows, at.unit, part, at.row + h));
      const float higher = fmaxf(highest, stats.x);
      total = total * exp2_approx(highest - higher) + stats.y * exp2_approx(stats.x - higher);
      highest = higher;
    }
    float higher = highest;
#pragma unroll
    for (int apart = 8; apart; apart /= 2) higher = fmaxf(higher, __shfl_xor_sync(~0u, higher, apart));
    total *= exp2_approx(highest - higher);
#pragma unroll
    for (int apart = 8; apart; apart /= 2) total += __shfl_xor_sync(~0u, total, apart);
    // Without keys nothing is pooled, and no block weighs anything.
    if (exists && lane % 16 == 0) sLse[h] = higher + log2_approx(total);
  }
}

template <class C> NSAI_DEVICE void select(const NsaiDecode &p) {
  constexpr int kFree = Topn<C>::kFree;
  __shared__ SharedPlan shared;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // ---- coordinates ----
  const int row = blockIdx.x / p.kv_heads, group = blockIdx.x % p.kv_heads;
  const DecodeToken token = find_token(p.batch, row);
  begin_kernel(); // the batch lay there before decode_scan
  if (!token.present) return;
  int *gOut = p.idx + row * p.idx_token_stride + group * p.idx_head_stride; // [n]
  const int candidates = candidate_count<C>(token.position);
  const bool searches = candidates > C::kSelectCount && kFree > 0;
  if (warp == 0) write_forced<C>(gOut, candidates, lane);
  if (!searches) return;

  // ---- search ----
  if constexpr (kFree > 0) {
    const ScanRow at = find_scan_row<C>(p, token, group);
    const Sequence seq = load_cached_sequence(p.batch, token.s);
    const TeamRuns runs = find_runs<C>(p, visible_entries<C>(last_position<C>(seq, token.query)));
    const long long run_rows = (long long)p.scan.parts * Decode<C>::kTeams * C::kScanRows;
    const ScanImportance<C> importance = {
      p.pooled + (long long)at.unit * p.pooled_blocks * C::kScanRows + at.row,
      p.spills + at.unit * run_rows + at.row,
      shared.lse,
      runs.quanta * Decode<C>::kQuantumBlocks,
      runs.each * Decode<C>::kQuantumBlocks,
    };
    combine_lse<C>(p, at, shared.lse, warp, lane);
    __syncthreads(); // every head's lse is there
    search_blocks<C>(importance, candidates, shared.search, gOut, warp, lane);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    decode_select(const __grid_constant__ NsaiDecode p) {
  select<Config>(p);
}
