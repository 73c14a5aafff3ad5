// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The epilogue of every attention kernel (NsaiEpilogue): normalises O, applies the branch's gate,
// adds the gated sum of the earlier branches and stores the result.
//
//   O_b = acc / l           -> o_branch
//   LSE = (m + log2 l) ln 2 -> lse
//   gate * O_b + partial    -> o, or partial in 16 bits with a unit per row
//
// Config: Element, kHeadDimV, kGroup, kGate (0: none, 1: weights, 2: logits).
#pragma once
#include "core/softmax.cuh"
#include "core/types.cuh"
#include "params/attention.h"

// Where a row of a tile belongs. Padding rows are not present and store nothing.
struct OutputRow {
  int token; // row of o, lse, gates
  int head;  // of Hq
  bool present;
};

// A row's gate as stored. Can be loaded long before it is needed.
template <class Config> NSAI_DEVICE u32 load_gate(const NsaiEpilogue &out, const OutputRow &row) {
  if (Config::kGate == 0 || !row.present) return 0;
  long long at =
      row.token * out.gate.token_stride + row.head * out.gate.head_stride + out.gate_branch;
  return out.gate_float ? ((const u32 *)out.gate.data)[at] : ((const u16 *)out.gate.data)[at];
}

template <class Config> NSAI_DEVICE float gate_value(bool gate_float, u32 gate) {
  if constexpr (Config::kGate == 0) return 1.0f;
  float x = gate_float ? __uint_as_float(gate) : Config::Element::low(gate);
  if constexpr (Config::kGate == 2) return __fdividef(1.0f, 1.0f + exp2_approx(-kLog2e * x));
  return x;
}
template <class Config> NSAI_DEVICE float gate_value(const NsaiEpilogue &out, u32 gate) {
  return gate_value<Config>((bool)out.gate_float, gate);
}

// 1 / the sum of a row's probabilities; 0 for an empty row.
NSAI_DEVICE float inverse_of(float total) { return total > 0.0f ? __fdividef(1.0f, total) : 0.0f; }

// Stores the LSE of a row; out.lse must be given. One thread.
NSAI_DEVICE void store_lse(const NsaiEpilogue &out, const OutputRow &row, float reference,
                           float total) {
  out.lse[row.token * out.lse_token_stride + row.head * out.lse_head_stride] =
      softmax_lse(reference, total);
}

// Each lane holds two columns of two n8 tiles, in its quad's row. Pairs of lanes exchange halves,
// so that each gets four adjacent columns of one tile, beginning with column_of_lane(). This gives
// 8-byte stores of 16-bit elements and 16-byte stores of floats, and a quad fills whole 32-byte
// sectors. All 32 lanes take part.
NSAI_DEVICE float4 gather_four(float a0, float a1, float b0, float b1, bool odd = threadIdx.x & 1) {
  float x0 = __shfl_xor_sync(~0u, odd ? a0 : b0, 1);
  float x1 = __shfl_xor_sync(~0u, odd ? a1 : b1, 1);
  return odd ? make_float4(x0, x1, b0, b1) : make_float4(a0, a1, x0, x1);
}

// First of the lane's four columns within the 16 columns of two n8 tiles.
NSAI_DEVICE int column_of_lane(int thread = threadIdx.x) {
  return (thread & 1) * 8 + (thread & 2) * 2;
}

// Whether the lane's columns of tile pair j exist: all except the last 8 if kDim % 16 == 8.
template <int kDim> NSAI_DEVICE bool has_columns(int j) {
  return 16 * j + 16 <= kDim || column_of_lane() < 8;
}

// Calls take(r, x) for the two rows of a lane (0: group, 1: group + 8) of acc, C fragments; x [kN][2]:
// its columns of the row. kLoop: the loop is not unrolled. Stores have many cases, and a second copy of
// them would be a ninth of the machine code and of the compile time of attend_window_sm90. The loop may
// need a register more than two copies.
template <bool kLoop = true, int kN, class Take>
NSAI_DEVICE void for_rows(const float (&acc)[kN][4], Take take) {
  float x[kN][2];
#pragma unroll
  for (int j = 0; j < kN; ++j) x[j][0] = acc[j][0], x[j][1] = acc[j][1];
#pragma unroll(kLoop ? 1 : 2)
  for (int r = 0; r < 2; ++r) {
    take(r, x);
#pragma unroll
    for (int j = 0; j < kN; ++j) x[j][0] = acc[j][2], x[j][1] = acc[j][3];
  }
}

