// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_index_kl_q: d_index_q, from the partial sums of a row's blocks, in the order of its list.
//
//   d_index_q[t, r] = c / (T Hi) si / UNIT * sum over slots of q_partial[entry of the slot]
//
// A row without a block gets 0; rows behind the last sequence are left untouched.
//
// Grid: x covers heads * chunk_tokens * Di / 4, four adjacent columns per thread. Bound by reading
// q_partial.
//
// Config: Element, kIndexDim, kSelectCount (n), kThreads, kMinBlocks.
#pragma once
#include "backward/index_kl_sum.cuh"
#include "backward/products.cuh"
#include "core/launch.cuh"

template <class Config> NSAI_DEVICE void sum_row(const NsaiIndexKl &p) {
  constexpr int kColumns = Config::kIndexDim / 4, kCount = Config::kSelectCount;
  const long long at = (long long)blockIdx.x * Config::kThreads + threadIdx.x;
  const long long row = at / kColumns;
  if (row >= (long long)p.heads * p.chunk_tokens) return;
  const int column = (int)(at % kColumns) * 4;
  const int head = (int)(row / p.chunk_tokens), token = (int)(row % p.chunk_tokens);
  const int *gIndices =
      p.entry_indices + list_of_head(p, head) * p.entry_capacity + (long long)token * kCount; // [n]
  if (gIndices[0] == kNoToken) return;
  const float *gPartial =
      p.q_partial + head * p.entry_capacity * Config::kIndexDim + column; // [entries, Di]
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
  for (int i = 0; i < kCount; ++i)
    if (gIndices[i] >= 0)
      add_four(sum, *(const float4 *)(gPartial + (long long)gIndices[i] * Config::kIndexDim));
  store_gradients<typename Config::Element>(
      p.d_index_q,
      (long long)(p.token_begin + token) * p.d_index_q.view.token_stride +
          (p.head_begin + head) * p.d_index_q.view.head_stride + column,
      scaled(sum, gradient_factor(p)));
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_index_kl_q(const __grid_constant__ NsaiIndexKl p) {
  begin_kernel();
  sum_row<Config>(p);
}
