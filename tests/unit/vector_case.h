/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A case of tests/vectors as a call of the library.
 */
#ifndef TEST_VECTOR_CASE_H
#define TEST_VECTOR_CASE_H

#include "model/model.h"
#include "support/init.h"
#include "vector_file.h"

#include <nsa/attention.h>
#include <stddef.h>

/* Lists the tests of all cases: `test` finds the name in its state. */
#define VECTOR_CASE(test, name)                                                                    \
  { #name, test, NULL, NULL, (void *)(uintptr_t) #name }
#define VECTOR_CASES(test)                                                                         \
  VECTOR_CASE(test, chunk), VECTOR_CASE(test, equal_blocks), VECTOR_CASE(test, gate_logits),       \
      VECTOR_CASE(test, gate_mlp), VECTOR_CASE(test, group16), VECTOR_CASE(test, kv_per_branch),   \
      VECTOR_CASE(test, linear_phi), VECTOR_CASE(test, mlp_gelu), VECTOR_CASE(test, mlp_relu),     \
      VECTOR_CASE(test, mlp_silu), VECTOR_CASE(test, odd_length),                                  \
      VECTOR_CASE(test, nothing_forced), VECTOR_CASE(test, shorter_than_block),                    \
      VECTOR_CASE(test, tiny), VECTOR_CASE(test, wide_qk)

typedef struct vector_case {
  const char *name;
  vector_file file;
  nsai_model model;
  nsa_batch batch;
  nsa_io io;                     /* inputs only */
  int64_t seqs, queries, kv_len; /* B, Sq, S */
  int32_t *cu;
} vector_case;

void vector_case_load(vector_case *c, const char *name);
void vector_case_free(vector_case *c);

/* i32 [count] over `values`. */
nsa_tensor vector_lengths(int32_t *values, int64_t count);

/* All bytes 0xff (NaN or -1), so that memory that is not written makes the test fail. */
void *vector_bytes(int64_t count, size_t size);

#endif /* TEST_VECTOR_CASE_H */
