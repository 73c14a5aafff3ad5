/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Dense products through cuBLASLt: C [m, n] = A [m, k] B [k, n], row-major, batched, fp32
 * accumulation; or C += A B. The same bits in every run on one device: the algorithm follows from the
 * shapes, and where a long k is cut its parts are summed in a fixed order.
 */
#ifndef NSAI_DRIVER_GEMM_H
#define NSAI_DRIVER_GEMM_H

#include "driver/cuda_api.h"

#include <stdbool.h>

/* What cuBLASLt may use beside the operands: NVIDIA's advice for Hopper is 32 MiB. */
#define NSAI_GEMM_WORKSPACE_BYTES ((uint64_t)32 << 20)

typedef struct nsai_gemm {
  int64_t m, n, k;
  int64_t a_row, b_row, c_row; /* elements from one row to the next */
  int32_t batch;
  int64_t a_batch, b_batch,
      c_batch;       /* elements from one batch entry to the next; 0 repeats the operand */
  bool a_transposed; /* A is given as [k, m] */
  bool b_transposed; /* B is given as [n, k] */
  bool
      ordered; /* parts of a long k are added in fp32 and in a fixed order, by no algorithm that adds in
                   place */
  bool adds;       /* to C, which is fp32 */
  int32_t dtype;   /* of A and B: NSA_BF16, NSA_F16 */
  int32_t c_dtype; /* dtype, or NSA_F32 */
} nsai_gemm;

typedef struct nsai_gemm_operands {
  const void *a, *b;
  void *c;
  void *workspace; /* NSAI_GEMM_WORKSPACE_BYTES, 256-byte aligned */
  nsa_stream stream;
} nsai_gemm_operands;

/* Enqueues the product. The algorithm comes from cuBLASLt's heuristic (host work only, cached by
 * the library), since the number of rows may differ at each run. Thread-safe; capturable.
 * NSA_E_CUDA, NSA_E_UNSUPPORTED. */
nsa_status nsai_gemm_run(const nsai_cublaslt *lt, nsai_cublaslt_handle handle,
                         const nsai_gemm *gemm, const nsai_gemm_operands *operands);

#endif /* NSAI_DRIVER_GEMM_H */
