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

typedef struct nsai_trial_wanted nsai_trial_wanted;

/* Asks the reference, before a run: what a case that accumulates adds to is put into the outputs here.
 * NSA_E_NOMEM, or what the driver says; `*out` is NULL then. */
nsa_status nsai_trial_wanted_create(nsai_trial_bench *bench, nsai_trial_wanted **out);
void nsai_trial_wanted_destroy(nsai_trial_wanted *wanted);

/* Judges the fetched gradients. */
void nsai_trial_judge_backward(const nsai_trial_bench *bench, const nsai_trial_wanted *wanted,
                               nsai_trial_result *result);

/* Runs the case, judges memory and gradients, and runs it again: other bits are a failure. */
nsa_status nsai_trial_check_backward(nsai_trial_bench *bench, const nsai_trial_wanted *wanted,
                                     nsai_trial_result *result);

/* saved_error.c: adds to `plain`, f32 and contiguous, what the rounded outputs of a case with `saved` do
 * to the gradients of queries, gates and, where they are there, keys. */
nsa_status nsai_trial_add_saved_error(const nsai_trial_bench *bench, const nsa_batch *batch,
                                      const nsa_io *io, nsa_tensor plain[NSAI_TRIAL_SLOTS]);

/* score_error.c: adds to d_q, f32 and contiguous or absent, what rounding dS does to it; `io` with
 * compressed keys and values as they are stored. */
nsa_status nsai_trial_add_score_error(const nsai_trial_bench *bench, const nsa_io *io,
                                      const nsa_tensor *d_o, nsa_tensor *d_q);

#endif /* NSAI_VERIFY_BACKWARD_H */
