// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Online softmax over the rows of an m16 tile, in base 2, on C fragments of mma.m16n8k16
// (core/mma.cuh). A lane holds rows `group` and `group + 8`; its quad (the four lanes of a group)
// shares them.
//
// Each row keeps a reference exponent and a sum of 2^(score - reference). The usual form makes the
// running maximum the reference, which costs a reduction over the quad and a multiplication of all
// of O for each key tile. Here the reference stays until a score
//
//   - exceeds it by so much that the probability is greater than kMaxProbability, or
//   - exceeds it and belongs to a key with a large share of the row (kShare).
//
// After the first tiles neither the reduction nor the multiplication happens. Sums and O are fp32,
// and the rounding of P to Element is relative, so the results are equal up to rounding. The second
// rule makes the P of a row's dominating key 1, which is exact: with only one or two keys of
// significant weight its rounding error (2^-8 in bf16) would not average out.
//
// The maximum of each tile of scores takes 5 % of attend_selected_window_sm90 and of
// attend_compressed_topn_sm90: without it behind the first four tiles they take 7.83 ms (8.28) and
// 9.03 ms (9.47). H200, 64k tokens, 64/4 heads, D 128, correlated inputs. Tried without gain:
// exponents in place of scores, whose greatest is found as integers, three in one instruction (8.84
// and 9.85 ms); limits by the row's sum in place of the lane's (8.30 ms). A lane's sum of
// probabilities cannot replace the maximum. In tiles of 64 keys behind the first four it exceeds
// the limit in some lane of the warp in 28 % of the tiles at a logit deviation of 1, and in 77 % at
// 2 (simulated normal logits), and an infinite one would need the scores again.
//
// Tried and left out: no search in tiles behind a row's first one. Sums of four probabilities are compared
// with a bound by the row's whole sum; only where one exceeds it the warp looks for the greatest, and
// multiplies scores again that have overflowed. Forwards, the search in every tile / that: correlated 16k
// 2.75 / 2.76 ms, 64k 17.62 / 17.46 (in long runs 19.8 / 19.7), 128k 56.2 / 55.6; random 64k 23.47 / 23.31.
// Without any test, which is not safe, both kernels together save 1.1 ms at 64k.
#pragma once
#include "core/types.cuh"

// Largest probability before the reference is raised; far below fp16's limit of 2^16.
constexpr float kMaxProbability = 256.0f;

// A key above the reference whose probability exceeds this share of its row's sum so far becomes
// the reference. A share of 1/3 would find the larger of two dominating keys.
constexpr float kShare = 0.25f;

// The lowest float instead of -inf, so that differences between references or masked scores (-inf)
// are never NaN.
constexpr float kNoReference = -3.402823466e+38f;

// Whether P V takes P as the sum of two Elements, which removes its rounding error. The norm of a
// few columns may be small compared with the values that were summed: with P in bf16, a row of 16
// columns is then off by up to 6e-3, a row of 64 by 3.5e-3 (maximum over 10^5 random rows, rounding
// of O included). P V of so few columns is a small part of the work.
template <class Config>
constexpr bool kSplitP = Config::Element::kPrecision < 11 && Config::kHeadDimV < 64;

