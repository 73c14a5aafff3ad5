/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A check that cannot fail proves nothing, so results are damaged in one way at a time, and
 * every way must be reported. Neither stored expected results nor a change of the plan may hide
 * damage.
 */
#include "check.h"

#include "verify/inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct damage {
  const char *name, *problem;
  /* Works on the fetched image of a tensor, or on the guards and inputs of the device. */
  void (*inject)(nsai_trial_run *trial, int slot);
  int slot;
  bool memory; /* nsai_verify_tensors_damaged must report it */
} damage;

static nsa_tensor host(nsai_trial_run *trial, int slot) {
  return nsai_verify_tensors_view(&trial->data, slot, NSAI_VERIFY_HOST);
}

/* Elements from `at` on become factor times themselves plus a constant. */
static void scale(const nsa_tensor *t, int64_t at, int64_t count, float factor, float plus) {
  for (int64_t i = at; i < at + count; i++)
    nsai_verify_store(t, i, factor * nsai_verify_load(t, i) + plus);
}

/* One channel of all rows. */
static void inject_output(nsai_trial_run *trial, int slot) {
  nsa_tensor t = host(trial, slot);
  for (int64_t row = 0; row < t.shape[0]; row++) scale(&t, row * t.stride[0] + 3, 1, 1.02f, 0.1f);
}

static void inject_gradient(nsai_trial_run *trial, int slot) {
  nsa_tensor t = host(trial, slot);
  for (int64_t row = 0; row < t.shape[0]; row++) scale(&t, row * t.stride[0] + 3, 1, 1.1f, 0.05f);
}

/* One element of the last row's second head. */
static void inject_element(nsai_trial_run *trial, int slot) {
  nsa_tensor t = host(trial, slot);
  nsai_verify_store(&t, (t.shape[0] - 1) * t.stride[0] + t.stride[1], 30);
}

static void inject_small_element(nsai_trial_run *trial, int slot) {
  nsa_tensor t = host(trial, slot);
  nsai_verify_store(&t, (t.shape[0] - 1) * t.stride[0] + t.stride[1], 3);
}

static void inject_nan(nsai_trial_run *trial, int slot) {
  nsa_tensor t = host(trial, slot);
  nsai_verify_store(&t, 7 * t.stride[0], NAN);
}

static void inject_lse(nsai_trial_run *trial, int slot) {
  nsa_tensor t = host(trial, slot);
  ((float *)t.data)[20 * t.stride[0]] += 0.01f;
}

/* Rows before the first block have -inf. */
static void inject_empty_row(nsai_trial_run *trial, int slot) {
  *(float *)host(trial, slot).data = 0;
}

static void inject_compressed(nsai_trial_run *trial, int slot) {
  nsa_tensor t = host(trial, slot);
  scale(&t, t.stride[0], t.shape[2], 1.05f, 0);
}

static int32_t *last_index(nsai_trial_run *trial, int slot) {
  nsa_tensor t = host(trial, slot);
  return (int32_t *)t.data + (t.shape[0] - 1) * t.stride[0];
}

/* Replaces the first free selected block by the lowest free block that was not selected: the
 * list stays well formed but is another set. */
static void inject_choice(nsai_trial_run *trial, int slot) {
  const nsai_model *g = &trial->c->model;
  int32_t *row = last_index(trial, slot), missing = g->select_init;
  int32_t i = g->select_init;
  while (row[i] == missing) i++, missing++;
  for (int32_t j = i; j > g->select_init; j--) row[j] = row[j - 1];
  row[i] = missing;
}

static void inject_order(nsai_trial_run *trial, int slot) {
  int32_t *row = last_index(trial, slot), first = row[0];
  row[0] = row[1];
  row[1] = first;
}

static void inject_forced(nsai_trial_run *trial, int slot) {
  last_index(trial, slot)[trial->c->model.select_count - 1] = -1;
}

static void inject_guard(nsai_trial_run *trial, int slot) {
  trial->data.buffer[slot].image[NSAI_VERIFY_GUARD - 1] ^= 1;
}

static void inject_tail(nsai_trial_run *trial, int slot) {
  nsai_verify_buffer *b = &trial->data.buffer[slot];
  b->image[NSAI_VERIFY_GUARD + b->bytes + 5] ^= 1;
}

/* Writes one byte of device memory. If the write fails there is no damage, and the self-test
 * fails. */
static void poke(nsai_trial_run *trial, uint8_t *at) {
  (void)nsai_verify_device_upload(trial->data.device, at, "x", 1);
}

