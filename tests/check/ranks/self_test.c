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

/* The call in which a fault is tried. */
typedef enum fault_place { IN_RUN, IN_DECODE, IN_PREFILL } fault_place;

static const chk_ranks_damage o_of_late_rank = { "o", NSAI_VERIFY_O, 0, 1.01f, 1 };

/* What the ranks do, whether rank 0 counts as late, damage to its results, and the failure that must be reported. */
static const struct {
  const char *name;
  fault_place place;
  chk_fault_kind kind;
  bool sent;
  const chk_ranks_damage *damage;
  int serve_damage;
  const char *word;  /* of the failure; NULL: it must pass */
  const char *never; /* NULL, or a word that must not be there */
} faults[] = {
  { "no fault", IN_RUN, CHK_FAULT_NONE, false, NULL, 0, "rank 0: the run returned NSA_OK", NULL },
  { "no fault in a decode", IN_DECODE, CHK_FAULT_NONE, false, NULL, 0,
    "rank 0: the decode returned NSA_OK", NULL },
  { "no fault in a prefill", IN_PREFILL, CHK_FAULT_NONE, false, NULL, 0,
    "rank 0: the prefill returned NSA_OK", NULL },
  { "a late rank", IN_RUN, CHK_FAULT_LEAVE, true, NULL, 0, NULL, NULL },
  { "a late rank in a decode", IN_DECODE, CHK_FAULT_LEAVE, true, NULL, 0, NULL, NULL },
  { "a late rank in a prefill", IN_PREFILL, CHK_FAULT_LEAVE, true, NULL, 0, NULL, NULL },
  { "a late rank that may not succeed", IN_RUN, CHK_FAULT_LEAVE, false, NULL, 0,
    "rank 0: the run returned NSA_OK", NULL },
  { "o of a late rank", IN_RUN, CHK_FAULT_LEAVE, true, &o_of_late_rank, 0, "rank 0: o", NULL },
  { "o of a late rank in a decode", IN_DECODE, CHK_FAULT_LEAVE, true, NULL, CHK_SERVE_DAMAGE_O,
    ": o of", NULL },
  { "o of a late rank in a prefill", IN_PREFILL, CHK_FAULT_LEAVE, true, NULL,
    CHK_SERVE_DAMAGE_PREFILL, "of a prefill is another", NULL },
  { "a late rank whose next run succeeds", IN_RUN, CHK_FAULT_NONE, true, NULL, 0,
    "rank 0: the run after it returned NSA_OK", "rank 0: the run returned" },
  { "a late rank whose next decode succeeds", IN_DECODE, CHK_FAULT_NONE, true, NULL, 0,
    "rank 0: the call after it returned NSA_OK", "rank 0: the decode returned" },
  { "a late rank whose next prefill succeeds", IN_PREFILL, CHK_FAULT_NONE, true, NULL, 0,
    "rank 0: the call after it returned NSA_OK", "rank 0: the prefill returned" },
  { "another rank beside a late one", IN_DECODE, CHK_FAULT_NONE, true, NULL, 0,
    "rank 1: the decode returned NSA_OK", NULL },
};

#define LATE_MS 2000 /* after which a late rank that waits gives up */

static int try_faults(const chk_plans_options *plans, FILE *out) {
  char error[256];
  chk_ranks_problem forward, cache;
  int unnoticed = 0;
  if (chk_ranks_parse("ranks=2:fwd:q=300", &forward, error, sizeof error)) return 1;
  if (!chk_serve_find_faults(1, 2, 100, CHK_CACHE_CODES_NONE, &cache)) return 1;
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
    const chk_fault fault = { .kind = faults[i].kind,
                              .in_agree = faults[i].place == IN_PREFILL,
                              .sent = faults[i].sent,
                              .timeout_ms = LATE_MS };
    const chk_runner runner = { *plans,
                                { .repeat = 1,
                                  .timeout_ms = LATE_MS,
                                  .damage = faults[i].damage,
                                  .serve_damage = faults[i].serve_damage },
                                keep,
                                NULL };
    nsai_verify_result result = { .outcome = NSAI_VERIFY_PASSED };
    const nsa_status status =
        chk_fault_threads(&runner, faults[i].place == IN_RUN ? &forward : &cache, &fault, &result);
    const char *word = faults[i].word, *never = faults[i].never;
    bool right = !status && result.outcome == NSAI_VERIFY_PASSED;
    if (word)
      right = !status && result.outcome == NSAI_VERIFY_FAILED && strstr(result.text, word) &&
              !(never && strstr(result.text, never));
    if (word)
      unnoticed += say(out, faults[i].name, right, &result);
    else
      fprintf(out, "%-12s %s%s%s\n", right ? "passed" : "FAILED", faults[i].name, right ? "" : ": ",
              right ? "" : result.text);
    unnoticed += !word && !right;
  }
  return unnoticed;
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
  return unnoticed + try_faults(plans, out);
}
