// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// activation: x = act(x) in place, between the two products of phi mlp and of the gate MLP (both cuBLASLt).
//
//   relu(x) = max(x, 0)    silu(x) = x / (1 + e^-x)    gelu(x) = x/2 * (1 + erf(x / sqrt 2))      in fp32, rounded once
//
//   x [count] of dtype, count a multiple of 8, 16-byte aligned
//
// Grid: x = ceil(count / 8 / kThreads); a thread maps 16 bytes. Bound by HBM.
//
// Config: Element, kActivation (0 relu, 1 silu, 2 gelu: the order of nsa_activation), kThreads, kMinBlocks. No shared memory.
#pragma once
#include "common/params.h"
#include "common/types.cuh"

static_assert(0 <= Config::kActivation && Config::kActivation <= 2, "relu, silu, gelu");

template <class C> NSAI_DEVICE float activate(float x) {
  constexpr float kInverseSqrt2 = 0.707106781186547524f;
  if constexpr (C::kActivation == 0) return x < 0 ? 0 : x; // and NaN stays NaN
  // e^-x overflows to inf below x = -88: x / inf is the right 0.
  else if constexpr (C::kActivation == 1) return __fdiv_rn(x, 1 + exp2_approx(-kLog2e * x));
  // erfc where erf is near -1: 1 + erf would cancel.
  else return 0.5f * x * (x < 0 ? erfcf(-x * kInverseSqrt2) : 1 + erff(x * kInverseSqrt2));
}

template <class C> NSAI_DEVICE void activate_all(const NsaiActivation &p) {
  const long long i = (long long)blockIdx.x * C::kThreads + threadIdx.x;
  if (i >= p.count / 8) return;
  Chunk chunk = ((Chunk *)p.x)[i];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    chunk.w[k] = C::Element::pack(activate<C>(C::Element::low(chunk.w[k])), activate<C>(C::Element::high(chunk.w[k])));
  ((Chunk *)p.x)[i] = chunk;
}

extern "C" __global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocks) activation(const __grid_constant__ NsaiActivation p) { activate_all<Config>(p); }
