// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// decode_split_kv_select: block importance from the values that decode_split_kv_compressed pooled,
// and top-n selection.
//
//   lse[h] = log2 of the sum over splits of 2^reference * sum
//   I[j]   = sum over the group's heads h of 2^(pooled[j, h] - lse[h]); plus the carry,
//            2^(carry[h] - lse[h]), if a run of keys begins with block j
//
//   pooled values, carries, statistics of splits (decode_split_kv_compressed)
//   -> idx [T, Hkv, n] (decode_split_kv_attend)
//
// Grid: x = T * kv_heads, one CTA each (decode/topn_token.cuh).
//
// Shared memory is static or, where the importance of more blocks is kept, dynamic.
//
// Config: those of decode/topn_token.cuh, kMinBlocks; kSharedBytes 0: static.
#pragma once
#include "core/launch.cuh"
#include "core/softmax.cuh"
#include "core/topn.cuh"
#include "decode/topn_token.cuh"
#include "decode/work.cuh"
#include "params/kv_cache.h"

struct SharedStorage {
  __align__(16) float lse[kSelectWarps][Config::kGroupPadded]; // each warp has its own copy
  SelectShared<Config> search;
};

template <class C> NSAI_DEVICE SharedStorage &find_storage() {
  if constexpr (C::kSharedBytes > 0) {
    static_assert(sizeof(SharedStorage) == C::kSharedBytes,
                  "the host computes another size of shared memory");
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    return *(SharedStorage *)shared_bytes;
  } else {
    __shared__ SharedStorage shared;
    return shared;
  }
}

// Computes the lse of the token's heads into shared memory, by one warp. Lanes map to heads as they
// do in ScanImportance, and to splits as they do there to blocks.
template <class C>
NSAI_DEVICE void combine_lse(const NsaiDecode &p, const ScanRow &at, float *sLse, int lane) {
  using I = ScanImportance<C>;
  const int head = lane % I::kLanes * I::kHeads;
  float highest[I::kHeads], total[I::kHeads] = {};
#pragma unroll
  for (int h = 0; h < I::kHeads; ++h) highest[h] = kNoReference;
  auto add = [&](int h, float reference, float sum) {
    const float higher = fmaxf(highest[h], reference);
    total[h] = total[h] * exp2_approx(highest[h] - higher) + sum * exp2_approx(reference - higher);
    highest[h] = higher;
  };
#pragma unroll 2
  for (int split = lane / I::kLanes; split < p.scan.splits; split += I::kBlocks) {
    const float2 *gStats = (const float2 *)p.scan.stats +
                           split_row(p.scan, C::kScanRows, at.work_item, split, at.row + head);
#pragma unroll
    for (int h = 0; h < I::kHeads; ++h) add(h, gStats[h].x, gStats[h].y);
  }
#pragma unroll
  for (int delta = I::kLanes; delta < 32; delta *= 2)
#pragma unroll
    for (int h = 0; h < I::kHeads; ++h)
      add(h, __shfl_xor_sync(~0u, highest[h], delta), __shfl_xor_sync(~0u, total[h], delta));
  // Without keys nothing was pooled, and every block has importance 0.
  if (lane < I::kLanes)
#pragma unroll
    for (int h = 0; h < I::kHeads; ++h) sLse[head + h] = highest[h] + log2_approx(total[h]);
  __syncwarp(); // all heads' lse are written
}

template <class C> NSAI_DEVICE void select(const NsaiDecode &p) {
  constexpr int kFree = Topn<C>::kFree;
  SharedStorage &shared = find_storage<C>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // ---- coordinates
  const int row = blockIdx.x / p.kv_heads, group = blockIdx.x % p.kv_heads;
  const DecodeToken token = find_token(p.batch, row);
  begin_kernel(); // so far only the batch was read, which is older
  if (!token.present) return;
  int *gOut = list_of(p, row, group); // [n]
  const int candidates = candidate_count<C>(token.position);
  if (warp == 0) write_forced<C>(gOut, candidates, lane);
  if (!needs_search<C>(candidates)) return;

  // ---- search
  if constexpr (kFree > 0) {
    const ScanRow at = find_scan_row<C>(p, token, group);
    const Sequence seq = load_cached_sequence(p.batch, token.s);
    const ScanImportance<C> importance =
        find_importance<C>(p, at.work_item, at.row, last_position<C>(seq, token.query),
                           shared.lse[warp]);
    const auto rows = importance.load_rows(find_piece<C>(candidates, warp).begin, lane);
    combine_lse<C>(p, at, shared.lse[warp], lane);
    search_blocks<C>(importance, rows, candidates, shared.search, gOut, warp, lane);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    decode_split_kv_select(const __grid_constant__ NsaiDecode p) {
  select<Config>(p);
}
