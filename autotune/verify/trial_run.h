/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One case made ready to run: its tensors between guard bands, a plan, a workspace, and the rows
 * that will be compared. forward.h verifies the results. Not thread-safe.
 */
#ifndef NSAI_VERIFY_TRIAL_RUN_H
#define NSAI_VERIFY_TRIAL_RUN_H

#include "verify/result.h"
#include "verify/tensors.h"

#include <nsa/index_kl.h>

/* A plan with its context. The maker owns both; nothing here destroys them. */
typedef struct nsai_trial_plan {
  nsa_ctx *ctx;
  nsa_plan *plan;
  nsa_caps caps;
} nsai_trial_plan;

/* The largest number of rows whose importance a forward plan can return: its problem's
 * max_probe_rows. */
#define NSAI_VERIFY_MAX_PROBES 64

typedef struct nsai_trial_run {
  const nsai_verify_case *c; /* the caller's */
  nsai_verify_tensors data;
  nsai_trial_plan plan;
  int64_t *tokens; /* ascending rows that are compared with the reference */
  int64_t token_count;
  int threads; /* of the input generator and the reference; at least 1 */
  /* Calls are nsa_index_kl with these outputs; of a plan with NSA_SELECT_ALL the selected branch's LSE holds
   * that of dense attention. NULL: they are the case's. */
  const nsa_index_grads *index_grads;
  /* plans of nsacheck, for checks that need a second trial run; else NULL */
  struct chk_plans *plans;
} nsai_trial_run;

/* Samples the rows, makes, fills and uploads the tensors, and allocates a workspace; returns
 * when the device has all of it. `c` and `device` must outlive the trial run; `plan` is copied.
 * nsai_trial_run_destroy must be called even after a failure.
 *
 * NSA_E_NOMEM, or the driver's error. */
nsa_status nsai_trial_run_prepare(const nsai_verify_device *device, const nsai_verify_case *c,
                                  const nsai_trial_plan *plan, int threads, nsai_trial_run *trial);
void nsai_trial_run_destroy(nsai_trial_run *trial);

/* Switches to another plan of the same case (same problem, same model). The workspace gets
 * exactly the size that this plan asks for, with a guard band right after it, and is filled with
 * NaN, so that results of the previous plan cannot be mistaken for this one's. No run may be in
 * progress. NSA_E_NOMEM, or the driver's error; another successful call is then needed before
 * the next run. */
nsa_status nsai_trial_run_use(nsai_trial_run *trial, const nsai_trial_plan *plan);

/* Enqueues the case's call: nsa_forward, nsa_dense, nsa_compress or nsa_select. `branches` as
 * nsa_exec has it, 0: all. `stream` NULL: the device's. Returns the call's status. */
nsa_status nsai_trial_run_enqueue(const nsai_trial_run *trial, uint32_t branches,
                                  nsa_stream stream);

/* Poisons the outputs, runs the case's call on the device's stream, waits, and fetches the
 * outputs. */
nsa_status nsai_trial_run_execute(nsai_trial_run *trial);

/* The same; a change of memory that must not be written is a failure in `result`. */
nsa_status nsai_trial_run_intact(nsai_trial_run *trial, nsai_verify_result *result);

/* Copies the results of a forward's last run on the device (selected blocks; with `saved` also
 * compressed blocks, the branches' outputs and LSE) into the inputs of a backward pass's trial
 * run, as far as both have them. */
nsa_status nsai_trial_run_hand_over(const nsai_trial_run *from, nsai_trial_run *to);

#endif /* NSAI_VERIFY_TRIAL_RUN_H */
