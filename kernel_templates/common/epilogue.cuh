// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The end of every attention kernel (NsaiEpilogue): normalise O, apply the branch's gate, add the sum of the branches
// before, store.
//
//   O_b = acc / l           -> o_branch
//   LSE = (m + log2 l) ln 2 -> lse
//   gate * O_b + partial    -> o, rounded once, else partial in fp32
//
// Uses Config::Element, kHeadDimV, kGroup, kGate (0: none, 1: weights, 2: logits), kGateFloat (gates are f32).
#pragma once
#include "common/params.h"
#include "common/softmax.cuh"
#include "common/types.cuh"

// Where a row of a tile belongs. Rows that are padding are not present and store nothing.
struct OutputRow {
  int token; // row of o, lse, gates
  int head;  // of Hq
  bool present;
};

template <class Config> NSAI_DEVICE float load_gate(const NsaiEpilogue &out, const OutputRow &row) {
  if constexpr (Config::kGate == 0) return 1.0f;
  long long at = row.token * out.gate.token_stride + row.head * out.gate.head_stride + out.gate_branch;
  float x;
  if constexpr (Config::kGateFloat) x = ((const float *)out.gate.data)[at];
  else x = Config::Element::low(((const u16 *)out.gate.data)[at]);
  if constexpr (Config::kGate == 2) return __fdividef(1.0f, 1.0f + exp2_approx(-kLog2e * x));
  return x;
}

// Of two n8 tiles a lane holds two columns each, of its quad's row. The lanes exchange halves so that each ends with
// four adjacent columns of one tile, those that begin at column_of_lane(): 8-byte stores of 16-bit elements and 16-byte
// stores of floats, and a quad fills whole 32-byte sectors.
NSAI_DEVICE float4 gather_four(float a0, float a1, float b0, float b1) {
  bool odd = threadIdx.x & 1;
  float x0 = __shfl_xor_sync(~0u, odd ? a0 : b0, 1);
  float x1 = __shfl_xor_sync(~0u, odd ? a1 : b1, 1);
  return odd ? make_float4(x0, x1, b0, b1) : make_float4(a0, a1, x0, x1);
}

// First of the lane's four columns, within the 16 of two n8 tiles.
NSAI_DEVICE int column_of_lane() { return (threadIdx.x & 1) * 8 + (threadIdx.x & 2) * 2; }

template <class Config> NSAI_DEVICE void store_four(const NsaiView &view, const OutputRow &row, int column, float4 x) {
  u16 *to = (u16 *)view.data + row.token * view.token_stride + row.head * view.head_stride + column;
  *(uint2 *)to = make_uint2(Config::Element::pack(x.x, x.y), Config::Element::pack(x.z, x.w));
}

// Stores the 16 rows of a warp's tile: acc [16, 8 * kN] unnormalised, C fragments, kN = padded_dim(Dv) / 8;
// place[r] is where row `group + 8 * r` of this lane belongs. All 32 lanes take part.
template <class Config, int kN>
NSAI_DEVICE void store_output(const NsaiEpilogue &out, int kv_heads, const float (&acc)[kN][4],
                              const SoftmaxRows &rows, const OutputRow (&place)[2]) {
  constexpr int kDim = Config::kHeadDimV;
  static_assert(kDim % 8 == 0 && kN % 2 == 0 && kN * 8 >= kDim && kN * 8 - kDim < 16, "tiles of 16 columns");
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const OutputRow &row = place[r];
    float total = softmax_total(rows, r);
    float inverse = total > 0.0f ? __fdividef(1.0f, total) : 0.0f;
    float gate = row.present ? load_gate<Config>(out, row) : 0.0f;
    int column = column_of_lane();
    float *partial = out.partial + ((long long)row.token * (Config::kGroup * kv_heads) + row.head) * kDim + column;

    // All reads before the first write, for they may alias and would wait one by one.
    float4 sum[kN / 2];
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) {
      sum[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (out.add_partial && row.present && column + 16 * j < kDim) sum[j] = *(const float4 *)(partial + 16 * j);
    }

    if (out.lse && row.present && (threadIdx.x & 3) == 0)
      out.lse[row.token * out.lse_token_stride + row.head * out.lse_head_stride] =
          softmax_lse(rows.reference[r], total);
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) {
      float4 x = gather_four(acc[2 * j][2 * r] * inverse, acc[2 * j][2 * r + 1] * inverse,
                             acc[2 * j + 1][2 * r] * inverse, acc[2 * j + 1][2 * r + 1] * inverse);
      if (!row.present || column + 16 * j >= kDim) continue;
      if (out.o_branch.data) store_four<Config>(out.o_branch, row, column + 16 * j, x);
      sum[j] = make_float4(fmaf(gate, x.x, sum[j].x), fmaf(gate, x.y, sum[j].y), fmaf(gate, x.z, sum[j].z),
                           fmaf(gate, x.w, sum[j].w));
      if (out.o.data) store_four<Config>(out.o, row, column + 16 * j, sum[j]);
      else if (out.partial) *(float4 *)(partial + 16 * j) = sum[j];
    }
  }
}
