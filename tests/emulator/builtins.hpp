// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The words of CUDA C++ that kernels use, for a C++ compiler of the host. Included before all else.
#pragma once
#include <cmath>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#include "engine.hpp"

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  u32 x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) uint4 {
  u32 x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) ulonglong2 {
  u64 x, y;
};
inline uint2 make_uint2(u32 x, u32 y) { return { x, y }; }
inline int2 make_int2(int x, int y) { return { x, y }; }
inline float2 make_float2(float x, float y) { return { x, y }; }
inline float4 make_float4(float x, float y, float z, float w) { return { x, y, z, w }; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return { x, y, z, w }; }

struct EmulatedIndex {
  u32 x, y, z;
};
#define threadIdx (EmulatedIndex{ (u32)emulator::self()->thread, 0, 0 })
#define blockIdx                                                                                   \
  (EmulatedIndex{ emulator::self()->cta->block_x, emulator::self()->cta->block_y, 0 })
#define gridDim (EmulatedIndex{ emulator::state.grid_x, emulator::state.grid_y, 1 })
#define blockDim (EmulatedIndex{ (u32)emulator::state.threads, 1, 1 })

template <class To, class From> inline To emulated_bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &x, sizeof to);
  return to;
}
constexpr float __uint_as_float(u32 x) { return __builtin_bit_cast(float, x); }
constexpr u32 __float_as_uint(float x) { return __builtin_bit_cast(u32, x); }
constexpr int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
constexpr float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
constexpr int __popc(u32 x) { return __builtin_popcount(x); }
constexpr int __popcll(u64 x) { return __builtin_popcountll(x); }
constexpr int __ffs(int x) { return __builtin_ffs(x); }
constexpr int __clz(int x) { return x ? __builtin_clz((u32)x) : 32; }
inline u32 __byte_perm(u32 a, u32 b, u32 selector) {
  const u64 bytes = (u64)b << 32 | a;
  u32 r = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 which = selector >> 4 * i & 15;
    u32 byte = (u32)(bytes >> 8 * (which & 7)) & 255;
    if (which & 8) byte = byte & 128 ? 255 : 0;
    r |= byte << 8 * i;
  }
  return r;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __frcp_rn(float x) { return 1 / x; }

// min and max of CUDA: of mixed integers, and of floats as fminf and fmaxf.
#define EMULATED_MINMAX(T)                                                                         \
  constexpr T min(T a, T b) { return b < a ? b : a; }                                              \
  constexpr T max(T a, T b) { return a < b ? b : a; }
