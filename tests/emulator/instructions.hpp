// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// The instructions of PTX that kernels write as text; translate.py says which text calls which function. Outputs
// come first, as in the text. Fragments and layouts as the PTX ISA has them.
#pragma once
#include "builtins.hpp"

namespace emulator {

// ---- conversions

inline u16 bf16_of(float x) {
  u32 bits = __float_as_uint(x);
  if (x != x) return 0x7fff;
  return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline u16 f16_of(float x) {
  const __fp16 rounded = x;
  return x != x ? (u16)0x7fff : __builtin_bit_cast(u16, rounded);
}
inline float value_bf16(u16 x) { return __uint_as_float((u32)x << 16); }
inline float value_f16(u16 x) { return (float)__builtin_bit_cast(__fp16, x); }

inline void cvt_bf16x2(u32 &r, float high, float low) {
  r = (u32)bf16_of(high) << 16 | bf16_of(low);
}
inline void cvt_f16x2(u32 &r, float high, float low) { r = (u32)f16_of(high) << 16 | f16_of(low); }
inline void f16_low(float &r, u32 x) { r = value_f16((u16)x); }
inline void f16_high(float &r, u32 x) { r = value_f16((u16)(x >> 16)); }

// E4M3: the values of codes, and the code of a value, to nearest even, at most 448.
inline float value_e4m3(u32 code) {
  const u32 exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 127) == 127) return __uint_as_float(0x7fc00000);
  const float x =
      exponent ? ldexpf((float)(8 + mantissa), (int)exponent - 10) : ldexpf((float)mantissa, -9);
  return code & 128 ? -x : x;
}
inline u32 e4m3_of(float x) {
  const u32 sign = __float_as_uint(x) >> 24 & 128;
  const float a = fabsf(x);
  if (a != a) return 127;
  u32 best = 0;
  for (u32 code = 1; code < 127; ++code) { // the greater of two equally near ones if it is even
    const float below = a - value_e4m3(best), above = value_e4m3(code) - a;
    if (above < below || (above == below && !(code & 1))) best = code;
  }
  return sign | best;
}
inline void cvt_e4m3x2(u32 &r, float high, float low) { r = e4m3_of(high) << 8 | e4m3_of(low); }
inline void cvt_f16x2_e4m3x2(u32 &r, u32 x) { // of the low half of x
  r = (u32)f16_of(value_e4m3(x >> 8 & 255)) << 16 | f16_of(value_e4m3(x & 255));
}
inline void cvt_f16x2_e4m3x2_high(u32 &r, u32 x) { cvt_f16x2_e4m3x2(r, x >> 16); }
inline void max_u16x2(u32 &r, u32 a, u32 b) {
  r = std::max(a & 0xffff, b & 0xffff) | std::max(a >> 16, b >> 16) << 16;
}
inline void prmt(u32 &r, u32 a, u32 b, u32 selector) { r = __byte_perm(a, b, selector); }

// Arithmetic on pairs. The product of two elements is exact in fp32, and so is its rounding; of
// a * b + c the sum is rounded to fp32 first, which is exact where c is 0.
inline void mul_f16x2(u32 &r, u32 a, u32 b) {
  r = (u32)f16_of(value_f16((u16)(a >> 16)) * value_f16((u16)(b >> 16))) << 16 |
      f16_of(value_f16((u16)a) * value_f16((u16)b));
}
inline void fma_bf16x2(u32 &r, u32 a, u32 b, u32 c) {
  const auto one = [](u32 x, u32 y, u32 z) {
    return bf16_of(fmaf(value_bf16((u16)x), value_bf16((u16)y), value_bf16((u16)z)));
  };
  r = (u32)one(a >> 16, b >> 16, c >> 16) << 16 | one(a, b, c);
}

inline float without_subnormals(float x) {
  return fabsf(x) < 1.17549435e-38f ? copysignf(0, x) : x;
}
inline void ex2(float &r, float x) { r = without_subnormals(exp2f(without_subnormals(x))); }
inline void lg2(float &r, float x) { r = log2f(without_subnormals(x)); }

// ---- matrices of 8 x 8 elements of 16 bits

