/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/expected.h"

#include "verify/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nsai_trial_truth_fini(nsai_trial_truth *truth) {
  for (int side = 0; side < 2; side++) free(truth->compressed[side].data);
  free(truth->importance);
  nsai_trial_rows_destroy(&truth->stage);
  nsai_trial_rows_destroy(&truth->whole);
  *truth = (nsai_trial_truth){ 0 };
}

/* ---- what answers rest on -------------------------------------------------------------------- */

static void add_image(nsai_digest_state *state, const nsai_trial_bench *bench, int slot) {
  const nsai_trial_buffer *buffer = &bench->data.buffer[slot];
  if (buffer->image)
    nsai_digest_field(state, nsai_trial_slot_name(slot), buffer->image + NSAI_TRIAL_GUARD,
                      buffer->bytes);
}

void nsai_trial_truth_look(nsai_trial_truth *truth, const nsai_trial_bench *bench) {
  nsai_digest_state state;
  if (truth->once) return;
  nsai_digest_begin(&state);
  /* The case also says how the images are laid out. */
  nsai_digest_field(&state, "case", bench->c, sizeof *bench->c);
  nsai_digest_field(&state, "rows", bench->tokens, (size_t)bench->token_count * sizeof(int64_t));
  for (int slot = 0; slot < NSAI_TRIAL_FIRST_OUTPUT; slot++) add_image(&state, bench, slot);
  nsai_digest_end(&state, truth->inputs);

  nsai_digest_begin(&state);
  add_image(&state, bench, NSAI_TRIAL_K_CMP);
  add_image(&state, bench, NSAI_TRIAL_V_CMP);
  nsai_digest_end(&state, truth->blocks);

  nsai_digest_begin(&state);
  nsa_tensor index = nsai_trial_data_view(&bench->data, NSAI_TRIAL_INDEX, NSAI_TRIAL_HOST);
  for (int64_t i = 0; index.data && i < bench->token_count; i++)
    for (int32_t h = 0; h < bench->c->geometry.kv_heads; h++)
      nsai_digest_field(&state, "row", nsai_trial_index_row(&index, bench->tokens[i], h),
                        (size_t)index.shape[2] * sizeof(int32_t));
  nsai_digest_end(&state, truth->chosen);
}

/* Whether a part is there and rests on what the bench holds now. If not it is to be computed, and
 * `computed` told. */
static int is_current(nsai_trial_truth *truth, nsai_trial_truth_part part, const char *blocks,
                      const char *chosen, uint32_t outputs) {
  char from[sizeof truth->part[part].from];
  snprintf(from, sizeof from, "%s %s %s %x", truth->inputs, blocks, chosen, outputs);
  if (truth->part[part].made && !strcmp(from, truth->part[part].from)) return 1;
  truth->part[part].made = 0;
  memcpy(truth->part[part].from, from, sizeof from);
  return 0;
}

static void computed(nsai_trial_truth *truth, nsai_trial_truth_part part) {
  truth->part[part].made = 1;
  truth->computed++;
}

/* ---- asking the reference -------------------------------------------------------------------- */

/* The problem as the reference shall see it: inputs of the case, outputs of the run. */
typedef struct oracle {
  nsai_geometry geometry;
  int32_t selection;
  nsa_batch given;
  const nsa_batch *batch; /* `given`, or NULL: the case has none */
  nsa_io io;
} oracle;

/* raw 0: phi is external, the compressed K and V are the library's own, if it made some. The CPU
 * device computes on with its float64 blocks, not with the rounded ones that it hands out. */
static void make_oracle(const nsai_trial_bench *bench, int raw, oracle *o) {
  const nsai_trial_case *c = bench->c;
  *o = (oracle){ .geometry = c->geometry, .selection = c->selection };
  nsai_trial_data_io(&bench->data, NSAI_TRIAL_HOST, &o->given, &o->io);
  o->batch = nsai_trial_data_batch(&bench->data, &o->given);
  if (!raw && o->io.kv.k_cmp.data && bench->data.device->driver)
    o->geometry.phi = NSAI_PHI_EXTERNAL;
  if (nsai_trial_data_has(&bench->data, NSAI_TRIAL_INDEX)) o->selection = NSA_SELECT_BLOCKS;
}

