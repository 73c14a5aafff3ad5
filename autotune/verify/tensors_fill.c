/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The contents of a case's inputs, except q, k and v (inputs.c).
 */
#include "verify/tensors_fill.h"

#include "reference/reference.h"
#include "verify/parallel.h"

#include <math.h>
#include <stdlib.h>

/* Streams of random numbers; inputs.c uses those below 10000. */
enum { STREAM_SLOT = 10000, STREAM_INDEX = 20000 };

#define RANGE_TOKENS 100 /* longest range: enough to cross blocks of any size tested */
#define PE_SCALE 0.5f
#define BIAS_SCALE 0.1f

/* The host view of an input, its first dimension cut to `rows`. */
static nsa_tensor host(const nsai_verify_tensors *d, int slot, int64_t rows) {
  nsa_tensor view = nsai_verify_tensors_view(d, slot, NSAI_VERIFY_HOST);
  view.shape[0] = rows;
  return view;
}

static void fill_lengths(const nsai_verify_tensors *d) {
  const nsai_verify_case *c = d->c;
  nsa_tensor q = nsai_verify_tensors_view(d, NSAI_VERIFY_CU_Q, NSAI_VERIFY_HOST),
             kv = nsai_verify_tensors_view(d, NSAI_VERIFY_CU_KV, NSAI_VERIFY_HOST),
             blocks = nsai_verify_tensors_view(d, NSAI_VERIFY_CU_CMP, NSAI_VERIFY_HOST);
  int32_t sums[3] = { 0, 0, 0 };
  for (int32_t s = 0; s <= c->num_seqs; s++) {
    if (q.data) ((int32_t *)q.data)[s] = sums[0];
    if (kv.data) ((int32_t *)kv.data)[s] = sums[1];
    if (blocks.data) ((int32_t *)blocks.data)[s] = sums[2];
    if (s == c->num_seqs) return;
    sums[0] += (int32_t)c->q_len[s];
    sums[1] += (int32_t)c->kv_len[s];
    sums[2] += (int32_t)nsai_block_count(&c->model, c->kv_len[s]);
  }
}

static void fill_weights(const nsai_verify_tensors *d, const nsai_verify_inputs *in, int slot,
                         float scale) {
  if (!nsai_verify_tensors_has(d, slot)) return;
  nsa_tensor view = nsai_verify_tensors_view(d, slot, NSAI_VERIFY_HOST);
  nsai_verify_fill_normal(in, STREAM_SLOT + (uint64_t)slot, scale, &view);
}

/* Weights are scaled so that every layer's output has about unit variance. */
static void fill_phi(const nsai_verify_tensors *d, const nsai_verify_inputs *in, int first,
                     int32_t dim) {
  const nsai_model *g = in->model;
  float in_scale = 1 / sqrtf((float)(g->block * dim));
  fill_weights(d, in, first, PE_SCALE);
  fill_weights(d, in, first + 1, in_scale);
  fill_weights(d, in, first + 2, in_scale);
  fill_weights(d, in, first + 3, BIAS_SCALE);
  fill_weights(d, in, first + 4, g->phi_hidden ? 1 / sqrtf((float)g->phi_hidden) : 1);
  fill_weights(d, in, first + 5, BIAS_SCALE);
}

/* Gate weights are like the results of a sigmoid: not negative. With both signs the branches
 * would cancel each other, and the norm of a short sequence's sum would not measure the error of
 * its terms. */
static void drop_signs(const nsa_tensor *t) {
  int64_t count = t->shape[0] * t->shape[1] * t->shape[2]; /* gates are declared contiguous */
  for (int64_t i = 0; i < count; i++) {
    if (t->dtype == NSA_F32)
      ((uint32_t *)t->data)[i] &= 0x7fffffffu;
    else
      ((uint16_t *)t->data)[i] &= 0x7fffu;
  }
}

static void fill_gate(const nsai_verify_tensors *d, const nsai_verify_inputs *in) {
  const nsai_model *g = in->model;
  if (nsai_verify_tensors_has(d, NSAI_VERIFY_GATE_VALUE)) {
    nsa_tensor value = host(d, NSAI_VERIFY_GATE_VALUE, d->tokens);
    nsai_verify_fill_normal(in, STREAM_SLOT + NSAI_VERIFY_GATE_VALUE, 1, &value);
    if (g->gate == NSAI_GATE_WEIGHTS) drop_signs(&value);
  }
  if (!nsai_verify_tensors_has(d, NSAI_VERIFY_GATE_X)) return;
  nsa_tensor x = host(d, NSAI_VERIFY_GATE_X, d->tokens);
  nsai_verify_fill_normal(in, STREAM_SLOT + NSAI_VERIFY_GATE_X, 1, &x);
  float channels = 1 / sqrtf((float)g->gate_channels);
  fill_weights(d, in, NSAI_VERIFY_GATE_W1, channels);
  fill_weights(d, in, NSAI_VERIFY_GATE_B1, BIAS_SCALE);
  fill_weights(d, in, NSAI_VERIFY_GATE_W2,
               g->gate_hidden ? 1 / sqrtf((float)g->gate_hidden) : channels);
  fill_weights(d, in, NSAI_VERIFY_GATE_B2, BIAS_SCALE);
}

