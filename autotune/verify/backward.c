/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Compares every gradient with the float64 reference, per sequence and head, and checks that a
 * second run in a workspace with other contents gives the same bits.
 */
#include "verify/backward.h"

#include "run/check_run.h"
#include "verify/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Unit-variance inputs give terms of about 1 in every gradient. Where terms cancel (dS of a row
 * with one key is 0), the error is measured relative to this fraction of them. */
#define FLOOR 0.01

/* The reference's gradients: f32, contiguous; an accumulating case adds to the same numbers. */
struct nsai_verify_expected_grads {
  nsa_tensor slot[NSAI_VERIFY_SLOTS];
  double
      block_sums[2]; /* of K and V: root of the sum of squares of the blocks' gradients, per head */
  /* Computed with the usual roundings of stored values: to nearest, and by draws, once a gradient was
   * above its bound. */
  nsa_tensor plain[1 + NSAI_VERIFY_DRAWS][NSAI_VERIFY_SLOTS];
  nsa_tensor begin[NSAI_VERIFY_SLOTS]; /* what an accumulating case adds to */
  bool drawn;
};

typedef nsai_verify_expected_grads wanted;

static void wanted_fini(wanted *w) {
  for (int slot = 0; slot < NSAI_VERIFY_SLOTS; slot++) {
    free(w->slot[slot].data);
    free(w->begin[slot].data);
    for (int draw = 0; draw <= NSAI_VERIFY_DRAWS; draw++) free(w->plain[draw][slot].data);
  }
}

static bool is_phi(int slot) {
  return slot >= NSAI_VERIFY_D_PHI_K && slot < NSAI_VERIFY_D_GATE_VALUE;
}
static bool is_gate_weights(int slot) { return slot >= NSAI_VERIFY_D_GATE_W1; }

/* Any gradient as [rows, heads, columns]: phi's weights are per head, the gate's weights have no
 * heads. */
static nsa_tensor by_heads(int slot, nsa_tensor t) {
  nsa_tensor x = t;
  if (!nsai_present(&t)) return x;
  x.ndim = 3;
  x.shape[2] = t.shape[t.ndim - 1];
  x.stride[2] = 1;
  if (is_phi(slot)) {
    x.shape[0] = t.ndim == 3 ? t.shape[1] : 1;
    x.stride[0] = t.ndim == 3 ? t.stride[1] : 0;
    x.shape[1] = t.shape[0];
    x.stride[1] = t.stride[0];
  } else if (t.ndim < 3) {
    x.shape[0] = t.ndim == 2 ? t.shape[0] : 1;
    x.stride[0] = t.ndim == 2 ? t.stride[0] : 0;
    x.shape[1] = 1;
    x.stride[1] = 0;
  }
  return x;
}

/* Makes an f32 tensor like a slot, with the numbers that an accumulating case adds to. */
static nsa_status make_like(const wanted *w, int slot, nsa_tensor *t) {
  const nsa_tensor *begin = &w->begin[slot];
  if (!begin->data) return NSA_OK;
  NSAI_TRY(nsai_verify_tensor_alloc(NSA_F32, begin->ndim, begin->shape, t));
  nsa_tensor to = by_heads(slot, *t), from = by_heads(slot, *begin);
  nsai_verify_copy_rows(&to, &from, 0, to.shape[0]);
  return NSA_OK;
}

static nsa_status wanted_init(const nsai_verify_tensors *d, wanted *w) {
  for (int slot = NSAI_VERIFY_FIRST_GRADIENT; slot < NSAI_VERIFY_SLOTS; slot++) {
    if (!nsai_verify_tensors_has(d, slot)) continue;
    nsa_tensor view = nsai_verify_tensors_view(d, slot, NSAI_VERIFY_HOST);
    NSAI_TRY(nsai_verify_tensor_alloc(NSA_F32, view.ndim, view.shape, &w->begin[slot]));
    if (d->c->accumulate) {
      nsa_tensor to = by_heads(slot, w->begin[slot]), from = by_heads(slot, view);
      nsai_verify_copy_rows(&to, &from, 0, to.shape[0]);
    }
    NSAI_TRY(make_like(w, slot, &w->slot[slot]));
  }
  return NSA_OK;
}

static void wanted_grads(const nsai_verify_tensors *d, const wanted *w, nsa_grads *grads) {
  nsai_verify_tensors_grads(d, NSAI_VERIFY_HOST, grads);
  nsai_verify_set_grads(w->slot, grads);
}

/* Compressed keys or values as every implementation stores them in `dtype`; or their gradients. */
static nsa_status make_compressed(const nsai_verify_tensors *d, int32_t dtype, int32_t dim,
                                  nsa_tensor *t) {
  return nsai_verify_tensor_alloc(dtype, 3, (int64_t[]){ d->blocks, d->c->model.kv_heads, dim }, t);
}

