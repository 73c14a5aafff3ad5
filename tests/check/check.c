/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "check.h"

#include "base/duration.h"
#include "verify/rows.h"

#include <string.h>

nsa_status chk_bench_create(chk_plans *plans, const nsai_verify_case *c, nsai_trial_run *trial) {
  nsai_trial_plan plan;
  *trial = (nsai_trial_run){ 0 };
  /* The plan comes first: a refused plan needs no tensors. */
  NSAI_TRY(chk_plans_get(plans, c, chk_case_op(c), &plan));
  nsa_status status = nsai_trial_run_prepare(chk_plans_device(plans), c, &plan,
                                             chk_plans_opts(plans)->threads, trial);
  trial->plans = plans;
  return status;
}

void chk_conclude(nsa_status status, bool may_refuse, nsai_verify_result *result) {
  const bool lacks = status == NSA_E_NO_CUBLASLT || status == NSA_E_NO_COMPILER ||
                     status == NSA_E_NO_DRIVER || status == NSA_E_NO_DEVICE;
  if (lacks || (may_refuse && status == NSA_E_UNSUPPORTED))
    nsai_verify_skip(result, "%s: %s", nsa_status_name(status), nsa_last_error());
  else if (status)
    nsai_verify_fail(result, "%s: %s", nsa_status_name(status), nsa_last_error());
}

/* Whether "stage=row" pairs hold `pair`, or a pair that begins with it if it ends with '='. */
static bool has_pair(const char *variants, const char *pair) {
  const size_t length = strlen(pair);
  const bool any = pair[length - 1] == '=';
  for (const char *at = variants; (at = strstr(at, pair)); at += length)
    if ((at == variants || at[-1] == ' ') && (any || !at[length] || at[length] == ' ')) return true;
  return false;
}

bool chk_names_row(const char *variants, const nsai_variant *row) {
  char pair[128];
  snprintf(pair, sizeof pair, "%s=%s", nsai_stage_name(row->stage), row->name);
  return has_pair(variants, pair);
}

void chk_demand_row(const nsai_variant *row, nsai_verify_result *result) {
  char stage[64];
  if (result->outcome != NSAI_VERIFY_PASSED || chk_names_row(result->variants, row)) return;
  snprintf(stage, sizeof stage, "%s=", nsai_stage_name(row->stage));
  if (has_pair(result->variants, stage))
    nsai_verify_fail(result, "%s did not run: %s", row->name, result->variants);
  else
    nsai_verify_skip(result, "the problem has no stage for %s: %s", row->name, result->variants);
}

/* Multiply-adds that a case may cost on the CPU device: some seconds of one core. */
#define CPU_COST 1e10

static nsa_status check_backward(nsai_trial_run *trial, nsai_verify_result *result) {
  nsai_verify_expected_grads *wanted;
  NSAI_TRY(nsai_verify_expected_grads_create(trial, &wanted));
  nsa_status status = nsai_verify_check_backward(trial, wanted, result);
  nsai_verify_expected_grads_destroy(wanted);
  return status;
}

void chk_check(chk_plans *plans, const nsai_verify_case *c, nsai_verify_result *result) {
  nsai_trial_run trial;
  double start = nsai_seconds();
  *result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  if (!chk_plans_device(plans)->driver && nsai_verify_case_cost(c) > CPU_COST) {
    nsai_verify_skip(result, "too large for the CPU device");
    return;
  }
  nsa_status status = chk_bench_create(plans, c, &trial);
  if (!status) {
    memcpy(result->variants, trial.plan.caps.variants, sizeof result->variants);
    switch (c->kind) {
    case NSAI_VERIFY_FORWARD: status = chk_check_forward(&trial, result); break;
    case NSAI_VERIFY_COMPRESS: status = chk_check_compress(&trial, result); break;
    case NSAI_VERIFY_SELECT: status = chk_check_select(&trial, result); break;
    case NSAI_VERIFY_DENSE: status = chk_check_dense(&trial, result); break;
    case NSAI_VERIFY_BACKWARD: status = check_backward(&trial, result); break;
    case NSAI_VERIFY_INDEX_KL: status = chk_check_index_kl(&trial, result); break;
    case NSAI_VERIFY_NEEDLE: status = chk_check_needle(&trial, result); break;
    default: status = chk_check_property(&trial, result);
    }
  }
  chk_conclude(status, c->force || chk_plans_opts(plans)->overrides, result);
  if (c->force && chk_plans_device(plans)->driver) chk_demand_row(c->force, result);
  nsai_trial_run_destroy(&trial);
  result->seconds = nsai_seconds() - start;
}
