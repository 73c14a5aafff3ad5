/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The error that float32 sums cause in gradients through relu. The slope of relu jumps at 0, so a
 * hidden unit whose pre-activation z is within the rounding of its sum of 0 may count as on or as
 * off, and its whole contribution to the gradients comes or goes. Nothing averages that out where
 * a gradient has few units.
 *
 * A unit is at the kink if |z| <= NEAR * (sum of |terms|). This is a bound for products that are
 * exact and are added in float32: no stored value lies between the inputs and z. Where no unit is
 * at the kink, nothing is added.
 */
#include "verify/backward.h"

#include "reference/reference.h"
#include "verify/inputs.h"

#include <math.h>
#include <stdlib.h>

/* 8 units in the last place of float32: sums of some thousands of terms, of which tensor cores
 * drop the last bits in each step. A guess with a reserve; more than one unit of 10^4 is rarely
 * this close. */
#define NEAR 0x1p-20

enum { SIDE_K, SIDE_V, SIDE_GATE, SIDES };

/* One layer with relu: phi mlp of a KV head of K or V, or the gate MLP. */
typedef struct net {
  int side;
  int64_t head, rows, in, hidden, out; /* rows: blocks, or tokens */
} net;

/* A unit at the kink. */
typedef struct kink {
  net of;
  int64_t row, unit;
  bool on;
} kink;

typedef struct kinks {
  const nsai_trial_run *trial;
  const nsa_batch *batch;
  const nsa_io *io;
  const nsa_tensor *d_o;
  nsa_tensor *plain;
  int64_t *block_token; /* [blocks]: the first token row */
  double *x, *size;     /* [in] of the widest net: inputs; |x|, and |pe| beside it */
  double *z, *sum;      /* [hidden]: pre-activations; sums of |terms| */
  double *w1;           /* [in, hidden] of the current net */
  nsa_tensor d_y[SIDES], logits, blocks[2];
  kink *found;
  int64_t count;
} kinks;

static const nsa_tensor *tensor_of(const kinks *k, const net *n, int part) {
  const nsa_gate *gate = &k->io->gate;
  const nsa_phi_side *phi = n->side == SIDE_V ? &k->io->phi.v : &k->io->phi.k;
  if (part == 2) return n->side == SIDE_GATE ? &gate->w1 : &phi->w1;
  if (part == 3) return n->side == SIDE_GATE ? &gate->b1 : &phi->b1;
  if (part == 4) return n->side == SIDE_GATE ? &gate->w2 : &phi->w2;
  return n->side == SIDE_GATE ? &gate->b2 : &phi->b2;
}

/* The plain gradient of w1 or b1. */
static nsa_tensor *gradient_of(const kinks *k, const net *n, int part) {
  static const int phi[] = { NSAI_VERIFY_D_PHI_K, NSAI_VERIFY_D_PHI_V };
  if (n->side != SIDE_GATE) return &k->plain[phi[n->side] + part];
  return &k->plain[part == 2 ? NSAI_VERIFY_D_GATE_W1 : NSAI_VERIFY_D_GATE_B1];
}

/* The offset of a weight [head, i, j], [i, j], of a bias [head, j] or [j]. */
static int64_t weight_at(const nsa_tensor *t, const net *n, int64_t i, int64_t j) {
  return (n->side == SIDE_GATE ? 0 : n->head * t->stride[0]) + i * t->stride[t->ndim - 2] + j;
}
static int64_t bias_at(const nsa_tensor *t, const net *n, int64_t j) {
  return (n->side == SIDE_GATE ? 0 : n->head * t->stride[0]) + j;
}

static void add(const nsa_tensor *t, int64_t offset, double x) {
  if (t->data) ((float *)t->data)[offset] += (float)x;
}

static int64_t dim_of(const kinks *k, const net *n) {
  const nsai_model *g = &k->trial->c->model;
  return n->side == SIDE_V ? g->head_dim_v : g->head_dim_qk;
}