EMULATED_MINMAX(int)
EMULATED_MINMAX(u32)
EMULATED_MINMAX(long)
EMULATED_MINMAX(unsigned long)
EMULATED_MINMAX(long long)
EMULATED_MINMAX(u64)
#undef EMULATED_MINMAX
constexpr u32 min(int a, u32 b) { return min((u32)a, b); }
constexpr u32 min(u32 a, int b) { return min(a, (u32)b); }
constexpr u32 max(int a, u32 b) { return max((u32)a, b); }
constexpr u32 max(u32 a, int b) { return max(a, (u32)b); }
constexpr long long min(int a, long long b) { return min((long long)a, b); }
constexpr long long min(long long a, int b) { return min(a, (long long)b); }
constexpr long long max(int a, long long b) { return max((long long)a, b); }
constexpr long long max(long long a, int b) { return max(a, (long long)b); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

// Other fibers run only where one waits, so a plain operation is atomic.
template <class T, class U> inline T atomicAdd(T *at, U x) {
  T old = *at;
  *at = (T)(old + x);
  return old;
}
template <class T, class U> inline T atomicOr(T *at, U x) {
  T old = *at;
  *at = (T)(old | x);
  return old;
}
template <class T, class U> inline T atomicMax(T *at, U x) {
  T old = *at;
  if (old < (T)x) *at = (T)x;
  return old;
}
template <class T, class U> inline T atomicMin(T *at, U x) {
  T old = *at;
  if ((T)x < old) *at = (T)x;
  return old;
}
template <class T, class U> inline T atomicExch(T *at, U x) {
  T old = *at;
  *at = (T)x;
  return old;
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// ---- operations of a warp and of a CTA

inline void __syncwarp(u32 mask = ~0u) {
  emulator::meet("__syncwarp", mask, nullptr, 0, [](emulator::Warp &) {});
}

// Each lane's word `source(lane)` of T.
template <class T, class F>
inline T emulated_shuffle(const char *name, u32 mask, T x, int argument, F &&source) {
  constexpr int kWords = (sizeof(T) + 3) / 4;
  u32 words[kWords + 1] = {};
  memcpy(words, &x, sizeof x);
  words[kWords] = (u32)source(emulator::lane(), argument);
  const u32 *out = emulator::meet(name, mask, words, kWords + 1, [&](emulator::Warp &w) {
    for (int lane = 0; lane < 32; ++lane) {
      if (!(mask >> lane & 1)) continue;
      const u32 from = w.in[lane][kWords] & 31;
      // The value of a lane outside of the mask is undefined: NaN as a float, and no small integer.
      for (int i = 0; i < kWords; ++i)
        w.out[lane][i] = mask >> from & 1 ? w.in[from][i] : 0x7fc0dead;
    }
  });
  T r;
  memcpy(&r, out, sizeof r);
  return r;
}
template <class T> inline T __shfl_sync(u32 mask, T x, int from, int width = 32) {
  return emulated_shuffle("__shfl_sync", mask, x, from, [=](int lane, int a) {
    return lane / width * width + (a & (width - 1));
  });
}
template <class T> inline T __shfl_xor_sync(u32 mask, T x, int bits, int width = 32) {
  return emulated_shuffle("__shfl_xor_sync", mask, x, bits, [=](int lane, int a) {
    return (lane ^ a) / width > lane / width ? lane : lane ^ a;
  });
}
template <class T> inline T __shfl_up_sync(u32 mask, T x, int by, int width = 32) {
  return emulated_shuffle("__shfl_up_sync", mask, x, by,
                          [=](int lane, int a) { return lane % width < a ? lane : lane - a; });
}
template <class T> inline T __shfl_down_sync(u32 mask, T x, int by, int width = 32) {
  return emulated_shuffle("__shfl_down_sync", mask, x, by, [=](int lane, int a) {
    return lane % width + a >= width ? lane : lane + a;
  });
}
// The same result for all lanes of the mask, from one word of each.
template <class F>
inline u32 emulated_reduce(const char *name, u32 mask, u32 x, u32 begin, F &&step) {
  return *emulator::meet(name, mask, &x, 1, [&](emulator::Warp &w) {
    u32 sum = begin;
    const u32 there = mask & ~w.gone;
    for (int lane = 0; lane < 32; ++lane)
      if (there >> lane & 1) sum = step(sum, w.in[lane][0], lane);
    for (int lane = 0; lane < 32; ++lane)
      if (mask >> lane & 1) w.out[lane][0] = sum;
  });
}
inline u32 __ballot_sync(u32 mask, int x) {
  return emulated_reduce("__ballot_sync", mask, x != 0, 0,
                         [](u32 s, u32 v, int lane) { return s | v << lane; });
}
inline int __any_sync(u32 mask, int x) {
  return (int)emulated_reduce("__any_sync", mask, x != 0, 0,
                              [](u32 s, u32 v, int) { return s | v; });
}
inline int __all_sync(u32 mask, int x) {
  return (int)emulated_reduce("__all_sync", mask, x != 0, 1,
                              [](u32 s, u32 v, int) { return s & v; });
}
inline u32 __reduce_or_sync(u32 mask, u32 x) {
  return emulated_reduce("__reduce_or_sync", mask, x, 0, [](u32 s, u32 v, int) { return s | v; });
}
inline u32 __reduce_and_sync(u32 mask, u32 x) {
  return emulated_reduce("__reduce_and_sync", mask, x, ~0u,
                         [](u32 s, u32 v, int) { return s & v; });
}
inline u32 __reduce_add_sync(u32 mask, u32 x) {
  return emulated_reduce("__reduce_add_sync", mask, x, 0, [](u32 s, u32 v, int) { return s + v; });
}
inline int __reduce_add_sync(u32 mask, int x) { return (int)__reduce_add_sync(mask, (u32)x); }
inline u32 __reduce_min_sync(u32 mask, u32 x) {
  return emulated_reduce("__reduce_min_sync", mask, x, ~0u,
                         [](u32 s, u32 v, int) { return v < s ? v : s; });
}
inline u32 __reduce_max_sync(u32 mask, u32 x) {
  return emulated_reduce("__reduce_max_sync", mask, x, 0,
                         [](u32 s, u32 v, int) { return v > s ? v : s; });
}
inline int __reduce_min_sync(u32 mask, int x) {
  return (int)(__reduce_min_sync(mask, (u32)x ^ 0x80000000u) ^ 0x80000000u);
}
inline int __reduce_max_sync(u32 mask, int x) {
  return (int)(__reduce_max_sync(mask, (u32)x ^ 0x80000000u) ^ 0x80000000u);
}

inline void __syncthreads() {
  emulator::barrier_join(0, emulator::state.threads, true, false, nullptr, nullptr);
}
inline int __syncthreads_or(int x) {
  int any;
  emulator::barrier_join(0, emulator::state.threads, true, x != 0, &any, nullptr);
  return any;
}
inline int __syncthreads_count(int x) {
  int count;
  emulator::barrier_join(0, emulator::state.threads, true, x != 0, nullptr, &count);
  return count;
}
inline size_t __cvta_generic_to_shared(const void *p) { return (size_t)p; }
