/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * From a problem to a plan: which decisions, which register fallback, which kernels.
 */
#include "plan/plan.h"

#include "base/struct.h"
#include "driver/arch.h"
#include "plan/digest.h"
#include "plan/kernel_set.h"
#include "plan/parts.h"

#include <stdlib.h>
#include <string.h>

void nsai_plan_decide(nsa_ctx *ctx, const nsai_problem *problem, nsai_decisions *out) {
  *out = (nsai_decisions){ .why = "this library has no tuner: heuristics alone" };
  if (nsai_library_parts.tuning) nsai_library_parts.tuning->decide(ctx, problem, out);
}

/* A problem on its way to kernels. */
typedef struct plan_request {
  nsai_kernel_request kernels;
  const nsai_target *target;       /* the context's, or another device of its architecture */
  const nsai_decisions *decisions; /* hold at the target's own register fallback */
} plan_request;

/* Chooses at one register fallback. */
static nsa_status choose_level(nsa_ctx *ctx, int32_t register_fallback, plan_request *request,
                               nsai_choice *choice) {
  nsai_target target = *request->target;
  const nsai_decisions *decisions =
      register_fallback == target.register_fallback ? request->decisions : NULL;
  target.register_fallback = register_fallback;
  request->kernels.last_resort = register_fallback == NSAI_LAST_RESORT;
  NSAI_TRY(nsai_choose(ctx->config, request->kernels.problem, &target, decisions, NULL, choice));
  request->kernels.specs = choice->specs;
  request->kernels.count = choice->kernel_count;
  return NSA_OK;
}

/* The lowest level, from the target's own, whose kernels are all in memory or on disk; the target's
 * own when none is complete. A level that this compiler refused stays incomplete, so that the next
 * process does not try it again. */
static nsa_status find_level(nsa_ctx *ctx, plan_request *request, nsai_choice *choice,
                             int32_t *level) {
  *level = request->target->register_fallback;
  for (int32_t register_fallback = *level; register_fallback <= NSAI_LAST_RESORT;
       register_fallback++) {
    int32_t missing = 0;
    NSAI_TRY(choose_level(ctx, register_fallback, request, choice));
    NSAI_TRY(nsai_kernel_set_missing(ctx, &request->kernels, &missing));
    if (missing) continue;
    *level = register_fallback;
    return NSA_OK;
  }
  return NSA_OK;
}

/* Whether there is any decision. */
static bool decides(const nsai_decisions *decisions) {
  for (int s = 0; s < NSAI_STAGE_COUNT; s++)
    if (decisions->stage[s].variant) return true;
  return false;
}

nsa_status nsai_plan_target(nsa_ctx *ctx, const nsai_problem *problem,
                            const nsai_decisions *decisions, nsai_target *out) {
  nsai_choice choice;
  plan_request request = { { .problem = problem }, &ctx->target, decisions };
  *out = ctx->target;
  return decides(decisions) ? NSA_OK : find_level(ctx, &request, &choice, &out->register_fallback);
}

nsa_status nsai_plan_foresee(nsa_ctx *ctx, const nsai_problem *problem, nsai_choice *choice,
                             int32_t *missing) {
  nsai_decisions decisions;
  nsai_target target;
  plan_request request = { { .problem = problem }, &ctx->target, &decisions };
  nsai_plan_decide(ctx, problem, &decisions);
  NSAI_TRY(nsai_plan_target(ctx, problem, &decisions, &target));
  NSAI_TRY(choose_level(ctx, target.register_fallback, &request, choice));
  return nsai_kernel_set_missing(ctx, &request.kernels, missing);
}

nsai_form nsai_form_of(const nsai_choice *choice, const nsai_workspace *workspace,
                       const nsai_kernel *kernels, int index) {
  const nsai_chosen_form *f = &choice->forms[index];
  return (nsai_form){ .variant = f->variant,
                      .tiles = f->tiles,
                      .standalone = f->standalone,
                      .spec = &choice->specs[f->first_kernel],
                      .kernel = kernels ? &kernels[f->first_kernel] : NULL,
                      .buffer = &workspace->buffers[f->first_buffer],
                      .number = &workspace->numbers[f->first_number] };
}

/* Whether the kernels of the decisions can be had: one of another compiler's record may be refused
 * by this one. */
