// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// dQ of the compressed branch on its way from backward_dkv_dq_compressed_tma to backward_dq_sums_tma,
// with that of the selected branch if backward_dq_slots has added it: blocks of 64 rows, whole
// tokens, that begin at multiples of 64 rows of each sequence. A block is f32 [2][Dk / 16][128][4]:
// for both halves of the columns the accumulators of a warpgroup's product [64, Dk / 2], n8 tile by
// n8 tile.
#pragma once
#include "core/types.cuh"
#include "data/sequence.cuh"

// The first block of sequence s, for blocks of kTokens tokens. Between two sequences there may be one
// that nobody uses.
template <int kTokens> NSAI_DEVICE long long first_dq_block(const Sequence &seq, int s) {
  return seq.q_begin / kTokens + s;
}
