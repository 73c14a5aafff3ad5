/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The run calls: check the arguments, then enqueue on the GPU or compute on the CPU device.
 */
#include "run/run.h"
#include "base/struct.h"
#include "plan/context.h"
#include "ranks/comm.h"
#include "ranks/shard.h"
#include "reference/reference.h"
#include "run/check_cache.h"
#include "run/check_gradients.h"
#include "run/check_ranks.h"
#include "run/check_values.h"
#include "run/ranks.h"

#include <nsa/backward.h>
#include <nsa/index_kl.h>
#include <nsa/kv_cache.h>
#include <stdio.h>

#define ALL_PROCESSORS 0 /* threads of the CPU device */

/* What a run call keeps while it runs: its structs, where the caller's have another size than this
 * library's, its queue, its tensors and the values that were read of its batch. */
typedef struct call_structs {
  nsa_exec exec;
  nsa_batch batch;
  nsa_io io;
  nsa_grads grads;
  nsa_index_grads index_grads;
  nsai_queue queue;
  nsai_call_tensors tensors;
  nsai_problem all_heads;   /* of a plan over ranks, which may be one of some heads */
  nsai_batch_values values; /* over ranks alone: calls without ranks need not clear it */
} call_structs;

/* One struct of the call; `optional` ones may be NULL. */
static nsa_status read_struct(const nsai_struct_type *type, bool optional, const void *given,
                              void *room, const void **out) {
  *out = NULL;
  return optional && !given ? NSA_OK : nsai_struct_in(type, given, room, out);
}

static nsa_status check_exec(const nsa_plan *plan, const nsa_exec *exec) {
  if (!plan->workspace.total) return NSA_OK;
  if (!exec->workspace)
    return nsai_fail(NSA_E_WORKSPACE,
                     "exec.workspace is missing (NULL), the plan needs %llu bytes (nsa_plan_caps)",
                     (unsigned long long)plan->workspace.total);
  if (exec->workspace_bytes < plan->workspace.total)
    return nsai_fail(NSA_E_WORKSPACE,
                     "exec.workspace_bytes is %llu, the plan needs %llu (nsa_plan_caps)",
                     (unsigned long long)exec->workspace_bytes,
                     (unsigned long long)plan->workspace.total);
  if ((uintptr_t)exec->workspace % NSAI_WORKSPACE_ALIGN)
    return nsai_fail(NSA_E_WORKSPACE, "exec.workspace is not aligned to %u bytes",
                     NSAI_WORKSPACE_ALIGN);
  return NSA_OK;
}

/* What every run call checks first; fills everything of `run` but the sizes, and its queue. On the
 * GPU the context's device is current from here to end_run, since the check of a pointer asks for
 * it. */
static nsa_status begin_run(const nsa_plan *plan, int32_t op, const nsa_exec *given_exec,
                            const nsa_batch *given_batch, const nsa_io *given_io,
                            call_structs *call, nsai_run *run) {
  static const nsai_struct_type exec_type = { "exec", "NSA_EXEC_INIT", sizeof(nsa_exec) };
  static const nsai_struct_type batch_type = { "batch", "NSA_BATCH_INIT", sizeof(nsa_batch) };
  static const nsai_struct_type io_type = { "io", "NSA_IO_INIT", sizeof(nsa_io) };
  const void *exec_read, *batch, *io;
  if (!plan) return nsai_fail(NSA_E_ARG, "plan is NULL");
  NSAI_TRY(nsai_context_check(plan->ctx));
  if (plan->problem.op != op)
    return nsai_fail(NSA_E_ARG, "the plan was made for problem.op %s, this call runs %s",
                     nsai_op_name(plan->problem.op), nsai_op_name(op));
  NSAI_TRY(read_struct(&exec_type, false, given_exec, &call->exec, &exec_read));
  NSAI_TRY(read_struct(&batch_type, true, given_batch, &call->batch, &batch));
  NSAI_TRY(read_struct(&io_type, false, given_io, &call->io, &io));
  const nsa_exec *exec = exec_read;
  NSAI_TRY(nsai_check_shard(plan, ((const nsa_exec *)exec_read)->comm, batch));
  const nsa_shard *shard = batch ? ((const nsa_batch *)batch)->shard : NULL;
  /* Without a cache the shard says all that there is to say of sequences. */
  if (shard && !nsai_problem_divides_cache(&plan->problem)) batch = NULL;
  if (batch && !((const nsa_batch *)batch)->num_seqs) {
    call->batch = *(const nsa_batch *)batch;
    call->batch.num_seqs = shard ? shard->num_seqs : 1;
    batch = &call->batch;
  }
  NSAI_TRY(check_exec(plan, exec));
  uint32_t branches =
      1u << NSA_CMP; /* of NSA_OP_DENSE: its outputs are o and lse[0]; an append's are none */
  if (op == NSA_OP_APPEND && exec->branches)
    return nsai_fail(NSA_E_ARG,
                     "exec.branches is 0x%x, but an append writes for every branch: leave it 0",
                     exec->branches);
  if (op == NSA_OP_INDEX_KL && exec->branches)
    return nsai_fail(NSA_E_ARG,
                     "exec.branches is 0x%x, but nsa_index_kl is of the selected branch alone: "
                     "leave it 0",
                     exec->branches);
  if (op != NSA_OP_DENSE && op != NSA_OP_APPEND)
    NSAI_TRY(nsai_check_branches(&plan->problem, exec->branches, &branches));
  *run = (nsai_run){ .plan = plan,
                     .driver = plan->ctx->cpu ? NULL : plan->ctx->device.driver,
                     .batch = batch,
                     .io = io,
                     .workspace = exec->workspace,
                     .workspace_bytes = exec->workspace_bytes,
                     .queue = &call->queue,
                     .tensors = &call->tensors,
                     .branches = branches,
                     .all_heads = &call->all_heads,
                     .comm = op == NSA_OP_APPEND ? NULL : exec->comm,
                     .shard = shard };
  if (run->comm) {
    call->values = (nsai_batch_values){ 0 };
    run->values = &call->values;
  }
  call->all_heads = nsai_problem_all_heads(&plan->problem);
  call->tensors.count = 0;
  if (run->driver) call->queue = nsai_queue_open(&plan->ctx->device, exec->stream);
  return run->driver ? nsai_context_enter(plan->ctx, &run->pushed) : NSA_OK;
}

