/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Checks the values of a batch's arrays. On the CPU device this happens unless
 * runtime.check_inputs is off. On a GPU it happens only if runtime.check_inputs is full: the arrays
 * are copied to the host, which waits for the stream. It is skipped while the stream is being
 * captured.
 */
#ifndef NSAI_RUN_CHECK_VALUES_H
#define NSAI_RUN_CHECK_VALUES_H

#include "base/arena.h"
#include "run/check_run.h"

typedef struct nsai_batch_values {
  const nsa_batch *batch; /* the caller's, or `copy`; NULL: nothing can be looked at */
  nsa_batch copy;
  nsai_arena memory; /* of the copy's arrays */
} nsai_batch_values;

/* `batch` may be NULL; what its arrays are has been checked. `values` stays where it is and goes to
 * nsai_batch_values_fini, unless this fails: NSA_E_NOMEM, NSA_E_CUDA. */
nsa_status nsai_batch_values_read(const nsai_check *check, const nsa_batch *batch,
                                  nsai_batch_values *values);
void nsai_batch_values_fini(nsai_batch_values *values);

#endif /* NSAI_RUN_CHECK_VALUES_H */
