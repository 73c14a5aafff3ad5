// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What the kernels of the backward pass share: products of tiles in shared memory by mma.sync or
// wgmma (Config::kWgmma: one warpgroup), the copies that fill the tiles, and stores of gradients.
//
// With the gate g, the probabilities P and u = dO . o_b of a row (include/nsa/backward.h):
//
//   P' = g P     dS = P' (dO V^T - u)     dQ += scale dS K     dK = scale dS^T Q     dV = P'^T dO
//
// With these, dO needs no copy per gate. LSE, g and u of a row are its RowStatistics.
#pragma once
#include "core/copy.cuh"
#include "core/copy_rows.cuh"
#include "core/epilogue.cuh"
#include "core/mma.cuh"
#include "core/panel_tile.cuh"
#include "core/tile.cuh"
#include "core/tma.cuh"
#include "core/types.cuh"
#include "core/wgmma.cuh"
#include "params/attention.h"
#include "params/backward.h"

// Statistics of a (branch, token, query head). A row that sees no key has lse +inf, so that every
// probability is 0, and zeros.
struct __align__(16) RowStatistics {
  // log2 of the sum of 2^(scale_log2 s). Of logits, whose gates are never negative, minus log2 g.
  float lse;
  float gate;  // g
  float inner; // u, the gradient of g
  float reserved;
};

// Whether P' is one exponential: gates are logits, whose sigmoid is never negative, so that g joins
// lse; or there are none, and g is 1.
template <class Config> constexpr bool kGateInLse = Config::kGate != 1;

// Statistics of a row that sees keys; `lse` does not include the gate.
template <class Config>
NSAI_DEVICE RowStatistics make_statistics(float lse, float gate, float inner) {
  return RowStatistics{ Config::kGate == 2 ? lse - log2_approx(gate) : lse, gate, inner, 0.0f };
}

// P' = g P of a score.
template <class Config>
NSAI_DEVICE float gated_probability(float s, float scale_log2, float lse, float gate) {
  const float x = exp2_approx(fmaf(s, scale_log2, -lse));
  return kGateInLse<Config> ? x : x * gate;
}

// Index of a row's statistics in [branches, T, Hq].
NSAI_DEVICE long long statistics_at(int branch, int tokens, int token, int heads, int head) {
  return ((long long)branch * tokens + token) * heads + head;
}

// Starts the copy of a tile T [kRows, kDim]. `at(row, from)` sets the address of a row, or returns
// false for a row of zeros; `thread`: among the kThreads that share the copy.
template <class T, int kRows, int kDim, int kThreads, class At>
NSAI_DEVICE void load_tile(u32 tile, At at, int thread = threadIdx.x) {
  using Lanes = CopyLanes<T, kThreads>;
#pragma unroll
  for (int i = 0; i < ceil_div(kRows, Lanes::kPass); ++i) {
    const int row = Lanes::row(thread) + i * Lanes::kPass;
    if (kRows % Lanes::kPass && row >= kRows) continue;
    const u16 *from;
    const bool present = at(row, from);
    copy_row<T, kDim, kThreads>(tile, row, Lanes::chunk(thread), from + Lanes::chunk(thread) * 8,
                                present);
  }
}

// S = A B^T over kDim columns: s[m] are rows a_row + 16 m .. + 15 of tile A times the first 8 kN
// rows of tile B.
template <class E, class A, class B, int kDim, int kM, int kN>
NSAI_DEVICE void multiply_rows(float (&s)[kM][kN][4], u32 sA, int a_row, u32 sB) {
  static_assert(kN % 2 == 0, "B is read 16 rows at a time");
  const int lane = recomputed(threadIdx.x) % 32;
  const u32 a = sA + A::offset(a_row + lane % 16, lane / 16);
  const u32 b = sB + B::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  clear(s);
#pragma unroll
  for (int step = 0; step < padded_dim(kDim) / 16; ++step) {
    u32 rA[kM][4]; // [16, 16]
#pragma unroll
    for (int m = 0; m < kM; ++m) ldmatrix_x4(rA[m], at_step<A>(a, step) + m * 16 * A::kPitch);
#pragma unroll
    for (int j = 0; j < kN; j += 2) {
      u32 rB[4]; // [16 rows, 16]
      ldmatrix_x4(rB, at_step<B>(b, step) + j * 8 * B::kPitch);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_m16n16k16(E(), s[m][j], s[m][j + 1], rA[m], rB);
      }
    }
  }
}