/* `rounded` gets compressed keys and values in the model's dtype; the caller frees them. */
static nsa_status round_compressed(nsai_trial_run *trial, const nsa_batch *batch, nsa_io *rounded) {
  const nsai_model *g = &trial->c->model;
  rounded->kv.k_cmp = rounded->kv.v_cmp = (nsa_tensor){ 0 };
  NSAI_TRY(make_compressed(&trial->data, g->dtype, g->head_dim_qk, &rounded->kv.k_cmp));
  NSAI_TRY(make_compressed(&trial->data, g->dtype, g->head_dim_v, &rounded->kv.v_cmp));
  return nsai_reference_compress(g, batch, rounded, trial->threads);
}

static double root_of_squares(const nsa_tensor *t) {
  double sum = 0;
  for (int64_t i = 0; i < t->shape[0] * t->stride[0]; i++)
    sum += (double)((const float *)t->data)[i] * (double)((const float *)t->data)[i];
  return sqrt(sum / (double)t->shape[1]);
}

/* A d_o in the model's dtype, as every implementation multiplies it. The caller frees it unless
 * it is the case's own. */
static nsa_status round_d_o(const nsai_verify_tensors *d, nsa_tensor *out) {
  nsa_tensor view = nsai_verify_tensors_view(d, NSAI_VERIFY_D_O, NSAI_VERIFY_HOST);
  *out = view;
  if (!d->c->d_o_f32) return NSA_OK;
  NSAI_TRY(nsai_verify_tensor_alloc(d->c->model.dtype, 3, view.shape, out));
  nsai_verify_copy_rows(out, &view, 0, d->tokens);
  return NSA_OK;
}

/* Computes the size of the gradients of compressed keys and values, over whose sums phi's weights
 * have their gradients. */
static nsa_status find_block_sums(nsai_trial_run *trial, const nsa_batch *batch, const nsa_io *io,
                                  const nsa_tensor *d_o, wanted *w) {
  nsai_model model = trial->c->model;
  nsa_io rounded = *io;
  nsa_grads grads = NSA_GRADS_INIT;
  nsa_tensor blocks[2] = { { 0 }, { 0 } };
  nsa_status status;
  if (!nsai_phi_has_weights(&model) || model.keys_only) return NSA_OK;
  NSAI_TRY_TO(done, round_compressed(trial, batch, &rounded));
  model.phi = NSAI_PHI_EXTERNAL;
  NSAI_TRY_TO(done, make_compressed(&trial->data, NSA_F32, model.head_dim_qk, &blocks[0]));
  NSAI_TRY_TO(done, make_compressed(&trial->data, NSA_F32, model.head_dim_v, &blocks[1]));
  grads.d_o = *d_o;
  grads.d_kv.k_cmp = blocks[0];
  grads.d_kv.v_cmp = blocks[1];
  NSAI_TRY_TO(done, nsai_reference_backward(&model, trial->c->selection, trial->c->branches, batch,
                                            &rounded, &grads, trial->threads));
  for (int side = 0; side < 2; side++) w->block_sums[side] = root_of_squares(&blocks[side]);
done:
  for (int side = 0; side < 2; side++) free(blocks[side].data);
  free(rounded.kv.k_cmp.data);
  free(rounded.kv.v_cmp.data);
  return status;
}

/* Computes the gradients with the usual roundings. d_o: in the model's dtype. */
static nsa_status plain(nsai_trial_run *trial, const nsa_batch *batch, const nsa_io *io,
                        const nsa_tensor *d_o, uint32_t draw, wanted *w) {
  const nsai_verify_case *c = trial->c;
  nsa_io saved = *io;
  nsa_tensor *out = w->plain[draw];
  nsa_grads grads = NSA_GRADS_INIT;
  for (int slot = NSAI_VERIFY_FIRST_GRADIENT; slot < NSAI_VERIFY_SLOTS; slot++)
    NSAI_TRY(make_like(w, slot, &out[slot]));
  nsai_verify_set_grads(out, &grads);
  grads.accumulate = (uint32_t)c->accumulate;
  grads.d_o = *d_o;
  for (int b = 0; b < NSA_BRANCHES; b++)
    if (!c->saved || c->recompute == NSAI_RECOMPUTE_ALWAYS)
      saved.o_branch[b] = saved.lse[b] = (nsa_tensor){ 0 };
  NSAI_TRY(nsai_reference_backward_stored(&c->model, c->selection, c->branches, batch, &saved,
                                          &grads, draw, trial->threads));
  return nsai_verify_add_kink_error(trial, batch, io, d_o, out);
}

