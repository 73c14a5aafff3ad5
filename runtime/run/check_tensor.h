/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One tensor of a caller against what it should be. A refusal names the tensor, says what it is and
 * what was expected.
 */
#ifndef NSAI_RUN_CHECK_TENSOR_H
#define NSAI_RUN_CHECK_TENSOR_H

#include "run/check_run.h"

#define NSAI_ANY ((int64_t)-1) /* a free dimension */

/* dtypes a tensor may have. */
enum {
  NSAI_DTYPE_MODEL = 1,
  NSAI_DTYPE_F32 = 2,
  NSAI_DTYPE_I32 = 4,
  NSAI_DTYPE_I64 = 16,
  NSAI_DTYPE_E4M3 = 64 /* rows of codes, subject to what NSAI_DTYPE_MODEL is */
};

/* Operands of products and biases: of the model's dtype, with any strides, which cuBLASLt takes. */
enum { NSAI_DTYPE_WEIGHT = NSAI_DTYPE_MODEL | 8 };

/* Gradients that kernels read and write in rows: 16-bit ones are subject to what NSAI_DTYPE_MODEL
 * is by itself. */
enum { NSAI_DTYPE_ROWS = NSAI_DTYPE_MODEL | NSAI_DTYPE_F32 | 32 };

/* What a tensor must look like. */
typedef struct nsai_tensor_spec {
  const char *name;
  int32_t ndim;
  int64_t shape[NSA_MAX_DIMS]; /* NSAI_ANY: free */
  int types;
} nsai_tensor_spec;

/* Bytes of an element. */
int64_t nsai_dtype_bytes(int32_t dtype);

/* Checks data, dtype, shape, strides and, at that level, whose memory it is, and adds the tensor to
 * the call's tensors. With runtime.check_inputs off, neither shape nor alignment, but dtype,
 * number of dimensions and that it fits the address space. NSA_E_ARG. */
nsa_status nsai_check_tensor(const nsai_check *check, const nsa_tensor *tensor,
                             const nsai_tensor_spec *spec);

/* The same where the tensor is present. */
nsa_status nsai_check_optional_tensor(const nsai_check *check, const nsa_tensor *tensor,
                                      const nsai_tensor_spec *spec);

/* What is written has a place for each element; inputs may repeat rows or heads by a stride of 0.
 * Takes tensors whose dimensions nest, in any order, and marks the call's tensor as written.
 * `tensor` has passed nsai_check_tensor, or is absent. NSA_E_ARG. */
nsa_status nsai_check_tensor_memory(const nsai_check *check, const nsa_tensor *tensor,
                                    const char *name);

/* What an array of offsets may hold. */
typedef struct nsai_offset_limits {
  const char *name;
  int64_t rows;         /* of the tensors it cuts into sequences */
  int64_t length;       /* of one sequence */
  const char *capacity; /* of the problem, which `length` comes from */
} nsai_offset_limits;

/* Checks of values that can be read that i32 [num_seqs + 1] ascends from 0, within the rows and the
 * longest sequence. An absent array is fine. NSA_E_ARG. */
nsa_status nsai_check_offsets(const nsa_tensor *offsets, int32_t num_seqs,
                              const nsai_offset_limits *limits);

#endif /* NSAI_RUN_CHECK_TENSOR_H */
