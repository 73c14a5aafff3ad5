/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "run_case.h"

#include "../check.h"
#include "base/duration.h"
#include "scenario.h"

static void note_scenario(const chk_cache_options *options, nsai_verify_result *result) {
  char text[512] = "";
  FILE *out = fmemopen(text, sizeof text, "w");
  if (!out) return;
  chk_cache_options_print(options, out);
  fclose(out);
  nsai_verify_note(result, "%s", text);
}

/* Transfers the findings; figures are errors divided by their limits. */
static void take(const chk_cache_result *found, nsai_verify_result *result) {
  nsai_verify_note(result, "%lld rows, %lld near the cut, %lld reads counted",
                   (long long)found->rows, (long long)found->near_cut, (long long)found->counted);
  if (found->failure[0]) nsai_verify_fail(result, "%s", found->failure);
  nsai_verify_add_figure(result, "o", found->o, 1);
  nsai_verify_add_figure(result, "branch", found->branch, 1);
  nsai_verify_add_figure(result, "lse", found->lse, 1);
  nsai_verify_add_figure(result, "entry", found->entry, 1);
  nsai_verify_add_figure(result, "importance", found->importance, 1);
  snprintf(result->variants, sizeof result->variants, "%s", found->variants);
}

static nsa_status soak(const chk_plans *plans, const chk_cache_case *c,
                       const chk_cache_options *options, chk_cache_result *found,
                       nsai_verify_result *result) {
  chk_soak_counts n = { 0 };
  const chk_soak_request request = {
    .options = options, .given = chk_plans_opts(plans), .steps = c->steps, .every = c->every
  };
  nsa_status status = chk_cache_soak(chk_plans_device(plans), &request, &n, found);
  nsai_verify_note(result,
                   "%lld steps, %lld checks, %lld tokens, %lld arrivals, %lld exits, %lld shared "
                   "prefixes, %lld rollbacks, %lld pages copied, %lld poisoned",
                   (long long)n.steps, (long long)n.checks, (long long)n.tokens,
                   (long long)n.arrivals, (long long)n.exits, (long long)n.forks,
                   (long long)n.rollbacks, (long long)n.copies, (long long)n.poisoned);
  return status;
}

void chk_cache_check(const chk_plans *plans, const chk_cache_case *c, nsai_verify_result *result) {
  const nsai_verify_device *device = chk_plans_device(plans);
  chk_cache_options options;
  chk_cache_result found = { 0 };
  nsa_status status;
  double start = nsai_seconds();
  *result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  chk_cache_options_make(c, &options);
  note_scenario(&options, result);
  if (c->kind == CHK_CACHE_SOAK)
    status = soak(plans, c, &options, &found, result);
  else
    status = (c->kind == CHK_CACHE_SPLIT ? chk_cache_split : chk_cache_walk)(device, &options,
                                                                             chk_plans_opts(plans),
                                                                             NULL, &found);
  take(&found, result);
  chk_conclude(status, true, result);
  if (c->force && device->driver) chk_demand_row(c->force, result);
  result->seconds = nsai_seconds() - start;
}
