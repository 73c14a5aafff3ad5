// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// How a token's compressed keys are divided among the CTAs of a cluster and their warps, for
// decode_cluster and decode_pipelined: in runs of granules (decode/work.cuh), consecutive over the
// warps of a CTA and then over the CTAs. Also the selection blocks that result from it: where their
// pooled values lie, which of them are searched, and their importance.
//
// Config: those of decode/work.cuh, kSelectInit, kSelectLocal, kWarps, kCluster, kKeptBlocks
// (selection blocks of a CTA whose pooled values fit into shared memory).
#pragma once
#include "decode/work.cuh"
#include "params/kv_cache.h"

// The first `runs` warps of each CTA have a run of `each` granules.
struct ClusterRuns {
  int granules;  // total
  int each;      // per run
  float inverse; // 1 / each
  int runs;      // per CTA
};
template <class C> NSAI_DEVICE ClusterRuns find_cluster_runs(int visible) {
  ClusterRuns x;
  x.granules = ceil_div(visible, Decode<C>::kSplitGranularity);
  x.each = max(1, ceil_div(x.granules, C::kCluster * C::kWarps));
  x.inverse = __fdividef(1.0f, (float)x.each);
  x.runs = ceil_div(quotient_up(x.granules, x.each, x.inverse), C::kCluster);
  return x;
}

// The share of a CTA and of a warp.
struct ClusterBlockRange : ClusterRuns {
  int begin, end;          // granules of the warp
  int blocks;              // pooled selection blocks in total
  int first_block, extent; // of this CTA
};
template <class C>
NSAI_DEVICE ClusterBlockRange find_block_range(const ClusterRuns &runs, int rank, int warp) {
  ClusterBlockRange x;
  (ClusterRuns &)x = runs;
  const int run = rank * x.runs + warp;
  x.begin = warp < x.runs ? min(run * x.each, x.granules) : 0;
  x.end = warp < x.runs ? min(x.begin + x.each, x.granules) : 0;
  x.blocks = x.granules * Decode<C>::kGranuleBlocks;
  x.extent = x.runs * x.each * Decode<C>::kGranuleBlocks;
  x.first_block = rank * x.extent;
  return x;
}

// Where the pooled values of the CTA's selection blocks lie: `kept` in shared memory if they fit,
// otherwise global memory.
template <class C>
NSAI_DEVICE float *find_pooled(const NsaiDecode &p, float *kept, int work_item,
                               const ClusterBlockRange &block_range) {
  if (block_range.extent <= C::kKeptBlocks) return kept;
  return p.pooled + ((long long)work_item * p.pooled_blocks + block_range.first_block) * 16;
}

// The pooled values of the warp's run.
template <class C>
NSAI_DEVICE float *find_run_pooled(float *pooled, const ClusterBlockRange &block_range) {
  return pooled + (block_range.begin * Decode<C>::kGranuleBlocks - block_range.first_block) * 16;
}

// The CTA's selection blocks [begin, end) that take part in the search. (The last CTA may have one
// more block than were pooled; it consists of a carry alone.)
struct SearchedBlocks {
  int begin, end;
};
template <class C>
NSAI_DEVICE SearchedBlocks find_searched(const ClusterBlockRange &block_range, int candidates,
                                         int rank) {
  const int behind =
      rank + 1 == C::kCluster ? candidates : block_range.first_block + block_range.extent;
  return SearchedBlocks{ max(block_range.first_block, C::kSelectInit),
                         min(behind, candidates - C::kSelectLocal) };
}

// ---- importance

// Lanes that share a selection block, and the number of heads per lane.
template <class C> constexpr int kLaneHeads = C::kGroupPadded < 4 ? C::kGroupPadded : 4;
template <class C> constexpr int kBlockLanes = C::kGroupPadded / kLaneHeads<C>;

// Loads the values of a lane's heads, which lie together; four of them are 16-byte aligned.
template <int kHeads> NSAI_DEVICE void load_heads(float (&x)[kHeads], const float *from) {
  if constexpr (kHeads == 4) {
    const float4 all = *(const float4 *)from;
    x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
  } else {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) x[h] = from[h];
  }
}

// The carry into selection block j, which lies `at` blocks behind the CTA's first: that of number
// `run`, if a run ends there. (Number 0 is the last run of the previous CTA.)
struct CarryAt {
  bool exists;
  int run;
};
template <class C>
NSAI_DEVICE CarryAt find_carry(const ClusterBlockRange &block_range, int at, int j) {
  const int each = block_range.each * Decode<C>::kGranuleBlocks;
  const int run = quotient_up(at, each, block_range.inverse * (1.0f / Decode<C>::kGranuleBlocks));
  return CarryAt{ 0 < j && j <= block_range.blocks && (run * each == at || j == block_range.blocks),
                  run };
}

// A lane's share of a selection block's importance: the pooled values of its heads and the carry,
// where they exist. `lse` belongs to the same heads.
template <class C>
NSAI_DEVICE float add_heads(const float (&pooled)[kLaneHeads<C>], bool is_pooled,
                            const float *carry, bool has_carry, const float (&lse)[kLaneHeads<C>],
                            int lane) {
  float behind[kLaneHeads<C>], sum = 0.0f;
  load_heads(behind, carry);
#pragma unroll
  for (int h = 0; h < kLaneHeads<C>; ++h) {
    if (lane * kLaneHeads<C> + h >= C::kGroup) continue;
    if (is_pooled) sum += exp2_approx(pooled[h] - lse[h]);
    if (has_carry) sum += exp2_approx(behind[h] - lse[h]);
  }
  return sum;
}
