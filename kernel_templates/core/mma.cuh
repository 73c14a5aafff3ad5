// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Tensor core instructions of sm_80 and later, one per function.
//
// Fragments of mma.m16n8k16 (lane = 4 * group + pair):
//   A 16x16: a[0] row group, columns 2*pair, +1; a[1] row group + 8; a[2], a[3] the same, columns +
//   8
//   B 16x8 : b[0] rows 2*pair, +1, column group; b[1] rows + 8
//   C 16x8 : c[0], c[1] row group, columns 2*pair, +1; c[2], c[3] row group + 8
#pragma once
#include "core/types.cuh"

// Loads four 8x8 matrices of 16-bit elements; lane i provides the address of row i % 8 of matrix i
// / 8.
NSAI_DEVICE void ldmatrix_x4(u32 (&r)[4], u32 shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address)
               : "memory");
}

NSAI_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], u32 shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address)
               : "memory");
}

// The inverse of ldmatrix_x4 (sm_90 and later): stores C fragments as rows of 16 bytes.
NSAI_DEVICE void stmatrix_x4(u32 shared_address, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// c += a * b
NSAI_DEVICE void mma_m16n8k16(Bf16, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

NSAI_DEVICE void mma_m16n8k16(Fp16, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same for two n8 tiles, whose B fragments one ldmatrix_x4 loads.
template <class Element>
NSAI_DEVICE void mma_m16n16k16(Element element, float (&c0)[4], float (&c1)[4], const u32 (&a)[4],
                               const u32 (&b)[4]) {
  mma_m16n8k16(element, c0, a, b[0], b[1]);
  mma_m16n8k16(element, c1, a, b[2], b[3]);
}
