// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The steps of one warp of decode_cluster: 16 keys each, through a ring of kStages stages of its own, all
// of them on their way while it waits. First come those of the scan, then raw keys: copies of the second
// begin while the first are computed. Lanes 0 to 15 know where a step's rows of K lie, lanes 16 to 31
// those of V; all copies are one short piece of code, since what runs once is bound by instructions that
// have to be fetched.
//
// Config: those of common/key_stream.cuh and decode_late.cuh, kPageSize (P; 0: none), kRing (the window's
// pair lies in rings).
#pragma once
#include "common/cached.cuh"
#include "common/decode_late.cuh"
#include "common/key_stream.cuh"

// ---- where rows lie

// The lane's side, K or V, of a pair of the cache.
struct RingSide {
  const u16 *from; // row 0 of the KV head
  long long page_stride, row_stride;
};

NSAI_DEVICE RingSide ring_side(const NsaiCachePair &pair, int group, int lane) {
  const bool v = lane >= 16;
  const u16 *data = (const u16 *)(v ? pair.v.data : pair.k.data);
  return RingSide{ data + group * (v ? pair.v.head_stride : pair.k.head_stride),
                   v ? pair.v.page_stride : pair.k.page_stride,
                   v ? pair.v.row_stride : pair.k.row_stride };
}

// Of compressed entries, in pages of P / d, or without pages.
template <class C> struct EntryRows {
  RingSide side;
  CachedRows<C::kPageSize / C::kStride> rows;
  NSAI_DEVICE const u16 *at(int i) const {
    const int index = entry_index<C::kBlock, C::kStride>(i);
    return side.from + rows.page(index) * side.page_stride + rows.slot(index) * side.row_stride;
  }
};

// Of raw keys, in pages, in rows, or in rings beside pages.
template <class C> struct LateRows {
  RingSide side;
  CachedRows<C::kPageSize> rows;
  CachedRows<0> ring;
  bool in_ring;
  NSAI_DEVICE const u16 *at(int index) const {
    if constexpr (C::kRing > 0)
      if (in_ring)
        return side.from + ring.page(index) * side.page_stride + ring.slot(index) * side.row_stride;
    return side.from + rows.page(index) * side.page_stride + rows.slot(index) * side.row_stride;
  }
};

// ---- which steps

// A warp's steps: `scanned` of the scan from `begin` on, then raw ones from `first` on, 2^log2_slots
// apart.
template <class C> struct RingSteps {
  EntryRows<C> entries;
  int visible; // compressed keys
  int begin, scanned;
  LateRows<C> late_rows;
  LateKeys<C> late;
  int first, log2_slots;
  int all;

  NSAI_DEVICE int step(int i) const {
    return i < scanned ? begin + i : first + ((i - scanned) << log2_slots);
  }
  // The lane's row of step i; nullptr: there is none.
  NSAI_DEVICE const u16 *row(int i, int lane) const {
    const int key = step(i) * kStepKeys + lane % kStepKeys;
    if (i < scanned) return key < visible ? entries.at(key) : nullptr;
    return i < all && key < late.limit ? late_rows.at(late.index(key)) : nullptr;
  }
};

// K or V of a step into tile T; `rows`: the lanes' from `lane_of_row_0` on.
template <class T, int kDim>
NSAI_DEVICE void copy_rows(u32 tile, const u16 *rows, int lane_of_row_0, int lane) {
  using Lanes = CopyLanes<T, 32>;
#pragma unroll
  for (int i = 0; i < ceil_div(kStepKeys, Lanes::kPass); ++i) {
    const int row = Lanes::row(lane) + i * Lanes::kPass;
    const u16 *from = (const u16 *)__shfl_sync(~0u, (u64)rows, lane_of_row_0 + row % kStepKeys);
    if (kStepKeys % Lanes::kPass == 0 || row < kStepKeys)
      copy_row<T, kDim, 32>(tile, row, Lanes::chunk(lane), from + Lanes::chunk(lane) * 8,
                            from != nullptr);
  }
}

// The warp's steps [begin, end) onto o and rows, and the copies of those up to kStages behind. begin =
// -kStages: the ring is empty, and is filled first.
template <class C, class Keys, int kO>
NSAI_DEVICE void run_steps(const RingSteps<C> &steps, Keys &keys, int begin, int end, u32 ring,
                           const Queries<KeyStream<C, 1>> &queries, float (&o)[kO][4],
                           SoftmaxRows &rows, float scale_log2, int lane) {
  using S = KeyStream<C, 1>;
  begin = recomputed(begin); // else the first turns get code of their own
  const u16 *row = steps.row(begin + C::kStages, lane);
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    // Two ahead: lists of pages come from far away.
    const u16 *next = steps.row(i + C::kStages + 1, lane);
    const u32 stage = ring + (i + C::kStages) % C::kStages * S::kStageBytes;
    if (i >= 0) {
      copy_async_wait<C::kStages - 1>();
      __syncwarp(); // every lane's part of the step has come
      float s[2][4]; // [16, 16 keys]
      multiply_step_qk<C>(s[0], s[1], queries, stage, lane);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        mask_row(s, r, KeyRange{ 0, keys.end(r) }, steps.step(i) * kStepKeys);
      softmax_step(rows, s, o, scale_log2);
      keys.pool(s, rows);
      multiply_step_pv<C, typename S::V>(o, s, stage + S::K::kBytes, lane);
      __syncwarp(); // the stage is read
    }
    if (i + C::kStages < steps.all) {
      copy_rows<typename S::K, C::kHeadDimQk>(stage, row, 0, lane);
      copy_rows<typename S::V, C::kHeadDimV>(stage + S::K::kBytes, row, 16, lane);
    }
    copy_async_commit();
    row = next;
  }
}
