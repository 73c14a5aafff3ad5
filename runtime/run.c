/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The run calls: check the arguments, then enqueue on the GPU or compute on the CPU device.
 */
#include "context.h"
#include "forward.h"
#include "reference/reference.h"

#define ALL_PROCESSORS 0 /* threads of the CPU device */

static nsa_status check_exec(const nsa_plan *plan, const nsa_exec *exec) {
  if (!exec) return nsai_fail(NSA_E_ARG, "exec is NULL");
  if (exec->struct_size != sizeof *exec)
    return nsai_fail(NSA_E_VERSION, "exec.struct_size is %u, expected %zu: use NSA_EXEC_INIT",
                     exec->struct_size, sizeof *exec);
  if (!plan->layout.total) return NSA_OK;
  if (!exec->workspace || exec->workspace_bytes < plan->layout.total)
    return nsai_fail(NSA_E_WORKSPACE,
                     "exec.workspace has %llu bytes, the plan needs %llu (nsa_plan_caps)",
                     (unsigned long long)(exec->workspace ? exec->workspace_bytes : 0),
                     (unsigned long long)plan->layout.total);
  if ((uintptr_t)exec->workspace % NSAI_WORKSPACE_ALIGN)
    return nsai_fail(NSA_E_WORKSPACE, "exec.workspace is not aligned to %u bytes",
                     NSAI_WORKSPACE_ALIGN);
  return NSA_OK;
}

/* What every run call checks first; fills everything of `run` but the sizes. */
static nsa_status begin_run(const nsa_plan *plan, int32_t op, const nsa_exec *exec,
                            const nsa_batch *batch, const nsa_io *io, nsai_run *run) {
  if (!plan) return nsai_fail(NSA_E_ARG, "plan is NULL");
  NSAI_TRY(nsai_context_check(plan->ctx));
  if (plan->problem.op != op)
    return nsai_fail(NSA_E_ARG, "the plan was made for problem.op %d, this call runs %d",
                     plan->problem.op, op);
  NSAI_TRY(check_exec(plan, exec));
  *run = (nsai_run){ .plan = plan,
                     .driver = plan->ctx->cpu ? NULL : plan->ctx->device.driver,
                     .batch = batch,
                     .io = io,
                     .workspace = exec->workspace,
                     .stream = exec->stream };
  return op == NSA_OP_FORWARD ? nsai_check_branches(&plan->problem, exec->branches, &run->branches)
                              : NSA_OK;
}

static nsai_check check_of(const nsai_run *run) {
  return (nsai_check){ .problem = &run->plan->problem,
                       .driver = run->driver,
                       .level = run->plan->ctx->config->runtime.check_inputs,
                       .branches = run->branches };
}

/* Enqueues with the context's device current. */
static nsa_status on_device(const nsai_run *run, nsa_status (*enqueue)(const nsai_run *)) {
  bool pushed = false;
  NSAI_TRY(nsai_context_enter(run->plan->ctx, &pushed));
  nsa_status status = enqueue(run);
  nsai_context_leave(run->plan->ctx, pushed);
  return status;
}

nsa_status nsa_forward(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                       const nsa_io *io) {
  nsai_run run;
  NSAI_TRY(begin_run(plan, NSA_OP_FORWARD, exec, batch, io, &run));
  nsai_check check = check_of(&run);
  NSAI_TRY(nsai_check_run(&check, batch, io, &run.sizes));
  if (run.driver) return on_device(&run, nsai_enqueue_forward);
  return nsai_reference_forward(&plan->problem.model, plan->problem.selection, run.branches, batch,
                                io, ALL_PROCESSORS);
}

nsa_status nsa_dense(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                     const nsa_io *io) {
  nsai_run run;
  NSAI_TRY(begin_run(plan, NSA_OP_DENSE, exec, batch, io, &run));
  run.branches = 1u << NSA_CMP; /* its outputs are o and lse[0] */
  nsai_check check = check_of(&run);
  NSAI_TRY(nsai_check_run(&check, batch, io, &run.sizes));
  if (run.driver) return on_device(&run, nsai_enqueue_dense);
  return nsai_reference_dense(&plan->problem.model, batch, io, ALL_PROCESSORS);
}

nsa_status nsa_compress(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                        const nsa_io *io) {
  nsai_run run;
  NSAI_TRY(begin_run(plan, NSA_OP_FORWARD, exec, batch, io, &run));
  nsai_check check = check_of(&run);
  NSAI_TRY(nsai_check_compress(&check, batch, io, &run.sizes));
  if (run.driver) return on_device(&run, nsai_enqueue_compress);
  return nsai_reference_compress(&plan->problem.model, batch, io, ALL_PROCESSORS);
}

nsa_status nsa_select(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                      const nsa_io *io, const nsa_tensor *importance) {
  nsai_run run;
  NSAI_TRY(begin_run(plan, NSA_OP_FORWARD, exec, batch, io, &run));
  if (plan->problem.selection != NSA_SELECT_OWN)
    return nsai_fail(
        NSA_E_ARG,
        "the plan was made for a selection that the caller brings: there is no top-n in it");
  nsai_check check = check_of(&run);
  NSAI_TRY(nsai_check_select(&check, batch, io, importance, &run.sizes));
  if (!run.driver)
    return nsai_reference_select(&plan->problem.model, batch, io, importance, ALL_PROCESSORS);
  bool pushed = false;
  NSAI_TRY(nsai_context_enter(plan->ctx, &pushed));
  nsa_status status = nsai_enqueue_select(&run, importance);
  nsai_context_leave(plan->ctx, pushed);
  return status;
}
