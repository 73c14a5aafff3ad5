// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// data_sort_blocks: sorts a caller's block indices into the ascending lists that the selected
// branch reads.
//
//   in  [T, heads, n] in any order; negative indices and those after the current block t / l' are
//       skipped
//   out [T, heads, n] ascending, each block once, then -1
//
// Grid: x = ceil(T * heads / (kThreads / 32)); one warp per list, in registers. Bound by launch and
// latency: n ints in, n out.
//
// Config: kSelectBlock (l'), kSelectCount (n), kThreads (a multiple of 32; 128), kMinBlocks (1),
// kSharedBytes (0), kCached.
#pragma once
#include "core/launch.cuh"
#include "core/sort.cuh"
#include "core/types.cuh"
#include "data/position.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

static_assert(Config::kSelectBlock > 0 && Config::kSelectCount > 0, "a selection has blocks");
static_assert(Config::kThreads % 32 == 0, "a warp sorts a list");
static_assert(Config::kSharedBytes == 0, "lists are sorted in registers");

template <class Config, class Params> NSAI_DEVICE void sort_block_list(const Params &params) {
  const NsaiSortSelection &p = packed_of(params);
  constexpr int kCount = Config::kSelectCount;
  constexpr int kPerLane = sort_keys_per_lane(kCount);
  constexpr u32 kNone = ~0u; // sorts last
  const int lane = threadIdx.x & 31;
  const long long list = (long long)blockIdx.x * (Config::kThreads / 32) + threadIdx.x / 32;
  if (list >= (long long)sequences_of(params).q_tokens * p.heads) return;
  const int token = (int)(list / p.heads), head = (int)(list % p.heads);

  const int t = token_position(sequences_of(params), token);
  const int last = t < 0 ? -1 : t / Config::kSelectBlock;
  const int *gIn = p.in + token * p.in_token_stride + head * p.in_head_stride; // [n]
  u32 rBlock[kPerLane]; // element 32 * j + lane
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    int block = 32 * j + lane < kCount ? gIn[(32 * j + lane) * p.in_entry_stride] : -1;
    rBlock[j] = block >= 0 && block <= last ? (u32)block : kNone;
  }
  sort_warp(rBlock, lane);

  int *gOut = p.out + list * kCount; // [n]
  int written = 0;                   // warp-uniform
  u32 before = kNone;                // last element of the previous round
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    u32 left = __shfl_up_sync(~0u, rBlock[j], 1);
    if (lane == 0) left = before;
    bool first = rBlock[j] != kNone && rBlock[j] != left; // first occurrence of its value
    u32 firsts = __ballot_sync(~0u, first);
    if (first) gOut[written + votes_below(firsts, lane)] = (int)rBlock[j];
    written += __popc(firsts);
    before = __shfl_sync(~0u, rBlock[j], 31);
  }
  for (int i = written + lane; i < kCount; i += 32) gOut[i] = -1;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    data_sort_blocks(const __grid_constant__ ParamsOf<Config::kCached, NsaiSortSelection,
                                                      NsaiCachedSortSelection>::Type p) {
  begin_kernel();
  sort_block_list<Config>(p);
}
