/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Reads the test vectors in tests/vectors: NAME.json describes, NAME.bin contains the tensors.
 */
#ifndef TEST_VECTOR_FILE_H
#define TEST_VECTOR_FILE_H

#include <nsa/base.h>

typedef struct vector_field {
  char key[24], value[32]; /* strings without their quotes */
} vector_field;

typedef struct vector_tensor {
  char name[24];
  nsa_tensor tensor; /* contiguous, into the file's data; ndim 1 to 4 */
} vector_tensor;

typedef struct vector_file {
  vector_field fields[40];
  int field_count;
  vector_tensor tensors[64];
  int tensor_count;
  void *data;
} vector_file;

/* Reads a case of the folder that NSA_TEST_VECTORS names. A format error fails the test. */
void vector_file_read(vector_file *file, const char *name);
void vector_file_free(vector_file *file);

/* A field of "case", or `absent`. */
double vector_file_number(const vector_file *file, const char *key, double absent);
const char *vector_file_text(const vector_file *file, const char *key, const char *absent);

/* A tensor, or one with data NULL. */
nsa_tensor vector_file_find(const vector_file *file, const char *name);

/* The same with the first two dims [B, S] merged, as packed batches are. */
nsa_tensor vector_file_packed(const vector_file *file, const char *name);

#endif /* TEST_VECTOR_FILE_H */
