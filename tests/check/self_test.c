/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A check that cannot fail proves nothing: results are spoiled on purpose, one way at a time, and
 * every way has to be reported. Nor may a truth that is kept, or another plan in a bench, hide one.
 */
#include "check.h"

#include "verify/inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct damage {
  const char *name;
  const char *problem;
  void (*spoil)(nsai_trial_bench *bench); /* works on fetched images, or on the device's guards */
  int memory;                             /* 1: nsai_trial_data_damaged has to see it */
} damage;

static nsa_tensor host(nsai_trial_bench *bench, int slot) {
  return nsai_trial_data_view(&bench->data, slot, NSAI_TRIAL_HOST);
}

static void spoil_output(nsai_trial_bench *bench) {
  nsa_tensor t = host(bench, NSAI_TRIAL_O);
  for (int64_t row = 0; row < bench->data.tokens; row++)
    nsai_trial_store(&t, row * t.stride[0] + 3,
                     1.02f * nsai_trial_load(&t, row * t.stride[0] + 3) + 0.1f);
}

static void spoil_element(nsai_trial_bench *bench) {
  nsa_tensor t = host(bench, NSAI_TRIAL_O_BRANCH + NSA_WIN);
  nsai_trial_store(&t, (bench->data.tokens - 1) * t.stride[0] + t.stride[1], 30);
}

static void spoil_nan(nsai_trial_bench *bench) {
  nsa_tensor t = host(bench, NSAI_TRIAL_O);
  nsai_trial_store(&t, 7 * t.stride[0], NAN);
}

static void spoil_lse(nsai_trial_bench *bench) {
  nsa_tensor t = host(bench, NSAI_TRIAL_LSE + NSA_SEL);
  ((float *)t.data)[20 * t.stride[0]] += 0.01f;
}

static void spoil_empty_row(nsai_trial_bench *bench) {
  nsa_tensor t = host(bench, NSAI_TRIAL_LSE + NSA_CMP); /* rows before the first block: -inf */
  ((float *)t.data)[0] = 0;
}

static void spoil_compressed(nsai_trial_bench *bench) {
  nsa_tensor t = host(bench, NSAI_TRIAL_K_CMP);
  for (int64_t i = 0; i < t.shape[2]; i++)
    nsai_trial_store(&t, t.stride[0] + i, 1.05f * nsai_trial_load(&t, t.stride[0] + i));
}

static int32_t *last_index(nsai_trial_bench *bench) {
  nsa_tensor t = host(bench, NSAI_TRIAL_INDEX);
  return (int32_t *)t.data + (bench->data.tokens - 1) * t.stride[0];
}

/* Takes the lowest free block that was not chosen for the first free one that was: still well
 * formed, and another set. */
static void spoil_choice(nsai_trial_bench *bench) {
  const nsai_geometry *g = &bench->c->geometry;
  int32_t *row = last_index(bench), missing = g->select_init;
  int32_t i = g->select_init;
  while (row[i] == missing) i++, missing++;
  for (int32_t j = i; j > g->select_init; j--) row[j] = row[j - 1];
  row[i] = missing;
}

static void spoil_order(nsai_trial_bench *bench) {
  int32_t *row = last_index(bench), first = row[0];
  row[0] = row[1];
  row[1] = first;
}

static void spoil_forced(nsai_trial_bench *bench) {
  const nsai_geometry *g = &bench->c->geometry;
  last_index(bench)[g->select_count - 1] = -1;
}

static void spoil_guard(nsai_trial_bench *bench) {
  nsai_trial_buffer *b = &bench->data.buffer[NSAI_TRIAL_O];
  b->image[NSAI_TRIAL_GUARD - 1] ^= 1;
}

static void spoil_tail(nsai_trial_bench *bench) {
  nsai_trial_buffer *b = &bench->data.buffer[NSAI_TRIAL_O];
  b->image[NSAI_TRIAL_GUARD + b->bytes + 5] ^= 1;
}

