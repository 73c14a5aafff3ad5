/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The values of a batch's arrays, where the host may look at them: always on the CPU device, where
 * a wrong one would be followed; on a GPU where runtime.check_inputs is full, in copies that the
 * stream is waited for, but never while it is being captured.
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
