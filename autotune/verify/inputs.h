/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The single generator of inputs, with fixed seeds, so that timed and verified inputs are the
 * same. Tensors are host views of f32, bf16, fp16 or e4m3 (codes with a scale of 1) with any outer
 * strides. Results do not depend on `threads`.
 */
#ifndef NSAI_VERIFY_INPUTS_H
#define NSAI_VERIFY_INPUTS_H

#include "verify/case.h"

typedef struct nsai_verify_inputs {
  const nsai_model *model;
  nsai_verify_fill fill;
  uint64_t seed;
  int threads;
} nsai_verify_inputs;

/* q, keys and values [T, H, D]. With NSAI_VERIFY_FILL_CORRELATED, queries are AR(1) processes
 * per head with a component that the heads of a group share. Keys are generated so that
 * mean-pooled ones (l tokens, every d) have a correlation of 0.9 with their neighbours and give
 * logits of standard deviation 2 at the scale Dk^-1/2. `branch` gives each pair of K and V its
 * own numbers. */
void nsai_verify_fill_queries(const nsai_verify_inputs *in, const nsa_tensor *q);
void nsai_verify_fill_keys(const nsai_verify_inputs *in, int branch, const nsa_tensor *k);
void nsai_verify_fill_values(const nsai_verify_inputs *in, int branch, const nsa_tensor *v);

/* Queries [T, Hi, Di] and keys [T, 1, Di] of an index. With NSAI_VERIFY_FILL_CORRELATED both are AR(1)
 * processes, so that adjacent tokens score alike; with NSAI_VERIFY_FILL_CONSTANT all keys are equal. */
void nsai_verify_fill_index_q(const nsai_verify_inputs *in, const nsa_tensor *index_q);
void nsai_verify_fill_k_idx(const nsai_verify_inputs *in, const nsa_tensor *k_idx);

/* Normally distributed numbers times `scale`, with ndim 1 to 3; `stream` identifies the tensor. */
void nsai_verify_fill_normal(const nsai_verify_inputs *in, uint64_t stream, float scale,
                             const nsa_tensor *t);

/* A contiguous tensor without data, and its size. */
nsa_tensor nsai_verify_tensor(int32_t dtype, int32_t ndim, const int64_t *shape);
size_t nsai_verify_tensor_bytes(const nsa_tensor *t);

/* The same with zeros in host memory; the caller frees `out->data`. NSA_E_NOMEM. */
nsa_status nsai_verify_tensor_alloc(int32_t dtype, int32_t ndim, const int64_t *shape,
                                    nsa_tensor *out);

/* Elements of a host tensor, widened or rounded once. `offset` counts elements; nsai_verify_at is
 * of a tensor [rows, heads, columns]. */
float nsai_verify_load(const nsa_tensor *t, int64_t offset);
double nsai_verify_at(const nsa_tensor *t, int64_t row, int64_t head, int64_t i);
void nsai_verify_store(const nsa_tensor *t, int64_t offset, float value);

/* Copies `rows` rows of `from` [T, H, D], after skipping `skip` rows, to the beginning of `to`. */
void nsai_verify_copy_rows(const nsa_tensor *to, const nsa_tensor *from, int64_t skip,
                           int64_t rows);

/* The blocks of a token row and KV head in host block indices [T, Hkv, n]. */
const int32_t *nsai_verify_index_row(const nsa_tensor *index, int64_t t, int64_t head);

/* How similar the selections of adjacent tokens are. */
typedef struct nsai_verify_overlap {
  /* mean fraction of a token's free (not forced) blocks that the previous token selected too */
  double r;
  double u4, u8; /* mean size of the union of the selections of 4 and 8 adjacent tokens */
  int64_t rows;  /* token rows with a full selection; 0: nothing could be measured */
} nsai_verify_overlap;

/* Measures it from block indices [T, Hkv, n] in host memory: one sequence, its tokens at
 * positions 0 .. T-1 plus `first`. */
void nsai_verify_overlap_measure(const nsai_model *g, const nsa_tensor *index, int64_t first,
                                 nsai_verify_overlap *out);

#endif /* NSAI_VERIFY_INPUTS_H */
