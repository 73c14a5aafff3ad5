/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * cuBLASLt is column-major. Row-major C = A B is its C^T = B^T A^T, so A and B swap roles and
 * nothing is transposed.
 */
#include "driver/gemm.h"

#include <string.h>

/* The descriptors of one product; all NULL before they are made. */
typedef struct descriptors {
  nsai_cublaslt_desc desc;
  nsai_cublaslt_layout a, b, c;
  nsai_cublaslt_pref preference;
} descriptors;

static int32_t data_type(int32_t dtype) {
  return dtype == NSA_BF16  ? NSAI_CUDA_R_16BF
         : dtype == NSA_F16 ? NSAI_CUDA_R_16F
                            : NSAI_CUDA_R_32F;
}

/* A column-major [rows, columns] layout with its batch. */
static nsa_status make_layout(const nsai_cublaslt *lt, int32_t dtype, const int64_t shape[2],
                              int64_t leading, int32_t batch, int64_t batch_stride,
                              nsai_cublaslt_layout *out) {
  if (shape[1] == 1) leading = shape[0]; /* the stride of a single row is never used */
  NSAI_TRY(NSAI_CUBLASLT(lt, cublasLtMatrixLayoutCreate(out, data_type(dtype), (uint64_t)shape[0],
                                                        (uint64_t)shape[1], leading)));
  if (batch == 1) return NSA_OK;
  NSAI_TRY(
      NSAI_CUBLASLT(lt, cublasLtMatrixLayoutSetAttribute(*out, NSAI_CUBLASLT_LAYOUT_BATCH_COUNT,
                                                         &batch, sizeof batch)));
  return NSAI_CUBLASLT(lt, cublasLtMatrixLayoutSetAttribute(*out, NSAI_CUBLASLT_LAYOUT_BATCH_STRIDE,
                                                            &batch_stride, sizeof batch_stride));
}

static nsa_status make_descriptors(const nsai_cublaslt *lt, const nsai_gemm *g, descriptors *d) {
  /* They swap roles: cuBLASLt's A is B. */
  int32_t first = g->b_transposed ? NSAI_CUBLAS_OP_T : NSAI_CUBLAS_OP_N,
          second = g->a_transposed ? NSAI_CUBLAS_OP_T : NSAI_CUBLAS_OP_N;
  NSAI_TRY(NSAI_CUBLASLT(lt, cublasLtMatmulDescCreate(&d->desc, NSAI_CUBLAS_COMPUTE_32F,
                                                      NSAI_CUDA_R_32F)));
  NSAI_TRY(NSAI_CUBLASLT(lt, cublasLtMatmulDescSetAttribute(d->desc, NSAI_CUBLASLT_DESC_TRANSA,
                                                            &first, sizeof first)));
  NSAI_TRY(NSAI_CUBLASLT(lt, cublasLtMatmulDescSetAttribute(d->desc, NSAI_CUBLASLT_DESC_TRANSB,
                                                            &second, sizeof second)));
  int64_t b[2] = { g->b_transposed ? g->k : g->n, g->b_transposed ? g->n : g->k },
          a[2] = { g->a_transposed ? g->m : g->k, g->a_transposed ? g->k : g->m };
  int64_t c[2] = { g->n, g->m };
  NSAI_TRY(make_layout(lt, g->dtype, b, g->b_row, g->batch, g->b_batch, &d->b));
  NSAI_TRY(make_layout(lt, g->dtype, a, g->a_row, g->batch, g->a_batch, &d->a));
  NSAI_TRY(make_layout(lt, g->c_dtype, c, g->c_row, g->batch, g->c_batch, &d->c));
  return NSAI_CUBLASLT(lt, cublasLtMatmulPreferenceCreate(&d->preference));
}

/* The largest power of two up to 16 that divides the address. Larger alignments are ignored: the
 * address of a tensor must not decide the algorithm and with it the last bits. */
static uint32_t alignment_of(const void *p) {
  uintptr_t bits = (uintptr_t)p | 16u;
  return (uint32_t)(bits & (~bits + 1u));
}

/* cuBLASLt 13.1.0 (of CUDA 13.0, on an H200) is wrong where it cuts k into parts that leave a few rows over:
 * of 31343 products with any k up to 70000, 4916 were off by 1 to 4 % of the greatest element (k 7685 in 6
 * parts, 4226 in 3, 67857 in 53; algorithm 66), and none of twelve of these that were not cut. A sum over
 * tokens has any k, and is never cut; the k of a product with weights is mostly a multiple of 64. */
