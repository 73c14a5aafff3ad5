/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "measure.h"

#include "measure_index.h"

#include "plan/context.h"
#include "time_launch.h"
#include "verify/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* dense_gemm takes this many times as long as dense (4.2 to 5.7 from 4k to 64k tokens, H200,
 * 2026-11-20). It is skipped if all its launches would exceed the time limit. */
#define GEMM_SLOWER 5.5
#define GEMM_SECONDS 10.0

/* Largest cost, in multiply-adds, of a forward on the CPU device, which runs some hundred times. */
#define CPU_COST 1e9

/* ---- work ------------------------------------------------------------------------------------ */

double bench_pairs(const nsai_verify_case *c, int branch) {
  const nsai_model *g = &c->model;
  double sum = 0;
  for (int32_t s = 0; s < c->num_seqs; s++)
    for (int64_t i = 0; i < c->q_len[s]; i++) {
      int64_t t = c->kv_len[s] - c->q_len[s] + i, seen = t + 1;
      if (t < 0) continue;
      if (branch == NSA_CMP) seen = nsai_block_count(g, t + 1);
      int64_t most = (int64_t)(g->select_count - 1) * g->select_block + t % g->select_block + 1;
      if (branch == NSA_SEL && g->select_count && seen > most) seen = most;
      if (branch == NSA_WIN && seen > g->window) seen = g->window;
      sum += (double)seen;
    }
  return sum;
}

static double attention_flops(const nsai_verify_case *c, int branch) {
  const nsai_model *g = &c->model;
  return 2 * bench_pairs(c, branch) * g->heads * (g->head_dim_qk + g->head_dim_v);
}

static int has_branch(const nsai_verify_case *c, int branch) {
  if (branch == NSA_SEL) return c->model.select_count > 0;
  return branch == NSA_WIN ? c->model.window > 0 : 1;
}

static double forward_flops(const nsai_verify_case *c) {
  double sum = 0;
  for (int b = 0; b < NSA_BRANCHES; b++)
    if (has_branch(c, b)) sum += attention_flops(c, b);
  return sum + 2 * bench_pairs(c, NSA_BRANCHES) * c->model.index_heads * c->model.index_dim;
}

static double kv_rows(const nsai_verify_case *c) {
  return (double)nsai_verify_total(c->kv_len, c->num_seqs);
}

/* Bytes that every implementation reads or writes once: q and o, and all of K and V; of an index its
 * queries and keys. */
static double attention_bytes(const nsai_verify_case *c) {
  const nsai_model *g = &c->model;
  double tokens = (double)nsai_verify_total(c->q_len, c->num_seqs),
         dims = g->head_dim_qk + g->head_dim_v;
  return 2 * dims * (tokens * g->heads + kv_rows(c) * g->kv_heads) +
         2.0 * g->index_dim * (tokens * g->index_heads + kv_rows(c));
}

/* phi alone reads K and V and writes the compressed rows. */
static double compress_bytes(const nsai_verify_case *c, int64_t blocks) {
  const nsai_model *g = &c->model;
  return 2.0 * g->kv_heads * (g->head_dim_qk + g->head_dim_v) * (kv_rows(c) + (double)blocks);
}

/* ---- one part -------------------------------------------------------------------------------- */

/* Lower bound in ms from the device's figures; 0 if the configuration has no such figures for
 * the device. */
static double bound_ms(const nsa_ctx *ctx, double flops, double bytes) {
  double tflops = ctx->config->device.bf16_tflops, gbps = ctx->config->device.hbm_gbps;
  if (!(tflops > 0) || !(gbps > 0)) return 0;
  return fmax(flops / tflops * 1e-9, bytes / gbps * 1e-6);
}

/* Rounds a time as results are written, so that figures drawn now and from a file are equal. */
static double as_written(double ms) {
  char text[32];
  snprintf(text, sizeof text, "%.5g", ms);
  return strtod(text, NULL);
}

nsa_status bench_time_part(const bench_rig *rig, const nsai_trial_run *trial, uint32_t branches,
                           double flops, double bytes, bench_time *time) {
  chk_times times;
  time->present = 1;
  time->workspace = trial->plan.caps.workspace_bytes;
  NSAI_TRY(chk_time_launch(trial, branches, rig->flush, &times));
  time->burst_ms = as_written(times.burst_ms);
  time->sustained_ms = as_written(times.sustained_ms);
  time->tflops = flops / times.burst_ms * 1e-9;
  time->gbps = bytes / times.burst_ms * 1e-6;
  time->roofline = bound_ms(trial->plan.ctx, flops, bytes) / times.burst_ms;
  return NSA_OK;
}

