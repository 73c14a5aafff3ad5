/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "tensor_map.h"

#define ELEMENT_BYTES 2
#define BOX_COLUMNS 64          /* 128 bytes: a row of the swizzle */
#define MOST_STRIDE (1ll << 39) /* elements, exclusive: 2^40 bytes */
#define MOST_EXTENT (1ll << 32) /* inclusive */
#define DIMS 3

/* The stride of a dimension of one element is never followed, but must be one. */
static int64_t stride_of(int64_t stride, int64_t extent) {
  return extent > 1 ? stride : BOX_COLUMNS;
}

nsa_status nsai_tensor_map(const nsai_driver *driver, const nsai_boxed *t, NsaiTensorMap *out) {
  const int64_t strides[DIMS - 1] = { stride_of(t->view.head_stride, t->heads),
                                      stride_of(t->view.token_stride, t->tokens) };
  *out = (NsaiTensorMap){ { 0 } };
  if (t->tokens <= 0) return NSA_OK;
  for (int i = 0; i < DIMS - 1; i++)
    if (strides[i] <= 0 || strides[i] >= MOST_STRIDE || t->tokens > MOST_EXTENT)
      return nsai_fail(
          NSA_E_UNSUPPORTED,
          "%s: the copy engine of sm_90 takes no stride of %lld elements (%s): it "
          "must be positive and below 2^39; copy the tensor, or disable the variants that "
          "need it (variants.disable: [\"*_wgmma\", \"*_tma\"])",
          t->name, (long long)strides[i], i ? "token" : "head");
  const uint64_t extent[DIMS] = { (uint64_t)t->dim, (uint64_t)t->heads, (uint64_t)t->tokens };
  const uint64_t stride[DIMS - 1] = { ELEMENT_BYTES * (uint64_t)strides[0],
                                      ELEMENT_BYTES * (uint64_t)strides[1] };
  const uint32_t box[DIMS] = { BOX_COLUMNS, (uint32_t)t->box_heads, (uint32_t)t->box_tokens };
  const uint32_t step[DIMS] = { 1, 1, 1 };
  return NSAI_CUDA(driver,
                   cuTensorMapEncodeTiled(
                       out, t->dtype == NSA_F16 ? NSAI_CU_TENSOR_MAP_F16 : NSAI_CU_TENSOR_MAP_BF16,
                       DIMS, t->view.data, extent, stride, box, step,
                       NSAI_CU_TENSOR_MAP_INTERLEAVE_NONE, NSAI_CU_TENSOR_MAP_SWIZZLE_128B,
                       NSAI_CU_TENSOR_MAP_PROMOTE_128B, NSAI_CU_TENSOR_MAP_FILL_ZERO));
}
