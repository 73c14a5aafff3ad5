// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What backward_statistics finds out about rows, of the branches whose output and LSE the forward has
// left: u = dO . o_b, as the gradient of the branch's gate, from the rounded o_b.
//
// d_o, o_branch [T, Hq, Dv], lse [T, Hq], gate [T, Hq, 3] -> RowStatistics [3, T, Hq], d_gate [T, Hq, 3]
//
// Grid: x = ceil(T * Hq / (kThreads / 32)), a warp for each row, a lane for four columns. Bound by HBM.
// Config: Element, kHeadDimV, kGate, kThreads, kMinBlocks. No shared memory.
#pragma once
#include "common/gradient.cuh"
#include "common/launch.cuh"
#include "common/params.h"
#include "common/params_backward.h"
#include "common/sequence.cuh"

// The lane's columns of row `at`, times those of another, summed over the warp.
template <class Config> NSAI_DEVICE float dot_rows(const u16 *gA, const u16 *gB) {
  using E = typename Config::Element;
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < ceil_div(Config::kHeadDimV, 128); ++j) {
    if (!has_row_column<Config::kHeadDimV>(j)) continue;
    const uint2 a = *(const uint2 *)(gA + row_column(j)), b = *(const uint2 *)(gB + row_column(j));
    sum = fmaf(E::low(a.x), E::low(b.x), sum);
    sum = fmaf(E::high(a.x), E::high(b.x), sum);
    sum = fmaf(E::low(a.y), E::low(b.y), sum);
    sum = fmaf(E::high(a.y), E::high(b.y), sum);
  }
  return warp_sum(sum);
}

template <class Config>
NSAI_DEVICE RowStatistics branch_statistics(const NsaiBackwardSaved &p, int branch, int token,
                                            int head) {
  const NsaiView &o = p.o_branch[branch];
  const float lse =
      p.lse[branch][token * p.lse_token_stride[branch] + head * p.lse_head_stride[branch]];
  const float inner = dot_rows<Config>(
      (const u16 *)o.data + token * o.token_stride + head * o.head_stride,
      (const u16 *)p.d_o.data + token * p.d_o.token_stride + head * p.d_o.head_stride);
  // A row without keys, whose gate and dO may be anything.
  if (lse == kMinusInf) return RowStatistics{ kPlusInf, 0.0f, 0.0f, 0.0f };
  return make_statistics<Config>(
      lse * kLog2e, read_gate<Config>(p.gate, p.gate_float, branch, token, head), inner);
}

template <class Config> NSAI_DEVICE void save_row(const NsaiBackwardSaved &p) {
  const long long row = (long long)blockIdx.x * (Config::kThreads / 32) + threadIdx.x / 32;
  if (row >= (long long)p.seq.q_tokens * p.heads) return;
  const int token = (int)(row / p.heads), head = (int)(row % p.heads);
  if (p.seq.cu_q && token >= p.seq.cu_q[p.seq.num_seqs]) return;
#pragma unroll
  for (int b = 0; b < NSAI_BRANCH_COUNT; ++b) {
    RowStatistics x = {};
    if (p.saved >> b & 1) {
      x = branch_statistics<Config>(p, b, token, head);
      if (threadIdx.x % 32 == 0)
        ((RowStatistics *)p.statistics)[statistics_at(b, p.seq.q_tokens, token, p.heads, head)] = x;
    }
    if (((p.saved | p.absent) >> b & 1) && threadIdx.x % 32 == 0)
      store_gate<Config>(p.d_gate, token, head, b, x);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_saved(const __grid_constant__ NsaiBackwardSaved p) {
  begin_kernel();
  save_row<Config>(p);
}
