// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Factors and additions of the kernels that add up the partial sums of nsa_index_kl. Every sum has one
// order, so every run gives the same bits.
#pragma once
#include "backward/index_kl_items.cuh"
#include "backward/products.cuh"
#include "core/types.cuh"

NSAI_DEVICE float4 scaled(const float4 &x, float factor) {
  return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
}

// c / (T Hi), where T counts the rows of all sequences.
NSAI_DEVICE float row_factor(const NsaiIndexKl &p) {
  const int tokens = p.seq.cu_q ? p.seq.cu_q[p.seq.num_seqs] : p.seq.q_tokens;
  return tokens > 0 ? p.coefficient / ((float)tokens * (float)p.index_heads) : 0.0f;
}

// Of sums of UNIT dS ki and UNIT dS qi.
NSAI_DEVICE float gradient_factor(const NsaiIndexKl &p) {
  return row_factor(p) * p.index_scale * (1.0f / NSAI_INDEX_KL_UNIT);
}