// acc += X B for the 16 rows of tile B from `row` on; X is given as A fragments [16, 16].
template <class E, class B, int kM, int kO>
NSAI_DEVICE void multiply_fragments(float (&acc)[kM][kO][4], const u32 (&x)[kM][4], u32 sB,
                                    int row) {
  static_assert(kO % 2 == 0, "B is read 16 columns at a time");
  const int lane = recomputed(threadIdx.x) % 32;
  const u32 b = sB + B::offset(lane % 16, lane / 16) + row * B::kPitch;
#pragma unroll
  for (int n = 0; n < kO; n += 2) {
    u32 rB[4]; // [16 rows, 16]
    ldmatrix_x4_trans(rB, at_step<B>(b, n / 2));
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      mma_m16n16k16(E(), acc[m][n], acc[m][n + 1], x[m], rB);
    }
  }
}

// Issues s [64, 8 kN] = A B^T by one warpgroup: 64 rows of A from sA on, and 8 kN rows of B.
template <class E, class A, class B, int kDim, int kN>
NSAI_DEVICE void start_rows(float (&s)[kN][4], u32 sA, u32 sB) {
  static_assert(A::kRows % 64 == 0 && B::kRows == 8 * kN, "tiles are whole");
  const u64 a = wgmma_k_major(sA), b = wgmma_k_major(sB);
#pragma unroll
  for (int i = 0; i < padded_dim(kDim) / 16; ++i)
    wgmma_qk<E, B::kRows>(&s[0][0], a + wgmma_k_step<A::kRows>(i), b + wgmma_k_step<B::kRows>(i),
                          i > 0);
}

// Issues acc [64, 8 kO] += X B for all rows of B; X is given as A fragments.
template <class E, class B, int kO, int kSteps>
NSAI_DEVICE void start_fragments(float (&acc)[kO][4], const u32 (&x)[kSteps][4], u32 sB) {
  static_assert(B::kRows == 16 * kSteps, "the tile is whole");
  const u64 b = wgmma_mn_major<B::kRows>(sB);
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
    wgmma_pv<E, 8 * kO, B::kRows>(&acc[0][0], x[k], b + wgmma_mn_step(k), 1);
}

// Placed after the wait: the compiler moves no use of x above it.
template <int kN> NSAI_DEVICE void hold(float (&x)[kN][4]) { wgmma_hold((float(&)[4 * kN]) x); }

// Packs all n8 tiles into A fragments of the next products.
template <class E, int kN> NSAI_DEVICE void pack_all(u32 (&x)[kN / 2][4], const float (&p)[kN][4]) {
#pragma unroll
  for (int j = 0; j < kN / 2; ++j) softmax_pack<E>(x[j], p[2 * j], p[2 * j + 1]);
}

// ---- stores

// Stores one element; `at` counts elements.
template <class E> NSAI_DEVICE void store_gradient(const NsaiGradient &out, long long at, float x) {
  if (out.is_float) {
    float *to = (float *)out.view.data + at;
    *to = out.accumulate ? *to + x : x;
  } else {
    u16 *to = (u16 *)out.view.data + at;
    if (out.accumulate) x += E::low(*to);
    *to = (u16)E::pack(x, 0.0f);
  }
}

// The gate of a row and branch.
template <class Config>
NSAI_DEVICE float read_gate(const NsaiView &gate, int is_float, int branch, int token, int head) {
  NsaiEpilogue gates = {};
  gates.gate = gate;
  gates.gate_branch = branch;
  gates.gate_float = is_float;
  return gate_value<Config>(gates, load_gate<Config>(gates, OutputRow{ token, head, true }));
}

// Stores the gradient of a branch's gate: u for weights; for logits it also passes through the
// sigmoid.
template <class Config>
NSAI_DEVICE void store_gate(const NsaiGradient &out, int token, int head, int branch,
                            const RowStatistics &x) {
  if (!out.view.data) return;
  const float slope = Config::kGate == 2 ? x.gate * (1.0f - x.gate) : 1.0f;
  store_gradient<typename Config::Element>(
      out, token * out.view.token_stride + head * out.view.head_stride + branch, x.inner * slope);
}

