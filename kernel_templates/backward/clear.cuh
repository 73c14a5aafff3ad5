// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_clear: sets words of the workspace to 0. A thread has four of them.
#pragma once
#include "core/launch.cuh"
#include "core/types.cuh"
#include "params/backward.h"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_clear(const __grid_constant__ NsaiBackwardClear p) {
  begin_kernel();
  const long long first = 4 * ((long long)blockIdx.x * Config::kThreads + threadIdx.x);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (first + i < p.count) p.words[first + i] = 0;
}