// Sums run over this lane's columns only.
struct SoftmaxRows {
  float reference[2] = { kNoReference, kNoReference }; // rows group, group + 8: base-2 exponents
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

// Sum over kLanes adjacent lanes (a power of two); all of them get the result.
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

// Raises the references to the rows' maxima if some raw score of s [16, 8 * kN] has outgrown its
// row's reference (see above); masked scores are -inf. Sums are rescaled. Returns true if O must be
// rescaled too, by softmax_rescale() with `factor`. All 32 lanes take part and get the same answer.
// scale_log2 > 0.
template <int kN>
NSAI_DEVICE bool softmax_grow(SoftmaxRows &rows, float (&factor)[2], const float (&s)[kN][4],
                              float scale_log2) {
  float top[2];     // of this lane's columns
  bool outgrown[2]; // by top; a lane's own sum is at most the row's, so no case is missed
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
    // Raise only rows that outgrew their own reference: the result of a row must not depend on
    // other rows, some of which belong to later tokens.
    // Whether any lane of the quad asks for it.
    bool grows = __ballot_sync(~0u, outgrown[r]) >> (threadIdx.x & 28) & 15;
    float highest = quad_max(top[r]);
    float grown = grows ? highest : rows.reference[r];
    factor[r] = exp2_approx(rows.reference[r] - grown); // 0 for the first keys of a row
    rows.reference[r] = grown;
    rows.sum[r] *= factor[r];
  }
  return true;
}

// sum + factor * x for four columns of O.
NSAI_DEVICE float4 add_scaled(const float4 &sum, float factor, const float4 &x) {
  return make_float4(fmaf(factor, x.x, sum.x), fmaf(factor, x.y, sum.y), fmaf(factor, x.z, sum.z),
                     fmaf(factor, x.w, sum.w));
}

// Rescales o [16, 8 * kM], C fragments, to the new references.
template <int kM> NSAI_DEVICE void softmax_rescale(float (&o)[kM][4], const float (&factor)[2]) {
#pragma unroll
  for (int j = 0; j < kM; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) o[j][c] *= factor[c / 2];
}

// softmax_grow() and softmax_rescale().
template <int kN, int kM>
NSAI_DEVICE void softmax_raise(SoftmaxRows &rows, const float (&s)[kN][4], float (&o)[kM][4],
                               float scale_log2) {
  float factor[2];
  if (softmax_grow(rows, factor, s, scale_log2)) softmax_rescale(o, factor);
}

// Turns scores s [16, 8] into probabilities 2^(scale_log2 * s - reference), 0 where masked, and
// adds them to the sums.
NSAI_DEVICE void softmax_exponentiate(SoftmaxRows &rows, float (&s)[4], float scale_log2) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    s[c] = exp2_approx(fmaf(s[c], scale_log2, -rows.reference[c / 2]));
    rows.sum[c / 2] += s[c];
  }
}

// softmax_raise() and softmax_exponentiate() for a whole tile of scores.
template <int kN, int kM>
NSAI_DEVICE void softmax_step(SoftmaxRows &rows, float (&s)[kN][4], float (&o)[kM][4],
                              float scale_log2) {
  softmax_raise(rows, s, o, scale_log2);
#pragma unroll
  for (int j = 0; j < kN; ++j) softmax_exponentiate(rows, s[j], scale_log2);
}

// Packs the probabilities of 16 keys, the C fragments of two adjacent n8 tiles, into an A fragment
// for P V.
template <class Element>
NSAI_DEVICE void softmax_pack(u32 (&a)[4], const float (&p0)[4], const float (&p1)[4]) {
  a[0] = Element::pack(p0[0], p0[1]);
  a[1] = Element::pack(p0[2], p0[3]);
  a[2] = Element::pack(p1[0], p1[1]);
  a[3] = Element::pack(p1[2], p1[3]);
}

// The rounding error of `a` = softmax_pack(p0, p1), packed the same way.
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

// Combines reference and sum of a row over kParts parts, whose statistics lie 16 apart like the
// rows of a tile.
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

// Combines two.
NSAI_DEVICE float2 add_stats(const float2 &a, const float2 &b) {
  const float highest = fmaxf(a.x, b.x);
  return make_float2(highest,
                     fmaf(exp2_approx(b.x - highest), b.y, exp2_approx(a.x - highest) * a.y));
}

// Natural log of the sum of exponentials; -inf for an empty row.
NSAI_DEVICE float softmax_lse(float reference, float total) {
  return total == 0.0f ? kMinusInf : (reference + log2_approx(total)) * kLn2;
}
