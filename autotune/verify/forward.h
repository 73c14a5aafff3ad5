/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Whether what a bench's last run fetched is right, by the float64 reference: each stage on its own
 * inputs (the compressed keys as the library stored them, its own block indices), then the whole
 * from the raw inputs. Memory around the outputs is nsai_trial_run_intact's matter.
 *
 * Wrong results are failures in `result`, which keeps the figures; a status that is not NSA_OK
 * (NSA_E_NOMEM) says that nothing could be judged. `truth` keeps the reference's answers for the
 * next judgement (expected.h); NULL: nothing is kept.
 */
#ifndef NSAI_VERIFY_FORWARD_H
#define NSAI_VERIFY_FORWARD_H

#include "verify/expected.h"
#include "verify/result.h"
#include "verify/trial_run.h"

/* After nsa_forward: every output that the case has. */
nsa_status nsai_verify_forward(nsai_trial_run *trial, nsai_verify_expected *expected,
                               nsai_verify_result *result);

/* After nsa_compress or nsa_forward: k_cmp and v_cmp. */
nsa_status nsai_verify_compressed(nsai_trial_run *trial, nsai_verify_expected *expected,
                                  nsai_verify_result *result);

/* After nsa_dense: o and lse. */
nsa_status nsai_verify_dense(nsai_trial_run *trial, nsai_verify_expected *expected,
                             nsai_verify_result *result);

#endif /* NSAI_VERIFY_FORWARD_H */
