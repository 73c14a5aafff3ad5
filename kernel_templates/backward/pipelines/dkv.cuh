// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The KV-stationary half of the backward pass with two consumer warpgroups and TMA (sm_90a). It
// computes what backward/dkv_mainloop.cuh computes, for backward_dkv_compressed_tma,
// backward_dkv_selected_tma and backward_dkv_window_tma, which differ in the tile's query rows
// (`Rows`, backward/pipelines/dkv_tiles.cuh).
//
// CTA: two consumer warpgroups with dK and dV of 64 keys each in registers, and a producer
// warpgroup in which one warp issues TMA loads and another one (or two) writes the row statistics.
// Query rows pass by in stages of kRows: row r is head r % G of token r / G of those that see the
// keys. dK, dV and the scores of 64 rows fit into registers up to Dk + Dv 256, those of 32 up to 320.
//
// kKeys 128: each warpgroup has 64 keys of its own, and both read every stage. kKeys 64: both
// warpgroups have the same keys, and each reads every other stage; at the end the second one's sums
// are added to the first one's.
//
// Shared memory: backward/pipelines/dkv_stages.cuh.
//
// S and dU of a stage are issued behind the sums of the previous stage, which thus overlap with its
// exponentials:
//
//   S(i) | dU(i)    | dV(i) dK(i) | S(i+1) | dU(i+1) ...
//          P'(i)    dS(i)                    P'(i+1)
//
// Rows behind the last one have Q = dO = 0 and see no key; stages that contain such rows are copied
// row by row.
//
// kJoins: 1, for backward_dkv_window_tma: if p.joined, a block that is on a token's list and begins
// within its window is computed here for both branches with the same S and dU, using the statistics
// of the branches' sum.
//
// backward/pipelines/dkv_items.cuh is the same with persistent CTAs. A prototype of it, whose producers
// read lists one stage and statistics two stages ahead, took with correlated inputs on an H200 lists
// 7.8 -> 7.0 ms and window 6.9 -> 6.4 at 64k tokens, .74 -> .55 and .39 -> .32 at 4k. No gain: items
// in the order of their first tokens; with all reads from L2 the lists take 7.0 ms as they are.
//
// Config: Element, kHeadDimQk, kHeadDimV, kGroup (1 .. kRows, a power of two; at least kRows / 16 for
// backward_dkv_selected_tma), kRows (32, 64), kKeys (64, 128), kStages, kThreads, kMinBlocks,
// kSharedBytes, kGate, kEntries, kJoins, kBlock (l), kStride (d), kWindow (w), kSelectBlock (l'), kSelectCount (n).
#pragma once
#include "backward/pipelines/dkv_consumer.cuh"
#include "backward/pipelines/dkv_producer.cuh"
#include "core/launch.cuh"

// The kernel body; `Rows` finds the query rows of this CTA's tile.
template <class Config, class Rows> NSAI_DEVICE void run_dkv_pipeline(const NsaiBackwardKvTma &p) {
  using R = DkvPipeline<Config>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const u32 base = shared_address(shared_bytes);
  if (threadIdx.x == 0) init_dkv_pipeline<Config>(base);
  begin_kernel();
  __syncthreads(); // barriers are initialised
  Rows rows;
  KeyTile tile;
  if (!find_rows<Config>(p.kv, rows, tile)) return;
  const int warp = warp_uniform(threadIdx.x / 32);
  if (warp >= 8) {
    registers_drop<R::kProducerRegisters>();
    if (warp == 8) produce_boxes<Config>(p, tile, rows, base);
    if (warp >= 9 && warp < 9 + R::kKnownWarps)
      produce_known<Config>(p.kv, tile, rows, shared_bytes, base, warp - 9);
  } else {
    registers_raise<R::kConsumerRegisters>();
    consume_keys<Config>(p.kv, tile, shared_bytes, base);
  }
}