static void inject_input(nsai_trial_run *trial, int slot) {
  poke(trial, trial->data.buffer[slot].device + NSAI_VERIFY_GUARD);
}

static void inject_workspace(nsai_trial_run *trial, int slot) {
  (void)slot;
  poke(trial, (uint8_t *)trial->data.guarded + NSAI_VERIFY_GUARD - 1);
}

/* One head's share of the weights is 2 % too large. */
static void inject_weights(nsai_trial_run *trial, int slot) {
  nsa_tensor t = host(trial, slot);
  for (int64_t row = 0; row < t.shape[1]; row++)
    scale(&t, t.stride[0] + row * t.stride[1], t.shape[2], 1.02f, 0);
}

/* The contribution that pe shares with all blocks is counted twice at one token of a block. */
static void inject_pe(nsai_trial_run *trial, int slot) {
  nsa_tensor t = host(trial, slot);
  scale(&t, 3 * t.stride[1], t.shape[2], 2, 0);
}

/* The last token's features have no gradient. */
static void inject_features(nsai_trial_run *trial, int slot) {
  nsa_tensor t = host(trial, slot);
  scale(&t, (t.shape[0] - 1) * t.stride[0], t.shape[1], 0, 0);
}

/* The sums for the biases lack their last part. */
static void inject_bias(nsai_trial_run *trial, int slot) {
  nsa_tensor t = host(trial, slot);
  scale(&t, 0, t.shape[0], 0.95f, 0);
}

#define FEW "fwd:q=300:s32x6+1+2:fill=correlated:seed=3"
#define BACK "bwd:q=200:s32x6+1+2:seed=3"
#define LAYERS "bwd:q=200:s32x6+1+2:phi=linear:gate=mlp.32.16.silu:seed=2"
#define RELU "bwd:q=200:s32x6+1+2:phi=mlp.16.relu:gate=mlp.32.16.relu:seed=2"
#define SLOT(name) NSAI_VERIFY_##name

static const damage damages[] = {
  { "output", FEW, inject_output, SLOT(O), 0 },
  { "one element", FEW, inject_element, SLOT(O_BRANCH) + NSA_WIN, 0 },
  { "NaN", FEW, inject_nan, SLOT(O), 0 },
  { "lse", FEW, inject_lse, SLOT(LSE) + NSA_SEL, 0 },
  { "lse of an empty row", FEW, inject_empty_row, SLOT(LSE) + NSA_CMP, 0 },
  { "compressed key", FEW, inject_compressed, SLOT(K_CMP), 0 },
  { "another block", FEW, inject_choice, SLOT(INDEX), 0 },
  { "order of blocks", FEW, inject_order, SLOT(INDEX), 0 },
  { "forced block", FEW, inject_forced, SLOT(INDEX), 0 },
  { "guard before", FEW, inject_guard, SLOT(O), 1 },
  { "guard behind", FEW, inject_tail, SLOT(O), 1 },
  { "input", FEW, inject_input, SLOT(V0), 1 },
  { "workspace's guard", FEW, inject_workspace, 0, 1 },
  { "gradient of keys", BACK, inject_gradient, SLOT(D_K0), 0 },
  { "one element of d_q", BACK, inject_small_element, SLOT(D_Q), 0 },
  { "NaN of a gate's gradient", BACK, inject_nan, SLOT(D_GATE_VALUE), 0 },
  { "guard behind a gradient", BACK, inject_tail, SLOT(D_V0), 1 },
  { "gradient of phi's weights", LAYERS, inject_weights, SLOT(D_PHI_K) + 1, 0 }, /* w */
  { "gradient of pe", LAYERS, inject_pe, SLOT(D_PHI_V), 0 },
  { "gradient of features", LAYERS, inject_features, SLOT(D_GATE_X), 0 },
  { "gradient of a bias", LAYERS, inject_bias, SLOT(D_GATE_B2), 0 },
  { "gradient through relu", RELU, inject_weights, SLOT(D_PHI_K) + 2, 0 }, /* w1 */
  { "guard behind weights' gradients", LAYERS, inject_tail, SLOT(D_GATE_W1), 1 },
};

static nsa_status verify_backward(nsai_trial_run *trial, nsai_verify_result *result) {
  nsai_verify_expected_grads *wanted;
  NSAI_TRY(nsai_verify_expected_grads_create(trial, &wanted));
  nsa_status status = nsai_verify_backward(trial, wanted, result);
  nsai_verify_expected_grads_destroy(wanted);
  return status;
}