/* One computation rounds in one way, and another whose sums end in other bits rounds otherwise. Where a
 * few roundings decide, the first may be off by little by chance. So before a gradient counts as wrong,
 * it is computed NSAI_VERIFY_DRAWS more times, with other roundings. */
static nsa_status draw_more(nsai_trial_run *trial, wanted *w) {
  nsai_verify_tensors *d = &trial->data;
  nsa_batch batch;
  nsa_io io;
  nsa_tensor d_o = { 0 };
  nsa_status status;
  nsai_verify_tensors_io(d, NSAI_VERIFY_HOST, &batch, &io);
  NSAI_TRY_TO(done, round_d_o(d, &d_o));
  for (uint32_t draw = 1; draw <= NSAI_VERIFY_DRAWS; draw++)
    NSAI_TRY_TO(done, plain(trial, nsai_verify_tensors_batch(d, &batch), &io, &d_o, draw, w));
  w->drawn = true;
done:
  if (trial->c->d_o_f32) free(d_o.data);
  return status;
}

/* Runs the reference before the run, because accumulating outputs still hold what is added to. */
static nsa_status reference(nsai_trial_run *trial, wanted *w) {
  nsai_verify_tensors *d = &trial->data;
  nsa_batch batch;
  nsa_io io;
  nsa_grads grads;
  nsa_tensor d_o = { 0 };
  nsa_status status;
  if (trial->c->accumulate) NSAI_TRY(nsai_verify_tensors_begin_sums(d, trial->c->seed));
  NSAI_TRY(wanted_init(d, w));
  nsai_verify_tensors_io(d, NSAI_VERIFY_HOST, &batch, &io);
  wanted_grads(d, w, &grads);
  const nsa_batch *given = nsai_verify_tensors_batch(d, &batch);
  NSAI_TRY_TO(done,
              nsai_reference_backward(&trial->c->model, trial->c->selection, trial->c->branches,
                                      given, &io, &grads, trial->threads));
  NSAI_TRY_TO(done, round_d_o(d, &d_o));
  NSAI_TRY_TO(done, plain(trial, given, &io, &d_o, 0, w));
  NSAI_TRY_TO(done, find_block_sums(trial, given, &io, &d_o, w));
done:
  if (trial->c->d_o_f32) free(d_o.data);
  return status;
}

/* Rows of a gradient that belong to sequence s. */
static int64_t rows_of(const nsai_verify_case *c, int slot, int32_t s) {
  if (slot == NSAI_VERIFY_D_Q || slot == NSAI_VERIFY_D_GATE_VALUE || slot == NSAI_VERIFY_D_GATE_X)
    return c->q_len[s];
  if (slot == NSAI_VERIFY_D_K_CMP || slot == NSAI_VERIFY_D_V_CMP)
    return nsai_block_count(&c->model, c->kv_len[s]);
  return c->kv_len[s];
}

/* The lower bound of the magnitude by which a gradient's error is divided, per element. Sums
 * over blocks may cancel (shifting all compressed keys does not change the softmax). The bound
 * is then the root of the sum of squares of their terms. phi's weights are scaled to keep the
 * variance, so these terms are about as large as the blocks' own gradients. */
static double floor_of(const wanted *w, int slot, const nsa_tensor *got) {
  int side = slot >= NSAI_VERIFY_D_PHI_V;
  int part = slot - (side ? NSAI_VERIFY_D_PHI_V : NSAI_VERIFY_D_PHI_K);
  bool sum = is_phi(slot) && (part == 0 || part == 3 || part == 5);
  if (!sum) return FLOOR;
  return fmax(FLOOR, w->block_sums[side] / sqrt((double)(got->shape[0] * got->shape[2])));
}

static void verify_slot(const nsai_trial_run *trial, const wanted *w, int slot,
                        nsai_verify_result *result) {
  const nsai_verify_case *c = trial->c;
  nsa_tensor got = by_heads(slot, nsai_verify_tensors_view(&trial->data, slot, NSAI_VERIFY_HOST));
  nsa_tensor want = by_heads(slot, w->slot[slot]), plain[1 + NSAI_VERIFY_DRAWS];
  nsai_verify_gradient x = { .name = nsai_verify_slot_name(slot),
                             .tolerance =
                                 nsai_verify_tolerance_of(NSAI_VERIFY_GRADIENT, c->model.dtype),
                             .got = &got,
                             .want = &want,
                             .floor = floor_of(w, slot, &got) };
  for (int draw = 0; draw <= NSAI_VERIFY_DRAWS && w->plain[draw][slot].data; draw++) {
    plain[draw] = by_heads(slot, w->plain[draw][slot]);
    x.plain[draw] = &plain[draw];
  }
  if (is_phi(slot) || is_gate_weights(slot)) { /* over all sequences */
    x.rows = got.shape[0];
    nsai_verify_compare_gradient(&x, result);
    return;
  }
  for (int32_t s = 0; s < c->num_seqs; s++) {
    x.rows = rows_of(c, slot, s);
    nsai_verify_compare_gradient(&x, result);
    x.begin += x.rows;
  }
  if (slot != NSAI_VERIFY_D_K_CMP && slot != NSAI_VERIFY_D_V_CMP) return;
  x.rows = got.shape[0] - x.begin; /* these rows contain no block and differ by one rounding only */
  nsai_verify_compare_gradient(&x, result);
}

