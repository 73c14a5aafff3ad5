/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/expected.h"

#include "verify/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nsai_verify_expected_fini(nsai_verify_expected *expected) {
  for (int side = 0; side < 2; side++) free(expected->compressed[side].data);
  free(expected->importance);
  nsai_verify_rows_destroy(&expected->stage);
  nsai_verify_rows_destroy(&expected->whole);
  *expected = (nsai_verify_expected){ 0 };
}

/* ---- what results depend on ------------------------------------------------------------------ */

static void add_image(nsai_digest_state *state, const nsai_trial_run *trial, int slot) {
  const nsai_verify_buffer *buffer = &trial->data.buffer[slot];
  if (buffer->image)
    nsai_digest_field(state, nsai_verify_slot_name(slot), buffer->image + NSAI_VERIFY_GUARD,
                      buffer->bytes);
}

void nsai_verify_expected_update(nsai_verify_expected *expected, const nsai_trial_run *trial) {
  nsai_digest_state state;
  if (expected->once) return;
  nsai_digest_begin(&state);
  /* The case also determines how the images are laid out. */
  nsai_digest_field(&state, "case", trial->c, sizeof *trial->c);
  nsai_digest_field(&state, "rows", trial->tokens, (size_t)trial->token_count * sizeof(int64_t));
  for (int slot = 0; slot < NSAI_VERIFY_FIRST_OUTPUT; slot++) add_image(&state, trial, slot);
  nsai_digest_end(&state, expected->inputs);

  nsai_digest_begin(&state);
  add_image(&state, trial, NSAI_VERIFY_K_CMP);
  add_image(&state, trial, NSAI_VERIFY_V_CMP);
  nsai_digest_end(&state, expected->blocks);

  nsai_digest_begin(&state);
  nsa_tensor index = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_INDEX, NSAI_VERIFY_HOST);
  for (int64_t i = 0; index.data && i < trial->token_count; i++)
    for (int32_t h = 0; h < trial->c->model.kv_heads; h++)
      nsai_digest_field(&state, "row", nsai_verify_index_row(&index, trial->tokens[i], h),
                        (size_t)index.shape[2] * sizeof(int32_t));
  nsai_digest_end(&state, expected->chosen);
}

/* Whether a part exists and was computed from what the trial run holds now. If not, it must be
 * computed; this counts `computed`. */
static int is_current(nsai_verify_expected *expected, nsai_verify_expected_part part,
                      const char *blocks, const char *chosen, uint32_t outputs) {
  char from[sizeof expected->part[part].from];
  snprintf(from, sizeof from, "%s %s %s %x", expected->inputs, blocks, chosen, outputs);
  if (expected->part[part].made && !strcmp(from, expected->part[part].from)) return 1;
  expected->part[part].made = 0;
  memcpy(expected->part[part].from, from, sizeof from);
  return 0;
}

static void computed(nsai_verify_expected *expected, nsai_verify_expected_part part) {
  expected->part[part].made = 1;
  expected->computed++;
}

/* ---- running the reference ------------------------------------------------------------------- */

/* The problem as the reference gets it: inputs of the case, outputs of the run. */
typedef struct oracle {
  nsai_model model;
  int32_t selection;
  nsa_batch given;
  const nsa_batch *batch; /* `given`, or NULL if the case has none */
  nsa_io io;
} oracle;

/* raw 0: phi is external, with the library's own compressed K and V if it stored any. The CPU
 * device computes with its float64 blocks, not with the rounded ones that it stores. */
static void make_oracle(const nsai_trial_run *trial, int raw, oracle *o) {
  const nsai_verify_case *c = trial->c;
  *o = (oracle){ .model = c->model, .selection = c->selection };
  nsai_verify_tensors_io(&trial->data, NSAI_VERIFY_HOST, &o->given, &o->io);
  o->batch = nsai_verify_tensors_batch(&trial->data, &o->given);
  if (!raw && o->io.kv.k_cmp.data && trial->data.device->driver) o->model.phi = NSAI_PHI_EXTERNAL;
  if (nsai_verify_tensors_has(&trial->data, NSAI_VERIFY_INDEX)) o->selection = NSA_SELECT_BLOCKS;
}

