/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What rounding alone makes of a branch's rows: why nsacheck verifies no fewer than eight together
 * (LEAST_ROWS of tests/check/cache/compare.c).
 */
#include "support/cmocka_all.h"

#include "base/float16.h"
#include "verify/compare.h"

#include <math.h>

#define GROUPS 2000
#define ROWS 8
#define DIM 64
#define MOST_KEYS 96

static uint64_t state_of_random = 1;

static double uniform(void) {
  state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
  return ((double)(state_of_random >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(void) {
  return sqrt(-2 * log(uniform())) * cos(2 * 3.14159265358979323846 * uniform());
}

static double rounded(double x) { return (double)nsai_float_from_bf16(nsai_bf16_from_double(x)); }

/* Adds the squares of a row's error and of the row: softmax over 2 to 96 random keys, of which P
 * and O are rounded to bf16, and nothing else. P is relative to a reference that may lie below the
 * greatest score, as in core/softmax.cuh: no key's P is exact. */
static void add_row(double *error, double *norm) {
  const int keys = 2 + (int)(uniform() * (MOST_KEYS - 1));
  double s[MOST_KEYS], highest = -INFINITY, sum = 0, o[DIM] = { 0 }, want[DIM] = { 0 };
  for (int i = 0; i < keys; i++) highest = fmax(highest, s[i] = normal());
  const double reference = highest - log(2) * uniform();
  for (int i = 0; i < keys; i++) {
    const double p = exp(s[i] - reference), coarse = rounded(p);
    sum += p;
    for (int c = 0; c < DIM; c++) {
      const double v = normal();
      want[c] += p * v;
      o[c] += coarse * v;
    }
  }
  for (int c = 0; c < DIM; c++) {
    const double x = rounded(o[c] / sum) - want[c] / sum;
    *error += x * x;
    *norm += want[c] * want[c] / (sum * sum);
  }
}

static void test_eight_rows(void **state) {
  const double limit = nsai_verify_tolerance_of(NSAI_VERIFY_STAGE, NSA_BF16).relative;
  double worst_row = 0, worst_group = 0;
  for (int g = 0; g < GROUPS; g++) {
    double error = 0, norm = 0;
    for (int r = 0; r < ROWS; r++) {
      double e = 0, n = 0;
      add_row(&e, &n);
      worst_row = fmax(worst_row, sqrt(e / n) / limit);
      error += e, norm += n;
    }
    worst_group = fmax(worst_group, sqrt(error / norm) / limit);
  }
  print_message("of its limit: a row %.2f, eight %.2f\n", worst_row, worst_group);
  assert_true(worst_row > 1);
  assert_true(worst_group < 1);
}

int main(void) {
  const struct CMUnitTest tests[] = { cmocka_unit_test(test_eight_rows) };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
