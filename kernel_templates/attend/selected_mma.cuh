// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Consumers of the pipeline of attend/selected_pipeline.cuh on mma.sync, for
// attend_selected_sm90_mma.
//
// A consumer warp has one m16 tile: 16 / kGroupPadded tokens with all their heads, or 16 heads of
// one token. It multiplies only keys that its own tokens see. With 16 heads in a group no product
// is wasted, however much the lists of adjacent tokens differ.
//
// Of a cache in codes the stages hold these, and a warp converts what it multiplies
// (core/code_fragments.cuh): what each token sees passes through registers once, as the products of
// 16 rows do not share it.
//
// Config: Element, kGate, and those of attend/selected_pipeline.cuh. Shared memory:
// nsai_smem_selected_pipeline() of params/smem.h.
#pragma once
#include "attend/selected_codes.cuh"
#include "attend/selected_consumer.cuh"
#include "attend/selected_pipeline.cuh"
#include "core/mma.cuh"
#include "core/panel_tile.cuh"
#include "core/softmax.cuh"

template <class Config> struct KernelTraits : SelectedPipeline<Config> {
  using R = SelectedPipeline<Config>;
  // Registers of the loop besides O, Q and the scores of a step. Found by compiling random models.
  static constexpr int kOthers = R::kColsV <= 128 ? 48 : Config::kCached ? 68 : 60;
  // Q stays in registers as fragments if 16 scores fit beside it. That saves a fifth of the shared
  // memory reads.
  static constexpr bool kQueryInRegisters =
      R::kColsV / 2 + R::kColsQk / 4 + 16 + kOthers <= R::kConsumerRegisters;
  static constexpr int kHeld = R::kColsV / 2 + (kQueryInRegisters ? R::kColsQk / 4 : 0) + kOthers;
  // Keys per softmax step.
  static constexpr int kStepKeys = kHeld + 32 <= R::kConsumerRegisters ? 64 : 32;
  static constexpr int kParts = R::kKeys / kStepKeys; // steps per stage
  static constexpr int kQBytes = kQueryInRegisters ? 0 : nsai_panel_bytes(16, Config::kHeadDimQk);
  static constexpr int kBytes = kQBytes ? R::kSQ + R::kWarps * kQBytes : R::kEnd;
  using KTile = PanelTile<R::kKeys, R::kWordsK>;
  using VTile = PanelTile<R::kKeys, R::kWordsV>;
  using QTile = PanelTile<16, Config::kHeadDimQk>; // of a warp
  static_assert(kBytes == Config::kSharedBytes, "the host computes another size of shared memory");
};

