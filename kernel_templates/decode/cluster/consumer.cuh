// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// How a block of decode_cluster attends to its keys, a turn of 16 keys for each of its warps at a time:
//
//   S     every warp of its own keys; maxima of all warps are exchanged, and give the turn's references
//   P     every warp of its own keys, to all warps
//   O     every warp its own columns, of the keys of all warps: so a block's O needs no sum, and little room
//
// Turns are those of the scan, of the window, and of the chosen blocks, once these are known; their keys come
// through a ring (decode/cluster/producer.cuh). All code is short and goes straight on: what runs once is bound
// by the number of instructions that wait for each other, and by jumps.
//
// Config: those of decode/cluster/producer.cuh.
#pragma once
#include "core/barrier.cuh"
#include "core/softmax.cuh"
#include "decode/cluster/producer.cuh"
#include "decode/cluster/schedule.cuh"
#include "decode/mainloop.cuh"

// ---- a block's attention

// What its warps tell each other in a turn.
template <class C> struct ExchangeBuffer {
  static constexpr int kTerms = kSplitP<C> ? 2 : 1; // of P
  Chunk p[kTerms][C::kWarps][32];                   // A fragments
  float highest[16][C::kWarps];                     // scaled scores
  float sums[NSAI_BRANCH_COUNT][16][C::kWarps];
  float references[NSAI_BRANCH_COUNT][16];
};

// The warp's columns of a branch's O [16, 16 columns of each pair of n8 tiles], its references and its keys'
// share of the sums.
template <class C> struct BranchAccumulator {
  static constexpr int kPairs = padded_dim(C::kHeadDimV) / 16;
  static constexpr int kEach = ceil_div(kPairs, C::kWarps);
  float o[kEach][2][4];
  SoftmaxRows rows;
  NSAI_DEVICE void clear() {
    rows = SoftmaxRows();
#pragma unroll
    for (int j = 0; j < kEach; ++j)
#pragma unroll
      for (int c = 0; c < 8; ++c) o[j][c / 4][c % 4] = 0.0f;
  }
};

// Row 8 r + lane / 4's maximum over the warp's scores goes to all warps.
template <class C>
NSAI_DEVICE void share_highest(ExchangeBuffer<C> &exchange_buffer, const float (&s)[2][4],
                               float scale_log2, int warp, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float top =
        fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
    const float highest = quad_max(top) * scale_log2;
    if (lane % 4 == 0) exchange_buffer.highest[8 * r + lane / 4][warp] = highest;
  }
}

// The references follow all warps' maxima, sums and O the references.
template <class C>
NSAI_DEVICE void follow_highest(const ExchangeBuffer<C> &exchange_buffer,
                                BranchAccumulator<C> &sums, int lane) {
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float highest = sums.rows.reference[r];
#pragma unroll
    for (int w = 0; w < C::kWarps; w += 4) {
      const float4 x = *(const float4 *)&exchange_buffer.highest[8 * r + lane / 4][w];
      highest = fmaxf(fmaxf(fmaxf(highest, x.x), fmaxf(x.y, x.z)), x.w);
    }
    factor[r] = exp2_approx(sums.rows.reference[r] - highest);
    sums.rows.reference[r] = highest;
    sums.rows.sum[r] *= factor[r];
  }
#pragma unroll
  for (int j = 0; j < BranchAccumulator<C>::kEach; ++j) softmax_rescale(sums.o[j], factor);
}

// The warp's references and sums of branch `b` go to those that copy.
template <class C>
NSAI_DEVICE void share_sums(ExchangeBuffer<C> &exchange_buffer, const SoftmaxRows &rows, int b,
                            int warp, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = lanes_sum<4>(rows.sum[r]);
    if (lane % 4 == 0) exchange_buffer.sums[b][8 * r + lane / 4][warp] = sum;
    if (lane % 4 == 0 && warp == 0)
      exchange_buffer.references[b][8 * r + lane / 4] = rows.reference[r];
  }
}

// The warp's probabilities go to all warps.
template <class C>
NSAI_DEVICE void share_probabilities(ExchangeBuffer<C> &exchange_buffer, const float (&p)[2][4],
                                     int warp, int lane) {
  Chunk a, rest;
  softmax_pack<typename C::Element>(a.w, p[0], p[1]);
  exchange_buffer.p[0][warp][lane] = a;
  if constexpr (kSplitP<C>) {
    softmax_pack_rest<typename C::Element>(rest.w, a.w, p[0], p[1]);
    exchange_buffer.p[1][warp][lane] = rest;
  }
}

