// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Consumers of the pipeline of attend/selected_pipeline.cuh on wgmma, for attend_selected_sm90 and
// attend_selected_window_sm90.
//
// A consumer warpgroup has 64 rows, which are 64 / kGroupPadded adjacent tokens, and multiplies the
// merged list of their blocks: rows whose token does not see a key have P = 0. All warpgroups of a
// CTA share the stages; a warpgroup whose tokens see none of a stage's keys releases it untouched.
// Each warpgroup runs Q K^T, softmax and P V in order: the other warpgroups fill its waits.
//
// Of a cache in codes the stages hold fp16, and Q becomes fp16 as well (core/code_fragments.cuh).
//
// The partial sum of the earlier branches, the window's among them, stays in `partial` in global
// memory, because there are no registers for it.
//
// Config: Element, kGate, and those of attend/selected_pipeline.cuh; kWindow if the kernel computes
// the window branch as well. Shared memory: nsai_smem_selected_pipeline() of params/smem.h.
#pragma once
#include "attend/selected_consumer.cuh"
#include "attend/selected_pipeline.cuh"
#include "attend/selected_products.cuh"
#include "attend/selected_window.cuh"
#include "core/softmax.cuh"

template <class Config> struct KernelTraits : SelectedPipeline<Config> {
  using R = SelectedPipeline<Config>;
  // Q's columns are split between registers (as fragments) and shared memory: as many panels as fit
  // into registers beside O, the scores and the rest of the loop. Reading Q and K from shared
  // memory for every key tile takes as long as the products that they feed.
  static constexpr int kOthers = R::kColsV / 2 + R::kKeys / 2 + (kSplitP<Config> ? 16 : 0) + 44;
  static constexpr int kFree = (R::kConsumerRegisters - kOthers) / 16;
  static constexpr int kQueryPanels = panels(Config::kHeadDimQk);
  static constexpr int kHeldPanels = kFree < 0 ? 0 : kFree < kQueryPanels ? kFree : kQueryPanels;
  static constexpr int kQuerySteps = R::kColsQk / 16; // steps of 16 columns
  static constexpr int kHeldSteps = kHeldPanels * 4 < kQuerySteps ? kHeldPanels * 4 : kQuerySteps;
  static constexpr int kQBytes = (kQueryPanels - kHeldPanels) * 64 * kPanelPitch;
  static constexpr int kBytes = kQBytes ? R::kSQ + R::kWarpgroups * kQBytes : R::kEnd;
  static_assert(kBytes == Config::kSharedBytes, "the host computes another size of shared memory");
};

// Computes the unnormalised O of the warpgroup's rows over their lists: rO [64, Dv], zeros on
// entry.
template <class Config, int kO, int kHeld>
NSAI_DEVICE void multiply_selected(float (&rO)[kO][4], SoftmaxRows &rows, const u32 (&rQ)[kHeld][4],
                                   u32 sQ, const unsigned char *shared,
                                   PipelineState<Config::kStages> &step, float scale_log2) {
  using S = KernelTraits<Config>;
  using Product = ProductConfig<Config>;
  const int warp = warp_uniform(threadIdx.x / 32), group = warp / 4;
  const u32 base = shared_address(shared);
  const Barriers<S::kStages> barriers = { base + S::kBarriers };
  int s = warp_uniform(step.stage);
  barriers.consumer_wait(s, step.phase);
  u32 seen = stage_word<Config>(shared, S::kSSeen, s);
  for (;;) {
    const int now = s;
    const bool needed = seen >> (4 * group) & 15, last = seen & S::kLast;
    step.advance();
    s = warp_uniform(step.stage);
    if (needed) {
      float rS[S::kKeys / 8][4]; // [64, kKeys]
      Probabilities<Product> rP; // [64, kKeys]
      multiply_qk<Product, S::kHeldSteps>(rS, rQ, sQ, base + S::kSK + now * S::kKBytes);
      wgmma_wait<0>();
      hold(rS);
      if (seen >> warp & 1) {
        if (stage_word<Config>(shared, S::kSPartly, now) >> warp & 1)
          mask_scores<Config>(rS, shared, now, warp);
        softmax_step(rows, rS, rO, scale_log2);
        pack_probabilities<Product>(rP, rS);
      } else {
        rP = {};
      }
      multiply_pv<Product>(rO, rP, base + S::kSV + now * S::kVBytes);
      // Poll the next stage while P V runs.
      const bool ready = !last && barrier_test(barriers.full(s), step.phase);
      wgmma_wait<0>();
      hold(rO);
      barriers.consumer_release(now);
      if (last) break;
      if (!ready) barriers.consumer_wait(s, step.phase);
    } else { // no token of the warpgroup sees these keys
      barriers.consumer_release(now);
      if (last) break;
      barriers.consumer_wait(s, step.phase);
    }
    seen = stage_word<Config>(shared, S::kSSeen, s);
  }
}

