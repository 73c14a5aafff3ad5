// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// data_invert_all_count: the lengths of the inverted lists where every token attends to every block up to
// its own. data_invert_scan then turns them into items, and data_invert_all_fill writes the lists.
//
//   counts[b] = number of tokens of the chunk [token_begin, token_end) that see block b
//
// Grid: x covers the numbers of blocks, one per thread. All heads share the lists; there is one part.
//
// Config: kSelectBlock (l'), kThreads, kMinBlocks.
#pragma once
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/inverted_lists.cuh"
#include "params/attention.h"

template <class Config> NSAI_DEVICE void count_block(const NsaiInvert &p) {
  const int number = blockIdx.x * Config::kThreads + threadIdx.x;
  if (number >= p.blocks) return;
  auto first = [&](int s) { return first_block_number<Config::kSelectBlock>(p.seq, s); };
  const int s = p.seq.cu_q ? find_sequence(p.seq.num_seqs, number, first) : 0;
  const Sequence seq = load_sequence(p.seq, s);
  const int block = number - first(s);
  const int begin = first_token_of_block<Config::kSelectBlock>(p, seq, block);
  const int end = min(p.token_end, seq.q_begin + seq.q_len);
  p.counts[number] = block >= 0 ? max(end - begin, 0) : 0;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    data_invert_all_count(const __grid_constant__ NsaiInvert p) {
  begin_kernel();
  count_block<Config>(p);
}