/* Writes one byte of device memory; a failure leaves nothing to notice, and is noticed so. */
static void poke(nsai_trial_bench *bench, uint8_t *at) {
  (void)nsai_trial_device_upload(bench->data.device, at, "x", 1);
}

static void spoil_input(nsai_trial_bench *bench) {
  poke(bench, bench->data.buffer[NSAI_TRIAL_V0].device + NSAI_TRIAL_GUARD);
}

static void spoil_workspace(nsai_trial_bench *bench) {
  poke(bench, (uint8_t *)bench->data.guarded + NSAI_TRIAL_GUARD - 1);
}

static void spoil_gradient(nsai_trial_bench *bench) {
  nsa_tensor t = host(bench, NSAI_TRIAL_D_K0);
  for (int64_t row = 0; row < bench->data.kv_tokens; row++)
    nsai_trial_store(&t, row * t.stride[0] + 3,
                     1.1f * nsai_trial_load(&t, row * t.stride[0] + 3) + 0.05f);
}

static void spoil_query_gradient(nsai_trial_bench *bench) {
  nsa_tensor t = host(bench, NSAI_TRIAL_D_Q);
  nsai_trial_store(&t, (bench->data.tokens - 1) * t.stride[0] + t.stride[1], 3);
}

static void spoil_gate_gradient(nsai_trial_bench *bench) {
  nsa_tensor t = host(bench, NSAI_TRIAL_D_GATE_VALUE);
  nsai_trial_store(&t, 7 * t.stride[0], NAN);
}

static void spoil_gradient_tail(nsai_trial_bench *bench) {
  nsai_trial_buffer *b = &bench->data.buffer[NSAI_TRIAL_D_V0];
  b->image[NSAI_TRIAL_GUARD + b->bytes + 5] ^= 1;
}

/* One head's share of the weights is 2 % too large. */
static void spoil_weights(nsai_trial_bench *bench) {
  nsa_tensor t = host(bench, NSAI_TRIAL_D_PHI_K + 1); /* w */
  for (int64_t row = 0; row < t.shape[1]; row++)
    for (int64_t i = 0; i < t.shape[2]; i++) {
      int64_t at = t.stride[0] + row * t.stride[1] + i;
      nsai_trial_store(&t, at, 1.02f * nsai_trial_load(&t, at));
    }
}

/* What pe shares with all blocks is counted twice at one token of a block. */
static void spoil_pe(nsai_trial_bench *bench) {
  nsa_tensor t = host(bench, NSAI_TRIAL_D_PHI_V);
  for (int64_t i = 0; i < t.shape[2]; i++)
    nsai_trial_store(&t, 3 * t.stride[1] + i, 2 * nsai_trial_load(&t, 3 * t.stride[1] + i));
}

/* The last token's features have no gradient. */
static void spoil_features(nsai_trial_bench *bench) {
  nsa_tensor t = host(bench, NSAI_TRIAL_D_GATE_X);
  for (int64_t i = 0; i < t.shape[1]; i++)
    nsai_trial_store(&t, (bench->data.tokens - 1) * t.stride[0] + i, 0);
}

/* The biases' sums lack their last part. */
static void spoil_bias(nsai_trial_bench *bench) {
  nsa_tensor t = host(bench, NSAI_TRIAL_D_GATE_B2);
  for (int64_t i = 0; i < t.shape[0]; i++) nsai_trial_store(&t, i, 0.95f * nsai_trial_load(&t, i));
}

static void spoil_weights_tail(nsai_trial_bench *bench) {
  nsai_trial_buffer *b = &bench->data.buffer[NSAI_TRIAL_D_GATE_W1];
  b->image[NSAI_TRIAL_GUARD + b->bytes + 5] ^= 1;
}

#define FEW "fwd:q=300:s32x6+1+2:fill=correlated:seed=3"
#define BACK "bwd:q=200:s32x6+1+2:seed=3"
#define LAYERS "bwd:q=200:s32x6+1+2:phi=linear:gate=mlp.32.16.silu:seed=2"

