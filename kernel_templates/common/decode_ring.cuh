// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// How a block of decode_cluster attends to its keys, a turn of 16 keys for each of its warps at a time:
//
//   S     every warp of its own keys; maxima of all warps are exchanged, and give the turn's references
//   P     every warp of its own keys, to all warps
//   O     every warp its own columns, of the keys of all warps: so a block's O needs no sum, and little room
//
// Turns are those of the scan, of the window, and of the chosen blocks, once these are known. They come
// through a ring of kStages stages, all of them on their way while the block waits. All code is short and
// goes straight on: what runs once is bound by the instructions that wait for each other, and by jumps.
//
// Config: those of common/decode_turns.cuh and key_stream.cuh.
#pragma once
#include "common/copy.cuh"
#include "common/decode_turns.cuh"
#include "common/key_stream.cuh"
#include "common/softmax.cuh"

// ---- a block's attention

// What its warps tell each other in a turn.
template <class C> struct RingDesk {
  static constexpr int kParts = kSplitP<C> ? 2 : 1; // of P
  Chunk p[kParts][C::kWarps][32];                   // A fragments
  float highest[16][C::kWarps];                     // scaled scores
  float sums[16][C::kWarps];
  float references[16];
};

// The warp's columns of a branch's O [16, 16 columns of each pair of n8 tiles], its references and its keys'
// share of the sums.
template <class C> struct RingSums {
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

// S [16, 16 keys] = Q K^T: multiply_step_qk() in two chains of products for each n8 tile, since a turn waits
// for the last one.
template <class C>
NSAI_DEVICE void multiply_turn_qk(float (&s)[2][4], const Queries<KeyStream<C, 1>> &q, u32 sK, int lane) {
  using S = KeyStream<C, 1>;
  using T = typename S::K;
  const u32 k = sK + T::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2); // columns 0, 8 | keys 0, 8
  float x[2][2][4] = {};
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) {
    u32 b[4]; // K [16 keys, 16]
    ldmatrix_x4(b, T::along(k, 2 * step));
    mma_m16n8k16(typename C::Element(), x[step % 2][0], q.fragment[step], b[0], b[1]);
    mma_m16n8k16(typename C::Element(), x[step % 2][1], q.fragment[step], b[2], b[3]);
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) s[c / 4][c % 4] = x[0][c / 4][c % 4] + x[1][c / 4][c % 4];
}

// Row 8 r + lane / 4's maximum over the warp's scores goes to all warps.
template <class C>
NSAI_DEVICE void share_highest(RingDesk<C> &desk, const float (&s)[2][4], float scale_log2, int warp,
                               int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float top = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
    const float highest = quad_max(top) * scale_log2;
    if (lane % 4 == 0) desk.highest[8 * r + lane / 4][warp] = highest;
  }
}

// The references follow all warps' maxima, sums and O the references.
template <class C> NSAI_DEVICE void follow_highest(const RingDesk<C> &desk, RingSums<C> &sums, int lane) {
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float highest = sums.rows.reference[r];
#pragma unroll
    for (int w = 0; w < C::kWarps; w += 4) {
      const float4 x = *(const float4 *)&desk.highest[8 * r + lane / 4][w];
      highest = fmaxf(fmaxf(fmaxf(highest, x.x), fmaxf(x.y, x.z)), x.w);
    }
    factor[r] = exp2_approx(sums.rows.reference[r] - highest);
    sums.rows.reference[r] = highest;
    sums.rows.sum[r] *= factor[r];
  }
#pragma unroll
  for (int j = 0; j < RingSums<C>::kEach; ++j) softmax_rescale(sums.o[j], factor);
}

// The warp's probabilities, references and sums go to all warps.
template <class C>
NSAI_DEVICE void share_probabilities(RingDesk<C> &desk, const float (&p)[2][4], const SoftmaxRows &rows,
                                     int warp, int lane) {
  Chunk a, rest;
  softmax_pack<typename C::Element>(a.w, p[0], p[1]);
  desk.p[0][warp][lane] = a;
  if constexpr (kSplitP<C>) {
    softmax_pack_rest<typename C::Element>(rest.w, a.w, p[0], p[1]);
    desk.p[1][warp][lane] = rest;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(rows.sum[r]);
    if (lane % 4 == 0) desk.sums[8 * r + lane / 4][warp] = sum;
    if (lane % 4 == 0 && warp == 0) desk.references[8 * r + lane / 4] = rows.reference[r];
  }
}

