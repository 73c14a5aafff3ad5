/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Gradients of a toy: one tensor for each of its inputs.
 */
#ifndef TEST_GRADIENTS_H
#define TEST_GRADIENTS_H

#include "machine.h"

#define MAX_PAIRS 27

/* An input and its gradient. */
typedef struct pair {
  const char *name;
  nsa_tensor *input, *gradient;
} pair;

/* Lists the pairs whose input is present; returns their number. */
int list_pairs(nsa_io *io, nsa_grads *g, pair out[MAX_PAIRS]);

nsa_tensor tensor_like(toy *t, const nsa_tensor *x, int32_t dtype);

/* Gradients for every input; d_o is random. */
nsa_grads make_grads(toy *t, int32_t dtype);

/* Writes the forward's own selection into io.block_idx. */
void choose(toy *t);

#endif /* TEST_GRADIENTS_H */
