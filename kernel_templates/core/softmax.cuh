// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Online softmax over the rows of an m16 tile, in base 2, on C fragments of mma.m16n8k16 (see
// core/mma.cuh): a lane holds rows `group` and `group + 8`, its quad (the four lanes of a group)
// shares them.
//
// Every row keeps a reference exponent and a sum of 2^(score - reference). The usual form makes the
// running maximum the reference, which costs a reduction over the quad and a multiplication of all
// of O per tile of keys. Here the reference stays until a score
//   - exceeds it by so much that the probability is beyond kMaxProbability, or
//   - exceeds it and belongs to a key that holds a large share of the row (kShare).
// After the first tiles neither the reduction nor the multiplication happens. Sums and O are fp32
// and P is rounded to Element relatively, so that the results are the same to rounding; and the
// second rule makes the P of a row's dominating key 1, which is exact: with one or two keys of
// weight its rounding (2^-8 in bf16) would not average out.
#pragma once
#include "core/types.cuh"

// Largest probability before the reference follows: far from fp16's limit of 2^16.
constexpr float kMaxProbability = 256.0f;

// A key whose probability is beyond this share of its row's sum so far becomes the reference, if it
// is above it. A third would catch the larger of two dominating keys.
constexpr float kShare = 0.25f;

// The lowest float and not -inf, so that no difference of references or masked scores (-inf) is
// ever NaN.
constexpr float kNoReference = -3.402823466e+38f;

// Whether P V takes P as the sum of two Elements, which leaves nothing of its rounding. The norm of
// few columns is at times small beside the values that went into it: with P in bf16 one row of 16
// columns is then off by up to 6e-3, one of 64 by 3.5e-3 (the most in 10^5 random rows, rounding of
// O included). And P V is a small part of the work there.
template <class Config>
constexpr bool kSplitP = Config::Element::kPrecision < 11 && Config::kHeadDimV < 64;

// Sums run over this lane's columns alone.
struct SoftmaxRows {
  float reference[2] = { kNoReference, kNoReference }; // rows group, group + 8: in powers of two
  float sum[2] = { 0.0f, 0.0f };                       // of 2^(score - reference)
};

NSAI_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

NSAI_DEVICE float warp_max(float x) {
#pragma unroll
  for (int delta = 16; delta; delta /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, delta));
  return x;
}

NSAI_DEVICE float warp_sum(float x) {
#pragma unroll
  for (int delta = 16; delta; delta /= 2) x += __shfl_xor_sync(~0u, x, delta);
  return x;
}

// Over kLanes lanes side by side, a power of two, which all get it.
template <int kLanes> NSAI_DEVICE float lanes_sum(float x) {
#pragma unroll
  for (int delta = 1; delta < kLanes; delta *= 2) x += __shfl_xor_sync(~0u, x, delta);
  return x;
}
template <int kLanes> NSAI_DEVICE float lanes_max(float x) {
#pragma unroll
  for (int delta = 1; delta < kLanes; delta *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, delta));
  return x;
}

// Looks at raw scores s [16, 8 * kN], masked ones -inf. Where one has outgrown its row's reference
// (see above), the references grow to the maxima and the sums follow; so must O: true, and `factor`
// is what softmax_rescale() takes. All 32 lanes take part and get the same answer. scale_log2 > 0.
template <int kN>
NSAI_DEVICE bool softmax_grow(SoftmaxRows &rows, float (&factor)[2], const float (&s)[kN][4],
                              float scale_log2) {
  float top[2];     // of this lane's columns
  bool outgrown[2]; // by top; a lane knows its own sum, at most the row's: it never misses one
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    top[r] = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
#pragma unroll
    for (int j = 1; j < kN; ++j) top[r] = fmaxf(top[r], fmaxf(s[j][2 * r], s[j][2 * r + 1]));
    top[r] *= scale_log2;
    float limit = fminf(fmaxf(kShare * rows.sum[r], 1.0f), kMaxProbability);
    outgrown[r] = exp2_approx(top[r] - rows.reference[r]) > limit;
  }
  if (!__any_sync(~0u, outgrown[0] || outgrown[1])) return false; // warp-uniform
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // Only the rows that outgrew their own reference: what a row computes must not depend on
    // others, of later tokens among them.
    bool grows = __ballot_sync(~0u, outgrown[r]) >> (threadIdx.x & 28) & 15; // a lane of the quad's
    float highest = quad_max(top[r]);
    float grown = grows ? highest : rows.reference[r];
    factor[r] = exp2_approx(rows.reference[r] - grown); // 0 for the first keys of a row
    rows.reference[r] = grown;
    rows.sum[r] *= factor[r];
  }
  return true;
}

