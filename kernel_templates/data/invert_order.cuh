// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// data_invert_order: the numbers of a head's items (data/invert_scan.cuh) in the order of their first tokens,
// for a kernel whose CTAs take one item after the other: CTAs that run at the same time then read rows
// of nearby tokens, from L2.
//
//   order[h, ..]: the numbers 0 .. item_counts[h] - 1, sorted by the run of ceil(tokens / kBuckets) tokens
//                 that the item's first token lies in. The order within a run differs between launches.
//
// Grid: x = heads; one thread per bucket of a counting sort. All items of a head take microseconds.
//
// Config: kThreads (1024), kMinBlocks, kSharedBytes (0).
#pragma once
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/inverted_lists.cuh"
#include "params/attention.h"

template <class Config> NSAI_DEVICE void order_items(const NsaiInvertOrder &p) {
  constexpr int kBuckets = Config::kThreads, kWarps = kBuckets / 32;
  static_assert(kWarps == 32, "one warp adds up the sums of all warps");
  __shared__ int sNext[kBuckets]; // items of each bucket, then the place of its next item
  __shared__ int sWarps[kWarps];
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int items = p.item_counts[head], width = max(ceil_div(p.tokens, kBuckets), 1);
  const NsaiKvItem *gItems = p.items + (long long)head * p.item_capacity; // [items]
  const u32 *gEntries = p.entries + head * p.entry_capacity;
  int *gOrder = p.order + (long long)head * p.item_capacity; // [items]
  auto bucket = [&](int i) { return entry_token(gEntries[gItems[i].begin]) / width; };

  sNext[threadIdx.x] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < items; i += kBuckets) atomicAdd(&sNext[bucket(i)], 1);
  __syncthreads();
  const int own = sNext[threadIdx.x];
  auto inclusive_scan = [&](int x) {
#pragma unroll
    for (int delta = 1; delta < 32; delta *= 2) {
      const int before = __shfl_up_sync(~0u, x, delta);
      if (lane >= delta) x += before;
    }
    return x;
  };
  const int upto = inclusive_scan(own);
  if (lane == 31) sWarps[warp] = upto;
  __syncthreads();
  if (warp == 0) sWarps[lane] = inclusive_scan(sWarps[lane]);
  __syncthreads();
  sNext[threadIdx.x] = upto - own + (warp ? sWarps[warp - 1] : 0);
  __syncthreads();
  for (int i = threadIdx.x; i < items; i += kBuckets) gOrder[atomicAdd(&sNext[bucket(i)], 1)] = i;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    data_invert_order(const __grid_constant__ NsaiInvertOrder p) {
  begin_kernel();
  order_items<Config>(p);
}