/* Stores the first line of the last error as the reason why a part has no time. */
static void note_error(bench_time *time) {
  const char *text = nsa_last_error();
  time->present = 1;
  snprintf(time->note, sizeof time->note, "%.*s", (int)strcspn(text, "\n"), text);
}

/* ---- the parts ------------------------------------------------------------------------------- */

/* The case must have the tensors of compressed keys and values. */
static nsa_status time_compress(const bench_rig *rig, nsai_trial_run *trial, bench_problem *p) {
  nsai_verify_case alone = p->c;
  if (!nsai_phi_runs(&p->c.model)) return NSA_OK;
  alone.kind = NSAI_VERIFY_COMPRESS;
  trial->c = &alone;
  nsa_status status = bench_time_part(rig, trial, 0, 0, compress_bytes(&p->c, trial->data.blocks),
                                      &p->part[BENCH_COMPRESS]);
  trial->c = &p->c;
  return status;
}

static nsa_status time_forward(const bench_rig *rig, const nsai_trial_run *trial, uint32_t parts,
                               bench_problem *p) {
  static const bench_part part_of[NSA_BRANCHES] = {
    [NSA_CMP] = BENCH_COMPRESSED, [NSA_SEL] = BENCH_SELECTED, [NSA_WIN] = BENCH_WINDOW
  };
  double bytes = attention_bytes(&p->c);
  if (parts >> BENCH_FORWARD & 1)
    NSAI_TRY(bench_time_part(rig, trial, 0, forward_flops(&p->c), bytes, &p->part[BENCH_FORWARD]));
  for (int b = 0; b < NSA_BRANCHES; b++)
    if (parts >> part_of[b] & 1 && nsai_has_branch(&p->c.model, b))
      NSAI_TRY(bench_time_part(rig, trial, 1u << b, attention_flops(&p->c, b), bytes,
                               &p->part[part_of[b]]));
  return NSA_OK;
}

/* Products of the backward pass relative to the forward: q k^T and dO v^T again, dQ, dK and dV. */
static double backward_ratio(const nsai_model *g) {
  double qk = g->head_dim_qk, v = g->head_dim_v;
  return (3 * qk + 2 * v) / (qk + v);
}

/* Times the backward pass of the forward that has just run. */
static nsa_status time_backward(const bench_rig *rig, const nsai_trial_run *trial, bench_part part,
                                bench_problem *p) {
  nsai_verify_case backward = p->c;
  nsai_trial_run other;
  nsa_status status;
  backward.kind = NSAI_VERIFY_BACKWARD;
  backward.saved = part == BENCH_BACKWARD_SAVED ? 2 : 0;
  NSAI_TRY_TO(done, chk_bench_create(rig->plans, &backward, &other));
  NSAI_TRY_TO(done, nsai_trial_run_hand_over(trial, &other));
  status = bench_time_part(rig, &other, 0, backward_ratio(&p->c.model) * forward_flops(&p->c),
                           2 * attention_bytes(&p->c), &p->part[part]);
done:
  nsai_trial_run_destroy(&other);
  return status;
}

/* Times dense attention over the same tensors, by the default variant or by plain matrix
 * products. */
static nsa_status time_dense(const bench_rig *rig, nsai_trial_run *trial, bench_part part,
                             bench_problem *p) {
  nsai_verify_case dense = p->c;
  nsai_trial_plan sparse = trial->plan;
  dense.kind = NSAI_VERIFY_DENSE;
  dense.gemm = part == BENCH_DENSE_GEMM;
  nsa_status status = chk_plans_get(rig->plans, &dense, NSA_OP_DENSE, &trial->plan);
  if (!status)
    status = nsai_verify_tensors_workspace(&trial->data, trial->plan.caps.workspace_bytes);
  trial->c = &dense;
  if (!status)
    status = bench_time_part(rig, trial, 0, attention_flops(&p->c, NSA_BRANCHES),
                             attention_bytes(&p->c), &p->part[part]);
  trial->c = &p->c;
  trial->plan = sparse;
  return status;
}

