// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Codes (core/e4m3.cuh) that become 16-bit elements within the panels of a tile (core/tma.cuh), for
// kernels whose products take elements. The producers copy a row of codes as a row of words of two,
// into the panels where the elements of the same row will lie: the codes of kDim columns take the
// first half of the row's memory. A warp then reads the codes of whole rows into registers and
// writes the elements over them, so that no row needs memory of its own:
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
#include "core/tma.cuh"

// Expands `count` rows of a tile of kRows rows: row_of(i), i < count. A whole warp, to which the codes
// are visible. On return this thread's elements are visible to wgmma for threads that its arrival on
// a barrier reaches. kAhead: codes are read while those before are expanded, where registers allow it.
template <class Element, int kDim, int kRows, bool kAhead, class RowOf>
NSAI_DEVICE void expand_code_rows(u32 tile, int count, RowOf row_of) {
  static_assert(kDim % 16 == 0 && kDim <= 256, "a row of codes consists of chunks of 16 bytes");
  constexpr int kChunks = kDim / 16; // of a row of codes
  constexpr int kLanes = kChunks > 8 ? 16 : kChunks > 4 ? 8 : kChunks > 2 ? 4 : kChunks;
  const int lane = recomputed(threadIdx.x) % 32;
  // Lanes beyond the last chunk read it, too, and write nothing.
  const bool exists = kLanes == kChunks || lane % kLanes < kChunks;
  const int chunk = kLanes == kChunks ? lane % kLanes : min(lane % kLanes, kChunks - 1);
  auto row = [&](int first) { return row_of(min(first + lane / kLanes, count - 1)); };
  auto at = [&](int r, int c) {
    return tile + (u32)(c / 8 * kRows * kPanelPitch) + panel_offset(r, c);
  };
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
  shared_proxy_fence();
}
