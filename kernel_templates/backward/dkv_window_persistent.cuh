// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_dkv_window_persistent: backward_dkv_window with persistent CTAs whose warpgroups share
// query rows (sm_90a). Tensors as there; grid, main loop, shared memory and Config:
// backward/pipelines/dkv_items.cuh.
#pragma once
#include "backward/pipelines/dkv_items.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dkv_window_persistent(const __grid_constant__ NsaiBackwardDkvPersistent p) {
  run_dkv_items<Config, WindowRows<DkvTile<Config>>>(p);
}
