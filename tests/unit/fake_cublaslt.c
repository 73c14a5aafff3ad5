/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * cuBLASLt without hardware, in the same module as the fake driver: products are recorded among the
 * launches, descriptors are counted by the leak checker.
 */
#include "fake_cuda.h"

#include <stdlib.h>
#include <string.h>

size_t cublasLtGetVersion(void);
const char *cublasLtGetStatusName(nsai_cublas_status status);
const char *cublasLtGetStatusString(nsai_cublas_status status);
nsai_cublas_status cublasLtCreate(nsai_cublaslt_handle *out);
nsai_cublas_status cublasLtDestroy(nsai_cublaslt_handle handle);
nsai_cublas_status cublasLtMatmul(nsai_cublaslt_handle handle, nsai_cublaslt_desc desc,
                                  const void *alpha, const void *a, nsai_cublaslt_layout a_layout,
                                  const void *b, nsai_cublaslt_layout b_layout, const void *beta,
                                  const void *c, nsai_cublaslt_layout c_layout, void *d,
                                  nsai_cublaslt_layout d_layout, const nsai_cublaslt_algo *algo,
                                  void *workspace, size_t workspace_bytes, nsai_cu_stream stream);
nsai_cublas_status cublasLtMatmulAlgoGetHeuristic(nsai_cublaslt_handle handle,
                                                  nsai_cublaslt_desc desc, nsai_cublaslt_layout a,
                                                  nsai_cublaslt_layout b, nsai_cublaslt_layout c,
                                                  nsai_cublaslt_layout d, nsai_cublaslt_pref pref,
                                                  int wanted, nsai_cublaslt_heuristic *results,
                                                  int *found);
nsai_cublas_status cublasLtMatmulDescCreate(nsai_cublaslt_desc *out, int32_t compute,
                                            int32_t scale);
nsai_cublas_status cublasLtMatrixLayoutCreate(nsai_cublaslt_layout *out, int32_t type,
                                              uint64_t rows, uint64_t columns, int64_t leading);
nsai_cublas_status cublasLtMatmulPreferenceCreate(nsai_cublaslt_pref *out);

size_t cublasLtGetVersion(void) { return 130000; }
const char *cublasLtGetStatusName(nsai_cublas_status status) {
  (void)status;
  return "CUBLAS_STATUS_FAKE";
}
const char *cublasLtGetStatusString(nsai_cublas_status status) {
  return cublasLtGetStatusName(status);
}

static nsai_cublas_status create(void **out) {
  *out = malloc(16);
  return *out ? 0 : 3; /* CUBLAS_STATUS_ALLOC_FAILED */
}

nsai_cublas_status cublasLtCreate(nsai_cublaslt_handle *out) {
  void *memory;
  nsai_cublas_status status = create(&memory);
  *out = memory;
  fake_cuda_record()->handles += status == 0;
  return status;
}

nsai_cublas_status cublasLtDestroy(nsai_cublaslt_handle handle) {
  fake_cuda_record()->handles--;
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
  (void)type, (void)columns;
  if (!rows || leading < (int64_t)rows) return 7; /* CUBLAS_STATUS_INVALID_VALUE */
  return create(out);
}

nsai_cublas_status cublasLtMatmulPreferenceCreate(nsai_cublaslt_pref *out) { return create(out); }

/* The three kinds of descriptor are destroyed and set alike. */
#define DESCRIPTOR(kind)                                                                           \
  nsai_cublas_status cublasLt##kind##Destroy(void *memory);                                        \
  nsai_cublas_status cublasLt##kind##Destroy(void *memory) {                                       \
    free(memory);                                                                                  \
    return 0;                                                                                      \
  }                                                                                                \
  nsai_cublas_status cublasLt##kind##SetAttribute(void *memory, int32_t attribute,                 \
                                                  const void *value, size_t bytes);                \
  nsai_cublas_status cublasLt##kind##SetAttribute(void *memory, int32_t attribute,                 \
                                                  const void *value, size_t bytes) {               \
    (void)attribute;                                                                               \
    return memory && value && bytes ? 0 : 7;                                                       \
  }
DESCRIPTOR(MatmulDesc)
DESCRIPTOR(MatrixLayout)
DESCRIPTOR(MatmulPreference)

nsai_cublas_status cublasLtMatmulAlgoGetHeuristic(nsai_cublaslt_handle handle,
                                                  nsai_cublaslt_desc desc, nsai_cublaslt_layout a,
                                                  nsai_cublaslt_layout b, nsai_cublaslt_layout c,
                                                  nsai_cublaslt_layout d, nsai_cublaslt_pref pref,
                                                  int wanted, nsai_cublaslt_heuristic *results,
                                                  int *found) {
  memset(results, 0, sizeof *results);
  *found = handle && desc && a && b && c && d && pref && wanted == 1;
  return *found ? 0 : 7;
}

nsai_cublas_status cublasLtMatmul(nsai_cublaslt_handle handle, nsai_cublaslt_desc desc,
                                  const void *alpha, const void *a, nsai_cublaslt_layout a_layout,
                                  const void *b, nsai_cublaslt_layout b_layout, const void *beta,
                                  const void *c, nsai_cublaslt_layout c_layout, void *d,
                                  nsai_cublaslt_layout d_layout, const nsai_cublaslt_algo *algo,
                                  void *workspace, size_t workspace_bytes, nsai_cu_stream stream) {
  const fake_cuda_launch launch = { .name = "matmul", .stream = stream };
  if (!handle || !desc || !alpha || !a || !a_layout || !b || !b_layout || !beta || !c ||
      !c_layout || !d || !d_layout || !algo || !workspace || !workspace_bytes)
    return 7;
  fake_cuda_enqueue(&launch, NULL);
  return 0;
}
