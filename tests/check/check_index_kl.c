/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The loss of an index and its gradients against the float64 reference, on the blocks and the LSE of a
 * forward on the same device or, of a warm-up, on the reference's LSE; the same bits when run again in
 * a workspace with other contents.
 */
#include "check.h"

#include "reference/reference.h"
#include "verify/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOSS, D_Q, D_K, OUTPUTS };
static const char *const names[OUTPUTS] = { "loss", "d_index_q", "d_k_idx" };

/* Relative error of the loss: rounding of a sum in f32, and of exponentials. */
#define LOSS_TOLERANCE 1e-4
#define LOSS_FLOOR                                                                                 \
  1e-3 /* of the divergence of one row: where both distributions are nearly equal */
#define GRADIENT_FLOOR 1e-12 /* no gradient of a row is so small */

/* Queries that see one key have a loss and gradients of 0, and what is computed is the rounding of f32
 * scores and LSEs. Sequences without queries do not count. (H200, MiniMax-M3, nine random problems of
 * such queries alone: losses of 1.1e-7 to 5.5e-7.) In the place of the floors above: */
#define ONE_KEY_LOSS_FLOOR 1e-2
#define ONE_KEY_DIFFERENCE 3e-4 /* of two distributions */
#define COEFFICIENT 2.5

typedef struct outputs {
  nsa_tensor tensor[OUTPUTS]; /* `data` is NULL */
  nsai_verify_buffer buffer[OUTPUTS], before[OUTPUTS];
} outputs;

static bool all_see_one_key(const nsai_verify_case *c) {
  bool any = false;
  for (int32_t s = 0; s < c->num_seqs; s++) {
    if (c->q_len[s] && c->kv_len[s] > 1) return false;
    any |= c->q_len[s] > 0;
  }
  return any;
}

static nsa_tensor at(const outputs *o, const nsai_verify_buffer *buffer, int i, bool host) {
  nsa_tensor t = o->tensor[i];
  t.data = (host ? buffer[i].image : buffer[i].device) + NSAI_VERIFY_GUARD;
  return t;
}

static nsa_index_grads grads_at(const nsai_trial_run *trial, const outputs *o, bool host) {
  nsa_index_grads grads = NSA_INDEX_GRADS_INIT;
  const nsai_verify_buffer *b = o->buffer;
  grads.accumulate = (uint32_t)trial->c->accumulate;
  grads.coefficient = COEFFICIENT;
  grads.loss = at(o, b, LOSS, host);
  grads.d_index_q = at(o, b, D_Q, host);
  grads.d_k_idx = at(o, b, D_K, host);
  return grads;
}

static nsa_status create(const nsai_trial_run *trial, outputs *o) {
  const nsai_model *m = &trial->c->model;
  const nsai_verify_tensors *d = &trial->data;
  const int32_t dtype = trial->c->grads_f32 ? NSA_F32 : m->dtype;
  o->tensor[LOSS] = nsai_verify_tensor(NSA_F32, 1, (int64_t[]){ 1 });
  o->tensor[D_Q] =
      nsai_verify_tensor(dtype, 3, (int64_t[]){ d->token_capacity, m->index_heads, m->index_dim });
  o->tensor[D_K] = nsai_verify_tensor(dtype, 3, (int64_t[]){ d->kv_capacity, 1, m->index_dim });
  for (int i = 0; i < OUTPUTS; i++) {
    const size_t bytes = nsai_verify_tensor_bytes(&o->tensor[i]);
    NSAI_TRY(nsai_verify_buffer_create(d->device, bytes, 0xff, &o->buffer[i]));
    NSAI_TRY(nsai_verify_buffer_create(d->device, bytes, 0xff, &o->before[i]));
    if (!nsai_verify_buffer_image(&o->buffer[i]) || !nsai_verify_buffer_image(&o->before[i]))
      return nsai_fail_nomem("an output's host image", bytes);
  }
  return NSA_OK;
}

static void destroy(const nsai_trial_run *trial, outputs *o) {
  for (int i = 0; i < OUTPUTS; i++) {
    nsai_verify_buffer_destroy(trial->data.device, &o->buffer[i]);
    nsai_verify_buffer_destroy(trial->data.device, &o->before[i]);
  }
}

