/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "driver/tensor_map.h"

#define ELEMENT_BYTES 2
#define BOX_COLUMNS 64          /* 128 bytes: a row of the swizzle pattern */
#define MOST_STRIDE (1ll << 39) /* elements, exclusive: 2^40 bytes */
#define MOST_EXTENT (1ll << 32) /* inclusive */
#define MOST_DIMS 5
#define INTERLEAVED_LANES 4 /* lanes of a quad, 32 keys each: core/tma.cuh */
#define INTERLEAVED_KEYS 32

/* A dimension with one element never uses its stride, but the stride must be valid. */
static int64_t stride_of(int64_t stride, int64_t extent) {
  return extent > 1 ? stride : BOX_COLUMNS;
}

static nsa_status check_tokens(const nsai_boxed *t) {
  if (t->tokens <= MOST_EXTENT) return NSA_OK;
  return nsai_fail(NSA_E_UNSUPPORTED,
                   "%s has %lld tokens: the copy engine of sm_90 takes 2^32 at most; split the "
                   "batch",
                   t->name, (long long)t->tokens);
}

static nsa_status check_stride(const char *name, const char *what, int64_t stride, int64_t most) {
  if (stride > 0 && stride < most) return NSA_OK;
  return nsai_fail(NSA_E_UNSUPPORTED,
                   "%s: the copy engine of sm_90 takes no stride of %lld elements (%s): it "
                   "must be positive and below 2^%d; copy the tensor, or disable the variants that "
                   "need it (variants.disable: [\"*_sm90\", \"*_sm90_mma\"])",
                   name, (long long)stride, what, 63 - __builtin_clzll((unsigned long long)most));
}

/* Dimension 0 has adjacent elements; strides [dims - 1] are those of the other dimensions, in
 * elements. */
static nsa_status encode(const nsai_driver *driver, void *data, int32_t dtype, int dims,
                         const uint64_t *extents, const int64_t *strides, const uint32_t *box,
                         NsaiTensorMap *out) {
  const uint32_t step[MOST_DIMS] = { 1, 1, 1, 1, 1 };
  uint64_t bytes[MOST_DIMS - 1];
  for (int i = 0; i < dims - 1; i++) bytes[i] = ELEMENT_BYTES * (uint64_t)strides[i];
  return NSAI_CUDA(driver,
                   cuTensorMapEncodeTiled(
                       out, dtype == NSA_F16 ? NSAI_CU_TENSOR_MAP_F16 : NSAI_CU_TENSOR_MAP_BF16,
                       (uint32_t)dims, data, extents, bytes, box, step,
                       NSAI_CU_TENSOR_MAP_INTERLEAVE_NONE, NSAI_CU_TENSOR_MAP_SWIZZLE_128B,
                       NSAI_CU_TENSOR_MAP_PROMOTE_128B, NSAI_CU_TENSOR_MAP_FILL_ZERO));
}

nsa_status nsai_tensor_map(const nsai_driver *driver, const nsai_boxed *t, NsaiTensorMap *out) {
  const int32_t heads = t->repeats && !t->view.head_stride ? 1 : t->heads;
  const int64_t strides[] = { stride_of(t->view.head_stride, heads),
                              stride_of(t->view.token_stride, t->tokens) };
  const uint64_t extents[] = { (uint64_t)t->dim, (uint64_t)heads, (uint64_t)t->tokens };
  const uint32_t box[] = { BOX_COLUMNS, (uint32_t)t->tma_box_heads, (uint32_t)t->tma_box_tokens };
  *out = (NsaiTensorMap){ { 0 } };
  if (t->tokens <= 0) return NSA_OK;
  NSAI_TRY(check_tokens(t));
  NSAI_TRY(check_stride(t->name, "head", strides[0], MOST_STRIDE));
  NSAI_TRY(check_stride(t->name, "token", strides[1], MOST_STRIDE));
  return encode(driver, t->view.data, t->dtype, 3, extents, strides, box, out);
}

nsa_status nsai_tensor_map_interleaved(const nsai_driver *driver, const nsai_boxed *t,
                                       NsaiTensorMap *out) {
  int64_t head = stride_of(t->view.head_stride, t->heads);
  int64_t token = stride_of(t->view.token_stride, t->tokens);
  *out = (NsaiTensorMap){ { 0 } };
  if (t->tokens <= 0) return NSA_OK;
  NSAI_TRY(check_tokens(t));
  if (head || !t->repeats) NSAI_TRY(check_stride(t->name, "head", head, MOST_STRIDE));
  NSAI_TRY(check_stride(t->name, "token", token, MOST_STRIDE / INTERLEAVED_KEYS));
  int64_t columns = (t->heads - 1) * head + t->dim;
  if (columns > INT32_MAX)
    return nsai_fail(NSA_E_UNSUPPORTED,
                     "%s: %d heads %lld elements apart: the copy engine of sm_90 is given 2^31 at "
                     "most; copy the tensor, or "
                     "disable the variant (variants.disable: [\"*attend_compressed_topn_sm90\"])",
                     t->name, t->heads, (long long)head);
  /* Columns of all heads, 2 keys, lanes, pairs of keys, first key. These dimensions overlap in
   * memory. */
  const uint64_t extents[] = { (uint64_t)columns, 2, INTERLEAVED_LANES, INTERLEAVED_KEYS / 2,
                               (uint64_t)t->tokens };
  const int64_t strides[] = { token, INTERLEAVED_KEYS * token, 2 * token, token };
  const uint32_t box[] = { BOX_COLUMNS, 2, INTERLEAVED_LANES, INTERLEAVED_KEYS / 2, 1 };
  return encode(driver, t->view.data, t->dtype, 5, extents, strides, box, out);
}

nsa_status nsai_tensor_map_pages(const nsai_driver *driver, const nsai_boxed_pages *t,
                                 NsaiTensorMap *out) {
  const int32_t heads = t->view.head_stride ? t->heads : 1;
  const int64_t strides[] = { stride_of(t->view.row_stride, t->page_rows),
                              stride_of(t->view.head_stride, heads),
                              stride_of(t->view.page_stride, t->pages) };
  const uint64_t extents[] = { (uint64_t)t->dim, (uint64_t)t->page_rows, (uint64_t)heads,
                               (uint64_t)t->pages };
  const uint32_t box[] = { BOX_COLUMNS, (uint32_t)t->box_rows, 1, 1 };
  *out = (NsaiTensorMap){ { 0 } };
  if (t->pages <= 0 || t->page_rows <= 0) return NSA_OK;
  NSAI_TRY(check_stride(t->name, "token", strides[0], MOST_STRIDE));
  NSAI_TRY(check_stride(t->name, "head", strides[1], MOST_STRIDE));
  NSAI_TRY(check_stride(t->name, "page", strides[2], MOST_STRIDE));
  return encode(driver, t->view.data, t->dtype, 4, extents, strides, box, out);
}
