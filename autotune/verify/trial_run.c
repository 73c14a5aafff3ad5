/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/trial_run.h"

#include "verify/rows.h"

#include "plan/plan.h"

#include <stdlib.h>

/* Up to NSAI_TRIAL_MAX_PROBES of the compared rows, evenly spread, the last among them. */
static int64_t pick_probes(const nsai_trial_bench *bench, int64_t *probes) {
  int64_t count =
      bench->token_count < NSAI_TRIAL_MAX_PROBES ? bench->token_count : NSAI_TRIAL_MAX_PROBES;
  for (int64_t i = 0; i < count; i++)
    probes[i] = bench->tokens[count > 1 ? i * (bench->token_count - 1) / (count - 1) : 0];
  return count;
}

/* What runs of a plan need; a d_o in f32 is rounded behind the rest on a GPU. */
static uint64_t workspace_of(const nsai_trial_bench *bench) {
  const nsai_trial_case *c = bench->c;
  uint64_t bytes = bench->plan.caps.workspace_bytes;
  if (c->kind != NSAI_TRIAL_BACKWARD || !c->d_o_f32 || !bench->data.device->driver) return bytes;
  return bytes + nsai_d_o_bytes(&c->geometry, bench->data.token_capacity);
}

nsa_status nsai_trial_bench_prepare(const nsai_trial_device *device, const nsai_trial_case *c,
                                    const nsai_trial_plan *plan, int threads,
                                    nsai_trial_bench *bench) {
  int64_t probes[NSAI_TRIAL_MAX_PROBES];
  *bench = (nsai_trial_bench){ .c = c, .plan = *plan, .threads = threads };
  bench->token_count = nsai_trial_sample_tokens(c, &bench->tokens);
  int64_t probe_count = pick_probes(bench, probes);
  NSAI_TRY(nsai_trial_data_create(device, c, threads, probes, probe_count, &bench->data));
  NSAI_TRY(nsai_trial_data_workspace(&bench->data, workspace_of(bench)));
  return nsai_trial_device_wait(device, NULL);
}

void nsai_trial_bench_destroy(nsai_trial_bench *bench) {
  if (bench->data.device) nsai_trial_data_destroy(&bench->data);
  free(bench->tokens);
  *bench = (nsai_trial_bench){ 0 };
}

nsa_status nsai_trial_bench_use(nsai_trial_bench *bench, const nsai_trial_plan *plan) {
  bench->plan = *plan;
  NSAI_TRY(nsai_trial_data_workspace_anew(&bench->data, workspace_of(bench)));
  return nsai_trial_device_wait(bench->data.device, NULL);
}

nsa_status nsai_trial_bench_enqueue(const nsai_trial_bench *bench, uint32_t branches,
                                    nsa_stream stream) {
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_batch batch;
  nsa_io io;
  nsa_grads grads;
  exec.branches = branches;
  exec.workspace = bench->data.workspace;
  exec.workspace_bytes = bench->data.workspace_bytes;
  exec.stream = stream ? stream : bench->data.device->stream;
  nsai_trial_data_io(&bench->data, NSAI_TRIAL_ON_DEVICE, &batch, &io);
  const nsa_batch *given = nsai_trial_data_batch(&bench->data, &batch);
  nsa_tensor importance =
      nsai_trial_data_view(&bench->data, NSAI_TRIAL_IMPORTANCE_IN, NSAI_TRIAL_ON_DEVICE);
  switch (bench->c->kind) {
  case NSAI_TRIAL_COMPRESS: return nsa_compress(bench->plan.plan, &exec, given, &io);
  case NSAI_TRIAL_SELECT: return nsa_select(bench->plan.plan, &exec, given, &io, &importance);
  case NSAI_TRIAL_DENSE: return nsa_dense(bench->plan.plan, &exec, given, &io);
  case NSAI_TRIAL_BACKWARD:
    nsai_trial_data_grads(&bench->data, NSAI_TRIAL_ON_DEVICE, &grads);
    return nsa_backward(bench->plan.plan, &exec, given, &io, &grads);
  default: return nsa_forward(bench->plan.plan, &exec, given, &io);
  }
}

nsa_status nsai_trial_bench_run(nsai_trial_bench *bench) {
  NSAI_TRY(nsai_trial_data_poison(&bench->data));
  if (bench->c->accumulate) NSAI_TRY(nsai_trial_data_begin_sums(&bench->data, bench->c->seed));
  NSAI_TRY(nsai_trial_bench_enqueue(bench, bench->c->branches, NULL));
  NSAI_TRY(nsai_trial_device_wait(bench->data.device, NULL));
  return nsai_trial_data_fetch(&bench->data);
}

nsa_status nsai_trial_run_intact(nsai_trial_bench *bench, nsai_trial_result *result) {
  NSAI_TRY(nsai_trial_bench_run(bench));
  const char *damaged = nsai_trial_data_damaged(&bench->data);
  if (damaged) nsai_trial_fail(result, "%s: memory outside the written rows changed", damaged);
  return NSA_OK;
}

/* Copies what a forward has left on the device into an input of another bench, if that has it. */
static nsa_status hand_over(const nsai_trial_bench *from, int output, nsai_trial_bench *to,
                            int input) {
  nsai_trial_buffer left = from->data.buffer[output], *given = &to->data.buffer[input];
  if (!left.device || !given->device) return NSA_OK;
  if (left.bytes != given->bytes)
    return nsai_fail(NSA_E_INTERNAL, "%s and %s differ in size", nsai_trial_slot_name(output),
                     nsai_trial_slot_name(input));
  NSAI_TRY(nsai_trial_device_download(from->data.device, given->image, left.device,
                                      left.bytes + 2 * (size_t)NSAI_TRIAL_GUARD));
  return nsai_trial_buffer_upload(to->data.device, given);
}

nsa_status nsai_trial_bench_hand_over(const nsai_trial_bench *from, nsai_trial_bench *to) {
  NSAI_TRY(hand_over(from, NSAI_TRIAL_INDEX, to, NSAI_TRIAL_INDEX_IN));
  if (!to->c->saved) return NSA_OK;
  NSAI_TRY(hand_over(from, NSAI_TRIAL_K_CMP, to, NSAI_TRIAL_K_CMP_IN));
  NSAI_TRY(hand_over(from, NSAI_TRIAL_V_CMP, to, NSAI_TRIAL_V_CMP_IN));
  for (int b = 0; b < NSA_BRANCHES; b++) {
    NSAI_TRY(hand_over(from, NSAI_TRIAL_O_BRANCH + b, to, NSAI_TRIAL_O_BRANCH_IN + b));
    NSAI_TRY(hand_over(from, NSAI_TRIAL_LSE + b, to, NSAI_TRIAL_LSE_IN + b));
  }
  return NSA_OK;
}
