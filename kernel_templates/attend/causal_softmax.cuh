// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// attend_causal_softmax: the causal softmax between the two GEMMs of dense_gemm, the unfused
// baseline.
//
//   probs[h, r, k] = 2^(scale_log2 * scores[h, r, k] - top) / sum, 0 if k > first_position + r
//   lse[r, h]      = ln 2 * (top + log2 sum)
//   top            = max of scale_log2 * scores over the row
//
//   scores f32 [heads, rows, keys] -> probs dtype [heads, rows, keys], lse f32 or NULL
//
// cuBLASLt writes the scores and reads the probabilities; both are 16-byte aligned. A row that sees
// no key gets zeros and an LSE of -inf. All `keys` columns are written.
//
// Grid: x = rows, y = heads, one CTA per row. Two passes over the scores, the second from L1 or L2:
// first top and sum online, then the probabilities. Reductions have a fixed order. Bound by HBM.
//
// Config: Element, kThreads, kMinBlocks. Static shared memory: 8 bytes per warp.
#pragma once
#include "core/launch.cuh"
#include "core/types.cuh"
#include "params/attention.h"

static_assert(Config::kThreads % 32 == 0 && Config::kThreads <= 1024,
              "whole warps, whose partial results one warp reduces");

// Sum of 2^(x - top) over some scores x. For an empty set top is the lowest float instead of -inf,
// which avoids inf - inf.
struct Partial {
  float top, sum;
};
constexpr float kLowest = -3.402823466e+38f;

NSAI_DEVICE Partial join(const Partial &a, const Partial &b) {
  float top = fmaxf(a.top, b.top);
  return Partial{ top, a.sum * exp2_approx(a.top - top) + b.sum * exp2_approx(b.top - top) };
}

// Over the 32 lanes; every lane gets the result.
NSAI_DEVICE Partial join_warp(Partial x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    Partial other = { __shfl_xor_sync(0xffffffffu, x.top, lanes),
                      __shfl_xor_sync(0xffffffffu, x.sum, lanes) };
    x = join(x, other);
  }
  return x;
}

// Loads and scales 8 scores from `column` on; those from `visible` on become -inf. `whole`: rows
// are 16-byte aligned.
NSAI_DEVICE void load_scores(float (&x)[8], const float *gS, int column, int visible,
                             float scale_log2, bool whole) {
  if (whole && column + 8 <= visible) {
    float4 a = *(const float4 *)(gS + column), b = *(const float4 *)(gS + column + 4);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = column + i < visible ? gS[column + i] : 0;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = column + i < visible ? x[i] * scale_log2 : kMinusInf;
}

template <class E>
NSAI_DEVICE void store_probs(u16 *gP, const float (&x)[8], int column, int keys, bool whole) {
  if (whole) {
    *(Chunk *)(gP + column) = Chunk{ { E::pack(x[0], x[1]), E::pack(x[2], x[3]),
                                       E::pack(x[4], x[5]), E::pack(x[6], x[7]) } };
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (column + i < keys) gP[column + i] = (u16)E::pack(x[i], 0);
  }
}

template <class C> NSAI_DEVICE void softmax(const NsaiCausalSoftmax &p) {
  constexpr int kWarps = C::kThreads / 32;
  __shared__ Partial partials[kWarps];

  // ---- coordinates
  const int row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int visible = max(0, min(p.keys, p.first_position + row + 1));
  const bool whole = p.keys % 8 == 0;
  const long long first = ((long long)head * p.rows + row) * p.keys;
  const float *gS = p.scores + first; // [keys]
  u16 *gP = (u16 *)p.probs + first;   // [keys]

  // ---- top and sum
  Partial mine = { kLowest, 0 };
  for (int column = threadIdx.x * 8; column < visible; column += C::kThreads * 8) {
    float x[8];
    load_scores(x, gS, column, visible, p.scale_log2, whole);
    Partial eight = { kLowest, 0 };
#pragma unroll
    for (int i = 0; i < 8; ++i) eight.top = fmaxf(eight.top, x[i]);
#pragma unroll
    for (int i = 0; i < 8; ++i) eight.sum += exp2_approx(x[i] - eight.top);
    mine = join(mine, eight);
  }
  mine = join_warp(mine);
  if (lane == 0) partials[warp] = mine;
  __syncthreads(); // all warps' partial results are written
  const Partial all = join_warp(lane < kWarps ? partials[lane] : Partial{ kLowest, 0 });

  // ---- probabilities
  const float inverse = all.sum > 0 ? 1 / all.sum : 0;
  for (int column = threadIdx.x * 8; column < p.keys; column += C::kThreads * 8) {
    float x[8];
    load_scores(x, gS, column, visible, p.scale_log2, whole);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = exp2_approx(x[i] - all.top) * inverse;
    store_probs<typename C::Element>(gP, x, column, p.keys, whole);
  }
  if (p.lse && threadIdx.x == 0)
    p.lse[row * p.lse_token_stride + head * p.lse_head_stride] =
        all.sum > 0 ? kLn2 * (all.top + log2_approx(all.sum)) : kMinusInf;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks)
    attend_causal_softmax(const __grid_constant__ NsaiCausalSoftmax p) {
  begin_kernel();
  softmax<Config>(p);
}
