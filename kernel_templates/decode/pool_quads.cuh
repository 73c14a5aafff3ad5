// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Pools probabilities over selection blocks of four compressed keys directly from C fragments. The
// four lanes of a row hold two adjacent keys each of an n8 tile, so a pair of lanes holds one
// block.
//
//   own    = 2 p[0] + 2 p[1] + 2 p[2] + p[3] + p[-1]    (m = 2; if m = 1 each key has weight 1)
//   lanes  2 b and 2 b + 1 of a row hold block b of the tile; the even one finishes row
//          `group`, the odd one row `group + 8`
//
// Config: those of decode/work.cuh.
#pragma once
#include "core/softmax.cuh"
#include "core/types.cuh"
#include "decode/work.cuh"

template <class C> constexpr bool kPoolsQuads = Decode<C>::kRatio == 4 && Decode<C>::kOverlap <= 2;

template <class C> struct QuadPool {
  static constexpr bool kCarries = Decode<C>::kOverlap == 2;
  float *gPooled;  // [blocks from this lane's first of the stage on, 16], at the lane's row
  float before[2]; // log2 of p[-1] of both rows, in the last lane of a quad

  // Begins a run. `gFirst`: the run's first block, at the warp's first row.
  NSAI_DEVICE void begin(float *gFirst, int lane) {
    gPooled = gFirst + lane % 4 / 2 * kPoolRows + lane % 2 * 8 + lane / 4;
    before[0] = before[1] = kMinusInf;
  }

  // Pools a stage, of which the first `steps` steps belong to the run.
  template <int kN>
  NSAI_DEVICE void pool(const float (&p)[kN][4], const SoftmaxRows &rows, int steps) {
    const int lane = threadIdx.x % 32;
    const bool odd = lane % 2, last = lane % 4 == 3;
    const float reference = odd ? rows.reference[1] : rows.reference[0];
    float behind[2]; // the previous n8 tile's last key
#pragma unroll
    for (int r = 0; r < 2; ++r)
      behind[r] = kCarries ? exp2_approx(before[r] - rows.reference[r]) : 0.0f;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      if (j / 2 >= steps) break;
      float block_sum[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float first = p[j][2 * r], second = p[j][2 * r + 1];
        block_sum[r] = first + second;
        if constexpr (kCarries) {
          const float left =
              __shfl_sync(~0u, last ? behind[r] : second, (lane & 28) | ((lane + 3) & 3));
          block_sum[r] = fmaf(2.0f, block_sum[r], odd ? -second : left);
          behind[r] = second;
        }
      }
      const float sum = (odd ? block_sum[1] : block_sum[0]) +
                        __shfl_xor_sync(~0u, odd ? block_sum[0] : block_sum[1], 1);
      store_by(gPooled + 2 * j * kPoolRows, reference + log2_approx(sum), l2_keeping());
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (kCarries) before[r] = rows.reference[r] + log2_approx(behind[r]);
    gPooled += kN * 2 * kPoolRows;
  }

  // Stores the carry of the run for the block behind it; `gCarry` points to the warp's row 0.
  NSAI_DEVICE void store_carry(float *gCarry, int lane) const {
    if (lane % 4 == 3) gCarry[lane / 4] = before[0], gCarry[lane / 4 + 8] = before[1];
  }
};
