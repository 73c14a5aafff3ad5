// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_column_sums: sums over the rows of a matrix in two launches, first over parts of the
// rows, then over the parts. The shape alone determines the order of the sums.
//
//   sums[b, part, c] = sum over the rows r of the part of x[b, r, c]
//   row[b, c]        = sums[b, 0, c], rounded, if wanted
//
//   x f32 [batch, rows, columns] -> sums f32 [batch, parts, columns], row dtype [batch, columns]
//
// Grid: x = batch * parts * ceil(columns / 32), columns fastest. A CTA sums 32 columns over the
// rows of a part; each warp takes every (kThreads / 32)-th row, and the warps' sums are added in
// order. Bound by HBM.
//
// Config: Element, kThreads, kMinBlocks. Static shared memory: kThreads floats.
#pragma once
#include "core/launch.cuh"
#include "core/types.cuh"
#include "params/backward.h"

template <class Config> NSAI_DEVICE void sum_columns(const NsaiColumnSums &p) {
  constexpr int kWarps = Config::kThreads / 32;
  __shared__ float sSums[kWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int groups = ceil_div(p.columns, 32);
  const int column = blockIdx.x % groups * 32 + lane, part = blockIdx.x / groups % p.parts,
            b = blockIdx.x / groups / p.parts;
  const int begin = part * p.part_rows, end = min(begin + p.part_rows, p.rows);
  const float *gX = p.x + b * p.x_batch_stride + column; // [rows, columns]

  float sum = 0.0f;
  if (column < p.columns)
#pragma unroll 8
    for (int row = begin + warp; row < end; row += kWarps) sum += gX[row * p.x_row_stride];
  sSums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= p.columns) return;
  sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += sSums[w][lane];
  p.sums[((long long)b * p.parts + part) * p.columns + column] = sum;
  if (p.row)
    ((u16 *)p.row)[b * p.row_batch_stride + column] = (u16)Config::Element::pack(sum, 0.0f);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_column_sums(const __grid_constant__ NsaiColumnSums p) {
  begin_kernel();
  sum_columns<Config>(p);
}