inline const u16 *row_at(u32 address) {
  if (address % 16) fail("a row of a matrix at an address that is no multiple of 16");
  return (const u16 *)shared_pointer(address);
}
inline void ldmatrix(const char *name, u32 *r, u32 address, int count, bool transposed) {
  const u32 *out = meet(name, ~0u, &address, 1, [=](Warp &w) {
    for (int i = 0; i < count; ++i)
      for (int lane = 0; lane < 32; ++lane) {
        u16 pair[2];
        for (int j = 0; j < 2; ++j) {
          const int row = transposed ? 2 * (lane % 4) + j : lane / 4,
                    column = transposed ? lane / 4 : 2 * (lane % 4) + j;
          pair[j] = row_at(w.in[8 * i + row][0])[column];
        }
        w.out[lane][i] = (u32)pair[1] << 16 | pair[0];
      }
  });
  for (int i = 0; i < count; ++i) r[i] = out[i];
}
inline void ldmatrix_x4(u32 &a, u32 &b, u32 &c, u32 &d, u32 address) {
  u32 r[4];
  ldmatrix("ldmatrix.x4", r, address, 4, false);
  a = r[0], b = r[1], c = r[2], d = r[3];
}
inline void ldmatrix_x4_trans(u32 &a, u32 &b, u32 &c, u32 &d, u32 address) {
  u32 r[4];
  ldmatrix("ldmatrix.x4.trans", r, address, 4, true);
  a = r[0], b = r[1], c = r[2], d = r[3];
}
inline void ldmatrix_x2(u32 &a, u32 &b, u32 address) {
  u32 r[2];
  ldmatrix("ldmatrix.x2", r, address, 2, false);
  a = r[0], b = r[1];
}
inline void stmatrix_x4(u32 address, u32 a, u32 b, u32 c, u32 d) {
  const u32 words[5] = { address, a, b, c, d };
  meet("stmatrix.x4", ~0u, words, 5, [](Warp &w) {
    for (int i = 0; i < 4; ++i)
      for (int lane = 0; lane < 32; ++lane)
        *(u32 *)((char *)row_at(w.in[8 * i + lane / 4][0]) + 4 * (lane % 4)) = w.in[lane][1 + i];
  });
}

template <float (*kValue)(u16)>
inline void mma_m16n8k16(const char *name, float &c0, float &c1, float &c2, float &c3, u32 a0,
                         u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  const u32 words[10] = { a0,
                          a1,
                          a2,
                          a3,
                          b0,
                          b1,
                          __float_as_uint(c0),
                          __float_as_uint(c1),
                          __float_as_uint(c2),
                          __float_as_uint(c3) };
  const u32 *out = meet(name, ~0u, words, 10, [](Warp &w) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane)
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 4; ++i)
          a[lane / 4 + 8 * (i & 1)][2 * (lane % 4) + half + 8 * (i >> 1)] =
              kValue((u16)(w.in[lane][i] >> 16 * half));
        for (int i = 0; i < 2; ++i)
          b[2 * (lane % 4) + half + 8 * i][lane / 4] =
              kValue((u16)(w.in[lane][4 + i] >> 16 * half));
      }
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i >> 1), column = 2 * (lane % 4) + (i & 1);
        float sum = __uint_as_float(w.in[lane][6 + i]);
        for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
        w.out[lane][i] = __float_as_uint(sum);
      }
  });
  c0 = __uint_as_float(out[0]), c1 = __uint_as_float(out[1]), c2 = __uint_as_float(out[2]),
  c3 = __uint_as_float(out[3]);
}
// The text names c a second time as an input.
inline void mma_bf16(float &c0, float &c1, float &c2, float &c3, u32 a0, u32 a1, u32 a2, u32 a3,
                     u32 b0, u32 b1) {
  mma_m16n8k16<value_bf16>("mma.bf16", c0, c1, c2, c3, a0, a1, a2, a3, b0, b1);
}
inline void mma_f16(float &c0, float &c1, float &c2, float &c3, u32 a0, u32 a1, u32 a2, u32 a3,
                    u32 b0, u32 b1) {
  mma_m16n8k16<value_f16>("mma.f16", c0, c1, c2, c3, a0, a1, a2, a3, b0, b1);
}

