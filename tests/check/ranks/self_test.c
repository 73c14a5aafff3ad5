/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "ranks/self_test.h"

#include "ranks/serve.h"

#include <math.h>
#include <string.h>

#define MODEL                                                                                      \
  "bwd:h4/2:d16/16:l32/16:s64x4+1+2:w64:phi=linear:gate=mlp.16.8.silu:f32grads:q=300:seed=2"

/* With a GPU's bounds, which allow for roundings of bf16. Only the compressed branch joins ranks
 * that are far from each other. */
#define FAR                                                                                        \
  "ranks=16:align=16:bwd:bf16:h4/2:d16/16:l32/16:s64x0+0+0:w64:phi=linear:f32grads:q=1024:seed=2"

static const struct {
  const char *problem;
  chk_ranks_damage damage;
} damages[] = {
  { "ranks=2:align=16:fwd:q=300", { "one bit or two of o", NSAI_VERIFY_O, 0, 1.01f, 0 } },
  { "ranks=2:align=16:fwd:q=300", { "an LSE", NSAI_VERIFY_LSE + 1, 1e-6f, 1, 0 } },
  { "ranks=3:align=16:fwd:q=300", { "a block index", NSAI_VERIFY_INDEX, 0, 1, 0 } },
  { "ranks=2:align=16:fwd:q=300", { "o of the second run", NSAI_VERIFY_O, 0, 1.01f, 1 } },
  { "ranks=2:align=16:" MODEL, { "d_q", NSAI_VERIFY_D_Q, 0, 1.000001f, 0 } },
  { "ranks=2:align=16:" MODEL, { "dK", NSAI_VERIFY_D_K0, 1e-4f, 1, 0 } },
  { "ranks=2:align=16:" MODEL, { "NaN in dV", NSAI_VERIFY_D_V0, 0, NAN, 0 } },
  { "ranks=2:align=16:" MODEL, { "NaN in a weight", NSAI_VERIFY_D_PHI_K + 1, 0, NAN, 0 } },
  { "ranks=4:align=16:" MODEL, { "dV", NSAI_VERIFY_D_V0, 1e-4f, 1, 0 } },
  { FAR, { "what the last of 16 ranks adds to dK", NSAI_VERIFY_D_K0, 0, 1, 0, true } },
  { FAR, { "what the last of 16 ranks adds to dV", NSAI_VERIFY_D_V0, 0, 1, 0, true } },
  { "ranks=2:align=16:" MODEL, { "a weight of phi", NSAI_VERIFY_D_PHI_K + 1, 1e-4f, 1, 0 } },
  { "ranks=2:align=16:" MODEL, { "a weight of the gate", NSAI_VERIFY_D_GATE_W2, 1e-3f, 1, 0 } },
};

static void keep(void *user, int64_t number, const char *text, const nsai_verify_result *result) {
  (void)number;
  (void)text;
  memcpy(user, result, sizeof *result);
}

static int say(FILE *out, const char *name, bool noticed, const nsai_verify_result *result) {
  fprintf(out, "%-12s %s: %s\n", noticed ? "noticed" : "NOT NOTICED", name, result->text);
  fflush(out);
  return !noticed;
}

/* Ranks of which none fails, where the others must report one. */
static int run_without_fault(const chk_runner *runner, const chk_ranks_problem *p,
                             const chk_fault *none, const char *name, FILE *out) {
  nsai_verify_result result = { .outcome = NSAI_VERIFY_PASSED };
  const nsa_status status = chk_fault_threads(runner, p, none, &result);
  const bool noticed = !status && result.outcome == NSAI_VERIFY_FAILED &&
                       strstr(result.text, "returned NSA_OK") != NULL;
  return say(out, name, noticed, &result);
}

int chk_ranks_self_test(const chk_plans_options *plans, FILE *out) {
  int unnoticed = 0;
  for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
    char error[256];
    chk_ranks_problem p;
    nsai_verify_result result = { 0 };
    if (chk_ranks_parse(damages[i].problem, &p, error, sizeof error)) {
      fprintf(out, "%s: %s\n", damages[i].problem, error);
      return 1;
    }
    /* Undamaged it must pass: otherwise any failure would count. */
    for (int damaged = 0; damaged < 2; damaged++) {
      long long outcomes[3] = { 0 };
      const chk_runner runner = { *plans,
                                  { damages[i].damage.run + 1, 10000,
                                    damaged ? &damages[i].damage : NULL, damages[i].damage.lost },
                                  keep,
                                  &result };
      nsa_status status = chk_run_threads(&runner, &p, 1, outcomes);
      const nsai_verify_outcome wanted = damaged ? NSAI_VERIFY_FAILED : NSAI_VERIFY_PASSED;
      if (status || (!damaged && result.outcome != wanted)) {
        fprintf(out, "FAILED       %s, without damage: %s\n", damages[i].damage.name,
                status ? nsa_last_error() : result.text);
        unnoticed++;
        break;
      }
      if (damaged) unnoticed += say(out, damages[i].damage.name, result.outcome == wanted, &result);
    }
  }
  unnoticed += chk_serve_self_test(plans, out);
  char error[256];
  chk_ranks_problem p;
  const chk_fault none = { .kind = CHK_FAULT_NONE, .timeout_ms = 3000 };
  const chk_runner runner = { *plans, { 1, 3000, NULL, false }, keep, NULL };
  if (chk_ranks_parse("ranks=2:fwd:q=300", &p, error, sizeof error)) return unnoticed + 1;
  unnoticed += run_without_fault(&runner, &p, &none, "no fault", out);
  chk_fault place = none;
  if (!chk_serve_find_faults(1, 2, 100, CHK_CACHE_CODES_NONE, &p)) return unnoticed + 1;
  unnoticed += run_without_fault(&runner, &p, &place, "no fault in a decode", out);
  place.in_agree = true;
  return unnoticed + run_without_fault(&runner, &p, &place, "no fault in a prefill", out);
}
