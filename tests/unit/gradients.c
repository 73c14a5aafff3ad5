/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "gradients.h"

#include "reference/reference.h"

int list_pairs(nsa_io *io, nsa_grads *g, pair out[MAX_PAIRS]) {
  nsa_kv *kv = &io->kv, *d = &g->d_kv;
  nsa_phi *phi = &io->phi, *d_phi = &g->d_phi;
  nsa_gate *gate = &io->gate, *d_gate = &g->d_gate;
  const pair all[MAX_PAIRS] = {
    { "q", &io->q, &g->d_q },
    { "k[0]", &kv->k[0], &d->k[0] },
    { "k[1]", &kv->k[1], &d->k[1] },
    { "k[2]", &kv->k[2], &d->k[2] },
    { "v[0]", &kv->v[0], &d->v[0] },
    { "v[1]", &kv->v[1], &d->v[1] },
    { "v[2]", &kv->v[2], &d->v[2] },
    { "k_cmp", &kv->k_cmp, &d->k_cmp },
    { "v_cmp", &kv->v_cmp, &d->v_cmp },
    { "k.pe", &phi->k.pe, &d_phi->k.pe },
    { "k.w", &phi->k.w, &d_phi->k.w },
    { "k.w1", &phi->k.w1, &d_phi->k.w1 },
    { "k.b1", &phi->k.b1, &d_phi->k.b1 },
    { "k.w2", &phi->k.w2, &d_phi->k.w2 },
    { "k.b2", &phi->k.b2, &d_phi->k.b2 },
    { "v.pe", &phi->v.pe, &d_phi->v.pe },
    { "v.w", &phi->v.w, &d_phi->v.w },
    { "v.w1", &phi->v.w1, &d_phi->v.w1 },
    { "v.b1", &phi->v.b1, &d_phi->v.b1 },
    { "v.w2", &phi->v.w2, &d_phi->v.w2 },
    { "v.b2", &phi->v.b2, &d_phi->v.b2 },
    { "gate.value", &gate->value, &d_gate->value },
    { "gate.x", &gate->x, &d_gate->x },
    { "gate.w1", &gate->w1, &d_gate->w1 },
    { "gate.b1", &gate->b1, &d_gate->b1 },
    { "gate.w2", &gate->w2, &d_gate->w2 },
    { "gate.b2", &gate->b2, &d_gate->b2 },
  };
  int count = 0;
  for (int i = 0; i < MAX_PAIRS; i++)
    if (all[i].input->data) out[count++] = all[i];
  return count;
}

nsa_tensor tensor_like(toy *t, const nsa_tensor *x, int32_t dtype) {
  return toy_tensor(t, dtype, x->ndim, x->shape[0], x->shape[1], x->shape[2]);
}

nsa_grads make_grads(toy *t, int32_t dtype) {
  nsa_grads g = NSA_GRADS_INIT;
  pair pairs[MAX_PAIRS];
  int count = list_pairs(&t->io, &g, pairs);
  g.d_o = tensor_like(t, &t->io.o, t->model.dtype);
  toy_randomize(t, &g.d_o);
  for (int i = 0; i < count; i++) *pairs[i].gradient = tensor_like(t, pairs[i].input, dtype);
  return g;
}

void choose(toy *t) {
  machine_expect("forward",
                 nsai_reference_forward(&t->model, NSA_SELECT_TOPN, 0, &t->batch, &t->io, 2),
                 NSA_OK, NULL);
}
