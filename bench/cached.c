/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "cached.h"

#include "base/error.h"
#include "program.h"
#include "verify/tensors_fill.h"

const char *bench_cached_dtype_name(int32_t dtype) { return dtype == NSA_E4M3 ? "e4m3" : "model"; }

int32_t bench_cached_dtype_parse(const char *option, const char *value, struct argp_state *state) {
  static const char *const words[] = { "model", "fp8", "e4m3", NULL };
  return nsai_program_word(option, value, words, state) ? NSA_E4M3 : NSA_NONE;
}

int bench_cached_fill_parse(const char *value, struct argp_state *state) {
  const char *fills[NSAI_VERIFY_FILLS + 1] = { NULL };
  for (int fill = 0; fill < NSAI_VERIFY_FILLS; fill++)
    fills[fill] = nsai_verify_fill_name((nsai_verify_fill)fill);
  return nsai_program_word("--fill", value, fills, state);
}

void bench_cached_set(const bench_cached_dtypes *dtypes, nsa_problem *problem) {
  problem->kv_dtype = dtypes->kv == NSA_E4M3 ? NSA_E4M3 : NSA_NONE;
  problem->cmp_dtype = dtypes->cmp == NSA_E4M3 ? NSA_E4M3 : NSA_NONE;
}

void bench_cached_describe(const bench_cached_dtypes *dtypes, FILE *out) {
  if (dtypes->kv == NSA_E4M3) fputs(", raw K and V in e4m3", out);
  if (dtypes->cmp == NSA_E4M3) fputs(", compressed entries or index keys in e4m3", out);
}

nsa_status bench_cached_check(const char *command, const nsai_model *g) {
  if (nsai_compresses(g) && g->phi != NSAI_PHI_MEAN)
    return nsai_fail(NSA_E_ARG, "%s is timed with phi=mean: the caches are filled by nsa_kv_append",
                     command);
  if (g->gate == NSAI_GATE_MLP)
    return nsai_fail(NSA_E_ARG, "%s is timed with gate=logits, gate=weights or gate=none", command);
  return NSA_OK;
}
