/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Codes of FP8 E4M3 by integer arithmetic, for architectures without an instruction for them: a
 * sign, 4 bits of exponent with bias 7, 3 bits of mantissa. 0x7f and 0xff are NaN, there is no
 * infinity, and the greatest value is 448 (0x7e).
 *
 * Host and device share this header: integers alone, no configuration and no system headers. The
 * host's tests hold these functions against all codes (tests/unit/test_e4m3.c).
 */
#ifndef NSAI_PARAMS_E4M3_H
#define NSAI_PARAMS_E4M3_H

#ifdef __CUDACC__
#define NSAI_BITS constexpr __device__ __forceinline__ unsigned
#else
#define NSAI_BITS static inline unsigned
#endif

/* Functions on pairs take two codes in the high bytes of two 16-bit halves, whose low bytes are 0.
 * They return two 16-bit floats. */

/* The halves that hold NaN, as their sign bits. */
NSAI_BITS nsai_e4m3_nans(unsigned pair) {
  return ((pair & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
}

/* fp16: value / 256, exact, because sign and exponent and mantissa keep their order, and all
 * exponents exist in fp16. NaN. */
NSAI_BITS nsai_e4m3_pair_f16(unsigned pair) {
  const unsigned nans = nsai_e4m3_nans(pair);
  return (pair & 0x80008000u) | (pair >> 1 & 0x3f803f80u) | (nans - (nans >> 5));
}
#define NSAI_E4M3_UNIT_F16 0x5c00u /* 256 */

/* bf16: value / 2^120, exact. NaN. */
NSAI_BITS nsai_e4m3_pair_bf16(unsigned pair) {
  const unsigned nans = nsai_e4m3_nans(pair);
  return (pair & 0x80008000u) | (pair >> 4 & 0x07f007f0u) | (nans - (nans >> 8));
}
#define NSAI_E4M3_UNIT_BF16 0x7b80u /* 2^120 */

/* The code of a float, given its bits: to nearest, ties to even, at most 448 in magnitude. NaN is
 * 0x7f. */
NSAI_BITS nsai_e4m3_of(unsigned bits) {
  const unsigned sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu, exponent = size >> 23;
  if (size > 0x7f800000u) return 0x7fu;
  if (size > 0x43e00000u) return sign | 0x7eu; /* 448 */
  if (exponent >= 121)                         /* 2^-6, the least normal value */
    return sign | (((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - (120u << 3));
  if (exponent < 116) return sign; /* below 2^-11; the least value is 2^-9 */
  const unsigned mantissa = (size & 0x7fffffu) | 0x800000u, shift = 141 - exponent;
  return sign | ((mantissa + (1u << (shift - 1)) - 1 + (mantissa >> shift & 1u)) >> shift);
}

#endif /* NSAI_PARAMS_E4M3_H */
