// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Window branch: o[t, h] = softmax over t - w < p <= t of (scale * q[t, h] . k[p]) V, w keys with
// the query's own.
//
// q [T, Hq, Dk], k [tokens, Hkv, Dk], v [tokens, Hkv, Dv] -> NsaiEpilogue. Loop, grid, shared
// memory and Config: attend/mainloop_sm90.cuh, and Config::kWindow.
#pragma once
#include "attend/mainloop_sm90.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_window_sm90(const __grid_constant__ NsaiAttendTma p) {
  flash_attend<Config, WindowKeys<Config>>(p);
}