#define SPLIT_UNIT 64

static bool may_split(const nsai_gemm *g) { return !g->whole_k && g->k % SPLIT_UNIT == 0; }

/* Tells the heuristic how much workspace there is and how the operands are aligned. */
static nsa_status set_preference(const nsai_cublaslt *lt, const nsai_gemm *g,
                                 const nsai_gemm_operands *o, nsai_cublaslt_pref preference) {
  uint64_t bytes = NSAI_GEMM_WORKSPACE_BYTES;
  const uint32_t reductions = NSAI_CUBLASLT_REDUCTION_NONE;
  if (!may_split(g))
    NSAI_TRY(
        NSAI_CUBLASLT(lt, cublasLtMatmulPreferenceSetAttribute(preference,
                                                               NSAI_CUBLASLT_PREF_REDUCTIONS,
                                                               &reductions, sizeof reductions)));
  NSAI_TRY(
      NSAI_CUBLASLT(lt, cublasLtMatmulPreferenceSetAttribute(preference,
                                                             NSAI_CUBLASLT_PREF_WORKSPACE_BYTES,
                                                             &bytes, sizeof bytes)));
  const struct {
    int32_t attribute;
    const void *pointer;
  } operands[] = { { NSAI_CUBLASLT_PREF_ALIGN_A, o->b }, /* they swap roles */
                   { NSAI_CUBLASLT_PREF_ALIGN_B, o->a },
                   { NSAI_CUBLASLT_PREF_ALIGN_C, o->c },
                   { NSAI_CUBLASLT_PREF_ALIGN_D, o->c } };
  for (size_t i = 0; i < sizeof operands / sizeof *operands; i++) {
    uint32_t bytes_aligned = alignment_of(operands[i].pointer);
    NSAI_TRY(
        NSAI_CUBLASLT(lt,
                      cublasLtMatmulPreferenceSetAttribute(preference, operands[i].attribute,
                                                           &bytes_aligned, sizeof bytes_aligned)));
  }
  return NSA_OK;
}

static nsa_status enqueue(const nsai_cublaslt *lt, nsai_cublaslt_handle handle, const nsai_gemm *g,
                          const nsai_gemm_operands *o, descriptors *d) {
  NSAI_TRY(make_descriptors(lt, g, d));
  NSAI_TRY(set_preference(lt, g, o, d->preference));
  nsai_cublaslt_heuristic found;
  int count = 0;
  memset(&found, 0, sizeof found);
  NSAI_TRY(NSAI_CUBLASLT(lt, cublasLtMatmulAlgoGetHeuristic(handle, d->desc, d->b, d->a, d->c, d->c,
                                                            d->preference, 1, &found, &count)));
  if (!count)
    return nsai_fail(NSA_E_UNSUPPORTED,
                     "cuBLASLt has no algorithm for a product of m %lld, n %lld, k %lld, batch %d",
                     (long long)g->m, (long long)g->n, (long long)g->k, g->batch);
  const float one = 1.0f, kept = g->adds ? 1.0f : 0.0f; /* beta: the factor of C */
  return NSAI_CUBLASLT(lt, cublasLtMatmul(handle, d->desc, &one, o->b, d->b, o->a, d->a, &kept,
                                          o->c, d->c, o->c, d->c, &found.algo, o->workspace,
                                          NSAI_GEMM_WORKSPACE_BYTES, o->stream));
}

nsa_status nsai_gemm_run(const nsai_cublaslt *lt, nsai_cublaslt_handle handle,
                         const nsai_gemm *gemm, const nsai_gemm_operands *operands) {
  if (!gemm->m || !gemm->n || !gemm->batch) return NSA_OK;
  descriptors d = { 0 };
  nsa_status status = enqueue(lt, handle, gemm, operands, &d);
  if (d.preference) lt->cublasLtMatmulPreferenceDestroy(d.preference);
  if (d.c) lt->cublasLtMatrixLayoutDestroy(d.c);
  if (d.a) lt->cublasLtMatrixLayoutDestroy(d.a);
  if (d.b) lt->cublasLtMatrixLayoutDestroy(d.b);
  if (d.desc) lt->cublasLtMatmulDescDestroy(d.desc);
  return status;
}
