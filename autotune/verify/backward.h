/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Whether what a bench's backward pass left is right: every gradient against the float64 reference, and
 * the same bits when it runs again. The reference's gradients depend on the bench's inputs alone, and
 * serve all plans that run on it.
 */
#ifndef NSAI_VERIFY_BACKWARD_H
#define NSAI_VERIFY_BACKWARD_H

#include "verify/result.h"
#include "verify/trial_run.h"

typedef struct nsai_verify_expected_grads nsai_verify_expected_grads;

/* Asks the reference, before a run: what a case that accumulates adds to is put into the outputs here.
 * NSA_E_NOMEM, or what the driver says; `*out` is NULL then. */
nsa_status nsai_verify_expected_grads_create(nsai_trial_run *trial,
                                             nsai_verify_expected_grads **out);
void nsai_verify_expected_grads_destroy(nsai_verify_expected_grads *wanted);

/* Judges the fetched gradients. */
void nsai_verify_backward(const nsai_trial_run *trial, const nsai_verify_expected_grads *wanted,
                          nsai_verify_result *result);

/* Runs the case, judges memory and gradients, and runs it again: other bits are a failure. */
nsa_status nsai_verify_check_backward(nsai_trial_run *trial,
                                      const nsai_verify_expected_grads *wanted,
                                      nsai_verify_result *result);

/* saved_error.c: adds to `plain`, f32 and contiguous, what the rounded outputs of a case with `saved` do
 * to the gradients of queries, gates and, where they are there, keys. */
nsa_status nsai_verify_add_saved_error(const nsai_trial_run *trial, const nsa_batch *batch,
                                       const nsa_io *io, nsa_tensor plain[NSAI_VERIFY_SLOTS]);

/* score_error.c: adds to d_q, f32 and contiguous or absent, what rounding dS does to it; `io` with
 * compressed keys and values as they are stored. */
nsa_status nsai_verify_add_score_error(const nsai_trial_run *trial, const nsa_io *io,
                                       const nsa_tensor *d_o, nsa_tensor *d_q);

#endif /* NSAI_VERIFY_BACKWARD_H */
