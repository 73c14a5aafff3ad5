// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_index_kl_rows: the log-sum-exp of the index's scores over all blocks of a row.
//
//   entry_lse [heads, entries], indexed by entry_indices -> row_lse [heads, chunk_tokens], base 2
//
// Grid: x covers heads * chunk_tokens, one row per thread. Nothing reads a row without a block.
//
// Config: kSelectCount (n), kThreads, kMinBlocks.
#pragma once
#include "backward/index_kl_items.cuh"
#include "core/launch.cuh"

template <class Config> NSAI_DEVICE void sum_blocks(const NsaiIndexKl &p) {
  const long long row = (long long)blockIdx.x * Config::kThreads + threadIdx.x;
  if (row >= (long long)p.heads * p.chunk_tokens) return;
  const int head = (int)(row / p.chunk_tokens);
  const int *gIndices = p.entry_indices + list_of_head(p, head) * p.entry_capacity +
                        row % p.chunk_tokens * Config::kSelectCount; // [n]
  const float *gLse = p.entry_lse + head * p.entry_capacity;
  p.row_lse[row] = sum_entries<Config>(gLse, gIndices).lse();
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_index_kl_rows(const __grid_constant__ NsaiIndexKl p) {
  begin_kernel();
  sum_blocks<Config>(p);
}
