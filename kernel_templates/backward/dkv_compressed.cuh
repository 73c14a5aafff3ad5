// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_dkv_compressed: dK and dV of the compressed branch. Tokens t >= i * d + l - 1 see block
// i.
//
//   q [T, Hq, Dk], d_o [T, Hq, Dv], RowStatistics [3, T, Hq], compressed k, v [rows, Hkv, D]
//   -> partial [heads, splits, rows, Dk + Dv], read by backward_dkv_sum; rows are packed_block_row
//   of a sequence plus its blocks
//
// There are few key tiles with very many query rows each, most of all the first one. The rows of a
// tile are therefore cut into `splits` ranges of equal length; backward_dkv_sum adds their sums in
// order.
//
// Grid: x = heads * splits * tiles, in this order, where tiles = seq.cu_q ? rows / kKeys + num_seqs
// : ceil(rows / kKeys); y = 1 + kSplit. Main loop, shared memory and Config:
// backward/dkv_mainloop.cuh.
#pragma once
#include "backward/dkv_mainloop.cuh"

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dkv_compressed(const __grid_constant__ NsaiBackwardKv p) {
  begin_kernel();
  attend_found_keys<Config, CompressedRows<Config>>(p);
}
