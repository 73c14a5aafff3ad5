/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Included by multiply.c once per instruction set, with
 *   VECTOR      doubles of a register: 8, 4 or 2; a compiler given wider vectors than the target
 * has moves them through memory, seventy times slower FORM(name)  the name of this instruction
 * set's function TARGET      the function attribute that allows it and undefines them.
 */

/* Four rows by two registers are eight independent chains of sums: enough to hide the latency of
 * the fused multiply-add (4 cycles), and they fit into sixteen registers. Rows beyond m repeat the
 * last one: they store the same values again. */
TARGET static inline __attribute__((always_inline)) void
FORM(multiply_block)(const nsai_ref_product *p, int64_t row, int64_t column, bool two) {
  /* Unaligned and aliasing any double: windows onto plain arrays. */
  typedef double vector __attribute__((vector_size(8 * VECTOR), aligned(8), may_alias));
  int64_t last = p->m - 1, a_step = p->a_column, b_step = p->b_row;
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
  for (int64_t k = 0, at = 0; k < p->k; k++, at += a_step, b += b_step) {
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

TARGET static void FORM(multiply)(const nsai_ref_product *p) {
  int64_t column = 0;
  for (; column + 2 * VECTOR <= p->n; column += 2 * VECTOR)
    for (int64_t row = 0; row < p->m; row += 4) FORM(multiply_block)(p, row, column, true);
  for (; column < p->n; column += VECTOR)
    for (int64_t row = 0; row < p->m; row += 4) FORM(multiply_block)(p, row, column, false);
}

TARGET static void FORM(widen)(int32_t dtype, const void *source, int64_t count, double *target) {
  typedef double doubles __attribute__((vector_size(8 * VECTOR), aligned(8), may_alias));
  typedef float floats __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));
  typedef uint32_t words __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));
  typedef uint16_t halves __attribute__((vector_size(2 * VECTOR), aligned(2), may_alias));
  const uint16_t *half = source;
  const float *whole = source;
  int64_t i = 0;
  if (dtype == NSA_BF16) {
    for (; i + VECTOR <= count; i += VECTOR) {
      words bits = __builtin_convertvector(*(const halves *)(half + i), words) << 16;
      *(doubles *)(target + i) = __builtin_convertvector((floats)bits, doubles);
    }
    for (; i < count; i++) target[i] = nsai_float_from_bf16(half[i]);
  } else if (dtype == NSA_F16) {
    /* As nsai_float_from_f16, with the three cases chosen by masks. */
    for (; i + VECTOR <= count; i += VECTOR) {
      words pattern = __builtin_convertvector(*(const halves *)(half + i), words);
      words sign = (pattern & 0x8000u) << 16, magnitude = pattern & 0x7fffu;
      words subnormal = (words)(magnitude < 0x400u), special = (words)(magnitude >= 0x7c00u);
      words normal = (magnitude << 13) + (112u << 23) + (special & (112u << 23));
      floats small = __builtin_convertvector(magnitude, floats) * 0x1p-24f;
      words bits = sign | (normal & ~subnormal) | ((words)small & subnormal);
      *(doubles *)(target + i) = __builtin_convertvector((floats)bits, doubles);
    }
    for (; i < count; i++) target[i] = nsai_float_from_f16(half[i]);
  } else {
    for (; i + VECTOR <= count; i += VECTOR)
      *(doubles *)(target + i) = __builtin_convertvector(*(const floats *)(whole + i), doubles);
    for (; i < count; i++) target[i] = whole[i];
  }
}

#undef VECTOR
#undef FORM
#undef TARGET
