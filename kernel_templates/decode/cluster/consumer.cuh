// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The consumer side of decode_cluster: a CTA attends to its keys in steps of 16 keys per consumer
// warp.
//
//   S     each warp computes scores of its own keys; the warps exchange their maxima, which give
//         the step's references
//   P     each warp computes probabilities of its own keys and shares them with all warps
//   O     each warp computes its own columns, for the keys of all warps; a CTA's O thus needs no
//         final sum and few registers
//
// Steps come from the compressed keys, then the window, then the selected blocks once these are
// known. Their keys pass through a pipeline of stages (decode/cluster/producer.cuh). The code is
// short and avoids branches: code that runs once is bound by the number of dependent instructions
// and by jumps.
//
// Config: those of decode/cluster/producer.cuh.
#pragma once
#include "core/barrier.cuh"
#include "core/expand_codes.cuh"
#include "core/softmax.cuh"
#include "decode/cluster/producer.cuh"
#include "decode/cluster/schedule.cuh"
#include "decode/mainloop.cuh"

// ---- a CTA's attention

// What the warps of a CTA exchange in a step.
template <class C> struct ExchangeBuffer {
  static constexpr int kTerms = !C::kEntryCodes && kSplitP<C> ? 2 : 1; // terms of P
  Chunk p[kTerms][C::kWarps][32];                                      // A fragments
  float highest[16][C::kWarps];                                        // scaled scores
  float sums[NSAI_BRANCH_COUNT][16][C::kWarps];
  float references[NSAI_BRANCH_COUNT][16];
};

// A warp's columns of a branch's O ([16, 16] per pair of n8 tiles), the CTA's references, and the
// sums over the warp's own keys.
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

// Shares the maximum over the warp's scores of row 8 r + lane / 4 with all warps.
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

// Raises the references to the maxima over all warps, and rescales sums and O.
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

// Shares the warp's references and sums of branch `b` with the producer warps.
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

// Shares the warp's probabilities with all warps.
template <class C>
NSAI_DEVICE void share_probabilities(ExchangeBuffer<C> &exchange_buffer, const float (&p)[2][4],
                                     int warp, int lane) {
  Chunk a, rest;
  softmax_pack<typename ClusterStream<C>::Product>(a.w, p[0], p[1]);
  exchange_buffer.p[0][warp][lane] = a;
  if constexpr (ExchangeBuffer<C>::kTerms > 1) {
    softmax_pack_rest<typename C::Element>(rest.w, a.w, p[0], p[1]);
    exchange_buffer.p[1][warp][lane] = rest;
  }
}

// O += P V over the keys of the first `warps` warps, in this warp's columns; `stage` is that of
// warp 0.
template <class C>
NSAI_DEVICE void add_values(const ExchangeBuffer<C> &exchange_buffer, BranchAccumulator<C> &sums,
                            u32 stage, int warps, int warp, int lane) {
  using S = ClusterStream<C>;
  using T = typename S::V;
  constexpr int kAtOnce = 4; // warps whose P and V are in flight together
  static_assert(C::kWarps % kAtOnce == 0, "warps are loaded in groups");
  // Matrices: keys 0, 8 | columns 0, 8; of codes, whose chunk is a pair of n8 tiles: of two warps.
  u32 v = stage + S::K::kBytes +
          (S::kCoded ? lane / 16 * S::kStageBytes : T::offset(lane % 16, lane / 16));
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
        if constexpr (!S::kCoded)
          ldmatrix_x4_trans(b[w], T::along(v + w * S::kStageBytes, 2 * pair));
        else if (w % 2 == 0)
          ldmatrix_x4_trans(b[w / 2], v + w * S::kStageBytes + T::offset(lane % 16, pair));
      }