// ---- copies

inline void cp_async(u32 to, const void *from, int bytes) { copies_add(to, from, (u32)bytes); }
inline void cp_async_by(u32 to, const void *from, int bytes, u64) {
  copies_add(to, from, (u32)bytes);
}
inline void cp_async_wait(int groups) { copies_perform(groups); }
inline void createpolicy(u64 &r) { r = 0; }

template <class T> inline void aligned(T at, size_t bytes) {
  if ((uintptr_t)at % bytes) fail("an access that is not aligned to its size");
}
template <class... Word> inline void load_words(const void *from, Word &...words) {
  aligned(from, 4 * sizeof...(words));
  const u32 *at = (const u32 *)from;
  ((words = *at++), ...);
}
inline void ld_shared(u32 &a, u32 from) { load_words(shared_pointer(from), a); }
inline void ld_shared(u32 &a, u32 &b, u32 from) { load_words(shared_pointer(from), a, b); }
inline void ld_shared(u32 &a, u32 &b, u32 &c, u32 &d, u32 from) {
  load_words(shared_pointer(from), a, b, c, d);
}
inline void ld_global(u32 &a, u32 &b, const void *from) { load_words(from, a, b); }
template <class... Word> inline void store_words(void *to, Word... words) {
  aligned(to, 4 * sizeof...(words));
  u32 *at = (u32 *)to;
  ((*at++ = words), ...);
}
template <class... Word> inline void st_shared(u32 to, Word... words) {
  store_words(shared_pointer(to), words...);
}
template <class... Word> inline void st_global(void *to, Word... words) {
  store_words(to, words...);
}
inline void st_global_by(float *to, float x, u64) { *to = x; }
// What was there is lost.
inline void discard(const void *line) {
  aligned(line, 128);
  memset((void *)line, 0xcd, 128);
}

// ---- barriers

inline void mbarrier_init(u32 address, u32 arrivals) {
  MBarrier &b = mbarrier(address);
  b.phase = 0, b.arrivals = (u16)arrivals, b.missing = (int16_t)arrivals, b.bytes = 0;
}
inline void mbarrier_arrive_one(u32 address) { mbarrier_arrive(address, 0); }
inline void mbarrier_expect(u32 address, u32 bytes) { mbarrier_arrive(address, bytes); }
inline void mbarrier_arrive_after_copies(u32 address) {
  copies_commit();
  copies_perform(0);
  mbarrier_arrive(address, 0);
}
inline void mbarrier_test(u32 &done, u32 address, u32 phase) {
  done = mbarrier(address).phase != (phase & 1);
  if (!done) yield();
}
inline void st_release(u32 address, int x) {
  state.progress++;
  *(volatile int *)shared_pointer(address) = x;
}
inline void ld_acquire(int &x, u32 address) {
  yield(); // it polls
  x = *(volatile int *)shared_pointer(address);
}
inline void bar_sync(int number, int threads) {
  barrier_join(number, threads, true, false, nullptr, nullptr);
}
inline void bar_arrive(int number, int threads) {
  barrier_join(number, threads, false, false, nullptr, nullptr);
}

// ---- clusters

inline void cluster_ctarank(u32 &rank) { rank = (u32)self()->cta->rank; }
inline void mapa(u32 &remote, u32 address, int rank) {
  if (rank >= state.cluster) fail("mapa names a CTA that the cluster does not have");
  remote = address - shared_base() + (u32)(kSharedAt + kSharedEach * (u32)rank);
}
inline void cluster_arrive() {
  state.progress++;
  self()->cluster_seen = state.cluster_generation;
  if (++state.cluster_arrived == state.fiber_count) {
    state.cluster_arrived = 0;
    state.cluster_generation++;
  }
}
inline void cluster_wait() { wait_until_changed(&state.cluster_generation, self()->cluster_seen); }
template <class T> inline void st_async(u32 remote, T x, u32 barrier) {
  aligned((uintptr_t)remote, sizeof x);
  memcpy(shared_pointer(remote), &x, sizeof x);
  mbarrier_bytes(barrier, sizeof x);
}
inline void st_async_v2(u32 remote, float x, float y, u32 barrier) {
  st_async(remote, float2{ x, y }, barrier);
}
inline void st_async_v4(u32 remote, float x, float y, float z, float w, u32 barrier) {
  st_async(remote, float4{ x, y, z, w }, barrier);
}

