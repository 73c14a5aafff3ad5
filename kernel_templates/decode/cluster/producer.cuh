// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The producer side of decode_cluster: separate warps copy the keys through a pipeline of kStages
// stages. A stage holds one step's keys of all consumer warps. Address computation and copies of a
// step take as many instructions as its attention.
//
// Config: those of decode/cluster/schedule.cuh and decode/mainloop.cuh, kRawCodes and kEntryCodes (codes
// in both, in none, or in raw K and V: then the stages hold elements, and consumers expand the codes).
#pragma once
#include "core/barrier.cuh"
#include "core/copy.cuh"
#include "core/tile.cuh"
#include "decode/cluster/schedule.cuh"
#include "decode/mainloop.cuh"

template <class C> using ClusterStream = KeyStream<C, 1, (bool)C::kEntryCodes>;

// The first kWarps warps of a CTA are consumers. The producer warps behind them copy keys, search,
// and communicate with other CTAs.
template <class C> constexpr int kConsumerThreads = 32 * C::kWarps;
template <class C> constexpr int kProducerWarps = C::kThreads / 32 - C::kWarps;
template <class C> constexpr int kProducerThreads = 32 * kProducerWarps<C>;
static_assert(2 * kProducerWarps<Config> == Config::kWarps && kProducerWarps<Config> % 2 == 0,
              "producer warps are half the consumers and can be halved again");

template <class C> NSAI_DEVICE void sync_consumers() { sync_some<1, kConsumerThreads<C>>(); }
template <class C> NSAI_DEVICE void sync_producers() { sync_some<2, kProducerThreads<C>>(); }

// The barriers of the pipeline, from an address in shared memory on. Per stage: the step's keys
// have arrived, its values have arrived, and all consumers have read the stage.
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

// Starts the copy of K or V of one step into tile T. `rows`: each lane's row, of so many words; lane
// `lane_of_row_0` holds row 0.
template <class T>
NSAI_DEVICE void copy_rows(u32 tile, const u16 *rows, int words, int lane_of_row_0, int lane) {
  using Lanes = CopyLanes<T, 32>;
#pragma unroll
  for (int i = 0; i < ceil_div(kStepKeys, Lanes::kPass); ++i) {
    const int row = Lanes::row(lane) + i * Lanes::kPass;
    const u16 *from = (const u16 *)__shfl_sync(~0u, (u64)rows, lane_of_row_0 + row % kStepKeys);
    if (kStepKeys % Lanes::kPass == 0 || row < kStepKeys)
      copy_row<T, 32>(tile, row, Lanes::chunk(lane), from + Lanes::chunk(lane) * 8, from != nullptr,
                      words);
  }
}

// Copies a producer warp's share of step i, after its stage has become free.
template <class C>
NSAI_DEVICE void copy_cta_step(const StepSchedule<C> &schedule, const ScheduledRows<C> &rows,
                               const StageBarriers<C> &barriers, int i, u32 stages,
                               int producer_warp, int lane) {
  using S = ClusterStream<C>;
  constexpr int kEach = C::kWarps / kProducerWarps<C>, kHalf = kProducerWarps<C> / 2;
  const CtaStep cta_step = find_cta_step<C>(schedule, i);
  // In a small step half of the warps copy K, and those behind copy V.
  const bool halves = cta_step.warps <= kHalf, behind = halves && producer_warp >= kHalf;
  const int first = behind ? producer_warp - kHalf : producer_warp, at = i % C::kStages;
  const u32 stage = stages + at * C::kWarps * S::kStageBytes;
  const int codes = kRawCodesAlone<C> && i >= schedule.scanned ? 2 : 1; // of a word
  const u16 *row[kEach];
  rows.template find<kEach, kProducerWarps<C>>(row, schedule, cta_step, first, lane);
  if (i >= C::kStages) {
    const u32 phase = i / C::kStages - 1 & 1;
    barrier_wait(barriers.read(at), phase);
    // These phases have completed long ago; synccheck demands that a thread waits for a phase
    // before it arrives for the next.
    barrier_wait(barriers.keys(at), phase);
    barrier_wait(barriers.values(at), phase);
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int owner = first + j * kProducerWarps<C>;
    if (!behind && owner < cta_step.warps)
      copy_rows<typename S::K>(stage + owner * S::kStageBytes, row[j], S::kWordsK / codes, 0, lane);
  }
  barrier_arrive_after_copies(barriers.keys(at));
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int owner = first + j * kProducerWarps<C>;
    if ((!halves || behind) && owner < cta_step.warps)
      copy_rows<typename S::V>(stage + owner * S::kStageBytes + S::K::kBytes, row[j],
                               S::kWordsV / codes, 16, lane);
  }
  barrier_arrive_after_copies(barriers.values(at));
}
