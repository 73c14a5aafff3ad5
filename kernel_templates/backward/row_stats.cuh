// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What the backward pass needs to know of each row and branch: LSE, gate, and u = dO . o_b, the gradient
// of a gate that is a weight; that of weights or logits is stored, too.
//
// u is summed as P dU, so that neither LSE nor outputs of the forward are needed, and no rounding of
// o_b is in it.
//
// q [T, Hq, Dk], d_o [T, Hq, Dv], k and v of each branch -> RowStatistics [3, T, Hq], d_gate [T, Hq, 3].
// Loop, grid, shared memory and Config: backward/dq_mainloop.cuh.
#pragma once
#include "backward/dq_mainloop.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_row_stats(const __grid_constant__ NsaiBackwardQ p) {
  run_rows<Config, StatisticsPass<Config>>(p);
}
