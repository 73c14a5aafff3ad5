// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_store_gradient: stores a gradient from the workspace in the caller's tensor, or adds it
// to what the tensor holds, rounded once.
//
//   x f32 [batch, rows, columns], columns contiguous, or absent: zeros
//   -> out dtype or f32 [batch, rows, columns]. If rows are tokens (first_token >= 0: row r is
//   token first_token + r), those behind the last sequence are left untouched
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

template <class Config> NSAI_DEVICE void store_elements(const NsaiStoreGradient &p) {
  const long long at = (long long)blockIdx.x * Config::kThreads + threadIdx.x;
  const long long per_batch = (long long)p.rows * p.columns;
  if (at >= per_batch * p.batch) return;
  const int b = (int)(at / per_batch);
  const long long in_batch = at - b * per_batch;
  const int row = (int)(in_batch / p.columns),
            column = (int)(in_batch - (long long)row * p.columns);
  if (p.first_token >= 0 && p.seq.cu_q && p.first_token + row >= p.seq.cu_q[p.seq.num_seqs]) return;
  store_gradient<typename Config::Element>(p.out,
                                           b * p.out.view.head_stride +
                                               row * p.out.view.token_stride + column,
                                           p.x ? p.x[b * p.x_batch_stride + in_batch] : 0.0f);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_store_gradient(const __grid_constant__ NsaiStoreGradient p) {
  begin_kernel();
  store_elements<Config>(p);
}
