/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Access to the elements of host tensors. Offsets are in elements, 64-bit, from tensor.data.
 */
#ifndef NSAI_REFERENCE_TENSOR_H
#define NSAI_REFERENCE_TENSOR_H

#include "base/float16.h"

#include <nsa/base.h>

#include <math.h>
#include <string.h>

static inline int64_t nsai_ref_offset2(const nsa_tensor *x, int64_t i, int64_t j) {
  return i * x->stride[0] + j * x->stride[1];
}

/* Bytes of an element. */
static inline int64_t nsai_ref_size(const nsa_tensor *x) {
  switch (x->dtype) {
  case NSA_E4M3: return 1;
  case NSA_F32:
  case NSA_I32: return 4;
  case NSA_I64: return 8;
  default: return 2;
  }
}

static inline const void *nsai_ref_at(const nsa_tensor *x, int64_t offset) {
  return (const char *)x->data + offset * nsai_ref_size(x);
}

/* Of a code without its scale: nsai_ref_scale. */
static inline double nsai_ref_load(const nsa_tensor *x, int64_t offset) {
  switch (x->dtype) {
  case NSA_BF16: return nsai_float_from_bf16(((const uint16_t *)x->data)[offset]);
  case NSA_F16: return nsai_float_from_f16(((const uint16_t *)x->data)[offset]);
  case NSA_E4M3: return nsai_float_from_e4m3(((const uint8_t *)x->data)[offset]);
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
  case NSA_E4M3: ((uint8_t *)x->data)[offset] = nsai_e4m3_from_double(value); return;
  default: ((float *)x->data)[offset] = (float)value;
  }
}

/* How values are rounded. */
typedef struct nsai_ref_rounding {
  int32_t dtype; /* 0: not at all */
  /* 0: to nearest. Otherwise up or down at random, the nearer value with the larger probability; each
   * number gives other choices. float32 is rounded to nearest always. */
  uint32_t draw;
} nsai_ref_rounding;

/* The neighbour of `near`, a 16-bit rounding of x, on the other side of x. */
static inline double nsai_ref_other_side(int32_t dtype, double x, double near) {
  uint16_t bits = dtype == NSA_BF16 ? nsai_bf16_from_double(near) : nsai_f16_from_double(near);
  bits = (uint16_t)(near == 0                  ? (x < 0 ? 0x8001 : 1)
                    : (x < near) == (near > 0) ? bits - 1
                                               : bits + 1);
  return dtype == NSA_BF16 ? nsai_float_from_bf16(bits) : nsai_float_from_f16(bits);
}

/* A number in [0, 1) that depends on x and the draw: splitmix64's finaliser. */
static inline double nsai_ref_uniform(double x, uint32_t draw) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits += (uint64_t)draw * 0x9e3779b97f4a7c15u;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
  return (double)((bits ^ bits >> 31) >> 11) * 0x1p-53;
}

static inline void nsai_ref_round(nsai_ref_rounding how, int64_t count, double *values) {
  float bits;
  const nsa_tensor one = { .data = &bits, .dtype = how.dtype };
  for (int64_t i = 0; how.dtype && i < count; i++) {
    double x = values[i], near;
    nsai_ref_store(&one, 0, x);
    near = values[i] = nsai_ref_load(&one, 0);
    if (!how.draw || how.dtype == NSA_F32 || near == x || !isfinite(near)) continue;
    double other = nsai_ref_other_side(how.dtype, x, near);
    if (nsai_ref_uniform(x, how.draw) * fabs(other - near) < fabs(x - near)) values[i] = other;
  }
}

#endif /* NSAI_REFERENCE_TENSOR_H */
