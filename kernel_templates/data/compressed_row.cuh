// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Which tokens a row of compressed storage represents: the inverse of first_block_row().
#pragma once
#include "core/types.cuh"
#include "data/sequence.cuh"

struct BlockRow {
  int s, block;    // sequence, and index of the block within it
  long long token; // row of k and v where the block begins
  // false: the row holds no block, because its sequence is too short or the row lies between two
  // sequences.
  bool exists;
};

template <int kBlock, int kStride>
NSAI_DEVICE BlockRow find_block_row(const NsaiSequences &seqs, int row) {
  int s =
      find_sequence(seqs.num_seqs, row, [&](int i) { return first_block_row<kStride>(seqs, i); });
  Sequence seq = load_sequence(seqs, s);
  int block = row - first_block_row<kStride>(seqs, s);
  bool exists = block >= 0 && block < block_count<kBlock, kStride>(seq.kv_len);
  return BlockRow{ s, block, seq.kv_begin + (long long)block * kStride, exists };
}
