// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Products of a warpgroup with one stage of attend/selected_pipeline.cuh on wgmma: S = Q K^T with Q
// in registers, in shared memory or split between them, and O += P V.
//
// Config: Element, kHeadDimQk, kHeadDimV, kKeys.
#pragma once
#include "core/softmax.cuh"
#include "core/tile.cuh"
#include "core/wgmma.cuh"

// Issues S = Q K^T: rS [64, 8 * kN] of the warpgroup. rQ holds the first kHeldSteps steps of 16
// columns of Q, sQ the remaining columns.
template <class Config, int kHeldSteps, int kN, int kHeld>
NSAI_DEVICE void multiply_qk(float (&rS)[kN][4], const u32 (&rQ)[kHeld][4], u32 sQ, u32 sK) {
  using Element = typename Config::Element;
  const u64 q = wgmma_k_major(sQ), k = wgmma_k_major(sK);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < padded_dim(Config::kHeadDimQk) / 16; ++i) {
    const u64 k_step = k + wgmma_k_step<Config::kKeys>(i);
    if (i < kHeldSteps)
      wgmma_qk<Element, 8 * kN>(rS[0], rQ[i < kHeld ? i : 0], k_step, i > 0);
    else
      wgmma_qk<Element, 8 * kN>(rS[0], q + wgmma_k_step<64>(i - kHeldSteps), k_step, i > 0);
  }
  wgmma_commit();
}

// P of a stage as A fragments of 16 keys each, and its rounding error where kSplitP asks for it.
template <class Config> struct Probabilities {
  static constexpr int kTerms = kSplitP<Config> ? 2 : 1;
  u32 a[kTerms][Config::kKeys / 16][4];
};

// Issues O += P V: rO [64, Dv].
template <class Config, int kO>
NSAI_DEVICE void multiply_pv(float (&rO)[kO][4], const Probabilities<Config> &rP, u32 sV) {
  const u64 v = wgmma_mn_major<Config::kKeys>(sV);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < Config::kKeys / 16; ++k)
#pragma unroll
    for (int term = 0; term < Probabilities<Config>::kTerms; ++term)
      wgmma_pv<typename Config::Element, padded_dim(Config::kHeadDimV), Config::kKeys>(
          rO[0], rP.a[term][k], v + wgmma_mn_step(k), 1);
  wgmma_commit();
}

// Packs P of the first 8 * kN keys.
template <class Config, int kN>
NSAI_DEVICE void pack_probabilities(Probabilities<Config> &rP, const float (&rS)[kN][4]) {
  using Element = typename Config::Element;
#pragma unroll
  for (int k = 0; k < kN / 2; ++k) {
    softmax_pack<Element>(rP.a[0][k], rS[2 * k], rS[2 * k + 1]);
    if constexpr (kSplitP<Config>)
      softmax_pack_rest<Element>(rP.a[1][k], rP.a[0][k], rS[2 * k], rS[2 * k + 1]);
  }
}

template <int kN> NSAI_DEVICE void hold(float (&d)[kN][4]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) wgmma_hold(d[i]);
}