// O += P V of the first `warps` warps, the warp's columns; `stage`: that of warp 0.
template <class C>
NSAI_DEVICE void add_values(const RingDesk<C> &desk, RingSums<C> &sums, u32 stage, int warps, int warp,
                            int lane) {
  using S = KeyStream<C, 1>;
  using T = typename S::V;
  constexpr int kAtOnce = 4; // warps whose P and V are loaded
  static_assert(C::kWarps % kAtOnce == 0, "whole loads");
  u32 v = stage + S::K::kBytes + T::offset(lane % 16, lane / 16); // keys 0, 8 | columns 0, 8
#pragma unroll 1
  for (int first = 0; first < warps; first += kAtOnce, v += kAtOnce * S::kStageBytes) {
#pragma unroll
    for (int j = 0; j < RingSums<C>::kEach; ++j) {
      const int pair = warp + j * C::kWarps;
      if (RingSums<C>::kPairs % C::kWarps != 0 && pair >= RingSums<C>::kPairs) break;
      Chunk a[RingDesk<C>::kParts][kAtOnce];
      u32 b[kAtOnce][4]; // V [16 keys, 16]
#pragma unroll
      for (int w = 0; w < kAtOnce; ++w) {
#pragma unroll
        for (int part = 0; part < RingDesk<C>::kParts; ++part) a[part][w] = desk.p[part][first + w][lane];
        ldmatrix_x4_trans(b[w], T::along(v + w * S::kStageBytes, 2 * pair));
      }
#pragma unroll
      for (int w = 0; w < kAtOnce; ++w) {
        if (first + w >= warps) break; // its V may be anything
#pragma unroll
        for (int part = 0; part < RingDesk<C>::kParts; ++part) {
          mma_m16n8k16(typename C::Element(), sums.o[j][0], a[part][w].w, b[w][0], b[w][1]);
          mma_m16n8k16(typename C::Element(), sums.o[j][1], a[part][w].w, b[w][2], b[w][3]);
        }
      }
    }
  }
}

// The block's reference and sum of a row, once a branch's last turn has been shared.
template <class C> NSAI_DEVICE float2 block_stats(const RingDesk<C> &desk, int row) {
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < C::kWarps; w += 4) {
    const float4 x = *(const float4 *)&desk.sums[row][w];
    total += (x.x + x.y) + (x.z + x.w);
  }
  return make_float2(desk.references[row], total);
}

// ---- the ring

// K or V of a step into tile T; `rows`: the lanes' from `lane_of_row_0` on.
template <class T, int kDim>
NSAI_DEVICE void copy_rows(u32 tile, const u16 *rows, int lane_of_row_0, int lane) {
  using Lanes = CopyLanes<T, 32>;
#pragma unroll
  for (int i = 0; i < ceil_div(kStepKeys, Lanes::kPass); ++i) {
    const int row = Lanes::row(lane) + i * Lanes::kPass;
    const u16 *from = (const u16 *)__shfl_sync(~0u, (u64)rows, lane_of_row_0 + row % kStepKeys);
    if (kStepKeys % Lanes::kPass == 0 || row < kStepKeys)
      copy_row<T, kDim, 32>(tile, row, Lanes::chunk(lane), from + Lanes::chunk(lane) * 8,
                            from != nullptr);
  }
}

// Turns [begin, end) onto `sums`, but of those before `first` nothing but the copies of the turn kStages
// behind, which all have; pool(i, p) of the warp's probabilities, and shared(i) once all warps' are shared.
// begin = -kStages: the ring is empty. `stages`: of warp 0.
template <class C, class Pool, class Shared>
NSAI_DEVICE void run_turns(const RingTurns<C> &turns, const RingRows<C> &rows, RingDesk<C> &desk,
                           RingSums<C> &sums, int begin, int first, int end, u32 stages,
                           const Queries<KeyStream<C, 1>> &queries, float scale_log2, int warp, int lane,
                           Pool pool, Shared shared) {
  using S = KeyStream<C, 1>;
  constexpr int kAllBytes = C::kWarps * S::kStageBytes; // of a stage
  begin = recomputed(begin); // else the first turns get code of their own
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    const u32 stage = stages + (i + C::kStages) % C::kStages * kAllBytes;
    if (i >= first) {
      const RingTurn turn = find_turn<C>(turns, i);
      float s[2][4]; // [16, 16 keys]
      copy_async_wait<C::kStages - 1>();
      __syncwarp(); // every lane's part of the warp's keys has come
#pragma unroll
      for (int c = 0; c < 8; ++c) s[c / 4][c % 4] = kMinusInf;
      if (warp < turn.warps) {
        multiply_turn_qk<C>(s, queries, stage + warp * S::kStageBytes, lane);
#pragma unroll
        for (int r = 0; r < 2; ++r) mask_row(s, r, KeyRange{ 0, turn.limit(warp) }, turn.key(warp));
      }
      share_highest(desk, s, scale_log2, warp, lane);
      __syncthreads(); // all warps' maxima are there
      follow_highest(desk, sums, lane);
      softmax_exponentiate(sums.rows, s[0], scale_log2);
      softmax_exponentiate(sums.rows, s[1], scale_log2);
      share_probabilities(desk, s, sums.rows, warp, lane);
      __syncthreads(); // all warps' probabilities are there, and their values
      shared(i);
      pool(i, s);
      add_values(desk, sums, stage, turn.warps, warp, lane);
    }
    if (i + C::kStages < turns.all) {
      // Where half of the warps have keys, the others copy V for them.
      constexpr int kHalf = C::kWarps / 2;
      const RingTurn next = find_turn<C>(turns, i + C::kStages);
      const bool halves = next.warps <= kHalf, behind = halves && warp >= kHalf;
      const int owner = behind ? warp - kHalf : warp;
      if (i >= first) __syncthreads(); // the stage is read
      if (owner < next.warps) {
        const u16 *row[1];
        rows.template find<1, 1>(row, turns, next, owner, lane);
        const u32 to = stage + owner * S::kStageBytes;
        if (!behind) copy_rows<typename S::K, C::kHeadDimQk>(to, row[0], 0, lane);
        if (!halves || behind) copy_rows<typename S::V, C::kHeadDimV>(to + S::K::kBytes, row[0], 16, lane);
      }
    }
    copy_async_commit();
  }
}
