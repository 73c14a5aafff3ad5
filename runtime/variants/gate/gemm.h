/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The buffers of gate_gemm, of which the backward pass through the gate reuses the first.
 */
#ifndef NSAI_VARIANTS_GATE_GEMM_H
#define NSAI_VARIANTS_GATE_GEMM_H

enum { NSAI_GATE_PRODUCT, NSAI_GATE_HIDDEN, NSAI_GATE_BUFFERS }; /* f32 and dtype [T, H] */

#endif /* NSAI_VARIANTS_GATE_GEMM_H */
