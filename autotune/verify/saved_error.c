/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The error that rounding the forward's outputs causes in gradients that compute u = dO . o_b
 * from them. With an error e of u, dS is off by -g e P, and so
 *
 *   d_gate by e      d_q by -scale g e sum P k      d_k by -scale sum P g e q
 *
 * The reference can compute these sums: the second is its output with k as v, the third is its
 * d_v with e q as dO.
 */
#include "verify/backward.h"

#include "reference/reference.h"
#include "verify/inputs.h"

#include <math.h>
#include <stdlib.h>

typedef struct saved_error {
  const nsai_trial_run *trial;
  const nsa_batch *batch;
  const nsa_io *io;
  nsai_model keys; /* the model with k as v */
  double scale;
  nsa_tensor u[NSA_BRANCHES]; /* f32 [T, Hq, 1]: e */
} saved_error;

static nsa_status make(nsa_tensor *t, int64_t rows, int64_t heads, int64_t width) {
  return nsai_verify_tensor_alloc(NSA_F32, 3, (int64_t[]){ rows, heads, width }, t);
}

/* An absent tensor is allowed. */
static void add(nsa_tensor *t, int64_t row, int64_t head, int64_t i, double x) {
  if (t->data) ((float *)t->data)[row * t->stride[0] + head * t->stride[1] + i] += (float)x;
}

static int has(const saved_error *e, int b) {
  return nsai_verify_tensors_has(&e->trial->data, NSAI_VERIFY_O_BRANCH_IN + b);
}

/* The branches' outputs in f32, of the model or with k as v: out [NSA_BRANCHES]. */
static nsa_status outputs(const saved_error *e, bool of_keys, nsa_tensor *out) {
  const nsai_verify_tensors *d = &e->trial->data;
  const nsai_model *g = of_keys ? &e->keys : &e->trial->c->model;
  nsa_io io = *e->io;
  nsa_status status;
  for (int b = 0; b < NSA_BRANCHES; b++) {
    io.lse[b] = io.o_branch[b] = (nsa_tensor){ 0 };
    if (of_keys) io.kv.v[b] = io.kv.k[b];
  }
  if (g->phi != NSAI_PHI_EXTERNAL) io.kv.k_cmp = io.kv.v_cmp = (nsa_tensor){ 0 };
  if (of_keys) io.kv.v_cmp = io.kv.k_cmp;
  NSAI_TRY(make(&io.o, d->token_capacity, g->heads, g->head_dim_v));
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!has(e, b)) continue;
    NSAI_TRY_TO(done, make(&out[b], d->token_capacity, g->heads, g->head_dim_v));
    io.o_branch[b] = out[b];
  }
  bool ranges = e->trial->c->selection == NSA_SELECT_RANGES;
  status = nsai_reference_forward(g, ranges ? NSA_SELECT_RANGES : NSA_SELECT_BLOCKS,
                                  e->trial->c->branches, e->batch, &io, e->trial->threads);
done:
  free(io.o.data);
  return status;
}

static nsa_status find_errors(saved_error *e) {
  const nsai_verify_tensors *d = &e->trial->data;
  nsa_tensor exact[NSA_BRANCHES] = { 0 };
  nsa_tensor d_o = nsai_verify_tensors_view(d, NSAI_VERIFY_D_O, NSAI_VERIFY_HOST);
  nsa_status status;
  NSAI_TRY_TO(done, outputs(e, false, exact));
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!has(e, b)) continue;
    NSAI_TRY_TO(done, make(&e->u[b], d->token_capacity, e->keys.heads, 1));
    for (int64_t t = 0; t < d->tokens; t++)
      for (int64_t h = 0; h < e->keys.heads; h++)
        for (int64_t i = 0; i < d_o.shape[2]; i++)
          add(&e->u[b], t, h, 0,
              nsai_verify_at(&d_o, t, h, i) * (nsai_verify_at(&e->io->o_branch[b], t, h, i) -
                                               nsai_verify_at(&exact[b], t, h, i)));
  }
done:
  for (int b = 0; b < NSA_BRANCHES; b++) free(exact[b].data);
  return status;
}

static double gate_of(const saved_error *e, int64_t t, int64_t h, int b) {
  double x = nsai_verify_at(&e->io->gate.value, t, h, b);
  return e->keys.gate == NSAI_GATE_WEIGHTS ? x : 1 / (1 + exp(-x));
}

