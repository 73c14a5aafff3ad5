/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_query, nsa_explain, nsa_plan_create, nsa_prepare: from a problem to a plan.
 */
#include "plan/plan.h"

#include "base/struct.h"
#include "plan/forms.h"
#include "plan/kernel_set.h"
#include "plan/parts.h"

#include <stdlib.h>
#include <string.h>

static nsa_status check_caps(const nsa_caps *caps) {
  static const nsai_struct_type type = { "caps", "NSA_CAPS_INIT", sizeof(nsa_caps) };
  return nsai_struct_check(&type, caps);
}

/* `missing`: kernels that would have to be compiled. */
static void fill_caps(const nsa_ctx *ctx, const nsai_choice *choice,
                      const nsai_workspace *workspace, int32_t missing, nsa_caps *out) {
  nsa_caps caps = NSA_CAPS_INIT;
  nsai_writer text = nsai_writer_open(caps.variants, sizeof caps.variants);
  caps.supported = 1;
  caps.missing_kernels = missing;
  caps.workspace_bytes = ctx->cpu ? 0 : workspace->total;
  caps.workspace_align = NSAI_WORKSPACE_ALIGN;
  if (ctx->cpu) nsai_write(&text, "all=reference");
  for (int s = 0; !ctx->cpu && s < NSAI_STAGE_COUNT; s++)
    if (choice->variant[s])
      nsai_write(&text, "%s%s=%s", text.used ? " " : "", nsai_stage_name((nsai_stage)s),
                 choice->variant[s]->name);
  nsai_struct_out(&caps, sizeof caps, out);
}

