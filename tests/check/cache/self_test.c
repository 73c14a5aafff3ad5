/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The self-test of the cache checks: injected damage must be reported.
 */
#include "../check.h"
#include "run_case.h"
#include "scenario.h"

static const char *const damage_names[CHK_CACHE_INJECT_KINDS] = {
  [CHK_CACHE_INJECT_O] = "cache: output",
  [CHK_CACHE_INJECT_NAN] = "cache: NaN",
  [CHK_CACHE_INJECT_BRANCH] = "cache: one branch",
  [CHK_CACHE_INJECT_LSE] = "cache: lse",
  [CHK_CACHE_INJECT_LIST] = "cache: bad index",
  [CHK_CACHE_INJECT_CHOICE] = "cache: another block",
  [CHK_CACHE_INJECT_IMPORTANCE] = "cache: importance",
  [CHK_CACHE_INJECT_READS] = "cache: read counters",
  [CHK_CACHE_INJECT_CACHE] = "cache: cached token",
  [CHK_CACHE_INJECT_ENTRY] = "cache: entry",
  [CHK_CACHE_INJECT_GUARD] = "cache: guard",
  [CHK_CACHE_INJECT_BEHIND] = "cache: row behind",
  [CHK_CACHE_INJECT_WORKSPACE] = "cache: workspace",
  [CHK_CACHE_INJECT_AGAIN] = "cache: repeated o",
  [CHK_CACHE_INJECT_CACHE_AGAIN] = "cache: repeated append"
};

/* Every kind of damage, in the first scenario that allows it; what lies in the cache also as codes. */
static int damaged_steps(const chk_plans *plans, int32_t longest, bool codes, FILE *out) {
  int unnoticed = 0;
  for (int kind = CHK_CACHE_INJECT_NOTHING + 1; kind < CHK_CACHE_INJECT_KINDS; kind++) {
    int inject = kind;
    chk_cache_case c = CHK_CACHE_CASE_INIT;
    chk_cache_result found = { 0 };
    if (codes && kind != CHK_CACHE_INJECT_CACHE && kind != CHK_CACHE_INJECT_ENTRY &&
        kind != CHK_CACHE_INJECT_CACHE_AGAIN)
      continue;
    c.codes = codes ? CHK_CACHE_CODES_BOTH : CHK_CACHE_CODES_NONE;
    c.longest = longest;
    for (c.seed = 1; inject != CHK_CACHE_INJECTED && c.seed <= 400; c.seed++) {
      chk_cache_options options;
      c.kind = chk_cache_case_kind(&c);
      chk_cache_options_make(&c, &options);
      /* small scenarios suffice */
      if (options.model.heads > 16) continue;
      /* few scenarios are probed */
      if (kind == CHK_CACHE_INJECT_IMPORTANCE && !options.probed) continue;
      nsa_status status =
          chk_cache_walk(chk_plans_device(plans), &options, chk_plans_opts(plans), &inject, &found);
      if (status && status != NSA_E_UNSUPPORTED)
        fprintf(out, "seed %llu: %s\n", (unsigned long long)c.seed, nsa_last_error());
    }
    unnoticed +=
        chk_report_damage(out, damage_names[kind],
                          inject != CHK_CACHE_INJECTED ? -1 : found.failure[0] != 0, found.failure);
  }
  return unnoticed;
}

/* Damage of a complete prefill, which its pieces do not have. */
static int damaged_wholes(const chk_plans *plans, FILE *out) {
  static const int kinds[] = { CHK_CACHE_INJECT_O, CHK_CACHE_INJECT_NAN, CHK_CACHE_INJECT_BRANCH,
                               CHK_CACHE_INJECT_LSE, CHK_CACHE_INJECT_CHOICE };
  int unnoticed = 0;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    int inject = kinds[i];
    chk_cache_case c = CHK_CACHE_CASE_INIT;
    chk_cache_result found = { 0 };
    nsa_status status = NSA_OK;
    c.kind = CHK_CACHE_SPLIT;
    c.longest = 100;
    for (c.seed = 1; !status && inject != CHK_CACHE_INJECTED && c.seed <= 50; c.seed++) {
      chk_cache_options options;
      chk_cache_options_make(&c, &options);
      status = chk_cache_split(chk_plans_device(plans), &options, chk_plans_opts(plans), &inject,
                               &found);
    }
    bool done = !status && inject == CHK_CACHE_INJECTED;
    unnoticed += chk_report_damage(out, damage_names[kinds[i]], done ? found.failure[0] != 0 : -1,
                                   status ? nsa_last_error() : found.failure);
  }
  return unnoticed;
}

/* The kinds of damage of a soak, in a soak that passes without damage. */
static int damaged_soaks(const chk_plans *plans, int32_t longest, FILE *out) {
  static const char *const names[CHK_SOAK_INJECT_KINDS] = {
    [CHK_SOAK_INJECT_COPY] = "soak: shared page",
    [CHK_SOAK_INJECT_FREE] = "soak: free page",
    [CHK_SOAK_INJECT_LEN] = "soak: length",
    [CHK_SOAK_INJECT_AGAIN] = "soak: repeated o"
  };
  int unnoticed = 0;
  for (int kind = CHK_SOAK_INJECT_NOTHING; kind < CHK_SOAK_INJECT_KINDS; kind++) {
    chk_cache_options options;
    chk_soak_counts n;
    chk_cache_result found = { 0 };
    chk_cache_case c = CHK_CACHE_CASE_INIT;
    c.kind = CHK_CACHE_SOAK;
    c.longest = longest;
    chk_cache_options_make(&c, &options);
    const chk_soak_request request = {
      .options = &options, .given = chk_plans_opts(plans), .steps = 600, .every = 20, .inject = kind
    };
    nsa_status status = chk_cache_soak(chk_plans_device(plans), &request, &n, &found);
    bool seen = found.failure[0] || status == NSA_E_ARG; /* the CPU device reads a damaged batch */
    if (kind == CHK_SOAK_INJECT_NOTHING && !seen && !status) continue;
    unnoticed += chk_report_damage(out, kind ? names[kind] : "soak: nothing", kind ? seen : -1,
                                   status ? nsa_last_error() : found.failure);
  }
  return unnoticed;
}

int chk_cache_self_test(const chk_plans *plans, int32_t longest, FILE *out) {
  return damaged_steps(plans, longest, false, out) + damaged_steps(plans, longest, true, out) +
         damaged_wholes(plans, out) + damaged_soaks(plans, longest, out);
}