static nsa_status add_rows(const saved_error *e, nsa_tensor *plain) {
  nsa_tensor mean[NSA_BRANCHES] = { 0 }; /* sum P k */
  nsa_status status;
  NSAI_TRY_TO(done, outputs(e, true, mean));
  for (int b = 0; b < NSA_BRANCHES; b++)
    for (int64_t t = 0; t < e->trial->data.tokens && has(e, b); t++)
      for (int64_t h = 0; h < e->keys.heads; h++) {
        double g = gate_of(e, t, h, b), u = nsai_verify_at(&e->u[b], t, h, 0);
        double slope = e->keys.gate == NSAI_GATE_WEIGHTS ? 1 : g * (1 - g);
        if (u == 0) continue; /* the gate of a row without keys may have any value */
        add(&plain[NSAI_VERIFY_D_GATE_VALUE], t, h, b, slope * u);
        for (int64_t i = 0; i < e->keys.head_dim_qk; i++)
          add(&plain[NSAI_VERIFY_D_Q], t, h, i,
              -e->scale * g * u * nsai_verify_at(&mean[b], t, h, i));
      }
done:
  for (int b = 0; b < NSA_BRANCHES; b++) free(mean[b].data);
  return status;
}

/* Adds the error of one branch to `to`, the gradient of the keys that it reads. */
static nsa_status add_keys(const saved_error *e, int b, nsa_tensor *to) {
  const nsai_verify_tensors *d = &e->trial->data;
  nsa_io io = *e->io;
  nsa_grads grads = NSA_GRADS_INIT;
  nsa_tensor d_v = { 0 };
  nsa_status status;
  int pair = e->keys.per_branch ? b : 0;
  bool external = b == NSA_CMP && e->keys.phi == NSAI_PHI_EXTERNAL;
  for (int p = 0; p < NSA_BRANCHES; p++) io.kv.v[p] = io.kv.k[p];
  io.kv.v_cmp = io.kv.k_cmp;
  NSAI_TRY_TO(done, make(&d_v, to->shape[0], e->keys.kv_heads, e->keys.head_dim_qk));
  NSAI_TRY_TO(done, make(&grads.d_o, d->token_capacity, e->keys.heads, e->keys.head_dim_qk));
  *(external ? &grads.d_kv.v_cmp : &grads.d_kv.v[pair]) = d_v;
  for (int64_t t = 0; t < d->tokens; t++)
    for (int64_t h = 0; h < e->keys.heads; h++)
      for (int64_t i = 0; i < e->keys.head_dim_qk; i++)
        add(&grads.d_o, t, h, i,
            nsai_verify_at(&e->u[b], t, h, 0) * nsai_verify_at(&io.q, t, h, i));
  NSAI_TRY_TO(done, nsai_reference_backward(&e->keys, e->trial->c->selection, 1u << b, e->batch,
                                            &io, &grads, e->trial->threads));
  for (int64_t r = 0; r < to->shape[0]; r++)
    for (int64_t h = 0; h < e->keys.kv_heads; h++)
      for (int64_t i = 0; i < e->keys.head_dim_qk; i++)
        add(to, r, h, i, -e->scale * nsai_verify_at(&d_v, r, h, i));
done:
  free(d_v.data);
  free(grads.d_o.data);
  return status;
}

nsa_status nsai_verify_add_saved_error(const nsai_trial_run *trial, const nsa_batch *batch,
                                       const nsa_io *io, nsa_tensor plain[NSAI_VERIFY_SLOTS]) {
  saved_error e = { .trial = trial, .batch = batch, .io = io, .keys = trial->c->model };
  nsa_status status;
  e.keys.head_dim_v = e.keys.head_dim_qk;
  e.scale =
      io->softmax_scale > 0 ? (double)io->softmax_scale : 1 / sqrt((double)e.keys.head_dim_qk);
  NSAI_TRY_TO(done, find_errors(&e));
  NSAI_TRY_TO(done, add_rows(&e, plain));
  for (int b = 0; b < NSA_BRANCHES; b++) {
    bool external = b == NSA_CMP && e.keys.phi == NSAI_PHI_EXTERNAL;
    int slot = external ? NSAI_VERIFY_D_K_CMP : NSAI_VERIFY_D_K0 + (e.keys.per_branch ? b : 0);
    if (has(&e, b) && plain[slot].data) NSAI_TRY_TO(done, add_keys(&e, b, &plain[slot]));
  }
done:
  for (int b = 0; b < NSA_BRANCHES; b++) free(e.u[b].data);
  return status;
}
