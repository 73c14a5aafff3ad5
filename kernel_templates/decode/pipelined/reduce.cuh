// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// How decode_pipelined adds up a token's branches. The warps' O and statistics lie in shared
// memory. Each thread adds up its output vectors (for the compressed and the window branch only the
// producers' threads do) and, in a cluster, sends those of other CTAs' slices to them. Branches are
// added in the order in which they are computed: compressed, window, selected. An output vector is
// four columns of a row; slice c has vectors [c * kSlice, (c + 1) * kSlice).
//
// Config: Element, kHeadDimV, kGroup, kGate, kWarps, kThreads, kCluster.
#pragma once
#include "core/cluster.cuh"
#include "core/code_fragments.cuh"
#include "core/epilogue.cuh"
#include "core/softmax.cuh"
#include "core/tile.cuh"
#include "params/kv_cache.h"

template <class C> struct PipelinedVectors {
  static constexpr int kBranches = NSAI_BRANCH_COUNT;
  static constexpr int kRowVectors = C::kHeadDimV / 4;
  static constexpr int kVectors = C::kGroup * kRowVectors;
  static constexpr int kSlice = kVectors / C::kCluster;
  static constexpr int kPitch =
      padded_dim(C::kHeadDimV) + 8; // of O, in floats: rows fall on different banks
  static_assert(kVectors % C::kCluster == 0, "slices have equal size");

  using WarpsStats = float2[C::kWarps][16]; // reference and sum

  // Output vector number i, in an order in which the CTA's own slice comes last.
  static NSAI_DEVICE int rotated(int i, int rank) { return (i + (rank + 1) * kSlice) % kVectors; }
};

// ---- results of the warps

// Stores O [16, Dv] of one warp, given as C fragments, for the other warps, and its statistics
// [16].
template <class C, int kO> NSAI_DEVICE void share_o(float *sO, const float (&o)[kO][4], int lane) {
  static_assert(!C::kEntryCodes, "share_code_o() is for products with codes");
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float *to = sO + (8 * r + lane / 4) * PipelinedVectors<C>::kPitch + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kO; ++j)
      *(float2 *)(to + 8 * j) = make_float2(o[j][2 * r], o[j][2 * r + 1]);
  }
}

// The same from codes; `scale` is that of the values.
template <class C, int kO>
NSAI_DEVICE void share_code_o(float *sO, const float (&o)[kO][4], float scale, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float *to = sO + (8 * r + lane / 4) * PipelinedVectors<C>::kPitch + lane % 4 * 4;
#pragma unroll
    for (int j = 0; j < kO; j += 2)
      *(float4 *)(to + 8 * j) =
          add_scaled(make_float4(0, 0, 0, 0), scale, code_columns(o[j], o[j + 1], r));
  }
}

NSAI_DEVICE void share_stats(float2 *sStats, const SoftmaxRows &rows, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = lanes_sum<4>(rows.sum[r]);
    if (lane % 4 == 0) sStats[8 * r + lane / 4] = make_float2(rows.reference[r], sum);
  }
}

// ---- messages from other CTAs

// What the other CTAs send for a CTA's slice.
template <class C, bool kAny = (C::kCluster > 1)> struct PipelinedReceived {
  using P = PipelinedVectors<C>;
  float4 o[C::kCluster - 1][P::kBranches][P::kSlice];
  float2 stats[C::kCluster - 1][P::kBranches][16];
};
template <class C> struct PipelinedReceived<C, false> {};

// Bytes of one branch of it.
template <class C> NSAI_DEVICE u32 received_bytes(int rank) {
  using P = PipelinedVectors<C>;
  const int begin = rank * P::kSlice, end = begin + P::kSlice;
  const int rows = (end - 1) / P::kRowVectors - begin / P::kRowVectors + 1;
  return (C::kCluster - 1) * (P::kSlice * 16 + rows * 8);
}

// One branch of an output vector.
struct PipelinedSum {
  float2 stats; // of the row
  float4 o;     // relative to the reference
};

