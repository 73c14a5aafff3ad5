/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A case of tests/vectors as a call of the library.
 */
#ifndef TEST_VECTOR_CASE_H
#define TEST_VECTOR_CASE_H

#include "geometry.h"
#include "vector_file.h"

#include <nsa/attention.h>
#include <stddef.h>

typedef struct vector_case {
  const char *name;
  vector_file file;
  nsai_geometry geometry;
  nsa_batch batch;
  nsa_io io;                     /* inputs only */
  int64_t seqs, queries, kv_len; /* B, Sq, S */
  int32_t *cu;
} vector_case;

void vector_case_load(vector_case *c, const char *name);
void vector_case_free(vector_case *c);

/* i32 [count] over `values`. */
nsa_tensor vector_lengths(int32_t *values, int64_t count);

/* All 0xff: NaN, -1, so that what is not written fails. */
void *vector_bytes(int64_t count, size_t size);

#endif /* TEST_VECTOR_CASE_H */
