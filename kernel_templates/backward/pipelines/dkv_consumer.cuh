// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The consumers of backward/pipelines/dkv.cuh: two warpgroups that multiply stages with their keys
// and store dK and dV. Persistent CTAs (backward/pipelines/dkv_items.cuh) use the steps, also with tiles
// of 64 keys.
#pragma once
#include "backward/pipelines/dkv_stages.cuh"

// Turns S^T [16 keys, 8 rows], rows from `first` on, into P'. `rows`: address of the stage's (LSE,
// u). kMasked 0: every row sees every key.
template <class Config, bool kMasked>
NSAI_DEVICE void stage_probability(float (&s)[4], u32 rows, u32 known, int first, int key,
                                   float scale_log2) {
  using R = DkvPipeline<Config>;
  const int row = first + 2 * (threadIdx.x & 3);
  const Chunk x = load_shared(rows + 8 * row); // LSE, u of two rows
  uint2 gate = make_uint2(0, 0), seen = make_uint2(0, 0);
  if constexpr (!kGateInLse<Config>) gate = load_shared_pair(known + R::kGates + 4 * row);
  if constexpr (kMasked) seen = load_shared_pair(known + R::kSeen + 4 * row);
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const u32 range = c ? seen.y : seen.x;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float e =
          gated_probability<Config>(s[2 * r + c], scale_log2, __uint_as_float(x.w[2 * c]),
                                    __uint_as_float(c ? gate.y : gate.x));
      const bool sees =
          !kMasked || (key + 8 * r >= (int)(range & 0xffff) && key + 8 * r < (int)(range >> 16));
      s[2 * r + c] = sees ? e : 0.0f;
    }
  }
}

// Turns dU into dS.
template <class Config>
NSAI_DEVICE void stage_score_gradient(float (&du)[4], const float (&s)[4], u32 rows, int first) {
  const Chunk x = load_shared(rows + 8 * (first + 2 * (int)(threadIdx.x & 3)));
#pragma unroll
  for (int c = 0; c < 2; ++c)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      du[2 * r + c] = s[2 * r + c] * (du[2 * r + c] - __uint_as_float(x.w[2 * c + 1]));
}

