// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_compressed_sm90: the compressed branch on wgmma and TMA, and its LSE, from which
// select_importance recomputes the probabilities.
//
//   o[t, h] = softmax over blocks i with i * d + l - 1 <= t of (scale * q[t, h] . k[i]) V
//
// q [T, Hq, Dk]; compressed k [rows, Hkv, Dk], v [rows, Hkv, Dv], where block i of a sequence lies
// in row first_block_row + i -> NsaiEpilogue. Main loop, grid and shared memory:
// attend/mainloop_sm90.cuh. Config: the main loop's, kBlock (l) and kStride (d).
#pragma once
#include "attend/mainloop_sm90.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_compressed_sm90(const __grid_constant__ FlashParams<Config> p) {
  flash_attend<Config, CompressedKeys<Config>>(p);
}
