/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Gates of a slab of tokens: given weights, the sigmoid of given logits, or the gate MLP.
 */
#include "reference/internal.h"
#include "reference/tensor.h"

static void load_values(const nsai_ref_problem *problem, double *gates, int64_t token) {
  const nsa_tensor *value = &problem->io->gate.value;
  bool logits = problem->model->gate == NSAI_GATE_LOGITS;
  for (int64_t h = 0; h < problem->model->heads; h++)
    for (int b = 0; b < NSA_BRANCHES; b++) {
      double x = nsai_ref_load(value, nsai_ref_offset2(value, token, h) + b);
      gates[h * NSA_BRANCHES + b] = logits ? nsai_ref_sigmoid(x) : x;
    }
}

/* sigmoid(act(x . W1 + b1) . W2 + b2), or with one layer sigmoid(x . W2 + b2). */
static void run_mlp(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int64_t count,
                    const int64_t *tokens) {
  const nsai_model *g = problem->model;
  const nsa_gate *gate = &problem->io->gate;
  for (int64_t i = 0; i < count; i++)
    problem->ops->widen(gate->x.dtype, nsai_ref_at(&gate->x, tokens[i] * gate->x.stride[0]),
                        g->gate_channels, scratch->gate_x + i * g->gate_channels);
  nsai_ref_projection layer = { .ops = problem->ops,
                                .rows = count,
                                .in = g->gate_channels,
                                .x = scratch->gate_x,
                                .x_row = g->gate_channels,
                                .buffer = scratch->gate_weights };
  if (g->gate_hidden > 0) {
    int64_t columns = nsai_ref_lanes(g->gate_hidden);
    layer.weights = &gate->w1;
    layer.bias = &gate->b1;
    layer.out = g->gate_hidden;
    layer.y = scratch->gate_hidden;
    nsai_ref_project(&layer);
    nsai_ref_activate(g->gate_activation, scratch->gate_hidden, count * columns);
    layer.in = g->gate_hidden;
    layer.x = scratch->gate_hidden;
    layer.x_row = columns;
  }
  layer.weights = &gate->w2;
  layer.bias = &gate->b2;
  layer.out = (int64_t)g->heads * NSA_BRANCHES;
  layer.y = scratch->gates;
  nsai_ref_project(&layer);
  int64_t values = count * nsai_ref_gate_row(g);
  for (int64_t i = 0; i < values; i++) scratch->gates[i] = nsai_ref_sigmoid(scratch->gates[i]);
}

void nsai_ref_gates(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int64_t count,
                    const int64_t *tokens) {
  if (problem->model->gate == NSAI_GATE_MLP) {
    run_mlp(problem, scratch, count, tokens);
    return;
  }
  for (int64_t i = 0; i < count; i++)
    load_values(problem, scratch->gates + i * nsai_ref_gate_row(problem->model), tokens[i]);
}
