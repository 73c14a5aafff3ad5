/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Checks the gradients of a backward pass, d_o and the outputs that the caller asks for, and those of
 * an index branch.
 */
#ifndef NSAI_RUN_CHECK_GRADIENTS_H
#define NSAI_RUN_CHECK_GRADIENTS_H

#include "run/check_run.h"

#include <nsa/backward.h>
#include <nsa/index_kl.h>

/* All tensors of `grads`, and what runtime.recompute asks of io; the tensors of io are checked, and
 * `sizes` is theirs. */
nsa_status nsai_check_grads(const nsai_check *check, const nsa_io *io, const nsa_grads *grads,
                            const nsai_run_sizes *sizes);

/* The outputs of nsa_index_kl; `sizes` is of the tensors of io. */
nsa_status nsai_check_index_grads(const nsai_check *check, const nsa_index_grads *grads,
                                  const nsai_run_sizes *sizes);

#endif /* NSAI_RUN_CHECK_GRADIENTS_H */