static const damage damages[] = {
  { "output", FEW, spoil_output, 0 },
  { "one element", FEW, spoil_element, 0 },
  { "NaN", FEW, spoil_nan, 0 },
  { "lse", FEW, spoil_lse, 0 },
  { "lse of an empty row", FEW, spoil_empty_row, 0 },
  { "compressed key", FEW, spoil_compressed, 0 },
  { "another block", FEW, spoil_choice, 0 },
  { "order of blocks", FEW, spoil_order, 0 },
  { "forced block", FEW, spoil_forced, 0 },
  { "guard before", FEW, spoil_guard, 1 },
  { "guard behind", FEW, spoil_tail, 1 },
  { "input", FEW, spoil_input, 1 },
  { "workspace's guard", FEW, spoil_workspace, 1 },
  { "gradient of keys", BACK, spoil_gradient, 0 },
  { "one element of d_q", BACK, spoil_query_gradient, 0 },
  { "NaN of a gate's gradient", BACK, spoil_gate_gradient, 0 },
  { "guard behind a gradient", BACK, spoil_gradient_tail, 1 },
  { "gradient of phi's weights", LAYERS, spoil_weights, 0 },
  { "gradient of pe", LAYERS, spoil_pe, 0 },
  { "gradient of features", LAYERS, spoil_features, 0 },
  { "gradient of a bias", LAYERS, spoil_bias, 0 },
  { "guard behind weights' gradients", LAYERS, spoil_weights_tail, 1 },
};

static nsa_status judge_backward(nsai_trial_bench *bench, nsai_trial_result *result) {
  nsai_trial_wanted *wanted;
  NSAI_TRY(nsai_trial_wanted_create(bench, &wanted));
  nsai_trial_judge_backward(bench, wanted, result);
  nsai_trial_wanted_destroy(wanted);
  return NSA_OK;
}

static nsa_status judge(nsai_trial_bench *bench, nsai_trial_truth *truth,
                        nsai_trial_result *result) {
  if (bench->c->kind == NSAI_TRIAL_BACKWARD) return judge_backward(bench, result);
  return nsai_trial_judge_forward(bench, truth, result);
}

/* Whether the damage is reported; -1 when the case could not run. */
static int noticed(chk_session *session, const damage *kind, nsai_trial_result *result) {
  char error[256];
  nsai_trial_case c;
  nsai_trial_bench bench = { 0 };
  nsai_trial_truth truth = { 0 }; /* kept over the damage, which it must not hide */
  int seen = -1;
  *result = (nsai_trial_result){ 0 };
  if (nsai_trial_case_parse(kind->problem, &c, error, sizeof error)) return -1;
  nsa_status status = chk_bench_create(session, &c, &bench);
  if (!status) status = nsai_trial_run_intact(&bench, result);
  /* Unspoiled, everything has to pass: else any damage would seem to be noticed. */
  if (!status) status = judge(&bench, &truth, result);
  if (!status && result->outcome == NSAI_TRIAL_PASSED) {
    kind->spoil(&bench);
    if (kind->memory)
      seen = nsai_trial_data_damaged(&bench.data) != NULL;
    else if (!judge(&bench, &truth, result))
      seen = result->outcome == NSAI_TRIAL_FAILED;
  }
  if (status) nsai_trial_fail(result, "%s", nsa_last_error());
  nsai_trial_truth_fini(&truth);
  nsai_trial_bench_destroy(&bench);
  return seen;
}

/* ---- the kept truth -------------------------------------------------------------------------- */

/* Flips the last bit of one 16-bit element: another input of the reference, no wrong result. */
static void nudge(nsai_trial_bench *bench, int slot) {
  nsa_tensor t = host(bench, slot);
  ((uint16_t *)t.data)[3 * t.stride[0] + 5] ^= 1;
}

static void nudge_input(nsai_trial_bench *bench) { nudge(bench, NSAI_TRIAL_V0); }
static void nudge_blocks(nsai_trial_bench *bench) { nudge(bench, NSAI_TRIAL_V_CMP); }

/* What is changed in what the bench holds, and how many of the four parts rest on it. */
typedef struct change {
  const char *name;
  void (*make)(nsai_trial_bench *bench); /* NULL: the same again */
  int64_t parts;
} change;

