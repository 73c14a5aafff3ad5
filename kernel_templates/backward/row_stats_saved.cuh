// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// backward_row_stats_saved: the same statistics as backward_row_stats for branches whose output and
// LSE the forward pass has saved: u = dO . o_b from the rounded o_b.
//
// d_o, o_branch [T, Hq, Dv], lse [T, Hq], gate [T, Hq, 3] -> RowStatistics [3, T, Hq], d_gate
// [T, Hq, 3]
//
// Grid: x = ceil(T * Hq * kLanes / kThreads); kLanes lanes of a warp share a row, and each takes
// 16 bytes of its tensors. Bound by HBM. No shared memory.
//
// Config: Element, kHeadDimV, kGate, kThreads, kMinBlocks.
#pragma once
#include "backward/products.cuh"
#include "core/launch.cuh"
#include "data/sequence.cuh"
#include "params/attention.h"
#include "params/backward.h"

// The number of 16-byte chunks of a row, rounded up to a power of two.
constexpr NSAI_DEVICE int lanes_of_row(int dim) {
  int lanes = 1;
  while (8 * lanes < dim) lanes *= 2;
  return lanes;
}

// The lane's share of the dot product of two rows.
template <class E> NSAI_DEVICE float dot_chunks(const Chunk &a, const Chunk &b) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(E::low(a.w[i]), E::low(b.w[i]), sum);
    sum = fmaf(E::high(a.w[i]), E::high(b.w[i]), sum);
  }
  return sum;
}

template <class Config> NSAI_DEVICE void save_row(const NsaiBackwardSaved &p) {
  using E = typename Config::Element;
  constexpr int kLanes = lanes_of_row(Config::kHeadDimV);
  const long long row = ((long long)blockIdx.x * Config::kThreads + threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes;
  const int token = (int)(row / p.heads), head = (int)(row % p.heads);
  const bool exists = row < (long long)p.seq.q_tokens * p.heads &&
                      !(p.seq.cu_q && token >= p.seq.cu_q[p.seq.num_seqs]);
  auto load = [&](const NsaiView &x) {
    if (!exists || 8 * lane >= Config::kHeadDimV) return Chunk{};
    return *(const Chunk *)((const u16 *)x.data + token * x.token_stride + head * x.head_stride +
                            8 * lane);
  };

  // ---- issue all loads before the first use
  const Chunk d_o = load(p.d_o);
  Chunk o[NSAI_BRANCH_COUNT] = {};
  float lse[NSAI_BRANCH_COUNT] = {}, gate[NSAI_BRANCH_COUNT] = {};
#pragma unroll
  for (int b = 0; b < NSAI_BRANCH_COUNT; ++b) {
    if (!(p.saved >> b & 1)) continue;
    o[b] = load(p.o_branch[b]);
    if (!exists || lane) continue;
    lse[b] = p.lse[b][token * p.lse_token_stride[b] + head * p.lse_head_stride[b]];
    gate[b] = read_gate<Config>(p.gate, p.gate_float, b, token, head);
  }

#pragma unroll
  for (int b = 0; b < NSAI_BRANCH_COUNT; ++b) {
    RowStatistics x = {};
    if (p.saved >> b & 1) {
      float inner = dot_chunks<E>(o[b], d_o);
#pragma unroll
      for (int delta = kLanes / 2; delta; delta /= 2) inner += __shfl_xor_sync(~0u, inner, delta);
      if (!exists || lane) continue;
      // A row without keys gets zeros: its gate and dO may hold anything.
      x = lse[b] == kMinusInf ? RowStatistics{ kPlusInf, 0.0f, 0.0f, 0.0f }
                              : make_statistics<Config>(lse[b] * kLog2e, gate[b], inner);
      ((RowStatistics *)p.statistics)[statistics_at(b, p.seq.q_tokens, token, p.heads, head)] = x;
    }
    if (exists && !lane && ((p.saved | p.absent) >> b & 1))
      store_gate<Config>(p.d_gate, token, head, b, x);
  }
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    backward_row_stats_saved(const __grid_constant__ NsaiBackwardSaved p) {
  begin_kernel();
  save_row<Config>(p);
}
