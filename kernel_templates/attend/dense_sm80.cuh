// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_dense_sm80: ordinary causal attention on mma.sync.
//
//   o[t, h] = softmax over keys p <= t of (scale * q[t, h] . k[p]) V
//
// It is the baseline, the faster choice below the crossover length, and the exact selected branch
// as long as every block is selected.
//
// q [T, Hq, Dk], k [tokens, Hkv, Dk], v [tokens, Hkv, Dv] -> o [T, Hq, Dv] (NsaiEpilogue). Main
// loop, grid, shared memory and Config: attend/mainloop_sm80.cuh.
#pragma once
#include "attend/mainloop_sm80.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_dense_sm80(const __grid_constant__ NsaiAttend p) {
  flash_attend<Config, DenseKeys>(p);
}
