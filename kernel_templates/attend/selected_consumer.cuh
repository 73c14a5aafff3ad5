// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What all consumers of the pipeline of attend/selected_pipeline.cuh share: Q in shared memory, the
// producers' flags of a stage, score masks, and prefetching of what the epilogue reads.
//
// Config: that of attend/selected_pipeline.cuh, and kGate.
#pragma once
#include "attend/selected_pipeline.cuh"
#include "core/code_fragments.cuh"
#include "core/copy.cuh"
#include "core/epilogue.cuh"
#include "core/tma.cuh"
#include "core/types.cuh"
#include "params/attention.h"

// Copies a warp's 16 rows of Q, panels from kFirst on, into rows [at_row, at_row + 16) of a tile of
// kRows rows. On return the copy is complete and visible to wgmma. Padding is zero.
template <class Config, int kRows, int kFirst>
NSAI_DEVICE void copy_query(u32 sQ, int at_row, const NsaiView &q, const TilePosition &at,
                            int row) {
  constexpr int kChunks = (panels(Config::kHeadDimQk) - kFirst) * 8;
  for (int i = threadIdx.x % 32; i < 16 * kChunks; i += 32) {
    int r = i / kChunks, chunk = i % kChunks, to = at_row + r;
    OutputRow output_row = find_output_row<Config>(at, row + r);
    const u16 *gRow = (const u16 *)q.data + output_row.token * q.token_stride +
                      output_row.head * q.head_stride; // [Dk]
    copy_async_16(sQ + chunk / 8 * kRows * kPanelPitch + panel_offset(to, chunk),
                  gRow + 64 * kFirst + 8 * chunk,
                  output_row.present && 64 * kFirst + 8 * chunk < Config::kHeadDimQk);
  }
  copy_async_commit();
  copy_async_wait<0>();
  shared_proxy_fence();
  __syncwarp();
}

// Prefetches what a tile's epilogue reads, gates and the partial sum of earlier branches, from DRAM
// to L2. There are no registers to hold them until then. output_row[r]: of row `row + 8 * r` of the
// lane.
template <class Config>
NSAI_DEVICE void prefetch_output(const NsaiEpilogue &out, int kv_heads,
                                 const OutputRow (&output_row)[2]) {
  constexpr int kLineElements = 64;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (!output_row[r].present) continue;
    if (Config::kGate && threadIdx.x % 4 == 0) {
      const long long at = output_row[r].token * out.gate.token_stride +
                           output_row[r].head * out.gate.head_stride + out.gate_branch;
      prefetch_line((const char *)out.gate.data + at * (out.gate_float ? 4 : 2));
    }
    if (!out.add_partial) continue;
    const long long row =
        (long long)output_row[r].token * (Config::kGroup * kv_heads) + output_row[r].head;
    for (int i = threadIdx.x % 4 * kLineElements; i < Config::kHeadDimV; i += 4 * kLineElements)
      prefetch_line((const u16 *)out.partial + row * Config::kHeadDimV + i);
    if (threadIdx.x % 4 == 3) prefetch_line(out.partial_units + row);
  }
}

// The flag word of a stage, kSSeen or kSPartly, combined over the producers. All lanes take part.
template <class Config>
NSAI_DEVICE u32 stage_word(const unsigned char *shared, int offset, int stage) {
  constexpr int kProducers = SelectedPipeline<Config>::kProducers;
  const u32 *sWords = (const u32 *)(shared + offset) + stage * kProducers; // [kProducers]
  if constexpr (kProducers == 1) return warp_uniform(sWords[0]);
  return __reduce_or_sync(~0u, sWords[threadIdx.x % kProducers]);
}

// Masks scores s [16, 8 * kN] of a warp to -inf where the row's token does not see the key. The
// scores are those of keys from 8 * kN * part on within the stage.
template <class Config, int kN>
NSAI_DEVICE void mask_scores(float (&s)[kN][4], const unsigned char *shared, int stage, int warp,
                             int part = 0) {
  using R = SelectedPipeline<Config>;
  // The lane's two rows belong to one token, or to two tokens kTokenStep apart.
  constexpr int kTokenStep = Config::kGroupPadded < 16 ? 8 / Config::kGroupPadded : 0;
  int lane = threadIdx.x % 32;
  // Compute it here: hoisted out of the loop it would occupy registers.
  asm volatile("" : "+r"(lane));
  const int token = (16 * warp + (kTokenStep ? lane / 4 : 0)) / Config::kGroupPadded;
  const u64 *sBits = (const u64 *)(shared + R::kSBits) + stage * R::kTokens + token;
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int half = 0; half < kN / 4; ++half) {
      // Bit 8j + c is column c of this lane in n8 tile j.
      const u32 mine =
          ((const u32 *)(sBits + r * kTokenStep))[part * kN / 4 + half] >> (2 * (lane & 3));
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          if (!(mine >> (8 * j + c) & 1)) s[4 * half + j][2 * r + c] = kMinusInf;
    }
}