// Stores a row times `scale`, rounded; x: the lane's columns of the row in kN n8 tiles. All 32 lanes
// take part; they exchange pairs of elements like gather_four() exchanges floats.
template <class Config, int kN>
NSAI_DEVICE void store_elements(const NsaiView &view, const OutputRow &row, const float (&x)[kN][2],
                                float scale) {
  const int thread = recomputed(threadIdx.x);
  u16 *to = (u16 *)view.data + row.token * view.token_stride + row.head * view.head_stride +
            column_of_lane(thread);
  bool odd = thread & 1;
#pragma unroll
  for (int j = 0; j < kN / 2; ++j) {
    u32 a = Config::Element::pack(x[2 * j][0] * scale, x[2 * j][1] * scale);
    u32 b = Config::Element::pack(x[2 * j + 1][0] * scale, x[2 * j + 1][1] * scale);
    u32 other = __shfl_xor_sync(~0u, odd ? a : b, 1);
    if (row.present && has_columns<Config::kHeadDimV>(j))
      *(uint2 *)(to + 16 * j) = odd ? make_uint2(other, b) : make_uint2(a, other);
  }
}

// ---- the partial sum
//
// A row is stored in fp16 as multiples of a unit, the power of two that brings its largest
// magnitude to 2^14 .. 2^15. Nothing overflows, whatever the values are, and values above 2^-29 of
// the largest keep 11 bits, three more than bf16 has. inf and NaN are kept; the other values of a
// row with an inf keep what fp16 holds of them.

struct PartialUnit {
  float unit, inverse;
};

// `highest`: the largest magnitude of the row, >= 0. The unit and its inverse are normal numbers,
// because the exponent of `highest` is clamped on both sides. For inf the unit is 1.
NSAI_DEVICE PartialUnit partial_unit(float highest) {
  int exponent = max((int)(__float_as_uint(highest) >> 23), 15);
  if (exponent == 255) exponent = 127 + 14;
  return PartialUnit{ __uint_as_float((exponent - 14) << 23),
                      __uint_as_float((268 - exponent) << 23) };
}

NSAI_DEVICE uint2 pack_partial(const float4 &x, float inverse) {
  return make_uint2(Fp16::pack(x.x * inverse, x.y * inverse),
                    Fp16::pack(x.z * inverse, x.w * inverse));
}

// packed * unit + factor * x
NSAI_DEVICE float4 add_partial(const uint2 &packed, float unit, float factor, const float4 &x) {
  return make_float4(fmaf(Fp16::low(packed.x), unit, factor * x.x),
                     fmaf(Fp16::high(packed.x), unit, factor * x.y),
                     fmaf(Fp16::low(packed.y), unit, factor * x.z),
                     fmaf(Fp16::high(packed.y), unit, factor * x.w));
}

NSAI_DEVICE float greatest_of(float highest, const float4 &x) {
  highest = fmaxf(highest, fmaxf(fabsf(x.x), fabsf(x.y)));
  return fmaxf(highest, fmaxf(fabsf(x.z), fabsf(x.w)));
}

// Adds a row times `scale` to the sum of the earlier branches and stores the result: rounded in o, or
// as a partial sum.
template <class Config, int kN>
NSAI_DEVICE void store_sum(const NsaiEpilogue &out, int kv_heads, const OutputRow &row,
                           const float (&x)[kN][2], float scale) {
  constexpr int kDim = Config::kHeadDimV;
  long long at = (long long)row.token * (Config::kGroup * kv_heads) + row.head;
  const int thread = recomputed(threadIdx.x); // kept across tiles it would occupy registers
  u16 *partial = (u16 *)out.partial + at * kDim + column_of_lane(thread);
  const bool adds = out.add_partial && row.present;
  uint2 before[kN / 2];
  const float unit = adds ? out.partial_units[at] : 0.0f;
#pragma unroll
  for (int j = 0; j < kN / 2; ++j) {
    before[j] = make_uint2(0, 0);
    if (adds && has_columns<kDim>(j)) before[j] = *(const uint2 *)(partial + 16 * j);
  }
  float4 sum[kN / 2];
  float highest = 0.0f; // padding columns are 0
#pragma unroll
  for (int j = 0; j < kN / 2; ++j) {
    sum[j] = add_partial(before[j], unit, scale,
                         gather_four(x[2 * j][0], x[2 * j][1], x[2 * j + 1][0], x[2 * j + 1][1],
                                     thread & 1));
    highest = greatest_of(highest, sum[j]);
  }
  const PartialUnit mine = partial_unit(quad_max(highest));
  if (!row.present) return;
  if (out.o.data) {
    u16 *to = (u16 *)out.o.data + row.token * out.o.token_stride + row.head * out.o.head_stride +
              column_of_lane(thread);
#pragma unroll
    for (int j = 0; j < kN / 2; ++j)
      if (has_columns<kDim>(j))
        *(uint2 *)(to + 16 * j) = make_uint2(Config::Element::pack(sum[j].x, sum[j].y),
                                             Config::Element::pack(sum[j].z, sum[j].w));
    return;
  }
#pragma unroll
  for (int j = 0; j < kN / 2; ++j)
    if (has_columns<kDim>(j)) *(uint2 *)(partial + 16 * j) = pack_partial(sum[j], mine.inverse);
  if (threadIdx.x % 4 == 0) out.partial_units[at] = mine.unit;
}

