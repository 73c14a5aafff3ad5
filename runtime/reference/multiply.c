/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The matrix product and the widening of storage dtypes, written once with compiler vectors of
 * eight doubles and compiled for the instruction sets that x86-64 processors have; elsewhere the
 * compiler splits the vectors as the target needs. Each element of a product is one chain of sums
 * over k in ascending order, whatever its place in a block: results do not depend on how rows are
 * grouped.
 */
#include "internal.h"
#include "tensor.h"

#define INLINE static inline __attribute__((always_inline))

/* Unaligned and aliasing any double: they are windows onto plain arrays. */
typedef double vector __attribute__((vector_size(8 * NSAI_REF_LANES), aligned(8), may_alias));
typedef float floats __attribute__((vector_size(4 * NSAI_REF_LANES), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * NSAI_REF_LANES), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(2 * NSAI_REF_LANES), aligned(2), may_alias));

/* Four rows by two vectors are eight independent chains of sums: enough to hide the latency of the
 * fused multiply-add (4 cycles), and they fit into sixteen registers of half the width. Rows beyond
 * m repeat the last one and are not stored. */
INLINE void multiply_block(const nsai_ref_product *p, int64_t row, int64_t column, bool two) {
  int64_t last = p->m - 1, k_step = p->a_column, b_step = p->b_row;
  int64_t r1 = row + 1 < last ? row + 1 : last, r2 = row + 2 < last ? row + 2 : last;
  int64_t r3 = row + 3 < last ? row + 3 : last;
  const double *a0 = p->a + row * p->a_row, *a1 = p->a + r1 * p->a_row;
  const double *a2 = p->a + r2 * p->a_row, *a3 = p->a + r3 * p->a_row;
  double *c0 = p->c + row * p->c_row + column, *c1 = p->c + r1 * p->c_row + column;
  double *c2 = p->c + r2 * p->c_row + column, *c3 = p->c + r3 * p->c_row + column;
  const double *b = p->b + column;
  vector s0 = *(vector *)c0, s1 = *(vector *)c1, s2 = *(vector *)c2, s3 = *(vector *)c3;
  vector t0 = s0, t1 = s1, t2 = s2, t3 = s3;
  if (two) {
    t0 = ((vector *)c0)[1];
    t1 = ((vector *)c1)[1];
    t2 = ((vector *)c2)[1];
    t3 = ((vector *)c3)[1];
  }
  for (int64_t k = 0; k < p->k; k++, b += b_step) {
    int64_t at = k * k_step;
    vector b0 = *(const vector *)b;
    s0 += a0[at] * b0;
    s1 += a1[at] * b0;
    s2 += a2[at] * b0;
    s3 += a3[at] * b0;
    if (two) {
      vector b1 = ((const vector *)b)[1];
      t0 += a0[at] * b1;
      t1 += a1[at] * b1;
      t2 += a2[at] * b1;
      t3 += a3[at] * b1;
    }
  }
  /* Repeated rows hold the same values, so that storing them again, last first, changes nothing. */
  *(vector *)c3 = s3;
  *(vector *)c2 = s2;
  *(vector *)c1 = s1;
  *(vector *)c0 = s0;
  if (two) {
    ((vector *)c3)[1] = t3;
    ((vector *)c2)[1] = t2;
    ((vector *)c1)[1] = t1;
    ((vector *)c0)[1] = t0;
  }
}

INLINE void multiply(const nsai_ref_product *p) {
  int64_t column = 0;
  for (; column + 2 * NSAI_REF_LANES <= p->n; column += 2 * NSAI_REF_LANES)
    for (int64_t row = 0; row < p->m; row += 4) multiply_block(p, row, column, true);
  for (; column < p->n; column += NSAI_REF_LANES)
    for (int64_t row = 0; row < p->m; row += 4) multiply_block(p, row, column, false);
}

INLINE void widen_bf16(const uint16_t *source, int64_t count, double *target) {
  int64_t i = 0;
  for (; i + NSAI_REF_LANES <= count; i += NSAI_REF_LANES) {
    words bits = __builtin_convertvector(*(const halves *)(source + i), words) << 16;
    *(vector *)(target + i) = __builtin_convertvector((floats)bits, vector);
  }
  for (; i < count; i++) target[i] = nsai_float_from_bf16(source[i]);
}

/* As nsai_float_from_f16, with the three cases chosen by masks. */
INLINE void widen_f16(const uint16_t *source, int64_t count, double *target) {
  int64_t i = 0;
  for (; i + NSAI_REF_LANES <= count; i += NSAI_REF_LANES) {
    words half = __builtin_convertvector(*(const halves *)(source + i), words);
    words sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    words subnormal = (words)(magnitude < 0x400u), special = (words)(magnitude >= 0x7c00u);
    words normal = (magnitude << 13) + (112u << 23) + (special & (112u << 23));
    floats small = __builtin_convertvector(magnitude, floats) * 0x1p-24f;
    words bits = sign | (normal & ~subnormal) | ((words)small & subnormal);
    *(vector *)(target + i) = __builtin_convertvector((floats)bits, vector);
  }
  for (; i < count; i++) target[i] = nsai_float_from_f16(source[i]);
}

INLINE void widen_f32(const float *source, int64_t count, double *target) {
  int64_t i = 0;
  for (; i + NSAI_REF_LANES <= count; i += NSAI_REF_LANES)
    *(vector *)(target + i) = __builtin_convertvector(*(const floats *)(source + i), vector);
  for (; i < count; i++) target[i] = source[i];
}

INLINE void widen(int32_t dtype, const void *source, int64_t count, double *target) {
  if (dtype == NSA_BF16)
    widen_bf16(source, count, target);
  else if (dtype == NSA_F16)
    widen_f16(source, count, target);
  else
    widen_f32(source, count, target);
}

static void multiply_plain(const nsai_ref_product *product) { multiply(product); }

static void widen_plain(int32_t dtype, const void *source, int64_t count, double *target) {
  widen(dtype, source, count, target);
}

static const nsai_ref_ops plain_ops = { multiply_plain, widen_plain };

#if defined(__x86_64__)

__attribute__((target("avx512f"))) static void multiply_avx512(const nsai_ref_product *product) {
  multiply(product);
}

__attribute__((target("avx512f"))) static void widen_avx512(int32_t dtype, const void *source,
                                                            int64_t count, double *target) {
  widen(dtype, source, count, target);
}

static const nsai_ref_ops avx512_ops = { multiply_avx512, widen_avx512 };

__attribute__((target("avx2,fma"))) static void multiply_avx2(const nsai_ref_product *product) {
  multiply(product);
}

__attribute__((target("avx2,fma"))) static void widen_avx2(int32_t dtype, const void *source,
                                                           int64_t count, double *target) {
  widen(dtype, source, count, target);
}

static const nsai_ref_ops avx2_ops = { multiply_avx2, widen_avx2 };

const nsai_ref_ops *nsai_ref_ops_get(int rank) {
  const nsai_ref_ops *supported[4] = { NULL };
  int count = 0;
  if (__builtin_cpu_supports("avx512f")) supported[count++] = &avx512_ops;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    supported[count++] = &avx2_ops;
  supported[count++] = &plain_ops;
  return rank < count ? supported[rank] : NULL;
}

#else

const nsai_ref_ops *nsai_ref_ops_get(int rank) { return rank == 0 ? &plain_ops : NULL; }

#endif
