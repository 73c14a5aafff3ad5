// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// dK and dV of the compressed branch with two consumer warpgroups and TMA (sm_90a), for
// backward_dkv_compressed_tma. It computes what backward/dkv_mainloop.cuh computes.
// backward/pipelines/dkv_items.cuh extends it to the other branches, with persistent CTAs;
// backward/pipelines/dkv_dq.cuh computes dQ as well.
//
// CTA: two consumer warpgroups with dK and dV of 64 keys each in registers, and a producer
// warpgroup in which one warp issues TMA loads and another one writes the row statistics. Both
// consumers read every stage.
// Query rows pass by in stages of kRows: row r is head r % G of token r / G of those that see the
// keys. dK, dV and the scores of 64 rows fit into registers up to Dk + Dv 256, those of 32 up to 320.
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
// Config: Element, kHeadDimQk, kHeadDimV, kGroup (1 .. kRows, a power of two), kRows (32, 64), kKeys (128),
// kStages, kThreads, kMinBlocks, kSharedBytes, kGate, kEntries (0), kJoins (0), kBlock (l), kStride (d).
#pragma once
#include "backward/pipelines/dkv_consumer.cuh"
#include "backward/pipelines/dkv_producer.cuh"
#include "core/launch.cuh"

// The kernel body.
template <class Config> NSAI_DEVICE void run_dkv_pipeline(const NsaiBackwardKvTma &p) {
  using R = DkvPipeline<Config>;
  static_assert(R::kTiles == 2, "each warpgroup has 64 keys");
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const u32 base = shared_address(shared_bytes);
  if (threadIdx.x == 0) init_dkv_pipeline<Config>(base);
  begin_kernel();
  __syncthreads(); // barriers are initialised
  CompressedRows<Config> rows;
  KeyTile tile;
  if (!find_rows<Config>(p.kv, rows, tile)) return;
  const int warp = warp_uniform(threadIdx.x / 32);
  if (warp >= 8) {
    registers_drop<R::kProducerRegisters>();
    if (warp == 8) produce_boxes<Config>(p, tile, rows, base);
    if (warp >= 9 && warp < 9 + R::kKnownWarps)
      produce_known<Config>(p.kv, tile, rows, base, warp - 9);
  } else {
    registers_raise<R::kConsumerRegisters>();
    consume_keys<Config>(p.kv, tile, base);
  }
}
