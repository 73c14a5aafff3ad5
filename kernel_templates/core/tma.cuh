// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Tensor memory accelerator (sm_90 and later), one instruction per function. The host creates the
// tensor maps (runtime/driver/tensor_map.h): of packed tensors with three dimensions, element 0 ..
// D - 1, head, token; of a cache with four, element, slot, head, page; of interleaved keys five.
// A box is 64 elements (128 bytes, swizzled) of some heads of some tokens. Parts outside the tensor
// arrive as zeros and count among the bytes of the box.
//
// A tile of D columns is stored as ceil(D / 64) consecutive panels [rows][128 bytes], each
// 1024-byte aligned: 16-byte chunk c of row r of a panel lies at chunk c ^ (r % 8).
#pragma once
#include "core/copy.cuh"
#include "core/types.cuh"
#include "params/attention.h"
#include "params/smem.h"

// Elements and bytes of a panel's row.
constexpr int kPanelColumns = 64;
constexpr int kPanelPitch = NSAI_PANEL_PITCH;

constexpr NSAI_DEVICE int panels(int dim) { return nsai_panels(dim); }

// Offset of 16-byte chunk `chunk` % 8 of row `row` within a panel.
NSAI_DEVICE u32 panel_offset(int row, int chunk) {
  return (u32)(row * kPanelPitch + ((chunk ^ row) & 7) * 16);
}

// The address `chunks` (even, constant) further along a row of a tile of kRows rows, given the
// `address` of its chunk 0 or 1.
template <int kRows> NSAI_DEVICE u32 panel_along(u32 address, int chunks) {
  return (address ^ (u32)((chunks & 7) << 4)) + (u32)(chunks / 8 * kRows * kPanelPitch);
}

// Prefetches a tensor map before its first use. One thread.
NSAI_DEVICE void tma_prefetch_map(const NsaiTensorMap &map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Starts the copy of the box at (element, head, token) to shared memory; its bytes count on
// `barrier`. One thread. Coordinates may lie outside the tensor, also below 0.
NSAI_DEVICE void tma_load(u32 to_shared, const NsaiTensorMap &map, u32 barrier, int element,
                          int head, int token) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to_shared),
               "l"(&map), "r"(element), "r"(head), "r"(token), "r"(barrier)
               : "memory");
}

// Starts the copies of all panels of a tile of kDim columns; `rows` of a box are heads times
// tokens.
template <int kDim>
NSAI_DEVICE void tma_load_panels(u32 to_shared, const NsaiTensorMap &map, u32 barrier, int rows,
                                 int head, int token) {
#pragma unroll
  for (int i = 0; i < panels(kDim); ++i)
    tma_load(to_shared + i * rows * kPanelPitch, map, barrier, i * kPanelColumns, head, token);
}

// The same for tokens that lie in pages: the tensor map has four dimensions, element, slot in the
// page, head, page, and a box has rows of one head of one page.
NSAI_DEVICE void tma_load_page(u32 to_shared, const NsaiTensorMap &map, u32 barrier, int element,
                               int slot, int head, int page) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to_shared),
               "l"(&map), "r"(element), "r"(slot), "r"(head), "r"(page), "r"(barrier)
               : "memory");
}

// Head coordinate for boxes of k or v. A tensor that repeats one head (stride 0) has a map of that
// head only.
NSAI_DEVICE int box_head(const NsaiView &view, int head) { return view.head_stride ? head : 0; }

// Starts the copy of contiguous bytes; size and both addresses are multiples of 16. The bytes count
// on `barrier`. One thread.
NSAI_DEVICE void bulk_load(u32 to_shared, const void *from_global, u32 barrier, u32 bytes) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
               "[%3];" ::"r"(to_shared),
               "l"(from_global), "r"(bytes), "r"(barrier)
               : "memory");
}

// bulk_store, bulk_add: start the copy of contiguous bytes of shared memory to global memory, or the
// addition of floats; size and both addresses as for bulk_load(). bulk_commit() closes a group.
// bulk_wait_read() waits until the groups' shared memory has been read, bulk_wait() until they are
// complete. One thread.
NSAI_DEVICE void bulk_store(float *to, u32 from_shared, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(from_shared), "r"(bytes)
               : "memory");
}
NSAI_DEVICE void bulk_add(float *to, u32 from_shared, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                   to),
               "r"(from_shared), "r"(bytes)
               : "memory");
}
NSAI_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
NSAI_DEVICE void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
NSAI_DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Orders this thread's copies and its other accesses, whatever the memory.
NSAI_DEVICE void async_proxy_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Makes this thread's writes to global memory visible to such copies.
NSAI_DEVICE void global_proxy_fence() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ---- interleaved tiles of 128 rows
//
// In the C fragments of scores of 128 keys, lane `pair` of a quad holds columns 8 j + 2 * pair and
// the next one, j < 16. If key 32 * pair + 2 j + e of a tile is stored in row 8 j + 2 * pair + e,
// these columns are 32 adjacent keys. TMA produces this order with a tensor map of five dimensions:
// element (all heads in one row), e, pair, j, and first key; boxes of different first keys overlap.

constexpr int kInterleavedRows = 128;

// The key in row `row` of the tile.
constexpr NSAI_DEVICE int interleaved_key(int row) {
  return row / 2 % 4 * 32 + row / 8 * 2 + row % 2;
}

// Starts the copies of all panels of a tile of kDim columns from `column` on (among all heads'
// columns) and of keys from `key` on. All 128 rows are read, whatever the tensor's extent.
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

// Starts the copy of keys [0, present) of such a tile by a warpgroup; later keys become zeros.
// `from`: key 0. The caller continues with copy_async_wait() and shared_proxy_fence(). Rows 16
// apart hold keys 4 apart.
template <int kDim>
NSAI_DEVICE void copy_present_interleaved(u32 to_shared, const u16 *from, long long token_stride,
                                          int present) {
  const int row = threadIdx.x % 128 / 8, chunk = threadIdx.x % 8; // 16 rows at once
  to_shared += row * kPanelPitch + ((chunk ^ row) & 7) * 16;
  from += interleaved_key(row) * token_stride + chunk * 8;
  present -= interleaved_key(row);
// Not unrolled: producers have few registers.
#pragma unroll 1
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

// Makes this thread's writes to shared memory visible to copies and products of the asynchronous
// proxy.
NSAI_DEVICE void shared_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Copies rows [0, present) of a tile [kRows, kDim] by a whole warp; later rows become zeros. It
// replaces boxes that would contain rows of another sequence, whose V may hold values that must not
// be multiplied even by 0. `from`: row 0. On return the copy is complete and visible to wgmma.
template <int kRows, int kDim>
NSAI_DEVICE void copy_present_rows(u32 to_shared, const u16 *from, long long token_stride,
                                   int present) {
  constexpr int kChunks = panels(kDim) * 8;
#pragma unroll 1 // it runs at the ends of sequences, if others follow
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
