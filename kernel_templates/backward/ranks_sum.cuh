// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_ranks_sum: adds up the ranks' partial sums of a gradient in the order of ranks, and stores
// the sum or adds it to what the tensor holds, rounded once.
//
//   out[r, h, c] = sum over the parts i that have row r of part[i][r, h, c]
//
//   part[i] f32 [part_rows[i], heads, columns] contiguous -> out dtype or f32 [rows, heads, columns]
//
// A rank whose last token stands before row r has no such row. Without any part the sum is 0.
//
// Grid: x covers all elements, one element per thread, columns fastest. No shared memory. Bound by
// memory.
//
// Config: Element, kThreads, kMinBlocks.
#pragma once
#include "backward/products.cuh"
#include "core/launch.cuh"
#include "core/types.cuh"
#include "params/backward.h"

template <class Config> NSAI_DEVICE void sum_parts(const NsaiRanksSum &p) {
  const long long at = (long long)blockIdx.x * Config::kThreads + threadIdx.x;
  const long long line = at / p.columns; // row * heads + head
  const int row = (int)(line / p.heads), head = (int)(line - (long long)row * p.heads),
            column = (int)(at - line * p.columns);
  if (row >= p.rows) return;
  float sum = 0.0f;
#pragma unroll 4
  for (int i = 0; i < p.parts; ++i)
    if (row < p.part_rows[i]) sum += p.part[i][at];
  store_gradient<typename Config::Element>(
      p.out, row * p.out.view.token_stride + head * p.out.view.head_stride + column, sum);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_ranks_sum(const __grid_constant__ NsaiRanksSum p) {
  begin_kernel();
  sum_parts<Config>(p);
}
