/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "check.h"

#include "verify/rows.h"

#include <string.h>

nsa_status chk_bench_create(chk_session *session, const nsai_trial_case *c,
                            nsai_trial_bench *bench) {
  nsai_trial_plan plan;
  *bench = (nsai_trial_bench){ 0 };
  /* The plan first: what it refuses needs no tensors. */
  NSAI_TRY(chk_session_plan(session, c, chk_case_op(c), &plan));
  nsa_status status = nsai_trial_bench_prepare(chk_session_device(session), c, &plan,
                                               chk_session_opts(session)->threads, bench);
  bench->session = session;
  return status;
}

/* Statuses that say the machine lacks something, not that the library is wrong. */
static int is_missing(nsa_status status) {
  return status == NSA_E_NO_CUBLASLT || status == NSA_E_NO_COMPILER || status == NSA_E_NO_DRIVER ||
         status == NSA_E_NO_DEVICE;
}

/* Multiply-adds that the CPU device may take for a case: some seconds of one core. */
#define CPU_COST 1e10

static nsa_status check_backward(nsai_trial_bench *bench, nsai_trial_result *result) {
  nsai_trial_wanted *wanted;
  NSAI_TRY(nsai_trial_wanted_create(bench, &wanted));
  nsa_status status = nsai_trial_check_backward(bench, wanted, result);
  nsai_trial_wanted_destroy(wanted);
  return status;
}

void chk_check(chk_session *session, const nsai_trial_case *c, nsai_trial_result *result) {
  nsai_trial_bench bench;
  double start = nsai_trial_now();
  *result = (nsai_trial_result){ .outcome = NSAI_TRIAL_PASSED };
  if (!chk_session_device(session)->driver && nsai_trial_case_cost(c) > CPU_COST) {
    nsai_trial_skip(result, "too large for the CPU device");
    return;
  }
  nsa_status status = chk_bench_create(session, c, &bench);
  if (!status) {
    memcpy(result->variants, bench.plan.caps.variants, sizeof result->variants);
    switch (c->kind) {
    case NSAI_TRIAL_FORWARD: status = chk_check_forward(&bench, result); break;
    case NSAI_TRIAL_COMPRESS: status = chk_check_compress(&bench, result); break;
    case NSAI_TRIAL_SELECT: status = chk_check_select(&bench, result); break;
    case NSAI_TRIAL_DENSE: status = chk_check_dense(&bench, result); break;
    case NSAI_TRIAL_BACKWARD: status = check_backward(&bench, result); break;
    case NSAI_TRIAL_NEEDLE: status = chk_check_needle(&bench, result); break;
    default: status = chk_check_property(&bench, result);
    }
  }
  int forced = chk_session_opts(session)->overrides != NULL;
  if (status && (is_missing(status) || (forced && status == NSA_E_UNSUPPORTED)))
    nsai_trial_skip(result, "%s: %s", nsa_status_name(status), nsa_last_error());
  else if (status)
    nsai_trial_fail(result, "%s: %s", nsa_status_name(status), nsa_last_error());
  nsai_trial_bench_destroy(&bench);
  result->seconds = nsai_trial_now() - start;
}
