/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Verifies the results of a backward pass: every gradient against the float64 reference, and the
 * same bits in a second run. The reference's gradients depend only on the inputs of the trial
 * run, so they serve all plans that run on it.
 */
#ifndef NSAI_VERIFY_BACKWARD_H
#define NSAI_VERIFY_BACKWARD_H

#include "verify/result.h"
#include "verify/trial_run.h"

typedef struct nsai_verify_expected_grads nsai_verify_expected_grads;

/* Computes the reference's gradients before a run. If the case accumulates, also fills the
 * outputs with numbers to add to. NSA_E_NOMEM, or the driver's error; `*out` is then NULL. */
nsa_status nsai_verify_expected_grads_create(nsai_trial_run *trial,
                                             nsai_verify_expected_grads **out);
void nsai_verify_expected_grads_destroy(nsai_verify_expected_grads *wanted);

/* Verifies the fetched gradients. If one is above its bound, `wanted` gets more plain computations.
 * NSA_E_NOMEM. */
nsa_status nsai_verify_backward(nsai_trial_run *trial, nsai_verify_expected_grads *wanted,
                                nsai_verify_result *result);

/* Runs the case, verifies memory and gradients, and runs it again: other bits are a failure. */
nsa_status nsai_verify_check_backward(nsai_trial_run *trial, nsai_verify_expected_grads *wanted,
                                      nsai_verify_result *result);

/* kink_error.c: adds to `plain` (f32, contiguous, absent ones are left out) what hidden units at the
 * kink of relu contribute or would contribute: with float32 sums they may be on or off. Without relu
 * it adds nothing. */
nsa_status nsai_verify_add_kink_error(const nsai_trial_run *trial, const nsa_batch *batch,
                                      const nsa_io *io, const nsa_tensor *d_o,
                                      nsa_tensor plain[NSAI_VERIFY_SLOTS]);

#endif /* NSAI_VERIFY_BACKWARD_H */