nsa_status nsai_trial_truth_compressed(nsai_trial_truth *truth, const nsai_trial_bench *bench,
                                       const nsa_tensor **out) {
  oracle o;
  *out = truth->compressed;
  if (is_current(truth, NSAI_TRIAL_TRUTH_COMPRESSED, "", "", 0)) return NSA_OK;
  make_oracle(bench, 1, &o);
  nsa_tensor *sides[2] = { &o.io.kv.k_cmp, &o.io.kv.v_cmp };
  for (int i = 0; i < 2; i++) {
    nsa_tensor *want = sides[i];
    want->shape[0] = bench->data.blocks;
    want->dtype = NSA_F32;
    want->stride[1] = want->shape[2];
    want->stride[0] = want->shape[1] * want->shape[2];
    free(truth->compressed[i].data);
    want->data = malloc((size_t)(want->shape[0] * want->stride[0] + 1) * sizeof(float));
    truth->compressed[i] = *want;
    if (!want->data) return nsai_fail_nomem("compressed blocks", 0);
  }
  NSAI_TRY(nsai_reference_compress(&o.geometry, o.batch, &o.io, bench->threads));
  computed(truth, NSAI_TRIAL_TRUTH_COMPRESSED);
  return NSA_OK;
}

nsa_status nsai_trial_truth_importance(nsai_trial_truth *truth, const nsai_trial_bench *bench,
                                       const double **out) {
  const nsai_trial_data *d = &bench->data;
  nsa_tensor rows = nsai_trial_data_view(d, NSAI_TRIAL_PROBE_ROWS, NSAI_TRIAL_HOST);
  int64_t tokens[NSAI_TRIAL_MAX_PROBES];
  oracle o;
  if (!is_current(truth, NSAI_TRIAL_TRUTH_IMPORTANCE, truth->blocks, "", 0)) {
    size_t count = (size_t)(d->probe_count * bench->c->geometry.kv_heads * d->select_blocks);
    make_oracle(bench, 0, &o);
    for (int64_t i = 0; i < d->probe_count; i++) tokens[i] = ((const int32_t *)rows.data)[i];
    free(truth->importance);
    truth->importance = malloc((count + 1) * sizeof *truth->importance);
    if (!truth->importance) return nsai_fail_nomem("importance", count * sizeof(double));
    NSAI_TRY(nsai_reference_importance(&o.geometry, o.batch, &o.io, d->probe_count, tokens,
                                       d->select_blocks, truth->importance, bench->threads));
    computed(truth, NSAI_TRIAL_TRUTH_IMPORTANCE);
  }
  *out = truth->importance;
  return NSA_OK;
}

/* The outputs that a stage's rows are compared in, as nsai_trial_rows_create takes them. */
static uint32_t stage_outputs(const nsai_trial_bench *bench) {
  uint32_t outputs = 1;
  for (int b = 0; b < NSA_BRANCHES; b++)
    if (nsai_trial_data_has(&bench->data, NSAI_TRIAL_LSE + b)) outputs |= 2u << b;
  return outputs;
}

static nsa_status compute_rows(const nsai_trial_bench *bench, int raw, uint32_t outputs,
                               nsai_reference_rows *rows) {
  oracle o;
  make_oracle(bench, raw, &o);
  nsai_trial_rows_destroy(rows);
  NSAI_TRY(nsai_trial_rows_create(bench->c, bench->tokens, bench->token_count, outputs, rows));
  if (bench->c->kind == NSAI_TRIAL_DENSE)
    return nsai_reference_dense_rows(&o.geometry, o.batch, &o.io, rows, bench->threads);
  return nsai_reference_forward_rows(&o.geometry, o.selection, bench->c->branches, o.batch, &o.io,
                                     rows, bench->threads);
}

nsa_status nsai_trial_truth_stage(nsai_trial_truth *truth, const nsai_trial_bench *bench,
                                  const nsai_reference_rows **out) {
  uint32_t outputs = stage_outputs(bench);
  *out = &truth->stage;
  if (is_current(truth, NSAI_TRIAL_TRUTH_STAGE, truth->blocks, truth->chosen, outputs))
    return NSA_OK;
  NSAI_TRY(compute_rows(bench, 0, outputs, &truth->stage));
  computed(truth, NSAI_TRIAL_TRUTH_STAGE);
  return NSA_OK;
}

nsa_status nsai_trial_truth_whole(nsai_trial_truth *truth, const nsai_trial_bench *bench,
                                  const nsai_reference_rows **out) {
  *out = &truth->whole;
  if (is_current(truth, NSAI_TRIAL_TRUTH_WHOLE, "", truth->chosen, 1)) return NSA_OK;
  NSAI_TRY(compute_rows(bench, 1, 1, &truth->whole));
  computed(truth, NSAI_TRIAL_TRUTH_WHOLE);
  return NSA_OK;
}

nsa_status nsai_trial_truth_dense(nsai_trial_truth *truth, const nsai_trial_bench *bench,
                                  const nsai_reference_rows **out) {
  *out = &truth->whole;
  if (is_current(truth, NSAI_TRIAL_TRUTH_WHOLE, "", "", 3)) return NSA_OK;
  NSAI_TRY(compute_rows(bench, 1, 3, &truth->whole));
  computed(truth, NSAI_TRIAL_TRUTH_WHOLE);
  return NSA_OK;
}
