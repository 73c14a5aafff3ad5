// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_dq_tma: dQ as in backward_dq, with warpgroups that share the keys of 128 rows (sm_90a).
//
//   dQ[t, h] = scale * sum over branches b and their keys i of dS_b[t, h, i] k_b[i]
//   S = scale Q K^T      dU = dO V^T      dS = g 2^(S - LSE) (dU - u)      dQ += dS K
//
// The result is rounded once, or added to what d_q holds.
//
// q [T, Hq, Dk], d_o [T, Hq, Dv], k and v of each branch, RowStatistics [3, T, Hq] -> d_q
// [T, Hq, Dk].
//
// Grid, shared memory and Config: backward/pipelines/dq.cuh; also Element, kGate. Two consumer
// warpgroups of 64 rows each, with Q in registers up to Dk 128, and one producer warpgroup of which
// two warps issue copies.
//
// If window and selected branch share K and V, S and dU of blocks within the window are multiplied
// once for both, and dQ gets the sum of their dS. A sum has coarser steps than its terms, which shows
// where the terms of dQ cancel. It is therefore multiplied in two parts, its rounding and the rest.
//
// A warpgroup skips stages that none of its tokens sees. S of the next stage is issued before dQ of
// the current one, so that products overlap with the exponentials:
//
//   S(i) | dQ(i-1) dU(i) | S(i+1) | dQ(i) dU(i+1) ...
//          2^S(i)          dS(i)
#pragma once
#include "backward/pipelines/dq.cuh"
#include "backward/pipelines/dq_consumer.cuh"

template <class Config>
NSAI_DEVICE void consume_rows(const NsaiBackwardQTma &p, const unsigned char *shared, u32 base) {
  using R = DqPipeline<Config>;
  DqStageReader<Config> reader = { shared, base, {}, 0 };
  u32 phase = 0;
  for_dq_tiles<Config>(p, [&](const DqTile &at) {
    barrier_wait(base + R::kRowsFull, phase); // filled by the row producer
    phase ^= 1;
    float dq[R::kColsQk / 8][4] = {}; // [64, Dk]
    multiply_stages<Config>(dq, p.rows, reader);
    barrier_arrive(base + R::kRowsEmpty); // released to it
    store_rows<Config>(p.rows, at, dq);
  });
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dq_tma(const __grid_constant__ NsaiBackwardQTma p) {
  run_dq_pipeline<Config, true, true>(p, [&](const unsigned char *shared, u32 base) {
    consume_rows<Config>(p, shared, base);
  });
}