// Stores an unnormalised row wherever it is wanted, given the lane's part of its sum of
// probabilities. All 32 lanes take part.
template <class Config, int kN>
NSAI_DEVICE void store_row(const NsaiEpilogue &out, int kv_heads, const OutputRow &row,
                           const float (&x)[kN][2], float reference, float sum, u32 gate) {
  const float total = lanes_sum<4>(sum), inverse = inverse_of(total);
  if (out.lse && row.present && threadIdx.x % 4 == 0) store_lse(out, row, reference, total);
  // An empty row may be a padding row, whose gate may hold anything.
  const float scale = total == 0.0f ? 0.0f : gate_value<Config>(out, gate) * inverse;
  const bool alone = out.o.data && !out.add_partial; // no other branch has a part in o
#pragma unroll 1
  for (int i = 0; i < 2; ++i) { // o_branch, o
    const NsaiView &view = i ? out.o : out.o_branch;
    if (i ? alone : out.o_branch.data != nullptr)
      store_elements<Config>(view, row, x, i ? scale : inverse);
  }
  if (out.partial && !alone) store_sum<Config>(out, kv_heads, row, x, scale);
}

// Stores the 16 rows of a warp's tile: acc [16, 8 * kN] unnormalised, C fragments, kN =
// padded_dim(Dv) / 8. output_row[r] says where row `group + 8 * r` of this lane belongs, gate[r] is
// its gate. kLoop: that of for_rows(). All 32 lanes take part.
template <class Config, bool kLoop = true, int kN>
NSAI_DEVICE void store_output(const NsaiEpilogue &out, int kv_heads, const float (&acc)[kN][4],
                              const SoftmaxRows &rows, const OutputRow (&output_row)[2],
                              const u32 (&gate)[2]) {
  static_assert(Config::kHeadDimV % 8 == 0 && (Config::kHeadDimV + 15) / 16 == kN / 2,
                "acc is padded to 16 columns");
  OutputRow row = output_row[0];
  float reference = rows.reference[0], sum = rows.sum[0];
  u32 row_gate = gate[0];
  for_rows<kLoop>(acc, [&](int, const float(&x)[kN][2]) {
    store_row<Config>(out, kv_heads, row, x, reference, sum, row_gate);
    // Assigned, because elements chosen by the row's number would put the arrays into memory.
    row = output_row[1], reference = rows.reference[1], sum = rows.sum[1], row_gate = gate[1];
  });
}

template <class Config, bool kLoop = true, int kN>
NSAI_DEVICE void store_output(const NsaiEpilogue &out, int kv_heads, const float (&acc)[kN][4],
                              const SoftmaxRows &rows, const OutputRow (&output_row)[2]) {
  const u32 gate[2] = { load_gate<Config>(out, output_row[0]),
                        load_gate<Config>(out, output_row[1]) };
  store_output<Config, kLoop>(out, kv_heads, acc, rows, output_row, gate);
}

// ---- four columns held by one thread

NSAI_DEVICE u16 *find_row(const NsaiView &view, const OutputRow &row) {
  return (u16 *)view.data + row.token * view.token_stride + row.head * view.head_stride;
}

template <class Config> NSAI_DEVICE void store_four(u16 *to, const float4 &x) {
  *(uint2 *)to = make_uint2(Config::Element::pack(x.x, x.y), Config::Element::pack(x.z, x.w));
}

