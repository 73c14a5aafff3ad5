/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/forward.h"

#include "verify/compare.h"
#include "verify/parallel.h"

#include "plan/plan.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- compress -------------------------------------------------------------------------------- */

/* Compares the fetched k_cmp and v_cmp with the reference's, rounded to f32. */
static nsa_status verify_compressed(nsai_trial_run *trial, nsai_verify_expected *expected,
                                    nsai_verify_result *result) {
  static const char *const names[2] = { "k_cmp", "v_cmp" };
  const nsa_tensor *want;
  NSAI_TRY(nsai_verify_expected_compressed(expected, trial, &want));
  for (int i = 0; i < (trial->c->model.keys_only ? 1 : 2); i++) {
    nsa_tensor got =
        nsai_verify_tensors_view(&trial->data, i ? NSAI_VERIFY_V_CMP : NSAI_VERIFY_K_CMP,
                                 NSAI_VERIFY_HOST);
    got.shape[0] = trial->data.blocks;
    nsai_verify_compare_tensors(names[i],
                                nsai_verify_tolerance_of(NSAI_VERIFY_STAGE, trial->c->model.dtype),
                                &got, &want[i], result);
  }
  return NSA_OK;
}

/* ---- selection ------------------------------------------------------------------------------- */

/* Every row must be well formed, whatever the importance. */
static void verify_form(nsai_trial_run *trial, nsai_verify_result *result) {
  const nsai_verify_case *c = trial->c;
  nsa_tensor index = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_INDEX, NSAI_VERIFY_HOST);
  for (int64_t t = 0; t < trial->data.tokens; t++) {
    int32_t sequence;
    int64_t position;
    nsai_verify_tensors_locate(c, t, &sequence, &position);
    for (int32_t h = 0; h < c->model.kv_heads; h++) {
      const char *complaint =
          nsai_verify_selection_malformed(&c->model, position, nsai_verify_index_row(&index, t, h));
      if (!complaint) continue;
      nsai_verify_fail(result, "block_idx token %lld (position %lld) KV head %d: %s", (long long)t,
                       (long long)position, h, complaint);
      return;
    }
  }
}

/* Whether the importance that a probe returns is the one that selection used. It is not if a
 * kernel that fuses the stage selected. The CPU device selects by float64 importance and returns
 * it rounded. */
static bool outputs_topn(const nsai_trial_run *trial) {
  return trial->data.device->driver &&
         !nsai_is_fused(&trial->plan.plan->choice, NSAI_STAGE_IMPORTANCE);
}

/* Verifies one probed row and KV head. Returns the distance from the cut by the reference's
 * importance. */
static double verify_row(nsai_trial_run *trial, int64_t token, int32_t head, const float *own,
                         const double *reference, nsai_verify_result *result) {
  const nsai_model *g = &trial->c->model;
  nsa_tensor index = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_INDEX, NSAI_VERIFY_HOST);
  const int32_t *row = nsai_verify_index_row(&index, token, head);
  int32_t sequence, exact[NSAI_MAX_SELECTED];
  int64_t position, candidates;
  nsai_verify_tensors_locate(trial->c, token, &sequence, &position);
  if (position < 0) return 0;
  candidates = position / g->select_block + 1;
  double *widened = malloc((size_t)candidates * sizeof *widened);
  if (!widened) return INFINITY;
  for (int64_t j = 0; j < candidates; j++) widened[j] = (double)own[j];
  nsai_reference_select_row(g, position, widened, exact);
  free(widened);
  if (outputs_topn(trial) && memcmp(exact, row, (size_t)g->select_count * sizeof *row))
    nsai_verify_fail(result,
                     "block_idx token %lld KV head %d is not the top-n of its own importance",
                     (long long)token, head);
  return nsai_verify_selection_distance(g, position, row, reference);
}

