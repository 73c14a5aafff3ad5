// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_round_do: rounds d_o from f32 to the model's dtype for the products.
//
//   out[t, h, :] = d_o[t, h, :];   d_o f32 [T, Hq, Dv], any strides -> out dtype [T, Hq, Dv]
//                                  contiguous
//
// Grid: x = ceil(T * Hq * Dv / 4 / kThreads), one thread per four columns. f32 tensors need only
// 4-byte alignment. Bound by HBM. No shared memory.
//
// Config: Element, kHeadDimV, kThreads, kMinBlocks.
#pragma once
#include "core/launch.cuh"
#include "core/types.cuh"
#include "params/backward.h"

template <class Config> NSAI_DEVICE void round_rows(const NsaiBackwardRound &p) {
  using E = typename Config::Element;
  constexpr int kColumns = Config::kHeadDimV / 4; // threads per row
  const long long index = (long long)blockIdx.x * Config::kThreads + threadIdx.x;
  const long long row = index / kColumns;
  if (row >= (long long)p.tokens * p.heads) return;
  const int token = (int)(row / p.heads), head = (int)(row % p.heads);
  const float *from = (const float *)p.d_o.data + token * p.d_o.token_stride +
                      head * p.d_o.head_stride + index % kColumns * 4;
  ((uint2 *)p.out)[index] = make_uint2(E::pack(from[0], from[1]), E::pack(from[2], from[3]));
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_round_do(const __grid_constant__ NsaiBackwardRound p) {
  begin_kernel();
  round_rows<Config>(p);
}
