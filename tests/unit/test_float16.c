/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * bf16, fp16 and e4m3: every pattern there and back, every midpoint between neighbours, and the vector
 * forms of the CPU device against the scalar ones.
 */
#include "support/cmocka_all.h"

#include "base/float16.h"
#include "reference/internal.h"

#include <math.h>

/* A storage format: sign, exponent and mantissa bits, as IEEE 754 has them. */
typedef struct format {
  int mantissa, bias, special; /* bits; of the exponent; exponent of inf and NaN */
  int32_t dtype;
  float (*widen)(uint16_t half);
  uint16_t (*from_float)(float value);
  uint16_t (*from_double)(double value);
} format;

static const format formats[] = {
  { 7, 127, 255, NSA_BF16, nsai_float_from_bf16, nsai_bf16_from_float, nsai_bf16_from_double },
  { 10, 15, 31, NSA_F16, nsai_float_from_f16, nsai_f16_from_float, nsai_f16_from_double },
};

/* The value of a pattern by the definition of the format. */
static double value_of(const format *f, uint16_t pattern) {
  int exponent = (pattern & 0x7fff) >> f->mantissa, mantissa = pattern & ((1 << f->mantissa) - 1);
  double magnitude;
  if (exponent == f->special)
    magnitude = mantissa ? NAN : INFINITY;
  else if (exponent == 0)
    magnitude = ldexp(mantissa, 1 - f->bias - f->mantissa);
  else
    magnitude = ldexp(mantissa + (1 << f->mantissa), exponent - f->bias - f->mantissa);
  return pattern & 0x8000 ? -magnitude : magnitude;
}

static void test_patterns(void **state) {
  const format *f = *state;
  for (uint32_t i = 0; i < 0x10000; i++) {
    uint16_t pattern = (uint16_t)i;
    double value = value_of(f, pattern);
    float wide = f->widen(pattern);
    if (isnan(value)) {
      assert_true(isnan(wide));
      assert_true(isnan(f->widen(f->from_float(wide))));
      assert_true(isnan(f->widen(f->from_double(wide))));
      continue;
    }
    assert_true(wide == value && !signbit(wide) == !signbit(value));
    assert_int_equal(f->from_float(wide), pattern);
    assert_int_equal(f->from_double(value), pattern);
  }
}

/* Between two neighbours: the midpoint goes to the even one, a hair beside it to the nearer one.
 * The hair is below float's resolution for the double form, which rounding twice would lose. */
static void test_midpoints(void **state) {
  const format *f = *state;
  uint16_t infinity = (uint16_t)(f->special << f->mantissa);
  for (uint16_t low = 0; low < infinity; low++) {
    uint16_t high = low + 1, even = low & 1 ? high : low;
    double step = value_of(f, 1) * ldexp(1, low >> f->mantissa ? (low >> f->mantissa) - 1 : 0);
    double middle = value_of(f, low) + step / 2, hair = step * 0x1p-30;
    for (int sign = 0; sign < 2; sign++) {
      uint16_t bit = (uint16_t)(sign << 15);
      double s = sign ? -1 : 1;
      assert_int_equal(f->from_double(s * middle), even | bit);
      assert_int_equal(f->from_double(s * (middle - hair)), low | bit);
      assert_int_equal(f->from_double(s * (middle + hair)), high | bit);
      float exact = (float)(s * middle);
      if ((double)exact != s * middle) continue; /* half the smallest bf16 is no float */
      assert_int_equal(f->from_float(exact), even | bit);
      assert_int_equal(f->from_float(nextafterf(exact, 0)), low | bit);
      assert_int_equal(f->from_float(nextafterf(exact, (float)(s * INFINITY))), high | bit);
    }
  }
}

static void test_extremes(void **state) {
  assert_int_equal(nsai_bf16_from_double(1e300), 0x7f80);
  assert_int_equal(nsai_bf16_from_double(-1e-300), 0x8000);
  assert_int_equal(nsai_f16_from_double(1e300), 0x7c00);
  assert_int_equal(nsai_f16_from_double(65519.99), 0x7bff);
  assert_int_equal(nsai_f16_from_float(65520.0f), 0x7c00);
  assert_int_equal(nsai_f16_from_double(0x1p-25), 0);
  assert_int_equal(nsai_f16_from_double(0x1.0000000001p-25), 1);
  /* 1 + 2^-8 + 2^-40: to float first would give the tie 1 + 2^-8, and then 1. */
  assert_int_equal(nsai_bf16_from_double(1 + 0x1p-8 + 0x1p-40), 0x3f81);
}

static void test_widen(void **state) {
  const format *f = *state;
  uint16_t *source = malloc(0x10000 * sizeof *source);
  double *target = malloc(0x10000 * sizeof *target);
  assert_true(source && target);
  for (uint32_t i = 0; i < 0x10000; i++) source[i] = (uint16_t)i;
  const nsai_ref_ops *ops;
  for (int rank = 0; (ops = nsai_ref_ops_get(rank)); rank++) {
    ops->widen(f->dtype, source, 0x10000 - 3, target); /* a rest that fills no vector */
    for (uint32_t i = 0; i < 0x10000 - 3; i++) {
      float want = f->widen((uint16_t)i);
      assert_true(isnan(want) ? isnan(target[i]) : target[i] == want);
      assert_true(isnan(want) || !signbit(target[i]) == !signbit(want));
    }
  }
  free(source);
  free(target);
}