static void load_row(const kinks *k, const net *n, int64_t row) {
  if (n->side == SIDE_GATE) {
    const nsa_tensor *x = &k->io->gate.x;
    for (int64_t i = 0; i < n->in; i++) {
      k->x[i] = (double)nsai_verify_load(x, row * x->stride[0] + i);
      k->size[i] = fabs(k->x[i]);
    }
    return;
  }
  const nsa_tensor *raw = n->side == SIDE_V ? &k->io->kv.v[0] : &k->io->kv.k[0];
  const nsa_tensor *pe = n->side == SIDE_V ? &k->io->phi.v.pe : &k->io->phi.k.pe;
  const int64_t dim = dim_of(k, n);
  for (int64_t i = 0; i < n->in; i++) {
    const int64_t r = i / dim, e = i % dim;
    const double shift =
        pe->data ? (double)nsai_verify_load(pe, n->head * pe->stride[0] + r * pe->stride[1] + e)
                 : 0;
    const double x = nsai_verify_at(raw, k->block_token[row] + r, n->head, e);
    k->x[i] = x + shift;
    k->size[i] = fabs(x) + fabs(shift);
  }
}

/* z and the sums of |terms| of a row that is loaded. */
static void run_layer(const kinks *k, const net *n) {
  const nsa_tensor *b1 = tensor_of(k, n, 3);
  for (int64_t h = 0; h < n->hidden; h++) {
    k->z[h] = b1->data ? (double)nsai_verify_load(b1, bias_at(b1, n, h)) : 0;
    k->sum[h] = fabs(k->z[h]);
  }
  for (int64_t i = 0; i < n->in; i++) {
    const double *w = k->w1 + i * n->hidden, x = k->x[i], size = k->size[i];
    for (int64_t h = 0; h < n->hidden; h++) {
      k->z[h] += x * w[h];
      k->sum[h] += size * fabs(w[h]);
    }
  }
}

static void load_weights(const kinks *k, const net *n) {
  const nsa_tensor *w1 = tensor_of(k, n, 2);
  for (int64_t i = 0; i < n->in; i++)
    for (int64_t h = 0; h < n->hidden; h++)
      k->w1[i * n->hidden + h] = (double)nsai_verify_load(w1, weight_at(w1, n, i, h));
}

/* The gates' logits of a row, whose z is computed. */
static void store_logits(const kinks *k, const net *n, int64_t row) {
  const nsa_tensor *w2 = tensor_of(k, n, 4), *b2 = tensor_of(k, n, 5);
  for (int64_t c = 0; c < n->out; c++) {
    double y = b2->data ? (double)nsai_verify_load(b2, c) : 0;
    for (int64_t h = 0; h < n->hidden; h++)
      if (k->z[h] > 0) y += k->z[h] * (double)nsai_verify_load(w2, weight_at(w2, n, h, c));
    ((float *)k->logits.data)[row * n->out + c] = (float)y;
  }
}

static nsa_status find(kinks *k, const net *n) {
  load_weights(k, n);
  for (int64_t row = 0; row < n->rows; row++) {
    load_row(k, n, row);
    run_layer(k, n);
    if (n->side == SIDE_GATE) store_logits(k, n, row);
    for (int64_t h = 0; h < n->hidden; h++) {
      if (k->sum[h] == 0 || fabs(k->z[h]) > NEAR * k->sum[h]) continue;
      kink *grown = realloc(k->found, (size_t)(k->count + 1) * sizeof *grown);
      if (!grown) return nsai_fail_nomem("units at the kink", sizeof *grown);
      k->found = grown;
      k->found[k->count++] = (kink){ *n, row, h, k->z[h] > 0 };
    }
  }
  return NSA_OK;
}