static const change changes[] = {
  { "first judgement", NULL, 4 },        { "nothing", NULL, 0 },
  { "a stored block", nudge_blocks, 2 }, { "that block back", nudge_blocks, 2 },
  { "chosen blocks", spoil_choice, 2 },  { "fetched again", NULL, 2 },
  { "an input", nudge_input, 4 },
};

/* Whether the truth computes anew what a change asks for, and nothing else. Returns the number of
 * changes after which it does not. */
static int truth_follows(chk_session *session, FILE *out) {
  char error[256];
  nsai_trial_case c;
  nsai_trial_bench bench = { 0 };
  nsai_trial_truth truth = { 0 };
  nsai_trial_result result = { 0 };
  int wrong = 0;
  if (nsai_trial_case_parse(FEW, &c, error, sizeof error)) return 1;
  nsa_status status = chk_bench_create(session, &c, &bench);
  if (!status) status = nsai_trial_bench_run(&bench);
  for (size_t i = 0; i < sizeof changes / sizeof *changes && !status; i++) {
    int64_t before = truth.computed;
    result = (nsai_trial_result){ 0 };
    if (!changes[i].make) status = nsai_trial_data_fetch(&bench.data);
    if (changes[i].make) changes[i].make(&bench);
    if (!status) status = nsai_trial_judge_forward(&bench, &truth, &result);
    int right = !status && truth.computed - before == changes[i].parts;
    fprintf(out, "truth: %-18s %lld of 4 parts computed%s\n", changes[i].name,
            (long long)(truth.computed - before), right ? "" : ", WRONG");
    wrong += !right;
  }
  if (status) fprintf(out, "truth: %s\n", nsa_last_error());
  nsai_trial_truth_fini(&truth);
  nsai_trial_bench_destroy(&bench);
  return wrong + (status != NSA_OK);
}

/* ---- another plan ---------------------------------------------------------------------------- */

/* A bench that another plan was put into gives right results and has exactly that plan's workspace:
 * a write to the first byte behind it is noticed. Returns 0, or 1: it was not. */
static int plan_is_used(chk_session *session, FILE *out) {
  char error[256];
  nsai_trial_case c;
  nsai_trial_bench bench = { 0 };
  nsai_trial_plan other;
  nsai_trial_result result = { 0 };
  int seen = 0;
  if (nsai_trial_case_parse(FEW, &c, error, sizeof error)) return 1;
  nsa_status status = chk_bench_create(session, &c, &bench);
  if (!status) status = chk_session_plan(session, &c, chk_case_op(&c), &other);
  /* As if the plan before had asked for more. */
  if (!status) status = nsai_trial_data_workspace(&bench.data, other.caps.workspace_bytes + 4096);
  if (!status) status = nsai_trial_bench_use(&bench, &other);
  if (!status) status = nsai_trial_run_intact(&bench, &result);
  if (!status) status = nsai_trial_judge_forward(&bench, NULL, &result);
  if (!status && result.outcome == NSAI_TRIAL_PASSED) {
    poke(&bench, (uint8_t *)bench.data.workspace + other.caps.workspace_bytes);
    seen = nsai_trial_data_damaged(&bench.data) != NULL;
  }
  fprintf(out, "another plan         %s  %s\n", seen ? "reported" : "UNNOTICED",
          status ? nsa_last_error() : result.text);
  nsai_trial_bench_destroy(&bench);
  return !seen;
}

int chk_self_test(chk_session *session, FILE *out) {
  int unnoticed = 0;
  for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
    nsai_trial_result result;
    int seen = noticed(session, &damages[i], &result);
    fprintf(out, "%-20s %s  %s\n", damages[i].name,
            seen > 0    ? "reported"
            : seen == 0 ? "UNNOTICED"
                        : "could not run",
            result.text);
    unnoticed += seen <= 0;
  }
  unnoticed += truth_follows(session, out);
  return unnoticed + plan_is_used(session, out);
}
