// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// select_topn: selects n blocks for each token by the rule and the search of core/topn.cuh.
//
//   importance f32 [tokens of the chunk, Hkv, blocks] (select_importance)
//   -> idx int32 [T, Hkv, n] (attend_selected_*)
//
// Grid: x = ceil((token_end - token_begin) * kv_heads / (kThreads / 32)), one warp per token and KV
// head. Tokens behind the last sequence are skipped; t < 0 gives a list of -1. A warp loads
// 128 bytes at once, kUnroll loads in flight. Bound by instruction issue: about 10 instructions per
// 32 candidates, and 200 * kSlots per merge.
//
// Config: kSelectBlock (l'), kSelectCount (n), kSelectInit, kSelectLocal, kSigned, kThreads,
// kMinBlocks, kCached. Static shared memory: 1272 bytes per warp.
#pragma once
#include "core/launch.cuh"
#include "core/topn.cuh"
#include "core/types.cuh"
#include "data/sequence.cuh"
#include "data/source.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"

static_assert(Config::kThreads % 32 == 0, "a warp per token and KV head");

template <class C, class Params> NSAI_DEVICE void select(const Params &params) {
  const NsaiSelect &p = packed_of(params);
  constexpr int kWarps = C::kThreads / 32;
  __shared__ u64 queues[kWarps][kQueue];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u64 index = (u64)blockIdx.x * kWarps + warp;
  if (index >= (u64)(p.token_end - p.token_begin) * p.kv_heads) return;
  const int token = p.token_begin + (int)(index / p.kv_heads), group = (int)(index % p.kv_heads);
  const Sequence seq =
      load_sequence(sequences_of(params), find_row_sequence(sequences_of(params), token));
  const int query = token - seq.q_begin;
  if (query < 0 || query >= seq.q_len) return;
  int *gOut = p.idx + token * p.idx_token_stride + group * p.idx_head_stride; // [n]
  const float *gI = p.importance + (token - p.token_begin) * p.importance_token_stride +
                    group * p.importance_head_stride; // [candidates]
  const int candidates = candidate_count<C>(seq.position(query));
  if (!write_forced<C>(gOut, candidates, lane)) return;
  if constexpr (Topn<C>::kFree > 0)
    search<Topn<C>::kFree, Topn<C>::kSlots>(
        gOut + C::kSelectInit, candidates - C::kSelectInit - C::kSelectLocal,
        [&](int i) { return key_of(row_order_of<C>(gI[C::kSelectInit + i]), C::kSelectInit + i); },
        queues[warp], lane, 0);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) select_topn(
    const __grid_constant__ ParamsOf<Config::kCached, NsaiSelect, NsaiCachedSelect>::Type p) {
  begin_kernel();
  select<Config>(p);
}