static nsa_status verify(nsai_trial_run *trial, nsai_verify_expected *expected,
                         nsai_verify_result *result) {
  if (trial->c->kind == NSAI_VERIFY_BACKWARD) return verify_backward(trial, result);
  return nsai_verify_forward(trial, expected, result);
}

/* Whether the damage is reported; -1 when the case could not run. */
static int noticed(chk_plans *plans, const damage *kind, nsai_verify_result *result) {
  char error[256];
  nsai_verify_case c;
  nsai_trial_run trial = { 0 };
  nsai_verify_expected expected = { 0 }; /* kept while damage is injected, which it must not hide */
  int seen = -1;
  *result = (nsai_verify_result){ 0 };
  if (nsai_verify_case_parse(kind->problem, &c, error, sizeof error)) return -1;
  nsa_status status = chk_bench_create(plans, &c, &trial);
  if (!status) status = nsai_trial_run_intact(&trial, result);
  /* Without damage everything must pass; otherwise any damage would seem to be reported. */
  if (!status) status = verify(&trial, &expected, result);
  if (!status && result->outcome == NSAI_VERIFY_PASSED) {
    kind->inject(&trial, kind->slot);
    if (kind->memory)
      seen = nsai_verify_tensors_damaged(&trial.data) != NULL;
    else if (!verify(&trial, &expected, result))
      seen = result->outcome == NSAI_VERIFY_FAILED;
  }
  if (status) nsai_verify_fail(result, "%s", nsa_last_error());
  nsai_verify_expected_fini(&expected);
  nsai_trial_run_destroy(&trial);
  return seen;
}

/* ---- stored expected results ----------------------------------------------------------------- */

/* Flips the last bit of one 16-bit element: another input of the reference, no wrong result. */
static void nudge(nsai_trial_run *trial, int slot) {
  nsa_tensor t = host(trial, slot);
  ((uint16_t *)t.data)[3 * t.stride[0] + 5] ^= 1;
}

/* A change of the trial run's contents, and how many of the four parts depend on it. */
typedef struct change {
  const char *name;
  void (*make)(nsai_trial_run *trial, int slot); /* NULL: no change */
  int slot;
  int64_t parts;
} change;

static const change changes[] = {
  { "first verification", NULL, 0, 4 },
  { "nothing", NULL, 0, 0 },
  { "a stored block", nudge, SLOT(V_CMP), 2 },
  { "that block back", nudge, SLOT(V_CMP), 2 },
  { "chosen blocks", inject_choice, SLOT(INDEX), 2 },
  { "fetched again", NULL, 0, 2 },
  { "an input", nudge, SLOT(V0), 4 },
};

/* Whether exactly those expected results are recomputed that a change affects. Returns the
 * number of changes for which this is not so. */
static int expected_follows(chk_plans *plans, FILE *out) {
  char error[256];
  nsai_verify_case c;
  nsai_trial_run trial = { 0 };
  nsai_verify_expected expected = { 0 };
  nsai_verify_result result = { 0 };
  int wrong = 0;
  if (nsai_verify_case_parse(FEW, &c, error, sizeof error)) return 1;
  nsa_status status = chk_bench_create(plans, &c, &trial);
  if (!status) status = nsai_trial_run_execute(&trial);
  for (size_t i = 0; i < sizeof changes / sizeof *changes && !status; i++) {
    int64_t before = expected.computed;
    result = (nsai_verify_result){ 0 };
    if (!changes[i].make) status = nsai_verify_tensors_fetch(&trial.data);
    if (changes[i].make) changes[i].make(&trial, changes[i].slot);
    if (!status) status = nsai_verify_forward(&trial, &expected, &result);
    int right = !status && expected.computed - before == changes[i].parts;
    fprintf(out, "expected: %-18s %lld of 4 parts computed%s\n", changes[i].name,
            (long long)(expected.computed - before), right ? "" : ", WRONG");
    wrong += !right;
  }
  if (status) fprintf(out, "expected: %s\n", nsa_last_error());
  nsai_verify_expected_fini(&expected);
  nsai_trial_run_destroy(&trial);
  return wrong + (status != NSA_OK);
}

/* ---- another plan ---------------------------------------------------------------------------- */

/* A trial run that switches to another plan must give right results in exactly that plan's
 * workspace: a write to the first byte after it must be reported. Returns 0, or 1: it was not. */
