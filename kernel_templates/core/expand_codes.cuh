// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Codes (core/e4m3.cuh) that become 16-bit elements within a tile, for kernels whose products take
// elements. A row of codes is copied as a row of words of two, to where the elements of the same row
// will lie: the codes of kDim columns take the first half of the row's memory. A warp then reads the
// codes of whole rows into registers and writes the elements over them, so that no row needs memory
// of its own:
//
//   row r, Dk 128    panel 0                     panel 1
//     copied         codes of columns 0 ... 127  anything
//     expanded       columns 0 ... 63            columns 64 ... 127
//
// The scales of the codes are no part of the elements: that of K belongs into the softmax scale,
// that of V into O.
#pragma once
#include "core/copy.cuh"
#include "core/e4m3.cuh"
#include "core/panel_tile.cuh"
#include "core/tile.cuh"
#include "core/tma.cuh"

// Expands the codes of kDim columns in `groups` groups of kGroup (4 or 8) rows, kStep (a multiple of
// 8) apart, by a whole warp to which the codes are visible. `first`: the first row, a multiple of
// kGroup. Layout has offset(row, chunk), and down(address, rows): the address of the same chunk
// `rows` (constant) further down a group.
//
// A lane takes a piece of 8 codes of a row at a time, and kAtOnce such pieces together: few warps
// expand a tile, and with independent conversions they need not wait for each one. (With four of wide
// rows, loaders spill.)
template <class Element, int kDim, int kGroup, int kStep, class Layout>
NSAI_DEVICE void expand_code_groups(u32 tile, int first, int groups) {
  static_assert(kDim % 16 == 0 && kDim <= 256, "a row of codes consists of chunks of 16 bytes");
  static_assert((kGroup == 4 || kGroup == 8) && kStep % 8 == 0, "rows 8 apart have one swizzle");
  constexpr int kPieces = kDim / 8;                                                  // of a row
  constexpr int kLanes = kPieces > 16 ? 32 : kPieces > 8 ? 16 : kPieces > 4 ? 8 : 4; // of a row
  constexpr int kRows = 32 / kLanes < kGroup ? 32 / kLanes : kGroup;                 // at a time
  constexpr int kTimes = kGroup / kRows;                                             // for a group
  constexpr int kAtOnce = kDim > 128 ? 2 : 4,
                kGroups = kTimes < kAtOnce ? kAtOnce / kTimes : 1; // groups at once
  const u32 lane = (u32)recomputed(threadIdx.x) % 32, piece = lane % kLanes;
  const bool exists = piece < kPieces && lane / kLanes < kRows;
  first += lane / kLanes;
  u32 from = tile + Layout::offset(first, piece / 2) + piece % 2 * 8;
  u32 to = tile + Layout::offset(first, piece);
#pragma unroll 1
  for (int group = 0; group < groups; group += kGroups) {
#pragma unroll
    for (int time = 0; time < kTimes * kGroups; time += kAtOnce) {
      uint2 codes[kAtOnce];
      auto wanted = [&](int i) { return exists && (i < kTimes || group + i / kTimes < groups); };
      auto along = [](u32 address, int i) {
        return Layout::down(address, i % kTimes * kRows) + i / kTimes * kStep * Layout::kPitch;
      };
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (wanted(time + i)) codes[i] = load_shared_pair(along(from, time + i));
      __syncwarp(); // the codes of these rows have been read
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (wanted(time + i)) store_shared(along(to, time + i), expand_eight<Element>(codes[i]));
    }
    from += kGroups * kStep * Layout::kPitch;
    to += kGroups * kStep * Layout::kPitch;
  }
}

// Expands rows of a tile of panels. On return this thread's elements are visible to wgmma for threads
// that its arrival on a barrier reaches.
template <class Element, int kDim, int kRows, int kGroup, int kStep>
NSAI_DEVICE void expand_code_rows(u32 tile, int first, int groups) {
  expand_code_groups<Element, kDim, kGroup, kStep, PanelTile<kRows, kDim>>(tile, first, groups);
  shared_proxy_fence();
}

// The share of one of kWarps warps of expanding all rows of a tile of panels: `warp` has groups of 8
// rows in turn.
template <class Element, int kDim, int kRows, int kWarps>
NSAI_DEVICE void expand_code_share(u32 tile, int warp) {
  expand_code_rows<Element, kDim, kRows, 8, 8 * kWarps>(tile, warp * 8,
                                                        (kRows / 8 - warp + kWarps - 1) / kWarps);
}

// Expands all rows of a Tile (core/tile.cuh). On return the elements are visible to the warp.
template <class Element, int kDim, int kRows, class T> NSAI_DEVICE void expand_code_tile(u32 tile) {
  expand_code_groups<Element, kDim, 8, 8, T>(tile, 0, kRows / 8);
  __syncwarp();
}
