// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// dK and dV of the window branch: a key p is seen by the tokens p <= t < p + w.
//
// q [T, Hq, Dk], d_o [T, Hq, Dv], RowStatistics [3, T, Hq], k, v [rows, Hkv, D]
//   -> partial [heads, rows, Dk + Dv], read by backward_sum
//
// Grid: x = heads * tiles, head major, tiles = seq.cu_q ? kv_tokens / kKeys + num_seqs : ceil(kv_tokens /
// kKeys), as tiles of query tokens in common/sequence.cuh; y = 1 + kSplit. Every tile but the first and
// the last have the same rows, kKeys + w - 1 tokens. Loop, shared memory and Config:
// common/gradient_keys.cuh.
#pragma once
#include "common/gradient_keys.cuh"

template <class Config> NSAI_DEVICE void window_keys(const NsaiBackwardKv &p) {
  using Keys = WindowKeys<Config>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const int head = blockIdx.x / p.tiles, number = blockIdx.x % p.tiles;
  const KeyTileAt at = find_key_tile<Config::kKeys>(p.seq, number);
  RangeRows<Config, Keys, NSAI_BRANCH_WINDOW> rows;
  KeyTile tile;
  rows.seq = at.seq;
  rows.first_key = at.first_key;
  tile.keys = rows.keys = min(Config::kKeys, at.seq.kv_len - at.first_key);
  if (tile.keys <= 0 || at.first_key < 0) return;
  // Query i stands at position(i): from the tile's first key to the last that its last one is seen from.
  const int shift = at.seq.position(0);
  rows.first_query = max(at.first_key - shift, 0);
  const int end = min(at.first_key + tile.keys - 1 + Config::kWindow - shift, at.seq.q_len);
  tile.tokens = max(end - rows.first_query, 0);
  tile.key_row = at.seq.kv_begin + at.first_key;
  tile.partial = p.partial + (head * p.rows + tile.key_row) * KeysPlan<Config>::kWidth;
  attend_keys<Config>(p, tile, rows, p.head_begin + head, shared_address(shared_bytes));
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_window(const __grid_constant__ NsaiBackwardKv p) {
  begin_kernel();
  window_keys<Config>(p);
}
