// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Activations between layers and their derivatives: 0 relu, 1 silu, 2 gelu, 3 none.
#pragma once
#include "core/types.cuh"

// gelu is the exact (erf) form; the tanh approximation differs by up to 5e-4.
template <int kActivation> NSAI_DEVICE float activate(float x) {
  if constexpr (kActivation == 0) return fmaxf(x, 0.0f);
  if constexpr (kActivation == 1) return x / (1.0f + __expf(-x));
  if constexpr (kActivation == 2) return 0.5f * x * (1.0f + erff(x * 0.707106781186547524f));
  return x;
}

// The derivative of relu at 0 is 0. For silu, if exp(-x) is inf, the sigmoid is 0 and so is the
// derivative.
template <int kActivation> NSAI_DEVICE float activation_slope(float x) {
  if constexpr (kActivation == 0) return x > 0.0f ? 1.0f : 0.0f;
  if constexpr (kActivation == 1) {
    const float s = 1.0f / (1.0f + __expf(-x));
    return s > 0.0f ? fmaf(s * (1.0f - s), x, s) : 0.0f;
  }
  if constexpr (kActivation == 2) {
    const float density = 0.398942280401432678f * __expf(-0.5f * x * x);
    return fmaf(x, density, 0.5f * (1.0f + erff(x * 0.707106781186547524f)));
  }
  return 1.0f;
}
