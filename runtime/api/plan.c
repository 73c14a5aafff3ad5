/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * nsa_query, nsa_explain, nsa_problem_string, nsa_prepare, nsa_plan_create, nsa_plan_caps,
 * nsa_plan_destroy, nsa_kv_page_bytes.
 */
#include "plan/plan.h"

#include "api/peer_kernel.h"
#include "base/struct.h"
#include "plan/context.h"
#include "plan/forms.h"
#include "plan/kernel_set.h"
#include "plan/ranks_pieces.h"
#include "run/check_cache.h"

#include <nsa/kv_cache.h>

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
  caps.workspace_bytes = workspace->total;
  caps.workspace_align = NSAI_WORKSPACE_ALIGN;
  if (ctx->cpu) nsai_write(&text, "all=reference");
  for (int s = 0; s < NSAI_STAGE_COUNT; s++)
    if (choice->variant[s])
      nsai_write(&text, "%s%s=%s", text.used ? " " : "", nsai_stage_name((nsai_stage)s),
                 choice->variant[s]->name);
  nsai_struct_out(&caps, sizeof caps, out);
}

/* A resolved problem. Where kernels may not be compiled, a prefill that could take those of decode takes
 * its own unless the others are there: a pack made for prefills alone has them not. */
static nsa_status resolve(nsa_ctx *ctx, const nsa_problem *problem, nsai_problem *out) {
  nsai_choice choice;
  int32_t missing = 0;
  NSAI_TRY(nsai_problem_resolve(ctx->config, problem, out));
  if (ctx->cpu || ctx->config->runtime.jit == NSAI_JIT_ON_DEMAND || out->op != NSA_OP_PREFILL ||
      !nsai_problem_splits(out))
    return NSA_OK;
  if (nsai_plan_foresee(ctx, out, &choice, &missing) != NSA_OK || missing) out->split_from = 0;
  return NSA_OK;
}

nsa_status nsa_query(nsa_ctx *ctx, const nsa_problem *problem, nsa_caps *caps) {
  static const nsa_caps none = NSA_CAPS_INIT;
  nsai_problem resolved;
  nsai_workspace workspace = { 0 };
  nsai_choice choice = { 0 };
  int32_t missing = 0;
  NSAI_TRY(nsai_context_check(ctx));
  NSAI_TRY(check_caps(caps));
  NSAI_TRY(resolve(ctx, problem, &resolved));
  if (!ctx->cpu) {
    nsa_status status = nsai_plan_foresee(ctx, &resolved, &choice, &missing);
    if (status == NSA_OK)
      status = nsai_workspace_make(&resolved, &choice, &ctx->target, &workspace);
    if (status == NSA_E_UNSUPPORTED) {
      nsai_struct_out(&none, sizeof none, caps);
      return NSA_OK;
    }
    NSAI_TRY(status);
  } else {
    NSAI_TRY(nsai_workspace_make_cpu(&resolved, &workspace));
  }
  fill_caps(ctx, &choice, &workspace, missing, caps);
  return NSA_OK;
}

/* Where the tokens of a cache over ranks lie, and what a decode step or a prefill sends. */
static void write_divided_cache(const nsai_problem *p, const nsai_workspace *workspace,
                                nsai_writer *text) {
  uint64_t pools = 0;
  int64_t page = 0; /* bytes that travel */
  nsai_ranks_pages pages = { 0 };
  const nsai_model *m = &p->model;
  const int64_t sent = m->select_count ? (int64_t)m->heads * (m->head_dim_v + 2) * 4 : 0;
  nsai_write(text,
             "  over %d ranks, raw tokens by turns of %d (problem.unit_tokens); every rank has the "
             "new tokens of a sequence and the %lld before them\n",
             p->ranks, p->unit_tokens, (long long)nsai_problem_kept_tokens(p));
  if (p->op == NSA_OP_PREFILL) nsai_ranks_pages_size(p, &pages);
  for (int i = 0; i < NSAI_RANKS_PAGED; i++)
    page += pages.page_bytes[i], pools += workspace->pages.pool[i].bytes;
  if (p->op == NSA_OP_APPEND)
    nsai_write(text, "  an append sends nothing\n");
  else if (p->op == NSA_OP_PREFILL)
    nsai_write(text,
               "  a prefill gathers the raw pages of all ranks once, %lld bytes for each token of "
               "the cache, and divides the new tokens by batch.shard\n",
               (long long)page / p->page_size);
  else
    nsai_write(text, "  a decode sends %lld bytes a token from every rank to every other\n",
               (long long)sent);
  if (pools)
    nsai_write(
        text,
        "  of the workspace: raw pages of all ranks %llu bytes, of problem.max_seqs sequences "
        "of problem.max_kv_len tokens; those of the call's sequences travel\n",
        (unsigned long long)pools);
}

