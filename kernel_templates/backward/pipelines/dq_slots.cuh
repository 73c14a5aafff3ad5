// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// What one block adds to dQ of a row that sees it, on its way from backward_dkv_dq_selected to
// backward_dq_slots. Rows lie in the order of the inverted lists' entries, the heads of a token side
// by side: fp16 [heads, entries, G, Dk], and f32 [heads, entries, G]: the row's step, a power of two
// by which the fp16 values are to be multiplied.
//
// 16-byte chunk c of row i lies at chunk row_chunk(i, c) of the row, so that eight rows that are
// written to shared memory at once lie in different banks.
#pragma once
#include "core/types.cuh"

NSAI_DEVICE int row_chunk(int row, int chunk) { return chunk ^ (row & 7); }

struct SlotScale {
  float factor, step; // powers of two; each is the other's inverse
};

// Brings values of up to `most` below 2^15.
NSAI_DEVICE SlotScale slot_scale(float most) {
  // The exponents of both are those of normal numbers.
  const u32 exponent = max(__float_as_uint(most) >> 23, 15u);
  return SlotScale{ __uint_as_float((268 - exponent) << 23),
                    __uint_as_float((exponent - 14) << 23) };
}