static int plan_is_used(chk_plans *plans, FILE *out) {
  char error[256];
  nsai_verify_case c;
  nsai_trial_run trial = { 0 };
  nsai_trial_plan other;
  nsai_verify_result result = { 0 };
  int seen = 0;
  if (nsai_verify_case_parse(FEW, &c, error, sizeof error)) return 1;
  nsa_status status = chk_bench_create(plans, &c, &trial);
  if (!status) status = chk_plans_get(plans, &c, chk_case_op(&c), &other);
  /* As if the previous plan had asked for more. */
  if (!status)
    status = nsai_verify_tensors_workspace(&trial.data, other.caps.workspace_bytes + 4096);
  if (!status) status = nsai_trial_run_use(&trial, &other);
  if (!status) status = nsai_trial_run_intact(&trial, &result);
  if (!status) status = nsai_verify_forward(&trial, NULL, &result);
  if (!status && result.outcome == NSAI_VERIFY_PASSED) {
    poke(&trial, (uint8_t *)trial.data.workspace + other.caps.workspace_bytes);
    seen = nsai_verify_tensors_damaged(&trial.data) != NULL;
  }
  seen = chk_report_damage(out, "another plan", seen, status ? nsa_last_error() : result.text);
  nsai_trial_run_destroy(&trial);
  return seen;
}

/* ---- a forced row ---------------------------------------------------------------------------- */

/* A forced row that is not among those of a plan is a failure where another row has its stage, and
 * a skip where none has. Returns the number of wrong outcomes. */
static int row_is_demanded(FILE *out) {
  static const nsai_variant row = { .name = "select_topn_cta", .stage = NSAI_STAGE_SELECT };
  static const struct {
    const char *name, *variants;
    nsai_verify_outcome outcome;
  } cases[] = {
    { "row that ran", "select=select_topn_cta attend_selected=x", NSAI_VERIFY_PASSED },
    { "row that did not run", "compress=x select=select_topn", NSAI_VERIFY_FAILED },
    { "row of another stage", "compress=x attend_selected=select_topn_cta", NSAI_VERIFY_SKIPPED },
  };
  int wrong = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    nsai_verify_result result = { .outcome = NSAI_VERIFY_PASSED };
    snprintf(result.variants, sizeof result.variants, "%s", cases[i].variants);
    chk_demand_row(&row, &result);
    wrong += chk_report_damage(out, cases[i].name, result.outcome == cases[i].outcome, result.text);
  }
  return wrong;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Heads that are one in memory have the numbers of the first, whatever the threads' order: a problem
 * is the same in every run. Returns 1 if they have not. */
static int inputs_repeat(FILE *out) {
  enum { ROWS = 100, HEADS = 7, DIM = 16 };
  static uint16_t shared[ROWS * DIM], single[ROWS * DIM];
  const nsai_model model = { .heads = HEADS, .kv_heads = HEADS, .block = 32, .stride = 16 };
  const nsai_verify_inputs in = { &model, NSAI_VERIFY_FILL_CORRELATED, 1, 8 };
  nsa_tensor t = { .data = single,
                   .dtype = NSA_BF16,
                   .ndim = 3,
                   .shape = { ROWS, 1, DIM },
                   .stride = { DIM, DIM, 1 } };
  nsai_verify_fill_keys(&in, 0, &t);
  t.data = shared;
  t.shape[1] = HEADS;
  t.stride[1] = 0;
  nsai_verify_fill_keys(&in, 0, &t);
  return chk_report_damage(out, "heads that share memory", !memcmp(shared, single, sizeof shared),
                           "they have the numbers of the first head");
}

int chk_report_damage(FILE *out, const char *name, int seen, const char *text) {
  fprintf(out, "%-24s %s  %s\n", name,
          seen > 0    ? "reported"
          : seen == 0 ? "UNNOTICED"
                      : "could not run",
          text);
  return seen <= 0;
}

int chk_self_test(chk_plans *plans, FILE *out) {
  int unnoticed = 0;
  for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
    nsai_verify_result result;
    int seen = noticed(plans, &damages[i], &result);
    unnoticed += chk_report_damage(out, damages[i].name, seen, result.text);
  }
  unnoticed += expected_follows(plans, out);
  unnoticed += row_is_demanded(out);
  unnoticed += inputs_repeat(out);
  unnoticed += chk_kink_self_test(plans, out);
  return unnoticed + plan_is_used(plans, out);
}
