// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Pools the probabilities of decode_cluster's compressed keys per selection block
// (decode/work.cuh), for one warp's run of keys and one step of 16 keys at a time. Selection blocks
// of four compressed keys (the default model) are summed directly in C fragments, others row by row
// as in decode_split_kv_compressed.
//
// Config: those of decode/compressed_scan.cuh.
#pragma once
#include "core/softmax.cuh"
#include "decode/compressed_scan.cuh"
#include "decode/work.cuh"

template <class C, bool kFragments> struct ImportancePool;
template <class C>
using StepPool =
    ImportancePool<C, Decode<C>::kRatio == 4 && Decode<C>::kOverlap <= 2 && C::kScanRows == 16>;

// Lane 4 g + q holds keys 8 t + 2 q and 8 t + 2 q + 1 of rows g and g + 8; they belong to block 2 t
// + q / 2.
template <class C> struct ImportancePool<C, true> {
  float *pooled;                // [blocks from the run's first on, 16]
  float reference[2], carry[2]; // of rows g and g + 8; the carry is valid in lanes q = 0

  NSAI_DEVICE void begin(float *, float *at) {
    pooled = at;
#pragma unroll
    for (int r = 0; r < 2; ++r) reference[r] = kNoReference, carry[r] = 0.0f;
  }
  NSAI_DEVICE void pool(const float (&p)[2][4], const SoftmaxRows &rows) {
    constexpr int kOverlap = Decode<C>::kOverlap;
    const int lane = threadIdx.x % 32, q = lane % 4, before = (lane & ~3) | ((q + 3) & 3);
    float block_sum[2][2]; // [t][r]
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // The carry of the previous step.
      float behind = carry[r] * exp2_approx(reference[r] - rows.reference[r]);
      reference[r] = rows.reference[r];
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        // The last of a block's four keys also contributes to the next block.
        const float a = p[t][2 * r], b = p[t][2 * r + 1];
        float sum = kOverlap * a + (q & 1 ? 1 : kOverlap) * b;
        if constexpr (kOverlap > 1) {
          const float last = __shfl_sync(~0u, b, before);
          if (!(q & 1)) sum += q ? last : behind;
          behind = last;
        }
        block_sum[t][r] = sum + __shfl_xor_sync(~0u, sum, 1);
      }
      carry[r] = behind;
    }
    const int r = q & 1; // both lanes of a pair know both rows' sums; each stores one row
#pragma unroll
    for (int t = 0; t < 2; ++t)
      pooled[(2 * t + q / 2) * 16 + 8 * r + lane / 4] =
          (r ? reference[1] : reference[0]) + log2_approx(r ? block_sum[t][1] : block_sum[t][0]);
    pooled += 4 * 16;
  }
  // Calls found(row, x) with the last key's contribution to the block behind the run.
  template <class Found> NSAI_DEVICE void end(Found found) const {
    if (threadIdx.x % 4) return;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      found(8 * r + (int)threadIdx.x % 32 / 4, reference[r] + log2_approx(carry[r]));
  }
};

template <class C> struct ImportancePool<C, false> {
  ScanKeys<C> keys;
  NSAI_DEVICE void begin(float *sP, float *at) {
    keys = {};
    keys.pools = true;
    keys.begin_pool(sP, at);
  }
  NSAI_DEVICE void pool(const float (&p)[2][4], const SoftmaxRows &rows) { keys.pool(p, rows); }
  template <class Found> NSAI_DEVICE void end(Found found) const {
    if (threadIdx.x % 32 < 16) found((int)threadIdx.x % 32, keys.carry_out());
  }
};