// Computes dK and dV of the warpgroup's 64 keys; zeros on entry. `step`: the first of the stages;
// `keys_phase`: of kKeysFull. Returns the stage that the warpgroup has yet to release; -1: none.
template <class Config, int kK, int kV>
NSAI_DEVICE int multiply_keys(float (&dk)[kK][4], float (&dv)[kV][4], int stages, u32 base,
                              float scale_log2, PipelineState<DkvPipeline<Config>::kStages> step,
                              u32 keys_phase) {
  using R = DkvPipeline<Config>;
  using E = typename Config::Element;
  const int group = warp_uniform(threadIdx.x / 128), tile = R::kTiles == 2 ? group : 0;
  const int key = 64 * tile + recomputed(threadIdx.x) % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const u32 sK = base + R::kSK + 64 * tile * kPanelPitch,
            sV = base + R::kSV + 64 * tile * kPanelPitch;
  float s[R::kN][4], du[R::kN][4]; // [64 keys, kRows]
  int held = -1;                   // stage whose products are still in flight
  const Barriers<R::kStages> barriers = { base + R::kBarriers };
  int i = 0;
  if (R::kTiles == 1 && group == 1) { // the first stage belongs to the other warpgroup
    ++i;
    step.advance();
  }
  barrier_wait(base + R::kKeysFull, keys_phase);
  hold(dk);
  hold(dv);
  for (; i < stages; i += R::kTiles == 1 ? 2 : 1) {
    const int now = warp_uniform(step.stage);
    const u32 sQ = base + R::kSStage + now * R::kStageBytes, sDO = sQ + R::Q::kBytes;
    const u32 known = base + R::kSKnown + now * R::kKnownBytes;
    const u32 in_rows = known + (R::kKnownWarps > 1 ? 8 * R::kRows * tile : 0);
    barriers.consumer_wait(now, step.phase);
    step.advance();
    if (R::kTiles == 1) step.advance();
    const u32 all = warp_uniform(load_shared_word(known + R::kAll + 4 * tile));
    if (!(all & kSomeSeen)) { // no row sees the keys: at the ends of a range
      if (held >= 0) {        // release it: the producers may wait for it
        wgmma_wait<0>();
        hold(dv);
        hold(dk);
        barriers.consumer_release(held);
        held = -1;
      }
      barriers.consumer_release(now);
      continue;
    }
    wgmma_fence();
    start_rows<E, typename R::K, typename R::Q, Config::kHeadDimQk>(s, sK, sQ);
    wgmma_commit();
    // Completes the previous stage's sums; the registers of its P' and dS make room for dU.
    wgmma_wait<1>();
    hold(dv);
    hold(dk);
    if (held >= 0) barriers.consumer_release(held);
    held = now;
    wgmma_fence();
    start_rows<E, typename R::V, typename R::DO, Config::kHeadDimV>(du, sV, sDO);
    wgmma_commit();
    wgmma_wait<1>();
    hold(s);
    if (all & kPartlySeen) {
#pragma unroll
      for (int j = 0; j < R::kN; ++j)
        stage_probability<Config, true>(s[j], in_rows, known, 8 * j, key, scale_log2);
    } else {
#pragma unroll
      for (int j = 0; j < R::kN; ++j)
        stage_probability<Config, false>(s[j], in_rows, known, 8 * j, key, scale_log2);
    }
    wgmma_wait<0>();
    hold(du);
    u32 rP[R::kN / 2][4], rDS[R::kN / 2][4]; // [64 keys, 16 rows] each
#pragma unroll
    for (int j = 0; j < R::kN; ++j) stage_score_gradient<Config>(du[j], s[j], in_rows, 8 * j);
    pack_all<E>(rP, s);
    pack_all<E>(rDS, du);
    wgmma_fence();
    start_fragments<E, typename R::DO>(dv, rP, sDO);
    start_fragments<E, typename R::Q>(dk, rDS, sQ);
    wgmma_commit();
  }
  wgmma_wait<0>();
  hold(dv);
  hold(dk);
  return held;
}

// Stores the partial sums of the warpgroup's keys, in columns from `column` on.
template <class Config, int kDim, bool kLoop = true, int kN>
NSAI_DEVICE void store_sums(const KeyTile &tile, int first_key, int column,
                            const float (&acc)[kN][4], float scale) {
  for_rows<kLoop>(acc, [&](int r, const float(&x)[kN][2]) {
    const int key =
        first_key + (int)threadIdx.x % 128 / 32 * 16 + r * 8 + (int)(threadIdx.x & 31) / 4;
    float *to = tile.partial + (long long)key * kPartialWidth<Config> + column + column_of_lane();
    float4 four[kN / 2];
    gather_row(four, x, scale);
    if (key < tile.keys)
#pragma unroll
      for (int j = 0; j < kN / 2; ++j)
        if (has_columns<kDim>(j)) *(float4 *)(to + 16 * j) = four[j];
  });
}

// The loop of the consumer warps in a CTA of one tile of 128 keys.
template <class Config>
NSAI_DEVICE void consume_keys(const NsaiBackwardKv &p, const KeyTile &tile, u32 base) {
  using R = DkvPipeline<Config>;
  constexpr int kK = R::kColsQk / 8, kV = R::kColsV / 8;
  const int first_key = 64 * warp_uniform(threadIdx.x / 128);
  float dk[kK][4] = {}, dv[kV][4] = {}; // [64, Dk], [64, Dv]
  multiply_keys<Config>(dk, dv, ceil_div(tile.tokens, R::kTokens), base, p.scale_log2, {}, 0);
  store_sums<Config, Config::kHeadDimQk>(tile, first_key, 0, dk, p.scale);
  store_sums<Config, Config::kHeadDimV>(tile, first_key, Config::kHeadDimQk, dv, 1.0f);
}
