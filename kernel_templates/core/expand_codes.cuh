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
#include "core/tile.cuh"
#include "core/tma.cuh"

// Expands `count` rows by a whole warp, to which their codes are visible: rows row_of(i), i < count,
// whose chunk c of 16 bytes lies at at(row, c). kAhead: codes are read while those before are
// expanded, where registers allow it.
template <class Element, int kDim, bool kAhead, class RowOf, class At>
NSAI_DEVICE void expand_codes_at(int count, RowOf row_of, At at) {
  static_assert(kDim % 16 == 0 && kDim <= 256, "a row of codes consists of chunks of 16 bytes");
  constexpr int kChunks = kDim / 16; // of a row of codes
  constexpr int kLanes = kChunks > 8 ? 16 : kChunks > 4 ? 8 : kChunks > 2 ? 4 : kChunks;
  const int lane = recomputed(threadIdx.x) % 32;
  // Lanes beyond the last chunk read it, too, and write nothing.
  const bool exists = kLanes == kChunks || lane % kLanes < kChunks;
  const int chunk = kLanes == kChunks ? lane % kLanes : min(lane % kLanes, kChunks - 1);
  auto row = [&](int first) { return row_of(min(first + lane / kLanes, count - 1)); };
  Chunk next;
  if constexpr (kAhead) next = load_shared(at(row(0), chunk));
#pragma unroll 1
  for (int first = 0; first < count; first += 32 / kLanes) {
    const Chunk codes = kAhead ? next : load_shared(at(row(first), chunk));
    if (kAhead && first + 32 / kLanes < count)
      next = load_shared(at(row(first + 32 / kLanes), chunk));
    __syncwarp(); // the codes of these rows have been read
    // The lanes of a row write even and odd chunks in different orders, so that eight of them write
    // to different banks.
    const bool odd_first = chunk & 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool odd = odd_first != (half != 0);
      const Chunk x = expand_eight<Element>(odd ? make_uint2(codes.w[2], codes.w[3])
                                                : make_uint2(codes.w[0], codes.w[1]));
      if (exists && first + lane / kLanes < count) store_shared(at(row(first), 2 * chunk + odd), x);
    }
  }
}

// Expands rows of a tile of panels (core/tma.cuh) of kRows rows. On return this thread's elements are
// visible to wgmma for threads that its arrival on a barrier reaches.
template <class Element, int kDim, int kRows, bool kAhead, class RowOf>
NSAI_DEVICE void expand_code_rows(u32 tile, int count, RowOf row_of) {
  expand_codes_at<Element, kDim, kAhead>(count, row_of, [=](int row, int c) {
    return tile + (u32)(c / 8 * kRows * kPanelPitch) + panel_offset(row, c);
  });
  shared_proxy_fence();
}

// Expands all rows of a Tile (core/tile.cuh). On return the elements are visible to the warp.
template <class Element, int kDim, int kRows, class T> NSAI_DEVICE void expand_code_tile(u32 tile) {
  expand_codes_at<Element, kDim, false>(
      kRows, [](int i) { return i; }, [=](int row, int c) { return tile + T::offset(row, c); });
  __syncwarp();
}
