// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Copies of rows from global memory to a Tile (core/tile.cuh) by cp.async: how threads share a
// tile's 16-byte chunks, and the addresses from which ldmatrix reads them.
#pragma once
#include "core/copy.cuh"
#include "core/tile.cuh"
#include "core/types.cuh"

// Address of chunk pair `step` of the row whose pair 0 is at `base`; see Tile for the swizzle. A
// tile is aligned to 128 bytes, so bits 4 to 6 of `base` hold only the swizzled chunk.
template <class T> NSAI_DEVICE u32 at_step(u32 base, int step) {
  if constexpr (T::kSwizzled)
    return (base ^ ((step & 3) << 5)) + (step >> 2) * 128;
  else
    return base + step * 32;
}

// How the threads share the copy of a tile T: adjacent lanes take adjacent chunks of one row.
template <class T, int kThreads> struct CopyLanes {
  static constexpr int kLanes = T::kChunks > 4 ? 8 : T::kChunks; // lanes per row: 2, 4 or 8
  static constexpr int kPass = kThreads / kLanes;                // rows at once
  static NSAI_DEVICE int row(int thread) { return thread / kLanes; }
  static NSAI_DEVICE int chunk(int thread) { return thread % kLanes; }
};

// Starts the copy of row `row` [columns] to tile T. `from` is this lane's first chunk of it. A row
// that is not present is not read and becomes zero, like the columns that pad the tile.
template <class T, int kThreads>
NSAI_DEVICE void copy_row(u32 tile, int row, int lane_chunk, const u16 *from, bool present,
                          int columns) {
  using Lanes = CopyLanes<T, kThreads>;
#pragma unroll
  for (int c = 0; c < T::kChunks; c += Lanes::kLanes) {
    int chunk = c + lane_chunk;
    if (c + Lanes::kLanes <= T::kChunks || chunk < T::kChunks)
      copy_async_16(tile + T::offset(row, chunk), from + c * 8, present && chunk * 8 < columns);
  }
}
template <class T, int kDim, int kThreads>
NSAI_DEVICE void copy_row(u32 tile, int row, int lane_chunk, const u16 *from, bool present) {
  copy_row<T, kThreads>(tile, row, lane_chunk, from, present, kDim);
}
