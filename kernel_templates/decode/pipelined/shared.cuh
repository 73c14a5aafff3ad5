// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What a block of decode_pipelined holds: its shared memory, its barriers, and what a thread knows of its token.
//
// Config: those of decode/pipelined/pipeline.cuh, decode/pipelined/weights.cuh and decode/pipelined/reduce.cuh, kMostBlocks,
// kSharedBytes.
#pragma once
#include "decode/compressed_scan.cuh"
#include "decode/pipelined/pipeline.cuh"
#include "decode/pipelined/reduce.cuh"
#include "decode/pipelined/weights.cuh"
#include "decode/work.cuh"

static_assert(Config::kScanRows == 16 && Config::kGroupPadded <= 16,
              "a token's heads are one m16 tile");

using Tiles = PipelinedTiles<Config>;
using OutputVectors = PipelinedVectors<Config>;
constexpr int kBest = kSentBest<Config>;

// Of a warp: probabilities to be pooled; O [16, Dv] of the scan, and then of the window, with what is chosen
// as well.
union __align__(16) WarpExchangeBuffer {
  float pool[16][kPoolPitch];
  float o[16][OutputVectors::kPitch];
};
constexpr int kExchangeFloats = sizeof(WarpExchangeBuffer) / 4, kStagesFloats = Tiles::kBytes / 4;

// What a block waits for beside its rings: its consumers' scans, pieces, that O of the scans is added up, and
// that of the window there; what other blocks send, of O that of the chosen blocks last; the list, of warp 0.
enum {
  kScanned,
  kWeighed,
  kAdded,
  kAttended,
  kStats,
  kCandidates,
  kSlices,
  kLastSlices,
  kList,
  kBarriers
};

// Of a warp's steps: its consumer has no registers to keep them.
enum { kScanSegment, kWindowSegment, kWindowSelectedSegment, kSegments };

struct SharedStorage {
  unsigned char kv_stages[Config::kWarps][Tiles::kBytes]; // at the end O of the chosen blocks
  WarpExchangeBuffer exchange_buffer
      [Config::kWarps]; // warp 0 has no window: there O of all scans stays, then the first two
                        // branches' sum
  float pooled[Config::kKeptBlocks > 0 ? Config::kKeptBlocks : 1][16];
  __align__(16) PipelinedSegment segments[Config::kWarps][kSegments];
  __align__(
      16) float carries[Config::kWarps + 1][16]; // into the block's first run, and behind each
  __align__(16) u64 queue[32];                   // of the search
  PipelinedReceived<Config> received;
  OutputVectors::WarpsStats stats[OutputVectors::kBranches];
  float2 scan_stats[Config::kCluster][16];                                // of the blocks
  u32 gates[OutputVectors::kBranches][16];                                // as they lie in memory
  u64 candidates[Config::kCluster][kBest];                                // of the blocks
  u64 stage_barriers[Config::kWarps][PipelinedStages<Config>::kBarriers]; // barriers of the rings
  u64 barriers[kBarriers];
  int list[Config::kSelectCount + 1];
  u32 orders[Config::kMostBlocks]; // of the block's own that are searched
};
static_assert(sizeof(SharedStorage) <= Config::kSharedBytes &&
                  Config::kSharedBytes < sizeof(SharedStorage) + 128,
              "the host's formula for shared memory");
static_assert(16 * OutputVectors::kPitch * 4 <= Tiles::kBytes, "O takes the ring's place");

// The token, and whose this thread is.
struct PipelinedWorkItem {
  int lane, warp, rank; // of the block in its cluster
  int work_item, row, group;
  DecodeToken token;
  int seen, candidates; // tokens, selection blocks
  bool scans, selects, searches;
  int window_selected; // selection blocks, the last ones, that are the window's as well and read for both
  NSAI_DEVICE bool has_window(int warp) const { return warp > 0 || !scans; }
};