/* Every code of e4m3, the midpoints of neighbours and what is a hair beside, saturation, NaN. */
static void test_e4m3(void **state) {
  double wide[256];
  uint8_t codes[256];
  for (int i = 0; i < 256; i++) {
    uint8_t code = codes[i] = (uint8_t)i;
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    float got = nsai_float_from_e4m3(code);
    if ((code & 0x7f) == 0x7f) {
      assert_true(isnan(got));
      assert_int_equal(nsai_e4m3_from_float(got), 0x7f);
      continue;
    }
    assert_true(got == (float)(code & 0x80 ? -value : value) && !signbit(got) == !(code & 0x80));
    assert_int_equal(nsai_e4m3_from_float(got), code);
    assert_int_equal(nsai_e4m3_from_double((double)got), code);
    if (code >= 0x7e) continue;
    float next = nsai_float_from_e4m3((uint8_t)(code + 1)), middle = (got + next) / 2; /* exact */
    uint8_t even = code & 1 ? code + 1 : code, above = (uint8_t)(code + 1);
    for (int sign = 0; sign < 2; sign++) {
      float s = sign ? -1.0f : 1.0f;
      uint8_t bit = sign ? 0x80 : 0;
      assert_int_equal(nsai_e4m3_from_float(s * middle), even | bit);
      assert_int_equal(nsai_e4m3_from_float(s * nextafterf(middle, 0)), code | bit);
      assert_int_equal(nsai_e4m3_from_float(s * nextafterf(middle, INFINITY)), above | bit);
      assert_int_equal(nsai_e4m3_from_double((double)s * ((double)middle * (1 + 0x1p-40))),
                       above | bit);
    }
  }
  assert_int_equal(nsai_e4m3_from_float(464.0f), 0x7e);
  assert_int_equal(nsai_e4m3_from_float(1e30f), 0x7e);
  assert_int_equal(nsai_e4m3_from_float(-INFINITY), 0xfe);
  assert_int_equal(nsai_e4m3_from_float(-NAN), 0x7f);
  assert_int_equal(nsai_e4m3_from_double(1e300), 0x7e);
  const nsai_ref_ops *ops;
  for (int rank = 0; (ops = nsai_ref_ops_get(rank)); rank++) {
    ops->widen(NSA_E4M3, codes, 253, wide);
    for (int i = 0; i < 253; i++) {
      double want = (double)nsai_float_from_e4m3((uint8_t)i);
      assert_true(isnan(want) ? isnan(wide[i]) : wide[i] == want);
    }
  }
}

/* Every shape around the block sizes, with strides, against the sum as it is written. */
static void test_multiply(void **state) {
  enum { M = 9, K = 13, N = 24 };
  double a[M * K], b[K * N], c[M * N];
  for (int i = 0; i < M * K; i++) a[i] = (i * 37 % 101) - 50;
  for (int i = 0; i < K * N; i++) b[i] = (i * 53 % 97) - 48;
  const nsai_ref_ops *ops;
  for (int rank = 0; (ops = nsai_ref_ops_get(rank)); rank++)
    for (int m = 1; m <= M; m++)
      for (int k = 0; k <= K; k++)
        for (int n = NSAI_REF_LANES; n <= N; n += NSAI_REF_LANES)
          for (int transposed = 0; transposed < 2; transposed++) {
            nsai_ref_product p = { .m = m, .k = k, .n = n, .a = a, .b = b, .b_row = N, .c = c };
            p.a_row = transposed ? 1 : K;
            p.a_column = transposed ? M : 1;
            p.c_row = N;
            for (int i = 0; i < M * N; i++) c[i] = i;
            ops->multiply(&p);
            for (int i = 0; i < M * N; i++) {
              double want = i;
              if (i / N < m && i % N < n)
                for (int j = 0; j < k; j++)
                  want += a[i / N * p.a_row + j * p.a_column] * b[j * N + i % N];
              assert_true(c[i] == want); /* small integers: exact */
            }
          }
}

int main(void) {
  void *bf16 = (void *)(uintptr_t)&formats[0], *f16 = (void *)(uintptr_t)&formats[1];
  const struct CMUnitTest tests[] = {
    { "bf16 patterns", test_patterns, NULL, NULL, bf16 },
    { "f16 patterns", test_patterns, NULL, NULL, f16 },
    { "bf16 midpoints", test_midpoints, NULL, NULL, bf16 },
    { "f16 midpoints", test_midpoints, NULL, NULL, f16 },
    { "bf16 widen", test_widen, NULL, NULL, bf16 },
    { "f16 widen", test_widen, NULL, NULL, f16 },
    cmocka_unit_test(test_extremes),
    cmocka_unit_test(test_e4m3),
    cmocka_unit_test(test_multiply),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
