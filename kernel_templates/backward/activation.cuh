// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_activation: passes the gradient of a layer's result through its activation and rounds it
// to an operand of the following GEMMs, in the backward pass of phi linear, phi mlp and the gate
// MLP.
//
//   d[b, r, c] = sum over parts of d_y[b, part, r, c] * act'(z[b, r, c]),   z = x + shift + bias
//   -> d_y[b, 0, r, c] in f32, out[b, r, c] rounded once; if wanted hidden[b, r, c] = act(z),
//   rounded
//
//   d_y    f32 [batch, parts, rows, columns], any strides of the first three dimensions
//   x      f32 [batch, rows, columns], shift f32 [batch, columns] or absent, bias dtype
//          [batch, columns] or absent, as in compress_bias_activation; without an activation x is
//          not read
//   out    dtype [batch, .., columns], hidden the same: operands of cuBLASLt
//
// Rows that do not exist (kRowsOf 0: rows of compressed storage without a block; 1: tokens behind
// the last sequence) become zeros whatever they hold. The GEMMs may then run over all rows,
// although the true counts are known on the device only.
//
// Grid: x covers all elements, one element per thread, columns fastest. No shared memory. Bound by
// memory.
//
// Config: Element, kActivation (core/activation.cuh), kRowsOf, kBlock (l), kStride (d), kThreads,
// kMinBlocks.
#pragma once
#include "core/activation.cuh"
#include "core/launch.cuh"
#include "core/types.cuh"
#include "data/compressed_row.cuh"
#include "params/backward.h"

template <class Config> NSAI_DEVICE bool row_exists(const NsaiSequences &seqs, int row) {
  if constexpr (Config::kRowsOf == 0)
    return find_block_row<Config::kBlock, Config::kStride>(seqs, row).exists;
  return !seqs.cu_q || row < seqs.cu_q[seqs.num_seqs];
}

template <class Config> NSAI_DEVICE void activation_back_body(const NsaiActivationBack &p) {
  using E = typename Config::Element;
  const long long at = (long long)blockIdx.x * Config::kThreads + threadIdx.x;
  const long long per_batch = (long long)p.rows * p.columns;
  if (at >= per_batch * p.batch) return;
  const int b = (int)(at / per_batch);
  const long long in_batch = at - b * per_batch;
  const int row = (int)(in_batch / p.columns),
            column = (int)(in_batch - (long long)row * p.columns);
  float *d_y = p.d_y + b * p.d_batch_stride + row * p.d_row_stride + column;
  float d = 0.0f, hidden = 0.0f;
  if (row_exists<Config>(p.seq, row)) {
    for (int part = 0; part < p.parts; ++part) d += d_y[part * p.d_part_stride];
    if constexpr (Config::kActivation != 3) {
      float x = p.x[b * p.x_batch_stride + in_batch];
      if (p.shift) x += p.shift[b * p.x_batch_stride + column];
      if (p.bias) x += E::low(((const u16 *)p.bias)[b * p.bias_batch_stride + column]);
      d *= activation_slope<Config::kActivation>(x);
      hidden = activate<Config::kActivation>(x);
    }
  }
  *d_y = d;
  ((u16 *)p.out)[b * p.out_batch_stride + row * p.out_row_stride + column] = (u16)E::pack(d, 0.0f);
  if (Config::kActivation != 3 && p.hidden)
    ((u16 *)p.hidden)[b * p.hidden_batch_stride + row * p.out_row_stride + column] =
        (u16)E::pack(hidden, 0.0f);
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_activation(const __grid_constant__ NsaiActivationBack p) {
  begin_kernel();
  activation_back_body<Config>(p);
}
