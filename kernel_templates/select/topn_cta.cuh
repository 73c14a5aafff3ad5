// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// select_topn_cta: selects n blocks for each token by the rule and the search of core/topn.cuh,
// with all warps of a CTA on one row. Use it for few rows: one warp per row would leave the device
// idle.
//
//   importance f32 [tokens of the chunk, Hkv, blocks] (select_importance)
//   -> idx int32 [T, Hkv, n] (attend_selected_*)
//
// Grid: x = (token_end - token_begin) * kv_heads, a CTA per token and KV head. Tokens after the
// last sequence are skipped; t < 0 gives a list of -1.
//
//   1. The unforced candidates are cut into kWarps ranges of equal length. Each warp writes the
//      n_free best of its range to shared memory, by ascending index.
//   2. The first warp searches the n_free best of what all found. Ranges ascend, so that ties go to
//      the lower index, as in one pass.
//
// Bound by latency: a warp reads 512 bytes before it looks at them.
//
// Config: kSelectBlock (l'), kSelectCount (n), kSelectInit, kSelectLocal, kSigned, kThreads,
// kMinBlocks, kCached. Shared memory, static: for each warp a queue of 1272 bytes and n_free indices.
#pragma once
#include "core/launch.cuh"
#include "core/topn.cuh"
#include "core/types.cuh"
#include "data/sequence.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

static_assert(Config::kThreads % 32 == 0, "whole warps");

template <class C> struct SharedStorage {
  static constexpr int kWarps = C::kThreads / 32;
  u64 queues[kWarps][kQueue];
  int found[kWarps * (Topn<C>::kFree > 0 ? Topn<C>::kFree : 1)]; // blocks, ascending
};

template <class C, class Params> NSAI_DEVICE void select(const Params &params) {
  const NsaiSelect &p = packed_of(params);
  constexpr int kFree = Topn<C>::kFree, kWarps = SharedStorage<C>::kWarps;
  __shared__ SharedStorage<C> shared;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int token = p.token_begin + (int)(blockIdx.x / p.kv_heads);
  const int group = (int)(blockIdx.x % p.kv_heads);
  const Sequence seq =
      load_sequence(sequences_of(params), find_row_sequence(sequences_of(params), token));
  const int query = token - seq.q_begin;
  if (query < 0 || query >= seq.q_len) return;
  int *gOut = p.idx + token * p.idx_token_stride + group * p.idx_head_stride; // [n]
  const float *gI = p.importance + (token - p.token_begin) * p.importance_token_stride +
                    group * p.importance_head_stride; // [candidates]
  const int candidates = candidate_count<C>(seq.position(query));
  if (!needs_search<C>(candidates)) {
    if (warp == 0) write_forced<C>(gOut, candidates, lane);
    return;
  }
  if constexpr (kFree > 0) {
    const auto load = [&](int block) { return key_of(row_order_of<C>(gI[block]), block); };
    const int first = C::kSelectInit, count = candidates - first - C::kSelectLocal; // unforced
    const int range = ceil_div(count, kWarps), each = min(range, kFree);
    const int begin = min(warp * range, count), end = min(begin + range, count);
    // Ranges are full up to the last one that is not empty: what the warps find follows each other.
    search_range<C, false>(
        shared.found + warp * each, first + begin, end - begin,
        [&](int i) { return load(first + begin + i); }, shared.queues[warp], lane);
    __syncthreads(); // every warp's best are there
    if (warp > 0) return;
    write_forced<C>(gOut, candidates, lane);
    const int full = count / range;
    const int found = full * each + min(count - full * range, kFree); // at least kFree
    search<kFree, Topn<C>::kSlots>(
        gOut + first, found, [&](int i) { return load(shared.found[i]); }, shared.queues[0], lane,
        0);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) select_topn_cta(
    const __grid_constant__ ParamsOf<Config::kCached, NsaiSelect, NsaiCachedSelect>::Type p) {
  begin_kernel();
  select<Config>(p);
}
