// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// How the CTAs of decode_cluster add up a token's branches. Each CTA sends a slice of its O, and
// its statistics, to every CTA of the cluster. Each CTA adds up the slices it received, applies the
// gates and stores its slice of the outputs. Branches are added in the order in which they are
// computed: compressed, window, selected. An output vector is four columns of a row; slice c has
// vectors [c * kSlice, (c + 1) * kSlice).
//
// Config: Element, kHeadDimV, kGroup, kGate, kWarps, kThreads, kCluster, kRawCodes.
#pragma once
#include "core/cluster.cuh"
#include "core/copy.cuh"
#include "core/epilogue.cuh"
#include "core/softmax.cuh"
#include "core/tile.cuh"
#include "decode/cluster/consumer.cuh"
#include "decode/work.cuh"
#include "params/attention.h"

template <class C> struct Reduction {
  static constexpr int kBranches = NSAI_BRANCH_COUNT;
  static constexpr int kRowVectors = C::kHeadDimV / 4;
  static constexpr int kVectors = C::kGroup * kRowVectors;
  static constexpr int kSlice = (kVectors + C::kCluster - 1) / C::kCluster;
  // Odd, so that the CTAs' values of one vector fall on different banks.
  static constexpr int kPitch = kSlice | 1;
  struct Received { // from the CTAs of the cluster
    float4 o[kBranches][C::kCluster][kPitch];
    float2 stats[kBranches][C::kCluster][16]; // reference and sum
  };
};

// Where a lane sends four columns of a row of O. Computed before the values are known.
template <class C> struct ColumnTarget {
  bool exists;
  u32 owner_base; // `base` of the CTA that owns the slice
  u32 offset;     // in received.o[0], relative to `base`
  NSAI_DEVICE void find(const typename Reduction<C>::Received &received, u32 base, int rank, int j,
                        int r, int warp, int lane) {
    using G = Reduction<C>;
    const int row = 8 * r + lane / 4,
              column = (warp + j * C::kWarps) * 16 +
                       (ClusterStream<C>::kCoded ? lane % 4 * 4 : column_of_lane());
    const u32 i = row * G::kRowVectors + column / 4, owner = i / G::kSlice;
    offset = shared_address(&received.o[0][rank][i % G::kSlice]) - base;
    // Padding is not sent, but the address must be that of an existing CTA. (With wide heads a
    // minimum would spill registers.)
    owner_base = cluster_address(base, kWideHeads<C> ? owner % C::kCluster
                                                     : min(owner, (u32)C::kCluster - 1));
    exists = row < C::kGroup && column < C::kHeadDimV;
  }
};
template <class C> struct ColumnTargets {
  static constexpr bool kAhead = !kWideHeads<C>; // wide heads leave no registers for it
  static constexpr int kRows = kAhead ? 2 : 1, kEach = kAhead ? BranchAccumulator<C>::kEach : 1;
  ColumnTarget<C> of[kEach][kRows];
  NSAI_DEVICE ColumnTargets(const typename Reduction<C>::Received &received, u32 base, int rank,
                            int warp, int lane) {
    if constexpr (kAhead)
#pragma unroll
      for (int i = 0; i < 2 * kEach; ++i)
        of[i / 2][i % 2].find(received, base, rank, i / 2, i % 2, warp, lane);
  }
};

// Sends the warp's columns of branch `b`, relative to the CTA's references, to the CTAs that own
// them. `barrier` is the index of the receiver's barrier from `base` on.
template <class C>
NSAI_DEVICE void send_columns(const ColumnTargets<C> &targets,
                              const typename Reduction<C>::Received &received, u32 base,
                              int barrier, int b, int rank, const BranchAccumulator<C> &sums,
                              int warp, int lane) {
  using G = Reduction<C>;
  constexpr bool kAhead = ColumnTargets<C>::kAhead;
#pragma unroll
  for (int j = 0; j < BranchAccumulator<C>::kEach; ++j)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float4 x = ClusterStream<C>::kCoded
                           ? code_columns(sums.o[j][0], sums.o[j][1], r)
                           : gather_four(sums.o[j][0][2 * r], sums.o[j][0][2 * r + 1],
                                         sums.o[j][1][2 * r], sums.o[j][1][2 * r + 1]);
      ColumnTarget<C> to = targets.of[kAhead ? j : 0][kAhead ? r : 0];
      if constexpr (!kAhead) to.find(received, base, rank, j, r, warp, lane);
      if (to.exists)
        cluster_send(to.owner_base + to.offset + b * (u32)sizeof(received.o[0]), x,
                     to.owner_base + 8 * barrier);
    }
}

// Bytes of O that CTA `rank` receives for one branch.
template <class C> NSAI_DEVICE u32 slice_bytes(int rank) {
  using G = Reduction<C>;
  return C::kCluster * 16 * max(min(G::kSlice, G::kVectors - rank * G::kSlice), 0);
}

