// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Codes of FP8 E4M3, by the instructions of sm_89 and later, or by integer arithmetic
// (params/e4m3.h). All conversions from codes are exact, and NaN stays NaN.
//
// A row of codes is addressed as a row of words of two codes each, so that kernels copy it like a
// row of 16-bit elements of half the width. The strides of NsaiCacheTensor count such words.
#pragma once
#include "core/types.cuh"
#include "params/e4m3.h"
#include "params/kv_cache.h"

// sm_89 has the instructions from CUDA 12.1 on, sm_90 from its beginning.
#if __CUDA_ARCH__ >= 900 ||                                                                        \
    (__CUDA_ARCH__ >= 890 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1201)
#define NSAI_CONVERTS_CODES 1
#else
#define NSAI_CONVERTS_CODES 0
#endif

// Selects four of the eight bytes of `low` and `high`. Four bits of `which` for each byte of the
// result, the lowest first, have the number of the byte.
NSAI_DEVICE u32 select_bytes(u32 low, u32 high, u32 which) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(which));
  return r;
}

#if NSAI_CONVERTS_CODES

// The two codes in the low half of x, as fp16, and those in the high half, which the instruction
// takes from there.
NSAI_DEVICE u32 convert_codes(u32 x) {
  u32 r;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}" : "=r"(r) : "r"(x));
  return r;
}
NSAI_DEVICE u32 convert_high_codes(u32 x) {
  u32 r;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(r) : "r"(x));
  return r;
}

// Four codes as two pairs of elements: x holds the first two.
NSAI_DEVICE uint2 expand_codes(Fp16, u32 codes) {
  return make_uint2(convert_codes(codes), convert_high_codes(codes));
}
NSAI_DEVICE uint2 expand_codes(Bf16, u32 codes) {
  const uint2 x = expand_codes(Fp16(), codes);
  return make_uint2(Bf16::pack(Fp16::low(x.x), Fp16::high(x.x)),
                    Bf16::pack(Fp16::low(x.y), Fp16::high(x.y)));
}

// The codes of two floats, `low` in the low byte of the result: to nearest, ties to even, at most
// 448 in magnitude; NaN stays NaN.
NSAI_DEVICE u32 pack_codes(float low, float high) {
  u32 r;
  asm("{.reg .b16 c; cvt.rn.satfinite.e4m3x2.f32 c, %1, %2; cvt.u32.u16 %0, c;}"
      : "=r"(r)
      : "f"(high), "f"(low));
  return r;
}

#else

// a * b, for pairs of elements; b is a power of two.
NSAI_DEVICE u32 multiply_pair(Fp16, u32 a, u32 b) {
  u32 r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
NSAI_DEVICE u32 multiply_pair(Bf16, u32 a, u32 b) {
  u32 r; // sm_80 has no product of bf16 without a sum; -0 keeps the sign of 0
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
  return r;
}

NSAI_DEVICE uint2 expand_codes(Fp16, u32 codes) {
  constexpr u32 kUnit = NSAI_E4M3_UNIT_F16 * 0x10001u;
  const u32 first = select_bytes(codes, 0, 0x1404), second = select_bytes(codes, 0, 0x3424);
  return make_uint2(multiply_pair(Fp16(), nsai_e4m3_pair_f16(first), kUnit),
                    multiply_pair(Fp16(), nsai_e4m3_pair_f16(second), kUnit));
}
NSAI_DEVICE uint2 expand_codes(Bf16, u32 codes) {
  constexpr u32 kUnit = NSAI_E4M3_UNIT_BF16 * 0x10001u;
  const u32 first = select_bytes(codes, 0, 0x1404), second = select_bytes(codes, 0, 0x3424);
  return make_uint2(multiply_pair(Bf16(), nsai_e4m3_pair_bf16(first), kUnit),
                    multiply_pair(Bf16(), nsai_e4m3_pair_bf16(second), kUnit));
}

NSAI_DEVICE u32 pack_codes(float low, float high) {
  return nsai_e4m3_of(__float_as_uint(low)) | nsai_e4m3_of(__float_as_uint(high)) << 8;
}

#endif

// Eight codes as eight elements.
template <class Element> NSAI_DEVICE Chunk expand_eight(const uint2 &codes) {
  const uint2 x = expand_codes(Element(), codes.x), y = expand_codes(Element(), codes.y);
  return Chunk{ { x.x, x.y, y.x, y.y } };
}

// Eight elements, divided by a scale, as codes.
template <class Element> NSAI_DEVICE uint2 pack_eight(const Chunk &x, float scale) {
  u32 pairs[4];
#pragma unroll
  for (int w = 0; w < 4; ++w)
    pairs[w] =
        pack_codes(__fdiv_rn(Element::low(x.w[w]), scale), __fdiv_rn(Element::high(x.w[w]), scale));
  return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

// A scale of a KV head; 1 if the caller gave none.
NSAI_DEVICE float scale_of(const NsaiScale &scale, int head) {
  return scale.data ? scale.data[head * scale.head_stride] : 1.0f;
}

// O of a lane's rows, times the scale of V.
template <int kM> NSAI_DEVICE void scale_columns(float (&o)[kM][4], float scale) {
#pragma unroll
  for (int j = 0; j < kM; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) o[j][c] *= scale;
}