/* What the outputs hold before a run: NaN in every byte or, where the run adds, numbers. */
static nsa_status begin(const nsai_trial_run *trial, outputs *o) {
  for (int i = 0; i < OUTPUTS; i++) {
    nsai_verify_buffer *b = &o->buffer[i];
    nsa_tensor t = o->tensor[i];
    memset(b->image, 0xff, b->bytes + 2 * (size_t)NSAI_VERIFY_GUARD);
    t.data = b->image + NSAI_VERIFY_GUARD;
    const nsai_verify_inputs in = { &trial->c->model, trial->c->fill, trial->c->seed, 1 };
    if (trial->c->accumulate) nsai_verify_fill_normal(&in, 900 + (uint64_t)i, 1e-3f, &t);
    NSAI_TRY(nsai_verify_buffer_upload(trial->data.device, b));
  }
  return NSA_OK;
}

/* Runs with the workspace filled with `value`, and fetches. */
static nsa_status run(nsai_trial_run *trial, outputs *o, int value) {
  nsai_verify_tensors *d = &trial->data;
  nsa_exec exec = NSA_EXEC_INIT;
  nsa_batch batch;
  nsa_io io;
  nsai_verify_tensors_io(d, NSAI_VERIFY_ON_DEVICE, &batch, &io);
  NSAI_TRY(begin(trial, o));
  NSAI_TRY(nsai_verify_device_set(d->device, d->workspace, value, d->workspace_bytes));
  exec.workspace = d->workspace;
  exec.workspace_bytes = d->workspace_bytes;
  exec.stream = d->device->stream;
  const nsa_index_grads grads = grads_at(trial, o, false);
  NSAI_TRY(
      nsa_index_kl(trial->plan.plan, &exec, nsai_verify_tensors_batch(d, &batch), &io, &grads));
  NSAI_TRY(nsai_verify_device_wait(d->device, NULL));
  for (int i = 0; i < OUTPUTS; i++) NSAI_TRY(nsai_verify_buffer_fetch(d->device, &o->buffer[i]));
  return NSA_OK;
}

/* Rows behind the sequences, and what surrounds the tensors. */
static void check_untouched(const nsai_trial_run *trial, const outputs *o,
                            nsai_verify_result *result) {
  if (trial->c->accumulate) return; /* `before` has the same rows: they are compared below */
  for (int i = 0; i < OUTPUTS; i++) {
    const nsai_verify_buffer *b = &o->buffer[i];
    const int64_t rows = i == LOSS ? 1 : i == D_Q ? trial->data.tokens : trial->data.kv_tokens;
    const size_t row = b->bytes ? b->bytes / (size_t)o->tensor[i].shape[0] : 0;
    for (size_t e = 0; e < b->bytes + 2 * (size_t)NSAI_VERIFY_GUARD; e++) {
      const bool written = e >= NSAI_VERIFY_GUARD && e < NSAI_VERIFY_GUARD + row * (size_t)rows;
      if (written || b->image[e] == 0xff) continue;
      nsai_verify_fail(result, "%s: memory outside the written rows changed", names[i]);
      break;
    }
  }
}

/* `want`: the reference's results; `before` holds those of the run. */
static void compare(const nsai_trial_run *trial, const outputs *o, const nsa_tensor want[OUTPUTS],
                    nsai_verify_result *result) {
  const nsai_verify_case *c = trial->c;
  nsa_tensor got[OUTPUTS];
  for (int i = 0; i < OUTPUTS; i++) got[i] = at(o, o->before, i, true);
  const double a = (double)nsai_verify_load(&got[LOSS], 0),
               b = (double)nsai_verify_load(&want[LOSS], 0);
  const double least = all_see_one_key(c) ? ONE_KEY_LOSS_FLOOR : LOSS_FLOOR;
  nsai_verify_add_figure(result, names[LOSS], fabs(a - b) / fmax(fabs(b), least), LOSS_TOLERANCE);
  const double tokens = fmax(1, (double)nsai_verify_total(c->q_len, c->num_seqs));
  const double scale = COEFFICIENT / (sqrt(c->model.index_dim) * c->model.index_heads * tokens);
  int64_t first[OUTPUTS] = { 0 };
  for (int32_t s = 0; s < c->num_seqs; s++)
    for (int i = D_Q; i < OUTPUTS; i++) {
      const nsai_verify_gradient x = {
        .name = names[i],
        .tolerance = nsai_verify_tolerance_of(NSAI_VERIFY_GRADIENT, c->model.dtype),
        .got = &got[i],
        .want = &want[i],
        .begin = first[i],
        .rows = i == D_Q ? c->q_len[s] : c->kv_len[s],
        .floor = c->kv_len[s] > 1 ? GRADIENT_FLOOR : ONE_KEY_DIFFERENCE * scale,
      };
      nsai_verify_compare_gradient(&x, result);
      first[i] += x.rows;
    }
}