// ---- the copy engine

// As the emulated driver writes a tensor map (tests/unit/fake_cuda.c).
struct TensorMap {
  void *address;
  signed char type, rank, interleave, swizzle, promotion, fill;
  u16 box[5];
  u64 extents[5], strides[4];
};

inline void box_load(u32 to, const void *pointer, const int *at, u32 barrier) {
  const TensorMap &map = *(const TensorMap *)pointer;
  if (to % 1024 && map.box[0] == 64 && to % 128)
    fail("a box at an address that is no multiple of 128");
  const int rank = map.rank;
  u32 size = 2, index[5] = {};
  for (int i = 0; i < rank; ++i) size *= map.box[i];
  for (u32 n = 0; n < size / 2; ++n) {
    bool inside = true;
    const char *from = (const char *)map.address;
    for (int i = 0; i < rank; ++i) {
      const long long c = (long long)at[i] + index[i];
      inside = inside && c >= 0 && (u64)c < map.extents[i];
      from += c * (long long)(i ? map.strides[i - 1] : 2);
    }
    // 128-byte swizzle: bits 4 to 6 of the address take bits 7 to 9.
    const u32 plain = to + 2 * n, target = plain ^ (plain >> 7 & 7) << 4;
    *(u16 *)shared_pointer(target) = inside ? *(const u16 *)from : (u16)0;
    for (int i = 0; i < rank && ++index[i] == map.box[i]; ++i) index[i] = 0;
  }
  mbarrier_bytes(barrier, size);
}
inline void tma_3d(u32 to, const void *map, int a, int b, int c, u32 barrier) {
  const int at[] = { a, b, c };
  box_load(to, map, at, barrier);
}
inline void tma_4d(u32 to, const void *map, int a, int b, int c, int d, u32 barrier) {
  const int at[] = { a, b, c, d };
  box_load(to, map, at, barrier);
}
inline void tma_5d_interleaved(u32 to, const void *map, int column, int key, u32 barrier) {
  const int at[] = { column, 0, 0, 0, key };
  box_load(to, map, at, barrier);
}
inline void bulk_load(u32 to, const void *from, u32 bytes, u32 barrier) {
  if (to % 16 || (uintptr_t)from % 16 || bytes % 16)
    fail("a bulk copy that is not aligned to 16 bytes");
  memcpy(shared_pointer(to), from, bytes);
  mbarrier_bytes(barrier, bytes);
}

inline void bulk_store(void *to, u32 from, u32 bytes) {
  if (from % 16 || (uintptr_t)to % 16 || bytes % 16)
    fail("a bulk copy that is not aligned to 16 bytes");
  memcpy(to, shared_pointer(from), bytes);
}
inline void bulk_add(float *to, u32 from, u32 bytes) {
  if (from % 16 || (uintptr_t)to % 16 || bytes % 16)
    fail("a bulk copy that is not aligned to 16 bytes");
  const float *x = (const float *)shared_pointer(from);
  for (u32 i = 0; i < bytes / 4; ++i) to[i] += x[i];
}
// CTAs run one after the other: a later one finds what it waits for.
inline void st_release_global(int *to, int x) {
  state.progress++;
  *(volatile int *)to = x;
}
inline void ld_acquire_global(int &x, const int *from) {
  yield(); // it polls
  x = *(const volatile int *)from;
}

// Words that kernels of other GPUs write, which are other threads of this process. A thread that reads one polls:
// when nothing else goes on in its cluster, the launch lets others run.
inline void st_release_system(int *to, int x) {
  state.progress++;
  __atomic_store_n(to, x, __ATOMIC_RELEASE);
}
inline void ld_acquire_system(int &x, const int *from) {
  state.waits_for_system = true;
  yield();
  x = __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
inline void global_timer(u64 &x) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  x = (u64)now.tv_sec * 1000000000 + (u64)now.tv_nsec;
}

// ---- products of a warpgroup

