/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Problems over a KV cache: the caches that decode steps are timed on, the timed steps, and the
 * cases that verify candidates.
 *
 * The host needs longer to launch a decode step than the device needs to run it, and the step's
 * cost is its reads. Steps are therefore timed in a CUDA graph, and each step uses another copy
 * of the caches that is no longer in L2.
 */
#include "base/math.h"
#include "tune/internal.h"

#include <nsa/kv_cache.h>
#include <stdio.h>
#include <string.h>

#define SEED 1

/* ---- caches ---- */

/* Lower bound of the bytes that a step reads: all new tokens of a sequence select the same blocks. */
static double step_bytes(const nsai_problem *p) {
  const nsai_model *m = &p->model;
  const double entries = (double)nsai_block_count(m, p->max_kv_len);
  const double tokens =
      (double)nsai_smaller((int64_t)m->select_count * m->select_block, p->max_kv_len) +
      (double)nsai_smaller(m->window, p->max_kv_len);
  const double cmp_bytes = p->cmp_dtype == NSA_E4M3 ? 1 : 2;
  const double bytes = entries * cmp_bytes + tokens * (p->kv_dtype == NSA_E4M3 ? 1 : 2);
  const double index = cmp_bytes * (double)p->max_kv_len * m->index_dim; /* 0 without an index */
  return p->max_seqs * (bytes * m->kv_heads * (m->head_dim_qk + m->head_dim_v) + index);
}

static bool kv_serves(const tuner *t, const tune_task *task) {
  const nsai_verify_cache_options *f = &t->kv.options;
  const nsai_problem *p = &task->problem;
  return t->has_kv && t->kv_op == p->op && f->context == task->tokens && f->batch == p->max_seqs &&
         f->q_len == p->max_q_len && f->page_size == p->page_size && f->fill == task->fill &&
         f->kv_dtype == p->kv_dtype && f->cmp_dtype == p->cmp_dtype &&
         !memcmp(&t->kv_model, &p->model, sizeof p->model);
}

/* The plan that fills the caches, one sequence at a time. It leaves out entries that are
 * computed from weights. */
static nsa_status plan_append(tuner *t, const nsai_problem *problem, nsai_trial_plan *out) {
  const nsai_decisions none = { .why = "the tuner" };
  nsai_problem p = *problem;
  p.op = NSA_OP_APPEND;
  p.selection = NSA_SELECT_TOPN;
  p.max_seqs = 1;
  p.max_tokens = nsai_smaller(p.max_kv_len, NSAI_VERIFY_CACHE_PROMPT);
  p.max_q_len = (int32_t)p.max_tokens;
  if (nsai_phi_has_weights(&p.model)) p.model.phi = NSAI_PHI_EXTERNAL;
  return nsai_tune_plan(t, &p, &none, out);
}

nsa_status nsai_tune_kv_data(tuner *t, const tune_task *task) {
  const nsai_problem *p = &task->problem;
  const nsai_driver *driver = t->device.driver;
  nsai_trial_plan append;
  if (kv_serves(t, task)) return NSA_OK;
  nsai_tune_data_free(t);
  t->overlap = (nsai_verify_overlap){ 0 };
  if (!driver->cuStreamBeginCapture || !driver->cuStreamEndCapture || !driver->cuGraphLaunch ||
      !driver->cuGraphInstantiateWithFlags || !driver->cuGraphExecDestroy ||
      !driver->cuGraphDestroy)
    return nsai_fail(NSA_E_NO_DRIVER,
                     "the driver lacks CUDA graphs, in which decode steps are timed: update it");
  t->kv_model = p->model;
  t->kv_op = p->op;
  const nsai_verify_cache_options options = {
    .model = &t->kv_model,
    .fill = task->fill,
    .seed = SEED,
    .threads = t->trial.threads,
    .context = task->tokens,
    .batch = p->max_seqs,
    .q_len = p->max_q_len,
    .page_size = p->page_size,
    .kv_dtype = p->kv_dtype,
    .cmp_dtype = p->cmp_dtype,
    .copies = p->op == NSA_OP_DECODE ? nsai_verify_cache_copies(step_bytes(p)) : 1
  };
  NSAI_TRY(plan_append(t, p, &append));
  t->has_kv = true;
  nsa_status status = nsai_verify_cache_create(&t->device, &options, append.plan, &t->kv);
  nsa_plan_destroy(append.plan);
  return nsai_tune_room(t, status);
}

/* ---- runs ---- */

nsa_status nsai_tune_kv_prefill(tuner *t, const nsai_trial_plan *plan,
                                const nsai_stage_callbacks *callbacks) {
  const nsai_verify_cache *kv = &t->kv;
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_batch batch = nsai_verify_cache_batch(kv, 0);
  NSAI_TRY(nsai_verify_cache_workspace(&t->kv, plan->caps.workspace_bytes));
  exec.workspace = kv->workspace;
  exec.workspace_bytes = kv->workspace_bytes;
  exec.stream = (nsa_stream)t->device.stream;
  return nsai_run_with_callbacks(plan->plan, &exec, &batch, &kv->io, NULL, callbacks);
}

typedef struct steps {
  tuner *t;
  const nsai_trial_plan *plan;
} steps;