// The loop of a consumer warp over all tiles of its CTA.
template <class Config, class Params>
NSAI_DEVICE void consume(const Params &params, const unsigned char *shared) {
  using S = KernelTraits<Config>;
  const NsaiAttendSelected &p = selected_params(params).attend;
  const u32 base = shared_address(shared);
  PipelineState<S::kStages> step;

  for (TileWalk<Config> walk(p); walk.tile < p.tiles; walk.advance()) {
    const int tile = walk.tile;
    int thread = threadIdx.x;
    // Recompute thread-derived indices for every tile: kept across tiles they would occupy
    // registers.
    asm volatile("" : "+r"(thread));
    const int lane = thread % 32, warp = warp_uniform(thread / 32), group = warp / 4;
    const u32 sQ = base + S::kSQ + group * S::kQBytes; // [64, columns not held in rQ]
    const int row = 16 * warp + lane / 4;              // this lane's rows: row, row + 8

    // ---- queries
    u32 rQ[S::kHeldSteps ? S::kHeldSteps : 1][4]; // [64, columns held in registers]
    {
      const TilePosition at = find_tile_position<Config>(params, tile);
      if (at.empty()) continue;
      const OutputRow output_row[2] = { find_output_row<Config>(at, row),
                                        find_output_row<Config>(at, row + 8) };
      prefetch_output<Config>(epilogue_of(params, first_branch(params)), p.kv_heads, output_row);
      if constexpr (S::kHeldSteps > 0) load_query<Config>(rQ, p.q, at, row);
      if constexpr (S::kQBytes > 0) {
        // All four warps have finished multiplying with the previous tile's Q.
        threads_sync(1 + group, 128);
        copy_query<Config, 64, S::kHeldPanels>(sQ, 16 * (warp % 4), p.q, at, 16 * warp);
      }
      if constexpr (S::kExpands) {
        auto present = [](int) { return true; }; // absent rows are zeros
        const float unit =
            convert_split_queries<typename Config::Element, S::kHeldSteps, 64,
                                  S::kQBytes / 64 / 16>(rQ, sQ, 16 * (warp % 4), present);
        // There is no register for it.
        if (lane == 0) store_shared_word(base + S::kSUnits + 4 * warp, __float_as_uint(unit));
        __syncwarp();
      }
      if constexpr (S::kQBytes > 0) threads_sync(1 + group, 128); // all four warps' rows are there
    }

    // ---- branches
#pragma unroll 1
    for (int branch = first_branch(params); branch < end_branch(params); ++branch) {
      float rO[S::kColsV / 8][4] = {}; // [64, Dv]
      SoftmaxRows rows;
      float scale_log2 =
          scale_by_keys<Config>(p.scale_log2, params, group_of_tile<Config>(p, tile), branch);
      if constexpr (S::kExpands)
        scale_log2 *= __uint_as_float(load_shared_word(base + S::kSUnits + 4 * warp));
      if (kCanWindow<Params> && branch == NSAI_FUSED_WINDOW) {
        if constexpr (kCanWindow<Params>)
          multiply_window<Config, S::kHeldSteps>(rO, rows, rQ, sQ,
                                                 find_tile_position<Config>(params, tile), base,
                                                 step, scale_log2);
      } else {
        multiply_selected<Config>(rO, rows, rQ, sQ, shared, step, scale_log2);
      }
      if constexpr (kCanWindow<Params>) wait_for_kernel_before(); // it wrote the partial sum
      const TilePosition at = find_tile_position<Config>(params, tile);
      scale_by_values<Config>(rO, params, at.group, branch);
      const OutputRow output_row[2] = { find_output_row<Config>(at, row),
                                        find_output_row<Config>(at, row + 8) };
      store_output<Config>(epilogue_of(params, branch), p.kv_heads, rO, rows, output_row);
      // All lanes of a quad have read the partial sum's unit before one of them overwrites it.
      if constexpr (kCanWindow<Params>) __syncwarp();
    }
  }
}
