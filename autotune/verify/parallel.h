/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A parallel loop, and the counter-based random numbers of all checks. Numbers depend only on
 * (key, index), so no result depends on the number of threads.
 */
#ifndef NSAI_VERIFY_PARALLEL_H
#define NSAI_VERIFY_PARALLEL_H

#include <stdint.h>

/* Calls fn(user, i) for 0 <= i < count from up to `threads` threads; returns when all are done. */
void nsai_verify_parallel(int threads, int64_t count, void (*fn)(void *user, int64_t index),
                          void *user);

/* splitmix64's finaliser: every output bit depends on every input bit. */
static inline uint64_t nsai_verify_mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* A key for stream `stream` of `seed`. */
static inline uint64_t nsai_verify_key(uint64_t seed, uint64_t stream) {
  return nsai_verify_mix(nsai_verify_mix(seed + 0x9e3779b97f4a7c15u) +
                         stream * 0xd1342543de82ef95u);
}

static inline uint64_t nsai_verify_bits(uint64_t key, uint64_t index) {
  return nsai_verify_mix(key + (index + 1) * 0x9e3779b97f4a7c15u);
}

/* Nearly normal, mean 0, variance 1: the sum of four 16-bit uniforms, cut at 3.46. One hash per
 * number makes 2 GB of inputs in a second; the `large` fill covers the far tail. */
static inline float nsai_verify_normal(uint64_t key, uint64_t index) {
  uint64_t bits = nsai_verify_bits(key, index);
  int32_t sum = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) +
                (int32_t)(bits >> 32 & 0xffff) + (int32_t)(bits >> 48);
  const float unit = 1.7320508f / 65536.0f; /* variance of the sum is 4/12 of 65536^2 */
  return ((float)sum - 131070.0f) * unit;
}

/* A stateful generator for choices (lengths, dimensions), whose order matters. */
typedef struct nsai_verify_random {
  uint64_t key, next;
} nsai_verify_random;

/* Uniform in lo .. hi, both included. */
static inline int64_t nsai_verify_pick(nsai_verify_random *random, int64_t lo, int64_t hi) {
  return lo + (int64_t)(nsai_verify_bits(random->key, random->next++) % (uint64_t)(hi - lo + 1));
}

#endif /* NSAI_VERIFY_PARALLEL_H */
