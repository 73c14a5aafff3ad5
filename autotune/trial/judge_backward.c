/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Every gradient against the float64 reference, per sequence and head; and the same bits when run again,
 * in a workspace that holds something else.
 */
#include "trial/judge_backward.h"

#include "trial/compare.h"

#include <stdlib.h>
#include <string.h>

/* Unit-variance inputs give terms of about 1 in every gradient. Where they cancel (the dS of a row with
 * one key is 0) the error is measured against this much of them. */
#define FLOOR 0.01

/* The reference's gradients: f32, contiguous, from the same numbers to add to. */
struct nsai_trial_wanted {
  nsa_tensor slot[NSAI_TRIAL_SLOTS];
  nsa_tensor
      plain[NSAI_TRIAL_SLOTS]; /* with what is usually stored rounded as usual; few have it */
};

typedef nsai_trial_wanted wanted;

static void wanted_fini(wanted *w) {
  for (int slot = 0; slot < NSAI_TRIAL_SLOTS; slot++) {
    free(w->slot[slot].data);
    free(w->plain[slot].data);
  }
}

/* An f32 tensor like a slot, with its numbers where they are added to. */
static nsa_status make_like(const nsai_trial_data *d, int slot, nsa_tensor *t) {
  if (!nsai_trial_data_has(d, slot)) return NSA_OK;
  nsa_tensor view = nsai_trial_data_view(d, slot, NSAI_TRIAL_HOST);
  *t = view;
  t->dtype = NSA_F32;
  t->stride[2] = 1;
  t->stride[1] = t->shape[2];
  t->stride[0] = t->shape[1] * t->shape[2];
  t->data = calloc((size_t)(t->shape[0] * t->stride[0] + 1), sizeof(float));
  if (!t->data) return nsai_fail_nomem("gradients of the reference", 0);
  if (d->c->accumulate) nsai_trial_copy_rows(t, &view, 0, t->shape[0]);
  return NSA_OK;
}