// Element (row, column) of an operand with the 128-byte swizzle. K-major: row of the tile, column
// of the 16; `stride` leads from 8 rows to the next. MN-major: row of the 16, column of the tile;
// `leading` leads from 64 columns to the next.
struct Operand {
  u32 address, leading, stride;
  explicit Operand(u64 d)
      : address((u32)(d & 0x3fff) << 4), leading((u32)(d >> 16 & 0x3fff) << 4),
        stride((u32)(d >> 32 & 0x3fff) << 4) {
    if (d >> 62 != 1) fail("a descriptor without the 128-byte swizzle");
    // Descriptors have 18 bits of an address; the window of the CTA has the others.
    const u32 window = shared_base();
    address |= window & ~0x3ffffu;
  }
  u16 element(u32 offset) const {
    const u32 plain = address + offset;
    return *(const u16 *)shared_pointer(plain ^ (plain >> 7 & 7) << 4);
  }
  u16 k_major(int row, int column) const {
    return element((u32)(row / 8) * stride + (u32)(row % 8) * 128 + (u32)column * 2);
  }
  u16 mn_major(int row, int column) const {
    return element((u32)(column / 64) * leading + (u32)(row / 8) * stride + (u32)(row % 8) * 128 +
                   (u32)(column % 64) * 2);
  }
};

template <int kN, class A, class B>
inline void warpgroup_product(const char *name, float *d, const u32 *a, bool accumulate, A &&left,
                              B &&right) {
  const int thread = self()->thread, mine = thread % 128;
  WarpGroup &g = self()->cta->groups[thread / 128];
  if (!g.arrived) g.operation = name;
  if (g.operation != name) fail("the warps of a warpgroup meet in different products");
  g.d[mine] = d;
  if (a) memcpy(g.a[mine], a, sizeof g.a[mine]);
  const u32 generation = g.generation;
  if (++g.arrived < 128) return wait_until_changed(&g.generation, generation);
  float x[64][16], y[16][kN];
  for (int row = 0; row < 64; ++row)
    for (int k = 0; k < 16; ++k) x[row][k] = left(g, row, k);
  for (int k = 0; k < 16; ++k)
    for (int n = 0; n < kN; ++n) y[k][n] = right(k, n);
  for (int t = 0; t < 128; ++t)
    for (int i = 0; i < kN / 2; ++i) {
      const int row = t / 32 * 16 + t % 32 / 4 + 8 * (i >> 1 & 1),
                column = i / 4 * 8 + 2 * (t % 4) + (i & 1);
      float sum = accumulate ? g.d[t][i] : 0.0f;
      for (int k = 0; k < 16; ++k) sum += x[row][k] * y[k][column];
      g.d[t][i] = sum;
    }
  g.arrived = 0;
  g.generation = generation + 1;
}
template <int kN, float (*kValue)(u16)>
inline void wgmma_shared(float *d, u64 a, u64 b, int accumulate, int mn_major_a = 0,
                         int mn_major_b = 0) {
  const Operand left(a), right(b);
  warpgroup_product<kN>(
      "wgmma of shared memory", d, nullptr, accumulate != 0,
      [&](const WarpGroup &, int row, int k) {
        return kValue(mn_major_a ? left.mn_major(k, row) : left.k_major(row, k));
      },
      [&](int k, int n) {
        return kValue(mn_major_b ? right.mn_major(k, n) : right.k_major(n, k));
      });
}
template <int kN, float (*kValue)(u16)>
inline void wgmma_registers(float *d, u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int accumulate,
                            int mn_major) {
  const u32 a[4] = { a0, a1, a2, a3 };
  const Operand right(b);
  warpgroup_product<kN>(
      "wgmma of registers", d, a, accumulate != 0,
      [&](const WarpGroup &g, int row, int k) {
        const int lane = row % 8 * 4 + k % 8 / 2, i = (row % 16 / 8) + 2 * (k / 8);
        return kValue((u16)(g.a[row / 16 * 32 + lane][i] >> 16 * (k & 1)));
      },
      [&](int k, int n) { return kValue(mn_major ? right.mn_major(k, n) : right.k_major(n, k)); });
}
inline void mov_b32(float &y, float x) { y = x; }

} // namespace emulator
