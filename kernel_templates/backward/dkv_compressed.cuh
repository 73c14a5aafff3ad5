// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// dK and dV of the compressed branch: block i is seen by the tokens t >= i * d + l - 1.
//
// q [T, Hq, Dk], d_o [T, Hq, Dv], RowStatistics [3, T, Hq], k, v [rows, Hkv, D] compressed
//   -> partial [heads, splits, rows, Dk + Dv], read by backward_dkv_sum; rows: own_block_row of a sequence
//      and its blocks
//
// Few tiles of keys have very many rows each, the first of them the most. So the rows of a tile are cut
// into `splits` runs of equal length, whose sums are added in the order of the runs.
//
// Grid: x = heads * splits * tiles, in this order; tiles = seq.cu_q ? rows / kKeys + num_seqs : ceil(rows /
// kKeys); y = 1 + kSplit. Loop, shared memory and Config:
// backward/dkv_mainloop.cuh.
#pragma once
#include "backward/dkv_mainloop.cuh"

template <class Config> NSAI_DEVICE void compressed_keys(const NsaiBackwardKv &p) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  CompressedRows<Config> rows;
  KeyTile tile;
  if (find_rows<Config>(p, rows, tile))
    attend_keys<Config>(p, tile, rows, shared_address(shared_bytes));
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dkv_compressed(const __grid_constant__ NsaiBackwardKv p) {
  begin_kernel();
  compressed_keys<Config>(p);
}
