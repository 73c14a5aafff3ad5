// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_dq_slots: adds up, in the order of each token's slots, what the blocks of its list add to
// dQ (backward/pipelines/dq_slots.cuh), and leaves the sum where backward_dq_sums_tma finds it
// (backward/pipelines/dq_sums.cuh). If the compressed branch has left sums there, it adds to them.
//
// Grid: x = heads * tiles, head-major; one CTA per block of 64 rows. A warp has two rows at a time,
// i and i + 8, as a thread's accumulators have them. Each lane has four columns of both. Bound by
// reading the slots: 16 of each row are in flight at once.
//
// Config: kHeadDimQk (64, 128), kGroup, kSelectCount (n), kBlock (l), kStride (d), kThreads,
// kMinBlocks.
#pragma once
#include "backward/pipelines/dq_slots.cuh"
#include "backward/pipelines/dq_sums.cuh"
#include "core/copy.cuh"
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/inverted_lists.cuh"
#include "data/key_range.cuh"
#include "params/backward.h"

constexpr int kDqBlockRows = 64; // of backward/pipelines/dq_sums.cuh
constexpr int kSlotsAhead = 16;  // slots of a row in flight

// Adds up to kSlotsAhead slots of two rows, in the lane's columns. Lane 16 r + i has slot i of row r:
// `at`, its row of p.slots, or -1.
template <class Config>
NSAI_DEVICE void add_slots(float (&sum)[2][4], const NsaiBackwardDqSlots &p, long long at) {
  const int lane = threadIdx.x % 32;
  const float mine = at >= 0 ? p.slot_steps[at] : 0.0f;
  uint2 x[2][kSlotsAhead];
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int i = 0; i < kSlotsAhead; ++i) {
      const long long row = __shfl_sync(~0u, at, kSlotsAhead * r + i);
      const u16 *from = (const u16 *)p.slots + row * Config::kHeadDimQk +
                        8 * row_chunk((int)row, lane / 2) + 4 * (lane % 2);
      x[r][i] = make_uint2(0, 0);
      if (row >= 0 && 4 * lane < Config::kHeadDimQk) x[r][i] = load_streaming(from);
    }
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int i = 0; i < kSlotsAhead; ++i) {
      const float step = __shfl_sync(~0u, mine, kSlotsAhead * r + i);
      sum[r][0] = fmaf(Fp16::low(x[r][i].x), step, sum[r][0]);
      sum[r][1] = fmaf(Fp16::high(x[r][i].x), step, sum[r][1]);
      sum[r][2] = fmaf(Fp16::low(x[r][i].y), step, sum[r][2]);
      sum[r][3] = fmaf(Fp16::high(x[r][i].y), step, sum[r][3]);
    }
}

template <class Config> NSAI_DEVICE void sum_slots(const NsaiBackwardDqSlots &p) {
  constexpr int kTokens = kDqBlockRows / Config::kGroup;
  const int lane = threadIdx.x % 32, head = blockIdx.x / p.tiles;
  const QueryTile at = find_query_tile<kTokens>(p.seq, blockIdx.x % p.tiles);
  const int tokens = min(kTokens, at.seq.q_len - at.first_query);
  if (at.first_query < 0 || tokens <= 0) return;
  // Whether backward_dkv_dq_compressed_tma has written the block.
  const int last = at.seq.position(at.first_query + tokens - 1);
  const bool adds = p.adds && CompressedKeys<Config>::visible(last).end > 0;
  const long long block = (p.head_begin + head) * p.blocks + first_dq_block<kTokens>(at.seq, at.s) +
                          at.first_query / kTokens;
  float4 *gBlock = (float4 *)p.sums + block * (Config::kHeadDimQk / 8 * 128); // [Dk / 8][128]
  const int list_head = p.shared_lists ? 0 : p.head_begin + head;
  const int *gIndices =
      p.entry_indices + list_head * p.entry_capacity +
      (long long)(at.seq.q_begin + at.first_query) * Config::kSelectCount; // [tokens, n]
#pragma unroll 1
  for (int pair = threadIdx.x / 32; pair < kDqBlockRows / 2; pair += Config::kThreads / 32) {
    const int row = pair / 8 * 16 + pair % 8;
    float4 *to = gBlock + lane / 2 * 128 + row / 16 * 32 + row % 8 * 4 + lane % 2 * 2;
    const bool mine = 4 * lane < Config::kHeadDimQk;
    float4 before[2] = { make_float4(0.0f, 0.0f, 0.0f, 0.0f), make_float4(0.0f, 0.0f, 0.0f, 0.0f) };
    if (mine && adds) {
      before[0] = to[0];
      before[1] = to[1];
    }
    float sum[2][4] = {};
#pragma unroll 1
    for (int first = 0; first < Config::kSelectCount; first += kSlotsAhead) {
      const int of = row + lane / 16 * 8, slot = first + lane % 16, token = of / Config::kGroup;
      int entry = kNoEntryIndex;
      if (token < tokens && slot < Config::kSelectCount)
        entry = gIndices[token * Config::kSelectCount + slot];
      add_slots<Config>(sum, p,
                        entry < 0 ? -1
                                  : (head * p.entry_capacity + entry) * Config::kGroup +
                                        of % Config::kGroup);
    }
    if (!mine) continue;
    to[0] = make_float4(before[0].x + sum[0][0], before[0].y + sum[0][1], before[0].z + sum[1][0],
                        before[0].w + sum[1][1]);
    to[1] = make_float4(before[1].x + sum[0][2], before[1].y + sum[0][3], before[1].z + sum[1][2],
                        before[1].w + sum[1][3]);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dq_slots(const __grid_constant__ NsaiBackwardDqSlots p) {
  begin_kernel();
  sum_slots<Config>(p);
}
