// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_dense_sm90: ordinary causal attention on wgmma and TMA.
//
//   o[t, h] = softmax over keys p <= t of (scale * q[t, h] . k[p]) V
//
// It is the baseline, the faster choice below the crossover length, and the exact selected branch
// as long as every block is selected.
//
// q [T, Hq, Dk], k [tokens, Hkv, Dk], v [tokens, Hkv, Dv] -> o [T, Hq, Dv] (NsaiEpilogue). Main
// loop, grid, shared memory and Config: attend/mainloop_sm90.cuh.
#pragma once
#include "attend/mainloop_sm90.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_dense_sm90(const __grid_constant__ FlashParams<Config> p) {
  flash_attend<Config, DenseKeys>(p);
}