static void time_gemm(const bench_rig *rig, nsai_trial_run *trial, bench_problem *p) {
  bench_time *time = &p->part[BENCH_DENSE_GEMM];
  double ms = GEMM_SLOWER * bench_ms(p, BENCH_DENSE), seconds = 1e-3 * ms * CHK_LEAST_TIMED;
  time->present = 1;
  if (!chk_plans_device(rig->plans)->driver)
    snprintf(time->note, sizeof time->note, "the CPU device has no variants");
  else if (p->c.num_seqs > 1 || !p->c.no_batch)
    snprintf(time->note, sizeof time->note, "takes one sequence without a batch");
  else if (seconds > GEMM_SECONDS)
    snprintf(time->note, sizeof time->note, "skipped: %d launches of about %.0f ms each",
             CHK_LEAST_TIMED, ms);
  else if (time_dense(rig, trial, BENCH_DENSE_GEMM, p))
    note_error(time);
}

/* Runs once with block indices and measures how much adjacent selections overlap. */
static nsa_status measure_overlap(nsai_trial_run *trial, bench_problem *p) {
  NSAI_TRY(nsai_trial_run_enqueue(trial, 0, NULL));
  NSAI_TRY(nsai_verify_device_wait(trial->data.device, NULL));
  if (!nsai_verify_tensors_has(&trial->data, NSAI_VERIFY_INDEX) || p->c.num_seqs != 1)
    return NSA_OK;
  NSAI_TRY(nsai_verify_buffer_fetch(trial->data.device, &trial->data.buffer[NSAI_VERIFY_INDEX]));
  nsa_tensor index = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_INDEX, NSAI_VERIFY_HOST);
  index.shape[0] = trial->data.tokens;
  nsai_verify_overlap_measure(&p->c.model, &index, p->c.kv_len[0] - p->c.q_len[0], &p->overlap);
  return NSA_OK;
}

nsa_status bench_check_cost(const chk_plans *plans, const nsai_verify_case *c) {
  if (chk_plans_device(plans)->driver || nsai_verify_case_cost(c) <= CPU_COST) return NSA_OK;
  return nsai_fail(NSA_E_UNSUPPORTED, "too large for the CPU device");
}

nsa_status bench_measure(bench_rig *rig, uint32_t parts, bench_problem *p) {
  nsai_trial_run trial;
  nsa_status status;
  NSAI_TRY(bench_check_cost(rig->plans, &p->c));
  NSAI_TRY_TO(done, chk_bench_create(rig->plans, &p->c, &trial));
  memcpy(p->variants, trial.plan.caps.variants, sizeof p->variants);
  NSAI_TRY_TO(done, measure_overlap(&trial, p));
  if (trial.data.device->driver)
    NSAI_TRY_TO(done, chk_time_plan(rig->plans, &p->c, &p->plan_cold_ms, &p->plan_warm_ms));
  if (parts >> BENCH_COMPRESS & 1) NSAI_TRY_TO(done, time_compress(rig, &trial, p));
  if (parts >> BENCH_FORWARD_SAVED & 1)
    NSAI_TRY_TO(done, bench_time_part(rig, &trial, 0, forward_flops(&p->c), attention_bytes(&p->c),
                                      &p->part[BENCH_FORWARD_SAVED]));
  for (int part = BENCH_BACKWARD; part <= BENCH_BACKWARD_SAVED; part++)
    if (parts >> part & 1 && time_backward(rig, &trial, (bench_part)part, p))
      note_error(&p->part[part]);
  for (int part = BENCH_INDEX_KL; part <= BENCH_INDEX_KL_ALL; part++)
    if (parts >> part & 1 && bench_measure_index_kl(rig, &trial, (bench_part)part, p))
      note_error(&p->part[part]);
  nsai_verify_tensors_drop_optional(&trial.data);
  NSAI_TRY_TO(done, time_forward(rig, &trial, parts, p));
  if (parts >> BENCH_DENSE & 1) NSAI_TRY_TO(done, time_dense(rig, &trial, BENCH_DENSE, p));
  /* a failure of it only gives a note */
  if (parts >> BENCH_DENSE_GEMM & 1) time_gemm(rig, &trial, p);
done:
  nsai_trial_run_destroy(&trial);
  return status;
}

nsa_status bench_rig_create(chk_plans *plans, bench_rig *rig) {
  const nsai_verify_device *device = chk_plans_device(plans);
  *rig = (bench_rig){ .plans = plans };
  return device->driver ? nsai_verify_device_alloc(device, NSAI_VERIFY_FLUSH_BYTES, &rig->flush)
                        : NSA_OK;
}

void bench_rig_destroy(bench_rig *rig) {
  if (rig->flush) nsai_verify_device_free(chk_plans_device(rig->plans), rig->flush);
  *rig = (bench_rig){ 0 };
}