/* Blocks in any order, with repetitions, blocks after the current one, and -1. */
static void fill_blocks(const nsai_verify_tensors *d) {
  const nsai_model *g = &d->c->model;
  nsa_tensor view = nsai_verify_tensors_view(d, NSAI_VERIFY_INDEX_IN, NSAI_VERIFY_HOST);
  int64_t heads = view.ndim == 3 ? view.shape[1] : 1,
          head_stride = view.ndim == 3 ? view.stride[1] : 0;
  for (int64_t t = 0; t < d->tokens; t++) {
    nsai_verify_random random = { nsai_verify_key(d->c->seed, STREAM_INDEX + (uint64_t)t), 0 };
    int32_t sequence;
    int64_t position;
    nsai_verify_tensors_locate(d->c, t, &sequence, &position);
    int64_t last = nsai_select_block_count(g, d->c->kv_len[sequence]);
    for (int64_t h = 0; h < heads; h++)
      for (int32_t i = 0; i < g->select_count; i++) {
        int32_t *at = (int32_t *)view.data + t * view.stride[0] + h * head_stride + i;
        *at = nsai_verify_pick(&random, 0, 9) ? (int32_t)nsai_verify_pick(&random, 0, last) : -1;
      }
  }
}

/* The blocks that a forward would select by a random importance, including the forced ones. */
static void fill_chosen_row(void *user, int64_t t) {
  const nsai_verify_tensors *d = user;
  const nsai_model *g = &d->c->model;
  nsa_tensor view = nsai_verify_tensors_view(d, NSAI_VERIFY_INDEX_IN, NSAI_VERIFY_HOST);
  double *importance = calloc((size_t)d->select_blocks + 1, sizeof *importance);
  nsai_verify_random random = { nsai_verify_key(d->c->seed, STREAM_INDEX + (uint64_t)t), 0 };
  int32_t sequence;
  int64_t position;
  nsai_verify_tensors_locate(d->c, t, &sequence, &position);
  for (int64_t h = 0; h < view.shape[1] && importance; h++) {
    for (int64_t j = 0; position >= 0 && j <= position / g->select_block; j++)
      importance[j] = (double)nsai_verify_pick(&random, 1, 1 << 30);
    nsai_reference_select_row(g, position, importance,
                              (int32_t *)view.data + t * view.stride[0] + h * view.stride[1]);
  }
  free(importance);
}

static void fill_chosen(nsai_verify_tensors *d, int threads) {
  nsai_verify_parallel(threads, d->tokens, fill_chosen_row, d);
}

/* The outputs of the reference's forward with the given selection. */
static void fill_saved(nsai_verify_tensors *d, int threads) {
  const nsai_model *g = &d->c->model;
  nsa_batch batch;
  nsa_io io;
  nsai_verify_tensors_io(d, NSAI_VERIFY_HOST, &batch, &io);
  const int64_t shape[] = { d->token_capacity, g->heads, g->head_dim_v };
  int32_t selection = d->c->selection == NSA_SELECT_TOPN ? NSA_SELECT_BLOCKS : d->c->selection;
  /* Without memory the inputs stay NaN, which no comparison overlooks. */
  if (nsai_verify_tensor_alloc(NSA_F32, 3, shape, &io.o) == NSA_OK)
    (void)nsai_reference_forward(g, selection, d->c->branches, nsai_verify_tensors_batch(d, &batch),
                                 &io, threads);
  free(io.o.data);
}

/* Half-open token ranges of any alignment, some empty, some reaching past the end. */
static void fill_ranges(const nsai_verify_tensors *d) {
  const nsai_model *g = &d->c->model;
  nsa_tensor view = nsai_verify_tensors_view(d, NSAI_VERIFY_RANGES, NSAI_VERIFY_HOST);
  int64_t heads = view.ndim == 4 ? view.shape[1] : 1;
  int32_t *at = view.data;
  for (int64_t t = 0; t < d->tokens; t++) {
    nsai_verify_random random = { nsai_verify_key(d->c->seed, STREAM_INDEX + (uint64_t)t), 0 };
    int32_t sequence;
    int64_t position;
    nsai_verify_tensors_locate(d->c, t, &sequence, &position);
    for (int64_t i = 0; i < heads * g->select_count; i++, at += 2) {
      at[0] = (int32_t)nsai_verify_pick(&random, 0, d->c->kv_len[sequence]);
      at[1] = at[0] + (int32_t)nsai_verify_pick(&random, -2, RANGE_TOKENS);
    }
  }
}

