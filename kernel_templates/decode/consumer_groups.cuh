// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The layout of decode/mainloop.cuh: tile types, shared memory, and the barriers of consumer
// groups.
//
// The tiles of a stage hold elements or, with kCoded, codes (core/code_fragments.cuh), which are
// copied as words of two.
#pragma once
#include "core/barrier.cuh"
#include "core/panel_tile.cuh"
#include "core/tile.cuh"
#include "core/wgmma.cuh"
#include "decode/work.cuh"

// Whether Q lies in shared memory. In registers, Q and O may take at most 144 per thread: D 192
// needs 48 + 96. (Dk 256 with Dv 192, 64 + 96, spills. NVRTC 13.0.)
template <class C>
constexpr bool kSharedQ = padded_dim(C::kHeadDimV) / 2 + padded_dim(C::kHeadDimQk) / 4 > 144;

// Config::Element, or the element of products with codes.
template <class C, bool kCoded> struct ProductElement { using Tag = typename C::Element; };
template <class C> struct ProductElement<C, true> { using Tag = Fp16; };

template <class C, int kRowTilesOf, bool kHoldsCodes = false> struct KeyStream {
  static constexpr int kRowTiles = kRowTilesOf;
  static constexpr bool kCoded = kHoldsCodes;
  using Product = typename ProductElement<C, kCoded>::Tag;
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kConsumerGroups = C::kWarps / kRowTiles;
  static constexpr int kConsumerGroupThreads = 32 * kRowTiles;
  // For drafts, a consumer group of four or more warps takes two steps at once, so that it waits
  // half as often. Q lies in shared memory, so that a third CTA or a fourth group fits an SM.
  static constexpr bool kDrafts = kRowTiles >= 4 && !kWideHeads<C>;
  static constexpr bool kPanels =
      kDrafts && kRowTiles % 4 == 0 && C::kWgmma; // a group is one or more warpgroups
  static constexpr int kAtOnce = kDrafts ? 2 : 1; // steps per stage
  static constexpr int kStageKeys = kAtOnce * kStepKeys;
  static constexpr int kWordsK = nsai_row_words(kCoded, C::kHeadDimQk),
                       kWordsV = nsai_row_words(kCoded, C::kHeadDimV);
  using K = ProductTile<kPanels, kStageKeys, padded_dim(kWordsK)>;
  using V = ProductTile<kPanels, kStageKeys, padded_dim(kWordsV)>;
  using Q = ProductTile<kPanels, kRows, padded_dim(C::kHeadDimQk)>;
  static constexpr bool kQShared = kSharedQ<C> || kDrafts;
  static constexpr int kQBytes = kQShared ? Q::kBytes : 0;
  static constexpr int kStageBytes = K::kBytes + V::kBytes;
  static constexpr int kO = padded_dim(C::kHeadDimV) / 8;       // n8 tiles of O
  static constexpr int kSteps = padded_dim(C::kHeadDimQk) / 16; // k16 steps of Q K^T
  static constexpr int kPitch = padded_dim(C::kHeadDimV) + 8;   // floats; other banks
  static_assert(kConsumerGroups >= 1 && kConsumerGroups * kRowTiles == C::kWarps,
                "consumer groups are complete");
  static_assert(C::kStages >= 2, "one stage is filled while another is computed");
  static_assert(!kCoded || !kPanels, "wgmma reads elements from shared memory");
  static_assert(!kCoded || (C::kHeadDimQk % 16 == 0 && C::kHeadDimV % 16 == 0),
                "a chunk of 16 bytes holds 16 codes");

  struct Results {
    float o[kConsumerGroups][kRows][kPitch];
    float2 stats[kConsumerGroups][kRows]; // reference and sum
  };
  struct Shared {
    union { // Q and the pipeline are no longer needed when O is written
      unsigned char keys[kQBytes + kConsumerGroups * C::kStages * kStageBytes]; // Q | pipeline
      Results results;
    };
  };

  // This warp's role.
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

// Synchronises the warps of a consumer group. (racecheck reports hazards on pipelines that these
// barriers separate, and on sums that even __syncthreads() separates, if groups have different
// numbers of stages, as if it counted a warp's barriers regardless of which ones they are. It
// reports nothing if the groups have equally many, or if all warps meet at one barrier instead.)
template <int kConsumerGroups, int kThreads, int kConsumerGroup = 0>
NSAI_DEVICE void sync_consumer_group(int consumer_group) {
  if constexpr (kThreads == 32) {
    __syncwarp();
  } else if constexpr (kConsumerGroups == 1) {
    __syncthreads();
  } else if (consumer_group == kConsumerGroup) {
    sync_some<kConsumerGroup + 1, kThreads>();
  } else if constexpr (kConsumerGroup + 1 < kConsumerGroups) {
    sync_consumer_group<kConsumerGroups, kThreads, kConsumerGroup + 1>(consumer_group);
  }
}
