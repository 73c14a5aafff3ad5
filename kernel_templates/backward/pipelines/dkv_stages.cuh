// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Shared memory of backward/pipelines/dkv.cuh, its barriers, and the order in which stages come.
//
// Shared   K [kKeys, Dk] | V [kKeys, Dv] | kStages * (Q [64, Dk] | dO [64, Dv]) |
//          kStages * (LSE, u (and gates) of pairs of rows | u32 [64]: which keys the row sees | u32:
//          what all rows see)
#pragma once
#include "backward/pipelines/dkv_tiles.cuh"
#include "backward/products.cuh"
#include "core/barrier.cuh"
#include "data/tile_position.cuh"

template <class Config> struct DkvPipeline {
  static constexpr int kRows = 64, kStages = Config::kStages;
  static constexpr int kTiles = Config::kKeys / 64;      // of 64 keys
  static constexpr int kTokens = kRows / Config::kGroup; // of a stage
  static constexpr int kN = kRows / 8;                   // n8 tiles of S^T
  static constexpr int kColsQk = padded_dim(Config::kHeadDimQk),
                       kColsV = padded_dim(Config::kHeadDimV);
  using K = PanelTile<Config::kKeys, kColsQk>;
  using V = PanelTile<Config::kKeys, kColsV>;
  using Q = PanelTile<kRows, kColsQk>;
  using DO = PanelTile<kRows, kColsV>;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240; // of 3 * 168

  // Shared memory, offsets in bytes.
  static constexpr int kSK = 0, kSV = kSK + K::kBytes, kSStage = kSV + V::kBytes;
  static constexpr int kStageBytes = Q::kBytes + DO::kBytes; // Q, then dO
  static constexpr int kSKnown = kSStage + kStages * kStageBytes;
  // Within what is known of a stage: float2 (LSE, u) of each row, with kJoins for each tile of keys; its
  // gate, which keys it sees; u32 [kTiles]: what all rows see.
  static constexpr int kKnownWarps = Config::kJoins ? kTiles : 1;
  static constexpr int kGates = 8 * kRows * kKnownWarps, kSeen = kGates + 4 * kRows,
                       kAll = kSeen + 4 * kRows;
  static constexpr int kKnownBytes = kAll + 16;
  static constexpr int kFull = kSKnown + kStages * kKnownBytes; // barrier: can be read
  static constexpr int kEmpty = kFull + 8 * kStages;            // barrier: can be filled
  static constexpr int kKeysFull = kEmpty + 8 * kStages;        // barrier: K and V are there
  static constexpr int kSListed = kKeysFull + 8;                // u8 [kKnownWarps][kTokens]: kJoins
  static constexpr int kBytes = kSListed + (Config::kJoins ? kKnownWarps * kTokens : 0);
  static constexpr int kSumBytes = 64 * (kColsQk + kColsV) * 4; // of a warpgroup

  static_assert(kBytes == Config::kSharedBytes, "the host's formula for shared memory");
  static_assert(kTiles == 1 || kTiles == 2, "two warpgroups");
  static_assert(Config::kThreads == 384, "two warpgroups of consumers and the producers'");
  static_assert(kTokens * Config::kGroup == kRows, "a stage holds whole tokens");
  static_assert(!Config::kEntries || kTokens <= 16, "a lane for each token of a list");
  static_assert(kTiles == 2 || kStages * kStageBytes >= kSumBytes, "the stages hold the sums");
  static_assert(!Config::kJoins ||
                    (kTiles == 2 && Config::kSelectBlock % 64 == 0 && kGateInLse<Config>),
                "a tile of keys lies in one block, and gates are never negative");
  static_assert(kStages >= 3, "each warpgroup may hold one while another is filled");
};

// Words of kAll: some row sees a key of the tile; not every row sees all of them.
constexpr u32 kSomeSeen = 1, kPartlySeen = 2;

template <class Config> NSAI_DEVICE void init_dkv_pipeline(u32 base) {
  using R = DkvPipeline<Config>;
  for (int s = 0; s < R::kStages; ++s) {
    barrier_init(base + R::kFull + 8 * s, 32 + 32 * R::kKnownWarps); // all producer warps
    barrier_init(base + R::kEmpty + 8 * s, 128 * R::kTiles);
  }
  barrier_init(base + R::kKeysFull, 1);
  barrier_init_fence();
}

// The stages of a tile's rows, in the order in which they come: take(first token).
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
