// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// data_invert_all_fill: writes the inverted lists where every token attends to every block up to its own,
// and for each token the position of each block in those lists, as data_invert_fill does for lists of n
// blocks. n is the number of blocks of the longest sequence, and slot j holds block j.
//
// Entries have slot 0 whatever the block: nobody reads it, and blocks are more than it could tell apart.
//
// Grid: x covers (tokens of the chunk) * n, slots fastest, one per thread. Bound by its stores.
//
// Config: kSelectBlock (l'), kSelectCount (n), kThreads, kMinBlocks.
#pragma once
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/inverted_lists.cuh"
#include "params/attention.h"

template <class Config> NSAI_DEVICE void fill_slot(const NsaiInvert &p) {
  const long long at = (long long)blockIdx.x * Config::kThreads + threadIdx.x;
  const int token = p.token_begin + (int)(at / Config::kSelectCount);
  const int block = (int)(at % Config::kSelectCount);
  if (token >= p.token_end) return;
  const int s = find_row_sequence(p.seq, token);
  const Sequence seq = load_sequence(p.seq, s);
  const int query = token - seq.q_begin;
  int index = kNoToken;
  if (query < seq.q_len) {
    const int position = seq.position(query);
    index = kNoEntryIndex;
    if (position >= 0 && block <= position / Config::kSelectBlock) {
      const int number = first_block_number<Config::kSelectBlock>(p.seq, s) + block;
      index = p.starts[number] + token - first_token_of_block<Config::kSelectBlock>(p, seq, block);
      p.entries[index] = make_entry(token - p.token_begin, 0);
    }
  }
  p.entry_indices[at] = index;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    data_invert_all_fill(const __grid_constant__ NsaiInvert p) {
  begin_kernel();
  fill_slot<Config>(p);
}
