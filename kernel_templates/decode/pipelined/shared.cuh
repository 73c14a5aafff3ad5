// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Shared memory and barriers of a CTA of decode_pipelined, and what a thread knows of its token.
//
// Config: those of decode/pipelined/pipeline.cuh, decode/pipelined/weights.cuh and
// decode/pipelined/reduce.cuh, kMostBlocks, kSharedBytes.
#pragma once
#include "decode/compressed_scan.cuh"
#include "decode/pipelined/pipeline.cuh"
#include "decode/pipelined/reduce.cuh"
#include "decode/pipelined/weights.cuh"
#include "decode/work.cuh"

static_assert(Config::kScanRows == 16 && Config::kGroupPadded <= 16,
              "a token's heads are one m16 tile");

using Tiles = PipelinedTiles<Config>;
template <class C> using PipelinedScanKeys = ScanKeys<C, kScansPairs<C>>;
using OutputVectors = PipelinedVectors<Config>;
constexpr int kBest = kSentBest<Config>;

// Buffer of a warp: probabilities to be pooled; then O [16, Dv] of the compressed branch; then that
// of the window including the window-selected blocks.
static_assert(!PipelinedScanKeys<Config>::kHalves ||
                  16 * (2 * kStepKeys + 1) <= 16 * OutputVectors::kPitch,
              "the probabilities of two steps and their references fit beside each other");
union __align__(16) WarpExchangeBuffer {
  float pool[16][kPoolPitch];
  float o[16][OutputVectors::kPitch];
};
constexpr int kExchangeFloats = sizeof(WarpExchangeBuffer) / 4, kStagesFloats = Tiles::kBytes / 4;

// Barriers besides those of the pipelines. From this CTA: consumers have finished the compressed
// branch; pieces of importance are written; O of the compressed branch is added up; O of the window
// is written. From other CTAs: statistics, candidates, slices of the first two branches, slices of
// the selected branch. From warp 0: the list.
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

// Segments of a warp's steps, kept in shared memory because its consumer lacks registers.
enum { kScanSegment, kWindowSegment, kWindowSelectedSegment, kSegments };

struct SharedStorage {
  unsigned char kv_stages[Config::kWarps][Tiles::kBytes]; // at the end O of the selected blocks
  // Warp 0 has no window: its buffer holds O of all warps' compressed keys, then the sum of the
  // first two branches.
  WarpExchangeBuffer exchange_buffer[Config::kWarps];
  float pooled[Config::kKeptBlocks > 0 ? Config::kKeptBlocks : 1][16];
  __align__(16) PipelinedSegment segments[Config::kWarps][kSegments];
  // Into the CTA's first run, and after each run.
  __align__(16) float carries[Config::kWarps + 1][16];
  __align__(16) u64 queue[32]; // of the search
  PipelinedReceived<Config> received;
  OutputVectors::WarpsStats stats[OutputVectors::kBranches];
  float2 scan_stats[Config::kCluster][16];                                // of the CTAs
  u32 gates[OutputVectors::kBranches][16];                                // as stored by the caller
  u64 candidates[Config::kCluster][kBest];                                // of the CTAs
  u64 stage_barriers[Config::kWarps][PipelinedStages<Config>::kBarriers]; // of the pipelines
  u64 barriers[kBarriers];
  int list[Config::kSelectCount + 1];
  u32 orders[Config::kMostBlocks]; // of this CTA's searched blocks
};
static_assert(sizeof(SharedStorage) == Config::kSharedBytes,
              "the host computes another size of shared memory");
static_assert(16 * OutputVectors::kPitch * 4 <= Tiles::kBytes,
              "O must fit into the pipeline's memory");

// The token, and this thread's role.
struct PipelinedWorkItem {
  int lane, warp, rank; // rank: of the CTA in its cluster
  int work_item, row, group;
  DecodeToken token;
  int seen, candidates; // visible tokens, candidate blocks
  bool scans, selects, searches;
  int window_selected; // blocks read once for window and selected branch
  NSAI_DEVICE bool has_window(int warp) const { return warp > 0 || !scans; }
};
