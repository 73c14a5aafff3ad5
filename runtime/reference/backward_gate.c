/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Gradients of the gates: of weights, of logits, or through the gate MLP.
 */
#include "base/math.h"
#include "reference/backward.h"

nsa_status nsai_ref_gate_back_prepare(nsai_ref_back *back) {
  nsai_ref_layers_memory sizes;
  if (back->problem->model->gate != NSAI_GATE_MLP) return NSA_OK;
  const nsai_ref_layers layers = nsai_ref_gate_layers(back->problem);
  int64_t size = nsai_ref_layers_lay_out(&layers, NSAI_REF_SLAB, NULL, &sizes);
  back->gate = nsai_ref_doubles(size);
  if (back->gate) return NSA_OK;
  return nsai_fail_nomem("gradients of the gate MLP", (size_t)size * sizeof(double));
}

static void slab_back(const nsai_ref_back *back, const nsai_ref_layers *layers,
                      const nsai_ref_layers_memory *m, int64_t first, int64_t count) {
  const nsai_ref_problem *problem = back->problem;
  const nsa_tensor *x = &problem->io->gate.x, *d_x = &back->grads->d_gate.x;
  int64_t c = layers->in;
  for (int64_t i = 0; i < count; i++)
    problem->ops->widen(x->dtype, nsai_ref_at(x, (first + i) * x->stride[0]), c, m->x + i * c);
  nsai_ref_layers_back(layers, m, count, back->d_gates + first * nsai_ref_gate_row(problem->model));
  for (int64_t i = 0; i < count && d_x->data; i++)
    for (int64_t e = 0; e < c; e++)
      nsai_ref_grad(back, d_x, (first + i) * d_x->stride[0] + e, m->d_x[i * nsai_ref_lanes(c) + e]);
}

static void mlp_back(const nsai_ref_back *back, int64_t tokens) {
  const nsai_ref_layers layers = nsai_ref_gate_layers(back->problem);
  const nsa_gate *out = &back->grads->d_gate;
  int64_t h_row = nsai_ref_lanes(layers.hidden), row = nsai_ref_lanes(layers.out);
  nsai_ref_layers_memory m;
  nsai_ref_layers_lay_out(&layers, NSAI_REF_SLAB, back->gate, &m);
  nsai_ref_layers_transpose(&layers, &m);
  for (int64_t first = 0; first < tokens; first += NSAI_REF_SLAB)
    slab_back(back, &layers, &m, first, nsai_smaller(tokens - first, NSAI_REF_SLAB));
  nsai_ref_grad_rows(back, &out->w1, 0, layers.in, m.d_w1, h_row);
  nsai_ref_grad_rows(back, &out->b1, 0, 1, m.d_b1, h_row);
  nsai_ref_grad_rows(back, &out->w2, 0, out->w2.shape[0], m.d_w2, row);
  nsai_ref_grad_rows(back, &out->b2, 0, 1, m.d_b2, row);
}

static void store_values(const nsai_ref_back *back, int64_t tokens) {
  const nsai_model *g = back->problem->model;
  const nsa_tensor *value = &back->grads->d_gate.value;
  for (int64_t token = 0; token < tokens && value->data; token++)
    for (int64_t h = 0; h < g->heads; h++)
      for (int b = 0; b < NSA_BRANCHES; b++)
        nsai_ref_grad(back, value, nsai_ref_offset2(value, token, h) + b,
                      back->d_gates[token * nsai_ref_gate_row(g) + h * NSA_BRANCHES + b]);
}

void nsai_ref_gate_back(nsai_ref_back *back) {
  const nsai_model *g = back->problem->model;
  const nsai_ref_sequences *sequences = &back->problem->sequences;
  if (g->gate == NSAI_GATE_NONE) return;
  int64_t tokens = sequences->q[sequences->count], count = tokens * nsai_ref_gate_row(g);
  /* Through the sigmoid. The logit of a row without keys may be any value. */
  if (g->gate != NSAI_GATE_WEIGHTS)
    for (int64_t i = 0; i < count; i++)
      if (back->d_gates[i] != 0) back->d_gates[i] *= back->gates[i] * (1 - back->gates[i]);
  if (g->gate == NSAI_GATE_MLP)
    mlp_back(back, tokens);
  else
    store_values(back, tokens);
}
