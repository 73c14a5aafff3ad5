// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Tiles of 16-bit elements in shared memory with a layout that makes ldmatrix free of bank
// conflicts for every head dim.
//
// A tile has kRows rows of kCols elements; kCols is a multiple of 16 (other head dims are padded
// with zeros). If a row is a multiple of 128 bytes, chunk c of row r lies at chunk c ^ (r % 8).
// Otherwise rows are padded to an odd number of 16-byte chunks. In both cases eight consecutive
// rows touch eight different groups of banks.
#pragma once
#include "core/copy.cuh"
#include "core/types.cuh"
#include "params/smem.h"

template <int kRows, int kCols> struct Tile {
  static_assert(kCols % 16 == 0, "ldmatrix takes 16 columns at a time");
  static constexpr int kChunks = kCols / 8; // 16-byte chunks with data, per row
  static constexpr bool kSwizzled = kChunks % 8 == 0;
  static constexpr int kPitch = nsai_tile_pitch(kCols); // bytes
  static constexpr int kBytes = kRows * kPitch;

  // Byte offset of 16-byte chunk `chunk` of row `row`.
  static NSAI_DEVICE u32 offset(int row, int chunk) {
    return (u32)(row * kPitch + ((kSwizzled ? (chunk & ~7) | ((chunk ^ row) & 7) : chunk) << 4));
  }

  // The address `chunks` (constant) further along a row, given the `address` of its chunk 0, or an even
  // number of them given that of chunk 0 or 1; the tile must be aligned to 128 bytes. This is one
  // instruction, whereas calls of offset() would be hoisted out of the key loop into one register per
  // chunk.
  static NSAI_DEVICE u32 along(u32 address, int chunks) {
    if constexpr (!kSwizzled) return address + (u32)(chunks << 4);
    return (address ^ (u32)((chunks & 7) << 4)) + (u32)((chunks & ~7) << 4);
  }

  // The address of the same chunk `rows` (constant) further down, whose bits are not set in the
  // number of the row that `address` belongs to.
  static NSAI_DEVICE u32 down(u32 address, int rows) {
    return (kSwizzled ? address ^ (u32)((rows & 7) << 4) : address) + (u32)(rows * kPitch);
  }
};

// Columns of a tile for head dim `d`.
constexpr NSAI_DEVICE int padded_dim(int d) { return nsai_padded_dim(d); }
