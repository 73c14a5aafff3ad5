/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One case made ready to run: its tensors inside red zones, a plan, a workspace, and the rows that
 * will be compared. What a plan computes is forward.h's matter. Not thread-safe.
 */
#ifndef NSAI_VERIFY_TRIAL_RUN_H
#define NSAI_VERIFY_TRIAL_RUN_H

#include "verify/result.h"
#include "verify/tensors.h"

/* A plan with its context. Both stay their maker's: here nothing destroys them. */
typedef struct nsai_trial_plan {
  nsa_ctx *ctx;
  nsa_plan *plan;
  nsa_caps caps;
} nsai_trial_plan;

/* Rows whose importance a forward plan can be asked for: its problem's max_probe_rows at most. */
#define NSAI_VERIFY_MAX_PROBES 64

typedef struct nsai_trial_run {
  const nsai_verify_case *c; /* the caller's */
  nsai_verify_tensors data;
  nsai_trial_plan plan;
  int64_t *tokens; /* rows that are compared with the reference, ascending */
  int64_t token_count;
  int threads;             /* of the generator and of the reference; 1 and up */
  struct chk_plans *plans; /* of nsacheck, for checks that make a second bench; else NULL */
} nsai_trial_run;

/* Samples the rows, makes, fills and uploads the tensors, takes a workspace; returns when the
 * device has it all. `c` and `device` must outlive the bench, `plan` is copied. On failure
 * nsai_trial_run_destroy still has to be called.
 *
 * NSA_E_NOMEM, or what the driver says. */
nsa_status nsai_trial_run_prepare(const nsai_verify_device *device, const nsai_verify_case *c,
                                  const nsai_trial_plan *plan, int threads, nsai_trial_run *trial);
void nsai_trial_run_destroy(nsai_trial_run *trial);

/* Puts another plan of the same case (same problem, same model) in. The workspace becomes exactly
 * what this plan asks for, grown where needed, its red zone right behind, and all NaN: what the
 * plan before left there cannot pass for this one's. No run may be under way. NSA_E_NOMEM, or what
 * the driver says; the bench then needs another successful call before it runs again. */
nsa_status nsai_trial_run_use(nsai_trial_run *trial, const nsai_trial_plan *plan);

/* Enqueues the case's call: nsa_forward, nsa_dense, nsa_compress or nsa_select. `branches` as
 * nsa_exec has it, 0: all. `stream` NULL: the device's. Returns the call's status. */
nsa_status nsai_trial_run_enqueue(const nsai_trial_run *trial, uint32_t branches,
                                  nsa_stream stream);

/* Poisons the outputs, runs the case's call on the device's stream, waits, fetches the outputs. */
nsa_status nsai_trial_run_execute(nsai_trial_run *trial);

/* The same, and memory that changed though nobody may write there is a failure in `result`. */
nsa_status nsai_trial_run_intact(nsai_trial_run *trial, nsai_verify_result *result);

/* Copies what a forward's last run has left on the device (chosen blocks; with `saved` compressed blocks,
 * branches' outputs and LSE, too) into the inputs of a backward pass's bench, as far as both have them. */
nsa_status nsai_trial_run_hand_over(const nsai_trial_run *from, nsai_trial_run *to);

#endif /* NSAI_VERIFY_TRIAL_RUN_H */
