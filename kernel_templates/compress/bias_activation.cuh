// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// compress_bias_activation: bias and activation between and after the GEMMs of phi linear, phi mlp
// and the gate MLP.
//
//   out[b, r, c] = act(x[b, r, c] + shift[b, c] + bias[b, c])
//
//   x     f32 [batch, rows, columns], rows contiguous, as written by cuBLASLt
//   shift f32 [batch, columns] or absent: pe times the weights
//   bias  dtype [batch, columns] or absent
//   out   dtype or f32, any row and batch stride
//   rest  dtype or absent: out + rest is the result to twice the precision of dtype
//
// Grid: x covers all elements, one element per thread, columns fastest, so that loads and stores
// are coalesced. No shared memory. Bound by memory; at most a few MB beside the GEMMs around it.
//
// Config: Element, kActivation (0 relu, 1 silu, 2 gelu, 3 none), kOutFloat, kBlocks (rows are
// compressed storage), kBlock (l), kStride (d), kThreads, kMinBlocks.
#pragma once
#include "core/activation.cuh"
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/compressed_row.cuh"
#include "params/attention.h"

template <class Config> NSAI_DEVICE void bias_activation_body(const NsaiBiasActivation &p) {
  long long at = (long long)blockIdx.x * Config::kThreads + threadIdx.x;
  long long per_batch = (long long)p.rows * p.columns;
  if (at >= per_batch * p.batch) return;
  int b = (int)(at / per_batch);
  long long in_batch = at - b * per_batch;
  int row = (int)(in_batch / p.columns), column = (int)(in_batch - (long long)row * p.columns);
  if constexpr (Config::kBlocks) {
    if (!find_block_row<Config::kBlock, Config::kStride>(p.seq, row).exists) return;
  }
  float x = p.x[b * p.x_batch_stride + in_batch];
  if (p.shift) x += p.shift[b * p.x_batch_stride + column];
  if (p.bias) x += Config::Element::low(((const u16 *)p.bias)[b * p.bias_batch_stride + column]);
  x = activate<Config::kActivation>(x);
  long long to = b * p.out_batch_stride + row * p.out_row_stride + column;
  if constexpr (Config::kOutFloat) {
    ((float *)p.out)[to] = x;
  } else {
    u32 rounded = Config::Element::pack(x, 0.0f);
    ((u16 *)p.out)[to] = (u16)rounded;
    // A result that became inf has no rest: inf - inf would make the sum NaN.
    float left = x - Config::Element::low(rounded);
    if (p.rest)
      ((u16 *)p.rest)[to] = (u16)Config::Element::pack(fabsf(left) < 1e30f ? left : 0.0f, 0.0f);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    compress_bias_activation(const __grid_constant__ NsaiBiasActivation p) {
  begin_kernel();
  bias_activation_body<Config>(p);
}
