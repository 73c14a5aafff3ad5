// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Tiles of codes (core/e4m3.cuh) in shared memory as operands of mma.m16n8k16 in fp16, which holds
// every code exactly. A tile of codes is a Tile of words of two codes: a chunk of 16 bytes holds 16
// columns. ldmatrix gives a lane four adjacent codes of a row, which it converts, and their order
// differs from the one that core/mma.cuh describes:
//
//   K   b0 and b1 hold columns 4 * pair, +1 and +2, +3 of the 16 columns of a product, instead of
//       2 * pair, +1 and 8 + 2 * pair, +1. A holds Q's columns in the same order (load_code_query).
//   V   of the two n8 tiles of 16 columns the first holds the even columns and the second the odd
//       ones. A lane's four elements of a row in both are its columns 4 * pair ... + 3
//       (code_columns, restore_columns).
//
// Q of a model in bf16 is divided by a power of two, which brings the greatest magnitude of 16 rows
// to 2^14 ... 2^15, and rounded to fp16: of values above 2^-28 of the greatest all bits remain.
#pragma once
#include "core/copy.cuh"
#include "core/e4m3.cuh"
#include "core/epilogue.cuh"
#include "core/mma.cuh"
#include "core/softmax.cuh"
#include "core/tile.cuh"
#include "core/tma.cuh"

// B fragments of K [16 keys, 32 columns] for mma_m16n16k16: b[i] of 16 columns. Lane address: that of
// ldmatrix with matrices columns 0, 16 | keys 0, 8.
NSAI_DEVICE void load_code_keys(u32 (&b)[2][4], u32 shared_address) {
  u32 codes[4]; // columns 0, 16 of keys 0; the same of keys 8
  ldmatrix_x4(codes, shared_address);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint2 x = expand_codes(Fp16(), codes[i]);
    b[i % 2][i / 2 * 2] = x.x;
    b[i % 2][i / 2 * 2 + 1] = x.y;
  }
}

// The B fragments of V [16 keys, 16 columns], even and odd columns, from those that ldmatrix.trans
// gave for keys 0 and keys 8.
NSAI_DEVICE void expand_code_values(u32 (&b)[4], u32 first, u32 last) {
  // The bytes are (key, column) 00, 01, 10, 11; pairs of keys are wanted.
  const uint2 low = expand_codes(Fp16(), select_bytes(first, 0, 0x3120));
  const uint2 high = expand_codes(Fp16(), select_bytes(last, 0, 0x3120));
  b[0] = low.x, b[1] = high.x, b[2] = low.y, b[3] = high.y;
}

// The same of V [16 keys, 32 columns]: b[i] of 16 columns. Lane address: that of ldmatrix with
// matrices keys 0, 8 | columns 0, 16.
NSAI_DEVICE void load_code_values(u32 (&b)[2][4], u32 shared_address) {
  u32 codes[4];
  ldmatrix_x4_trans(codes, shared_address);
  expand_code_values(b[0], codes[0], codes[1]);
  expand_code_values(b[1], codes[2], codes[3]);
}

// Loads the A fragments of row `half` (0: group, 1: group + 8) of Q from global memory, in the order
// of load_code_keys(). Absent rows are zero.
template <int kSteps>
NSAI_DEVICE void load_code_query(u32 (&rQ)[kSteps][4], const u16 *row, bool present, int half) {
  const uint2 *from = (const uint2 *)row + (threadIdx.x & 3);
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const uint2 x = present ? from[4 * k] : make_uint2(0, 0);
    rQ[k][half] = x.x;
    rQ[k][half + 2] = x.y;
  }
}

// The greatest finite magnitude of the words of a row of Q, joined with `highest`.
NSAI_DEVICE u32 greatest_magnitude(u32 highest, u32 word) {
  const u32 low = word & 0x7fff, high = word >> 16 & 0x7fff;
  if (low < 0x7f80) highest = max(highest, low);
  if (high < 0x7f80) highest = max(highest, high);
  return highest;
}

// The greater of each half of two words of magnitudes.
NSAI_DEVICE u32 greater_halves(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 900
  u32 r;
  asm("max.u16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
#else
  return max(a & 0xffff, b & 0xffff) | max(a >> 16, b >> 16) << 16;
#endif
}

// The unit of a warp's 16 rows, from the lanes' greatest magnitudes; 1 in fp16. All lanes take part.
template <class Element> NSAI_DEVICE PartialUnit query_unit(u32 highest) {
  if constexpr (Element::kPrecision == Fp16::kPrecision) return PartialUnit{ 1.0f, 1.0f };
  // Smaller rows count as if they had a 2^-64: their scores are 0, and the softmax scale, which takes
  // the unit, stays a normal number.
  const u32 least = 63 << 7;
  return partial_unit(__uint_as_float(max(__reduce_max_sync(~0u, highest), least) << 16));
}

// Words of Q in fp16, in units.
template <class Element> NSAI_DEVICE u32 convert_query(u32 word, float inverse_unit) {
  if constexpr (Element::kPrecision == Fp16::kPrecision) return word;
  return Fp16::pack(Element::low(word) * inverse_unit, Element::high(word) * inverse_unit);
}

// Converts a warp's 16 rows of Q and returns their unit. All lanes take part.
template <class Element, int kSteps> NSAI_DEVICE float convert_queries(u32 (&rQ)[kSteps][4]) {
  u32 highest = 0;
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) highest = greatest_magnitude(highest, rQ[k][i]);
  const PartialUnit unit = query_unit<Element>(highest);
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) rQ[k][i] = convert_query<Element>(rQ[k][i], unit.inverse);
  return unit.unit;
}

