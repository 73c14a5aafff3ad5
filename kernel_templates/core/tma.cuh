// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Tensor memory access (sm_90 and up), one instruction per function. The host makes the tensor maps
// (runtime/driver/tensor_map.h): three dimensions, element 0 .. D - 1, head, token; a box is 64 elements (128
// bytes, swizzled) of some heads of some tokens. What lies outside the tensor arrives as zeros and
// counts among the bytes of the box.
//
// A tile of D columns is ceil(D / 64) panels [rows][128 bytes], one behind the other, each at a
// multiple of 1024 bytes: 16-byte chunk c of row r of a panel lies at chunk c ^ (r % 8).
#pragma once
#include "core/copy.cuh"
#include "core/types.cuh"
#include "params/attention.h"

// Elements of a panel's row, and its bytes.
constexpr int kPanelColumns = 64;
constexpr int kPanelPitch = 128;

constexpr NSAI_DEVICE int panels(int dim) { return ceil_div(dim, kPanelColumns); }

// Where 16-byte chunk `chunk` % 8 of row `row` of a panel lies.
NSAI_DEVICE u32 panel_offset(int row, int chunk) {
  return (u32)(row * kPanelPitch + ((chunk ^ row) & 7) * 16);
}

// The address `chunks` (even, a constant) further along a row of a tile of kRows rows, from `address`
// of its chunk 0 or 1.
template <int kRows> NSAI_DEVICE u32 panel_along(u32 address, int chunks) {
  return (address ^ (u32)((chunks & 7) << 4)) + (u32)(chunks / 8 * kRows * kPanelPitch);
}

// Fetches a tensor map ahead of its first use. One thread.
NSAI_DEVICE void tma_prefetch_map(const NsaiTensorMap &map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Starts the copy of the box at (element, head, token) to shared memory; its bytes count on
// `barrier`. One thread. Coordinates may lie outside, below 0 as well.
NSAI_DEVICE void tma_load(u32 to_shared, const NsaiTensorMap &map, u32 barrier, int element,
                          int head, int token) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to_shared),
               "l"(&map), "r"(element), "r"(head), "r"(token), "r"(barrier)
               : "memory");
}

// All panels of a tile of kDim columns; `rows` of a box (heads times tokens).
template <int kDim>
NSAI_DEVICE void tma_load_panels(u32 to_shared, const NsaiTensorMap &map, u32 barrier, int rows,
                                 int head, int token) {
#pragma unroll
  for (int i = 0; i < panels(kDim); ++i)
    tma_load(to_shared + i * rows * kPanelPitch, map, barrier, i * kPanelColumns, head, token);
}

// Head coordinate of boxes of k or v: one that repeats a head (stride 0) has a map of this one.
NSAI_DEVICE int box_head(const NsaiView &view, int head) { return view.head_stride ? head : 0; }

// Starts the copy of adjacent bytes, a multiple of 16 from and to multiples of 16; they count on
// `barrier`. One thread.
NSAI_DEVICE void bulk_load(u32 to_shared, const void *from_global, u32 barrier, u32 bytes) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
               "[%3];" ::"r"(to_shared),
               "l"(from_global), "r"(bytes), "r"(barrier)
               : "memory");
}

// This thread's writes to global memory become visible to such copies.
NSAI_DEVICE void global_proxy_fence() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ---- tiles of 128 rows, spread over the lanes of a quad
//
// Of the scores of 128 keys, C fragments, lane `pair` of a quad holds columns 8 j + 2 * pair and the
// next, j < 16. Where key 32 * pair + 2 j + e of a tile lies in row 8 j + 2 * pair + e, these are 32
// adjacent keys. The order is the copy engine's to make: a tensor map of five dimensions, element
// (all heads in a row), e, pair, j, and first key, of which the last overlap.

constexpr int kInterleavedRows = 128;

// The key that lies in row `row` of the tile.
constexpr NSAI_DEVICE int interleaved_key(int row) {
  return row / 2 % 4 * 32 + row / 8 * 2 + row % 2;
}

// All panels of a tile of kDim columns from `column` on (of all heads' columns) and keys from `key`
// on. All 128 rows are read, whatever the tensor's extent.
template <int kDim>
NSAI_DEVICE void tma_load_interleaved(u32 to_shared, const NsaiTensorMap &map, u32 barrier,
                                      int column, int key) {
#pragma unroll
  for (int i = 0; i < panels(kDim); ++i)
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, 0, 0, 0, %3}], [%4];" ::"r"(to_shared +
                                                              i * kInterleavedRows * kPanelPitch),
                 "l"(&map), "r"(column + i * kPanelColumns), "r"(key), "r"(barrier)
                 : "memory");
}

// Keys [0, present) of such a tile by a warpgroup, zeros behind. `from`: key 0. To be followed by
// copy_async_wait() and shared_proxy_fence(). Rows 16 apart are keys 4 apart.
template <int kDim>
NSAI_DEVICE void copy_present_interleaved(u32 to_shared, const u16 *from, long long token_stride,
                                          int present) {
  const int row = threadIdx.x % 128 / 8, chunk = threadIdx.x % 8; // 16 rows at once
  to_shared += row * kPanelPitch + ((chunk ^ row) & 7) * 16;
  from += interleaved_key(row) * token_stride + chunk * 8;
  present -= interleaved_key(row);
#pragma unroll 1 // producers have few registers
  for (int key = 0; key < kInterleavedRows / 4; key += 4) {
#pragma unroll
    for (int i = 0; i < panels(kDim); ++i)
      copy_async_16(to_shared + i * kInterleavedRows * kPanelPitch, from + i * kPanelColumns,
                    key < present && i * kPanelColumns + chunk * 8 < kDim);
    to_shared += 16 * kPanelPitch;
    from += 4 * token_stride;
  }
  copy_async_commit();
}

// This thread's writes to shared memory become visible to copies and products of the asynchronous
// proxy.
NSAI_DEVICE void shared_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Rows [0, present) of a tile [kRows, kDim] by a whole warp, zeros behind: in the place of boxes that
// would bring rows of another sequence, whose V may be anything, not to be multiplied even by 0.
// `from`: row 0. Complete and visible to products on return.
template <int kRows, int kDim>
NSAI_DEVICE void copy_present_rows(u32 to_shared, const u16 *from, long long token_stride,
                                   int present) {
  constexpr int kChunks = panels(kDim) * 8;
  for (int i = threadIdx.x % 32; i < kRows * kChunks; i += 32) {
    int row = i / kChunks, chunk = i % kChunks;
    copy_async_16(to_shared + chunk / 8 * kRows * kPanelPitch + panel_offset(row, chunk),
                  from + row * token_stride + chunk * 8, row < present && chunk * 8 < kDim);
  }
  copy_async_commit();
  copy_async_wait<0>();
  shared_proxy_fence();
  __syncwarp();
}
