// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The products of attend/selected_sm80.cuh and attend/selected_mma.cuh with codes
// (core/code_fragments.cuh). S: their KernelTraits.
#pragma once
#include "core/code_fragments.cuh"
#include "core/mma.cuh"
#include "core/softmax.cuh"
#include "data/tile_position.cuh"
#include "params/attention.h"

// Loads the warp's rows of Q for products with codes, and returns their unit.
template <class Config, class S, int kSteps>
NSAI_DEVICE float load_coded_query(u32 (&rQ)[kSteps][4], u32 sQ, const NsaiView &q,
                                   const TilePosition &at, int row) {
  auto row_of = [&](int half) {
    const OutputRow output_row = find_output_row<Config>(at, row + 8 * half);
    const u16 *gRow = (const u16 *)q.data + output_row.token * q.token_stride +
                      output_row.head * q.head_stride; // [Dk]
    return output_row.present ? gRow : nullptr;
  };
  if constexpr (S::kQueryInRegisters) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      load_code_query(rQ, row_of(half), row_of(half) != nullptr, half);
    return convert_queries<typename Config::Element>(rQ);
  } else {
    const float unit =
        copy_code_query<typename Config::Element, typename S::QTile, S::kColsQk / 16>(sQ, 0, true,
                                                                                      row_of);
    __syncwarp(); // Q is written
    return unit;
  }
}

// rS [16, kStepKeys] += Q K^T. The addresses are those of the lane for ldmatrix.
template <class S, int kN, int kSteps>
NSAI_DEVICE void score_codes(float (&rS)[kN][4], const u32 (&rQ)[kSteps][4], u32 q_at, u32 k_at) {
#pragma unroll
  for (int first = 0; first < S::kColsQk / 16; first += 2) { // a chunk is a product
    u32 a[2][4];                                             // Q [16, 32]
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (first + i < S::kColsQk / 16) {
        if constexpr (S::kQueryInRegisters) {
#pragma unroll
          for (int c = 0; c < 4; ++c) a[i][c] = rQ[first + i][c];
        } else {
          ldmatrix_x4(a[i], S::QTile::along(q_at, 2 * (first + i)));
        }
      }
#pragma unroll
    for (int j = 0; j < S::kStepKeys / 8; j += 2) {
      u32 b[2][4]; // K [16 keys, 32]
      load_code_keys(b, S::KTile::along(k_at, first) + 8 * j * S::KTile::kPitch);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (first + i < S::kColsQk / 16) mma_m16n16k16(Fp16{}, rS[j], rS[j + 1], a[i], b[i]);
    }
  }
}

// O += P V: rO [16, Dv], rP [16, kStepKeys].
template <class S, int kM, int kN>
NSAI_DEVICE void accumulate_codes(float (&rO)[kM][4], const float (&rP)[kN][4], u32 v_at) {
  using T = typename S::VTile;
#pragma unroll
  for (int k = 0; k < S::kStepKeys / 16; ++k) {
    u32 a[4]; // P [16, 16]
    softmax_pack<Fp16>(a, rP[2 * k], rP[2 * k + 1]);
#pragma unroll
    for (int first = 0; first < kM; first += 4) {
      u32 b[2][4]; // V [16 keys, 32]
      load_code_values(b, T::along(v_at, first / 2) + 16 * k * T::kPitch);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (first + 2 * i < kM)
          mma_m16n16k16(Fp16{}, rO[first + 2 * i], rO[first + 2 * i + 1], a, b[i]);
    }
  }
}