/* The gradients of compressed blocks: those of a phi that the caller computes. */
static nsa_status block_gradients(kinks *k) {
  const nsai_verify_tensors *d = &k->trial->data;
  nsai_model model = k->trial->c->model;
  nsa_io io = *k->io;
  nsa_grads grads = NSA_GRADS_INIT;
  for (int side = SIDE_K; side <= SIDE_V; side++) {
    const int64_t dim = side == SIDE_V ? model.head_dim_v : model.head_dim_qk;
    const int64_t shape[] = { d->blocks, model.kv_heads, dim };
    NSAI_TRY(nsai_verify_tensor_alloc(NSA_F32, 3, shape, &k->blocks[side]));
    NSAI_TRY(nsai_verify_tensor_alloc(NSA_F32, 3, shape, &k->d_y[side]));
  }
  io.kv.k_cmp = k->blocks[SIDE_K];
  io.kv.v_cmp = k->blocks[SIDE_V];
  NSAI_TRY(nsai_reference_compress(&model, k->batch, &io, k->trial->threads));
  model.phi = NSAI_PHI_EXTERNAL;
  grads.d_o = *k->d_o;
  grads.d_kv.k_cmp = k->d_y[SIDE_K];
  grads.d_kv.v_cmp = k->d_y[SIDE_V];
  return nsai_reference_backward(&model, k->trial->c->selection, k->trial->c->branches, k->batch,
                                 &io, &grads, k->trial->threads);
}

/* The gradients of the gates' logits: those of gates without an MLP. */
static nsa_status logit_gradients(kinks *k) {
  nsai_model model = k->trial->c->model;
  nsa_io io = *k->io;
  nsa_grads grads = NSA_GRADS_INIT;
  model.gate = NSAI_GATE_LOGITS;
  io.gate = (nsa_gate){ .value = k->logits };
  NSAI_TRY(nsai_verify_tensor_alloc(NSA_F32, 3, k->logits.shape, &k->d_y[SIDE_GATE]));
  grads.d_o = *k->d_o;
  grads.d_gate.value = k->d_y[SIDE_GATE];
  return nsai_reference_backward(&model, k->trial->c->selection, k->trial->c->branches, k->batch,
                                 &io, &grads, k->trial->threads);
}

/* Adds the gradient of a unit's pre-activation where it is off, and takes it away where it is on. */
static void flip(const kinks *k, const kink *at) {
  const net *n = &at->of;
  const nsa_tensor *w1 = tensor_of(k, n, 2), *w2 = tensor_of(k, n, 4), *d_y = &k->d_y[n->side];
  const nsa_tensor *d_w1 = gradient_of(k, n, 2);
  const int64_t heads = k->trial->c->model.kv_heads, dim = dim_of(k, n);
  const int64_t first = n->side == SIDE_GATE ? at->row : at->row * heads + n->head;
  double d_z = 0;
  for (int64_t c = 0; c < n->out; c++)
    d_z += (double)((const float *)d_y->data)[first * n->out + c] *
           (double)nsai_verify_load(w2, weight_at(w2, n, at->unit, c));
  if (at->on) d_z = -d_z;
  load_row(k, n, at->row);
  add(gradient_of(k, n, 3), bias_at(gradient_of(k, n, 3), n, at->unit), d_z);
  for (int64_t i = 0; i < n->in; i++) {
    const double d_x = d_z * (double)nsai_verify_load(w1, weight_at(w1, n, i, at->unit));
    if (d_w1->data) add(d_w1, weight_at(d_w1, n, i, at->unit), d_z * k->x[i]);
    if (n->side == SIDE_GATE) {
      add(&k->plain[NSAI_VERIFY_D_GATE_X], at->row * n->in + i, d_x);
      continue;
    }
    const bool v = n->side == SIDE_V;
    const int64_t token = k->block_token[at->row] + i / dim;
    add(&k->plain[v ? NSAI_VERIFY_D_PHI_V : NSAI_VERIFY_D_PHI_K], n->head * n->in + i, d_x);
    add(&k->plain[v ? NSAI_VERIFY_D_V0 : NSAI_VERIFY_D_K0],
        (token * heads + n->head) * dim + i % dim, d_x);
  }
}