NSAI_DEVICE void add_four(float4 &sum, const float4 &x) {
  sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
}

// Stores four adjacent elements; `at` is a multiple of 4. Floats need only 4-byte alignment.
template <class E>
NSAI_DEVICE void store_gradients(const NsaiGradient &out, long long at, float4 x) {
  if (out.is_float) {
    store_gradient<E>(out, at, x.x);
    store_gradient<E>(out, at + 1, x.y);
    store_gradient<E>(out, at + 2, x.z);
    store_gradient<E>(out, at + 3, x.w);
    return;
  }
  uint2 *to = (uint2 *)((u16 *)out.view.data + at);
  if (out.accumulate) {
    const uint2 before = *to;
    x.x += E::low(before.x);
    x.y += E::high(before.x);
    x.z += E::low(before.y);
    x.w += E::high(before.y);
  }
  *to = make_uint2(E::pack(x.x, x.y), E::pack(x.z, x.w));
}

// The lane's columns of a row, x times `scale`, in groups of four adjacent ones. All 32 lanes take
// part.
template <int kN>
NSAI_DEVICE void gather_row(float4 (&four)[kN / 2], const float (&x)[kN][2], float scale) {
#pragma unroll
  for (int j = 0; j < kN / 2; ++j) {
    const float4 y = gather_four(x[2 * j][0], x[2 * j][1], x[2 * j + 1][0], x[2 * j + 1][1]);
    four[j] = make_float4(y.x * scale, y.y * scale, y.z * scale, y.w * scale);
  }
}

// Stores the lane's columns of a row, x times `scale` or zeros: groups of four columns, as
// gather_four() arranges them. `at` is the element of column 0. All 32 lanes take part.
template <class E, int kDim, int kN>
NSAI_DEVICE void store_gradient_row(const NsaiGradient &out, long long at, bool exists,
                                    const float (&x)[kN][2], float scale, bool zero) {
  float4 four[kN / 2];
  gather_row(four, x, scale);
  if (zero)
#pragma unroll
    for (int j = 0; j < kN / 2; ++j) four[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (!exists) return;
  at += column_of_lane();
  if (out.is_float) {
    float *to = (float *)out.view.data + at; // with 4-byte alignment
    if (out.accumulate)
#pragma unroll
      for (int j = 0; j < kN / 2; ++j)
        if (has_columns<kDim>(j))
          add_four(four[j],
                   make_float4(to[16 * j], to[16 * j + 1], to[16 * j + 2], to[16 * j + 3]));
#pragma unroll
    for (int j = 0; j < kN / 2; ++j)
      if (has_columns<kDim>(j)) {
        to[16 * j] = four[j].x;
        to[16 * j + 1] = four[j].y;
        to[16 * j + 2] = four[j].z;
        to[16 * j + 3] = four[j].w;
      }
    return;
  }
  u16 *to = (u16 *)out.view.data + at;
  if (out.accumulate)
#pragma unroll
    for (int j = 0; j < kN / 2; ++j)
      if (has_columns<kDim>(j)) {
        const uint2 before = *(const uint2 *)(to + 16 * j);
        add_four(four[j], make_float4(E::low(before.x), E::high(before.x), E::low(before.y),
                                      E::high(before.y)));
      }
#pragma unroll
  for (int j = 0; j < kN / 2; ++j)
    if (has_columns<kDim>(j))
      *(uint2 *)(to + 16 * j) =
          make_uint2(E::pack(four[j].x, four[j].y), E::pack(four[j].z, four[j].w));
}

// Calls store(column, float4) for groups of four columns of row r (0: group, 1: group + 8) of acc
// [16, 8 * kN], C fragments, times `scale`. All 32 lanes take part.
template <int kDim, int kN, class Store>
NSAI_DEVICE void for_columns(const float (&acc)[kN][4], int r, float scale, Store store) {
#pragma unroll
  for (int j = 0; j < kN / 2; ++j) {
    float4 x = gather_four(acc[2 * j][2 * r], acc[2 * j][2 * r + 1], acc[2 * j + 1][2 * r],
                           acc[2 * j + 1][2 * r + 1]);
    x = make_float4(x.x * scale, x.y * scale, x.z * scale, x.w * scale);
    if (has_columns<kDim>(j)) store(16 * j + column_of_lane(), x);
  }
}
