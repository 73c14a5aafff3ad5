/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/trial_run.h"

#include "verify/rows.h"

#include "plan/plan.h"

#include <stdlib.h>

/* Up to NSAI_VERIFY_MAX_PROBES of the compared rows, evenly spread and including the last. */
static int64_t pick_probes(const nsai_trial_run *trial, int64_t *probes) {
  int64_t count =
      trial->token_count < NSAI_VERIFY_MAX_PROBES ? trial->token_count : NSAI_VERIFY_MAX_PROBES;
  for (int64_t i = 0; i < count; i++)
    probes[i] = trial->tokens[count > 1 ? i * (trial->token_count - 1) / (count - 1) : 0];
  return count;
}

/* Workspace of a plan's runs; room for a rounded copy of an f32 d_o follows it. */
static uint64_t workspace_of(const nsai_trial_run *trial) {
  const nsai_verify_case *c = trial->c;
  uint64_t bytes = trial->plan.caps.workspace_bytes;
  if (c->kind != NSAI_VERIFY_BACKWARD || !c->d_o_f32) return bytes;
  return bytes + nsai_d_o_bytes(&c->model, trial->data.token_capacity);
}

nsa_status nsai_trial_run_prepare(const nsai_verify_device *device, const nsai_verify_case *c,
                                  const nsai_trial_plan *plan, int threads, nsai_trial_run *trial) {
  int64_t probes[NSAI_VERIFY_MAX_PROBES];
  *trial = (nsai_trial_run){ .c = c, .plan = *plan, .threads = threads };
  trial->token_count = nsai_verify_sample_tokens(c, &trial->tokens);
  int64_t probe_count = pick_probes(trial, probes);
  NSAI_TRY(nsai_verify_tensors_create(device, c, threads, probes, probe_count, &trial->data));
  NSAI_TRY(nsai_verify_tensors_workspace(&trial->data, workspace_of(trial)));
  return nsai_verify_device_wait(device, NULL);
}

void nsai_trial_run_destroy(nsai_trial_run *trial) {
  if (trial->data.device) nsai_verify_tensors_destroy(&trial->data);
  free(trial->tokens);
  *trial = (nsai_trial_run){ 0 };
}

nsa_status nsai_trial_run_use(nsai_trial_run *trial, const nsai_trial_plan *plan) {
  trial->plan = *plan;
  NSAI_TRY(nsai_verify_tensors_workspace_anew(&trial->data, workspace_of(trial)));
  return nsai_verify_device_wait(trial->data.device, NULL);
}

nsa_status nsai_trial_run_enqueue(const nsai_trial_run *trial, uint32_t branches,
                                  nsa_stream stream) {
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_batch batch;
  nsa_io io;
  nsa_grads grads;
  exec.branches = branches;
  exec.workspace = trial->data.workspace;
  exec.workspace_bytes = trial->data.workspace_bytes;
  exec.stream = stream ? stream : trial->data.device->stream;
  nsai_verify_tensors_io(&trial->data, NSAI_VERIFY_ON_DEVICE, &batch, &io);
  const nsa_batch *given = nsai_verify_tensors_batch(&trial->data, &batch);
  io.importance =
      nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_IMPORTANCE_IN, NSAI_VERIFY_ON_DEVICE);
  if (trial->index_grads) {
    io.lse[0] = io.lse[NSA_SEL]; /* of a warm-up; others do not look */
    return nsa_index_kl(trial->plan.plan, &exec, given, &io, trial->index_grads);
  }
  switch (trial->c->kind) {
  case NSAI_VERIFY_COMPRESS: return nsa_compress(trial->plan.plan, &exec, given, &io);
  case NSAI_VERIFY_SELECT: return nsa_select(trial->plan.plan, &exec, given, &io);
  case NSAI_VERIFY_DENSE:
    nsai_verify_leave_out_index(&io);
    return nsa_dense(trial->plan.plan, &exec, given, &io);
  case NSAI_VERIFY_BACKWARD:
    nsai_verify_tensors_grads(&trial->data, NSAI_VERIFY_ON_DEVICE, &grads);
    return nsa_backward(trial->plan.plan, &exec, given, &io, &grads);
  default: return nsa_forward(trial->plan.plan, &exec, given, &io);
  }
}

nsa_status nsai_trial_run_execute(nsai_trial_run *trial) {
  NSAI_TRY(nsai_verify_tensors_poison(&trial->data));
  if (trial->c->accumulate) NSAI_TRY(nsai_verify_tensors_begin_sums(&trial->data, trial->c->seed));
  NSAI_TRY(nsai_trial_run_enqueue(trial, trial->c->branches, NULL));
  NSAI_TRY(nsai_verify_device_wait(trial->data.device, NULL));
  return nsai_verify_tensors_fetch(&trial->data);
}

nsa_status nsai_trial_run_intact(nsai_trial_run *trial, nsai_verify_result *result) {
  NSAI_TRY(nsai_trial_run_execute(trial));
  const char *damaged = nsai_verify_tensors_damaged(&trial->data);
  if (damaged) nsai_verify_fail(result, "%s: memory outside the written rows changed", damaged);
  return NSA_OK;
}

/* Copies an output of a forward on the device into an input of another trial run, if that has
 * it. */
static nsa_status hand_over(const nsai_trial_run *from, int output, nsai_trial_run *to, int input) {
  nsai_verify_buffer left = from->data.buffer[output], *given = &to->data.buffer[input];
  if (!left.device || !given->device) return NSA_OK;
  if (left.bytes != given->bytes)
    return nsai_fail(NSA_E_INTERNAL, "%s and %s differ in size", nsai_verify_slot_name(output),
                     nsai_verify_slot_name(input));
  NSAI_TRY(nsai_verify_device_download(from->data.device, given->image, left.device,
                                       left.bytes + 2 * (size_t)NSAI_VERIFY_GUARD));
  return nsai_verify_buffer_upload(to->data.device, given);
}

nsa_status nsai_trial_run_hand_over(const nsai_trial_run *from, nsai_trial_run *to) {
  NSAI_TRY(hand_over(from, NSAI_VERIFY_INDEX, to, NSAI_VERIFY_INDEX_IN));
  if (!to->c->saved) return NSA_OK;
  NSAI_TRY(hand_over(from, NSAI_VERIFY_K_CMP, to, NSAI_VERIFY_K_CMP_IN));
  NSAI_TRY(hand_over(from, NSAI_VERIFY_V_CMP, to, NSAI_VERIFY_V_CMP_IN));
  for (int b = 0; b < NSA_BRANCHES; b++) {
    NSAI_TRY(hand_over(from, NSAI_VERIFY_O_BRANCH + b, to, NSAI_VERIFY_O_BRANCH_IN + b));
    NSAI_TRY(hand_over(from, NSAI_VERIFY_LSE + b, to, NSAI_VERIFY_LSE_IN + b));
  }
  return NSA_OK;
}
