// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_dkv_compressed_tma: backward_dkv_compressed with warpgroups that share query rows
// (sm_90a). Grid and tensors as there; main loop, shared memory and Config:
// backward/pipelines/dkv.cuh.
#pragma once
#include "backward/pipelines/dkv.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dkv_compressed_tma(const __grid_constant__ NsaiBackwardKvTma p) {
  run_dkv_pipeline<Config>(p);
}
