// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Warpgroup products (sm_90a): wgmma.m64nNk16 with fp32 accumulators, its fences, and the
// distribution of registers between warpgroups.
//
//   D [64, N] += A [64, 16] B [16, N]      A in shared memory or registers, B in shared memory
//
// Accumulators: warp w of the warpgroup holds rows 16 w .. 16 w + 15; lane 4 * group + pair holds
// rows group and group + 8 of them. d[4 j], d[4 j + 1] are columns 8 j + 2 * pair and the next one
// of row group; d[4 j + 2], d[4 j + 3] belong to row group + 8. These are C fragments of
// mma.m16n8k16, tile by tile; A in registers is its A fragment (core/mma.cuh).
//
// Operands in shared memory are panels of 64 columns with the 128-byte swizzle (core/tma.cuh). The
// k dimension lies either along a row (K-major: Q, and K in Q K^T) or across the rows (MN-major: V
// in P V).
//
// Between issue and wait no instruction may touch the accumulators; wgmma_hold() after the wait
// keeps the compiler from moving accesses across it. Each batch that follows a loop needs
// wgmma_fence().
#pragma once
#include "core/tma.cuh"
#include "core/types.cuh"

NSAI_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
NSAI_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most kPending of the newest groups are in flight.
template <int kPending> NSAI_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

