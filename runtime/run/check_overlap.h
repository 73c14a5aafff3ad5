/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The memory of a run call: no tensor that it writes may share bytes with another tensor of the
 * call. Kernels of several stages run at the same time, so what one of them writes must not be what
 * another one reads.
 *
 * Tensors may still lie in one buffer, as slices of its columns: slices of a packed [T, Wq + Wk +
 * Wv], or K and V of a cache [N, 2, P, Hkv, D]. Their outer strides are multiples of one step, and
 * within each step their bytes lie apart.
 */
#ifndef NSAI_RUN_CHECK_OVERLAP_H
#define NSAI_RUN_CHECK_OVERLAP_H

#include "base/error.h"

#include <stdbool.h>

/* A backward pass with everything that it may have brings 66: 37 inputs, 28 gradients, a
 * workspace. */
#define NSAI_MAX_CALL_TENSORS 80

/* Addresses from the first byte to behind the last. */
typedef struct nsai_address_range {
  uintptr_t begin, end;
} nsai_address_range;

/* A tensor's bytes. */
typedef struct nsai_call_tensor {
  const nsa_tensor *tensor; /* NULL: the workspace */
  char name[32];
  nsai_address_range range;
  bool written;
} nsai_call_tensor;

/* The tensors of one call. Starts as zeros. */
typedef struct nsai_call_tensors {
  int32_t count;
  nsai_call_tensor item[NSAI_MAX_CALL_TENSORS];
} nsai_call_tensors;

/* Adds a tensor with elements that the call reads. `tensor` must stay where it is until the check,
 * and `range` holds all its elements. NSA_E_INTERNAL when there are too many. */
nsa_status nsai_call_tensors_add(nsai_call_tensors *tensors, const nsa_tensor *tensor,
                                 nsai_address_range range, const char *name);

/* Says that the call writes a tensor that was added. */
void nsai_call_tensors_mark_written(nsai_call_tensors *tensors, const nsa_tensor *tensor);

/* Adds the workspace, which is written. NSA_E_ARG when it reaches beyond the address space. */
nsa_status nsai_call_tensors_add_workspace(nsai_call_tensors *tensors, const void *workspace,
                                           uint64_t bytes);

/* Refuses a call whose outputs share bytes with another tensor, naming both: NSA_E_ARG. */
nsa_status nsai_check_overlap(const nsai_call_tensors *tensors);

#endif /* NSAI_RUN_CHECK_OVERLAP_H */