static nsa_status end_run(const nsai_run *run, nsa_status status) {
  if (run->values) nsai_batch_values_fini(run->values);
  if (run->driver) nsai_context_leave(run->plan->ctx, run->pushed);
  return status;
}

static nsai_check check_of(const nsai_run *run) {
  return (nsai_check){ .problem = run->all_heads,
                       .driver = run->driver,
                       .stream = run->driver ? run->queue->stream : NULL,
                       .level = run->plan->ctx->config->runtime.check_inputs,
                       .branches = run->branches,
                       .rank = run->comm ? nsai_comm_rank(run->comm) : -1,
                       .shard = run->shard,
                       .values = run->values,
                       .tensors = run->tensors };
}

/* What is checked last, when all tensors are known, at each level of runtime.check_inputs. */
static nsa_status check_memory_of_call(const nsai_run *run) {
  NSAI_TRY(nsai_call_tensors_add_workspace(run->tensors, run->workspace, run->workspace_bytes));
  return nsai_check_overlap(run->tensors);
}

/* The arguments of a call, by the function that knows which it has; fills the sizes. */
typedef nsa_status (*check_fn)(const nsai_check *check, const nsa_batch *batch, const nsa_io *io,
                               nsai_run_sizes *sizes);
static nsa_status check_call(nsai_run *run, check_fn fn) {
  nsai_check check = check_of(run);
  NSAI_TRY(fn(&check, run->batch, run->io, &run->sizes));
  return check_memory_of_call(run);
}

/* A run over ranks, whose arguments have been checked as those of one rank's tokens. */
static nsa_status over_ranks(const nsai_run *run, nsa_status (*fn)(const nsai_run *)) {
  const nsa_stream stream = run->driver ? run->queue->stream : NULL;
  if (run->shard && !nsai_problem_divides_cache(&run->plan->problem))
    NSAI_TRY(nsai_check_ranks_io(&run->plan->problem, run->shard, nsai_comm_rank(run->comm),
                                 run->io, &run->sizes));
  NSAI_TRY(nsai_comm_begin(run->comm, run->plan->digest, run->shard, stream));
  NSAI_TRY(fn(run));
  return nsai_comm_end(run->comm, stream);
}

/* A call that has no meaning over ranks. */
static nsa_status refuse_ranks(const nsai_run *run, const char *call) {
  if (!run->shard) return NSA_OK;
  return nsai_fail(NSA_E_ARG,
                   "%s does not run over ranks: the plan was made for problem.ranks %d; make one "
                   "without",
                   call, run->plan->problem.ranks);
}

/* Of the CPU device; runs after the selection. */
static nsa_status index_lse(const nsai_run *run, const nsai_reference_cache *cache) {
  if (!nsai_present(&run->io->index_lse)) return NSA_OK;
  return nsai_reference_index_lse(&run->plan->problem.model, cache, run->batch, run->io,
                                  ALL_PROCESSORS);
}

