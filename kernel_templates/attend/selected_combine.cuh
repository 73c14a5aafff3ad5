// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_selected_combine: combines the partial results that attend_selected_kv_stationary_sm90
// wrote for each block of a token into the token's output.
//
//   LSE = log2 sum over slots i of 2^lse[i]
//   O   = sum over slots i of 2^(lse[i] - LSE) partial[i]
//
//   partial [heads, chunk_tokens, n, Dv]; lse [heads, entries], indexed by entry_indices
//
// A slot whose block the token does not see holds no result and is not read. A row without any
// result gets O = 0 and LSE = -inf.
//
// Grid: x = ceil(heads * chunk_tokens / (kThreads / 32)), one warp per row (head, token); each lane
// owns groups of four columns. Bound by reading `partial`: 16 slots are in flight at once.
//
// Config: Element, kHeadDimV, kGroup, kGate, kSelectCount (n), kThreads, kMinBlocks, kSharedBytes
// (0).
#pragma once
#include "core/copy.cuh"
#include "core/epilogue.cuh"
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/inverted_lists.cuh"
#include "params/attention.h"

// Adds `weight` times one slot's row, in the lane's columns.
template <class Config, int kJ>
NSAI_DEVICE void add_slot(float4 (&x)[kJ], const uint2 (&rPartial)[kJ], float weight) {
  using E = typename Config::Element;
#pragma unroll
  for (int j = 0; j < kJ; ++j) {
    x[j].x = fmaf(weight, E::low(rPartial[j].x), x[j].x);
    x[j].y = fmaf(weight, E::high(rPartial[j].x), x[j].y);
    x[j].z = fmaf(weight, E::low(rPartial[j].y), x[j].z);
    x[j].w = fmaf(weight, E::high(rPartial[j].y), x[j].w);
  }
}

// Loads kAhead slots beginning at gPartial [.., Dv]. Slots whose bit in `seen` is 0 become zeros.
template <class Config, int kAhead, int kJ>
NSAI_DEVICE void load_slots(uint2 (&rPartial)[kAhead][kJ], const u16 *gPartial, u32 seen) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
#pragma unroll
    for (int j = 0; j < kJ; ++j) {
      rPartial[i][j] = make_uint2(0, 0);
      if ((seen >> i & 1) && has_row_column<Config::kHeadDimV>(j))
        rPartial[i][j] = load_streaming(gPartial + i * Config::kHeadDimV + row_column(j));
    }
  }
}

template <class Config> NSAI_DEVICE void combine(const NsaiCombine &p) {
  constexpr int kCount = Config::kSelectCount, kDim = Config::kHeadDimV;
  constexpr int kPerLane = ceil_div(kCount, 32);              // slots of a lane
  constexpr int kJ = ceil_div(kDim, 128);                     // groups of four columns of a lane
  constexpr int kAhead = 16 / kJ < kCount ? 16 / kJ : kCount; // slots in flight
  const int lane = threadIdx.x & 31;
  const long long row = (long long)blockIdx.x * (Config::kThreads / 32) + threadIdx.x / 32;
  if (row >= (long long)p.heads * p.chunk_tokens) return;
  const int head = p.head_begin + (int)(row / p.chunk_tokens);
  const int token = p.token_begin + (int)(row % p.chunk_tokens);

  // Bit i of seen[j] says whether slot 32 j + i holds a visible block.
  const int list_head = p.shared_lists ? 0 : head / Config::kGroup;
  const int *gEntryIndices = p.entry_indices + list_head * p.entry_capacity +
                             (long long)(row % p.chunk_tokens) * kCount; // [n]
  int rEntryIndex[kPerLane];                                             // of slots 32 j + lane
  u32 seen[kPerLane];
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    rEntryIndex[j] = 32 * j + lane < kCount ? gEntryIndices[32 * j + lane] : kNoEntryIndex;
    seen[j] = __ballot_sync(~0u, rEntryIndex[j] >= 0);
  }
  if (__any_sync(~0u, rEntryIndex[0] == kNoToken)) return;

  const u16 *gPartial = (const u16 *)p.partial + row * (kCount * kDim);        // [n, Dv]
  const float *gLse = p.partial_lse + row / p.chunk_tokens * p.entry_capacity; // [entry_capacity]
  float rLse[kPerLane]; // of slots 32 j + lane
#pragma unroll
  for (int j = 0; j < kPerLane; ++j)
    rLse[j] = rEntryIndex[j] >= 0 ? gLse[rEntryIndex[j]] : kMinusInf;
  uint2 rPartial[kAhead][kJ]; // the lane's columns
  load_slots<Config>(rPartial, gPartial, seen[0]);

  float highest = kNoReference, total = 0.0f;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) highest = fmaxf(highest, rLse[j]);
  highest = warp_max(highest);
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    rLse[j] = exp2_approx(rLse[j] - highest);
    total += rLse[j];
  }
  total = warp_sum(total);
  const float inverse = total > 0.0f ? __fdividef(1.0f, total) : 0.0f;

  float4 x[kJ]; // O: the lane's columns
#pragma unroll
  for (int j = 0; j < kJ; ++j) x[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
#pragma unroll 1
    for (int first = 0; first < kCount - 32 * j && first < 32; first += kAhead) {
      if (j || first)
        load_slots<Config>(rPartial, gPartial + (32 * j + first) * kDim, seen[j] >> first);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) // slots from kCount on have weight 0
        add_slot<Config>(x, rPartial[i], __shfl_sync(~0u, rLse[j], first + i) * inverse);
    }
  }

  store_row_output<Config>(p.out, p.kv_heads, OutputRow{ token, head, true }, highest, total, x);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_selected_combine(const __grid_constant__ NsaiCombine p) {
  begin_kernel();
  combine<Config>(p);
}
