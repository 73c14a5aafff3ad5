// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Shared memory of backward/pipelines/dkv_items.cuh (nsai_smem_dkv_items() of params/smem.h), its
// barriers, and the tiles that a CTA hands from warp to warp.
#pragma once
#include "backward/pipelines/dkv_stages.cuh"

// The Config of the pipeline that this one extends: the same but for the shared memory.
template <class Config> struct DkvTile : Config {
  static constexpr int kSharedBytes =
      nsai_smem_dkv_tma(Config::kKeys, Config::kRows, Config::kStages, Config::kJoins,
                        Config::kRows / Config::kGroup, Config::kHeadDimQk, Config::kHeadDimV);
};

// A tile as warp 11 hands it out.
template <class Rows> struct DkvItem {
  Rows rows;
  KeyTile tile;
  int exists; // 0: the CTA has had its last one
};

template <class Config> struct DkvItems : DkvPipeline<DkvTile<Config>> {
  using TilePipeline = DkvPipeline<DkvTile<Config>>;
  static constexpr int kAskAhead = Config::kStages;                       // stages
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232; // of 3 * 168
  static constexpr int kSSums = nsai_smem_aligned(DkvTile<Config>::kSharedBytes, 16);
  static constexpr int kSumBytes =
      64 * (TilePipeline::kColsQk + TilePipeline::kColsV) * 4; // of a warpgroup
  static constexpr int kItem = kSSums + (TilePipeline::kTiles == 1 ? kSumBytes / 2 : 0); // [2]
  static constexpr int kItemBarriers = kItem + 2 * NSAI_DKV_ITEM_BYTES;
  static constexpr int kKeysEmpty = kItemBarriers + Barriers<2>::kBytes, kAsked = kKeysEmpty + 8;
  static constexpr int kBytes = kAsked + 8;
  static constexpr int kReaders = 256 + 32 + 32 * TilePipeline::kKnownWarps; // of a tile

  static_assert(kBytes == Config::kSharedBytes, "the host computes another size of shared memory");
  static_assert(TilePipeline::kTiles == 2 || TilePipeline::kStages % 2 == 0,
                "each stage of a tile has the same reader in every round");
};

// Where tile `number` of the CTA lies, and its barriers. All is found of the number where it is used,
// because producers have few registers.
template <class Config, class Rows> struct DkvPlace {
  using R = DkvItems<Config>;
  static_assert(sizeof(DkvItem<Rows>) <= NSAI_DKV_ITEM_BYTES, "a place holds a tile");
  unsigned char *shared;
  u32 base;
  u32 number = 0;

  NSAI_DEVICE PipelineState<2> at() const {
    const u32 n = recomputed(number);
    return { (int)(n & 1), n >> 1 & 1 };
  }
  NSAI_DEVICE u32 phase() const { return number & 1; } // of what completes once for each tile
  NSAI_DEVICE Barriers<2> barriers() const { return { base + R::kItemBarriers }; }
  NSAI_DEVICE DkvItem<Rows> &item() const {
    return *(DkvItem<Rows> *)(shared + R::kItem + (number & 1) * NSAI_DKV_ITEM_BYTES);
  }
  // Of readers: waits for the tile.
  NSAI_DEVICE const DkvItem<Rows> &wait() const {
    barriers().consumer_wait(at().stage, at().phase);
    return item();
  }
  // Of readers: behind the last read of the tile.
  NSAI_DEVICE void release() {
    barriers().consumer_release(at().stage);
    ++number;
  }
};
