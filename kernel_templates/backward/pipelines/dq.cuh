// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Tiles of query rows and the keys of every branch that they see, loaded into shared memory by TMA
// (sm_90a), for backward_dq_tma and backward_row_stats_tma. Two consumer warpgroups of 64 rows each
// share a tile of 128 rows and its keys.
//
// Tiles: kTokens tokens of one KV head, head-major, longest first. Persistent CTAs: each takes
// every gridDim.x-th tile, and every other round of the grid runs backwards, so that no CTA gets
// the longer tile each time.
//
// Rows: Q [2][64, Dk] and dO [2][64, Dv] of the current tile, and RowStatistics [3][128] of the
// branches; row r is head r % kGroupPadded of token r / kGroupPadded. One warp loads them as soon
// as the consumers have finished with the previous tile.
//
// Keys: kStages stages of kKeys keys on a fixed grid. Another warp fills them and runs ahead into
// the next tile. In the compressed and window branch they cover the range that the tile's tokens
// see, in the selected branch the merged lists of the tokens. A stage holds
//
//   K, V     [kKeys, Dk], [kKeys, Dv]: panels (core/tma.cuh)
//   bits     u64 [kTokens]: the keys that each token sees
//   seen     u32. Bit w: a token of consumer warp w sees at least one key. From kBranchShift on:
//            the branch. kLast: last stage of the tile
//   partly   u32. Bit w: a token of warp w does not see all keys
//   listed   u64 [kTokens], for a window tile: the keys of it that are on each token's list
//   window_selected
//            u32. Bit w: a token of warp w has such keys
//
// If window and selected branch share K and V, selected blocks within the window therefore need no
// products of their own (backward_dq_tma). A tile whose rows see no key has a single stage that no
// warp sees and that holds no copy.
//
// The stages' barriers are addressed here and not through core/pipeline.cuh's Barriers, with which
// the machine code of backward_row_stats_tma differs (NVRTC 13.0; not timed).
//
// Rows of K and V behind a sequence's end may hold anything if another sequence follows; such key
// tiles are copied row by row, with zeros behind the end.
//
// Config: kHeadDimQk, kHeadDimV, kGroup, kGroupPadded (2 .. 64; 1 without lists), kKeys (64), kStages, kThreads,
// kMinBlocks, kSharedBytes, kBlock (l), kStride (d), kWindow (w; 0: no such branch), kSelectBlock
// (l'), kSelectCount (n; 0: no such branch), kRanges.
#pragma once
#include "backward/pipelines/dq_lane_tokens.cuh"
#include "backward/pipelines/dq_producer.cuh"
#include "core/launch.cuh"

// Q of the warpgroup's 64 rows: in registers as fragments, if they fit beside dQ. A product that
// reads Q and K from shared memory spends as long on the reads as on the product.
template <class Config> struct DqQuery {
  using R = DqPipeline<Config>;
  static constexpr bool kHeld = R::kColsQk <= 128;
  static constexpr int kSteps = R::kColsQk / 16;
  u32 sQ;
  u32 rQ[kHeld ? kSteps : 1][4]; // [64, Dk]

  NSAI_DEVICE DqQuery(u32 base) {
    sQ = base + R::kSQ + warp_uniform(threadIdx.x / 128) * R::Q::kBytes;
    if constexpr (kHeld) {
      const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        ldmatrix_x4(rQ[i], sQ + R::Q::offset(row, 2 * i + lane / 16));
    }
  }

  // Issues S = Q K^T of a stage: s [64, kKeys].
  NSAI_DEVICE void start(float (&s)[R::kN][4], u32 sK) const {
    using E = typename Config::Element;
    if constexpr (kHeld) {
      const u64 k = wgmma_k_major(sK);
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        wgmma_qk<E, R::kKeys>(s[0], rQ[i], k + wgmma_k_step<R::kKeys>(i), i > 0);
    } else {
      start_rows<E, typename R::Q, typename R::K, Config::kHeadDimQk>(s, sQ, sK);
    }
  }
};

// How a warpgroup walks through the stages; uniform over its threads.
template <class Config> struct DqStageReader {
  using R = DqPipeline<Config>;
  const unsigned char *shared;
  u32 base;
  PipelineState<R::kStages> step; // next stage
  u32 seen = 0;                   // flags of the last stage

  NSAI_DEVICE void release(int stage) { barrier_arrive(base + R::kEmpty + 8 * stage); }

  // Returns the next stage that the warpgroup's rows see, among the next `most` stages of the tile;
  // -1 if there is none.
  NSAI_DEVICE int find(int most) {
    const int group = warp_uniform(threadIdx.x / 128);
    for (; most > 0 && !(seen & R::kLast); --most) {
      const int s = warp_uniform(step.stage);
      barrier_wait(base + R::kFull + 8 * s, step.phase); // filled by the producer
      seen = warp_uniform(((const u32 *)(shared + R::kSSeen))[s]);
      step.advance();
      if (seen >> (4 * group) & 15) return s;
      release(s);
    }
    return -1;
  }
};

// The kernel body; consume(shared, base) is the loop of a consumer warp. kKnown: rows come with
// their statistics. kJoins: see DqKeyWalk.
template <class Config, bool kKnown, bool kJoins, class Consume>
NSAI_DEVICE void run_dq_pipeline(const NsaiBackwardQTma &p, Consume consume) {
  using R = DqPipeline<Config>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const u32 base = shared_address(shared_bytes);
  if (threadIdx.x == 0) init_dq_pipeline<Config>(base);
  begin_kernel();
  __syncthreads(); // barriers are initialised
  const int warp = warp_uniform(threadIdx.x / 32);
  if (warp >= R::kWarps) {
    registers_drop<R::kProducerRegisters>();
    if (warp == R::kWarps) {
      if constexpr (R::kLaneTokens > 1)
        produce_keys_of_lanes<Config, kJoins>(p, shared_bytes, base);
      else
        produce_keys<Config, kJoins>(p, shared_bytes, base);
    }
    if (warp == R::kWarps + 1) produce_rows<Config, kKnown>(p, base);
  } else {
    registers_raise<R::kConsumerRegisters>();
    consume(shared_bytes, base);
  }
}