static nsa_status enqueue_steps(void *user) {
  const steps *s = user;
  const nsai_verify_cache *kv = &s->t->kv;
  nsa_exec exec = NSA_EXEC_INIT;
  exec.workspace = kv->workspace;
  exec.workspace_bytes = kv->workspace_bytes;
  exec.stream = (nsa_stream)s->t->device.stream;
  for (int64_t copy = 0; copy < kv->options.copies; copy++) {
    nsa_batch batch = nsai_verify_cache_batch(kv, copy);
    NSAI_TRY(nsa_decode(s->plan->plan, &exec, &batch, &kv->io));
  }
  return NSA_OK;
}

/* The first launch uploads the graph to the device; the second one is timed. */
static nsa_status time_graph(tuner *t, nsai_cu_graph_exec graph, double *ms) {
  const nsai_driver *driver = t->device.driver;
  nsai_cu_stream stream = t->device.stream;
  float all = 0;
  NSAI_TRY(NSAI_CUDA(driver, cuGraphLaunch(graph, stream)));
  NSAI_TRY(NSAI_CUDA(driver, cuEventRecord(t->events[0], stream)));
  NSAI_TRY(NSAI_CUDA(driver, cuGraphLaunch(graph, stream)));
  NSAI_TRY(NSAI_CUDA(driver, cuEventRecord(t->events[1], stream)));
  NSAI_TRY(nsai_verify_device_wait(&t->device, NULL));
  NSAI_TRY(NSAI_CUDA(driver, cuEventElapsedTime(&all, t->events[0], t->events[1])));
  *ms = (double)all / (double)t->kv.options.copies;
  return NSA_OK;
}

nsa_status nsai_tune_kv_step(tuner *t, const nsai_trial_plan *plan, double *ms) {
  steps s = { t, plan };
  nsai_cu_graph_exec graph = NULL;
  t->at = NSAI_STAGE_DECODE;
  NSAI_TRY(nsai_verify_cache_workspace(&t->kv, plan->caps.workspace_bytes));
  nsa_status status = nsai_verify_device_capture(&t->device, enqueue_steps, &s, &graph);
  if (!status) status = time_graph(t, graph, ms);
  if (graph) t->device.driver->cuGraphExecDestroy(graph);
  return status;
}

/* ---- cases ---- */

#define RAGGED 5               /* tokens that a sequence is shorter than the longest */
#define LONGEST_VERIFIED 65536 /* the reference takes seconds for a longer sequence */
#define SHORT 300              /* longest of the other sequences, in tokens */

#define CHUNK 100 /* tokens of a prefill that are verified */
#define BLOCKS_LEFT_OUT 4

/* Three sequences: a chunk at the end of a long one, so that the selection leaves blocks out
 * where the problem is long enough for that; a chunk at the beginning of a shorter one; and a
 * padded row. */
static void prefill_case(const nsai_problem *problem, nsai_verify_cache_case *out) {
  const nsai_model *m = &problem->model;
  int64_t tokens = (int64_t)(m->select_count + BLOCKS_LEFT_OUT) * m->select_block + RAGGED;
  if (!m->select_count) tokens = 4 * (m->window + m->block);
  out->seqs = 3;
  out->len[0] = (int32_t)nsai_smaller(tokens, problem->max_kv_len);
  out->q_len[0] = (int32_t)nsai_smaller(nsai_smaller(CHUNK, out->len[0]), problem->max_tokens);
  out->len[1] = out->q_len[1] = out->q_len[0] / 2;
  out->problem.max_q_len = out->q_len[0];
}

/* As many sequences as the problem has, so that work is split as it will be in use. The first is
 * as long as the problem's, the others are short (some shorter than a block), and the last one
 * is padded. */
static void step_case(const nsai_problem *p, nsai_verify_cache_case *out) {
  int64_t longest = nsai_smaller(p->max_kv_len, LONGEST_VERIFIED), q_len = p->max_q_len;
  if (longest > RAGGED + q_len) longest -= RAGGED;
  out->seqs = (int32_t)nsai_smaller(p->max_seqs, NSAI_VERIFY_CACHE_SEQS);
  for (int32_t s = 0; s < out->seqs; s++) {
    int64_t len = s == 0 ? longest : s == 1 ? longest / 3 : q_len + 37 * s % SHORT;
    if (len > longest) len = longest;
    out->q_len[s] = (int32_t)q_len;
    out->len[s] = (int32_t)(len > q_len ? len : q_len);
  }
  if (out->seqs > 1) out->len[out->seqs - 1] = 0;
}

void nsai_tune_kv_case(const nsai_problem *problem, nsai_verify_cache_case *out) {
  nsai_problem *p = &out->problem;
  *out = (nsai_verify_cache_case){ .problem = *problem,
                                   .fill = NSAI_VERIFY_FILL_CORRELATED,
                                   .seed = SEED };
  if (p->op == NSA_OP_PREFILL)
    prefill_case(problem, out);
  else
    step_case(problem, out);
  p->max_seqs = out->seqs;
  p->max_tokens = 0;
  for (int32_t s = 0; s < out->seqs; s++) p->max_tokens += out->q_len[s];
  p->max_kv_len = out->len[0];
}
