// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What the selection blocks of a token weigh in decode_pipelined: each warp weighs a piece of its block's own.
//
// Config: those of decode/cluster/ranges.cuh.
#pragma once
#include "core/copy.cuh"
#include "core/softmax.cuh"
#include "core/topn.cuh"
#include "decode/cluster/ranges.cuh"

template <class C>
constexpr int kSentBest = kFreeBlocks<C> > 0 ? kFreeBlocks<C> : 1; // that a block sends

// A warp's piece of them.
struct PipelinedPiece {
  int begin, count;
};
template <class C> NSAI_DEVICE PipelinedPiece find_piece(const SearchedBlocks &all, int warp) {
  const int count = max(all.end - all.begin, 0), each = ceil_div(count, C::kWarps);
  const int begin = min(warp * each, count);
  return PipelinedPiece{ all.begin + begin, min(each, count - begin) };
}

// What a piece is ordered by to sOrders: importance, from `pooled` of the block's own [extent, 16], `spills`
// of its runs [kWarps + 1, 16] and `mine`, lse of head lane % 16.
template <class C>
NSAI_DEVICE void weigh_piece(u32 *sOrders, const PipelinedPiece &piece,
                             const ClusterBlockRange &block_range, const float *pooled,
                             const float (&carries)[C::kWarps + 1][16], float mine, int lane) {
  constexpr int kHeads = kLaneHeads<C>, kLanes = kBlockLanes<C>;
  constexpr int kPass = 32 / kLanes; // blocks
  constexpr int kAtOnce = 8;         // of a lane, whose rows are on their way together
  const int sub = lane % kLanes;
  float lse[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) lse[h] = __shfl_sync(~0u, mine, sub * kHeads + h);
#pragma unroll 1
  for (int first = 0; first < piece.count; first += kPass * kAtOnce) {
    float v[kAtOnce][kHeads];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      if (first + n * kPass >= piece.count) break; // instructions come late, too
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
  __syncwarp(); // what was pooled is read
}

// What was pooled of a piece in global memory need not go to memory: whole lines of it alone. (A candidate
// behind all blocks has nothing pooled.)
NSAI_DEVICE void discard_piece(const float *pooled, const PipelinedPiece &piece,
                               const ClusterBlockRange &block_range, int lane) {
  const int count = max(min(piece.count, block_range.blocks - piece.begin), 0);
  const u64 begin = (u64)(pooled + (piece.begin - block_range.first_block) * 16),
            end = begin + 64 * count;
  for (u64 line = (begin + 127) / 128 * 128 + lane * 128; line + 128 <= end; line += 32 * 128)
    discard_line((const void *)line);
}