/* What a run over ranks holds beside the workspace of a piece. */
static void write_ranks(const nsai_problem *p, const nsai_choice *choice,
                        const nsai_workspace *workspace, nsai_writer *text) {
  uint64_t whole = 0, sums = 0, received = 0;
  if (nsai_problem_divides_cache(p)) write_divided_cache(p, workspace, text);
  if (!p->ranks || nsai_problem_divides_cache(p)) return;
  for (int i = 0; i < NSAI_RANKS_TENSORS; i++) {
    whole += workspace->ranks.tensor[i].whole.bytes;
    sums += workspace->ranks.tensor[i].sums.bytes;
    received += workspace->ranks.tensor[i].received.bytes;
  }
  nsai_write(
      text,
      "  over %d ranks, of the workspace: K and V of all ranks %llu bytes, fp32 sums of their "
      "gradients %llu, those from other ranks %llu, sums of gradients of weights %llu\n",
      p->ranks, (unsigned long long)whole, (unsigned long long)sums, (unsigned long long)received,
      (unsigned long long)workspace->ranks.weights.bytes);
  nsai_write(text, "  nsa_comm_options.copy_bytes: %llu for copies by copy engines\n",
             (unsigned long long)nsai_ranks_room_bytes(p, workspace));
  if (!choice || p->op != NSA_OP_FORWARD || p->ranks == 1) return;
  const char *why = nsai_no_overlap(p, choice);
  nsai_write(text, "  with nsa_comm_options.overlap_sms or copy_bytes K and V travel %s%s\n",
             why ? "first: " : "while it computes", why ? why : "");
}

