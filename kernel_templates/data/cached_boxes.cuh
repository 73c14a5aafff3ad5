// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Tiles of kKeys adjacent keys of a KV cache, loaded by the copy engine (sm_90) into panels of
// shared memory (core/tma.cuh). A tile consists of boxes of kBoxRows keys. A box lies in one page,
// since pages and boxes are powers of two and tiles begin at multiples of kBoxRows. Lane i of a
// warp asks for box i. Where a ring buffer's length is no multiple of kBoxRows, a box would cross
// its end, and copy_present() replaces all boxes.
//
// No page is looked up for keys at or behind the sequence's end: such a box is one of a page that
// does not exist, which arrives as zeros. The box that holds the end may bring anything behind it,
// and in a ring, whose older rows need never have been written, anything before the tile's first
// key. Scores of these keys are masked; for V, whose rows are multiplied by 0, copy_present()
// replaces the boxes of such a tile.
#pragma once
#include "core/tma.cuh"
#include "data/cache_rows.cuh"

template <int kPageRows, int kBoxRows, int kKeys> struct CachedBoxes {
  static_assert(kBoxRows % 8 == 0, "a box begins with the swizzle's pattern");
  static_assert(kPageRows == 0 || kPageRows % kBoxRows == 0, "a page consists of boxes");
  static_assert(kKeys % kBoxRows == 0 && kKeys / kBoxRows <= 32, "a lane has one box at most");
  CachedRows<kPageRows> rows;
  int begin; // keys before it may be anything
  int end;   // keys of the sequence
  int none;  // number of a page that does not exist

  // Whether keys come by boxes at all, and whether V of the tile from key `first` on does.
  NSAI_DEVICE bool boxed() const { return kPageRows > 0 || rows.ring % kBoxRows == 0; }
  NSAI_DEVICE bool boxed_values(int first) const {
    return first >= begin && first + kKeys <= end && boxed();
  }

  // The page of this lane's box of the tile from key `first` on. It is read from memory, so it is
  // asked for before it is needed.
  NSAI_DEVICE int page_of_lane(int first) const {
    const int row = threadIdx.x % 32 * kBoxRows;
    return row < kKeys && first + row < end ? rows.page(first + row) : none;
  }

  // Starts the copies of the keys of x from `first` on; `page`: what page_of_lane(first) returned.
  // A whole warp; its lane 0 has announced the bytes to `barrier`.
  template <int kDim>
  NSAI_DEVICE void load(u32 to_shared, const NsaiTensorMap &map, u32 barrier,
                        const NsaiCacheTensor &x, int group, int first, int page) const {
    const int row = threadIdx.x % 32 * kBoxRows;
    if (row >= kKeys) return;
#pragma unroll
    for (int i = 0; i < panels(kDim); ++i)
      tma_load_page(to_shared + (i * kKeys + row) * kPanelPitch, map, barrier, i * kPanelColumns,
                    rows.slot(first + row), x.head_stride ? group : 0, page);
  }

  // Copies the keys [first, first + kKeys) of x by a whole warp; rows outside [begin, end) become
  // zeros. On return the copy is complete and visible to wgmma. Pages are looked up again: taken
  // from the lanes' `page` they cost registers that producers do not have.
  template <int kDim>
  NSAI_DEVICE void copy_present(u32 to_shared, const NsaiCacheTensor &x, int group,
                                int first) const {
    constexpr int kChunks = panels(kDim) * 8;
    for (int i = threadIdx.x % 32; i < kKeys * kChunks; i += 32) {
      const int row = i / kChunks, chunk = i % kChunks, key = min(first + row, end - 1);
      copy_async_16(to_shared + chunk / 8 * kKeys * kPanelPitch + panel_offset(row, chunk),
                    (const u16 *)x.data + row_offset(x, rows.page(key), rows.slot(key)) +
                        group * x.head_stride + chunk * 8,
                    first + row >= begin && first + row < end && chunk * 8 < kDim);
    }
    copy_async_commit();
    copy_async_wait<0>();
    shared_proxy_fence();
    __syncwarp();
  }
};

// Boxes of sequence s, which has `end` keys. `first`: the first key that is wanted.
template <int kPageRows, int kBoxRows, int kKeys>
NSAI_DEVICE CachedBoxes<kPageRows, kBoxRows, kKeys>
find_boxes(const NsaiCacheBatch &batch, const NsaiCachePair &pair, int s, int first, int end) {
  return { find_rows<kPageRows>(batch, s, pair.ring), pair.ring ? first : 0, end, pair.pages };
}
