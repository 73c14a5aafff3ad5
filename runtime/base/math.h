/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Integer arithmetic that the standard library lacks. The functions do not check for overflow:
 * callers pass sizes that nsai_problem or the tensor checks have bounded.
 */
#ifndef NSAI_BASE_MATH_H
#define NSAI_BASE_MATH_H

#include <stdint.h>

/* a / b rounded up, for a >= 0 and b > 0. */
static inline int64_t nsai_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* The smallest multiple of `step` that is at least x, for x >= 0 and step > 0. */
static inline int64_t nsai_round_up(int64_t x, int64_t step) {
  return (x + step - 1) / step * step;
}

static inline int64_t nsai_larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t nsai_smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static inline uint32_t nsai_smaller_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

#endif