nsa_status nsai_verify_expected_compressed(nsai_verify_expected *expected,
                                           const nsai_trial_run *trial, const nsa_tensor **out) {
  oracle o;
  *out = expected->compressed;
  if (is_current(expected, NSAI_VERIFY_EXPECTED_COMPRESSED, "", "", 0)) return NSA_OK;
  make_oracle(trial, 1, &o);
  nsa_tensor *sides[2] = { &o.io.kv.k_cmp, &o.io.kv.v_cmp };
  for (int i = 0; i < (o.model.keys_only ? 1 : 2); i++) {
    sides[i]->shape[0] = trial->data.blocks;
    free(expected->compressed[i].data);
    NSAI_TRY(nsai_verify_tensor_alloc(NSA_F32, 3, sides[i]->shape, &expected->compressed[i]));
    *sides[i] = expected->compressed[i];
  }
  NSAI_TRY(nsai_reference_compress(&o.model, o.batch, &o.io, trial->threads));
  computed(expected, NSAI_VERIFY_EXPECTED_COMPRESSED);
  return NSA_OK;
}

nsa_status nsai_verify_expected_importance(nsai_verify_expected *expected,
                                           const nsai_trial_run *trial, const double **out) {
  const nsai_verify_tensors *d = &trial->data;
  nsa_tensor rows = nsai_verify_tensors_view(d, NSAI_VERIFY_PROBE_ROWS, NSAI_VERIFY_HOST);
  int64_t tokens[NSAI_VERIFY_MAX_PROBES];
  oracle o;
  if (!is_current(expected, NSAI_VERIFY_EXPECTED_IMPORTANCE, expected->blocks, "", 0)) {
    size_t count = (size_t)(d->probe_count * trial->c->model.kv_heads * d->select_blocks);
    make_oracle(trial, 0, &o);
    for (int64_t i = 0; i < d->probe_count; i++) tokens[i] = ((const int32_t *)rows.data)[i];
    free(expected->importance);
    expected->importance = malloc((count + 1) * sizeof *expected->importance);
    if (!expected->importance) return nsai_fail_nomem("importance", count * sizeof(double));
    NSAI_TRY(nsai_reference_importance(&o.model, o.batch, &o.io, d->probe_count, tokens,
                                       d->select_blocks, expected->importance, trial->threads));
    computed(expected, NSAI_VERIFY_EXPECTED_IMPORTANCE);
  }
  *out = expected->importance;
  return NSA_OK;
}

/* The outputs in which the rows of a stage are compared, as a mask for nsai_verify_rows_create. */
static uint32_t stage_outputs(const nsai_trial_run *trial) {
  uint32_t outputs = 1;
  for (int b = 0; b < NSA_BRANCHES; b++)
    if (nsai_verify_tensors_has(&trial->data, NSAI_VERIFY_LSE + b)) outputs |= 2u << b;
  return outputs;
}

static nsa_status compute_rows(const nsai_trial_run *trial, int raw, uint32_t outputs,
                               nsai_reference_rows *rows) {
  oracle o;
  make_oracle(trial, raw, &o);
  nsai_verify_rows_destroy(rows);
  NSAI_TRY(nsai_verify_rows_create(trial->c, trial->tokens, trial->token_count, outputs, rows));
  if (trial->c->kind == NSAI_VERIFY_DENSE)
    return nsai_reference_dense_rows(&o.model, o.batch, &o.io, rows, trial->threads);
  return nsai_reference_forward_rows(&o.model, o.selection, trial->c->branches, o.batch, &o.io,
                                     rows, trial->threads);
}

nsa_status nsai_verify_expected_stage(nsai_verify_expected *expected, const nsai_trial_run *trial,
                                      const nsai_reference_rows **out) {
  uint32_t outputs = stage_outputs(trial);
  *out = &expected->stage;
  if (is_current(expected, NSAI_VERIFY_EXPECTED_STAGE, expected->blocks, expected->chosen, outputs))
    return NSA_OK;
  NSAI_TRY(compute_rows(trial, 0, outputs, &expected->stage));
  computed(expected, NSAI_VERIFY_EXPECTED_STAGE);
  return NSA_OK;
}

nsa_status nsai_verify_expected_whole(nsai_verify_expected *expected, const nsai_trial_run *trial,
                                      const nsai_reference_rows **out) {
  *out = &expected->whole;
  if (is_current(expected, NSAI_VERIFY_EXPECTED_WHOLE, "", expected->chosen, 1)) return NSA_OK;
  NSAI_TRY(compute_rows(trial, 1, 1, &expected->whole));
  computed(expected, NSAI_VERIFY_EXPECTED_WHOLE);
  return NSA_OK;
}

nsa_status nsai_verify_expected_dense(nsai_verify_expected *expected, const nsai_trial_run *trial,
                                      const nsai_reference_rows **out) {
  *out = &expected->whole;
  if (is_current(expected, NSAI_VERIFY_EXPECTED_WHOLE, "", "", 3)) return NSA_OK;
  NSAI_TRY(compute_rows(trial, 1, 3, &expected->whole));
  computed(expected, NSAI_VERIFY_EXPECTED_WHOLE);
  return NSA_OK;
}
