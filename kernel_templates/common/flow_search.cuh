// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// How a token's compressed keys and selection blocks fall to the blocks and warps of decode_flow, and what
// its blocks weigh: each warp weighs a piece of its block's own.
//
// Config: those of common/decode.cuh, kSelectCount (n), kSelectInit, kSelectLocal, kWarps, kCluster.
#pragma once
#include "common/copy.cuh"
#include "common/decode.cuh"
#include "common/topn.cuh"

template <class C> constexpr int kFlowBest = kFreeBlocks<C> > 0 ? kFreeBlocks<C> : 1; // that a block sends

// The compressed keys.
struct FlowStretch {
  int each;                // quanta of a run
  float inverse;           // 1 / each
  int runs;                // of a block
  int begin, end;          // quanta of this warp
  int blocks;              // selection blocks that are pooled, in all
  int first_block, extent; // of this block's
};

template <class C> NSAI_DEVICE FlowStretch find_flow_stretch(int visible, int rank, int warp) {
  const int quanta = ceil_div(visible, Decode<C>::kQuantum);
  FlowStretch x;
  x.each = max(1, ceil_div(quanta, C::kCluster * C::kWarps));
  x.inverse = __fdividef(1.0f, (float)x.each);
  x.runs = ceil_div(quotient_up(quanta, x.each, x.inverse), C::kCluster);
  const int run = rank * x.runs + warp;
  x.begin = warp < x.runs ? min(run * x.each, quanta) : 0;
  x.end = warp < x.runs ? min(x.begin + x.each, quanta) : 0;
  x.blocks = quanta * Decode<C>::kQuantumBlocks;
  x.extent = x.runs * x.each * Decode<C>::kQuantumBlocks;
  x.first_block = rank * x.extent;
  return x;
}

// Of the selection blocks that are searched the block's own, and this warp's piece of them.
struct FlowPiece {
  int begin, count;
};
template <class C>
NSAI_DEVICE FlowPiece find_searched(const FlowStretch &stretch, int candidates, int rank) {
  const int behind = rank + 1 == C::kCluster ? candidates : stretch.first_block + stretch.extent;
  const int first = max(stretch.first_block, C::kSelectInit);
  return FlowPiece{ first, max(min(behind, candidates - C::kSelectLocal) - first, 0) };
}
template <class C> NSAI_DEVICE FlowPiece find_piece(const FlowPiece &all, int warp) {
  const int each = ceil_div(all.count, C::kWarps), begin = min(warp * each, all.count);
  return FlowPiece{ all.begin + begin, min(each, all.count - begin) };
}

// What a piece is ordered by to sOrders: importance, from `pooled` of the block's own [extent, 16], `spills`
// of its runs [kWarps + 1, 16] and `mine`, lse of head lane % 16.
template <class C>
NSAI_DEVICE void weigh_piece(u32 *sOrders, const FlowPiece &piece, const FlowStretch &stretch,
                             const float *pooled, const float (&spills)[C::kWarps + 1][16], float mine,
                             int lane) {
  constexpr int kHeads = C::kGroupPadded < 4 ? C::kGroupPadded : 4; // of a lane
  constexpr int kLanes = C::kGroupPadded / kHeads;                  // of a selection block
  constexpr int kPass = 32 / kLanes; // blocks
  constexpr int kAtOnce = 8;         // of a lane, whose rows are on their way together
  const int sub = lane % kLanes, each = stretch.each * Decode<C>::kQuantumBlocks;
  const float inverse = stretch.inverse * (1.0f / Decode<C>::kQuantumBlocks);
  float lse[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) lse[h] = __shfl_sync(~0u, mine, sub * kHeads + h);
#pragma unroll 1
  for (int first = 0; first < piece.count; first += kPass * kAtOnce) {
    float v[kAtOnce][kHeads];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      if (first + n * kPass >= piece.count) break; // instructions come late, too
      const int j = min(piece.begin + first + n * kPass + lane / kLanes, stretch.blocks - 1);
      const float *row = pooled + max(j - stretch.first_block, 0) * 16 + sub * kHeads;
      if constexpr (kHeads == 4) {
        const float4 x = *(const float4 *)row;
        v[n][0] = x.x, v[n][1] = x.y, v[n][2] = x.z, v[n][3] = x.w;
      } else {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) v[n][h] = row[h];
      }
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int i = first + n * kPass + lane / kLanes, j = piece.begin + i, at = j - stretch.first_block;
      if (first + n * kPass >= piece.count) break;
      const int run = quotient_up(at, each, inverse); // that ends before it
      const bool begins = i < piece.count && 0 < j && j <= stretch.blocks &&
                          (run * each == at || j == stretch.blocks);
      const float *spill = spills[begins ? run : 0] + sub * kHeads;
      float sum = 0.0f;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (sub * kHeads + h >= C::kGroup) continue;
        if (j < stretch.blocks) sum += exp2_approx(v[n][h] - lse[h]);
        if (begins) sum += exp2_approx(spill[h] - lse[h]);
      }
#pragma unroll
      for (int apart = 1; apart < kLanes; apart *= 2) sum += __shfl_xor_sync(~0u, sum, apart);
      if (sub == 0 && i < piece.count) sOrders[i] = order_of(sum);
    }
  }
  __syncwarp(); // what was pooled is read
}

// What was pooled of a piece in global memory need not go to memory: whole lines of it alone. (A candidate
// behind all blocks has nothing pooled.)
NSAI_DEVICE void discard_piece(const float *pooled, const FlowPiece &piece, const FlowStretch &stretch,
                               int lane) {
  const int count = max(min(piece.count, stretch.blocks - piece.begin), 0);
  const u64 begin = (u64)(pooled + (piece.begin - stretch.first_block) * 16), end = begin + 64 * count;
  for (u64 line = (begin + 127) / 128 * 128 + lane * 128; line + 128 <= end; line += 32 * 128)
    discard_line((const void *)line);
}
