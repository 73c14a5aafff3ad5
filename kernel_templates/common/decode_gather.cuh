// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// How decode_cluster's blocks add up a token's branches: every block adds up its warps' O, and sends each
// block of the cluster a slice of it; every block adds up the slices it got, applies gates, and stores its
// slice of the outputs. Four columns of a row are a place; slice c has places [c * kSlice, (c + 1) *
// kSlice).
//
// Config: Element, kHeadDimV, kGroup, kGate, kWarps, kThreads, kCluster.
#pragma once
#include "common/cluster.cuh"
#include "common/copy.cuh"
#include "common/decode.cuh"
#include "common/epilogue.cuh"
#include "common/params.h"
#include "common/softmax.cuh"
#include "common/tile.cuh"

template <class C> struct Gather {
  static constexpr int kBranches = 3;
  static constexpr int kRowPlaces = C::kHeadDimV / 4;
  static constexpr int kPlaces = C::kGroup * kRowPlaces;
  static constexpr int kSlice = (kPlaces + C::kCluster - 1) / C::kCluster;
  static constexpr int kPitch = padded_dim(C::kHeadDimV) + 8; // floats: rows on different banks
  struct Received { // what the blocks of the cluster sent
    float4 o[kBranches][C::kCluster][kSlice];
    float2 stats[kBranches][C::kCluster][16]; // reference and sum, of the rows in the slice
  };
};

// O of one warp [16, Dv] for the others, C fragments, and its stats [16].
template <class C, int kO>
NSAI_DEVICE void share_o(float *sO, const float (&o)[kO][4], int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float *to = sO + (8 * r + lane / 4) * Gather<C>::kPitch + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kO; ++j) *(float2 *)(to + 8 * j) = make_float2(o[j][2 * r], o[j][2 * r + 1]);
  }
}
NSAI_DEVICE void share_stats(float2 *sStats, const SoftmaxRows &rows, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(rows.sum[r]);
    if (lane % 4 == 0) sStats[8 * r + lane / 4] = make_float2(rows.reference[r], sum);
  }
}

// The reference and sum of a row over kParts parts, their stats `stride` apart; those of others than
// [begin, end) do not count.
template <int kParts>
NSAI_DEVICE float2 add_stats(const float2 *sStats, int stride, int begin, int end) {
  float2 x[kParts];
  float highest = kNoReference, total = 0.0f;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    x[i] = begin <= i && i < end ? sStats[i * stride] : make_float2(kNoReference, 0.0f);
    highest = fmaxf(highest, x[i].x);
  }
#pragma unroll
  for (int i = 0; i < kParts; ++i) total = fmaf(exp2_approx(x[i].x - highest), x[i].y, total);
  return make_float2(highest, total);
}

NSAI_DEVICE float4 add_scaled(const float4 &sum, float factor, const float4 &x) {
  return make_float4(fmaf(factor, x.x, sum.x), fmaf(factor, x.y, sum.y), fmaf(factor, x.z, sum.z),
                     fmaf(factor, x.w, sum.w));
}

// Place `i` of branch `b` to the block whose slice has it; with the first of each row there, its stats.
template <class C>
NSAI_DEVICE void send_place(const typename Gather<C>::Received &received, u32 barrier, int b, int rank,
                            int i, const float4 &x, const float2 &stats) {
  constexpr int kSlice = Gather<C>::kSlice;
  const int owner = i / kSlice, row = i / Gather<C>::kRowPlaces;
  const u32 there = cluster_address(barrier, owner);
  cluster_send(cluster_address(shared_address(&received.o[b][rank][i % kSlice]), owner), x, there);
  if (i % kSlice == 0 || i % Gather<C>::kRowPlaces == 0)
    cluster_send(cluster_address(shared_address(&received.stats[b][rank][row]), owner), stats, there);
}

// Bytes that come of one branch to block `rank`.
template <class C> NSAI_DEVICE u32 slice_bytes(int rank) {
  using G = Gather<C>;
  const int begin = rank * G::kSlice, end = min(begin + G::kSlice, G::kPlaces);
  if (begin >= end) return 0;
  const int rows = (end - 1) / G::kRowPlaces - begin / G::kRowPlaces + 1;
  return C::kCluster * ((end - begin) * 16 + rows * 8);
}

// ---- the block's slice

// kLanes lanes share a place: each adds up what every kLanes-th block sent.
template <class C> struct Slice {
  static constexpr int kLanes = C::kCluster < 8 ? C::kCluster : 8;
  static constexpr int kEach = C::kCluster / kLanes;
  static constexpr int kPass = C::kThreads / kLanes;
  static constexpr int kRounds = (Gather<C>::kSlice + kPass - 1) / kPass;
};

