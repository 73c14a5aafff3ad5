/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Integer arithmetic that the standard library lacks.
 *
 * Sizes saturate. Capacities and dimensions are each bounded, but their products are not: 4096 heads,
 * blocks of 4096 tokens and 2^31 tokens need more bytes than 64 bits count. A product or a sum that
 * does not fit is NSAI_SIZE_MAX, and so is every larger one that is made of it here, so formulas need
 * no checks of their own. Whoever takes memory refuses NSAI_SIZE_MAX (plan/workspace.c).
 */
#ifndef NSAI_BASE_MATH_H
#define NSAI_BASE_MATH_H

#include <stddef.h>
#include <stdint.h>

/* a / b rounded up, for a >= 0 and b > 0. */
static inline int64_t nsai_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

#define NSAI_SIZE_MAX INT64_MAX

/* a + b and a * b of sizes, which are >= 0. */
static inline int64_t nsai_size_add(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? NSAI_SIZE_MAX : sum;
}
static inline int64_t nsai_size_mul(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? NSAI_SIZE_MAX : product;
}

/* The product of any number of sizes: NSAI_PRODUCT(rows, m->kv_heads, 4). */
#define NSAI_PRODUCT(...)                                                                          \
  nsai_size_of((const int64_t[]){ __VA_ARGS__ }, sizeof((const int64_t[]){ __VA_ARGS__ }) / 8)
static inline int64_t nsai_size_of(const int64_t factor[], size_t count) {
  int64_t product = 1;
  for (size_t i = 0; i < count; i++)
    if (!factor[i]) return 0; /* whatever the others are */
  for (size_t i = 0; i < count; i++) product = nsai_size_mul(product, factor[i]);
  return product;
}

/* The smallest multiple of `step` that is at least x, for x >= 0 and step > 0. */
static inline int64_t nsai_round_up(int64_t x, int64_t step) {
  const int64_t up = nsai_size_add(x, step - 1);
  return up == NSAI_SIZE_MAX ? up : up / step * step;
}

/* The least common multiple of positive numbers. */
static inline int64_t nsai_common_multiple(int64_t a, int64_t b) {
  int64_t x = a, y = b;
  while (y) {
    const int64_t rest = x % y;
    x = y, y = rest;
  }
  return a / x * b;
}

static inline int64_t nsai_larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t nsai_smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static inline uint32_t nsai_smaller_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

#endif
