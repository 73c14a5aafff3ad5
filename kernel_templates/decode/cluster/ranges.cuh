// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// How a token's compressed keys fall to the blocks of threads of a cluster and to their warps, for
// decode_cluster and decode_pipelined: in runs of quanta (decode/work.cuh), which follow each other over the
// warps of a block and then over the blocks. And the selection blocks that follow: where what was pooled of
// them lies, which are searched, and what they weigh.
//
// Config: those of decode/work.cuh, kSelectInit, kSelectLocal, kWarps, kCluster, kKeptBlocks (selection
// blocks of a block of threads whose pooled values lie in shared memory).
#pragma once
#include "decode/work.cuh"
#include "params/kv_cache.h"

// Every warp of `runs` of a block has a run of `each` quanta.
struct ClusterRuns {
  int granules;  // in all
  int each;      // of a run
  float inverse; // 1 / each
  int runs;      // of a block
};
template <class C> NSAI_DEVICE ClusterRuns find_cluster_runs(int visible) {
  ClusterRuns x;
  x.granules = ceil_div(visible, Decode<C>::kSplitGranularity);
  x.each = max(1, ceil_div(x.granules, C::kCluster * C::kWarps));
  x.inverse = __fdividef(1.0f, (float)x.each);
  x.runs = ceil_div(quotient_up(x.granules, x.each, x.inverse), C::kCluster);
  return x;
}

// What falls to a block and warp.
struct ClusterBlockRange : ClusterRuns {
  int begin, end;          // quanta of the warp
  int blocks;              // selection blocks that are pooled, in all
  int first_block, extent; // of the block's
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

// Where what is pooled of the block's selection blocks lies: `kept`, in shared memory, where they fit.
template <class C>
NSAI_DEVICE float *find_pooled(const NsaiDecode &p, float *kept, int work_item,
                               const ClusterBlockRange &block_range) {
  if (block_range.extent <= C::kKeptBlocks) return kept;
  return p.pooled + ((long long)work_item * p.pooled_blocks + block_range.first_block) * 16;
}

// Of the warp's run among them.
template <class C>
NSAI_DEVICE float *find_run_pooled(float *pooled, const ClusterBlockRange &block_range) {
  return pooled + (block_range.begin * Decode<C>::kGranuleBlocks - block_range.first_block) * 16;
}

// The selection blocks [begin, end) that are searched and the block's own. (The last one's may be one more
// than were pooled, of which there is a spill alone.)
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

// Lanes that share a selection block, and how many of its heads each of them has.
template <class C> constexpr int kLaneHeads = C::kGroupPadded < 4 ? C::kGroupPadded : 4;
template <class C> constexpr int kBlockLanes = C::kGroupPadded / kLaneHeads<C>;

// Values of a lane's heads, which lie together; of four at a multiple of 16 bytes.
template <int kHeads> NSAI_DEVICE void load_heads(float (&x)[kHeads], const float *from) {
  if constexpr (kHeads == 4) {
    const float4 all = *(const float4 *)from;
    x[0] = all.x, x[1] = all.y, x[2] = all.z, x[3] = all.w;
  } else {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) x[h] = from[h];
  }
}

// What runs into selection block j, `at` behind the first of the block of threads: the spill of number `run`,
// if that run ends there. (0 is the last one of the block of threads before.)
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

// A lane's part of a selection block's importance: what was pooled of its heads, if it was, and a spill, if
// there is one; `lse` of the same heads.
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