/* Verifies importance and selection at the probed rows. */
static nsa_status verify_selection(nsai_trial_run *trial, nsai_verify_expected *expected,
                                   nsai_verify_result *result) {
  const nsai_verify_tensors *d = &trial->data;
  const nsai_model *g = &trial->c->model;
  nsa_tensor rows = nsai_verify_tensors_view(d, NSAI_VERIFY_PROBE_ROWS, NSAI_VERIFY_HOST),
             own = nsai_verify_tensors_view(d, NSAI_VERIFY_PROBE, NSAI_VERIFY_HOST);
  int64_t blocks = d->select_blocks, per_row = g->kv_heads * blocks, swapped = 0;
  double error = 0, norm = 0, distance = 0;
  const double *want;
  NSAI_TRY(nsai_verify_expected_importance(expected, trial, &want));
  for (int64_t i = 0; i < d->probe_count; i++)
    for (int32_t h = 0; h < g->kv_heads; h++) {
      const double *reference = want + i * per_row + h * blocks;
      const float *got = (const float *)own.data + i * own.stride[0] + h * own.stride[1];
      for (int64_t j = 0; j < blocks; j++) {
        error += pow((double)got[j] - reference[j], 2);
        norm += reference[j] * reference[j];
      }
      int64_t token = ((const int32_t *)rows.data)[i];
      double far = verify_row(trial, token, h, got, reference, result);
      swapped += far > 0;
      distance = fmax(distance, far);
    }
  nsai_verify_add_figure(result, "importance", norm > 0 ? sqrt(error / norm) : sqrt(error),
                         nsai_verify_tolerance_of(NSAI_VERIFY_STAGE, g->dtype).relative);
  nsai_verify_add_figure(result, "cut", distance,
                         d->device->driver ? NSAI_VERIFY_CUT_TOLERANCE : 0);
  nsai_verify_add_figure(result, "swapped", (double)swapped, INFINITY);
  return NSA_OK;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* Searches a slot for NaN and inf: the lowest bad row. */
typedef struct finite_search {
  nsa_tensor t;
  int lse; /* 1: -inf is allowed */
  atomic_llong bad;
} finite_search;

static void search_row(void *user, int64_t row) {
  finite_search *s = user;
  int64_t heads = s->t.ndim == 3 ? s->t.shape[1] : 1, width = s->t.shape[s->t.ndim - 1];
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < width; i++) {
      int64_t at = row * s->t.stride[0] + (s->t.ndim == 3 ? h * s->t.stride[1] : 0) + i;
      float x = nsai_verify_load(&s->t, at);
      if (isfinite(x) || (s->lse && x == -INFINITY)) continue;
      long long lowest = atomic_load(&s->bad);
      while (row < lowest && !atomic_compare_exchange_weak(&s->bad, &lowest, row)) {}
      return;
    }
}

/* All written rows must be finite, including those that are not compared. */
static void verify_finite(const nsai_trial_run *trial, nsai_verify_result *result) {
  for (int slot = NSAI_VERIFY_O; slot < NSAI_VERIFY_INDEX; slot++) {
    finite_search s = { .t = nsai_verify_tensors_view(&trial->data, slot, NSAI_VERIFY_HOST),
                        .lse = slot >= NSAI_VERIFY_LSE };
    if (!s.t.data) continue;
    atomic_init(&s.bad, INT64_MAX);
    nsai_verify_parallel(trial->threads, trial->data.tokens, search_row, &s);
    if (atomic_load(&s.bad) != INT64_MAX)
      nsai_verify_fail(result, "%s token %lld is not finite", nsai_verify_slot_name(slot),
                       atomic_load(&s.bad));
  }
}

static void verify_stages(const nsai_trial_run *trial, const nsai_reference_rows *rows,
                          nsai_verify_result *result) {
  char name[24];
  for (int b = 0; b < NSA_BRANCHES; b++) {
    nsa_tensor lse = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_LSE + b, NSAI_VERIFY_HOST);
    nsa_tensor o =
        nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_O_BRANCH + b, NSAI_VERIFY_HOST);
    if (!lse.data) continue;
    snprintf(name, sizeof name, "o_branch[%d]", b);
    nsai_verify_comparison x = { name, trial->c, NSAI_VERIFY_STAGE, &o, rows, rows->o_branch[b],
                                 NULL };
    nsai_verify_compare_rows(&x, result);
    snprintf(name, sizeof name, "lse[%d]", b);
    nsai_verify_compare_lse(name, &lse, rows, rows->lse[b], result);
  }
}

