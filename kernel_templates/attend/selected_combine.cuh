// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_selected_combine: combines the partial results that attend_selected_kv_stationary_sm90
// wrote for each block of a token into the token's output.
//
//   partial [heads, chunk_tokens, n, Dv]; lse [heads, entries], indexed by entry_indices
//
// The sums: attend/combine_slots.cuh. A row without any result gets O = 0 and LSE = -inf.
//
// Grid: x = ceil(heads * chunk_tokens / (kThreads / 32)), one warp per row (head, token); each lane
// owns groups of four columns. Bound by reading `partial`: 16 slots are in flight at once.
//
// Config: Element, kHeadDimV, kGroup, kGate, kSelectCount (n), kThreads, kMinBlocks, kSharedBytes
// (0).
#pragma once
#include "attend/combine_slots.cuh"
#include "core/copy.cuh"
#include "core/epilogue.cuh"
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/inverted_lists.cuh"
#include "params/attention.h"

template <class Config> NSAI_DEVICE void combine(const NsaiCombine &p) {
  using S = Slots<Config>;
  constexpr int kCount = S::kCount, kDim = Config::kHeadDimV, kAhead = S::kAhead;
  const int lane = threadIdx.x & 31;
  const long long row = (long long)blockIdx.x * (Config::kThreads / 32) + threadIdx.x / 32;
  if (row >= (long long)p.heads * p.chunk_tokens) return;
  const int head = p.head_begin + (int)(row / p.chunk_tokens);
  const int token = p.token_begin + (int)(row % p.chunk_tokens);

  // Bit i of seen[j] says whether slot 32 j + i holds a visible block.
  const int list_head = p.shared_lists ? 0 : head / Config::kGroup;
  int rEntryIndex[S::kPerLane];
  u32 seen[S::kPerLane];
  load_entry_indices<Config>(rEntryIndex, p.entry_indices + list_head * p.entry_capacity +
                                              (long long)(row % p.chunk_tokens) * kCount);
#pragma unroll
  for (int j = 0; j < S::kPerLane; ++j) seen[j] = __ballot_sync(~0u, rEntryIndex[j] >= 0);
  if (__any_sync(~0u, rEntryIndex[0] == kNoToken)) return;

  const u16 *gPartial = (const u16 *)p.partial + row * (kCount * kDim); // [n, Dv]
  auto load = [&](int slot, int j) {
    return load_streaming(gPartial + slot * kDim + row_column(j));
  };
  float rWeight[S::kPerLane]; // of slots 32 j + lane
  load_slot_lses<Config>(rWeight, rEntryIndex,
                         p.partial_lse + row / p.chunk_tokens * p.entry_capacity);
  uint2 rPartial[kAhead][S::kJ]; // the lane's columns
  load_slots<Config>(rPartial, 0, seen[0], load);
  const RowTotal total = weigh_slots(rWeight);

  float4 x[S::kJ]; // O: the lane's columns
#pragma unroll
  for (int j = 0; j < S::kJ; ++j) x[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (int j = 0; j < S::kPerLane; ++j) {
#pragma unroll 1
    for (int first = 0; first < kCount - 32 * j && first < 32; first += kAhead) {
      if (j || first) load_slots<Config>(rPartial, 32 * j + first, seen[j] >> first, load);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) // slots from kCount on have weight 0
        add_slot<Config>(x, rPartial[i], __shfl_sync(~0u, rWeight[j], first + i));
    }
  }

  store_row_output<Config>(p.out, p.kv_heads, OutputRow{ token, head, true }, total.reference,
                           total.sum, x);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_selected_combine(const __grid_constant__ NsaiCombine p) {
  begin_kernel();
  combine<Config>(p);
}
