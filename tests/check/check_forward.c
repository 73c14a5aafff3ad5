/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The calls that the float64 reference can compute: each is run and compared with it.
 */
#include "check.h"

#include <stdlib.h>
#include <string.h>

nsa_status chk_check_forward(nsai_trial_run *trial, nsai_verify_result *result) {
  NSAI_TRY(nsai_trial_run_intact(trial, result));
  return nsai_verify_forward(trial, NULL, result);
}

nsa_status chk_check_dense(nsai_trial_run *trial, nsai_verify_result *result) {
  NSAI_TRY(nsai_trial_run_intact(trial, result));
  return nsai_verify_dense(trial, NULL, result);
}

/* With mean phi, the last sequence alone must give the same bits as in the batch. */
static nsa_status verify_alone(nsai_trial_run *trial, nsai_verify_result *result) {
  nsai_verify_case alone = *trial->c;
  nsai_trial_run other;
  int32_t last = alone.num_seqs - 1;
  alone.num_seqs = 1;
  alone.q_len[0] = alone.q_len[last];
  alone.kv_len[0] = alone.kv_len[last];
  int64_t rows = alone.kv_len[0], skip = trial->data.kv_tokens - rows;
  nsa_status status;
  NSAI_TRY_TO(done, chk_bench_create(trial->plans, &alone, &other));
  for (int slot = NSAI_VERIFY_K0; slot <= NSAI_VERIFY_V0; slot += NSAI_VERIFY_V0 - NSAI_VERIFY_K0) {
    nsa_tensor from = nsai_verify_tensors_view(&trial->data, slot, NSAI_VERIFY_HOST),
               to = nsai_verify_tensors_view(&other.data, slot, NSAI_VERIFY_HOST);
    nsai_verify_copy_rows(&to, &from, skip, rows);
    NSAI_TRY_TO(done, nsai_verify_buffer_upload(trial->data.device, &other.data.buffer[slot]));
  }
  NSAI_TRY_TO(done, nsai_trial_run_execute(&other));
  for (int slot = NSAI_VERIFY_K_CMP; slot <= NSAI_VERIFY_V_CMP; slot++) {
    nsa_tensor batch = nsai_verify_tensors_view(&trial->data, slot, NSAI_VERIFY_HOST),
               one = nsai_verify_tensors_view(&other.data, slot, NSAI_VERIFY_HOST);
    if (!batch.data) continue; /* no compressed values */
    int64_t first = trial->data.blocks - other.data.blocks;
    for (int64_t r = 0; r < other.data.blocks; r++)
      for (int64_t h = 0; h < one.shape[1]; h++)
        if (memcmp((uint16_t *)batch.data + (r + first) * batch.stride[0] + h * batch.stride[1],
                   (uint16_t *)one.data + r * one.stride[0] + h * one.stride[1],
                   (size_t)one.shape[2] * sizeof(uint16_t)))
          nsai_verify_fail(result, "%s block %lld of the last sequence differs when it is alone",
                           nsai_verify_slot_name(slot), (long long)r);
  }
done:
  nsai_trial_run_destroy(&other);
  return status;
}

nsa_status chk_check_compress(nsai_trial_run *trial, nsai_verify_result *result) {
  const nsai_verify_case *c = trial->c;
  NSAI_TRY(nsai_trial_run_intact(trial, result));
  NSAI_TRY(nsai_verify_compressed(trial, NULL, result));
  int mean = c->model.phi == NSAI_PHI_MEAN && c->layout != NSAI_VERIFY_LAYOUT_PACKED;
  return mean && c->num_seqs > 1 ? verify_alone(trial, result) : NSA_OK;
}

nsa_status chk_check_select(nsai_trial_run *trial, nsai_verify_result *result) {
  nsai_verify_tensors *d = &trial->data;
  nsa_batch batch;
  nsa_io io;
  NSAI_TRY(nsai_trial_run_intact(trial, result));
  nsai_verify_tensors_io(d, NSAI_VERIFY_HOST, &batch, &io);
  nsa_tensor got = io.block_idx,
             importance = nsai_verify_tensors_view(d, NSAI_VERIFY_IMPORTANCE_IN, NSAI_VERIFY_HOST);
  nsa_tensor *want = &io.block_idx;
  want->stride[1] = want->shape[2];
  want->stride[0] = want->shape[1] * want->shape[2];
  want->data = malloc((size_t)(want->shape[0] * want->stride[0] + 1) * sizeof(int32_t));
  if (!want->data) return nsai_fail_nomem("block indices", 0);
  nsa_status status = nsai_reference_select(&trial->c->model, nsai_verify_tensors_batch(d, &batch),
                                            &io, &importance, trial->threads);
  for (int64_t t = 0; t < d->tokens && !status && result->outcome != NSAI_VERIFY_FAILED; t++)
    for (int32_t h = 0; h < trial->c->model.kv_heads; h++)
      if (memcmp(nsai_verify_index_row(&got, t, h), nsai_verify_index_row(want, t, h),
                 (size_t)want->shape[2] * sizeof(int32_t)))
        nsai_verify_fail(result, "block_idx token %lld KV head %d differs from the rule",
                         (long long)t, h);
  free(want->data);
  return status;
}