/* Importances with ties (constant fill: only two values) and zeros. Blocks that are no
 * candidates have the largest value, so that a selection that considers them is detected. */
static void fill_importance(const nsai_verify_tensors *d) {
  const nsai_model *g = &d->c->model;
  nsa_tensor view = nsai_verify_tensors_view(d, NSAI_VERIFY_IMPORTANCE_IN, NSAI_VERIFY_HOST);
  uint64_t key = nsai_verify_key(d->c->seed, STREAM_SLOT + NSAI_VERIFY_IMPORTANCE_IN), counter = 0;
  for (int64_t t = 0; t < d->tokens; t++) {
    int32_t sequence;
    int64_t position;
    nsai_verify_tensors_locate(d->c, t, &sequence, &position);
    for (int64_t h = 0; h < view.shape[1]; h++)
      for (int64_t j = 0; j < view.shape[2]; j++, counter++) {
        float value = fabsf(nsai_verify_normal(key, counter));
        if (d->c->fill == NSAI_VERIFY_FILL_CONSTANT) value = value > 1 ? 0.5f : 0;
        if (g->by == NSAI_BY_INDEX) value = 0.25f - value; /* scores may be negative */
        if (position < 0 || j > position / g->select_block) value = 1e30f;
        ((float *)view.data)[t * view.stride[0] + h * view.stride[1] + j] = value;
      }
  }
}

void nsai_verify_tensors_fill_entries(const nsai_verify_tensors *d, int64_t rows, int threads) {
  const nsai_verify_inputs in = { &d->c->model, d->c->fill, d->c->seed, threads };
  if (in.model->phi != NSAI_PHI_EXTERNAL || !nsai_verify_tensors_has(d, NSAI_VERIFY_K_CMP_IN))
    return;
  for (int slot = NSAI_VERIFY_K_CMP_IN; slot <= NSAI_VERIFY_V_CMP_IN; slot++) {
    nsa_tensor t = host(d, slot, rows);
    if (t.data) nsai_verify_fill_normal(&in, STREAM_SLOT + (uint64_t)slot, 1, &t);
  }
}

void nsai_verify_tensors_fill(nsai_verify_tensors *d, int threads, const int64_t *probes) {
  const nsai_model *g = &d->c->model;
  nsai_verify_inputs in = { g, d->c->fill, d->c->seed, threads };
  fill_lengths(d);
  nsa_tensor q = host(d, NSAI_VERIFY_Q, d->tokens);
  nsai_verify_fill_queries(&in, &q);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!nsai_verify_tensors_has(d, NSAI_VERIFY_K0 + b)) continue;
    nsa_tensor k = host(d, NSAI_VERIFY_K0 + b, d->kv_tokens),
               v = host(d, NSAI_VERIFY_V0 + b, d->kv_tokens);
    nsai_verify_fill_keys(&in, b, &k);
    nsai_verify_fill_values(&in, b, &v);
  }
  nsai_verify_tensors_fill_entries(d, d->blocks, threads);
  if (nsai_verify_tensors_has(d, NSAI_VERIFY_INDEX_Q)) {
    nsa_tensor index_q = host(d, NSAI_VERIFY_INDEX_Q, d->tokens),
               k_idx = host(d, NSAI_VERIFY_K_IDX, d->kv_tokens);
    nsai_verify_fill_index_q(&in, &index_q);
    nsai_verify_fill_k_idx(&in, &k_idx);
  }
  fill_phi(d, &in, NSAI_VERIFY_PHI_K, g->head_dim_qk);
  fill_phi(d, &in, NSAI_VERIFY_PHI_V, g->head_dim_v);
  fill_gate(d, &in);
  if (nsai_verify_tensors_has(d, NSAI_VERIFY_D_O)) {
    nsa_tensor d_o = host(d, NSAI_VERIFY_D_O, d->tokens);
    nsai_verify_fill_normal(&in, STREAM_SLOT + NSAI_VERIFY_D_O, 1, &d_o);
  }
  if (nsai_verify_tensors_has(d, NSAI_VERIFY_INDEX_IN)) {
    if (d->c->selection == NSA_SELECT_TOPN)
      fill_chosen(d, threads);
    else
      fill_blocks(d);
  }
  if (nsai_verify_tensors_has(d, NSAI_VERIFY_RANGES)) fill_ranges(d);
  if (d->c->saved == 1) fill_saved(d, threads);
  if (nsai_verify_tensors_has(d, NSAI_VERIFY_IMPORTANCE_IN)) fill_importance(d);
  if (!nsai_verify_tensors_has(d, NSAI_VERIFY_PROBE_ROWS)) return;
  nsa_tensor rows = nsai_verify_tensors_view(d, NSAI_VERIFY_PROBE_ROWS, NSAI_VERIFY_HOST);
  for (int64_t i = 0; i < d->probe_count; i++) ((int32_t *)rows.data)[i] = (int32_t)probes[i];
}
