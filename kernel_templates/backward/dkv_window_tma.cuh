// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// dK and dV of the window branch, as backward_dkv_window, whose grid and tensors it has, by
// warpgroups that share query rows (sm_90a). Loop, shared memory and Config: backward/pipelines/dkv.cuh.
#pragma once
#include "backward/pipelines/dkv.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dkv_window_tma(const __grid_constant__ NsaiBackwardKvTma p) {
  run_dkv_pipeline<Config, WindowRows<Config>>(p);
}