static bool decisions_serve(nsa_ctx *ctx, plan_request *request, nsai_choice *choice,
                            nsai_kernel *kernels, nsa_status *status) {
  const nsai_kernel_request *k = &request->kernels;
  int32_t missing = 0;
  *status = choose_level(ctx, request->target->register_fallback, request, choice);
  if (!*status && !k->may_compile) *status = nsai_kernel_set_missing(ctx, k, &missing);
  if (!*status && !missing) *status = nsai_kernel_set_make(ctx, &request->kernels, kernels);
  if (!missing && !(*status && k->refused)) return true;
  /* What another problem's record says was only worth a try. */
  nsai_log(&ctx->logger, request->decisions->other_heads ? NSA_LOG_INFO : NSA_LOG_WARN, "tune",
           "the %s is not followed: %s; `nsa-autotune tune` measures anew", request->decisions->why,
           missing ? "its kernels are in no cache, and runtime.jit forbids to compile them"
                   : "this compiler refuses one of its kernels");
  return false;
}

/* Chooses and makes kernels: by a record, else by the heuristic. Its tiles are as large as
 * registers allow with the compiler they were tried with; another NVRTC or model may need more
 * registers, and a kernel that spills is refused. Then smaller tiles serve, and where the smallest
 * spill as well, the last resort. They are no answer to any other failure. */
static nsa_status make_kernels(nsa_ctx *ctx, plan_request *request, nsai_choice *choice,
                               nsai_kernel *kernels) {
  int32_t register_fallback = 0;
  nsa_status status = NSA_OK;
  if (decides(request->decisions)) {
    if (decisions_serve(ctx, request, choice, kernels, &status)) return status;
    request->kernels.refused = false;
  }
  request->decisions = NULL;
  NSAI_TRY(find_level(ctx, request, choice, &register_fallback));
  NSAI_TRY(choose_level(ctx, register_fallback, request, choice));
  status = nsai_kernel_set_make(ctx, &request->kernels, kernels);
  while (status != NSA_OK && status != NSA_E_CANCELLED && request->kernels.refused &&
         register_fallback < NSAI_LAST_RESORT) {
    int length = (int)strcspn(nsa_last_error(), "\n");
    nsai_log(&ctx->logger, NSA_LOG_WARN, "jit", "smaller tiles are used: %.*s", length,
             nsa_last_error());
    NSAI_TRY(choose_level(ctx, ++register_fallback, request, choice));
    status = nsai_kernel_set_make(ctx, &request->kernels, kernels);
  }
  return status;
}

/* What a plan holds beside problem and kernels. */
static nsa_status complete_plan(nsa_ctx *ctx, nsa_plan *plan) {
  NSAI_TRY(nsai_workspace_make(&plan->problem, &plan->choice, &ctx->target, &plan->workspace));
  for (int i = 0; i < plan->choice.form_count; i++)
    plan->forms[i] = nsai_form_of(&plan->choice, &plan->workspace, plan->kernels, i);
  if (!nsai_needs_gemm(&plan->choice)) return NSA_OK;
  NSAI_TRY(nsai_context_open_gemm(ctx));
  plan->lt = ctx->lt;
  plan->lt_handle = ctx->lt_handle;
  return NSA_OK;
}

const nsai_form *nsai_plan_form(const nsa_plan *plan, nsai_stage stage) {
  const nsai_chosen_form *form = nsai_choice_form(&plan->choice, stage);
  return form ? &plan->forms[form - plan->choice.forms] : NULL;
}

static nsa_status build_plan(nsa_ctx *ctx, nsa_progress_fn progress, void *user, nsa_plan *plan) {
  nsai_decisions decisions;
  plan_request request = { { .problem = &plan->problem,
                             .may_compile = ctx->config->runtime.jit == NSAI_JIT_ON_DEMAND,
                             .progress = progress,
                             .user = user },
                           &ctx->target,
                           &decisions };
  const nsai_tuning *tuning = nsai_library_parts.tuning;
  if (tuning) NSAI_TRY(tuning->first_use(ctx, &plan->problem, progress, user));
  nsai_plan_decide(ctx, &plan->problem, &decisions);
  NSAI_TRY(make_kernels(ctx, &request, &plan->choice, plan->kernels));
  return complete_plan(ctx, plan);
}

