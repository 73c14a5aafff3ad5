/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_tune.
 */
#include "base/struct.h"
#include "tune/internal.h"

#include <stdlib.h>

static nsa_status check_options(const nsa_tune_options *o) {
  if (o->level < 0 || o->level > NSA_TUNE_EXHAUSTIVE)
    return nsai_fail(NSA_E_ARG,
                     "options.level is %d: expected NSA_TUNE_HEURISTIC (%d) to NSA_TUNE_EXHAUSTIVE "
                     "(%d), or 0 for tuning.level",
                     o->level, NSA_TUNE_HEURISTIC, NSA_TUNE_EXHAUSTIVE);
  if (!(o->budget_s >= 0))
    return nsai_fail(NSA_E_ARG, "options.budget_s is %g: expected seconds, or 0 for tuning.budget",
                     o->budget_s);
  return NSA_OK;
}

static nsa_status check_device(const nsa_ctx *ctx) {
  if (ctx->cpu)
    return nsai_fail(NSA_E_NO_DEVICE, "runtime.device is cpu: the reference has no variants");
  if (ctx->deviceless)
    return nsai_fail(NSA_E_NO_DEVICE,
                     "the context was made for options.arch: there is nothing to measure on");
  return NSA_OK;
}

static nsa_status check_tunable(const nsai_problem *p, size_t index) {
  if (nsai_problem_is_tunable(p)) return NSA_OK;
  if (p->op == NSA_OP_INDEX_KL)
    return nsai_fail(NSA_E_UNSUPPORTED,
                     "problem %zu: %s is not timed here: leave it out, or set "
                     "variants.force.index_kl",
                     index, nsai_op_name(p->op));
  if (p->op == NSA_OP_APPEND)
    return nsai_fail(NSA_E_UNSUPPORTED, "problem %zu: %s has nothing to choose: leave it out",
                     index, nsai_op_name(p->op));
  return nsai_fail(NSA_E_UNSUPPORTED,
                   "problem %zu: %s is timed with selections of the library's own: leave "
                   "problem.selection 0",
                   index, nsai_op_name(p->op));
}

/* Resolves the host's problems. Without any: a forward and a dense problem of the configuration. */
static nsa_status resolve(nsa_ctx *ctx, const nsa_problem *problems, size_t count,
                          nsai_tune_asked **out, size_t *out_count) {
  nsa_problem own[2] = { NSA_PROBLEM_INIT, NSA_PROBLEM_INIT };
  nsa_status status = NSA_OK;
  own[1].op = NSA_OP_DENSE;
  NSAI_TRY(nsai_problem_check_array(problems, count));
  if (!count) problems = own, count = 2;
  *out = calloc(count, sizeof **out);
  *out_count = count;
  if (!*out) return nsai_fail_nomem("problems", count * sizeof **out);
  for (size_t i = 0; i < count && !status; i++) {
    const nsa_problem *problem = nsai_struct_at(problems, i);
    status = nsai_problem_resolve(ctx->config, problem, &(*out)[i].problem);
    (*out)[i].any_overlap = !problem->overlap;
    if (!status) status = check_tunable(&(*out)[i].problem, i);
  }
  return status;
}

nsa_status nsa_tune(nsa_ctx *ctx, const nsa_problem *problems, size_t count,
                    const nsa_tune_options *options) {
  static const nsai_struct_type type = { "options", "NSA_TUNE_OPTIONS_INIT",
                                         sizeof(nsa_tune_options) };
  static const nsa_tune_options defaults = NSA_TUNE_OPTIONS_INIT;
  nsa_tune_options room;
  const void *read;
  nsai_tune_asked *list = NULL;
  size_t list_count = 0;
  NSAI_TRY(nsai_context_check(ctx));
  NSAI_TRY(nsai_struct_in(&type, options ? options : &defaults, &room, &read));
  options = read;
  NSAI_TRY(check_options(options));
  NSAI_TRY(check_device(ctx));
  int32_t level = options->level ? options->level - NSA_TUNE_HEURISTIC + NSAI_LEVEL_HEURISTIC
                                 : ctx->config->tuning.level;
  double budget = options->budget_s > 0 ? options->budget_s : ctx->config->tuning.budget_s;
  NSAI_TRY(nsai_tune_begin(ctx));
  nsa_status status = resolve(ctx, problems, count, &list, &list_count);
  if (!status) status = nsai_tune_problems(ctx, options, level, budget, list, list_count, 0);
  free(list);
  nsai_tune_end(ctx);
  return status;
}
