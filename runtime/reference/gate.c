/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Gates of a slab of tokens: given weights, the sigmoid of given logits, the gate MLP, or ones.
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

nsai_ref_layers nsai_ref_gate_layers(const nsai_ref_problem *problem) {
  const nsai_model *g = problem->model;
  const nsa_gate *gate = &problem->io->gate;
  return (nsai_ref_layers){ .ops = problem->ops,
                            .w1 = &gate->w1,
                            .w2 = &gate->w2,
                            .b1 = &gate->b1,
                            .b2 = &gate->b2,
                            .in = g->gate_channels,
                            .hidden = g->gate_hidden,
                            .out = (int64_t)g->heads * NSA_BRANCHES,
                            .activation = g->gate_activation,
                            .stored = problem->stored };
}

/* The sigmoid of the layers' outputs. */
static void run_mlp(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int64_t count,
                    const int64_t *tokens) {
  const nsai_ref_layers layers = nsai_ref_gate_layers(problem);
  const nsa_tensor *x = &problem->io->gate.x;
  for (int64_t i = 0; i < count; i++)
    problem->ops->widen(x->dtype, nsai_ref_at(x, tokens[i] * x->stride[0]), layers.in,
                        scratch->gate_x + i * layers.in);
  nsai_ref_run_layers(&layers, count, scratch->gate_x, scratch->gate_hidden, scratch->gate_weights,
                      scratch->gates);
  int64_t values = count * nsai_ref_gate_row(problem->model);
  for (int64_t i = 0; i < values; i++) scratch->gates[i] = nsai_ref_sigmoid(scratch->gates[i]);
}

void nsai_ref_gates(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int64_t count,
                    const int64_t *tokens) {
  if (problem->model->gate == NSAI_GATE_MLP) {
    run_mlp(problem, scratch, count, tokens);
    return;
  }
  const int64_t row = nsai_ref_gate_row(problem->model);
  if (problem->model->gate == NSAI_GATE_NONE) {
    for (int64_t i = 0; i < count * row; i++) scratch->gates[i] = 1;
    return;
  }
  for (int64_t i = 0; i < count; i++) load_values(problem, scratch->gates + i * row, tokens[i]);
}
