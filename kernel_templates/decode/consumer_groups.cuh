// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The division of decode/mainloop.cuh: the tiles of a CTA, its shared memory, and who waits for whom.
#pragma once
#include "core/panel_tile.cuh"
#include "core/tile.cuh"
#include "core/wgmma.cuh"
#include "decode/work.cuh"

// Whether Q lies in shared memory: with O it would take a thread more registers than at D 192, 48 and 96.
// (Dk 256 and Dv 192, 64 and 96, spill. NVRTC 13.0.)
template <class C>
constexpr bool kSharedQ = padded_dim(C::kHeadDimV) / 2 + padded_dim(C::kHeadDimQk) / 4 > 144;

template <class C, int kRowTiles> struct KeyStream {
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kConsumerGroups = C::kWarps / kRowTiles;
  static constexpr int kConsumerGroupThreads = 32 * kRowTiles;
  // Drafts: a team of four warps or more takes two steps at once, so that it waits half as often; and Q lies
  // in shared memory, so that a third CTA or a fourth team fits a multiprocessor.
  static constexpr bool kDrafts = kRowTiles >= 4 && !kWideHeads<C>;
  static constexpr bool kPanels =
      kDrafts && kRowTiles % 4 == 0 && C::kWgmma; // a team is warpgroups
  static constexpr int kAtOnce = kDrafts ? 2 : 1; // steps of a stage
  static constexpr int kStageKeys = kAtOnce * kStepKeys;
  using K = ProductTile<kPanels, kStageKeys, padded_dim(C::kHeadDimQk)>;
  using V = ProductTile<kPanels, kStageKeys, padded_dim(C::kHeadDimV)>;
  using Q = ProductTile<kPanels, kRows, padded_dim(C::kHeadDimQk)>;
  static constexpr bool kQShared = kSharedQ<C> || kDrafts;
  static constexpr int kQBytes = kQShared ? Q::kBytes : 0;
  static constexpr int kStageBytes = K::kBytes + V::kBytes;
  static constexpr int kO = padded_dim(C::kHeadDimV) / 8;       // n8 tiles of O
  static constexpr int kSteps = padded_dim(C::kHeadDimQk) / 16; // k16 steps of Q K^T
  static constexpr int kPitch = padded_dim(C::kHeadDimV) + 8;   // floats: rows on different banks
  static_assert(kConsumerGroups >= 1 && kConsumerGroups * kRowTiles == C::kWarps, "whole teams");
  static_assert(C::kStages >= 2, "a step arrives while another is computed");

  struct Shared {
    union { // Q and the ring are done with when O is written
      unsigned char keys[kQBytes + kConsumerGroups * C::kStages * kStageBytes]; // Q, and the ring
      struct {
        float o[kConsumerGroups][kRows][kPitch];
        float2 stats[kConsumerGroups][kRows]; // reference and sum
      };
    };
  };

  // A warp's place.
  int lane, consumer_group, row_tile;
  NSAI_DEVICE KeyStream() {
    lane = threadIdx.x % 32;
    consumer_group = kConsumerGroups == 1 ? 0
                     : kPanels            ? warp_uniform(threadIdx.x / kConsumerGroupThreads)
                                          : threadIdx.x / kConsumerGroupThreads;
    row_tile = threadIdx.x / 32 % kRowTiles;
    if (kPanels && kRowTiles > 4) row_tile = warp_uniform(row_tile);
  }
};

// The warps of a team. (racecheck reports rings that barriers keep apart, and sums that even __syncthreads()
// does, where teams have different numbers of stages, as if it counted a warp's barriers, whichever they are:
// it reports nothing where they have as many, or where all warps meet in the place of a team's.)
template <int kConsumerGroups, int kThreads, int kConsumerGroup = 0>
NSAI_DEVICE void sync_consumer_group(int consumer_group) {
  if constexpr (kThreads == 32) {
    __syncwarp();
  } else if constexpr (kConsumerGroups == 1) {
    __syncthreads();
  } else if (consumer_group == kConsumerGroup) {
    asm volatile("bar.sync %0, %1;" ::"n"(kConsumerGroup + 1), "n"(kThreads) : "memory");
  } else if constexpr (kConsumerGroup + 1 < kConsumerGroups) {
    sync_consumer_group<kConsumerGroups, kThreads, kConsumerGroup + 1>(consumer_group);
  }
}