// Adds up the warps from `first` on; their O lie `stride` floats apart.
template <class C>
NSAI_DEVICE PipelinedSum add_warps(const float *sO, int stride,
                                   const typename PipelinedVectors<C>::WarpsStats &sStats,
                                   int first, int i) {
  using P = PipelinedVectors<C>;
  const int row = i / P::kRowVectors, column = i % P::kRowVectors * 4;
  PipelinedSum x = { make_float2(kNoReference, 0.0f), make_float4(0, 0, 0, 0) };
#pragma unroll
  for (int w = 0; w < C::kWarps; ++w) x.stats.x = fmaxf(x.stats.x, sStats[w][row].x);
#pragma unroll
  for (int w = 0; w < C::kWarps; ++w) {
    if (w < first) continue;
    const float factor = exp2_approx(sStats[w][row].x - x.stats.x);
    x.stats.y = fmaf(factor, sStats[w][row].y, x.stats.y);
    x.o = add_scaled(x.o, factor, *(const float4 *)(sO + w * stride + row * P::kPitch + column));
  }
  return x;
}

// Sends branch b of output vector i to the CTA whose slice it belongs to, and with the first vector
// of each row there, the row's statistics.
template <class C>
NSAI_DEVICE void send_sum(PipelinedReceived<C> &received, u32 barrier, int rank, int i, int b,
                          const PipelinedSum &x) {
  using P = PipelinedVectors<C>;
  const int to = i / P::kSlice, row = i / P::kRowVectors, from = rank - (rank > to),
            at = i % P::kSlice;
  barrier = cluster_address(barrier, to);
  cluster_send(cluster_address(shared_address(&received.o[from][b][at]), to), x.o, barrier);
  if (at == 0 || i % P::kRowVectors == 0)
    cluster_send(cluster_address(shared_address(&received.stats[from][b][row]), to), x.stats,
                 barrier);
}

// Adds what the other CTAs sent of branch b of output vector i.
template <class C>
NSAI_DEVICE void add_received(const PipelinedReceived<C> &received, int i, int b, PipelinedSum &x) {
  using P = PipelinedVectors<C>;
#pragma unroll
  for (int from = 0; from < C::kCluster - 1; ++from) {
    const float2 stats = received.stats[from][b][i / P::kRowVectors],
                 sum = add_stats(x.stats, stats);
    const float mine = exp2_approx(x.stats.x - sum.x), theirs = exp2_approx(stats.x - sum.x);
    const float4 zero = make_float4(0, 0, 0, 0);
    x.o = add_scaled(add_scaled(zero, mine, x.o), theirs, received.o[from][b][i % P::kSlice]);
    x.stats = sum;
  }
}

// ---- outputs

// Loads the gates of the token's heads as stored; each of the first threads loads one and stores it
// with keep_gate().
template <class C> NSAI_DEVICE u32 load_gate_of(const NsaiDecode &p, int token, int group) {
  const int b = threadIdx.x / 16, head = threadIdx.x % 16;
  const bool present =
      b < PipelinedVectors<C>::kBranches && head < C::kGroup && p.branches >> b & 1;
  return present ? load_gate<C>(p.out[b], OutputRow{ token, group * C::kGroup + head, true }) : 0;
}
template <int kBranches> NSAI_DEVICE void keep_gate(u32 (&sGates)[kBranches][16], u32 gate) {
  if (threadIdx.x < kBranches * 16) sGates[threadIdx.x / 16][threadIdx.x % 16] = gate;
}

// Stores lse and o_branch of branch b of an output vector if wanted, and returns `sum` plus the
// gated branch.
template <class C>
NSAI_DEVICE float4 store_branch(const NsaiDecode &p, int token, int group, int i, int b,
                                const PipelinedSum &x,
                                const u32 (&sGates)[PipelinedVectors<C>::kBranches][16],
                                const float4 &sum) {
  using P = PipelinedVectors<C>;
  if (!(p.branches >> b & 1)) return sum;
  const int column = i % P::kRowVectors * 4, head = i / P::kRowVectors;
  const OutputRow row = { token, group * C::kGroup + head, true };
  const NsaiEpilogue &out = p.out[b];
  const float4 o = finish_four<C>(out, row, column, x.stats.x, x.stats.y, x.o);
  if (x.stats.y == 0.0f) return sum;
  return add_scaled(sum, gate_value<C>(out, sGates[b][head]), o);
}