// The same of rows whose first kHeldSteps steps of 16 columns rQ holds, and whose other kChunks chunks
// lie in rows [first, first + 16) of a tile of panels of kRows rows. Rows of these that are not
// present(row) may hold anything, and become 0: they must not decide the unit of the others. On
// return the rows are visible to wgmma for threads that this one's arrival on a barrier reaches, and
// to the warp.
template <class Element, int kHeldSteps, int kRows, int kChunks, int kSteps, class Present>
NSAI_DEVICE float convert_split_queries(u32 (&rQ)[kSteps][4], u32 sQ, int first, Present present) {
  if constexpr (Element::kPrecision == Fp16::kPrecision) return 1.0f;
  auto at = [&](int i) {
    const int chunk = i % kChunks;
    return sQ + (u32)(chunk / 8 * kRows * kPanelPitch) + panel_offset(first + i / kChunks, chunk);
  };
  auto load = [&](int i) { return present(i / kChunks) ? load_shared(at(i)) : Chunk{}; };
  // The greatest finite magnitude, or that of each half of the words, of which any may be infinite.
  auto greatest = [&](bool finite) {
    u32 highest = 0;
    auto see = [&](u32 word) {
      highest =
          finite ? greatest_magnitude(highest, word) : greater_halves(highest, word & 0x7fff7fffu);
    };
#pragma unroll
    for (int k = 0; k < kHeldSteps; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) see(rQ[k][i]);
#pragma unroll 2
    for (int i = threadIdx.x % 32; i < 16 * kChunks; i += 32) {
      const Chunk x = load(i);
#pragma unroll
      for (int w = 0; w < 4; ++w) see(x.w[w]);
    }
    return highest;
  };
  const u32 halves = greatest(false);
  u32 highest = max(halves & 0xffff, halves >> 16);
  if (__any_sync(~0u, highest >= 0x7f80)) highest = greatest(true); // there is infinity or NaN
  const PartialUnit unit = query_unit<Element>(highest);
#pragma unroll
  for (int k = 0; k < kHeldSteps; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) rQ[k][i] = convert_query<Element>(rQ[k][i], unit.inverse);
#pragma unroll 2
  for (int i = threadIdx.x % 32; i < 16 * kChunks; i += 32) {
    Chunk x = load(i);
#pragma unroll
    for (int w = 0; w < 4; ++w) x.w[w] = convert_query<Element>(x.w[w], unit.inverse);
    store_shared(at(i), x);
  }
  if constexpr (kChunks > 0) {
    shared_proxy_fence();
    __syncwarp();
  }
  return unit.unit;
}

// Writes a warp's 16 rows of Q to rows [first, first + 16) of tile Q, so that ldmatrix reads them in
// the order of load_code_keys(), and returns their unit. row_of(half): the lane's row `group` or
// `group + 8` in global memory; nullptr if it is absent, which gives zeros. stores: false if only the
// unit is wanted. All lanes take part.
template <class Element, class Q, int kSteps, class RowOf>
NSAI_DEVICE float copy_code_query(u32 sQ, int first, bool stores, RowOf row_of) {
  const int lane = threadIdx.x & 31;
  auto load = [&](int half, int k) {
    const u16 *row = row_of(half);
    return row ? *((const uint2 *)row + 4 * k + lane % 4) : make_uint2(0, 0);
  };
  u32 highest = 0;
#pragma unroll 4
  for (int i = 0; i < 2 * kSteps; ++i) {
    const uint2 x = load(i % 2, i / 2);
    highest = greatest_magnitude(greatest_magnitude(highest, x.x), x.y);
  }
  const PartialUnit unit = query_unit<Element>(highest);
  if (!stores) return unit.unit;
#pragma unroll 4
  for (int i = 0; i < 2 * kSteps; ++i) {
    const uint2 x = load(i % 2, i / 2);
    const int row = first + 8 * (i % 2) + lane / 4;
    store_shared_word(sQ + Q::offset(row, i / 2 * 2) + lane % 4 * 4,
                      convert_query<Element>(x.x, unit.inverse));
    store_shared_word(sQ + Q::offset(row, i / 2 * 2 + 1) + lane % 4 * 4,
                      convert_query<Element>(x.y, unit.inverse));
  }
  return unit.unit;
}

// The lane's columns 4 * pair ... + 3 of row r (0: group, 1: group + 8), from the two n8 tiles of 16
// columns of O.
NSAI_DEVICE float4 code_columns(const float (&even)[4], const float (&odd)[4], int r) {
  return make_float4(even[2 * r], odd[2 * r], even[2 * r + 1], odd[2 * r + 1]);
}

// Brings O into the order of core/mma.cuh. All lanes take part.
template <int kM> NSAI_DEVICE void restore_columns(float (&o)[kM][4]) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int j = 0; j < kM; j += 2)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float4 own = code_columns(o[j], o[j + 1], r);
#pragma unroll
      for (int n = 0; n < 2; ++n) { // columns 8 * n + 2 * pair, +1
        const int owner = (lane & 28) + 2 * n + (lane >> 1 & 1);
        const float x = __shfl_sync(~0u, own.x, owner), y = __shfl_sync(~0u, own.y, owner),
                    z = __shfl_sync(~0u, own.z, owner), w = __shfl_sync(~0u, own.w, owner);
        o[j + n][2 * r] = lane & 1 ? z : x;
        o[j + n][2 * r + 1] = lane & 1 ? w : y;
      }
    }
}
