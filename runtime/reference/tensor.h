/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Access to the elements of host tensors. Offsets are in elements, 64-bit, from tensor.data.
 */
#ifndef NSAI_REFERENCE_TENSOR_H
#define NSAI_REFERENCE_TENSOR_H

#include "base/float16.h"

#include <nsa/base.h>

static inline int64_t nsai_ref_offset2(const nsa_tensor *x, int64_t i, int64_t j) {
  return i * x->stride[0] + j * x->stride[1];
}

/* Bytes of an element. */
static inline int64_t nsai_ref_size(const nsa_tensor *x) {
  return x->dtype == NSA_I64 ? 8 : x->dtype == NSA_F32 || x->dtype == NSA_I32 ? 4 : 2;
}

static inline const void *nsai_ref_at(const nsa_tensor *x, int64_t offset) {
  return (const char *)x->data + offset * nsai_ref_size(x);
}

static inline double nsai_ref_load(const nsa_tensor *x, int64_t offset) {
  switch (x->dtype) {
  case NSA_BF16: return nsai_float_from_bf16(((const uint16_t *)x->data)[offset]);
  case NSA_F16: return nsai_float_from_f16(((const uint16_t *)x->data)[offset]);
  default: return ((const float *)x->data)[offset];
  }
}

static inline int32_t nsai_ref_load_i32(const nsa_tensor *x, int64_t offset) {
  return ((const int32_t *)x->data)[offset];
}

/* Rounds to the tensor's dtype. */
static inline void nsai_ref_store(const nsa_tensor *x, int64_t offset, double value) {
  switch (x->dtype) {
  case NSA_BF16: ((uint16_t *)x->data)[offset] = nsai_bf16_from_double(value); return;
  case NSA_F16: ((uint16_t *)x->data)[offset] = nsai_f16_from_double(value); return;
  default: ((float *)x->data)[offset] = (float)value;
  }
}

/* Rounds values to a dtype; 0: to none. */
static inline void nsai_ref_round(int32_t dtype, int64_t count, double *values) {
  float bits;
  const nsa_tensor one = { .data = &bits, .dtype = dtype };
  for (int64_t i = 0; dtype && i < count; i++) {
    nsai_ref_store(&one, 0, values[i]);
    values[i] = nsai_ref_load(&one, 0);
  }
}

#endif /* NSAI_REFERENCE_TENSOR_H */
