/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The kernels beside the products of the backward pass: through phi linear and mlp, and through the gate
 * MLP.
 */
#include "plan/spec.h"
#include "variants/attend/invert.h"
#include "variants/select/sort.h"

#define THREADS 256 /* memory-bound kernels: enough loads in flight at any occupancy */

/* Config::kActivation of backward_activation: the values of nsai_activation, and none. */
#define ACTIVATION_NONE 3

/* Config::kRowsOf of backward_activation. */
enum { ROWS_OF_BLOCKS, ROWS_OF_TOKENS };

static void specify(const nsai_problem *p, const char *entry, nsai_kernel_spec *spec) {
  *spec = (nsai_kernel_spec){ .entry = entry, .dtype = p->model.dtype, .threads = THREADS };
  nsai_constant_add(spec, "kMinBlocks", 4);
}

static void specify_back(const nsai_problem *p, int activation, int rows_of,
                         nsai_kernel_spec *spec) {
  specify(p, "backward_activation", spec);
  nsai_constant_add(spec, "kActivation", activation);
  nsai_constant_add(spec, "kRowsOf", rows_of);
  nsai_constant_add(spec, "kBlock", p->model.block);
  nsai_constant_add(spec, "kStride", p->model.stride);
}

static void specify_both(const nsai_problem *p, nsai_kernel_spec specs[NSAI_ROLES]) {
  specify(p, "backward_column_sums", &specs[NSAI_KERNEL_COLUMN_SUMS]);
  specify(p, "backward_store_gradient", &specs[NSAI_KERNEL_STORE_GRADIENT]);
}

void nsai_specify_phi_back(const nsai_problem *p, nsai_kernel_spec specs[NSAI_ROLES]) {
  const nsai_model *m = &p->model;
  specify_back(p, ACTIVATION_NONE, ROWS_OF_BLOCKS, &specs[NSAI_KERNEL_PHI_OUT_BACK]);
  if (m->phi == NSAI_PHI_MLP)
    specify_back(p, (int)m->phi_activation, ROWS_OF_BLOCKS, &specs[NSAI_KERNEL_PHI_HIDDEN_BACK]);
  specify_both(p, specs);
}

void nsai_specify_gate_back(const nsai_problem *p, nsai_kernel_spec specs[NSAI_ROLES]) {
  const nsai_model *m = &p->model;
  specify_back(p, ACTIVATION_NONE, ROWS_OF_TOKENS, &specs[NSAI_KERNEL_GATE_OUT_BACK]);
  if (m->gate_hidden)
    specify_back(p, (int)m->gate_activation, ROWS_OF_TOKENS, &specs[NSAI_KERNEL_GATE_HIDDEN_BACK]);
  specify(p, "backward_present_rows", &specs[NSAI_KERNEL_PRESENT_ROWS]);
  specify_both(p, specs);
}