static nsa_status forward(nsai_run *run) {
  NSAI_TRY(check_call(run, nsai_check_run));
  if (run->shard) return over_ranks(run, nsai_forward_over_ranks);
  if (run->driver) return nsai_enqueue_forward(run);
  const nsai_problem *p = &run->plan->problem;
  NSAI_TRY(nsai_reference_forward(&p->model, p->selection, run->branches, run->batch, run->io,
                                  ALL_PROCESSORS));
  return index_lse(run, NULL);
}

static nsa_status dense(nsai_run *run) {
  NSAI_TRY(check_call(run, nsai_check_run));
  if (run->driver) return nsai_enqueue_dense(run);
  return nsai_reference_dense(&run->plan->problem.model, run->batch, run->io, ALL_PROCESSORS);
}

/* How the cache of a plan lies in memory. */
static nsai_reference_cache cache_of(const nsai_run *run) {
  const nsai_problem *p = &run->plan->problem;
  return (nsai_reference_cache){ .page_size = p->page_size, .window_ring = p->window_ring };
}

/* Over a cache. */
static nsa_status cached(nsai_run *run) {
  const nsai_problem *p = &run->plan->problem;
  nsai_reference_cache cache = cache_of(run);
  NSAI_TRY(check_call(run, nsai_check_run));
  if (run->comm)
    return over_ranks(run, run->shard ? nsai_prefill_over_ranks : nsai_decode_over_ranks);
  if (run->driver)
    return nsai_problem_splits(p) ? nsai_enqueue_decode(run) : nsai_enqueue_forward(run);
  NSAI_TRY(nsai_reference_cached(&p->model, &cache, p->selection, run->branches, run->batch,
                                 run->io, ALL_PROCESSORS));
  return index_lse(run, &cache);
}

static nsa_status append(nsai_run *run) {
  nsai_reference_cache cache = cache_of(run);
  NSAI_TRY(check_call(run, nsai_check_append));
  if (run->driver) return nsai_enqueue_append(run);
  return nsai_reference_append(&run->plan->problem.model, &cache, run->batch, run->io,
                               ALL_PROCESSORS);
}

/* Kernels round a d_o in f32 to the model's type, behind the plan's workspace. The CPU device does not,
 * and asks for the same room. */
static nsa_status check_room_of_d_o(const nsai_run *run, const nsa_tensor *d_o) {
  const nsai_model *m = &run->plan->problem.model;
  if (d_o->dtype != NSA_F32 || m->dtype == NSA_F32) return NSA_OK;
  const uint64_t needed = run->plan->workspace.total + nsai_d_o_bytes(m, run->sizes.tokens);
  char heads[64] = "";
  if (run->workspace && run->workspace_bytes >= needed) return NSA_OK;
  if (m->heads < run->all_heads->model.heads) /* over ranks, some KV heads after the others */
    snprintf(heads, sizeof heads, " of the %d heads that are computed at a time", m->heads);
  return nsai_fail(NSA_E_WORKSPACE,
                   "grads.d_o is f32, and is rounded in the workspace: exec.workspace has %llu "
                   "bytes, %llu are needed, caps.workspace_bytes and 2 for each element of d_o%s; "
                   "give more, or a d_o in the model's dtype",
                   (unsigned long long)(run->workspace ? run->workspace_bytes : 0),
                   (unsigned long long)needed, heads);
}

static nsa_status backward(nsai_run *run, call_structs *call, const nsa_grads *given) {
  static const nsai_struct_type type = { "grads", "NSA_GRADS_INIT", sizeof(nsa_grads) };
  const void *read;
  NSAI_TRY(read_struct(&type, false, given, &call->grads, &read));
  const nsa_grads *grads = read;
  const nsai_problem *p = &run->plan->problem;
  nsai_check check = check_of(run);
  NSAI_TRY(nsai_check_run(&check, run->batch, run->io, &run->sizes));
  NSAI_TRY(nsai_check_grads(&check, run->io, grads, &run->sizes));
  NSAI_TRY(check_room_of_d_o(run, &grads->d_o));
  NSAI_TRY(check_memory_of_call(run));
  run->grads = grads;
  if (run->shard) return over_ranks(run, nsai_backward_over_ranks);
  if (run->driver) return nsai_enqueue_backward(run);
  return nsai_reference_backward(&p->model, p->selection, run->branches, run->batch, run->io, grads,
                                 ALL_PROCESSORS);
}

