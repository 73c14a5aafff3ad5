// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Tiles in shared memory as operands of products: rows for ldmatrix (core/tile.cuh), or panels for
// wgmma.
#pragma once
#include "core/tile.cuh"
#include "core/tma.cuh"
#include "core/types.cuh"

// A tile as wgmma reads it: panels of 64 columns (core/tma.cuh), 1024-byte aligned.
template <int kRowsOf, int kCols> struct PanelTile {
  static constexpr int kRows = kRowsOf;
  static constexpr int kChunks = kCols / 8;  // 16-byte chunks that hold data, per row
  static constexpr int kPitch = kPanelPitch; // bytes per row of a panel
  static constexpr int kBytes = nsai_panel_bytes(kRows, kCols);
  static NSAI_DEVICE u32 offset(int row, int chunk) {
    return (u32)(chunk / 8 * kRows * kPanelPitch) + panel_offset(row, chunk);
  }
  static NSAI_DEVICE u32 along(u32 address, int chunks) {
    return panel_along<kRows>(address, chunks);
  }
  // As Tile::down().
  static NSAI_DEVICE u32 down(u32 address, int rows) {
    return (address ^ (u32)((rows & 7) << 4)) + (u32)(rows * kPanelPitch);
  }
};

template <bool kPanels, int kRows, int kCols> struct ProductTileOf {
  using Type = Tile<kRows, kCols>;
};
template <int kRows, int kCols> struct ProductTileOf<true, kRows, kCols> {
  using Type = PanelTile<kRows, kCols>;
};
template <bool kPanels, int kRows, int kCols>
using ProductTile = typename ProductTileOf<kPanels, kRows, kCols>::Type;
