// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_present_rows: copies rows of tokens, with zeros for tokens behind the last sequence.
// Such rows may hold anything, but weight gradients are sums over all rows and must stay finite.
//
//   out[r, :] = x[first_token + r, :]
//   x dtype [T, columns], any row stride -> out dtype [rows, columns] contiguous, read by cuBLASLt
//
// Grid: x covers all elements, one element per thread, columns fastest. No shared memory. Bound by
// HBM.
//
// Config: kThreads, kMinBlocks.
#pragma once
#include "core/launch.cuh"
#include "core/types.cuh"
#include "params/backward.h"

template <class Config> NSAI_DEVICE void copy_present(const NsaiPresentRows &p) {
  const long long at = (long long)blockIdx.x * Config::kThreads + threadIdx.x;
  if (at >= (long long)p.rows * p.columns) return;
  const int row = (int)(at / p.columns), column = (int)(at - (long long)row * p.columns);
  const int token = p.first_token + row;
  const bool present = !p.seq.cu_q || token < p.seq.cu_q[p.seq.num_seqs];
  ((u16 *)p.out)[at] = present ? ((const u16 *)p.x)[token * p.x_row_stride + column] : (u16)0;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_present_rows(const __grid_constant__ NsaiPresentRows p) {
  begin_kernel();
  copy_present<Config>(p);
}
