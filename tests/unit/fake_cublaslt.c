/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * cuBLASLt without hardware, in the same module as the fake driver: products are recorded among the
 * launches, descriptors are counted by the leak checker, and shapes that do not fit each other are
 * refused as cuBLASLt does.
 */
#include "fake_cuda.h"

#include <stdlib.h>
#include <string.h>

size_t cublasLtGetVersion(void) { return 130000; }
const char *cublasLtGetStatusName(nsai_cublas_status status) {
  (void)status;
  return "CUBLAS_STATUS_FAKE";
}
const char *cublasLtGetStatusString(nsai_cublas_status status) {
  return cublasLtGetStatusName(status);
}

/* What any descriptor remembers. */
typedef struct descriptor {
  uint64_t rows, columns; /* of a layout, as what follows */
  int64_t leading, stride;
  int32_t type, batch;   /* batch 0: one */
  int32_t transposed[2]; /* of a product */
  int32_t whole_k;       /* of a preference: no algorithm that splits k */
} descriptor;

static nsai_cublas_status create(void **out) {
  *out = calloc(1, sizeof(descriptor));
  return *out ? 0 : 3; /* CUBLAS_STATUS_ALLOC_FAILED */
}

nsai_cublas_status cublasLtCreate(nsai_cublaslt_handle *out) {
  void *memory;
  nsai_cublas_status status = create(&memory);
  *out = memory;
  __atomic_fetch_add(&fake_cuda_record()->handles, status == 0, __ATOMIC_RELAXED);
  return status;
}

nsai_cublas_status cublasLtDestroy(nsai_cublaslt_handle handle) {
  __atomic_fetch_sub(&fake_cuda_record()->handles, 1, __ATOMIC_RELAXED);
  free(handle);
  return 0;
}

nsai_cublas_status cublasLtMatmulDescCreate(nsai_cublaslt_desc *out, int32_t compute,
                                            int32_t scale) {
  (void)compute, (void)scale;
  return create(out);
}

nsai_cublas_status cublasLtMatrixLayoutCreate(nsai_cublaslt_layout *out, int32_t type,
                                              uint64_t rows, uint64_t columns, int64_t leading) {
  if (!rows || !columns || leading < (int64_t)rows) return 7; /* CUBLAS_STATUS_INVALID_VALUE */
  nsai_cublas_status status = create(out);
  if (!status)
    *(descriptor *)*out =
        (descriptor){ .rows = rows, .columns = columns, .leading = leading, .type = type };
  return status;
}

nsai_cublas_status cublasLtMatmulPreferenceCreate(nsai_cublaslt_pref *out) { return create(out); }

/* The three kinds of descriptor are destroyed and set alike. */
#define DESCRIPTOR(kind)                                                                           \
  nsai_cublas_status cublasLt##kind##Destroy(void *memory) {                                       \
    free(memory);                                                                                  \
    return 0;                                                                                      \
  }                                                                                                \
  nsai_cublas_status cublasLt##kind##SetAttribute(void *memory, int32_t attribute,                 \
                                                  const void *value, size_t bytes) {               \
    return memory && value && bytes ? set_##kind(memory, attribute, value) : 7;                    \
  }

static nsai_cublas_status set_MatmulDesc(descriptor *d, int32_t attribute, const void *value) {
  if (attribute == NSAI_CUBLASLT_DESC_TRANSA) memcpy(&d->transposed[0], value, sizeof(int32_t));
  if (attribute == NSAI_CUBLASLT_DESC_TRANSB) memcpy(&d->transposed[1], value, sizeof(int32_t));
  return 0;
}

static nsai_cublas_status set_MatrixLayout(descriptor *d, int32_t attribute, const void *value) {
  if (attribute == NSAI_CUBLASLT_LAYOUT_BATCH_COUNT) memcpy(&d->batch, value, sizeof d->batch);
  if (attribute == NSAI_CUBLASLT_LAYOUT_BATCH_STRIDE) memcpy(&d->stride, value, sizeof d->stride);
  return 0;
}

