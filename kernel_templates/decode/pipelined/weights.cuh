// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Importance of a token's selection blocks in decode_pipelined: each warp computes a piece of its
// CTA's own blocks.
//
// Config: those of decode/cluster/ranges.cuh.
#pragma once
#include "core/copy.cuh"
#include "core/softmax.cuh"
#include "core/topn.cuh"
#include "decode/cluster/ranges.cuh"

template <class C>
constexpr int kSentBest = kFreeBlocks<C> > 0 ? kFreeBlocks<C> : 1; // that a CTA sends

// A warp's piece of the CTA's blocks.
struct PipelinedPiece {
  int begin, count;
};
template <class C> NSAI_DEVICE PipelinedPiece find_piece(const SearchedBlocks &all, int warp) {
  const int count = max(all.end - all.begin, 0), each = ceil_div(count, C::kWarps);
  const int begin = min(warp * each, count);
  return PipelinedPiece{ all.begin + begin, min(each, count - begin) };
}

// Stores the orders of a piece's importance in sOrders. `pooled` [extent, 16] belongs to the CTA's
// own blocks, `carries` [kWarps + 1, 16] to its runs; `mine` is the lse of head lane % 16.
template <class C>
NSAI_DEVICE void weigh_piece(u32 *sOrders, const PipelinedPiece &piece,
                             const ClusterBlockRange &block_range, const float *pooled,
                             const float (&carries)[C::kWarps + 1][16], float mine, int lane) {
  constexpr int kHeads = kLaneHeads<C>, kLanes = kBlockLanes<C>;
  constexpr int kPass = 32 / kLanes; // blocks
  constexpr int kAtOnce = 8;         // blocks of a lane in flight together
  const int sub = lane % kLanes;
  float lse[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) lse[h] = __shfl_sync(~0u, mine, sub * kHeads + h);
#pragma unroll 1
  for (int first = 0; first < piece.count; first += kPass * kAtOnce) {
    float v[kAtOnce][kHeads];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      if (first + n * kPass >= piece.count) break; // exit early: instruction fetch takes time, too
      const int j = min(piece.begin + first + n * kPass + lane / kLanes, block_range.blocks - 1);
      load_heads(v[n], pooled + max(j - block_range.first_block, 0) * 16 + sub * kHeads);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int i = first + n * kPass + lane / kLanes, j = piece.begin + i,
                at = j - block_range.first_block;
      if (first + n * kPass >= piece.count) break;
      const CarryAt carry = find_carry<C>(block_range, at, j);
      const bool exists = i < piece.count && carry.exists;
      const float *behind = carries[exists ? carry.run : 0] + sub * kHeads;
      const float sum =
          lanes_sum<kLanes>(add_heads<C>(v[n], j < block_range.blocks, behind, exists, lse, sub));
      if (sub == 0 && i < piece.count) sOrders[i] = order_of(sum);
    }
  }
  __syncwarp(); // all lanes have read the pooled values
}

// Discards a piece's pooled values from L2, if they lie in global memory, so that they are not
// written back to DRAM. Only whole lines. (A candidate behind the last pooled block has no values.)
NSAI_DEVICE void discard_piece(const float *pooled, const PipelinedPiece &piece,
                               const ClusterBlockRange &block_range, int lane) {
  const int count = max(min(piece.count, block_range.blocks - piece.begin), 0);
  const u64 begin = (u64)(pooled + (piece.begin - block_range.first_block) * 16),
            end = begin + 64 * count;
  for (u64 line = (begin + 127) / 128 * 128 + lane * 128; line + 128 <= end; line += 32 * 128)
    discard_line((const void *)line);
}