// O += P V of the first `warps` warps, the warp's columns; `stage`: that of warp 0.
template <class C>
NSAI_DEVICE void add_values(const ExchangeBuffer<C> &exchange_buffer, BranchAccumulator<C> &sums,
                            u32 stage, int warps, int warp, int lane) {
  using S = KeyStream<C, 1>;
  using T = typename S::V;
  constexpr int kAtOnce = 4; // warps whose P and V are loaded
  static_assert(C::kWarps % kAtOnce == 0, "whole loads");
  u32 v = stage + S::K::kBytes + T::offset(lane % 16, lane / 16); // keys 0, 8 | columns 0, 8
#pragma unroll 1
  for (int first = 0; first < warps; first += kAtOnce, v += kAtOnce * S::kStageBytes) {
#pragma unroll
    for (int j = 0; j < BranchAccumulator<C>::kEach; ++j) {
      const int pair = warp + j * C::kWarps;
      if (BranchAccumulator<C>::kPairs % C::kWarps != 0 && pair >= BranchAccumulator<C>::kPairs)
        break;
      Chunk a[ExchangeBuffer<C>::kTerms][kAtOnce];
      u32 b[kAtOnce][4];    // V [16 keys, 16]
      float odd[2][4] = {}; // of every other warp: two chains of products
#pragma unroll
      for (int w = 0; w < kAtOnce; ++w) {
#pragma unroll
        for (int term = 0; term < ExchangeBuffer<C>::kTerms; ++term)
          a[term][w] = exchange_buffer.p[term][first + w][lane];
        ldmatrix_x4_trans(b[w], T::along(v + w * S::kStageBytes, 2 * pair));
      }
#pragma unroll
      for (int w = 0; w < kAtOnce; ++w) {
        if (first + w >= warps) break; // its V may be anything
#pragma unroll
        for (int term = 0; term < ExchangeBuffer<C>::kTerms; ++term) {
          auto &o = w % 2 ? odd : sums.o[j];
          mma_m16n8k16(typename C::Element(), o[0], a[term][w].w, b[w][0], b[w][1]);
          mma_m16n8k16(typename C::Element(), o[1], a[term][w].w, b[w][2], b[w][3]);
        }
      }
#pragma unroll
      for (int c = 0; c < 8; ++c) sums.o[j][c / 4][c % 4] += odd[c / 4][c % 4];
    }
  }
}

// The block's reference and sum of a row of branch `b`, once its last turn has been shared.
template <class C>
NSAI_DEVICE float2 block_stats(const ExchangeBuffer<C> &exchange_buffer, int b, int row) {
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < C::kWarps; w += 4) {
    const float4 x = *(const float4 *)&exchange_buffer.sums[b][row][w];
    total += (x.x + x.y) + (x.z + x.w);
  }
  return make_float2(exchange_buffer.references[b][row], total);
}

// Scores [16, 16 keys] of turn i, once its keys are there; how many warps have some.
template <class C>
NSAI_DEVICE int score_cta_step(const StepSchedule<C> &schedule, const StageBarriers<C> &barriers,
                               float (&s)[2][4], int i, u32 stages,
                               const Queries<KeyStream<C, 1>> &queries, int warp, int lane) {
  using S = KeyStream<C, 1>;
  const CtaStep cta_step = find_cta_step<C>(schedule, i);
#pragma unroll
  for (int c = 0; c < 8; ++c) s[c / 4][c % 4] = kMinusInf;
  // A phase that is left out is over: all wait for its values, which arrive behind it.
  if (warp < cta_step.warps) {
    barrier_wait(barriers.keys(i % C::kStages), i / C::kStages & 1);
    const u32 keys = stages + (i % C::kStages * C::kWarps + warp) * S::kStageBytes;
    multiply_chains_qk<C, S, 1>(s, queries, keys, lane);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      mask_row(s, r, KeyRange{ 0, cta_step.limit(warp) }, cta_step.key(warp));
  }
  return cta_step.warps;
}

// Turns [begin, end) of branch `b` onto `sums`; pool(i, p) of the warp's probabilities. `summed`: the barrier
// of sums and references, for which other blocks wait: so these and what is pooled come before the values.
template <class C, class Pool>
NSAI_DEVICE void run_cta_steps(const StepSchedule<C> &schedule, ExchangeBuffer<C> &exchange_buffer,
                               const StageBarriers<C> &barriers, BranchAccumulator<C> &sums, int b,
                               int begin, int end, u32 stages, u32 summed,
                               const Queries<KeyStream<C, 1>> &queries, float scale_log2, int warp,
                               int lane, Pool pool) {
  using S = KeyStream<C, 1>;
  float s[2][4]; // scores, probabilities
  int warps = 0; // that have keys
#pragma unroll 1
  for (int i = begin - 1; i < end; ++i) { // one turn ahead with the scores
    if (i >= begin) {
      const int at = i % C::kStages;
      share_highest(exchange_buffer, s, scale_log2, warp, lane);
      sync_consumers<C>(); // all warps' maxima are there
      follow_highest(exchange_buffer, sums, lane);
      if (warp < warps) {
        softmax_exponentiate(sums.rows, s[0], scale_log2);
        softmax_exponentiate(sums.rows, s[1], scale_log2);
      }
      if (i + 1 == end) {
        share_sums(exchange_buffer, sums.rows, b, warp, lane);
        barrier_arrive(summed);
      }
      pool(i, s);
      if (warp < warps) share_probabilities(exchange_buffer, s, warp, lane);
      sync_consumers<C>(); // all warps' probabilities are there
      barrier_wait(barriers.values(at), i / C::kStages & 1);
      add_values(exchange_buffer, sums, stages + at * C::kWarps * S::kStageBytes, warps, warp,
                 lane);
      // The phase before is long over: producer.cuh.
      if (i >= C::kStages) barrier_wait(barriers.read(at), i / C::kStages - 1 & 1);
      barrier_arrive(barriers.read(at));
    }
    if (i + 1 < end)
      warps = score_cta_step<C>(schedule, barriers, s, i + 1, stages, queries, warp, lane);
  }
}