static nsai_cublas_status set_MatmulPreference(descriptor *d, int32_t attribute,
                                               const void *value) {
  if (attribute == NSAI_CUBLASLT_PREF_REDUCTIONS)
    d->whole_k = *(const uint32_t *)value == NSAI_CUBLASLT_REDUCTION_NONE;
  return 0;
}

DESCRIPTOR(MatmulDesc)
DESCRIPTOR(MatrixLayout)
DESCRIPTOR(MatmulPreference)

/* Whether op(A) [m, k] op(B) [k, n] is C [m, n], in batches of the same size. */
static int fits(const descriptor *desc, const descriptor *a, const descriptor *b,
                const descriptor *c) {
  uint64_t m = desc->transposed[0] ? a->columns : a->rows,
           k = desc->transposed[0] ? a->rows : a->columns;
  uint64_t inner = desc->transposed[1] ? b->columns : b->rows,
           n = desc->transposed[1] ? b->rows : b->columns;
  return k == inner && c->rows == m && c->columns == n && a->batch == b->batch &&
         b->batch == c->batch;
}

/* cuBLASLt splits some k wrongly: runtime/driver/gemm.c. A product with a transposed second operand, which is
 * the library's A, is a sum over rows. */
static int may_choose(const descriptor *desc, const descriptor *a, const descriptor *preference) {
  const uint64_t k = desc->transposed[0] ? a->rows : a->columns;
  return preference->whole_k || (k % 64 == 0 && !desc->transposed[1]);
}

nsai_cublas_status cublasLtMatmulAlgoGetHeuristic(nsai_cublaslt_handle handle,
                                                  nsai_cublaslt_desc desc, nsai_cublaslt_layout a,
                                                  nsai_cublaslt_layout b, nsai_cublaslt_layout c,
                                                  nsai_cublaslt_layout d, nsai_cublaslt_pref pref,
                                                  int wanted, nsai_cublaslt_heuristic *results,
                                                  int *found) {
  memset(results, 0, sizeof *results);
  *found = handle && desc && a && b && c && d && pref && wanted == 1 && may_choose(desc, a, pref);
  return *found ? 0 : 7;
}

static fake_matrix matrix_of(const void *data, const descriptor *layout, int32_t transposed) {
  return (fake_matrix){ .data = data,
                        .rows = layout->rows,
                        .columns = layout->columns,
                        .leading = layout->leading,
                        .stride = layout->stride,
                        .type = layout->type,
                        .batch = layout->batch,
                        .transposed = transposed };
}

static _Thread_local fake_product product;

fake_product *fake_cuda_product(void) { return &product; }

nsai_cublas_status cublasLtMatmul(nsai_cublaslt_handle handle, nsai_cublaslt_desc desc,
                                  const void *alpha, const void *a, nsai_cublaslt_layout a_layout,
                                  const void *b, nsai_cublaslt_layout b_layout, const void *beta,
                                  const void *c, nsai_cublaslt_layout c_layout, void *d,
                                  nsai_cublaslt_layout d_layout, const nsai_cublaslt_algo *algo,
                                  void *workspace, size_t workspace_bytes, nsai_cu_stream stream) {
  const fake_cuda_launch launch = { .name = "matmul", .stream = stream };
  if (!handle || !desc || !alpha || !a || !a_layout || !b || !b_layout || !beta || !c ||
      !c_layout || !d || !d_layout || !algo || !workspace || !workspace_bytes ||
      !fits(desc, a_layout, b_layout, d_layout))
    return 7;
  const int32_t *transposed = ((const descriptor *)desc)->transposed;
  product = (fake_product){ .a = matrix_of(a, a_layout, transposed[0]),
                            .b = matrix_of(b, b_layout, transposed[1]),
                            .c = matrix_of(c, c_layout, 0),
                            .d = matrix_of(d, d_layout, 0),
                            .alpha = *(const float *)alpha,
                            .beta = *(const float *)beta,
                            .workspace = workspace,
                            .workspace_bytes = workspace_bytes };
  pthread_mutex_lock(&fake_cuda_lock);
  fake_cuda_record()->product = product;
  pthread_mutex_unlock(&fake_cuda_lock);
  fake_cuda_enqueue(&launch, NULL);
  return 0;
}
