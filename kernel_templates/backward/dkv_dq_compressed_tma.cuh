// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_dkv_dq_compressed_tma: dK and dV as in backward_dkv_compressed_tma, and the branch's dQ
// (sm_90a). Grid and tensors as there; main loop, order, shared memory and Config:
// backward/pipelines/dkv_dq.cuh.
#pragma once
#include "backward/pipelines/dkv_dq.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dkv_dq_compressed_tma(const __grid_constant__ NsaiBackwardDkvDq p) {
  run_dkv_dq<Config>(p);
}
