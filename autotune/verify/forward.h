/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Verifies what the last run of a trial fetched against the float64 reference: first each stage
 * on its own inputs (the compressed keys as the library stored them, its own block indices),
 * then the final output from the raw inputs. nsai_trial_run_intact checks the memory around the
 * outputs.
 *
 * Wrong results are failures in `result`, which also keeps the figures. A status other than
 * NSA_OK (NSA_E_NOMEM) means that nothing could be verified. `expected` keeps the reference's
 * results for the next verification (expected.h); NULL: nothing is kept.
 */
#ifndef NSAI_VERIFY_FORWARD_H
#define NSAI_VERIFY_FORWARD_H

#include "verify/expected.h"
#include "verify/result.h"
#include "verify/trial_run.h"

/* After nsa_forward: verifies every output that the case has. */
nsa_status nsai_verify_forward(nsai_trial_run *trial, nsai_verify_expected *expected,
                               nsai_verify_result *result);

/* After nsa_compress or nsa_forward: k_cmp and v_cmp. */
nsa_status nsai_verify_compressed(nsai_trial_run *trial, nsai_verify_expected *expected,
                                  nsai_verify_result *result);

/* After nsa_dense: o and lse. */
nsa_status nsai_verify_dense(nsai_trial_run *trial, nsai_verify_expected *expected,
                             nsai_verify_result *result);

#endif /* NSAI_VERIFY_FORWARD_H */
