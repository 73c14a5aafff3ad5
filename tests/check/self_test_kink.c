/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Gradients through relu: a hidden unit whose pre-activation is 0 but for rounding may be on or off,
 * and any other must be as in the reference. One unit's pre-activation is made the difference of an
 * input and of its bias. The library runs with a bias for which the unit is on, and its gradients
 * are compared with those for another bias.
 */
#include "check.h"

#include "verify/inputs.h"

#include <math.h>

#define UNIT 5 /* of the hidden layer */

/* The layer, and the element of its input that the unit passes on. */
typedef struct layer {
  const char *name, *problem;
  int x, w1, b1, pe;                   /* slots; pe 0: none */
  int64_t head, row, input;            /* of the net, of x, of the layer's input */
  int64_t x_column, pe_row, pe_column; /* where the input lies in x and in pe */
} layer;

/* Block 2 of K's head 1, its token 4, column 7; and token 40, feature 7. */
static const layer layers[] = {
  { "phi", "bwd:q=90:phi=mlp.16.relu:seed=2", NSAI_VERIFY_K0, NSAI_VERIFY_PHI_K + 2,
    NSAI_VERIFY_PHI_K + 3, NSAI_VERIFY_PHI_K, 1, 2 * 16 + 4, 4 * 64 + 7, 7, 4, 7 },
  { "gate", "bwd:q=90:gate=mlp.32.16.relu:seed=2", NSAI_VERIFY_GATE_X, NSAI_VERIFY_GATE_W1,
    NSAI_VERIFY_GATE_B1, 0, 0, 40, 7, 7, 0, 0 },
};

static nsa_tensor host(nsai_trial_run *trial, int slot) {
  return nsai_verify_tensors_view(&trial->data, slot, NSAI_VERIFY_HOST);
}

static nsa_status upload(nsai_trial_run *trial, int slot) {
  return nsai_verify_buffer_upload(trial->data.device, &trial->data.buffer[slot]);
}

static void set_bias(nsai_trial_run *trial, const layer *l, float bias) {
  nsa_tensor b1 = host(trial, l->b1);
  nsai_verify_store(&b1, (b1.ndim == 2 ? l->head * b1.stride[0] : 0) + UNIT, bias);
}

/* Makes the unit pass on one element of its input, which is returned in *x. */
static nsa_status isolate(nsai_trial_run *trial, const layer *l, float *x) {
  nsa_tensor w1 = host(trial, l->w1), in = host(trial, l->x);
  const int64_t head = w1.ndim == 3 ? l->head * w1.stride[0] : 0;
  for (int64_t i = 0; i < w1.shape[w1.ndim - 2]; i++)
    nsai_verify_store(&w1, head + i * w1.stride[w1.ndim - 2] + UNIT, i == l->input);
  *x = nsai_verify_load(&in, l->row * in.stride[0] + (in.ndim == 3 ? l->head * in.stride[1] : 0) +
                                 l->x_column);
  if (l->pe) {
    nsa_tensor pe = host(trial, l->pe);
    nsai_verify_store(&pe, l->head * pe.stride[0] + l->pe_row * pe.stride[1] + l->pe_column, 0);
    NSAI_TRY(upload(trial, l->pe));
  }
  return upload(trial, l->w1);
}

/* Runs with the unit on by a hundredth of x, and verifies against the reference with the unit
 * `below` under that. */
static nsa_status run(nsai_trial_run *trial, const layer *l, float below,
                      nsai_verify_result *result) {
  nsai_verify_expected_grads *wanted;
  float x;
  NSAI_TRY(isolate(trial, l, &x));
  set_bias(trial, l, -x + fabsf(x) * 0x1p-7f);
  NSAI_TRY(upload(trial, l->b1));
  NSAI_TRY(nsai_trial_run_intact(trial, result));
  set_bias(trial, l, -x - fabsf(x) * below);
  NSAI_TRY(nsai_verify_expected_grads_create(trial, &wanted));
  nsa_status status = nsai_verify_backward(trial, wanted, result);
  nsai_verify_expected_grads_destroy(wanted);
  return status;
}

static nsa_status outcome(chk_plans *plans, const layer *l, float below,
                          nsai_verify_result *result) {
  char error[256];
  nsai_verify_case c;
  nsai_trial_run trial = { 0 };
  *result = (nsai_verify_result){ .outcome = NSAI_VERIFY_PASSED };
  if (nsai_verify_case_parse(l->problem, &c, error, sizeof error))
    return nsai_fail(NSA_E_ARG, "%s", error);
  nsa_status status = chk_bench_create(plans, &c, &trial);
  if (!status) status = run(&trial, l, below, result);
  nsai_trial_run_destroy(&trial);
  return status;
}

int chk_kink_self_test(chk_plans *plans, FILE *out) {
  int wrong = 0;
  for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
    for (int far = 0; far <= 1; far++) {
      nsai_verify_result result;
      char name[64];
      nsa_status status = outcome(plans, &layers[i], far ? 0x1p-7f : 0, &result);
      const bool passed = result.outcome == NSAI_VERIFY_PASSED;
      snprintf(name, sizeof name, "unit %s the kink, %s", far ? "off" : "at", layers[i].name);
      wrong += chk_report_damage(out, name, status ? -1 : passed != far,
                                 status ? nsa_last_error() : result.text);
    }
  }
  return wrong;
}
