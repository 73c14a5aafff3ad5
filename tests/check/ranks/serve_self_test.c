/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "check.h"
#include "ranks/runners.h"
#include "ranks/serve.h"

#include <string.h>

/* Every kind of damage, and a word of the failure that must name it. */
static const struct {
  int kind;
  const char *name, *word;
} damages[] = {
  { CHK_SERVE_DAMAGE_INPUT, "NaN in a page of the rank's unit", "error inf times" },
  { CHK_SERVE_DAMAGE_IDX, "a block index", "block_idx of" },
  { CHK_SERVE_DAMAGE_LSE_CMP, "a bit of the compressed branch's LSE", "lse[cmp] of" },
  { CHK_SERVE_DAMAGE_LSE_SEL, "the selected branch's LSE", "lse[sel] of" },
  { CHK_SERVE_DAMAGE_BRANCH, "the selected branch", "o_branch[sel] of" },
  { CHK_SERVE_DAMAGE_O, "o", "o of" },
  { CHK_SERVE_DAMAGE_BIT, "a bit of o on one rank", "other bits than that of rank 0" },
  { CHK_SERVE_DAMAGE_AGAIN, "a bit of o of the second run", "differs from run 1" },
  { CHK_SERVE_DAMAGE_BEHIND, "a row behind the tokens", "outside its rows" },
  { CHK_SERVE_DAMAGE_RAW, "a byte of a raw page", "another than one rank's" },
  { CHK_SERVE_DAMAGE_ENTRY, "a byte of a page of entries", "another than one rank's" },
  { CHK_SERVE_DAMAGE_FREE, "a page that no sequence has", "no sequence has" },
  { CHK_SERVE_DAMAGE_GUARD, "memory before the pool", "beside the pool" },
  { CHK_SERVE_DAMAGE_PREFILL, "a bit of o of a prefill", "of a prefill is another" },
};
enum { DAMAGES = sizeof damages / sizeof *damages };
_Static_assert(DAMAGES == CHK_SERVE_DAMAGES - 1, "every kind of damage is tried");

static void keep(void *user, int64_t number, const char *text, const nsai_verify_result *result) {
  (void)number;
  (void)text;
  memcpy(user, result, sizeof *result);
}

/* The outcome of a scenario; a status is a failure of another kind, which has no damage's words. */
static void run(const chk_plans_options *plans, const chk_ranks_problem *p, int kind,
                nsai_verify_result *result) {
  long long outcomes[3] = { 0 };
  const chk_runner runner = {
    *plans,
    { .repeat = kind == CHK_SERVE_DAMAGE_AGAIN ? 2 : 1, .timeout_ms = 10000, .serve_damage = kind },
    keep,
    result
  };
  memset(result, 0, sizeof *result);
  chk_conclude(chk_run_threads(&runner, p, 1, outcomes), false, result);
}

int chk_serve_self_test(const chk_plans_options *plans, FILE *out) {
  static const char scenario[] = "ranks=3:cache:decode:seed=55:longest=400:steps=2";
  nsai_verify_result result;
  chk_ranks_problem p;
  char error[256];
  int unnoticed = 0;
  if (chk_ranks_parse(scenario, &p, error, sizeof error)) {
    fprintf(out, "%s: %s\n", scenario, error);
    return 1;
  }
  /* Undamaged it must pass: otherwise any failure would count. */
  run(plans, &p, CHK_SERVE_DAMAGE_NONE, &result);
  if (result.outcome != NSAI_VERIFY_PASSED) {
    fprintf(out, "FAILED       a cache without damage: %s\n", result.text);
    return 1;
  }
  for (int i = 0; i < DAMAGES; i++) {
    run(plans, &p, damages[i].kind, &result);
    const int noticed =
        result.outcome == NSAI_VERIFY_FAILED && strstr(result.text, damages[i].word) != NULL;
    fprintf(out, "%-12s cache: %s: %s\n", noticed ? "noticed" : "NOT NOTICED", damages[i].name,
            result.text);
    unnoticed += !noticed;
  }
  return unnoticed;
}
