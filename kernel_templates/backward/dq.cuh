// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_dq: dQ, from the statistics of backward_row_stats.
//
//   dQ[t, h] = scale * sum over branches b and their keys i of dS_b[t, h, i] k_b[i]
//
// The result is rounded once, or added to what d_q holds.
//
// q [T, Hq, Dk], d_o [T, Hq, Dv], k and v of each branch -> d_q [T, Hq, Dk]. Main loop, grid,
// shared memory and Config: backward/dq_mainloop.cuh.
#pragma once
#include "backward/dq_mainloop.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dq(const __grid_constant__ NsaiBackwardQ p) {
  run_rows<Config, QueryPass<Config>>(p);
}
