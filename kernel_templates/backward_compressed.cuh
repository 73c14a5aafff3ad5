// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// dK and dV of the compressed branch: block i is seen by the tokens t >= i * d + l - 1.
//
// q [T, Hq, Dk], d_o [T, Hq, Dv], RowStatistics [3, T, Hq], k, v [rows, Hkv, D] compressed
//   -> partial [heads, splits, rows, Dk + Dv], read by backward_sum; rows: own_block_row of a sequence
//      and its blocks
//
// Few tiles of keys have very many rows each, the first of them the most. So the rows of a tile are cut
// into `splits` runs of equal length, whose sums are added in the order of the runs.
//
// Grid: x = heads * splits * tiles, in this order; tiles = seq.cu_q ? rows / kKeys + num_seqs : ceil(rows /
// kKeys); y = 1 + kSplit. Loop, shared memory and Config:
// common/gradient_keys.cuh.
#pragma once
#include "common/gradient_keys.cuh"

template <class Config> NSAI_DEVICE void compressed_keys(const NsaiBackwardKv &p) {
  using Keys = CompressedKeys<Config>;
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const int number = blockIdx.x % p.tiles, split = blockIdx.x / p.tiles % p.splits,
            head = blockIdx.x / p.tiles / p.splits;
  const KeyTileAt at = find_block_tile<Config::kKeys, Config::kStride>(p.seq, number);
  const int blocks = block_count<Config::kBlock, Config::kStride>(at.seq.kv_len);
  RangeRows<Config, Keys, NSAI_BRANCH_COMPRESSED> rows;
  KeyTile tile;
  rows.seq = at.seq;
  rows.first_key = at.first_key;
  tile.keys = rows.keys = min(Config::kKeys, blocks - at.first_key);
  if (tile.keys <= 0 || at.first_key < 0) return;
  const int shift = at.seq.position(0);
  const int begin = max(at.first_key * Config::kStride + Config::kBlock - 1 - shift, 0);
  const long long count = max(at.seq.q_len - begin, 0);
  rows.first_query = begin + (int)(count * split / p.splits);
  tile.tokens = begin + (int)(count * (split + 1) / p.splits) - rows.first_query;
  const long long row = at.first_row + at.first_key; // of `partial`
  tile.key_row = first_block_row<Config::kStride>(p.seq, at.s) + at.first_key;
  tile.partial = p.partial + (((long long)head * p.splits + split) * p.rows + row) *
                                 KeysPlan<Config>::kWidth;
  attend_keys<Config>(p, tile, rows, p.head_begin + head, shared_address(shared_bytes));
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_compressed(const __grid_constant__ NsaiBackwardKv p) {
  begin_kernel();
  compressed_keys<Config>(p);
}
