// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_index_lse: io.index_lse, the log-sum-exp of the index's scores over all blocks of a row, from
// those of each block (backward/index_kl_lse.cuh).
//
//   entry_lse [heads, entries], base 2, indexed by entry_indices -> row_lse, f32 [T, Hi], natural log
//
// A row without a block gets -inf; rows behind the last sequence are left untouched. lse_token_stride and
// lse_head_stride are those of row_lse.
//
// Grid: x covers heads * chunk_tokens, one row per thread.
//
// Config: kSelectCount (n), kThreads, kMinBlocks.
#pragma once
#include "backward/index_kl_items.cuh"
#include "core/launch.cuh"
#include "core/softmax.cuh"

template <class Config> NSAI_DEVICE void sum_blocks(const NsaiIndexKl &p) {
  const long long row = (long long)blockIdx.x * Config::kThreads + threadIdx.x;
  if (row >= (long long)p.heads * p.chunk_tokens) return;
  const int head = (int)(row / p.chunk_tokens), token = (int)(row % p.chunk_tokens);
  const int *gIndices = p.entry_indices + list_of_head(p, head) * p.entry_capacity +
                        (long long)token * Config::kSelectCount; // [n]
  const float *gLse = p.entry_lse + head * p.entry_capacity;
  if (gIndices[0] == kNoToken) return;
  const EntrySum x = sum_entries<Config>(gLse, gIndices);
  p.row_lse[(p.token_begin + token) * p.lse_token_stride + head * p.lse_head_stride] =
      x.sum > 0.0f ? x.lse() * kLn2 : kMinusInf;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_index_lse(const __grid_constant__ NsaiIndexKl p) {
  begin_kernel();
  sum_blocks<Config>(p);
}
