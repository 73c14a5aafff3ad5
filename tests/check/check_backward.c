/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Every gradient against the float64 reference, per sequence and head; and the same bits when run again,
 * in a workspace that holds something else.
 */
#include "check.h"

#include "trial/compare.h"

#include <stdlib.h>
#include <string.h>

/* Unit-variance inputs give terms of about 1 in every gradient. Where they cancel (the dS of a row with
 * one key is 0) the error is measured against this much of them. */
#define FLOOR 0.01

/* The reference's gradients: f32, contiguous, from the same numbers to add to. */
typedef struct wanted {
  nsa_tensor slot[NSAI_TRIAL_SLOTS];
} wanted;

static void wanted_fini(wanted *w) {
  for (int slot = 0; slot < NSAI_TRIAL_SLOTS; slot++) free(w->slot[slot].data);
}

static nsa_status wanted_init(const nsai_trial_data *d, wanted *w) {
  for (int slot = NSAI_TRIAL_FIRST_GRADIENT; slot < NSAI_TRIAL_SLOTS; slot++) {
    if (!nsai_trial_data_has(d, slot)) continue;
    nsa_tensor view = nsai_trial_data_view(d, slot, NSAI_TRIAL_HOST);
    nsa_tensor *t = &w->slot[slot];
    *t = view;
    t->dtype = NSA_F32;
    t->stride[2] = 1;
    t->stride[1] = t->shape[2];
    t->stride[0] = t->shape[1] * t->shape[2];
    t->data = calloc((size_t)(t->shape[0] * t->stride[0] + 1), sizeof(float));
    if (!t->data) return nsai_fail_nomem("gradients of the reference", 0);
    if (d->c->accumulate) nsai_trial_copy_rows(t, &view, 0, t->shape[0]);
  }
  return NSA_OK;
}

static void wanted_grads(const nsai_trial_data *d, const wanted *w, nsa_grads *grads) {
  nsai_trial_data_grads(d, NSAI_TRIAL_HOST, grads);
  grads->d_q = w->slot[NSAI_TRIAL_D_Q];
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    grads->d_kv.k[pair] = w->slot[NSAI_TRIAL_D_K0 + pair];
    grads->d_kv.v[pair] = w->slot[NSAI_TRIAL_D_V0 + pair];
  }
  grads->d_kv.k_cmp = w->slot[NSAI_TRIAL_D_K_CMP];
  grads->d_kv.v_cmp = w->slot[NSAI_TRIAL_D_V_CMP];
  grads->d_gate.value = w->slot[NSAI_TRIAL_D_GATE_VALUE];
}

/* Before the run: what the outputs are added to. */
static nsa_status reference(nsai_trial_bench *bench, wanted *w) {
  nsai_trial_data *d = &bench->data;
  nsa_batch batch;
  nsa_io io;
  nsa_grads grads;
  if (bench->c->accumulate) NSAI_TRY(nsai_trial_data_begin_sums(d, bench->c->seed));
  NSAI_TRY(nsai_trial_data_fetch(d));
  NSAI_TRY(wanted_init(d, w));
  nsai_trial_data_io(d, NSAI_TRIAL_HOST, &batch, &io);
  wanted_grads(d, w, &grads);
  return nsai_reference_backward(&bench->c->geometry, bench->c->selection, bench->c->branches,
                                 nsai_trial_data_batch(d, &batch), &io, &grads, bench->threads);
}

/* Rows of a gradient that belong to sequence s. */
static int64_t rows_of(const nsai_trial_case *c, int slot, int32_t s) {
  if (slot == NSAI_TRIAL_D_Q || slot == NSAI_TRIAL_D_GATE_VALUE) return c->q_len[s];
  if (slot == NSAI_TRIAL_D_K_CMP || slot == NSAI_TRIAL_D_V_CMP)
    return nsai_block_count(&c->geometry, c->kv_len[s]);
  return c->kv_len[s];
}

static void judge(const nsai_trial_bench *bench, const wanted *w, nsai_trial_result *result) {
  const nsai_trial_case *c = bench->c;
  nsai_trial_tolerance tolerance = nsai_trial_tolerance_of(NSAI_TRIAL_GRADIENT, c->geometry.dtype);
  for (int slot = NSAI_TRIAL_FIRST_GRADIENT; slot < NSAI_TRIAL_SLOTS; slot++) {
    if (!nsai_trial_data_has(&bench->data, slot)) continue;
    nsa_tensor got = nsai_trial_data_view(&bench->data, slot, NSAI_TRIAL_HOST);
    int64_t begin = 0;
    for (int32_t s = 0; s < c->num_seqs; begin += rows_of(c, slot, s++))
      nsai_trial_compare_gradient(nsai_trial_slot_name(slot), tolerance, &got, &w->slot[slot],
                                  begin, rows_of(c, slot, s), FLOOR, result);
    if (slot != NSAI_TRIAL_D_K_CMP && slot != NSAI_TRIAL_D_V_CMP) continue;
    /* Rows that hold no block: exactly as the reference has them, which computes nothing there. */
    nsai_trial_compare_gradient(nsai_trial_slot_name(slot), (nsai_trial_tolerance){ 0, 0 }, &got,
                                &w->slot[slot], begin, got.shape[0] - begin, FLOOR, result);
  }
}

/* Runs again and compares every byte of every output. */
static nsa_status again(nsai_trial_bench *bench, nsai_trial_result *result) {
  nsai_trial_data *d = &bench->data;
  uint8_t *before[NSAI_TRIAL_SLOTS] = { 0 };
  nsa_status status = NSA_OK;
  for (int slot = NSAI_TRIAL_FIRST_GRADIENT; slot < NSAI_TRIAL_SLOTS; slot++) {
    if (!d->buffer[slot].device) continue;
    before[slot] = malloc(d->buffer[slot].bytes + 1);
    if (!before[slot]) NSAI_TRY_TO(done, nsai_fail_nomem("a copy", d->buffer[slot].bytes));
    memcpy(before[slot], d->buffer[slot].image + NSAI_TRIAL_GUARD, d->buffer[slot].bytes);
  }
  if (d->guarded)
    NSAI_TRY_TO(done, nsai_trial_device_set(d->device, d->workspace, 0, d->workspace_bytes));
  NSAI_TRY_TO(done, nsai_trial_bench_run(bench));
  for (int slot = NSAI_TRIAL_FIRST_GRADIENT; slot < NSAI_TRIAL_SLOTS; slot++)
    if (before[slot] &&
        memcmp(before[slot], d->buffer[slot].image + NSAI_TRIAL_GUARD, d->buffer[slot].bytes))
      nsai_trial_fail(result, "run again: %s has other bits", nsai_trial_slot_name(slot));
done:
  for (int slot = 0; slot < NSAI_TRIAL_SLOTS; slot++) free(before[slot]);
  return status;
}

nsa_status chk_check_backward(nsai_trial_bench *bench, nsai_trial_result *result) {
  wanted w = { 0 };
  nsa_status status = NSA_OK;
  NSAI_TRY_TO(done, reference(bench, &w));
  NSAI_TRY_TO(done, nsai_trial_run_intact(bench, result));
  judge(bench, &w, result);
  NSAI_TRY_TO(done, again(bench, result));
done:
  wanted_fini(&w);
  return status;
}
