/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The matrix product and the widening of storage dtypes, written once with compiler vectors
 * (multiply.inc) and compiled for several x86-64 instruction sets. Each element of a product is
 * summed over k in ascending order, whatever its position in a block, so results do not depend
 * on how rows are grouped.
 */
#include "reference/internal.h"
#include "reference/tensor.h"

/* Two doubles: SSE2, and NEON elsewhere. */
#define VECTOR 2
#define FORM(name) name##_plain
#define TARGET
#include "reference/multiply.inc"

static const nsai_ref_ops plain_ops = { multiply_plain, widen_plain };

#if defined(__x86_64__)

#define VECTOR 4
#define FORM(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#include "reference/multiply.inc"

#define VECTOR 8
#define FORM(name) name##_avx512
#define TARGET __attribute__((target("avx512f")))
#include "reference/multiply.inc"

static const nsai_ref_ops avx2_ops = { multiply_avx2, widen_avx2 };
static const nsai_ref_ops avx512_ops = { multiply_avx512, widen_avx512 };

const nsai_ref_ops *nsai_ref_ops_get(int rank) {
  const nsai_ref_ops *supported[4] = { NULL };
  int count = 0;
  if (__builtin_cpu_supports("avx512f")) supported[count++] = &avx512_ops;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    supported[count++] = &avx2_ops;
  supported[count++] = &plain_ops;
  return rank < count ? supported[rank] : NULL;
}

#else

const nsai_ref_ops *nsai_ref_ops_get(int rank) { return rank == 0 ? &plain_ops : NULL; }

#endif
