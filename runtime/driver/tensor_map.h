/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Tensor maps: what the copy engine of sm_90 (TMA) needs to know of a tensor before a kernel can ask
 * it for boxes of rows. Made on the host for every launch; costs about a microsecond and no call of
 * the device.
 */
#ifndef NSAI_DRIVER_TENSOR_MAP_H
#define NSAI_DRIVER_TENSOR_MAP_H

#include "driver/cuda_api.h"
#include "params/attention.h"

/* A tensor [tokens, heads, dim] of 16-bit elements, and the boxes that are read of it. */
typedef struct nsai_boxed {
  const char *name; /* for errors: "q" */
  NsaiView view;
  int64_t tokens; /* from here on rows arrive as zeros */
  int32_t heads, dim;
  int32_t dtype;                         /* NSA_BF16, NSA_F16 */
  int32_t tma_box_heads, tma_box_tokens; /* of a box, at most 256 each; its columns are always 64 */
  bool repeats; /* where the head stride is 0, the kernel asks for boxes of head 0 alone */
} nsai_boxed;

/* NSA_E_UNSUPPORTED: the engine cannot express the tensor (a stride that is not positive or beyond
 * 2^39 elements). A tensor without tokens, which may be NULL, gets an empty map,
 * of which no box may be asked. */
nsa_status nsai_tensor_map(const nsai_driver *driver, const nsai_boxed *tensor, NsaiTensorMap *out);

/* The same for tiles of 128 keys that are spread over the lanes of a quad (core/tma.cuh); tma_box_heads
 * and tma_box_tokens are not looked at. A box is asked for by its column among those of all heads and its
 * first key; all of its 128 rows must be there. NSA_E_UNSUPPORTED also where the heads lie 2^31
 * elements apart in all. */
nsa_status nsai_tensor_map_interleaved(const nsai_driver *driver, const nsai_boxed *tensor,
                                       NsaiTensorMap *out);

#endif /* NSAI_DRIVER_TENSOR_MAP_H */