// S = Q K^T: rS [16, kStepKeys]. Q comes from rQ, or from sQ if registers cannot hold it.
template <class Config, int kSteps>
NSAI_DEVICE void score(float (&rS)[KernelTraits<Config>::kStepKeys / 8][4],
                       const u32 (&rQ)[kSteps][4], u32 sQ, u32 sK) {
  using S = KernelTraits<Config>;
  const int lane = threadIdx.x & 31;
  const u32 q_at = sQ + panel_offset(lane & 15, lane >> 4);
  const u32 k_at = sK + panel_offset((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
#pragma unroll
  for (int j = 0; j < S::kStepKeys / 8; ++j) rS[j][0] = rS[j][1] = rS[j][2] = rS[j][3] = 0.0f;
  if constexpr (S::kCodes) {
    score_codes<S>(rS, rQ, q_at, k_at);
    return;
  }
#pragma unroll
  for (int k = 0; k < S::kColsQk / 16; ++k) {
    u32 a[4]; // [16, 16]
    if constexpr (S::kQueryInRegisters)
      a[0] = rQ[k][0], a[1] = rQ[k][1], a[2] = rQ[k][2], a[3] = rQ[k][3];
    else
      ldmatrix_x4(a, panel_along<16>(q_at, 2 * k));
#pragma unroll
    for (int j = 0; j < S::kStepKeys / 8; j += 2) {
      // The four matrices: keys 8j.. of columns 16k.. and 16k + 8.., then keys 8j + 8.. of both.
      u32 b[4];
      ldmatrix_x4(b, panel_along<S::kKeys>(k_at, 2 * k) + 8 * j * kPanelPitch);
      mma_m16n16k16(typename Config::Element{}, rS[j], rS[j + 1], a, b);
    }
  }
}

// O += P V: rO [16, Dv], rP [16, kStepKeys].
template <class Config, int kO>
NSAI_DEVICE void accumulate(float (&rO)[kO][4],
                            const float (&rP)[KernelTraits<Config>::kStepKeys / 8][4], u32 sV) {
  using S = KernelTraits<Config>;
  const int lane = threadIdx.x & 31;
  const u32 v_at = sV + panel_offset(lane & 15, lane >> 4);
  if constexpr (S::kCodes) {
    accumulate_codes<S>(rO, rP, v_at);
    return;
  }
#pragma unroll
  for (int k = 0; k < S::kStepKeys / 16; ++k) {
    u32 a[4], rest[4]; // P [16, 16]
    softmax_pack<typename Config::Element>(a, rP[2 * k], rP[2 * k + 1]);
    if constexpr (kSplitP<Config>)
      softmax_pack_rest<typename Config::Element>(rest, a, rP[2 * k], rP[2 * k + 1]);
#pragma unroll
    for (int j = 0; j < kO; j += 2) {
      // The four matrices, transposed: keys 16k.. and 16k + 8.. of columns 8j.., then of columns 8j
      // + 8...
      u32 b[4];
      ldmatrix_x4_trans(b, panel_along<S::kKeys>(v_at, j) + 16 * k * kPanelPitch);
      mma_m16n16k16(typename Config::Element{}, rO[j], rO[j + 1], a, b);
      if constexpr (kSplitP<Config>) {
        mma_m16n16k16(typename Config::Element{}, rO[j], rO[j + 1], rest, b);
      }
    }
  }
}

// The loop of a consumer warp over all tiles of its CTA.
template <class Config, class Params>
NSAI_DEVICE void consume(const Params &params, const unsigned char *shared) {
  using S = KernelTraits<Config>;
  const NsaiAttendSelected &p = selected_params(params).attend;
  u32 base = shared_address(shared);
  asm volatile("" : "+r"(base)); // keeps it in a register instead of recomputing it for every stage
  const Barriers<S::kStages> barriers = { base + S::kBarriers };
  PipelineState<S::kStages> step;

  for (TileWalk<Config> walk(p); walk.tile < p.tiles; walk.advance()) {
    const int tile = walk.tile;
    int thread = threadIdx.x;
    // Recompute thread-derived indices for every tile: kept across tiles they would occupy
    // registers.
    asm volatile("" : "+r"(thread));
    const int lane = thread % 32, warp = warp_uniform(thread / 32);
    const u32 sQ = base + S::kSQ + warp * S::kQBytes;      // [16, Dk]
    const int row = 16 * warp + lane / 4;                  // this lane's rows: row, row + 8
    u32 rQ[S::kQueryInRegisters ? S::kColsQk / 16 : 1][4]; // [16, Dk]
    float unit = 1.0f;                                     // of Q
    {
      const TilePosition at = find_tile_position<Config>(params, tile);
      if (at.empty()) continue;
      const OutputRow output_row[2] = { find_output_row<Config>(at, row),
                                        find_output_row<Config>(at, row + 8) };
      prefetch_output<Config>(p.out, p.kv_heads, output_row);
      if constexpr (S::kCodes)
        unit = load_coded_query<Config, S>(rQ, sQ, p.q, at, row);
      else if constexpr (S::kQueryInRegisters)
        load_query<Config>(rQ, p.q, at, row);
      else
        copy_query<Config, 16, 0>(sQ, 0, p.q, at, 16 * warp);
    }
    const float scale_log2 =
        unit * scale_by_keys<Config>(p.scale_log2, params, group_of_tile<Config>(p, tile));
    float rO[S::kColsV / 8][4] = {}; // [16, Dv]
    SoftmaxRows rows;

    for (bool last = false; !last; step.advance()) {
      const int s = step.stage;
      barriers.consumer_wait(s, step.phase);
      const u32 seen = stage_word<Config>(shared, S::kSSeen, s);
      last = seen & S::kLast;
      if (seen >> warp & 1) {
        const bool partly = stage_word<Config>(shared, S::kSPartly, s) >> warp & 1;
        const u32 sK = base + S::kSK + s * S::kKBytes; // [kKeys, Dk]
        const u32 sV = base + S::kSV + s * S::kVBytes; // [kKeys, Dv]
#pragma unroll 1
        for (int part = 0; part < S::kParts; ++part) {
          const int offset = part * S::kStepKeys * kPanelPitch;
          float rS[S::kStepKeys / 8][4]; // [16, kStepKeys]
          score<Config>(rS, rQ, sQ, sK + offset);
          if (partly) mask_scores<Config>(rS, shared, s, warp, part);
          softmax_step(rows, rS, rO, scale_log2);
          accumulate<Config>(rO, rS, sV + offset);
        }
      }
      barriers.consumer_release(s);
    }

    const TilePosition at = find_tile_position<Config>(params, tile);
    const OutputRow output_row[2] = { find_output_row<Config>(at, row),
                                      find_output_row<Config>(at, row + 8) };
    scale_by_values<Config>(rO, params, at.group);
    if constexpr (S::kCodes) restore_columns(rO);
    store_output<Config, false>(p.out, p.kv_heads, rO, rows, output_row);
  }
}
