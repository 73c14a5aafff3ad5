/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The arithmetic by which kernels convert codes of E4M3 on architectures without an instruction
 * (params/e4m3.h), against the definition of the format: every code, every midpoint between two
 * values and the floats next to it, and every float exponent.
 */
#include "support/cmocka_all.h"

#include "base/float16.h"
#include "params/e4m3.h"

#include <math.h>

#define GREATEST 0x7e /* 448 */

/* The value of a code. */
static double value_of(unsigned code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  double x = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
  if ((code & 0x7f) == 0x7f) x = NAN;
  return code & 0x80 ? -x : x;
}

/* A half of a pair, as kernels use it: times the unit, in the format's own arithmetic. */
static float f16_of(unsigned half) {
  const float x = nsai_float_from_f16((uint16_t)half);
  return nsai_float_from_f16(
      nsai_f16_from_float(x * nsai_float_from_f16((uint16_t)NSAI_E4M3_UNIT_F16)));
}
static float bf16_of(unsigned half) {
  const float x = nsai_float_from_bf16((uint16_t)half);
  return nsai_float_from_bf16(
      nsai_bf16_from_float(x * nsai_float_from_bf16((uint16_t)NSAI_E4M3_UNIT_BF16)));
}

static void check_value(const char *format, unsigned code, unsigned other, float got) {
  const double wanted = value_of(code);
  if (isnan(wanted) ? !isnan(got) : (double)got != wanted || !signbit(got) != !signbit(wanted))
    fail_msg("%s: code 0x%02x beside 0x%02x gives %g, its value is %g", format, code, other,
             (double)got, wanted);
}

/* Both halves of a pair, so that neither disturbs the other. */
static void every_pair_of_codes(void **state) {
  (void)state;
  for (unsigned first = 0; first < 256; first++)
    for (unsigned second = 0; second < 256; second++) {
      const unsigned pair = first << 8 | second << 24;
      const unsigned f16 = nsai_e4m3_pair_f16(pair), bf16 = nsai_e4m3_pair_bf16(pair);
      check_value("fp16", first, second, f16_of(f16 & 0xffff));
      check_value("fp16", second, first, f16_of(f16 >> 16));
      check_value("bf16", first, second, bf16_of(bf16 & 0xffff));
      check_value("bf16", second, first, bf16_of(bf16 >> 16));
    }
}

static unsigned code_of(float x) { return nsai_e4m3_of(nsai_bits_from_float(x)); }

static void check_code(float x, unsigned wanted) {
  if (code_of(x) != wanted || code_of(-x) != (wanted | 0x80))
    fail_msg("%a gives 0x%02x and 0x%02x, expected 0x%02x and its negative", (double)x, code_of(x),
             code_of(-x), wanted);
}

/* Each code, and what rounds up or down between two neighbours; a tie goes to the even one. */
static void every_code_and_midpoint(void **state) {
  (void)state;
  for (unsigned code = 0; code < GREATEST; code++) {
    const float low = (float)value_of(code), high = (float)value_of(code + 1);
    const float middle = (low + high) / 2; /* exact */
    check_code(low, code);
    check_code(nextafterf(low, INFINITY), code);
    check_code(nextafterf(middle, 0), code);
    check_code(middle, code % 2 ? code + 1 : code);
    check_code(nextafterf(middle, INFINITY), code + 1);
    check_code(nextafterf(high, 0), code + 1);
  }
}

static void large_values_saturate(void **state) {
  (void)state;
  const float large[] = { 448, 449, 464, 480, 512, 65504, 0x1p100f, 0x1.fffffep127f, INFINITY };
  for (size_t i = 0; i < sizeof large / sizeof *large; i++) check_code(large[i], GREATEST);
}

static void small_values_vanish(void **state) {
  (void)state;
  check_code(0, 0);
  check_code(0x1p-10f, 0); /* a tie with 2^-9 */
  check_code(nextafterf(0x1p-10f, 1), 1);
  for (int exponent = -149; exponent < -10; exponent++) check_code(ldexpf(1, exponent), 0);
}

static void nan_stays(void **state) {
  (void)state;
  const uint32_t nans[] = { 0x7fc00000, 0xffc00000, 0x7f800001, 0xffffffff };
  for (size_t i = 0; i < sizeof nans / sizeof *nans; i++)
    assert_int_equal(nsai_e4m3_of(nans[i]), 0x7f);
}

/* The CPU device and the kernels store the same codes. */
static void agrees_with_the_cpu_device(void **state) {
  (void)state;
  for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 40503) {
    const float x = nsai_float_from_bits((uint32_t)bits);
    if (nsai_e4m3_of((unsigned)bits) != nsai_e4m3_from_float(x))
      fail_msg("%a: 0x%02x and 0x%02x", (double)x, nsai_e4m3_of((unsigned)bits),
               nsai_e4m3_from_float(x));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_pair_of_codes),
    cmocka_unit_test(every_code_and_midpoint),
    cmocka_unit_test(large_values_saturate),
    cmocka_unit_test(small_values_vanish),
    cmocka_unit_test(nan_stays),
    cmocka_unit_test(agrees_with_the_cpu_device),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
