// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Compressed branch: o[t, h] = softmax over blocks i with i * d + l - 1 <= t of (scale * q[t, h] .
// k[i]) V, and its LSE, from which the importance kernel recomputes the probabilities.
//
// q [T, Hq, Dk]; k [rows, Hkv, Dk], v [rows, Hkv, Dv] compressed, block i of a sequence in row
// first_block_row + i
// -> NsaiEpilogue. Loop, grid, shared memory and Config: attend/mainloop_sm90.cuh, and Config::kBlock
// (l), kStride (d).
#pragma once
#include "attend/mainloop_sm90.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_compressed_sm90(const __grid_constant__ NsaiAttendTma p) {
  flash_attend<Config, CompressedKeys<Config>>(p);
}
