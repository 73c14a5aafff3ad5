// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Fixed-width type names and the two element types. NVRTC gets no CUDA headers, so the conversions
// are written here.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define NSAI_DEVICE __device__ __forceinline__

// Conversions between natural logarithm and base 2.
constexpr float kLn2 = 0.693147180559945309f;
constexpr float kLog2e = 1.442695040888963407f;

// A division, because NVRTC before 12.4 has no __builtin_bit_cast, and none a constant for it.
constexpr float kPlusInf = 1.0f / 0.0f;
constexpr float kMinusInf = -1.0f / 0.0f;

// The element types as tags; Config::Element is one of them.
struct Bf16 {
  static constexpr int kPrecision = 8; // bits of the significand, including the implicit one
  // Packs two floats into bf16, `lo` in the low half, rounding to nearest even.
  static NSAI_DEVICE u32 pack(float lo, float hi) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
  }
  static NSAI_DEVICE float low(u32 x) { return __uint_as_float(x << 16); }
  static NSAI_DEVICE float high(u32 x) { return __uint_as_float(x & 0xffff0000u); }
};

struct Fp16 {
  static constexpr int kPrecision = 11;
  static NSAI_DEVICE u32 pack(float lo, float hi) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
  }
  static NSAI_DEVICE float low(u32 x) {
    float r;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(r) : "r"(x));
    return r;
  }
  static NSAI_DEVICE float high(u32 x) {
    float r;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(r) : "r"(x));
    return r;
  }
};

// 16 bytes: the unit of all global and asynchronous copies.
struct __align__(16) Chunk {
  u32 w[4];
};

// 2^x with an error of about 2 ulp; 0 for -inf.
NSAI_DEVICE float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

NSAI_DEVICE float log2_approx(float x) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// Sets all elements of an array in registers to 0.
NSAI_DEVICE void clear(float &x) { x = 0.0f; }
template <class T, int kN> NSAI_DEVICE void clear(T (&x)[kN]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) clear(x[i]);
}

// Number of set bits in `votes` (a ballot) below this lane: its slot among the lanes that voted
// yes.
NSAI_DEVICE int votes_below(u32 votes, int lane) { return __popc(votes & ((1u << lane) - 1)); }

constexpr NSAI_DEVICE int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Returns x but hides from the compiler that it is loop-invariant, or how it changes between
// iterations. Values derived from it are computed where they are used, instead of occupying
// registers from before the loop. For loops that have no registers to spare.
NSAI_DEVICE int recomputed(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