/* A choice that is another than what was decided would be timed under the wrong name. */
static nsa_status check_decided(const nsai_decisions *decisions, const nsai_choice *choice) {
  for (int s = 0; s < NSAI_STAGE_COUNT; s++) {
    const nsai_candidate *d = &decisions->stage[s];
    if (!d->variant || !choice->variant[s] || nsai_is_fused(choice, (nsai_stage)s)) continue;
    if (d->variant != choice->variant[s] || memcmp(&d->tiles, &choice->tiles[s], sizeof d->tiles))
      return nsai_fail(NSA_E_INTERNAL, "%s cannot serve %s as decided", d->variant->name,
                       nsai_stage_name((nsai_stage)s));
  }
  return NSA_OK;
}

/* A plan without choice and kernels, which holds its context. */
static nsa_status allocate_plan(nsa_ctx *ctx, const nsai_problem *problem, nsa_plan **out) {
  *out = calloc(1, sizeof **out);
  if (!*out) return nsai_fail_nomem("a plan", sizeof **out);
  (*out)->ctx = ctx;
  (*out)->problem = *problem;
  nsai_context_retain(ctx);
  return NSA_OK;
}

nsa_status nsai_plan_make(nsa_ctx *ctx, const nsai_problem *problem,
                          const nsai_decisions *decisions, nsa_plan **out) {
  nsa_status status = NSA_OK;
  nsai_decisions timed = *decisions;
  nsa_plan *plan;
  *out = NULL;
  NSAI_TRY(allocate_plan(ctx, problem, &plan));
  plan_request request = { { .problem = &plan->problem,
                             .may_compile = ctx->config->runtime.jit != NSAI_JIT_NEVER,
                             .temporary = true },
                           &ctx->target,
                           &timed };
  timed.alone = true;
  NSAI_TRY_TO(fail, choose_level(ctx, ctx->target.register_fallback, &request, &plan->choice));
  NSAI_TRY_TO(fail, check_decided(decisions, &plan->choice));
  NSAI_TRY_TO(fail, nsai_kernel_set_make(ctx, &request.kernels, plan->kernels));
  NSAI_TRY_TO(fail, complete_plan(ctx, plan));
  *out = plan;
  return NSA_OK;
fail:
  nsai_plan_destroy(plan);
  return status;
}

nsa_status nsai_plan_create(nsa_ctx *ctx, const nsai_problem *problem, nsa_progress_fn progress,
                            void *user, nsa_plan **out) {
  nsa_status status = NSA_OK;
  nsa_plan *plan;
  *out = NULL;
  NSAI_TRY(allocate_plan(ctx, problem, &plan));
  NSAI_TRY_TO(fail, ctx->cpu ? nsai_workspace_make_cpu(&plan->problem, &plan->workspace)
                             : build_plan(ctx, progress, user, plan));
  nsai_digest_plan(plan, plan->digest);
  *out = plan;
  return NSA_OK;
fail:
  nsai_plan_destroy(plan);
  return status;
}

/* ---- kernels without plans ---- */

/* The kernels of several problems, to be compiled at once. */
typedef struct ahead {
  nsai_kernel_spec specs[NSAI_MAX_KERNELS];
  nsai_problem problems[NSAI_MAX_KERNELS]; /* of each spec */
  int32_t count;
  nsa_status compiled; /* of the kernels that have been compiled */
  nsa_progress_fn progress;
  void *user;
} ahead;

static nsa_status compile_ahead(nsa_ctx *ctx, ahead *a) {
  nsai_kernel_request request = { .problems = a->problems,
                                  .specs = a->specs,
                                  .count = a->count,
                                  .may_compile = true,
                                  .ahead = true,
                                  .progress = a->progress,
                                  .user = a->user };
  a->count = 0;
  return a->compiled = nsai_kernel_set_make(ctx, &request, NULL);
}

static bool is_ahead(const ahead *a, const nsai_kernel_spec *spec) {
  for (int32_t i = 0; i < a->count; i++)
    if (!memcmp(&a->specs[i], spec, sizeof *spec)) return true;
  return false;
}

/* Adds the kernels that make_kernels would begin with, when one of them is missing. */
static nsa_status add_ahead(nsa_ctx *ctx, plan_request *request, nsai_choice *choice, ahead *a) {
  int32_t level = request->target->register_fallback, missing = 0;
  if (!decides(request->decisions)) NSAI_TRY(find_level(ctx, request, choice, &level));
  NSAI_TRY(choose_level(ctx, level, request, choice));
  NSAI_TRY(nsai_kernel_set_missing(ctx, &request->kernels, &missing));
  if (!missing || request->kernels.last_resort) return NSA_OK;
  for (int32_t i = 0; i < choice->kernel_count; i++) {
    const nsai_kernel_spec *spec = &choice->specs[i];
    if (!spec->entry || is_ahead(a, spec)) continue;
    if (a->count == NSAI_MAX_KERNELS) NSAI_TRY(compile_ahead(ctx, a));
    a->specs[a->count] = *spec;
    a->problems[a->count++] = *request->kernels.problem;
  }
  return NSA_OK;
}

