// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The KV-stationary half of the backward pass by two warpgroups and the copy engine (sm_90a): what
// backward/dkv_mainloop.cuh computes, for backward_dkv_compressed_tma, backward_dkv_selected_tma and
// backward_dkv_window_tma, which differ in the tile's rows (`Rows`, backward/pipelines/dkv_tiles.cuh).
//
// CTA      Two warpgroups of consumers with dK and dV of 64 keys each in registers, and one of which a
//          warp asks for boxes and another tells what is known of each row. Query rows pass by in
//          stages of 64: row r is head r % G of token r / G of those that see the keys.
// kKeys    128: each warpgroup has 64 keys of its own, and both read every stage.
//          64: both have the same keys, and each reads every other stage; at the end their sums are
//          added, the first one's first.
// Shared   backward/pipelines/dkv_stages.cuh.
//
// Of a stage S and dU are multiplied behind the products of the stage before, which so run beside its
// exponentials:
//
//   S(i) | dU(i)    | dV(i) dK(i) | S(i+1) | dU(i+1) ...
//          P'(i)    dS(i)                    P'(i+1)
//
// Rows that do not exist, behind the last, have Q = dO = 0 and see no key; stages that have such are
// copied row by row.
//
// kJoins   1, of backward_dkv_window_tma: where p.joined, blocks that are on a token's list and begin within its
//          window are of both branches here, by the same S and dU: the row has the statistics of the sum.
//
// Config: Element, kHeadDimQk, kHeadDimV, kGroup (1 .. 64, a power of two; of backward_dkv_selected_tma 4
//   and more), kKeys (64, 128), kStages,
//   kThreads, kMinBlocks, kSharedBytes, kGate, kEntries, kJoins, kBlock (l), kStride (d),
//   kWindow (w), kSelectBlock (l'), kSelectCount (n).
#pragma once
#include "backward/pipelines/dkv_consumer.cuh"
#include "backward/pipelines/dkv_producer.cuh"
#include "core/launch.cuh"

// The kernel: `rows` is found for the tile of this block of threads.
template <class Config, class Rows> NSAI_DEVICE void run_dkv_pipeline(const NsaiBackwardKvTma &p) {
  using R = DkvPipeline<Config>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const u32 base = shared_address(shared_bytes);
  if (threadIdx.x == 0) init_dkv_pipeline<Config>(base);
  begin_kernel();
  __syncthreads(); // barriers are there
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
