/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The checks. Each takes a case and fills a result; a status other than NSA_OK means that
 * something could not be tried at all.
 */
#ifndef CHK_CHECK_H
#define CHK_CHECK_H

#include "plan/variant.h"
#include "plans.h"
#include "verify/backward.h"
#include "verify/forward.h"

/* Prepares one case: its plan, its tensors, a workspace. nsai_trial_run_destroy must be called
 * even after a failure. */
nsa_status chk_bench_create(chk_plans *plans, const nsai_verify_case *c, nsai_trial_run *trial);

/* Runs one case of any kind. */
void chk_check(chk_plans *plans, const nsai_verify_case *c, nsai_verify_result *result);

/* Converts the status of an unfinished check. It is a skip if the machine lacks something or,
 * with `may_refuse`, if the library refuses the problem; else a failure. NSA_OK changes nothing. */
void chk_conclude(nsa_status status, bool may_refuse, nsai_verify_result *result);

/* Whether a row is among "stage=variant ..." of nsa_caps. */
bool chk_names_row(const char *variants, const nsai_variant *row);

/* If a row is not among the variants of a passed result: makes it a failure, or, of a problem
 * without the row's stage, a skip. */
void chk_demand_row(const nsai_variant *row, nsai_verify_result *result);

/* The checks by kind. */
nsa_status chk_check_forward(nsai_trial_run *trial, nsai_verify_result *result);
nsa_status chk_check_compress(nsai_trial_run *trial, nsai_verify_result *result);
nsa_status chk_check_select(nsai_trial_run *trial, nsai_verify_result *result);
nsa_status chk_check_dense(nsai_trial_run *trial, nsai_verify_result *result);
nsa_status chk_check_property(nsai_trial_run *trial, nsai_verify_result *result);
nsa_status chk_check_index_kl(nsai_trial_run *trial, nsai_verify_result *result);
nsa_status chk_check_needle(nsai_trial_run *trial, nsai_verify_result *result);

/* Injects damage into results and requires that each kind is reported. Changes the inputs of
 * stored expected results and requires that they are recomputed. Returns the number of failures. */
int chk_self_test(chk_plans *plans, FILE *out);

/* Its part for gradients through relu. */
int chk_kink_self_test(chk_plans *plans, FILE *out);

/* Prints a line of the self-test. `seen`: whether the damage was reported; -1: it could not be
 * injected. Returns 1 for a failure, else 0. */
int chk_report_damage(FILE *out, const char *name, int seen, const char *text);

#endif /* CHK_CHECK_H */