// Four columns of O.
NSAI_DEVICE float4 add_scaled(const float4 &sum, float factor, const float4 &x) {
  return make_float4(fmaf(factor, x.x, sum.x), fmaf(factor, x.y, sum.y), fmaf(factor, x.z, sum.z),
                     fmaf(factor, x.w, sum.w));
}

// o [16, 8 * kM], C fragments, follows the references.
template <int kM> NSAI_DEVICE void softmax_rescale(float (&o)[kM][4], const float (&factor)[2]) {
#pragma unroll
  for (int j = 0; j < kM; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) o[j][c] *= factor[c / 2];
}

// Both.
template <int kN, int kM>
NSAI_DEVICE void softmax_raise(SoftmaxRows &rows, const float (&s)[kN][4], float (&o)[kM][4],
                               float scale_log2) {
  float factor[2];
  if (softmax_grow(rows, factor, s, scale_log2)) softmax_rescale(o, factor);
}

// Scores s [16, 8] become probabilities 2^(scale_log2 * s - reference), 0 where masked, and join
// the sums.
NSAI_DEVICE void softmax_exponentiate(SoftmaxRows &rows, float (&s)[4], float scale_log2) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    s[c] = exp2_approx(fmaf(s[c], scale_log2, -rows.reference[c / 2]));
    rows.sum[c / 2] += s[c];
  }
}

// Both, for a whole tile of scores.
template <int kN, int kM>
NSAI_DEVICE void softmax_step(SoftmaxRows &rows, float (&s)[kN][4], float (&o)[kM][4],
                              float scale_log2) {
  softmax_raise(rows, s, o, scale_log2);
#pragma unroll
  for (int j = 0; j < kN; ++j) softmax_exponentiate(rows, s[j], scale_log2);
}

// Probabilities of 16 keys, the C fragments of two neighbouring n8 tiles, as the A fragment of P V.
template <class Element>
NSAI_DEVICE void softmax_pack(u32 (&a)[4], const float (&p0)[4], const float (&p1)[4]) {
  a[0] = Element::pack(p0[0], p0[1]);
  a[1] = Element::pack(p0[2], p0[3]);
  a[2] = Element::pack(p1[0], p1[1]);
  a[3] = Element::pack(p1[2], p1[3]);
}

// What the rounding in `a` = softmax_pack(p0, p1) left of them.
template <class Element>
NSAI_DEVICE void softmax_pack_rest(u32 (&rest)[4], const u32 (&a)[4], const float (&p0)[4],
                                   const float (&p1)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float(&p)[4] = i < 2 ? p0 : p1;
    int c = i % 2 * 2;
    rest[i] = Element::pack(p[c] - Element::low(a[i]), p[c + 1] - Element::high(a[i]));
  }
}

// The reference and sum of a row over kParts parts, those of which lie 16 apart, as a tile's rows do.
template <int kParts> NSAI_DEVICE float2 add_stats(const float2 *stats) {
  float2 x[kParts];
  float highest = kNoReference, total = 0.0f;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    x[i] = stats[16 * i];
    highest = fmaxf(highest, x[i].x);
  }
#pragma unroll
  for (int i = 0; i < kParts; ++i) total = fmaf(exp2_approx(x[i].x - highest), x[i].y, total);
  return make_float2(highest, total);
}

// Of two.
NSAI_DEVICE float2 add_stats(const float2 &a, const float2 &b) {
  const float highest = fmaxf(a.x, b.x);
  return make_float2(highest,
                     fmaf(exp2_approx(b.x - highest), b.y, exp2_approx(a.x - highest) * a.y));
}

// Natural log of the sum of exponentials, -inf for an empty row.
NSAI_DEVICE float softmax_lse(float reference, float total) {
  return total == 0.0f ? kMinusInf : (reference + log2_approx(total)) * kLn2;
}
