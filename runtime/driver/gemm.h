/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Dense products through cuBLASLt: C [m, n] = A [m, k] B [k, n], row-major, batched, with fp32
 * accumulation; or C += A B. Every run on one device gives the same bits: the algorithm depends
 * only on the shapes.
 */
#ifndef NSAI_DRIVER_GEMM_H
#define NSAI_DRIVER_GEMM_H

#include "driver/cuda_api.h"

#include <stdbool.h>

/* Workspace of cuBLASLt: NVIDIA recommends 32 MiB for Hopper. */
#define NSAI_GEMM_WORKSPACE_BYTES ((uint64_t)32 << 20)

typedef struct nsai_gemm {
  int64_t m, n, k;
  int64_t a_row, b_row, c_row; /* elements from one row to the next */
  int32_t batch;
  int64_t a_batch, b_batch,
      /* elements from one batch entry to the next; 0: all entries share the operand */
      c_batch;
  bool a_transposed; /* A is given as [k, m] */
  bool b_transposed; /* B is given as [n, k] */
  bool whole_k;      /* k is not split among CTAs, whose partial sums would be added */
  bool adds;         /* add to C, which is fp32 */
  int32_t dtype;     /* of A and B: NSA_BF16, NSA_F16 */
  int32_t c_dtype;   /* dtype, or NSA_F32 */
} nsai_gemm;

typedef struct nsai_gemm_operands {
  const void *a, *b;
  void *c;
  void *workspace; /* NSAI_GEMM_WORKSPACE_BYTES, 256-byte aligned */
  nsa_stream stream;
} nsai_gemm_operands;

/* Enqueues the product. cuBLASLt's heuristic chooses the algorithm at each run, since the number
 * of rows may differ (host work only, cached by cuBLASLt). Thread-safe; can be captured.
 * NSA_E_CUDA, NSA_E_UNSUPPORTED. */
nsa_status nsai_gemm_run(const nsai_cublaslt *lt, nsai_cublaslt_handle handle,
                         const nsai_gemm *gemm, const nsai_gemm_operands *operands);

#endif /* NSAI_DRIVER_GEMM_H */
