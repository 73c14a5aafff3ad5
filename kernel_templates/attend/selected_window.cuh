// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The window branch within a kernel of the selected branch (attend/selected_window_sm90.cuh), for
// consumers of the pipeline of attend/selected_pipeline.cuh.
//
//   O[t, h] = sum over keys t - w < p <= t of softmax_p(scale q[t, h] . k[p, g]) v[p, g]
//
// A tile of tokens sees w + kTokens - 1 adjacent keys, beginning where the window of its first
// token begins. They pass through the pipeline before the keys of the lists; consumer warpgroups
// multiply them by their 64 rows. As in attend/mainloop_sm90.cuh, Q K^T of a stage is issued before
// P V of the previous stage, so that the tensor cores work on P V during the softmax. The first
// stage takes the remainder of the keys modulo the stage size: no product hides its softmax, so it
// should be the shortest.
//
// Config: Element, kGate, kWindow, and those of attend/selected_pipeline.cuh.
#pragma once
#include "attend/selected_pipeline.cuh"
#include "attend/selected_products.cuh"
#include "core/epilogue.cuh"
#include "core/softmax.cuh"
#include "data/key_range.cuh"

// Which keys of the window the rows of a tile see.
template <class Config> struct WindowRows {
  int position; // of the tile's first token
  int last;     // last token of the tile; rows past it count as it

  NSAI_DEVICE KeyRange seen(int row) const {
    return WindowKeys<Config>::visible(position + min(row / Config::kGroupPadded, last));
  }
};

template <class Config> NSAI_DEVICE WindowRows<Config> window_rows(const TilePosition &at) {
  const int tokens = min(SelectedPipeline<Config>::kTokens, at.seq.q_len - at.first_query);
  return WindowRows<Config>{ at.seq.position(at.first_query), tokens - 1 };
}

// Turns the scores of the kCount keys from `first` on into probabilities. Returns true if O must be
// rescaled by `factor`.
template <int kCount, class Config, int kN>
NSAI_DEVICE bool window_softmax(float (&rS)[kN][4], SoftmaxRows &softmax, float (&factor)[2],
                                WindowRows<Config> rows, int first, float scale_log2) {
  // Compute it here: hoisted out of the loop it would occupy registers.
  asm volatile("" : "+r"(rows.position));
  const int row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32; // row: first row of the warp
  if (kCount < 8 * kN || first < rows.seen(row + 15).begin || first + kCount > rows.seen(row).end) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      KeyRange seen = rows.seen(row + lane / 4 + 8 * r);
      if (kCount < 8 * kN) seen.end = min(seen.end, first + kCount);
      mask_row(rS, r, seen, first);
    }
  }
  const bool grows = softmax_grow(softmax, factor, rS, scale_log2);
#pragma unroll
  for (int j = 0; j < kN; ++j) softmax_exponentiate(softmax, rS[j], scale_log2);
  return grows;
}

// Computes the unnormalised O of the warpgroup's rows over all stages of the window: rO [64, Dv],
// zeros on entry. Q is passed as in multiply_qk().
template <class Config, int kHeldSteps, int kO, int kHeld>
NSAI_DEVICE void multiply_window(float (&rO)[kO][4], SoftmaxRows &softmax,
                                 const u32 (&rQ)[kHeld][4], u32 sQ, const TilePosition &at,
                                 u32 base, PipelineState<Config::kStages> &step, float scale_log2) {
  using R = SelectedPipeline<Config>;
  using Product = ProductConfig<Config>;
  using Stages = WindowStages<Config>;
  constexpr int kLastRow = 16 * R::kWarps - 1; // of the tile
  const WindowRows<Config> rows = window_rows<Config>(at);
  const int row = 64 * warp_uniform(threadIdx.x / 128); // first row of the warpgroup
  const int end = row / Config::kGroupPadded <= rows.last ? rows.seen(row + 63).end : 0;
  int first = window_begin<Config>(rows.seen(0).begin); // first key of the stage
  // A stage of which no token of the warpgroup sees a key is released untouched.
  const Barriers<R::kStages> barriers = { base + R::kBarriers };
  auto wait = [&]() { barriers.consumer_wait(step.stage, step.phase); };
  auto before = [&]() { return (step.stage ? step.stage : Config::kStages) - 1; };
  auto stage_k = [&]() { return base + R::kSK + warp_uniform(step.stage) * R::kKBytes; };
  auto stage_v = [&]() { return base + R::kSV + warp_uniform(before()) * R::kVBytes; };

  if (first < end) {
    Probabilities<Product> rP = {}; // [64, kKeys]
    float factor[2];
    {
      float rS[Stages::kFirstPadded / 8][4]; // [64, kFirstPadded]
      wait();
      multiply_qk<Product, kHeldSteps>(rS, rQ, sQ, stage_k());
      wgmma_wait<0>();
      hold(rS);
      window_softmax<Stages::kFirst>(rS, softmax, factor, rows, first, scale_log2);
      pack_probabilities<Product>(rP, rS); // O is still zero: no rescaling
    }
    float rS[R::kKeys / 8][4]; // [64, kKeys]
#pragma unroll 1
    for (first += Stages::kFirst, step.advance(); first < end; first += R::kKeys, step.advance()) {
      wait();
      multiply_qk<Product, kHeldSteps>(rS, rQ, sQ, stage_k());
      multiply_pv<Product>(rO, rP, stage_v());
      wgmma_wait<1>(); // Q K^T is complete
      hold(rS);
      const bool grows = window_softmax<R::kKeys>(rS, softmax, factor, rows, first, scale_log2);
      wgmma_wait<0>(); // P V is complete
      hold(rO);
      barriers.consumer_release(before());
      if (grows) softmax_rescale(rO, factor);
      pack_probabilities<Product>(rP, rS);
    }
    multiply_pv<Product>(rO, rP, stage_v());
    wgmma_wait<0>();
    hold(rO);
    barriers.consumer_release(before());
  } else if (first < rows.seen(kLastRow).end) {
    wait();
    barriers.consumer_release(step.stage);
    first += Stages::kFirst;
    step.advance();
  }
#pragma unroll 1
  for (; first < rows.seen(kLastRow).end; first += R::kKeys, step.advance()) {
    wait();
    barriers.consumer_release(step.stage);
  }
}