static void write_kernel(const nsai_kernel_spec *spec, int32_t spills, nsai_writer *text) {
  nsai_write(text, "  kernel %s: %d threads, %u bytes of shared memory", spec->entry, spec->threads,
             spec->shared_bytes);
  if (spec->ctas_per_sm) nsai_write(text, ", persistent: %d per multiprocessor", spec->ctas_per_sm);
  if (spills) nsai_write(text, ", a last resort: spills %d bytes of registers", spills);
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

/* The choice of a plan that would be made now, with all reasons. An error's text where there is
 * none. */
static nsa_status write_choice(nsa_ctx *ctx, const nsai_problem *p, nsai_writer *text,
                               nsai_target *target, nsai_choice *choice) {
  nsai_decisions decisions;
  nsai_plan_decide(ctx, p, &decisions);
  if (nsai_problem_is_tunable(p)) nsai_write(text, "  %s\n", decisions.why);
  if (p->op == NSA_OP_PREFILL && nsai_problem_splits(p))
    nsai_write(text,
               "  few new tokens over a long context: the kernels of decode, which split keys "
               "(thresholds.prefill_split_from)\n");
  if (nsai_plan_target(ctx, p, &decisions, target) != NSA_OK) *target = ctx->target;
  if (target->register_fallback > ctx->target.register_fallback)
    nsai_write(text,
               "  register fallback %d of %d: kernels of larger tiles spill with this compiler\n",
               target->register_fallback, NSAI_LAST_RESORT);
  return nsai_choose(ctx->config, p, target, &decisions, text, choice);
}

static void write_kernels(nsa_ctx *ctx, const nsai_problem *p, const nsai_choice *choice,
                          nsai_writer *text) {
  const nsai_kernel_request request = { .problem = p,
                                        .specs = choice->specs,
                                        .count = choice->kernel_count };
  int32_t spills[NSAI_MAX_KERNELS] = { 0 };
  if (nsai_kernel_set_spills(ctx, &request, spills) != NSA_OK)
    nsai_write(text, "  %s\n", nsa_last_error());
  for (int i = 0; i < choice->kernel_count; i++)
    if (choice->specs[i].entry) write_kernel(&choice->specs[i], spills[i], text);
}

size_t nsa_explain(nsa_ctx *ctx, const nsa_problem *problem, char *buf, size_t size) {
  nsai_writer text = nsai_writer_open(buf, size);
  nsai_problem resolved;
  nsai_choice choice;
  nsai_target target;
  if (nsai_context_check(ctx) != NSA_OK || resolve(ctx, problem, &resolved) != NSA_OK) {
    nsai_write(&text, "%s\n", nsa_last_error());
    return text.used;
  }
  nsai_problem_add_string(&text, &resolved);
  nsai_write(&text, "\non %s%s%s\n", ctx->cpu ? "the CPU device" : ctx->target.arch,
             ctx->device.name[0] ? ", " : "", ctx->device.name);
  nsai_workspace workspace;
  if (ctx->cpu) {
    nsai_write(&text, "  every stage: the float64 reference (runtime.device: cpu)\n");
    if (nsai_workspace_make_cpu(&resolved, &workspace) == NSA_OK) {
      nsai_write(&text, "  workspace: %llu bytes, %s\n", (unsigned long long)workspace.total,
                 resolved.max_pieces && !nsai_problem_is_cached(&resolved)
                     ? "which only what travels uses"
                     : "which it does not use");
      write_ranks(&resolved, NULL, &workspace, &text);
    } else
      nsai_write(&text, "  %s\n", nsa_last_error());
    return text.used;
  }
  if (write_choice(ctx, &resolved, &text, &target, &choice) != NSA_OK) return text.used;
  if (nsai_workspace_make(&resolved, &choice, &target, &workspace) != NSA_OK) {
    nsai_write(&text, "  %s\n", nsa_last_error());
    return text.used;
  }
  nsai_write(&text, "  workspace: %llu bytes\n", (unsigned long long)workspace.total);
  write_ranks(&resolved, &choice, &workspace, &text);
  for (int i = 0; i < choice.form_count; i++) {
    const nsai_form form = nsai_form_of(&choice, &workspace, NULL, i);
    if (form.variant->describe) form.variant->describe(&form, &text);
  }
  const nsai_problem all_heads = nsai_problem_all_heads(&resolved);
  if (resolved.op == NSA_OP_BACKWARD) write_saved(&all_heads, &text);
  for (int s = 0; s < NSAI_STAGE_COUNT; s++)
    nsai_forms_write(&choice, (nsai_stage)s, &resolved, &target, &text);
  write_kernels(ctx, &resolved, &choice, &text);
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

nsa_status nsa_plan_create(nsa_ctx *ctx, const nsa_problem *problem, nsa_progress_fn progress,
                           void *user, nsa_plan **out) {
  nsai_problem resolved;
  if (!out) return nsai_fail(NSA_E_ARG, "out is NULL");
  *out = NULL;
  NSAI_TRY(nsai_context_check(ctx));
  if (ctx->deviceless)
    return nsai_fail(NSA_E_NO_DEVICE,
                     "the context was made for options.arch: it can compile (nsa_prepare), but not "
                     "make plans");
  NSAI_TRY(resolve(ctx, problem, &resolved));
  return nsai_plan_create(ctx, &resolved, progress, user, out);
}

void nsa_plan_destroy(nsa_plan *plan) { nsai_plan_destroy(plan); }

nsa_status nsa_prepare(nsa_ctx *ctx, const nsa_problem *problems, size_t count,
                       nsa_progress_fn progress, void *user) {
  NSAI_TRY(nsai_context_check(ctx));
  NSAI_TRY(nsai_problem_check_array(problems, count));
  /* Compiling one at a time, no order is faster than another. */
  if (count > 1 && !ctx->cpu && ctx->config->runtime.jit != NSAI_JIT_NEVER &&
      ctx->config->runtime.compile_jobs != 1)
    NSAI_TRY(nsai_plan_prepare_ahead(ctx, problems, count, progress, user));
  for (size_t i = 0; i < count; i++) {
    nsai_problem resolved;
    /* Where nothing may be compiled, what a plan would take must be there; else that is made. */
    const nsa_problem *problem = nsai_struct_at(problems, i);
    NSAI_TRY(ctx->config->runtime.jit == NSAI_JIT_NEVER
                 ? resolve(ctx, problem, &resolved)
                 : nsai_problem_resolve(ctx->config, problem, &resolved));
    if (!ctx->cpu) NSAI_TRY(nsai_plan_prepare(ctx, &resolved, progress, user));
    /* No plan needs it, and peer memory is off by default: it is compiled here so that packs have it. */
    if (!ctx->cpu && resolved.ranks && resolved.op == NSA_OP_DECODE) nsai_peer_kernel_prepare(ctx);
  }
  return NSA_OK;
}

nsa_status nsa_plan_caps(const nsa_plan *plan, nsa_caps *caps) {
  if (!plan) return nsai_fail(NSA_E_ARG, "plan is NULL");
  NSAI_TRY(nsai_context_check(plan->ctx));
  NSAI_TRY(check_caps(caps));
  fill_caps(plan->ctx, &plan->choice, &plan->workspace, 0, caps);
  return NSA_OK;
}

nsa_status nsa_kv_page_bytes(nsa_ctx *ctx, const nsa_problem *problem, uint64_t *bytes) {
  nsai_problem resolved;
  NSAI_TRY(nsai_context_check(ctx));
  if (!bytes) return nsai_fail(NSA_E_ARG, "bytes is NULL");
  NSAI_TRY(nsai_problem_resolve(ctx->config, problem, &resolved));
  if (!nsai_problem_is_cached(&resolved))
    return nsai_fail(NSA_E_ARG, "problem.op is %d: %s has no cache", resolved.op,
                     nsai_op_name(resolved.op));
  *bytes = nsai_cache_page_bytes(&resolved);
  return NSA_OK;
}