/* What measurements say about the problem, where somebody remembers them. */
static void decide(nsa_ctx *ctx, const nsai_problem *problem, nsai_decisions *out) {
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
  for (int32_t register_fallback = *level; register_fallback <= NSAI_MAX_REGISTER_FALLBACK;
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

/* What a plan would have to compile now. */
static nsa_status count_missing(nsa_ctx *ctx, plan_request *request, nsai_choice *choice,
                                int32_t *missing) {
  int32_t register_fallback = request->target->register_fallback;
  if (!decides(request->decisions)) NSAI_TRY(find_level(ctx, request, choice, &register_fallback));
  NSAI_TRY(choose_level(ctx, register_fallback, request, choice));
  return nsai_kernel_set_missing(ctx, &request->kernels, missing);
}

nsa_status nsa_query(nsa_ctx *ctx, const nsa_problem *problem, nsa_caps *caps) {
  NSAI_TRY(nsai_context_check(ctx));
  NSAI_TRY(check_caps(caps));
  nsai_problem resolved;
  nsai_choice choice = { 0 };
  NSAI_TRY(nsai_problem_resolve(ctx->config, problem, &resolved));
  if (ctx->cpu) {
    fill_caps(ctx, &choice, NULL, 0, caps);
    return NSA_OK;
  }
  nsai_decisions decisions;
  decide(ctx, &resolved, &decisions);
  plan_request request = { { .problem = &resolved }, &ctx->target, &decisions };
  nsa_status status = choose_level(ctx, ctx->target.register_fallback, &request, &choice);
  if (status == NSA_E_UNSUPPORTED) {
    static const nsa_caps none = NSA_CAPS_INIT;
    nsai_struct_out(&none, sizeof none, caps);
    return NSA_OK;
  }
  NSAI_TRY(status);
  int32_t missing = 0;
  NSAI_TRY(count_missing(ctx, &request, &choice, &missing)); /* leaves the choice that will serve */
  nsai_workspace workspace = nsai_workspace_make(&resolved, &choice, &ctx->target);
  fill_caps(ctx, &choice, &workspace, missing, caps);
  return NSA_OK;
}

static void write_kernel(const nsai_kernel_spec *spec, nsai_writer *text) {
  nsai_write(text, "  kernel %s: %d threads, %u bytes of shared memory", spec->entry, spec->threads,
             spec->shared_bytes);
  if (spec->ctas_per_sm) nsai_write(text, ", persistent: %d per multiprocessor", spec->ctas_per_sm);
  nsai_write(text, "\n");
}

/* What is kept between forward and backward, in bytes a token. */
static void write_saved(const nsai_problem *p, nsai_writer *text) {
  static const char *const names[] = { "auto", "always", "never" };
  const nsai_model *m = &p->model;
  int branches = 1 + (m->select_count > 0) + (m->window > 0);
  int64_t lists = (int64_t)m->select_count * m->kv_heads * 4;
  int64_t outputs = (int64_t)branches * m->heads * (2 * m->head_dim_v + 4);
  nsai_write(text,
             "  runtime.recompute: %s; kept from the forward beside its inputs, bytes a token: "
             "block_idx %lld%s; o_branch and lse %lld with never, 0 with always, of the branches "
             "that are given with auto\n",
             names[p->recompute], (long long)(p->selection == NSA_SELECT_TOPN ? lists : 0),
             p->selection == NSA_SELECT_TOPN ? "" : ", the caller's selection", (long long)outputs);
  nsai_write(text, "  a d_o in f32 takes %llu bytes more of workspace\n",
             (unsigned long long)nsai_d_o_bytes(m, p->max_tokens));
}

/* A form of the choice with what is known about it. `kernels` may be NULL. */
static nsai_form form_of(const nsai_choice *choice, const nsai_workspace *workspace,
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

size_t nsa_explain(nsa_ctx *ctx, const nsa_problem *problem, char *buf, size_t size) {
  nsai_writer text = nsai_writer_open(buf, size);
  nsai_problem resolved;
  nsai_choice choice;
  if (nsai_context_check(ctx) != NSA_OK ||
      nsai_problem_resolve(ctx->config, problem, &resolved) != NSA_OK) {
    nsai_write(&text, "%s\n", nsa_last_error());
    return text.used;
  }
  nsai_problem_add_string(&text, &resolved);
  nsai_write(&text, "\non %s%s%s\n", ctx->cpu ? "the CPU device" : ctx->target.arch,
             ctx->device.name[0] ? ", " : "", ctx->device.name);
  if (ctx->cpu) {
    nsai_write(&text, "  every stage: the float64 reference (runtime.device: cpu)\n");
    return text.used;
  }
  nsai_decisions decisions;
  decide(ctx, &resolved, &decisions);
  if (nsai_problem_is_tunable(&resolved)) nsai_write(&text, "  %s\n", decisions.why);
  if (nsai_choose(ctx->config, &resolved, &ctx->target, &decisions, &text, &choice) != NSA_OK)
    return text.used;
  nsai_workspace workspace = nsai_workspace_make(&resolved, &choice, &ctx->target);
  nsai_write(&text, "  workspace: %llu bytes\n", (unsigned long long)workspace.total);
  for (int i = 0; i < choice.form_count; i++) {
    const nsai_form form = form_of(&choice, &workspace, NULL, i);
    if (form.variant->describe) form.variant->describe(&form, &text);
  }
  if (resolved.op == NSA_OP_BACKWARD) write_saved(&resolved, &text);
  for (int s = 0; s < NSAI_STAGE_COUNT; s++)
    nsai_forms_write(&choice, (nsai_stage)s, &resolved, &ctx->target, &text);
  for (int i = 0; i < choice.kernel_count; i++)
    if (choice.specs[i].entry) write_kernel(&choice.specs[i], &text);
  return text.used;
}

size_t nsa_problem_string(nsa_ctx *ctx, const nsa_problem *problem, char *buf, size_t size) {
  nsai_writer text = nsai_writer_open(buf, size);
  nsai_problem resolved;
  if (nsai_context_check(ctx) == NSA_OK &&
      nsai_problem_resolve(ctx->config, problem, &resolved) == NSA_OK)
    nsai_problem_add_string(&text, &resolved);
  return text.used;
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

/* Chooses and makes kernels: by a record, else by the heuristic. Its tiles are as large as registers
 * allow with the compiler they were tried with; another NVRTC may need more registers, and a kernel
 * that spills is refused. Then smaller tiles serve. They are no answer to any other failure. */
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
  while (status != NSA_OK && request->kernels.refused &&
         register_fallback < NSAI_MAX_REGISTER_FALLBACK) {
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
  plan->workspace = nsai_workspace_make(&plan->problem, &plan->choice, &ctx->target);
  for (int i = 0; i < plan->choice.form_count; i++)
    plan->forms[i] = form_of(&plan->choice, &plan->workspace, plan->kernels, i);
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
  decide(ctx, &plan->problem, &decisions);
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

nsa_status nsai_plan_make(nsa_ctx *ctx, const nsai_problem *problem,
                          const nsai_decisions *decisions, nsa_plan **out) {
  nsa_status status = NSA_OK;
  nsai_decisions timed = *decisions;
  plan_request request = { { .may_compile = ctx->config->runtime.jit != NSAI_JIT_NEVER,
                             .temporary = true },
                           &ctx->target,
                           &timed };
  timed.alone = true;
  *out = NULL;
  nsa_plan *plan = calloc(1, sizeof *plan);
  if (!plan) return nsai_fail_nomem("a plan", sizeof *plan);
  plan->ctx = ctx;
  nsai_context_retain(ctx);
  plan->problem = *problem;
  request.kernels.problem = &plan->problem;
  NSAI_TRY_TO(fail, choose_level(ctx, ctx->target.register_fallback, &request, &plan->choice));
  NSAI_TRY_TO(fail, check_decided(decisions, &plan->choice));
  NSAI_TRY_TO(fail, nsai_kernel_set_make(ctx, &request.kernels, plan->kernels));
  NSAI_TRY_TO(fail, complete_plan(ctx, plan));
  *out = plan;
  return NSA_OK;
fail:
  nsa_plan_destroy(plan);
  return status;
}

nsa_status nsa_plan_create(nsa_ctx *ctx, const nsa_problem *problem, nsa_progress_fn progress,
                           void *user, nsa_plan **out) {
  nsa_status status = NSA_OK;
  if (!out) return nsai_fail(NSA_E_ARG, "out is NULL");
  *out = NULL;
  NSAI_TRY(nsai_context_check(ctx));
  if (ctx->deviceless)
    return nsai_fail(NSA_E_NO_DEVICE,
                     "the context was made for options.arch: it can compile (nsa_prepare), but not "
                     "make plans");
  nsa_plan *plan = calloc(1, sizeof *plan);
  if (!plan) return nsai_fail_nomem("a plan", sizeof *plan);
  plan->ctx = ctx;
  nsai_context_retain(ctx);
  NSAI_TRY_TO(fail, nsai_problem_resolve(ctx->config, problem, &plan->problem));
  if (!ctx->cpu) NSAI_TRY_TO(fail, build_plan(ctx, progress, user, plan));
  *out = plan;
  return NSA_OK;
fail:
  nsa_plan_destroy(plan);
  return status;
}

/* One problem of nsa_prepare. */
static nsa_status prepare_one(nsa_ctx *ctx, const nsa_problem *problem, nsa_progress_fn progress,
                              void *user) {
  nsai_problem resolved;
  nsai_choice choice;
  NSAI_TRY(nsai_problem_resolve(ctx->config, problem, &resolved));
  if (ctx->cpu) return NSA_OK;
  nsai_decisions decisions;
  plan_request request = { { .problem = &resolved,
                             .may_compile = ctx->config->runtime.jit != NSAI_JIT_NEVER,
                             .progress = progress,
                             .user = user },
                           &ctx->target,
                           &decisions };
  decide(ctx, &resolved, &decisions);
  NSAI_TRY(make_kernels(ctx, &request, &choice, NULL));
  /* A pack for an architecture serves every device of it that has rules of its own. */
  nsai_target target = ctx->target;
  request.target = &target;
  for (int i = 0; ctx->deviceless && nsai_named_device(target.arch, i); i++) {
    target.device = nsai_named_device(target.arch, i);
    request.decisions = &decisions;
    NSAI_TRY(make_kernels(ctx, &request, &choice, NULL));
  }
  return NSA_OK;
}

nsa_status nsa_prepare(nsa_ctx *ctx, const nsa_problem *problems, size_t count,
                       nsa_progress_fn progress, void *user) {
  NSAI_TRY(nsai_context_check(ctx));
  NSAI_TRY(nsai_problem_check_array(problems, count));
  for (size_t i = 0; i < count; i++)
    NSAI_TRY(prepare_one(ctx, nsai_struct_at(problems, i), progress, user));
  return NSA_OK;
}

nsa_status nsa_plan_caps(const nsa_plan *plan, nsa_caps *caps) {
  if (!plan) return nsai_fail(NSA_E_ARG, "plan is NULL");
  NSAI_TRY(nsai_context_check(plan->ctx));
  NSAI_TRY(check_caps(caps));
  fill_caps(plan->ctx, &plan->choice, &plan->workspace, 0, caps);
  return NSA_OK;
}

void nsa_plan_destroy(nsa_plan *plan) {
  if (!plan) return;
  nsai_kernel_set_release(plan->ctx, plan->kernels);
  nsai_context_release(plan->ctx);
  free(plan);
}
