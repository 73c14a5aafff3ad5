// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_row_stats: the statistics of each row and branch that the backward pass needs: LSE,
// gate, and u = dO . o_b. For gates that are weights u is also their gradient. The kernel stores
// the gate gradients too.
//
// u is computed as the sum of P dU, so the kernel needs neither LSE nor outputs of the forward
// pass, and u contains no rounding of o_b.
//
// q [T, Hq, Dk], d_o [T, Hq, Dv], k and v of each branch -> RowStatistics [3, T, Hq], d_gate
// [T, Hq, 3]. Main loop, grid, shared memory and Config: backward/dq_mainloop.cuh.
#pragma once
#include "backward/dq_mainloop.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_row_stats(const __grid_constant__ NsaiBackwardQ p) {
  run_rows<Config, StatisticsPass<Config>>(p);
}
