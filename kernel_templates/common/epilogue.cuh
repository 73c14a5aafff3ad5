// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The end of every attention kernel (NsaiEpilogue): normalise O, apply the branch's gate, add the
// sum of the branches before, store.
//
//   O_b = acc / l           -> o_branch
//   LSE = (m + log2 l) ln 2 -> lse
//   gate * O_b + partial    -> o, rounded once, else partial in fp32
//
// Uses Config::Element, kHeadDimV, kGroup, kGate (0: none, 1: weights, 2: logits).
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
  long long at =
      row.token * out.gate.token_stride + row.head * out.gate.head_stride + out.gate_branch;
  float x;
  if (out.gate_float)
    x = ((const float *)out.gate.data)[at];
  else
    x = Config::Element::low(((const u16 *)out.gate.data)[at]);
  if constexpr (Config::kGate == 2) return __fdividef(1.0f, 1.0f + exp2_approx(-kLog2e * x));
  return x;
}

// Of two n8 tiles a lane holds two columns each, of its quad's row. Pairs of lanes exchange halves,
// so that each ends with four adjacent columns of one tile, those from column_of_lane() on: 8-byte
// stores of 16-bit elements and 16-byte stores of floats, and a quad fills whole 32-byte sectors.
// All 32 lanes take part.
NSAI_DEVICE float4 gather_four(float a0, float a1, float b0, float b1) {
  bool odd = threadIdx.x & 1;
  float x0 = __shfl_xor_sync(~0u, odd ? a0 : b0, 1);
  float x1 = __shfl_xor_sync(~0u, odd ? a1 : b1, 1);
  return odd ? make_float4(x0, x1, b0, b1) : make_float4(a0, a1, x0, x1);
}

// First of the lane's four columns, within the 16 of two n8 tiles.
NSAI_DEVICE int column_of_lane() { return (threadIdx.x & 1) * 8 + (threadIdx.x & 2) * 2; }

// Whether the lane's columns of tile pair j exist: all do but, where kDim % 16 == 8, the last 8.
template <int kDim> NSAI_DEVICE bool has_columns(int j) {
  return 16 * j + 16 <= kDim || column_of_lane() < 8;
}

// One row in elements: x[j] at columns 16 * j + column_of_lane().
template <class Config, int kJ>
NSAI_DEVICE void store_row(const NsaiView &view, const OutputRow &row, const float4 (&x)[kJ]) {
  u16 *to = (u16 *)view.data + row.token * view.token_stride + row.head * view.head_stride +
            column_of_lane();
#pragma unroll
  for (int j = 0; j < kJ; ++j)
    if (has_columns<Config::kHeadDimV>(j))
      *(uint2 *)(to + 16 * j) =
          make_uint2(Config::Element::pack(x[j].x, x[j].y), Config::Element::pack(x[j].z, x[j].w));
}

// One row, x = O_b, through the gate and onto the sum of the branches before. `empty`: it saw no key.
template <class Config, int kJ>
NSAI_DEVICE void store_sum(const NsaiEpilogue &out, int kv_heads, const OutputRow &row, bool empty,
                           float4 (&x)[kJ]) {
  constexpr int kDim = Config::kHeadDimV;
  float gate = empty ? 0.0f : load_gate<Config>(out, row); // a padding row's gate may be anything
  long long at = (long long)row.token * (Config::kGroup * kv_heads) + row.head;
  float *partial = out.partial + at * kDim + column_of_lane();
#pragma unroll
  for (int j = 0; j < kJ; ++j) {
    float4 before = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (out.add_partial && has_columns<kDim>(j)) before = *(const float4 *)(partial + 16 * j);
    x[j] = make_float4(fmaf(gate, x[j].x, before.x), fmaf(gate, x[j].y, before.y),
                       fmaf(gate, x[j].z, before.z), fmaf(gate, x[j].w, before.w));
  }
  if (out.o.data) {
    store_row<Config>(out.o, row, x);
  } else if (out.partial) {
#pragma unroll
    for (int j = 0; j < kJ; ++j)
      if (has_columns<kDim>(j)) *(float4 *)(partial + 16 * j) = x[j];
  }
}

// Stores the 16 rows of a warp's tile: acc [16, 8 * kN] unnormalised, C fragments, kN =
// padded_dim(Dv) / 8; place[r] is where row `group + 8 * r` of this lane belongs. All 32 lanes take
// part.
template <class Config, int kN>
NSAI_DEVICE void store_output(const NsaiEpilogue &out, int kv_heads, const float (&acc)[kN][4],
                              const SoftmaxRows &rows, const OutputRow (&place)[2]) {
  static_assert(Config::kHeadDimV % 8 == 0 && (Config::kHeadDimV + 15) / 16 == kN / 2,
                "acc is padded to 16 columns");
  float total[2];
  float4 x[2][kN / 2]; // O_b of rows group, group + 8
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] = quad_sum(rows.sum[r]);
    float inverse = total[r] > 0.0f ? __fdividef(1.0f, total[r]) : 0.0f;
#pragma unroll
    for (int j = 0; j < kN / 2; ++j)
      x[r][j] = gather_four(acc[2 * j][2 * r] * inverse, acc[2 * j][2 * r + 1] * inverse,
                            acc[2 * j + 1][2 * r] * inverse, acc[2 * j + 1][2 * r + 1] * inverse);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const OutputRow &row = place[r];
    if (!row.present) continue;
    if (out.lse && threadIdx.x % 4 == 0)
      out.lse[row.token * out.lse_token_stride + row.head * out.lse_head_stride] =
          softmax_lse(rows.reference[r], total[r]);
    if (out.o_branch.data) store_row<Config>(out.o_branch, row, x[r]);
    store_sum<Config>(out, kv_heads, row, total[r] == 0.0f, x[r]);
  }
}
