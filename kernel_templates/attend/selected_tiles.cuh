// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What the producers and the consumers of attend/selected_pipeline.cuh share: sizes, registers and
// shared memory, the tiles of a CTA and the keys of their windows.
#pragma once
#include "attend/selected_branches.cuh"
#include "core/barrier.cuh"
#include "core/pipeline.cuh"
#include "core/tile.cuh"
#include "core/types.cuh"
#include "data/key_range.cuh"
#include "data/sequence.cuh"
#include "data/source.cuh"
#include "data/tile_position.cuh"
#include "params/attention.h"
#include "params/kv_cache.h"
#include "params/smem.h"

template <class Config> struct SelectedPipeline {
  static constexpr int kWarps = Config::kWarps, kStages = Config::kStages, kKeys = Config::kKeys;
  static constexpr int kWarpgroups = kWarps / 4; // consumers; the producers' comes last
  static constexpr int kTokens = 16 * kWarps / Config::kGroupPadded;
  static constexpr int kProducers = kTokens <= 32 ? 1 : 4;                    // producer warps
  static constexpr int kLists = ceil_div(kTokens, 32 * kProducers);           // lists per lane
  static constexpr int kLoaders = Config::kCached && kProducers == 1 ? 3 : 0; // further warps
  static constexpr bool kCodes = kReadsCodes<Config>;
  // Loaders expand codes for products that take elements from shared memory.
  static constexpr bool kExpands = Config::kExpandsCodes;
  static constexpr int kColsQk = padded_dim(Config::kHeadDimQk),
                       kColsV = padded_dim(Config::kHeadDimV);
  // Elements of a stage's rows, or words of two codes.
  static constexpr int kWordsK = nsai_row_words(kCodes && !kExpands, Config::kHeadDimQk),
                       kWordsV = nsai_row_words(kCodes && !kExpands, Config::kHeadDimV);
  static constexpr int kKBytes = nsai_panel_bytes(kKeys, kWordsK);
  static constexpr int kVBytes = nsai_panel_bytes(kKeys, kWordsV);

  // Registers per thread. The launch gives kLaunch to each thread; the producer warpgroup hands its
  // surplus to the consumers. A cursor takes 8. Loaders get what consumers cannot share evenly.
  static constexpr int kLaunch = 65536 / (Config::kThreads * Config::kMinBlocks) / 8 * 8;
  static constexpr int kLeast = kLists == 1 ? 32 : 40;
  static constexpr int kFair = (kLaunch * (kWarpgroups + 1) - kLeast) / kWarpgroups / 8 * 8;
  static constexpr int kConsumerRegisters = kFair < 240 ? kFair : 240;
  static constexpr int kRest = kLaunch * (kWarpgroups + 1) - kWarpgroups * kConsumerRegisters;
  static constexpr int kProducerRegisters = kLoaders ? (kRest < 64 ? kRest : 64) : kLeast;

  // Shared memory layout from a multiple of 1024 bytes on; offsets in bytes. Buffers are [kStages].
  static constexpr int kSK = 0;
  static constexpr int kSV = kSK + kStages * kKBytes;
  static constexpr int kSBits = kSV + kStages * kVBytes;             // u64 [kTokens]
  static constexpr int kSSeen = kSBits + 8 * kStages * kTokens;      // u32 [kProducers]
  static constexpr int kSPartly = kSSeen + 4 * kStages * kProducers; // u32 [kProducers]
  static constexpr int kBarriers = kSPartly + 4 * kStages * kProducers;
  static constexpr int kSLeast = kBarriers + Barriers<kStages>::kBytes; // int [2, kProducers]
  static constexpr int kListed = kSLeast + 8 * kProducers; // u64 barriers, if there are loaders
  static constexpr int kArrived =
      kListed + (kLoaders ? 8 * kStages : 0); // u64 barriers, if codes are expanded
  static constexpr int kSTask =
      kArrived + (kExpands ? 8 * kStages : 0); // int, if there are loaders
  static constexpr int kSUnits =
      kSTask + (kLoaders ? 4 * kStages : 0); // f32 [kWarps], if codes are expanded
  static constexpr int kEnd = nsai_smem_aligned(kSUnits + (kExpands ? 4 * kWarps : 0), 16);
  static constexpr int kSQ = nsai_smem_aligned(kEnd, 1024); // Q of each warp or warpgroup, or empty
  static constexpr u32 kLast = 1u << 31;                    // flag in kSSeen

  NSAI_DEVICE static u32 listed(u32 base, int stage) { return base + kListed + 8 * stage; }
  NSAI_DEVICE static u32 arrived(u32 base, int stage) { return base + kArrived + 8 * stage; }

  static_assert(Config::kHeadDimQk % 8 == 0 && Config::kHeadDimV % 8 == 0,
                "rows are copied 16 bytes at a time");
  static_assert(Config::kGroup <= Config::kGroupPadded &&
                    (Config::kGroupPadded & (Config::kGroupPadded - 1)) == 0,
                "rows are token-major over a power of two of heads");
  static_assert(kWarps % 4 == 0 && kWarps <= 12, "whole warpgroups, which share 65536 registers");
  static_assert(kWarps * Config::kMinBlocks >= 8,
                "four consumer warps alone would leave registers unused");
  static_assert(!kCodes || (Config::kHeadDimQk % 16 == 0 && Config::kHeadDimV % 16 == 0),
                "a chunk of 16 bytes holds 16 codes");
  static_assert(kKeys == 64, "the keys of a stage are the bits of a word");
  static_assert(Config::kGroupPadded <= 64, "a warpgroup holds whole tokens");
  static_assert(Config::kThreads == 32 * kWarps + 128, "one producer warpgroup");
  static_assert(kStages >= 2, "a stage is filled while another is read");
  static_assert(!kExpands || kLoaders, "loaders expand codes");
};