#pragma unroll
      for (int w = 0; w < kAtOnce; ++w) {
        if (first + w >= warps) break; // its V is undefined
        if constexpr (S::kCoded) {
          u32 values[4];
          expand_code_values(values, b[w / 2][w % 2 * 2], b[w / 2][w % 2 * 2 + 1]);
          auto &o = w % 2 ? odd : sums.o[j];
          mma_m16n16k16(Fp16(), o[0], o[1], a[0][w].w, values);
          continue;
        }
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

// The CTA's reference and sum of a row of branch `b`, after its last step was shared.
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

// Computes scores [16, 16 keys] of step i after its keys have arrived. Returns the number of warps
// that have keys.
template <class C>
NSAI_DEVICE int score_cta_step(const StepSchedule<C> &schedule, const StageBarriers<C> &barriers,
                               float (&s)[2][4], int i, u32 stages,
                               const Queries<ClusterStream<C>> &queries, int warp, int lane) {
  using S = ClusterStream<C>;
  const CtaStep cta_step = find_cta_step<C>(schedule, i);
#pragma unroll
  for (int c = 0; c < 8; ++c) s[c / 4][c % 4] = kMinusInf;
  // A warp without keys may skip this barrier's phase: it has completed by the time all warps wait
  // for the values, which arrive after the keys.
  if (warp < cta_step.warps) {
    barrier_wait(barriers.keys(i % C::kStages), i / C::kStages & 1);
    const u32 keys = stages + (i % C::kStages * C::kWarps + warp) * S::kStageBytes;
    if constexpr (kRawCodesAlone<C>)
      if (i >= schedule.scanned)
        expand_code_tile<typename C::Element, C::kHeadDimQk, kStepKeys, typename S::K>(keys);
    multiply_chains_qk<C, S, 1>(s, queries, keys, lane);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      mask_row(s, r, KeyRange{ 0, cta_step.limit(warp) }, cta_step.key(warp));
  }
  return cta_step.warps;
}

// Processes steps [begin, end) of branch `b`, accumulating onto `sums`; pool(i, p) receives the
// warp's probabilities. `summed` is the barrier for sums and references. Other CTAs wait for these,
// so they are shared, and probabilities are pooled, before P V.
template <class C, class Pool>
NSAI_DEVICE void run_cta_steps(const StepSchedule<C> &schedule, ExchangeBuffer<C> &exchange_buffer,
                               const StageBarriers<C> &barriers, BranchAccumulator<C> &sums, int b,
                               int begin, int end, u32 stages, u32 summed,
                               const Queries<ClusterStream<C>> &queries, float scale_log2, int warp,
                               int lane, Pool pool) {
  using S = ClusterStream<C>;
  float s[2][4]; // scores, then probabilities
  int warps = 0; // warps that have keys
#pragma unroll 1
  for (int i = begin - 1; i < end; ++i) { // scores run one step ahead
    if (i >= begin) {
      const int at = i % C::kStages;
      share_highest(exchange_buffer, s, scale_log2, warp, lane);
      sync_consumers<C>(); // all warps' maxima are written
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
      if constexpr (kRawCodesAlone<C>)
        if (b != kCompressed && warp < warps) {
          barrier_wait(barriers.values(at), i / C::kStages & 1);
          expand_code_tile<typename C::Element, C::kHeadDimV, kStepKeys, typename S::V>(
              stages + (at * C::kWarps + warp) * S::kStageBytes + S::K::kBytes);
        }
      sync_consumers<C>(); // all warps' probabilities are written, and their values expanded
      barrier_wait(barriers.values(at), i / C::kStages & 1);
      add_values(exchange_buffer, sums, stages + at * C::kWarps * S::kStageBytes, warps, warp,
                 lane);
      // The previous phase has completed long ago (see producer.cuh).
      if (i >= C::kStages) barrier_wait(barriers.read(at), i / C::kStages - 1 & 1);
      barrier_arrive(barriers.read(at));
    }
    if (i + 1 < end)
      warps = score_cta_step<C>(schedule, barriers, s, i + 1, stages, queries, warp, lane);
  }
}