// Returns the normalised O_b of a row's columns from `column` on, given O relative to the
// reference; stores lse and o_branch if wanted.
template <class Config>
NSAI_DEVICE float4 finish_four(const NsaiEpilogue &out, const OutputRow &row, int column,
                               float reference, float total, const float4 &o) {
  const float inverse = inverse_of(total);
  const float4 x = make_float4(o.x * inverse, o.y * inverse, o.z * inverse, o.w * inverse);
  if (out.lse && column == 0) store_lse(out, row, reference, total);
  if (out.o_branch.data) store_four<Config>(find_row(out.o_branch, row) + column, x);
  return x;
}

// ---- rows held by a warp, or by kLanes of its lanes

// row_column: the lane's columns j of a row are the four from here on. has_row_column: whether they
// exist.
template <int kLanes = 32> NSAI_DEVICE int row_column(int j) {
  return 4 * (kLanes * j + threadIdx.x % kLanes);
}
template <int kDim, int kLanes = 32> NSAI_DEVICE bool has_row_column(int j) {
  return 4 * kLanes * (j + 1) <= kDim || row_column<kLanes>(j) < kDim;
}

template <class Config, int kLanes = 32, int kJ>
NSAI_DEVICE void store_row_elements(const NsaiView &view, const OutputRow &row,
                                    const float4 (&x)[kJ]) {
  u16 *to = find_row(view, row);
#pragma unroll
  for (int j = 0; j < kJ; ++j)
    if (has_row_column<Config::kHeadDimV, kLanes>(j))
      store_four<Config>(to + row_column<kLanes>(j), x[j]);
}

// What the epilogue reads of a row: its gate, and the sum of the earlier branches.
template <int kJ> struct RowSum {
  uint2 before[kJ];
  float unit;
  u32 gate;
};

template <class Config, int kJ>
NSAI_DEVICE void load_row_sum(RowSum<kJ> &sum, const NsaiEpilogue &out, int kv_heads,
                              const OutputRow &row) {
  const long long at = (long long)row.token * (Config::kGroup * kv_heads) + row.head;
  const u16 *partial = (const u16 *)out.partial + at * Config::kHeadDimV;
  sum.gate = load_gate<Config>(out, row);
  sum.unit = out.add_partial ? out.partial_units[at] : 0.0f;
#pragma unroll
  for (int j = 0; j < kJ; ++j) {
    sum.before[j] = make_uint2(0, 0);
    if (out.add_partial && has_row_column<Config::kHeadDimV>(j))
      sum.before[j] = *(const uint2 *)(partial + row_column(j));
  }
}

// Stores a row: x = O_b, normalised; zeros if `total`, the sum of its probabilities relative to
// 2^reference, is 0. All 32 lanes take part.
template <class Config, int kJ>
NSAI_DEVICE void store_row_output(const NsaiEpilogue &out, int kv_heads, const OutputRow &row,
                                  float reference, float total, float4 (&x)[kJ],
                                  const RowSum<kJ> &sum) {
  if (out.lse && (threadIdx.x & 31) == 0) store_lse(out, row, reference, total);
  if (out.o_branch.data) store_row_elements<Config>(out.o_branch, row, x);
  const float gate = total == 0.0f ? 0.0f : gate_value<Config>(out, sum.gate);
  const long long at = (long long)row.token * (Config::kGroup * kv_heads) + row.head;
  u16 *partial = (u16 *)out.partial + at * Config::kHeadDimV;
  float highest = 0.0f;
#pragma unroll
  for (int j = 0; j < kJ; ++j) {
    x[j] = add_partial(sum.before[j], sum.unit, gate, x[j]);
    if (has_row_column<Config::kHeadDimV>(j)) highest = greatest_of(highest, x[j]);
  }
  if (out.o.data) {
    store_row_elements<Config>(out.o, row, x);
  } else if (out.partial) {
    const PartialUnit mine = partial_unit(warp_max(highest));
#pragma unroll
    for (int j = 0; j < kJ; ++j)
      if (has_row_column<Config::kHeadDimV>(j))
        *(uint2 *)(partial + row_column(j)) = pack_partial(x[j], mine.inverse);
    if ((threadIdx.x & 31) == 0) out.partial_units[at] = mine.unit;
  }
}

template <class Config, int kJ>
NSAI_DEVICE void store_row_output(const NsaiEpilogue &out, int kv_heads, const OutputRow &row,
                                  float reference, float total, float4 (&x)[kJ]) {
  RowSum<kJ> sum;
  load_row_sum<Config>(sum, out, kv_heads, row);
  store_row_output<Config>(out, kv_heads, row, reference, total, x, sum);
}
