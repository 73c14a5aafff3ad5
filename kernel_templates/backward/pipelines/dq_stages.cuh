// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Tiles of query rows and stages of keys of backward/pipelines/dq.cuh, which describes them and Config.
#pragma once
#include "backward/products.cuh"
#include "core/barrier.cuh"
#include "data/sequence.cuh"
#include "data/tile_position.cuh"

template <class Config> struct DqPipeline {
  static constexpr int kWarps = 8; // consumer warps
  static constexpr int kRows = 128, kKeys = Config::kKeys, kStages = Config::kStages;
  static constexpr int kTokens = kRows / Config::kGroupPadded; // per tile
  static constexpr int kBoxTokens = 64 / Config::kGroupPadded; // per warpgroup
  static constexpr int kLaneTokens = ceil_div(kTokens, 32);    // of a lane of the producer
  static constexpr int kN = kKeys / 8;                         // n8 tiles of S
  static constexpr int kColsQk = padded_dim(Config::kHeadDimQk),
                       kColsV = padded_dim(Config::kHeadDimV);
  using Q = PanelTile<64, kColsQk>;
  using DO = PanelTile<64, kColsV>;
  using K = PanelTile<kKeys, kColsQk>;
  using V = PanelTile<kKeys, kColsV>;

  // The launch gives 168 registers to each thread; the producer warpgroup hands its surplus to the
  // consumers.
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

  // Shared memory layout: offsets in bytes.
  static constexpr int kSQ = 0, kSDO = kSQ + 2 * Q::kBytes, kSStage = kSDO + 2 * DO::kBytes;
  static constexpr int kStageBytes = K::kBytes + V::kBytes;            // K, then V
  static constexpr int kSStatistics = kSStage + kStages * kStageBytes; // [3][kRows]
  static constexpr int kSBits = kSStatistics + NSAI_BRANCH_COUNT * kRows * 16;
  static constexpr int kSListed = kSBits + 8 * kStages * kTokens;
  static constexpr int kSSeen = kSListed + 8 * kStages * kTokens, kSPartly = kSSeen + 4 * kStages,
                       kSWindowSelected = kSPartly + 4 * kStages;
  static constexpr int kFull = (kSWindowSelected + 4 * kStages + 7) / 8 * 8; // barrier: filled
  static constexpr int kEmpty = kFull + 8 * kStages; // barrier: stage is free
  static constexpr int kRowsFull = kEmpty + 8 * kStages, kRowsEmpty = kRowsFull + 8;
  static constexpr int kBytes = kRowsEmpty + 8;

  static constexpr bool kCanJoin = Config::kWindow > 0 && Config::kSelectCount > 0;
  static constexpr int kBranchShift = 8;
  static constexpr u32 kLast = 1u << 31;

  static_assert(kBytes == Config::kSharedBytes, "the host computes another size of shared memory");
  static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0,
                "tensor maps need strides of whole 16 bytes");
  static_assert(kLaneTokens <= (Config::kSelectCount > 0 ? 2 : 4) && Config::kGroupPadded <= 64,
                "a producer's lane has cursors of two tokens, and a warpgroup holds whole tokens");
  static_assert(kKeys == 64, "the keys of a stage are the bits of a word");
  static_assert(kStages >= 3, "one stage is held, one is read and one is filled");
  static_assert(Config::kThreads == 384, "two consumer warpgroups and one producer warpgroup");
};

// A tile of query rows.
struct DqTile {
  Sequence seq;
  int s;           // sequence
  int first_query; // within the sequence
  int group;       // KV head
  int tokens;      // of the tile
  int position;    // of the first token; negative before the sequence's first key
};

// Calls take(tile) for every tile of this CTA.
template <class Config, class Take>
NSAI_DEVICE void for_dq_tiles(const NsaiBackwardQTma &p, Take take) {
  using R = DqPipeline<Config>;
  const int per_head = p.tiles / p.rows.kv_heads;
  int cta = blockIdx.x;
  for (int round = 0; round < p.tiles; round += gridDim.x) {
    const int index = round + cta;
    cta = gridDim.x - 1 - cta;
    if (index >= p.tiles) continue;
    const int group = index / per_head;
    const QueryTile at =
        find_query_tile<R::kTokens>(p.rows.seq, per_head - 1 - (index - group * per_head));
    const DqTile tile = { at.seq,
                          at.s,
                          at.first_query,
                          group,
                          min(R::kTokens, at.seq.q_len - at.first_query),
                          at.seq.position(at.first_query) };
    if (tile.tokens > 0 && tile.first_query >= 0) take(tile);
  }
}

// Initialises the barriers. One thread, before any other uses them.
template <class Config> NSAI_DEVICE void init_dq_pipeline(u32 base) {
  using R = DqPipeline<Config>;
  for (int s = 0; s < R::kStages; ++s) {
    barrier_init(base + R::kFull + 8 * s, 32);
    barrier_init(base + R::kEmpty + 8 * s, 32 * R::kWarps); // all lanes arrive: racecheck needs it
  }
  barrier_init(base + R::kRowsFull, 32);
  barrier_init(base + R::kRowsEmpty, 32 * R::kWarps);
  barrier_init_fence();
}