template <int kLanes> NSAI_DEVICE float lanes_sum(float x) {
#pragma unroll
  for (int apart = 1; apart < kLanes; apart *= 2) x += __shfl_xor_sync(~0u, x, apart);
  return x;
}
template <int kLanes> NSAI_DEVICE float lanes_max(float x) {
#pragma unroll
  for (int apart = 1; apart < kLanes; apart *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, apart));
  return x;
}

// The sum of a place of branch `b` over the cluster, and its row's stats; to all of its lanes. Nothing where
// the branch is not `wanted`: without a branch, so that the loads of all branches are under way at once.
template <class C>
NSAI_DEVICE float4 gather_place(const typename Gather<C>::Received &received, int b, int at, int row,
                                int lane, bool wanted, float2 &stats) {
  using S = Slice<C>;
  float2 part[S::kEach];
  float4 o[S::kEach];
  float highest = kNoReference, total = 0.0f;
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int e = 0; e < S::kEach; ++e) {
    part[e] = received.stats[b][lane + e * S::kLanes][row];
    o[e] = received.o[b][lane + e * S::kLanes][at];
    if (!wanted) part[e] = make_float2(kNoReference, 0.0f), o[e] = make_float4(0, 0, 0, 0);
    highest = fmaxf(highest, part[e].x);
  }
  highest = lanes_max<S::kLanes>(highest);
#pragma unroll
  for (int e = 0; e < S::kEach; ++e) {
    const float factor = exp2_approx(part[e].x - highest);
    total = fmaf(factor, part[e].y, total);
    sum = add_scaled(sum, factor, o[e]);
  }
  stats = make_float2(highest, lanes_sum<S::kLanes>(total));
  return make_float4(lanes_sum<S::kLanes>(sum.x), lanes_sum<S::kLanes>(sum.y),
                     lanes_sum<S::kLanes>(sum.z), lanes_sum<S::kLanes>(sum.w));
}

template <class C>
NSAI_DEVICE void store_place(const NsaiView &view, const OutputRow &row, int column, const float4 &x) {
  u16 *to = (u16 *)view.data + row.token * view.token_stride + row.head * view.head_stride + column;
  *(uint2 *)to = make_uint2(C::Element::pack(x.x, x.y), C::Element::pack(x.z, x.w));
}

// The gates of a place's row.
template <class C> struct PlaceGates {
  u32 of[Gather<C>::kBranches];
};
template <class C>
NSAI_DEVICE PlaceGates<C> load_gates(const NsaiDecode &p, int token, int group, int i) {
  const OutputRow row = { token, group * C::kGroup + i / Gather<C>::kRowPlaces,
                          i < Gather<C>::kPlaces };
  PlaceGates<C> gates;
#pragma unroll
  for (int b = 0; b < Gather<C>::kBranches; ++b)
    gates.of[b] = p.branches >> b & 1 ? load_gate<C>(p.out[b], row) : 0;
  return gates;
}

// Place `at` of the slice, `i` of all, into the outputs. Whole warps take part.
template <class C>
NSAI_DEVICE void finish_place(const NsaiDecode &p, const typename Gather<C>::Received &received,
                              int token, int group, int at, int i, const PlaceGates<C> &gates) {
  const int lane = threadIdx.x % Slice<C>::kLanes;
  const bool exists = at < Gather<C>::kSlice && i < Gather<C>::kPlaces;
  if (!exists) at = i = 0;
  const int in_group = i / Gather<C>::kRowPlaces, column = i % Gather<C>::kRowPlaces * 4;
  const OutputRow row = { token, group * C::kGroup + in_group, exists };
  float2 stats[Gather<C>::kBranches];
  float4 x[Gather<C>::kBranches], sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int b = 0; b < Gather<C>::kBranches; ++b)
    x[b] = gather_place<C>(received, b, at, in_group, lane, p.branches >> b & 1, stats[b]);
  if (!exists || lane != 0) return;
#pragma unroll
  for (int b = 0; b < Gather<C>::kBranches; ++b) { // in the order of the sum
    if (!(p.branches >> b & 1)) continue;
    const NsaiEpilogue &out = p.out[b];
    const float inverse = stats[b].y > 0.0f ? __fdividef(1.0f, stats[b].y) : 0.0f;
    x[b] = make_float4(x[b].x * inverse, x[b].y * inverse, x[b].z * inverse, x[b].w * inverse);
    // An empty row may be a padding row, whose gate may be anything.
    if (stats[b].y != 0.0f) sum = add_scaled(sum, gate_value<C>(out, gates.of[b]), x[b]);
    if (out.lse && column == 0)
      out.lse[row.token * out.lse_token_stride + row.head * out.lse_head_stride] =
          softmax_lse(stats[b].x, stats[b].y);
    if (out.o_branch.data) store_place<C>(out.o_branch, row, column, x[b]);
  }
  store_place<C>(p.out[0].o, row, column, sum);
}