/* The LSE of the index, on the blocks of the run. */
static nsa_status verify_index_lse(nsai_trial_run *trial, nsai_verify_result *result) {
  nsa_batch batch;
  nsa_io io;
  nsai_verify_tensors_io(&trial->data, NSAI_VERIFY_HOST, &batch, &io);
  const nsa_tensor got = io.index_lse;
  double worst = 0;
  NSAI_TRY(nsai_verify_tensor_alloc(NSA_F32, 2, got.shape, &io.index_lse));
  const nsa_status status =
      nsai_reference_index_lse(&trial->c->model, NULL,
                               nsai_verify_tensors_batch(&trial->data, &batch), &io,
                               trial->threads);
  for (int64_t t = 0; !status && t < trial->data.tokens; t++)
    for (int64_t r = 0; r < got.shape[1]; r++) {
      const float x = ((const float *)got.data)[t * got.stride[0] + r * got.stride[1]];
      const float want = ((const float *)io.index_lse.data)[t * got.shape[1] + r];
      const double error =
          x == want ? 0 : fabs((double)x - (double)want) / fmax(1, fabs((double)want));
      if (!(error <= worst)) worst = isfinite(error) ? error : (double)INFINITY;
    }
  free(io.index_lse.data);
  nsai_verify_add_figure(result, "index_lse", worst, NSAI_VERIFY_LSE_TOLERANCE);
  return status;
}

static nsa_status verify_forward(nsai_trial_run *trial, nsai_verify_expected *expected,
                                 nsai_verify_result *result) {
  const nsai_reference_rows *stage, *whole;
  nsa_tensor o = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_O, NSAI_VERIFY_HOST);
  verify_finite(trial, result);
  if (nsai_verify_tensors_has(&trial->data, NSAI_VERIFY_K_CMP))
    NSAI_TRY(verify_compressed(trial, expected, result));
  if (nsai_verify_tensors_has(&trial->data, NSAI_VERIFY_INDEX)) verify_form(trial, result);
  /* With indices out of range the reference would read outside its tensors. */
  if (result->outcome == NSAI_VERIFY_FAILED || !trial->token_count) return NSA_OK;
  if (nsai_verify_tensors_has(&trial->data, NSAI_VERIFY_PROBE))
    NSAI_TRY(verify_selection(trial, expected, result));
  NSAI_TRY(nsai_verify_expected_stage(expected, trial, &stage));
  verify_stages(trial, stage, result);
  if (nsai_verify_tensors_has(&trial->data, NSAI_VERIFY_INDEX_LSE))
    NSAI_TRY(verify_index_lse(trial, result));
  NSAI_TRY(nsai_verify_expected_whole(expected, trial, &whole));
  nsai_verify_comparison x = { "o", trial->c, NSAI_VERIFY_WHOLE, &o, whole, whole->o, stage->o };
  nsai_verify_compare_rows(&x, result);
  return NSA_OK;
}

static nsa_status verify_dense(nsai_trial_run *trial, nsai_verify_expected *expected,
                               nsai_verify_result *result) {
  const nsai_reference_rows *rows;
  nsa_tensor o = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_O, NSAI_VERIFY_HOST),
             lse = nsai_verify_tensors_view(&trial->data, NSAI_VERIFY_LSE, NSAI_VERIFY_HOST);
  verify_finite(trial, result);
  NSAI_TRY(nsai_verify_expected_dense(expected, trial, &rows));
  nsai_verify_comparison x = { "o", trial->c, NSAI_VERIFY_STAGE, &o, rows, rows->o, NULL };
  nsai_verify_compare_rows(&x, result);
  nsai_verify_compare_lse("lse", &lse, rows, rows->lse[0], result);
  return NSA_OK;
}

/* ---- with or without kept results ------------------------------------------------------------ */

static nsa_status
verify(nsa_status (*fn)(nsai_trial_run *, nsai_verify_expected *, nsai_verify_result *),
       nsai_trial_run *trial, nsai_verify_expected *expected, nsai_verify_result *result) {
  nsai_verify_expected once = { .once = 1 };
  if (!expected) expected = &once;
  nsai_verify_expected_update(expected, trial);
  nsa_status status = fn(trial, expected, result);
  nsai_verify_expected_fini(&once);
  return status;
}

nsa_status nsai_verify_forward(nsai_trial_run *trial, nsai_verify_expected *expected,
                               nsai_verify_result *result) {
  return verify(verify_forward, trial, expected, result);
}

nsa_status nsai_verify_compressed(nsai_trial_run *trial, nsai_verify_expected *expected,
                                  nsai_verify_result *result) {
  return verify(verify_compressed, trial, expected, result);
}

nsa_status nsai_verify_dense(nsai_trial_run *trial, nsai_verify_expected *expected,
                             nsai_verify_result *result) {
  return verify(verify_dense, trial, expected, result);
}