static void verify_slots(const nsai_trial_run *trial, const wanted *w, nsai_verify_result *result) {
  for (int slot = NSAI_VERIFY_FIRST_GRADIENT; slot < NSAI_VERIFY_SLOTS; slot++)
    if (nsai_verify_tensors_has(&trial->data, slot)) verify_slot(trial, w, slot, result);
}

static nsa_status verify(nsai_trial_run *trial, wanted *w, nsai_verify_result *result) {
  nsai_verify_result once = *result;
  verify_slots(trial, w, &once);
  if (once.outcome == NSAI_VERIFY_FAILED && result->outcome != NSAI_VERIFY_FAILED && !w->drawn) {
    NSAI_TRY(draw_more(trial, w));
    once = *result;
    verify_slots(trial, w, &once);
  }
  *result = once;
  return NSA_OK;
}

/* Runs once more in a workspace with other contents and compares every byte of every output. */
static nsa_status once_more(nsai_trial_run *trial, uint8_t *const before[NSAI_VERIFY_SLOTS],
                            nsai_verify_result *result) {
  nsai_verify_tensors *d = &trial->data;
  if (d->guarded) NSAI_TRY(nsai_verify_device_set(d->device, d->workspace, 0, d->workspace_bytes));
  NSAI_TRY(nsai_trial_run_execute(trial));
  for (int slot = NSAI_VERIFY_FIRST_GRADIENT; slot < NSAI_VERIFY_SLOTS; slot++)
    if (before[slot] &&
        memcmp(before[slot], d->buffer[slot].image + NSAI_VERIFY_GUARD, d->buffer[slot].bytes))
      nsai_verify_fail(result, "run again: %s has other bits", nsai_verify_slot_name(slot));
  return NSA_OK;
}

/* Repeats the run as often as the case says. */
static nsa_status again(nsai_trial_run *trial, nsai_verify_result *result) {
  nsai_verify_tensors *d = &trial->data;
  uint8_t *before[NSAI_VERIFY_SLOTS] = { 0 };
  nsa_status status = NSA_OK;
  for (int slot = NSAI_VERIFY_FIRST_GRADIENT; slot < NSAI_VERIFY_SLOTS; slot++) {
    if (!d->buffer[slot].device) continue;
    before[slot] = malloc(d->buffer[slot].bytes + 1);
    if (!before[slot]) NSAI_TRY_TO(done, nsai_fail_nomem("a copy", d->buffer[slot].bytes));
    memcpy(before[slot], d->buffer[slot].image + NSAI_VERIFY_GUARD, d->buffer[slot].bytes);
  }
  for (int run = 0; run < (trial->c->again ? trial->c->again : 1); run++)
    NSAI_TRY_TO(done, once_more(trial, before, result));
done:
  for (int slot = 0; slot < NSAI_VERIFY_SLOTS; slot++) free(before[slot]);
  return status;
}

nsa_status nsai_verify_expected_grads_create(nsai_trial_run *trial,
                                             nsai_verify_expected_grads **out) {
  wanted *w = calloc(1, sizeof *w);
  if (!w) return nsai_fail_nomem("gradients of the reference", sizeof *w);
  nsa_status status = reference(trial, w);
  if (status) nsai_verify_expected_grads_destroy(w);
  *out = status ? NULL : w;
  return status;
}

void nsai_verify_expected_grads_destroy(nsai_verify_expected_grads *w) {
  if (w) wanted_fini(w);
  free(w);
}

nsa_status nsai_verify_backward(nsai_trial_run *trial, nsai_verify_expected_grads *w,
                                nsai_verify_result *result) {
  return verify(trial, w, result);
}

nsa_status nsai_verify_check_backward(nsai_trial_run *trial, nsai_verify_expected_grads *w,
                                      nsai_verify_result *result) {
  NSAI_TRY(nsai_trial_run_intact(trial, result));
  NSAI_TRY(verify(trial, w, result));
  return again(trial, result);
}
