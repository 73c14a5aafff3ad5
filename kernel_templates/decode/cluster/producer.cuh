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
#include "core/copy.cuh"
#include "core/tile.cuh"
#include "decode/cluster/schedule.cuh"
#include "decode/mainloop.cuh"

// The block's first kWarps warps attend; those behind copy, search, and tell other blocks of it.
template <class C> constexpr int kConsumerThreads = 32 * C::kWarps;
template <class C> constexpr int kProducerWarps = C::kThreads / 32 - C::kWarps;
template <class C> constexpr int kProducerThreads = 32 * kProducerWarps<C>;
static_assert(2 * kProducerWarps<Config> == Config::kWarps && kProducerWarps<Config> % 2 == 0,
              "halves of a turn");

template <class C> NSAI_DEVICE void sync_consumers() { sync_some<1, kConsumerThreads<C>>(); }
template <class C> NSAI_DEVICE void sync_producers() { sync_some<2, kProducerThreads<C>>(); }

// A block's barriers of its turns, from an address in shared memory on: of each stage, that a turn's keys are
// there, its values, and that the stage is read.
template <class C> struct StageBarriers {
  static constexpr int kCount = 3 * C::kStages;
  u32 base;
  NSAI_DEVICE u32 keys(int stage) const { return base + 8 * stage; }
  NSAI_DEVICE u32 values(int stage) const { return base + 8 * (C::kStages + stage); }
  NSAI_DEVICE u32 read(int stage) const { return base + 8 * (2 * C::kStages + stage); }
  static constexpr NSAI_DEVICE int arrivals(int i) {
    return i < 2 * C::kStages ? kProducerThreads<C> : kConsumerThreads<C>;
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

// A copying warp's part of turn i, once its stage is free.
template <class C>
NSAI_DEVICE void copy_cta_step(const StepSchedule<C> &schedule, const ScheduledRows<C> &rows,
                               const StageBarriers<C> &barriers, int i, u32 stages,
                               int producer_warp, int lane) {
  using S = KeyStream<C, 1>;
  constexpr int kEach = C::kWarps / kProducerWarps<C>, kHalf = kProducerWarps<C> / 2;
  const CtaStep cta_step = find_cta_step<C>(schedule, i);
  const bool halves = cta_step.warps <= kHalf,
             behind = halves && producer_warp >= kHalf; // then these copy V alone
  const int first = behind ? producer_warp - kHalf : producer_warp, at = i % C::kStages;
  const u32 stage = stages + at * C::kWarps * S::kStageBytes;
  const u16 *row[kEach];
  rows.template find<kEach, kProducerWarps<C>>(row, schedule, cta_step, first, lane);
  if (i >= C::kStages) {
    const u32 phase = i / C::kStages - 1 & 1;
    barrier_wait(barriers.read(at), phase);
    // Long over; synccheck asks that who arrives has waited for the phase before.
    barrier_wait(barriers.keys(at), phase);
    barrier_wait(barriers.values(at), phase);
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int owner = first + j * kProducerWarps<C>;
    if (!behind && owner < cta_step.warps)
      copy_rows<typename S::K, C::kHeadDimQk>(stage + owner * S::kStageBytes, row[j], 0, lane);
  }
  barrier_arrive_after_copies(barriers.keys(at));
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int owner = first + j * kProducerWarps<C>;
    if ((!halves || behind) && owner < cta_step.warps)
      copy_rows<typename S::V, C::kHeadDimV>(stage + owner * S::kStageBytes + S::K::kBytes, row[j],
                                             16, lane);
  }
  barrier_arrive_after_copies(barriers.values(at));
}