static nsa_status wanted_init(const nsai_trial_data *d, wanted *w) {
  for (int slot = NSAI_TRIAL_FIRST_GRADIENT; slot < NSAI_TRIAL_SLOTS; slot++)
    if (nsai_trial_data_has(d, slot)) NSAI_TRY(make_like(d, slot, &w->slot[slot]));
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

/* Compressed keys or values in the model's dtype, as every implementation keeps them. */
static nsa_status make_compressed(const nsai_trial_data *d, int32_t dim, nsa_tensor *t) {
  const nsai_geometry *g = &d->c->geometry;
  *t = (nsa_tensor){ .shape = { d->blocks, g->kv_heads, dim },
                     .stride = { (int64_t)g->kv_heads * dim, dim, 1 },
                     .ndim = 3,
                     .dtype = g->dtype };
  t->data = calloc((size_t)(d->blocks * t->stride[0] + 1), sizeof(uint16_t));
  return t->data ? NSA_OK : nsai_fail_nomem("compressed keys", 0);
}

/* `rounded` gets compressed keys and values in the model's dtype; they are to be freed. */
static nsa_status round_compressed(nsai_trial_bench *bench, const nsa_batch *batch,
                                   nsa_io *rounded) {
  const nsai_geometry *g = &bench->c->geometry;
  rounded->kv.k_cmp = rounded->kv.v_cmp = (nsa_tensor){ 0 };
  NSAI_TRY(make_compressed(&bench->data, g->head_dim_qk, &rounded->kv.k_cmp));
  NSAI_TRY(make_compressed(&bench->data, g->head_dim_v, &rounded->kv.v_cmp));
  return nsai_reference_compress(g, batch, rounded, bench->threads);
}

/* d_q and the gates' from compressed keys that are rounded: what no implementation is better than. */
static nsa_status plain_rows(nsai_trial_bench *bench, const nsa_batch *batch, const nsa_io *io,
                             wanted *w) {
  nsai_trial_data *d = &bench->data;
  nsai_geometry geometry = bench->c->geometry;
  bool given = geometry.phi == NSAI_PHI_EXTERNAL;
  nsa_io rounded = *io;
  nsa_grads grads = NSA_GRADS_INIT;
  nsa_status status = NSA_OK;
  if (!given) NSAI_TRY_TO(done, round_compressed(bench, batch, &rounded));
  NSAI_TRY_TO(done, make_like(d, NSAI_TRIAL_D_Q, &w->plain[NSAI_TRIAL_D_Q]));
  NSAI_TRY_TO(done, make_like(d, NSAI_TRIAL_D_GATE_VALUE, &w->plain[NSAI_TRIAL_D_GATE_VALUE]));
  geometry.phi = NSAI_PHI_EXTERNAL;
  grads.accumulate = (uint32_t)bench->c->accumulate;
  grads.d_o = nsai_trial_data_view(d, NSAI_TRIAL_D_O, NSAI_TRIAL_HOST);
  grads.d_q = w->plain[NSAI_TRIAL_D_Q];
  grads.d_gate.value = w->plain[NSAI_TRIAL_D_GATE_VALUE];
  NSAI_TRY_TO(done, nsai_reference_backward(&geometry, bench->c->selection, bench->c->branches,
                                            batch, &rounded, &grads, bench->threads));
done:
  if (!given) free(rounded.kv.k_cmp.data);
  if (!given) free(rounded.kv.v_cmp.data);
  return status;
}

/* The gradients of keys, exact so far. */
static nsa_status plain_keys(const nsai_trial_data *d, wanted *w) {
  for (int slot = NSAI_TRIAL_D_K0; slot <= NSAI_TRIAL_D_K_CMP; slot++) {
    if (!w->slot[slot].data || (slot >= NSAI_TRIAL_D_V0 && slot < NSAI_TRIAL_D_K_CMP)) continue;
    NSAI_TRY(make_like(d, slot, &w->plain[slot]));
    nsai_trial_copy_rows(&w->plain[slot], &w->slot[slot], 0, w->slot[slot].shape[0]);
  }
  return NSA_OK;
}

/* Before the run: what the outputs are added to. */
static nsa_status reference(nsai_trial_bench *bench, wanted *w) {
  nsai_trial_data *d = &bench->data;
  nsa_batch batch;
  nsa_io io;
  nsa_grads grads;
  if (bench->c->accumulate) NSAI_TRY(nsai_trial_data_begin_sums(d, bench->c->seed));
  NSAI_TRY(wanted_init(d, w));
  nsai_trial_data_io(d, NSAI_TRIAL_HOST, &batch, &io);
  wanted_grads(d, w, &grads);
  const nsa_batch *given = nsai_trial_data_batch(d, &batch);
  NSAI_TRY(nsai_reference_backward(&bench->c->geometry, bench->c->selection, bench->c->branches,
                                   given, &io, &grads, bench->threads));
  bool reads_saved = bench->c->saved && bench->c->recompute != NSAI_RECOMPUTE_ALWAYS;
  if (bench->c->geometry.phi == NSAI_PHI_EXTERNAL && !reads_saved) return NSA_OK;
  NSAI_TRY(plain_rows(bench, given, &io, w));
  if (!reads_saved) return NSA_OK;
  NSAI_TRY(plain_keys(d, w));
  return nsai_trial_add_saved_error(bench, given, &io, w->plain);
}

/* Rows of a gradient that belong to sequence s. */
static int64_t rows_of(const nsai_trial_case *c, int slot, int32_t s) {
  if (slot == NSAI_TRIAL_D_Q || slot == NSAI_TRIAL_D_GATE_VALUE) return c->q_len[s];
  if (slot == NSAI_TRIAL_D_K_CMP || slot == NSAI_TRIAL_D_V_CMP)
    return nsai_block_count(&c->geometry, c->kv_len[s]);
  return c->kv_len[s];
}

static void judge_slot(const nsai_trial_bench *bench, const wanted *w, int slot,
                       nsai_trial_result *result) {
  const nsai_trial_case *c = bench->c;
  nsa_tensor got = nsai_trial_data_view(&bench->data, slot, NSAI_TRIAL_HOST);
  nsai_trial_gradient x = { .name = nsai_trial_slot_name(slot),
                            .tolerance =
                                nsai_trial_tolerance_of(NSAI_TRIAL_GRADIENT, c->geometry.dtype),
                            .got = &got,
                            .want = &w->slot[slot],
                            .plain = w->plain[slot].data ? &w->plain[slot] : NULL,
                            .floor = FLOOR };
  for (int32_t s = 0; s < c->num_seqs; s++) {
    x.rows = rows_of(c, slot, s);
    nsai_trial_compare_gradient(&x, result);
    x.begin += x.rows;
  }
  if (slot != NSAI_TRIAL_D_K_CMP && slot != NSAI_TRIAL_D_V_CMP) return;
  x.rows = got.shape[0] - x.begin; /* that hold no block: nothing but one rounding */
  nsai_trial_compare_gradient(&x, result);
}

static void judge(const nsai_trial_bench *bench, const wanted *w, nsai_trial_result *result) {
  for (int slot = NSAI_TRIAL_FIRST_GRADIENT; slot < NSAI_TRIAL_SLOTS; slot++)
    if (nsai_trial_data_has(&bench->data, slot)) judge_slot(bench, w, slot, result);
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

nsa_status nsai_trial_wanted_create(nsai_trial_bench *bench, nsai_trial_wanted **out) {
  wanted *w = calloc(1, sizeof *w);
  if (!w) return nsai_fail_nomem("gradients of the reference", sizeof *w);
  nsa_status status = reference(bench, w);
  if (status) nsai_trial_wanted_destroy(w);
  *out = status ? NULL : w;
  return status;
}

void nsai_trial_wanted_destroy(nsai_trial_wanted *w) {
  if (w) wanted_fini(w);
  free(w);
}

void nsai_trial_judge_backward(const nsai_trial_bench *bench, const nsai_trial_wanted *w,
                               nsai_trial_result *result) {
  judge(bench, w, result);
}

nsa_status nsai_trial_check_backward(nsai_trial_bench *bench, const nsai_trial_wanted *w,
                                     nsai_trial_result *result) {
  NSAI_TRY(nsai_trial_run_intact(bench, result));
  judge(bench, w, result);
  return again(bench, result);
}
