/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "measure_index.h"

#include "verify/inputs.h"

enum { LOSS, D_Q, D_K, OUTPUTS };

/* The products of the heads' scores, and of the index its scores and both gradients. */
static double flops_of(const nsai_verify_case *c, double pairs) {
  const nsai_model *g = &c->model;
  return 2 * pairs * ((double)g->heads * g->head_dim_qk + 3.0 * g->index_heads * g->index_dim);
}

/* q, the LSE, K, index queries and keys once, and the gradients in f32. */
static double bytes_of(const nsai_verify_case *c) {
  const nsai_model *g = &c->model;
  const double tokens = (double)nsai_verify_total(c->q_len, c->num_seqs);
  const double keys = (double)nsai_verify_total(c->kv_len, c->num_seqs);
  return tokens * (2.0 * g->heads * g->head_dim_qk + 4.0 * g->heads +
                   (2.0 + 4.0) * g->index_heads * g->index_dim) +
         keys * (2.0 * g->kv_heads * g->head_dim_qk + (2.0 + 4.0) * g->index_dim);
}

/* The LSE of dense attention in the place of the selected branch's. */
static nsa_status make_dense_lse(const bench_rig *rig, nsai_trial_run *trial,
                                 const bench_problem *p) {
  nsai_verify_case dense = p->c;
  nsai_trial_plan plan;
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_batch batch;
  nsa_io io;
  dense.kind = NSAI_VERIFY_DENSE;
  NSAI_TRY(chk_plans_get(rig->plans, &dense, NSA_OP_DENSE, &plan));
  NSAI_TRY(nsai_verify_tensors_workspace(&trial->data, plan.caps.workspace_bytes));
  nsai_verify_tensors_io(&trial->data, NSAI_VERIFY_ON_DEVICE, &batch, &io);
  nsai_verify_leave_out_index(&io);
  io.lse[0] = io.lse[NSA_SEL];
  io.lse[NSA_SEL] = io.o_branch[0] = io.o_branch[NSA_SEL] = io.o_branch[NSA_WIN] = io.lse[NSA_WIN] =
      io.block_idx = io.probe_rows = io.probe_importance = (nsa_tensor){ 0 };
  exec.workspace = trial->data.workspace;
  exec.workspace_bytes = trial->data.workspace_bytes;
  exec.stream = trial->data.device->stream;
  return nsa_dense(plan.plan, &exec, nsai_verify_tensors_batch(&trial->data, &batch), &io);
}

static nsa_status alloc_outputs(const nsai_trial_run *trial, const nsai_model *g,
                                nsa_index_grads *grads) {
  const nsai_verify_tensors *d = &trial->data;
  nsa_tensor *const out[OUTPUTS] = { &grads->loss, &grads->d_index_q, &grads->d_k_idx };
  grads->loss = nsai_verify_tensor(NSA_F32, 1, (int64_t[]){ 1 });
  grads->d_index_q =
      nsai_verify_tensor(NSA_F32, 3,
                         (int64_t[]){ d->token_capacity, g->index_heads, g->index_dim });
  grads->d_k_idx = nsai_verify_tensor(NSA_F32, 3, (int64_t[]){ d->kv_capacity, 1, g->index_dim });
  for (int i = 0; i < OUTPUTS; i++)
    NSAI_TRY(nsai_verify_device_alloc(d->device, nsai_verify_tensor_bytes(out[i]), &out[i]->data));
  return NSA_OK;
}

nsa_status bench_measure_index_kl(const bench_rig *rig, nsai_trial_run *trial, bench_part part,
                                  bench_problem *p) {
  const bool all = part == BENCH_INDEX_KL_ALL;
  const nsai_trial_plan forward = trial->plan;
  nsai_verify_case kl = p->c;
  nsa_index_grads grads = NSA_INDEX_GRADS_INIT;
  nsa_status status;
  kl.kind = NSAI_VERIFY_INDEX_KL;
  if (all) kl.selection = NSA_SELECT_ALL;
  NSAI_TRY_TO(done, alloc_outputs(trial, &p->c.model, &grads));
  if (all) NSAI_TRY_TO(done, make_dense_lse(rig, trial, p));
  NSAI_TRY_TO(done, chk_plans_get(rig->plans, &kl, NSA_OP_INDEX_KL, &trial->plan));
  NSAI_TRY_TO(done, nsai_verify_tensors_workspace(&trial->data, trial->plan.caps.workspace_bytes));
  trial->index_grads = &grads;
  status = bench_time_part(rig, trial, 0,
                           flops_of(&p->c, bench_pairs(&p->c, all ? NSA_BRANCHES : NSA_SEL)),
                           bytes_of(&p->c), &p->part[part]);
done:
  trial->index_grads = NULL;
  trial->plan = forward;
  (void)nsai_verify_device_wait(trial->data.device, NULL); /* before memory goes that runs write */
  nsai_verify_device_free(trial->data.device, grads.loss.data);
  nsai_verify_device_free(trial->data.device, grads.d_index_q.data);
  nsai_verify_device_free(trial->data.device, grads.d_k_idx.data);
  return status;
}