template <int kCount> NSAI_DEVICE void wgmma_hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// A copy of x in its own register. Without it ptxas serialises the wgmma that overwrites x's
// original register (advisory C7511).
NSAI_DEVICE float wgmma_copy(float x) {
  float y;
  asm volatile("mov.b32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// All warps of one warpgroup execute these together. registers_raise() waits until other warpgroups
// have dropped theirs. The sum must not exceed what the launch gave: 168 per thread for 3
// warpgroups, and so on. kCount % 8 == 0.
template <int kCount> NSAI_DEVICE void registers_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount> NSAI_DEVICE void registers_drop() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Named barriers 1 .. 15 (0 is __syncthreads()) among `threads` threads; threads_arrive() does not
// wait.
NSAI_DEVICE void threads_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
NSAI_DEVICE void threads_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Tells the compiler that x is warp-uniform: descriptors computed from it stay in uniform registers
// and need no two moves before every product.
NSAI_DEVICE int warp_uniform(int x) { return __shfl_sync(~0u, x, 0); }

// ---- descriptors of operands with the 128-byte swizzle

// `leading` and `stride` in bytes. K-major: `leading` is ignored and `stride` leads from 8 rows to
// the next 8. MN-major: `leading` leads from panel to panel.
NSAI_DEVICE u64 wgmma_operand(u32 address, u32 leading, u32 stride) {
  return (u64)((address & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 |
         1ull << 62;
}

// K-major tile: rows from `address` on, the 16 columns of step 0.
NSAI_DEVICE u64 wgmma_k_major(u32 address) { return wgmma_operand(address, 16, 8 * kPanelPitch); }

// Offset of columns 16 * step in a panel of kRows rows.
template <int kRows> constexpr NSAI_DEVICE u64 wgmma_k_step(int step) {
  return (u64)((step / 4 * kRows * kPanelPitch + step % 4 * 32) >> 4);
}

// MN-major tile of kRows rows: columns from `address` on, the rows of step 0.
template <int kRows> NSAI_DEVICE u64 wgmma_mn_major(u32 address) {
  return wgmma_operand(address, kRows * kPanelPitch, 8 * kPanelPitch);
}

// Offset of rows 16 * step.
constexpr NSAI_DEVICE u64 wgmma_mn_step(int step) { return (u64)(step * 16 * kPanelPitch >> 4); }

// ---- products

// Wgmma<Element, N>: one instruction per function. d [N / 2]; `accumulate` 0: D = A B.
//   shared     A and B in shared memory, both K-major
//   shared_as  A and B in shared memory, K-major or, where set, MN-major
//   registers  A in registers, B K-major or, kMnMajor 1, MN-major
template <class Element, int kN> struct Wgmma;

#define NSAI_WGMMA(ELEMENT, TYPE, N, D, OUT, A, A1, A2, A3, B, P, T)                               \
  template <> struct Wgmma<ELEMENT, N> {                                                           \
    static NSAI_DEVICE void shared(float *d, u64 a, u64 b, int accumulate) {                       \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " A2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                   "k16.f32." TYPE "." TYPE " {" D "}, " A ", " A1 ", p, 1, 1, 0, 0;}"             \
                   : OUT(d, 0)                                                                     \
                   : "l"(a), "l"(b), "r"(accumulate));                                             \
    }                                                                                              \
    template <int kMnMajorA, int kMnMajorB>                                                        \
    static NSAI_DEVICE void shared_as(float *d, u64 a, u64 b, int accumulate) {                    \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " A2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                   "k16.f32." TYPE "." TYPE " {" D "}, " A ", " A1 ", p, 1, 1, " A3 ", " B ";}"    \
                   : OUT(d, 0)                                                                     \
                   : "l"(a), "l"(b), "r"(accumulate), "n"(kMnMajorA), "n"(kMnMajorB));             \
    }                                                                                              \
    template <int kMnMajor>                                                                        \
    static NSAI_DEVICE void registers(float *d, const u32 (&a)[4], u64 b, int accumulate) {        \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " P ", 0; wgmma.mma_async.sync.aligned.m64n" #N  \
                   "k16.f32." TYPE "." TYPE " {" D "}, {" A ", " A1 ", " A2 ", " A3 "}, " B        \
                   ", p, 1, 1, " T ";}"                                                            \
                   : OUT(d, 0)                                                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),          \
                     "n"(kMnMajor));                                                               \
    }                                                                                              \
  };

#define NSAI_OUT_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NSAI_OUT_8(d, i) NSAI_OUT_4(d, i), NSAI_OUT_4(d, i + 4)
#define NSAI_OUT_16(d, i) NSAI_OUT_8(d, i), NSAI_OUT_8(d, i + 8)
#define NSAI_OUT_32(d, i) NSAI_OUT_16(d, i), NSAI_OUT_16(d, i + 16)
#define NSAI_OUT_24(d, i) NSAI_OUT_16(d, i), NSAI_OUT_8(d, i + 16)
#define NSAI_OUT_40(d, i) NSAI_OUT_32(d, i), NSAI_OUT_8(d, i + 32)
#define NSAI_OUT_48(d, i) NSAI_OUT_32(d, i), NSAI_OUT_16(d, i + 32)
#define NSAI_OUT_56(d, i) NSAI_OUT_48(d, i), NSAI_OUT_8(d, i + 48)
#define NSAI_OUT_64(d, i) NSAI_OUT_32(d, i), NSAI_OUT_32(d, i + 32)
#define NSAI_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NSAI_NAMES_16 NSAI_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NSAI_NAMES_24 NSAI_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NSAI_NAMES_32 NSAI_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define NSAI_NAMES_40 NSAI_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NSAI_NAMES_48 NSAI_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NSAI_NAMES_56 NSAI_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NSAI_NAMES_64 NSAI_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"

NSAI_WGMMA(Bf16, "bf16", 16, NSAI_NAMES_8, NSAI_OUT_8, "%8", "%9", "%10", "%11", "%12", "%13",
           "%14")
NSAI_WGMMA(Fp16, "f16", 16, NSAI_NAMES_8, NSAI_OUT_8, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
NSAI_WGMMA(Bf16, "bf16", 32, NSAI_NAMES_16, NSAI_OUT_16, "%16", "%17", "%18", "%19", "%20", "%21",
           "%22")
NSAI_WGMMA(Fp16, "f16", 32, NSAI_NAMES_16, NSAI_OUT_16, "%16", "%17", "%18", "%19", "%20", "%21",
           "%22")
NSAI_WGMMA(Bf16, "bf16", 48, NSAI_NAMES_24, NSAI_OUT_24, "%24", "%25", "%26", "%27", "%28", "%29",
           "%30")
NSAI_WGMMA(Fp16, "f16", 48, NSAI_NAMES_24, NSAI_OUT_24, "%24", "%25", "%26", "%27", "%28", "%29",
           "%30")
NSAI_WGMMA(Bf16, "bf16", 64, NSAI_NAMES_32, NSAI_OUT_32, "%32", "%33", "%34", "%35", "%36", "%37",
           "%38")
NSAI_WGMMA(Fp16, "f16", 64, NSAI_NAMES_32, NSAI_OUT_32, "%32", "%33", "%34", "%35", "%36", "%37",
           "%38")
NSAI_WGMMA(Bf16, "bf16", 80, NSAI_NAMES_40, NSAI_OUT_40, "%40", "%41", "%42", "%43", "%44", "%45",
           "%46")
NSAI_WGMMA(Fp16, "f16", 80, NSAI_NAMES_40, NSAI_OUT_40, "%40", "%41", "%42", "%43", "%44", "%45",
           "%46")
NSAI_WGMMA(Bf16, "bf16", 96, NSAI_NAMES_48, NSAI_OUT_48, "%48", "%49", "%50", "%51", "%52", "%53",
           "%54")
NSAI_WGMMA(Fp16, "f16", 96, NSAI_NAMES_48, NSAI_OUT_48, "%48", "%49", "%50", "%51", "%52", "%53",
           "%54")
NSAI_WGMMA(Bf16, "bf16", 112, NSAI_NAMES_56, NSAI_OUT_56, "%56", "%57", "%58", "%59", "%60", "%61",
           "%62")
NSAI_WGMMA(Fp16, "f16", 112, NSAI_NAMES_56, NSAI_OUT_56, "%56", "%57", "%58", "%59", "%60", "%61",
           "%62")
NSAI_WGMMA(Bf16, "bf16", 128, NSAI_NAMES_64, NSAI_OUT_64, "%64", "%65", "%66", "%67", "%68", "%69",
           "%70")
NSAI_WGMMA(Fp16, "f16", 128, NSAI_NAMES_64, NSAI_OUT_64, "%64", "%65", "%66", "%67", "%68", "%69",
           "%70")

#undef NSAI_WGMMA
#undef NSAI_OUT_4
#undef NSAI_OUT_8
#undef NSAI_OUT_16
#undef NSAI_OUT_24
#undef NSAI_OUT_32
#undef NSAI_OUT_40
#undef NSAI_OUT_48
#undef NSAI_OUT_56
#undef NSAI_OUT_64
#undef NSAI_NAMES_8
#undef NSAI_NAMES_16
#undef NSAI_NAMES_24
#undef NSAI_NAMES_32
#undef NSAI_NAMES_40
#undef NSAI_NAMES_48
#undef NSAI_NAMES_56
#undef NSAI_NAMES_64

// The widest product within `columns` (a multiple of 16).
constexpr NSAI_DEVICE int wgmma_width(int columns) { return columns < 128 ? columns : 128; }

// D [64, kColumns] += A B with B [16, kColumns] in one or two products; kColumns is a multiple of
// 16 up to 256. B is MN-major with kRows rows (columns spread over panels).
template <class Element, int kColumns, int kRows, int kFirst = 0>
NSAI_DEVICE void wgmma_pv(float *d, const u32 (&a)[4], u64 b, int accumulate) {
  if constexpr (kFirst < kColumns) {
    constexpr int kN = wgmma_width(kColumns - kFirst);
    constexpr u64 kAt = (kFirst / 64 * kRows * kPanelPitch + kFirst % 64 * 2) >> 4;
    Wgmma<Element, kN>::template registers<1>(d + kFirst / 2, a, b + kAt, accumulate);
    wgmma_pv<Element, kColumns, kRows, kFirst + kN>(d, a, b, accumulate);
  }
}

// D [64, kKeys] += A B^T with A [64, 16] and B [kKeys, 16] in shared memory, both K-major.
template <class Element, int kKeys, int kFirst = 0>
NSAI_DEVICE void wgmma_qk(float *d, u64 a, u64 b, int accumulate) {
  if constexpr (kFirst < kKeys) {
    constexpr int kN = wgmma_width(kKeys - kFirst);
    constexpr u64 kAt = kFirst * kPanelPitch >> 4;
    Wgmma<Element, kN>::shared(d + kFirst / 2, a, b + kAt, accumulate);
    wgmma_qk<Element, kKeys, kFirst + kN>(d, a, b, accumulate);
  }
}

// The same with A in registers.
template <class Element, int kKeys, int kFirst = 0>
NSAI_DEVICE void wgmma_qk(float *d, const u32 (&a)[4], u64 b, int accumulate) {
  if constexpr (kFirst < kKeys) {
    constexpr int kN = wgmma_width(kKeys - kFirst);
    constexpr u64 kAt = kFirst * kPanelPitch >> 4;
    Wgmma<Element, kN>::template registers<0>(d + kFirst / 2, a, b + kAt, accumulate);
    wgmma_qk<Element, kKeys, kFirst + kN>(d, a, b, accumulate);
  }
}

// Issues S [64, kKeys] = Q K^T of a warpgroup: Q [64, 16 kSteps] and K [kKeys, 16 kSteps] in shared
// memory, d the accumulators.
template <class Element, int kKeys, int kSteps>
NSAI_DEVICE void wgmma_scores(float *d, u32 sQ, u32 sK) {
  u64 q = wgmma_k_major(sQ), k = wgmma_k_major(sK);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    wgmma_qk<Element, kKeys>(d, q + wgmma_k_step<64>(step), k + wgmma_k_step<kKeys>(step),
                             step > 0);
  wgmma_commit();
}
