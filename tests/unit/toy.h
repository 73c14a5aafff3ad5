/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Small random problems for property tests: a model, a packed batch, and every tensor of a
 * forward in host memory. Allocation failures end the test.
 */
#ifndef TEST_TOY_H
#define TEST_TOY_H

#include "model/model.h"
#include "support/init.h"

#include <nsa/attention.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct toy {
  nsai_model model;
  nsa_batch batch;
  nsa_io io;
  int64_t tokens, kv_tokens;
  uint64_t random;
  void *owned[96];
  int owned_count;
} toy;

/* Hq 6, Hkv 2, Dk 24, Dv 16, l 8, d 4, l' 16, n 4 (1 + 2 forced), w 20, shared K/V, weights, f32.
 */
nsai_model toy_model(nsai_phi_kind phi);

/* One sequence per entry of the lengths. Inputs are random, outputs all NaN or -1. */
void toy_init(toy *t, const nsai_model *model, int32_t seqs, const int32_t *q_len,
              const int32_t *kv_len);
void toy_free(toy *t);

/* A contiguous tensor of the toy: filled with 0xff. */
nsa_tensor toy_tensor(toy *t, int32_t dtype, int32_t ndim, int64_t a, int64_t b, int64_t c);

/* Fills a contiguous tensor with sums of uniform numbers, of unit variance. */
void toy_randomize(toy *t, const nsa_tensor *tensor);

/* i32 [count + 1]: running sums of `lengths`. */
nsa_tensor toy_offsets(toy *t, int32_t count, const int32_t *lengths);

/* New outputs (o, o_branch, lse, block_idx) of `tokens` rows for a copy of io. */
void toy_outputs(toy *t, nsa_io *io, int64_t tokens);

/* Rows begin .. begin+count-1 of a tensor. */
nsa_tensor toy_slice(nsa_tensor tensor, int64_t begin, int64_t count);

/* Fails with `what` unless the first `rows` rows of two contiguous tensors have the same bits. */
void toy_same(const char *what, const nsa_tensor *a, const nsa_tensor *b, int64_t rows);

/* The same for all outputs of two ios. */
void toy_same_outputs(const char *what, const nsa_io *a, const nsa_io *b, int64_t rows);

/* Whether io.block_idx, [T, Hkv, n] or [T, n] of all heads, has the block for a row and KV head. */
bool toy_selects(const toy *t, int64_t row, int64_t head, int64_t block);

static inline float *toy_floats(const nsa_tensor *tensor) { return (float *)tensor->data; }
static inline int32_t *toy_ints(const nsa_tensor *tensor) { return (int32_t *)tensor->data; }

/* An element of a tensor of float32 or of bf16, which is the upper half of a float32. */
static inline double toy_at(const nsa_tensor *t, int64_t a, int64_t b, int64_t c) {
  const int64_t at = a * t->stride[0] + b * t->stride[1] + c;
  if (t->dtype != NSA_BF16) return (double)toy_floats(t)[at];
  const uint32_t bits = (uint32_t)((const uint16_t *)t->data)[at] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return (double)value;
}

/* Elements of a contiguous tensor. */
static inline int64_t toy_count(const nsa_tensor *tensor) {
  return tensor->shape[0] * tensor->stride[0];
}

#endif /* TEST_TOY_H */