// Sends the CTA's statistics of branch `b` to all CTAs, once barrier `summed` says that they are
// complete. All producer threads take part.
template <class C>
NSAI_DEVICE void send_stats(const typename Reduction<C>::Received &received, u32 barrier, int b,
                            int rank, const ExchangeBuffer<C> &exchange_buffer, int thread,
                            u32 summed) {
  constexpr int kRounds = ceil_div(16 * C::kCluster, kProducerThreads<C>);
  static_assert(kProducerThreads<C> % 16 == 0, "a thread sends statistics of one row");
  const int row = thread % 16, first = thread / 16; // first: CTA
  u32 remote_barrier[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i)
    remote_barrier[i] =
        cluster_address(barrier, min(first + i * (kProducerThreads<C> / 16), C::kCluster - 1));
  barrier_wait(summed, 0);
  const float2 stats = block_stats<C>(exchange_buffer, b, row);
  const u32 to = shared_address(&received.stats[b][rank][row]) - barrier;
#pragma unroll
  for (int i = 0; i < kRounds; ++i)
    if (first + i * (kProducerThreads<C> / 16) < C::kCluster)
      cluster_send(remote_barrier[i] + to, stats, remote_barrier[i]);
}

// ---- this CTA's slice

// To compute weights, 16 lanes share a row of a branch. To add up, kLanes lanes share an output
// vector; each takes every kLanes-th CTA.
template <class C> struct Slice {
  using G = Reduction<C>;
  static constexpr int kRows = G::kSlice % G::kRowVectors == 0
                                   ? G::kSlice / G::kRowVectors
                                   : (G::kSlice - 2) / G::kRowVectors + 2;
  static constexpr int kBranchRows = G::kBranches * kRows; // (row, branch) pairs
  static constexpr int kBranchRowRounds = ceil_div(16 * kBranchRows, kProducerThreads<C>);
  static constexpr int kLanes = (C::kCluster & -C::kCluster) < 8 ? C::kCluster & -C::kCluster : 8;
  static constexpr int kEach = C::kCluster / kLanes;
  static constexpr int kPass = kConsumerThreads<C> / kLanes;
  static constexpr int kRounds = ceil_div(G::kSlice, kPass);
  struct Weights {
    float of[G::kBranches][kRows][C::kCluster]; // factor of each CTA's O in the branch
    float gates[G::kBranches][kRows];
  };
};

// A thread's (row, branch) pair, and what is loaded for it from global memory and parameters long
// before it is needed.
template <class C> struct SliceRow {
  int b, at;    // at: row of the slice
  int in_group; // row among the token's heads
  bool present;
  bool gate_float;
  u32 gate;
  float *lse;   // nullptr: not wanted, or another slice stores it
  float opened; // value of the gate
  NSAI_DEVICE void open() { opened = gate_value<C>(gate_float, gate); }
};
template <class C>
NSAI_DEVICE SliceRow<C> find_slice_row(const NsaiDecode &p, int thread, int r, int token, int group,
                                       int rank) {
  using G = Reduction<C>;
  const int slice_row = thread / 16 + r * (2 * kProducerWarps<C>), at = slice_row % Slice<C>::kRows;
  const int b = slice_row / Slice<C>::kRows, in_group = rank * G::kSlice / G::kRowVectors + at;
  SliceRow<C> x = { b, at, in_group,
                    slice_row < Slice<C>::kBranchRows && in_group < C::kGroup &&
                        p.branches >> b & 1 };
  if (!x.present) return x;
  const OutputRow row = { token, group * C::kGroup + in_group, true };
  const NsaiEpilogue &out = p.out[b];
  x.gate = load_gate<C>(out, row);
  x.gate_float = out.gate_float;
  if (out.lse && in_group * G::kRowVectors >= rank * G::kSlice)
    x.lse = out.lse + row.token * out.lse_token_stride + row.head * out.lse_head_stride;
  return x;
}

// Computes the weights of all CTAs' contributions to the slice, for the branches in the mask, and
// stores the LSE.
template <class C>
NSAI_DEVICE void weigh_slices(const typename Reduction<C>::Received &received,
                              typename Slice<C>::Weights &weights,
                              const SliceRow<C> (&slice_rows)[Slice<C>::kBranchRowRounds],
                              int branches, int thread) {
  const int block = thread % 16;
#pragma unroll
  for (int r = 0; r < Slice<C>::kBranchRowRounds; ++r) {
    const SliceRow<C> &slice_row = slice_rows[r];
    float2 stats = make_float2(kNoReference, 0.0f);
    const bool present = slice_row.present && branches >> slice_row.b & 1;
    if (present && block < C::kCluster)
      stats = received.stats[slice_row.b][block][slice_row.in_group];
    const float highest = lanes_max<16>(stats.x), factor = exp2_approx(stats.x - highest);
    const float total = lanes_sum<16>(factor * stats.y);
    if (!present) continue;
    if (block < C::kCluster)
      weights.of[slice_row.b][slice_row.at][block] =
          total > 0.0f ? __fdividef(factor, total) : 0.0f;
    if (block != 0) continue;
    // An empty row may be a padding row, whose gate may hold anything.
    weights.gates[slice_row.b][slice_row.at] = total != 0.0f ? slice_row.opened : 0.0f;
    if (slice_row.lse) *slice_row.lse = softmax_lse(highest, total);
  }
}