/* Compares with the reference, whose results are f32. */
static nsa_status refer(nsai_trial_run *trial, outputs *o, nsai_verify_result *result) {
  nsa_batch batch;
  nsa_io io;
  nsa_tensor wide[OUTPUTS];
  nsa_status status = NSA_OK;
  memset(wide, 0, sizeof wide);
  nsai_verify_tensors_io(&trial->data, NSAI_VERIFY_HOST, &batch, &io);
  NSAI_TRY(begin(trial, o));
  nsa_index_grads grads = grads_at(trial, o, true);
  nsa_tensor *const to[OUTPUTS] = { &grads.loss, &grads.d_index_q, &grads.d_k_idx };
  for (int i = 0; i < OUTPUTS; i++) {
    NSAI_TRY_TO(done, nsai_verify_tensor_alloc(NSA_F32, to[i]->ndim, to[i]->shape, &wide[i]));
    const int64_t count = (int64_t)(nsai_verify_tensor_bytes(&wide[i]) / 4);
    for (int64_t e = 0; e < count; e++) ((float *)wide[i].data)[e] = nsai_verify_load(to[i], e);
    *to[i] = wide[i];
  }
  NSAI_TRY_TO(done, nsai_reference_index_kl(&trial->c->model, trial->c->selection,
                                            nsai_verify_tensors_batch(&trial->data, &batch), &io,
                                            &grads, trial->threads));
  compare(trial, o, wide, result);
done:
  for (int i = 0; i < OUTPUTS; i++) free(wide[i].data);
  return status;
}

/* Blocks and the LSE, by a forward on the device. */
static nsa_status run_forward(nsai_trial_run *trial) {
  const nsai_trial_plan kl = trial->plan;
  nsai_trial_plan forward;
  NSAI_TRY(chk_plans_get(trial->plans, trial->c, NSA_OP_FORWARD, &forward));
  NSAI_TRY(nsai_trial_run_use(trial, &forward));
  NSAI_TRY(nsai_trial_run_execute(trial)); /* as a forward: its kind is no other's */
  return nsai_trial_run_use(trial, &kl);
}

/* The LSE of dense attention, by the reference. */
static nsa_status make_dense_lse(nsai_trial_run *trial) {
  nsai_verify_tensors *d = &trial->data;
  nsai_verify_buffer *lse = &d->buffer[NSAI_VERIFY_LSE];
  nsa_batch batch;
  nsa_io io;
  if (!nsai_verify_buffer_image(lse)) return nsai_fail_nomem("an LSE", lse->bytes);
  nsai_verify_tensors_io(d, NSAI_VERIFY_HOST, &batch, &io);
  nsai_verify_leave_out_index(&io);
  io.o = (nsa_tensor){ 0 };
  NSAI_TRY(nsai_reference_dense(&trial->c->model, nsai_verify_tensors_batch(d, &batch), &io,
                                trial->threads));
  return nsai_verify_buffer_upload(d->device, lse);
}

nsa_status chk_check_index_kl(nsai_trial_run *trial, nsai_verify_result *result) {
  outputs o = { 0 };
  nsa_status status = NSA_OK;
  NSAI_TRY((trial->c->selection == NSA_SELECT_ALL ? make_dense_lse : run_forward)(trial));
  NSAI_TRY_TO(done, create(trial, &o));
  NSAI_TRY_TO(done, run(trial, &o, 0xff));
  check_untouched(trial, &o, result);
  for (int i = 0; i < OUTPUTS; i++)
    memcpy(o.before[i].image, o.buffer[i].image, o.buffer[i].bytes + 2 * (size_t)NSAI_VERIFY_GUARD);
  NSAI_TRY_TO(done, run(trial, &o, 0));
  for (int i = 0; i < OUTPUTS; i++)
    if (memcmp(o.before[i].image, o.buffer[i].image,
               o.buffer[i].bytes + 2 * (size_t)NSAI_VERIFY_GUARD))
      nsai_verify_fail(result, "run again: %s has other bits", names[i]);
  NSAI_TRY_TO(done, refer(trial, &o, result));
done:
  destroy(trial, &o);
  return status;
}
