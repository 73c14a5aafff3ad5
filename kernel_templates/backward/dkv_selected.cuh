// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_dkv_selected: dK and dV of the selected branch. The tokens of a block's inverted list
// see the block. Lists come in chunks (`items`) of at most kEntries tokens (data/invert_scan.cuh),
// so that blocks that every token selects take no longer than others.
//
//   q [T, Hq, Dk], d_o [T, Hq, Dv], RowStatistics [3, T, Hq], k, v [rows, Hkv, D]
//   -> partial [heads, item_capacity, l', Dk + Dv], read by backward_dkv_sum, which adds the items
//   of a block in order
//
// Grid: x = heads * item_capacity * tiles, head-major, where tiles = ceil(l' / kKeys) per block;
// CTAs beyond item_counts exit at once; y = 1 + kSplit. Main loop, shared memory and Config:
// backward/dkv_mainloop.cuh.
#pragma once
#include "backward/dkv_mainloop.cuh"

template <class Config> NSAI_DEVICE void selected_keys(const NsaiBackwardKv &p) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  u32 *sEntries = (u32 *)(shared_bytes + DkvTraits<Config>::kSEntries); // [kEntries]
  ListRows<Config> rows;
  KeyTile tile;
  if (!find_rows<Config>(p, rows, tile)) return;
  for (int i = threadIdx.x; i < tile.tokens; i += Config::kThreads) sEntries[i] = rows.entries[i];
  __syncthreads();
  rows.entries = sEntries;
  attend_keys<Config>(p, tile, rows, shared_address(shared_bytes));
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_dkv_selected(const __grid_constant__ NsaiBackwardKv p) {
  begin_kernel();
  selected_keys<Config>(p);
}
