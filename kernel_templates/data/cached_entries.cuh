// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Tiles of compressed entries of a KV cache, copied into panels of shared memory (core/tma.cuh) by
// two warps. A page holds so few entries (4 of 64 tokens with stride 16) that boxes of the copy
// engine would be too many: a row is copied as 16-byte chunks by eight threads, eight rows in a
// pass.
//
// The lanes of a warp find the addresses of a tile's rows, a row each, and keep them in shared
// memory, so that a pass is little more than its copies. Pages are looked up while the tile before
// arrives.
//
// Entries in codes are copied as rows of words and expanded by the warp that copied them
// (core/expand_codes.cuh).
//
// Order: the order of the rows of a tile, with
//   constexpr int kStep   blocks between rows 8 apart
//   int block(int row)    the block of row 0 ... 7, counted from the tile's first
#pragma once
#include "core/expand_codes.cuh"
#include "core/tma.cuh"
#include "data/cache_rows.cuh"

struct NaturalOrder {
  static constexpr int kStep = 8;
  static NSAI_DEVICE int block(int row) { return row; }
};

// The order of tma_load_interleaved().
struct InterleavedOrder {
  static constexpr int kStep = 2;
  static NSAI_DEVICE int block(int row) { return interleaved_key(row); }
};

// Rows of one KV head of a tensor of entries. Rows: the sequence's CachedRows. kFirstIndex:
// entry_index() of block 0. Only whole warps call the functions.
template <class Rows, int kFirstIndex, int kRows, class Order, bool kRecompute> struct EntryTiles {
  static_assert(kRows % 8 == 0, "rows 8 apart have one swizzle");
  static constexpr int kOwn = kRows / 2; // rows of a warp, four of each pass
  static constexpr int kHeld = ceil_div(kOwn, 32);
  Rows rows;
  int end;       // blocks of the sequence
  u32 addresses; // u64 [kOwn] in shared memory, of this warp

  static NSAI_DEVICE u32 thread() {
    return kRecompute ? (u32)recomputed(threadIdx.x) : threadIdx.x;
  }

  // Pages of a tile, kHeld in a lane.
  struct Pages {
    int of[kHeld];
  };

  // Index of the lane's row i of the tile from block `first` on.
  NSAI_DEVICE int index(int first, int i) const {
    const int lane = thread() % 32;
    return kFirstIndex + min(first + Order::block(thread() % 64 / 32 * 4 + lane % 4) +
                                 (lane / 4 + 8 * i) * Order::kStep,
                             end - 1);
  }

  // Looks up the pages of the tile from block `first` on.
  NSAI_DEVICE Pages find_pages(int first) const {
    Pages found;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) found.of[i] = rows.page(index(first, i));
    return found;
  }

  // Stores the addresses of the tile's rows in x for copy().
  NSAI_DEVICE void keep(const Pages &found, const NsaiCacheTensor &x, int group, int first) const {
    const u16 *data = (const u16 *)x.data + group * x.head_stride;
    __syncwarp(); // the addresses kept before have been read
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (32 * (i + 1) <= kOwn || thread() % 32 < kOwn % 32) {
        const u64 at = (u64)(data + row_offset(x, found.of[i], rows.slot(index(first, i))));
        store_shared_pair(addresses + (32 * i + thread() % 32) * 8,
                          uint2{ (u32)at, (u32)(at >> 32) });
      }
    __syncwarp();
  }

  // A tile of codes is copied in kParts groups of copies, so that the first are expanded while the
  // last arrive.
  static constexpr int kPasses = kRows / 8;
  static constexpr int kCodeParts = kPasses % 8 == 0 ? 4 : kPasses % 4 == 0 ? 2 : 1;

  // Starts the copies of the tile from block `first` on, which was kept. Blocks from `end` on
  // become zeros.
  template <int kDim, int kParts> NSAI_DEVICE void copy(u32 to_shared, int first) const {
    const int chunk = thread() % 8, row = thread() % 64 / 8;
    to_shared += panel_offset(row, chunk);
    first += Order::block(row);
// Producers have few registers.
#pragma unroll(kDim % kPanelColumns || kParts > 1 && kPasses / kParts % 2 ? 1 : 2)
    for (int pass = 0; pass < kPasses; ++pass, first += Order::kStep) {
      const uint2 at = load_shared_pair(addresses + (pass * 4 + thread() % 32 / 8) * 8);
      const u16 *from = (const u16 *)((u64)at.y << 32 | at.x) + chunk * 8;
#pragma unroll
      for (int i = 0; i < panels(kDim); ++i)
        copy_async_16(to_shared + (i * kRows + pass * 8) * kPanelPitch, from + i * kPanelColumns,
                      first < end && i * kPanelColumns + chunk * 8 < kDim);
      if (kParts > 1 && (pass + 1) % (kPasses / kParts) == 0) copy_async_commit();
    }
    if (kParts == 1) copy_async_commit();
  }

  // Expands the codes of kDim columns that this warp has copied in kCodeParts parts, as they arrive.
  template <class Element, int kDim, int kPart = 0> NSAI_DEVICE void expand(u32 tile) const {
    constexpr int kGroups = kPasses / kCodeParts;
    const int half = (u32)recomputed(threadIdx.x) % 64 / 32 * 4;
    copy_async_wait<kCodeParts - 1 - kPart>();
    __syncwarp(); // all lanes' codes have arrived
    expand_code_groups<Element, kDim, 4, 8, PanelTile<kRows, kDim>>(tile,
                                                                    kPart * kGroups * 8 + half,
                                                                    kGroups);
    if constexpr (kPart + 1 < kCodeParts) expand<Element, kDim, kPart + 1>(tile);
  }
};
