// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// How keys come to the turns of decode_cluster: by warps of their own, through a ring of kStages stages, each
// with the keys of all attending warps of a turn. Addresses and copies of a turn are as many instructions as
// its attention.
//
// Config: those of decode/cluster/schedule.cuh and decode/mainloop.cuh.
#pragma once
#include "core/barrier.cuh"
#include "decode/cluster/schedule.cuh"
#include "core/copy.cuh"
#include "decode/mainloop.cuh"
#include "core/tile.cuh"

// The block's first kWarps warps attend; those behind copy, search, and tell other blocks of it.
template <class C> constexpr int kReaders = 32 * C::kWarps;
template <class C> constexpr int kCopyWarps = C::kThreads / 32 - C::kWarps;
template <class C> constexpr int kCopiers = 32 * kCopyWarps<C>;
static_assert(2 * kCopyWarps<Config> == Config::kWarps && kCopyWarps<Config> % 2 == 0, "halves of a turn");

template <class C> NSAI_DEVICE void sync_readers() { sync_some<1, kReaders<C>>(); }
template <class C> NSAI_DEVICE void sync_copiers() { sync_some<2, kCopiers<C>>(); }

// A block's barriers of its turns, from an address in shared memory on: of each stage, that a turn's keys are
// there, its values, and that the stage is read.
template <class C> struct RingBarriers {
  static constexpr int kCount = 3 * C::kStages;
  u32 base;
  NSAI_DEVICE u32 keys(int stage) const { return base + 8 * stage; }
  NSAI_DEVICE u32 values(int stage) const { return base + 8 * (C::kStages + stage); }
  NSAI_DEVICE u32 read(int stage) const { return base + 8 * (2 * C::kStages + stage); }
  static constexpr NSAI_DEVICE int arrivals(int i) { return i < 2 * C::kStages ? kCopiers<C> : kReaders<C>; }
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

// A copying warp's part of turn i, once its stage is free.
template <class C>
NSAI_DEVICE void copy_turn(const RingTurns<C> &turns, const RingRows<C> &rows,
                           const RingBarriers<C> &barriers, int i, u32 stages, int copier, int lane) {
  using S = KeyStream<C, 1>;
  constexpr int kEach = C::kWarps / kCopyWarps<C>, kHalf = kCopyWarps<C> / 2;
  const RingTurn turn = find_turn<C>(turns, i);
  const bool halves = turn.warps <= kHalf, behind = halves && copier >= kHalf; // then these copy V alone
  const int first = behind ? copier - kHalf : copier, at = i % C::kStages;
  const u32 stage = stages + at * C::kWarps * S::kStageBytes;
  const u16 *row[kEach];
  rows.template find<kEach, kCopyWarps<C>>(row, turns, turn, first, lane);
  if (i >= C::kStages) {
    const u32 parity = i / C::kStages - 1 & 1;
    barrier_wait(barriers.read(at), parity);
    // Long over; synccheck asks that who arrives has waited for the phase before.
    barrier_wait(barriers.keys(at), parity);
    barrier_wait(barriers.values(at), parity);
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int owner = first + j * kCopyWarps<C>;
    if (!behind && owner < turn.warps)
      copy_rows<typename S::K, C::kHeadDimQk>(stage + owner * S::kStageBytes, row[j], 0, lane);
  }
  barrier_arrive_after_copies(barriers.keys(at));
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int owner = first + j * kCopyWarps<C>;
    if ((!halves || behind) && owner < turn.warps)
      copy_rows<typename S::V, C::kHeadDimV>(stage + owner * S::kStageBytes + S::K::kBytes, row[j], 16, lane);
  }
  barrier_arrive_after_copies(barriers.values(at));
}
