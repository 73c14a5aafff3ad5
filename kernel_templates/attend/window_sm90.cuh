// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_window_sm90: the sliding-window branch on wgmma and TMA.
//
//   o[t, h] = softmax over keys p with t - w < p <= t of (scale * q[t, h] . k[p]) V
//
// The window holds w keys, the query's own among them.
//
// q [T, Hq, Dk], k [tokens, Hkv, Dk], v [tokens, Hkv, Dv] -> NsaiEpilogue. Main loop, grid and
// shared memory: attend/mainloop_sm90.cuh. Config: the main loop's and kWindow.
#pragma once
#include "attend/mainloop_sm90.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_window_sm90(const __grid_constant__ FlashParams<Config> p) {
  flash_attend<Config, WindowKeys<Config>>(p);
}