// The order of tiles. CTAs that run at the same time should read the keys of one head, so that these
// stay in L2: the heads' tiles follow one another. In short sequences the last rounds of the grid
// should also be filled by tiles with little work. There each head's first tiles, as many as have
// keys that fit into a part of L2 for all heads, come at the end of all: those with the fewest keys
// last. Queries over a cache may begin anywhere, so their first tiles need not have few keys.
//
// H200, bf16, 64/4 heads, D 128, forwards without that / with it: correlated lists 4k 0.558 / 0.539
// ms, 8k 1.210 / 1.195, 16k 2.696 / 2.688; random lists 4k 0.678 / 0.633, 8k 1.627 / 1.611 (by
// attend_selected_sm90_mma), medians of five calls in a row after a pause of 30 ms.
template <class Config> struct TileOrder {
  static constexpr int kTileBytes =
      2 * SelectedPipeline<Config>::kTokens * (Config::kHeadDimQk + Config::kHeadDimV);
  int group;  // KV head
  int number; // of the tile within the head

  // Twice that size is 16k tokens of the heads above; 64k would gain 0.4 % at most.
  NSAI_DEVICE static bool shortest_last(const NsaiAttendSelected &p) {
    return !Config::kCached && p.tiles <= 2 * (kBytesOfL2 / kTileBytes);
  }
  NSAI_DEVICE TileOrder(const NsaiAttendSelected &p, int tile) {
    const int per_group = p.tiles / p.kv_heads;
    const int first = shortest_last(p) ? min(kBytesOfL2 / kTileBytes / p.kv_heads, per_group) : 0;
    const int others = per_group - first;
    const int behind = tile - others * p.kv_heads; // among the heads' first tiles
    if (behind < 0) {
      group = tile / others;
      number = first + tile - group * others;
    } else {
      group = behind % p.kv_heads;
      number = first - 1 - behind / p.kv_heads;
    }
  }
};

// The tiles of this CTA. With the shortest last, every other round of the grid runs backwards: when
// tiles get ever shorter, no CTA gets the longer one each time.
template <class Config> struct TileWalk {
  int tile = blockIdx.x, step;
  NSAI_DEVICE explicit TileWalk(const NsaiAttendSelected &p)
      : step(TileOrder<Config>::shortest_last(p) ? 2 * (gridDim.x - blockIdx.x) - 1 : gridDim.x) {}
  NSAI_DEVICE void advance() {
    tile += step;
    step = 2 * gridDim.x - step;
  }
};

template <class Config> NSAI_DEVICE int group_of_tile(const NsaiAttendSelected &p, int tile) {
  return TileOrder<Config>(p, tile).group;
}

// The tile's sequence in *s, if it is wanted.
template <class Config, class Params>
NSAI_DEVICE TilePosition find_tile_position(const Params &params, int tile, int *s = nullptr) {
  const TileOrder<Config> order(selected_params(params).attend, tile);
  const QueryTile at =
      find_query_tile<SelectedPipeline<Config>::kTokens>(sequences_of(params), order.number);
  if (s) *s = at.s;
  return TilePosition{ at.seq, at.first_query, order.group };
}

// How the window's keys of a tile fall into stages: a first stage of kFirst keys, the remainder of
// w + kTokens - 1 modulo kKeys, and then stages of kKeys. In a cache the window begins with a box:
// there are up to NSAI_WINDOW_BOX_ROWS - 1 more keys, and kFirst consists of boxes.
template <class Config> struct WindowStages {
  using R = SelectedPipeline<Config>;
  static constexpr int kBox = Config::kCached ? NSAI_WINDOW_BOX_ROWS : 1;
  static constexpr int kRest =
      ceil_div(Config::kWindow + R::kTokens - 1 + kBox - 1, kBox) * kBox % R::kKeys;
  static constexpr int kFirst = kRest ? kRest : R::kKeys;
  static constexpr int kFirstPadded = padded_dim(kFirst); // keys that are multiplied
};

// The first key of the window's first stage, where `begin` is the first one that any token sees.
template <class Config> NSAI_DEVICE int window_begin(int begin) {
  return begin / WindowStages<Config>::kBox * WindowStages<Config>::kBox;
}

// Keys [begin, end) in the window of any of the tile's tokens; none if begin >= end.
template <class Config> NSAI_DEVICE KeyRange window_of_tile(const TilePosition &at) {
  const int next = min(at.first_query + SelectedPipeline<Config>::kTokens, at.seq.q_len);
  return KeyRange{ window_begin<Config>(
                       WindowKeys<Config>::visible(at.seq.position(at.first_query)).begin),
                   WindowKeys<Config>::visible(at.seq.position(next - 1)).end };
}

// Initialises the barriers. One thread, before any other uses them.
template <class Config> NSAI_DEVICE void init_pipeline(u32 base) {
  using R = SelectedPipeline<Config>;
  // All lanes arrive. One lane per warp would suffice and is no faster, but racecheck does not
  // follow that.
  Barriers<R::kStages>{ base + R::kBarriers }.init(32 * (R::kProducers + R::kLoaders),
                                                   32 * R::kWarps);
  for (int s = 0; R::kLoaders && s < R::kStages; ++s) barrier_init(R::listed(base, s), 32);
  for (int s = 0; R::kExpands && s < R::kStages; ++s) barrier_init(R::arrived(base, s), 32);
  barrier_init_fence();
}