// Keeps x in a register from here on, because it is computed from constant memory, whose latency is
// high.
NSAI_DEVICE u64 kept(u64 x) {
  asm volatile("" : "+l"(x));
  return x;
}

// Output address of the token's query group, also loaded early.
struct SliceOutput {
  u16 *o;
  long long head_stride;
  bool branches; // some o_branch is wanted
};
template <class C> NSAI_DEVICE SliceOutput find_output(const NsaiDecode &p, int token, int group) {
  const NsaiView &o = p.out[0].o;
  bool branches = false;
#pragma unroll
  for (int b = 0; b < Reduction<C>::kBranches; ++b) branches |= p.out[b].o_branch.data != nullptr;
  return SliceOutput{ (u16 *)kept((u64)((u16 *)o.data + token * o.token_stride +
                                        group * C::kGroup * o.head_stride)),
                      (long long)kept((u64)o.head_stride), (bool)recomputed(branches) };
}

// The lane's share of output vector `at` of branch `b`, which lies in row `row` of the slice.
template <class C>
NSAI_DEVICE float4 add_received(const typename Reduction<C>::Received &received,
                                const typename Slice<C>::Weights &weights, int b, int at, int row,
                                int lane) {
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int e = 0; e < Slice<C>::kEach; ++e) {
    const int block = lane + e * Slice<C>::kLanes;
    sum = add_scaled(sum, weights.of[b][row][block], received.o[b][block][at]);
  }
  return sum;
}
template <class C> NSAI_DEVICE float4 sum_vector(const float4 &x) {
  constexpr int kLanes = Slice<C>::kLanes;
  return make_float4(lanes_sum<kLanes>(x.x), lanes_sum<kLanes>(x.y), lanes_sum<kLanes>(x.z),
                     lanes_sum<kLanes>(x.w));
}

// The output vector of a thread in each round. Whole warps take part.
template <class C> struct SliceVector {
  bool exists;
  int at, row;          // within the slice
  int in_group, column; // within the token
  NSAI_DEVICE SliceVector(int rank, int round) {
    using G = Reduction<C>;
    const int first = rank * G::kSlice;
    at = threadIdx.x / Slice<C>::kLanes + round * Slice<C>::kPass;
    exists = at < G::kSlice && first + at < G::kVectors;
    if (!exists) at = 0;
    in_group = (first + at) / G::kRowVectors, column = (first + at) % G::kRowVectors * 4;
    row = in_group - first / G::kRowVectors;
  }
};

// Adds the lane's share of an output vector for the branches in the mask.
template <class C>
NSAI_DEVICE float4 add_branches(const float4 &begin,
                                const typename Reduction<C>::Received &received,
                                const typename Slice<C>::Weights &weights, const SliceVector<C> &x,
                                int branches) {
  float4 sum = begin;
#pragma unroll
  for (int b = 0; b < Reduction<C>::kBranches; ++b)
    if (branches >> b & 1)
      sum = add_scaled(sum, weights.gates[b][x.row],
                       add_received<C>(received, weights, b, x.at, x.row,
                                       threadIdx.x % Slice<C>::kLanes));
  return sum;
}

// Stores an output vector; `partial` is the lane's share, over all branches.
template <class C>
NSAI_DEVICE void store_vectors(const NsaiDecode &p, const typename Reduction<C>::Received &received,
                               const typename Slice<C>::Weights &weights, const SliceOutput &out,
                               const SliceVector<C> &x, const float4 &partial, int token,
                               int group) {
  const int lane = threadIdx.x % Slice<C>::kLanes;
  const float4 sum = sum_vector<C>(partial);
  if (x.exists && lane == 0) store_four<C>(out.o + x.in_group * out.head_stride + x.column, sum);
  if (!out.branches) return;
#pragma unroll 1
  for (int b = 0; b < Reduction<C>::kBranches; ++b) {
    const NsaiView &o = p.out[b].o_branch;
    if (!(p.branches >> b & 1) || !o.data) continue;
    const float4 of_branch =
        sum_vector<C>(add_received<C>(received, weights, b, x.at, x.row, lane));
    const OutputRow row = { token, group * C::kGroup + x.in_group, true };
    if (x.exists && lane == 0) store_four<C>(find_row(o, row) + x.column, of_branch);
  }
}