static nsa_status index_kl(nsai_run *run, call_structs *call, const nsa_index_grads *given) {
  static const nsai_struct_type type = { "grads", "NSA_INDEX_GRADS_INIT", sizeof(nsa_index_grads) };
  const void *read;
  NSAI_TRY(read_struct(&type, false, given, &call->index_grads, &read));
  nsai_check check = check_of(run);
  NSAI_TRY(nsai_check_index_kl(&check, run->batch, run->io, &run->sizes));
  NSAI_TRY(nsai_check_index_grads(&check, read, &run->sizes));
  NSAI_TRY(check_memory_of_call(run));
  run->index_grads = read;
  if (run->driver) return nsai_enqueue_index_kl(run);
  return nsai_reference_index_kl(&run->plan->problem.model, run->plan->problem.selection,
                                 run->batch, run->io, read, ALL_PROCESSORS);
}

static nsa_status compress(nsai_run *run) {
  NSAI_TRY(refuse_ranks(run, "nsa_compress"));
  NSAI_TRY(check_call(run, nsai_check_compress));
  if (run->driver) return nsai_enqueue_compress(run);
  return nsai_reference_compress(&run->plan->problem.model, run->batch, run->io, ALL_PROCESSORS);
}

static nsa_status select_blocks(nsai_run *run) {
  NSAI_TRY(refuse_ranks(run, "nsa_select"));
  if (run->plan->problem.selection != NSA_SELECT_TOPN)
    return nsai_fail(
        NSA_E_ARG,
        "the plan was made for a selection that the caller brings: there is no top-n in it");
  NSAI_TRY(check_call(run, nsai_check_select));
  run->importance = &run->io->importance;
  if (run->driver) return nsai_enqueue_select(run);
  return nsai_reference_select(&run->plan->problem.model, run->batch, run->io, run->importance,
                               ALL_PROCESSORS);
}

/* A call that has no arguments but those of all. */
static nsa_status run_call(const nsa_plan *plan, int32_t op, const nsa_exec *exec,
                           const nsa_batch *batch, const nsa_io *io, nsa_status (*fn)(nsai_run *)) {
  call_structs call;
  nsai_run run;
  NSAI_TRY(begin_run(plan, op, exec, batch, io, &call, &run));
  return end_run(&run, fn(&run));
}

nsa_status nsa_forward(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                       const nsa_io *io) {
  return run_call(plan, NSA_OP_FORWARD, exec, batch, io, forward);
}

nsa_status nsa_dense(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                     const nsa_io *io) {
  return run_call(plan, NSA_OP_DENSE, exec, batch, io, dense);
}

nsa_status nsa_prefill(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                       const nsa_io *io) {
  return run_call(plan, NSA_OP_PREFILL, exec, batch, io, cached);
}

nsa_status nsa_decode(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                      const nsa_io *io) {
  return run_call(plan, NSA_OP_DECODE, exec, batch, io, cached);
}

nsa_status nsa_kv_append(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                         const nsa_io *io) {
  return run_call(plan, NSA_OP_APPEND, exec, batch, io, append);
}

nsa_status nsa_backward(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                        const nsa_io *io, const nsa_grads *grads) {
  call_structs call;
  nsai_run run;
  NSAI_TRY(begin_run(plan, NSA_OP_BACKWARD, exec, batch, io, &call, &run));
  return end_run(&run, backward(&run, &call, grads));
}

nsa_status nsa_index_kl(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                        const nsa_io *io, const nsa_index_grads *grads) {
  call_structs call;
  nsai_run run;
  NSAI_TRY(begin_run(plan, NSA_OP_INDEX_KL, exec, batch, io, &call, &run));
  return end_run(&run, index_kl(&run, &call, grads));
}

nsa_status nsai_run_with_callbacks(const nsa_plan *plan, const nsa_exec *exec,
                                   const nsa_batch *batch, const nsa_io *io, const nsa_grads *grads,
                                   const nsai_stage_callbacks *callbacks) {
  call_structs call;
  nsai_run run;
  int32_t op = plan->problem.op;
  if (op == NSA_OP_DECODE || op == NSA_OP_APPEND || op == NSA_OP_INDEX_KL)
    return nsai_fail(NSA_E_INTERNAL, "a run of %s has no stage callbacks", nsai_op_name(op));
  NSAI_TRY(begin_run(plan, op, exec, batch, io, &call, &run));
  run.callbacks = callbacks;
  if (op == NSA_OP_BACKWARD) return end_run(&run, backward(&run, &call, grads));
  if (op == NSA_OP_PREFILL) return end_run(&run, cached(&run));
  return end_run(&run, op == NSA_OP_DENSE ? dense(&run) : forward(&run));
}

nsa_status nsa_compress(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                        const nsa_io *io) {
  return run_call(plan, NSA_OP_FORWARD, exec, batch, io, compress);
}

nsa_status nsa_select(const nsa_plan *plan, const nsa_exec *exec, const nsa_batch *batch,
                      const nsa_io *io) {
  return run_call(plan, NSA_OP_FORWARD, exec, batch, io, select_blocks);
}