/* `a` NULL: makes them. */
static nsa_status make_or_add(nsa_ctx *ctx, plan_request *request, nsai_choice *choice, ahead *a) {
  return a ? add_ahead(ctx, request, choice, a) : make_kernels(ctx, request, choice, NULL);
}

/* More multiprocessors than any device of the architectures has (an RTX PRO 6000: 188). */
#define MOST_SMS 256

/* Every choice that a device of the architecture may come to, as far as its number of
 * multiprocessors decides: parts of one, by MIG, have any. */
static nsa_status prepare_all_sizes(nsa_ctx *ctx, plan_request *request, nsai_target *target,
                                    nsai_choice *choice, ahead *a) {
  const nsai_decisions *decisions = request->decisions;
  char made[NSAI_DIGEST_CHARS] = "", wanted[NSAI_DIGEST_CHARS];
  target->sms = nsai_arch_find(target->arch)->fewest_sms;
  for (; target->sms <= MOST_SMS; target->sms++) {
    request->decisions = decisions;
    NSAI_TRY(choose_level(ctx, target->register_fallback, request, choice));
    nsai_digest_hex(choice->specs, (size_t)choice->kernel_count * sizeof *choice->specs, wanted);
    if (!strcmp(made, wanted)) continue;
    memcpy(made, wanted, sizeof made);
    NSAI_TRY(make_or_add(ctx, request, choice, a));
  }
  return NSA_OK;
}

/* Makes the kernels of a problem, or adds them to `a`, for all devices that they are to serve. */
static nsa_status prepare_devices(nsa_ctx *ctx, const nsai_problem *problem,
                                  nsa_progress_fn progress, void *user, ahead *a) {
  nsai_choice choice;
  nsai_decisions decisions;
  plan_request request = { { .problem = problem,
                             .may_compile = ctx->config->runtime.jit != NSAI_JIT_NEVER,
                             .progress = progress,
                             .user = user },
                           &ctx->target,
                           &decisions };
  nsai_plan_decide(ctx, problem, &decisions);
  if (!ctx->deviceless) return make_or_add(ctx, &request, &choice, a);
  /* A pack for an architecture serves every device of it, also those that have rules of their own. */
  nsai_target target = ctx->target;
  request.target = &target;
  target.device = NULL;
  for (int i = 0;; i++) {
    request.decisions = &decisions;
    NSAI_TRY(ctx->target.sms ? make_or_add(ctx, &request, &choice, a)
                             : prepare_all_sizes(ctx, &request, &target, &choice, a));
    target.device = nsai_named_device(target.arch, i);
    if (!target.device) return NSA_OK;
  }
}

nsa_status nsai_plan_prepare(nsa_ctx *ctx, const nsai_problem *problem, nsa_progress_fn progress,
                             void *user) {
  return prepare_devices(ctx, problem, progress, user, NULL);
}

nsa_status nsai_plan_prepare_ahead(nsa_ctx *ctx, const nsa_problem *problems, size_t count,
                                   nsa_progress_fn progress, void *user) {
  ahead *a = calloc(1, sizeof *a);
  if (!a) return nsai_fail_nomem("the kernels of several problems", sizeof *a);
  a->progress = progress;
  a->user = user;
  for (size_t i = 0; i < count; i++) {
    nsai_problem problem;
    if (nsai_problem_resolve(ctx->config, nsai_struct_at(problems, i), &problem) != NSA_OK ||
        prepare_devices(ctx, &problem, NULL, NULL, a) != NSA_OK)
      break;
  }
  const nsa_status status = a->count && a->compiled == NSA_OK ? compile_ahead(ctx, a) : a->compiled;
  free(a);
  return status;
}

void nsai_plan_destroy(nsa_plan *plan) {
  if (!plan) return;
  nsai_kernel_set_release(plan->ctx, plan->kernels);
  nsai_context_release(plan->ctx);
  free(plan);
}