/* Finds the units at the kink of all nets, and what they are multiplied with. */
static nsa_status find_all(kinks *k, bool phi, bool gate) {
  const nsai_model *g = &k->trial->c->model;
  const nsai_verify_tensors *d = &k->trial->data;
  for (int64_t head = 0; head < g->kv_heads && phi; head++)
    for (int side = SIDE_K; side <= SIDE_V; side++) {
      const int64_t dim = side == SIDE_V ? g->head_dim_v : g->head_dim_qk;
      NSAI_TRY(find(k, &(net){ side, head, d->blocks, g->block * dim, g->phi_hidden, dim }));
    }
  if (k->count) NSAI_TRY(block_gradients(k));
  const int64_t before = k->count, logits = (int64_t)g->heads * NSA_BRANCHES;
  if (gate)
    NSAI_TRY(find(k, &(net){ SIDE_GATE, 0, d->tokens, g->gate_channels, g->gate_hidden, logits }));
  return k->count > before ? logit_gradients(k) : NSA_OK;
}

static nsa_status allocate(kinks *k, bool phi, bool gate) {
  const nsai_verify_case *c = k->trial->c;
  const nsai_model *g = &c->model;
  const int64_t dim = g->head_dim_qk > g->head_dim_v ? g->head_dim_qk : g->head_dim_v;
  int64_t in = phi ? g->block * dim : 0, hidden = phi ? g->phi_hidden : 0, block = 0, first = 0;
  if (gate && in < g->gate_channels) in = g->gate_channels;
  if (gate && hidden < g->gate_hidden) hidden = g->gate_hidden;
  const size_t numbers = (size_t)(2 * in + 2 * hidden + in * hidden);
  k->x = calloc(numbers, sizeof *k->x);
  k->block_token = calloc((size_t)k->trial->data.blocks + 1, sizeof *k->block_token);
  if (!k->x || !k->block_token)
    return nsai_fail_nomem("the layers of a check", numbers * sizeof *k->x);
  k->size = k->x + in;
  k->z = k->size + in;
  k->sum = k->z + hidden;
  k->w1 = k->sum + hidden;
  for (int32_t s = 0; s < c->num_seqs; first += c->kv_len[s++])
    for (int64_t i = 0; i < nsai_block_count(g, c->kv_len[s]); i++)
      k->block_token[block++] = first + i * g->stride;
  if (!gate) return NSA_OK;
  return nsai_verify_tensor_alloc(
      NSA_F32, 3, (int64_t[]){ k->trial->data.token_capacity, g->heads, NSA_BRANCHES }, &k->logits);
}

nsa_status nsai_verify_add_kink_error(const nsai_trial_run *trial, const nsa_batch *batch,
                                      const nsa_io *io, const nsa_tensor *d_o,
                                      nsa_tensor plain[NSAI_VERIFY_SLOTS]) {
  const nsai_model *g = &trial->c->model;
  kinks k = { .trial = trial, .batch = batch, .io = io, .d_o = d_o, .plain = plain };
  const bool phi = g->phi == NSAI_PHI_MLP && g->phi_activation == NSAI_ACT_RELU &&
                   nsai_verify_branches(trial->c) >> NSA_CMP & 1;
  const bool gate =
      g->gate == NSAI_GATE_MLP && g->gate_hidden && g->gate_activation == NSAI_ACT_RELU;
  nsa_status status;
  if (!phi && !gate) return NSA_OK;
  NSAI_TRY_TO(done, allocate(&k, phi, gate));
  NSAI_TRY_TO(done, find_all(&k, phi, gate));
  for (int64_t i = 0; i < k.count; i++) flip(&k, &k.found[i]);
done:
  for (int i = 0; i < SIDES; i++) free(k.d_y[i].data);
  for (int i = 0; i < 2; i++) free(k.blocks[i].data);
  free(k.logits.data);
  free(k.found);
  free(k.block_token);
  free(k.x);
  return status;
}
