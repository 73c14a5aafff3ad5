/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Conversions of bf16, fp16 and e4m3 to and from float and double. They round to nearest, ties to
 * even, and keep subnormals; values that are too large become inf, in e4m3 448; NaN stays a (quiet)
 * NaN.
 * Conversions to and from float use integer arithmetic, so a rounding mode or flush-to-zero set
 * by the host has no effect.
 */
#ifndef NSAI_BASE_FLOAT16_H
#define NSAI_BASE_FLOAT16_H

#include <stdint.h>
#include <string.h>

static inline uint32_t nsai_bits_from_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float nsai_float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline float nsai_float_from_bf16(uint16_t half) {
  return nsai_float_from_bits((uint32_t)half << 16);
}

static inline uint16_t nsai_bf16_from_float(float value) {
  uint32_t bits = nsai_bits_from_float(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
  /* Adds slightly less than half a unit, or exactly half where the kept part is odd. The carry
   * may reach the exponent, up to inf, as rounding requires. */
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float nsai_float_from_f16(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  uint32_t exponent = (half >> 10) & 0x1fu, mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return nsai_float_from_bits(sign | 0x7f800000u | mantissa << 13);
  if (exponent) return nsai_float_from_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
  /* A subnormal is mantissa * 2^-24, which float holds as a normal number. */
  float magnitude = (float)mantissa * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

/* The upper bits of `bits`, without the lowest `shift` (1 to 31), to nearest, ties to even. */
static inline uint32_t nsai_shift_to_nearest(uint32_t bits, uint32_t shift) {
  const uint32_t kept = bits >> shift, rest = bits & ((1u << shift) - 1u),
                 half = 1u << (shift - 1u);
  return kept + (rest > half || (rest == half && (kept & 1u)));
}

static inline uint16_t nsai_f16_from_float(float value) {
  uint32_t bits = nsai_bits_from_float(value);
  uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* 2^16 and more */
  if (magnitude >= 0x38800000u)                                    /* 2^-14: a normal fp16 */
    return (uint16_t)(sign | nsai_shift_to_nearest(magnitude - (112u << 23), 13));
  uint32_t exponent = magnitude >> 23;
  if (exponent < 102u) return (uint16_t)sign; /* below 2^-25, half the smallest subnormal */
  uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  return (uint16_t)(sign | nsai_shift_to_nearest(mantissa, 126u - exponent));
}

/* A code of e4m3: a sign, 4 bits of exponent (bias 7), 3 bits of mantissa. 0x7f and 0xff are NaN, and
 * there is no inf. */
static inline float nsai_float_from_e4m3(uint8_t code) {
  uint32_t sign = (uint32_t)(code & 0x80u) << 24, magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return nsai_float_from_bits(sign | 0x7fc00000u);
  if (magnitude >= 8u) return nsai_float_from_bits(sign | ((magnitude << 20) + (120u << 23)));
  float subnormal = (float)magnitude * 0x1p-9f;
  return sign ? -subnormal : subnormal;
}

/* Saturates at 448, inf too. Every NaN becomes 0x7f, as the GPUs' instruction has it. */
static inline uint8_t nsai_e4m3_from_float(float value) {
  uint32_t bits = nsai_bits_from_float(value);
  uint32_t sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7f;
  if (magnitude >= 0x43e00000u) return (uint8_t)(sign | 0x7eu); /* 448 */
  if (magnitude >= 0x3c800000u)                                 /* 2^-6: a normal e4m3 */
    return (uint8_t)(sign | nsai_shift_to_nearest(magnitude - (120u << 23), 20));
  uint32_t exponent = magnitude >> 23;
  if (exponent < 117u) return (uint8_t)sign; /* below 2^-10, half the smallest subnormal */
  uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  return (uint8_t)(sign | nsai_shift_to_nearest(mantissa, 141u - exponent));
}

/* The float next to `value` towards zero, with its last bit set when anything was cut off
 * ("round to odd"). Rounding it again to a format at least two bits shorter gives the same as
 * rounding `value` directly; rounding to nearest twice would not. */
static inline float nsai_float_from_double_odd(double value) {
  float nearest = (float)value;
  if ((double)nearest == value || nearest != nearest) return nearest;
  uint32_t bits = nsai_bits_from_float(nearest);
  double magnitude = value < 0 ? -value : value;
  if ((double)nsai_float_from_bits(bits & 0x7fffffffu) > magnitude) bits--;
  return nsai_float_from_bits(bits | 1u);
}

static inline uint16_t nsai_bf16_from_double(double value) {
  return nsai_bf16_from_float(nsai_float_from_double_odd(value));
}

static inline uint16_t nsai_f16_from_double(double value) {
  return nsai_f16_from_float(nsai_float_from_double_odd(value));
}

static inline uint8_t nsai_e4m3_from_double(double value) {
  return nsai_e4m3_from_float(nsai_float_from_double_odd(value));
}

#endif /* NSAI_BASE_FLOAT16_H */
