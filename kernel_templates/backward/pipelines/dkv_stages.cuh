// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Shared memory of backward/pipelines/dkv.cuh (nsai_smem_dkv_tma() of params/smem.h), its barriers,
// and the order of the stages.
#pragma once
#include "backward/pipelines/dkv_tiles.cuh"
#include "backward/products.cuh"
#include "core/barrier.cuh"
#include "core/pipeline.cuh"
#include "data/tile_position.cuh"

template <class Config> struct DkvPipeline {
  static constexpr int kRows = Config::kRows, kStages = Config::kStages;
  static constexpr int kTiles = Config::kKeys / 64;      // tiles of 64 keys
  static constexpr int kTokens = kRows / Config::kGroup; // per stage
  static constexpr int kN = kRows / 8;                   // n8 tiles of S^T
  static constexpr int kColsQk = padded_dim(Config::kHeadDimQk),
                       kColsV = padded_dim(Config::kHeadDimV);
  using K = PanelTile<Config::kKeys, kColsQk>;
  using V = PanelTile<Config::kKeys, kColsV>;
  using Q = PanelTile<kRows, kColsQk>;
  using DO = PanelTile<kRows, kColsV>;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240; // of 3 * 168

  // Shared memory layout: offsets in bytes.
  static constexpr int kSK = 0, kSV = kSK + K::kBytes, kSStage = kSV + V::kBytes;
  static constexpr int kStageBytes = Q::kBytes + DO::kBytes; // Q, then dO
  static constexpr int kSKnown = kSStage + kStages * kStageBytes;
  // Layout of a stage's row data: float2 (LSE, u) of each row (with kJoins, for each tile of keys);
  // the row's gate; the keys that it sees; u32 [kTiles]: flags over all rows (kSomeSeen,
  // kPartlySeen).
  static constexpr int kKnownWarps = Config::kJoins ? kTiles : 1;
  static constexpr int kGates = 8 * kRows * kKnownWarps, kSeen = kGates + 4 * kRows,
                       kAll = kSeen + 4 * kRows;
  static constexpr int kKnownBytes = kAll + 16;
  static constexpr int kBarriers = kSKnown + kStages * kKnownBytes;
  static constexpr int kKeysFull = kBarriers + Barriers<kStages>::kBytes; // K and V have arrived
  static constexpr int kSListed = kKeysFull + 8; // u8 [kKnownWarps][kTokens], with kJoins
  static constexpr int kBytes = kSListed + (Config::kJoins ? kKnownWarps * kTokens : 0);

  static_assert(kBytes == Config::kSharedBytes, "the host computes another size of shared memory");
  static_assert(kRows == 64 || kRows == 32, "a lane writes what is known of one or two rows");
  static_assert(kTiles == 1 || kTiles == 2, "two warpgroups of 64 keys, shared or not");
  static_assert(Config::kThreads == 384, "two consumer warpgroups and one producer warpgroup");
  static_assert(kTokens * Config::kGroup == kRows, "a stage holds whole tokens");
  static_assert(!Config::kEntries || kTokens <= 16, "each token of a list has its own lane");
  static_assert(!Config::kJoins ||
                    (kTiles == 2 && Config::kSelectBlock % 64 == 0 && kGateInLse<Config>),
                "a key tile lies within one block, and gates are never negative");
  static_assert(kStages >= 3, "each warpgroup may hold a stage while a third is filled");
};

// Bits of kAll: some row sees some key of the tile; not every row sees every key.
constexpr u32 kSomeSeen = 1, kPartlySeen = 2;

template <class Config> NSAI_DEVICE void init_dkv_pipeline(u32 base) {
  using R = DkvPipeline<Config>;
  Barriers<R::kStages>{ base + R::kBarriers }.init(32 + 32 * R::kKnownWarps, 128 * R::kTiles);
  barrier_init(base + R::kKeysFull, 1);
  barrier_init_fence();
}

// Calls take(first token) for the stages of a tile's rows in their order.
template <class Config, class Take> NSAI_DEVICE void for_stages(const KeyTile &tile, Take take) {
  constexpr int kTokens = DkvPipeline<Config>::kTokens;
  const int stages = ceil_div(tile.tokens, kTokens);
  int stage = tile.rotation / kTokens;
#pragma unroll 1
  for (int i = 0; i < stages; ++i) {
    take(stage * kTokens);
    if (++stage == stages) stage = 0;
  }
}
