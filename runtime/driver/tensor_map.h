/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tensor maps: the descriptors that the copy engine of sm_90 (TMA) needs before a kernel can
 * load boxes of rows from a tensor. They are encoded on the host for every launch, which costs
 * about a microsecond and no call to the device.
 */
#ifndef NSAI_DRIVER_TENSOR_MAP_H
#define NSAI_DRIVER_TENSOR_MAP_H

#include "driver/cuda_api.h"
#include "params/kv_cache.h"

/* A tensor [tokens, heads, dim] of 16-bit elements, and the boxes that kernels load from it. */
typedef struct nsai_boxed {
  const char *name; /* for errors: "q" */
  NsaiView view;
  int64_t tokens; /* rows from here on are read as zeros */
  int32_t heads, dim;
  int32_t dtype; /* NSA_BF16, NSA_F16 */
  /* of a box, at most 256 each; a box always has 64 columns */
  int32_t tma_box_heads, tma_box_tokens;
  bool repeats; /* if the head stride is 0, the kernel loads boxes of head 0 only */
} nsai_boxed;

/* NSA_E_UNSUPPORTED: the engine cannot express the tensor (a stride that is not positive or
 * exceeds 2^39 elements). A tensor without tokens, whose pointer may be NULL, gets an empty map,
 * from which nothing may be loaded. */
nsa_status nsai_tensor_map(const nsai_driver *driver, const nsai_boxed *tensor, NsaiTensorMap *out);

/* The same for tiles of 128 keys that are interleaved over the lanes of a quad (core/tma.cuh).
 * tma_box_heads and tma_box_tokens are not used. A box is addressed by its column among those of
 * all heads and by its first key; all of its 128 rows must exist. Also NSA_E_UNSUPPORTED if the
 * heads together span 2^31 elements or more. */
nsa_status nsai_tensor_map_interleaved(const nsai_driver *driver, const nsai_boxed *tensor,
                                       NsaiTensorMap *out);

/* K or V of a cache, of 16-bit elements: pages of rows, or rows of tokens without pages. */
typedef struct nsai_boxed_pages {
  const char *name;
  NsaiCacheTensor view;
  int64_t pages, page_rows; /* what lies beyond them is read as zeros */
  int32_t heads, dim;
  int32_t dtype;
  int32_t box_rows; /* of one head of one page */
} nsai_boxed_pages;

/* A map of four dimensions: element, row of the page, head, page. If the head stride is 0, the
 * kernel loads boxes of head 0 only. NSA_E_UNSUPPORTED as above; a cache without pages, whose
 * pointer may be NULL, gets an empty map. */
nsa_status nsai_tensor_map_pages(const nsai_driver *driver, const nsai_boxed_pages *tensor,
                                 NsaiTensorMap *out);

#endif /* NSAI_DRIVER_TENSOR_MAP_H */
