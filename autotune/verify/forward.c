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
static nsa_status judge_compressed(nsai_trial_bench *bench, nsai_trial_truth *truth,
                                   nsai_trial_result *result) {
  static const char *const names[2] = { "k_cmp", "v_cmp" };
  const nsa_tensor *want;
  NSAI_TRY(nsai_trial_truth_compressed(truth, bench, &want));
  for (int i = 0; i < 2; i++) {
    nsa_tensor got = nsai_trial_data_view(&bench->data, i ? NSAI_TRIAL_V_CMP : NSAI_TRIAL_K_CMP,
                                          NSAI_TRIAL_HOST);
    got.shape[0] = bench->data.blocks;
    nsai_trial_compare_tensors(names[i],
                               nsai_trial_tolerance_of(NSAI_TRIAL_STAGE, bench->c->geometry.dtype),
                               &got, &want[i], result);
  }
  return NSA_OK;
}

/* ---- selection ------------------------------------------------------------------------------- */

/* Every row is well formed, whatever the importance. */
static void judge_form(nsai_trial_bench *bench, nsai_trial_result *result) {
  const nsai_trial_case *c = bench->c;
  nsa_tensor index = nsai_trial_data_view(&bench->data, NSAI_TRIAL_INDEX, NSAI_TRIAL_HOST);
  for (int64_t t = 0; t < bench->data.tokens; t++) {
    int32_t sequence;
    int64_t position;
    nsai_trial_data_locate(c, t, &sequence, &position);
    for (int32_t h = 0; h < c->geometry.kv_heads; h++) {
      const char *complaint = nsai_trial_selection_malformed(&c->geometry, position,
                                                             nsai_trial_index_row(&index, t, h));
      if (!complaint) continue;
      nsai_trial_fail(result, "block_idx token %lld (position %lld) KV head %d: %s", (long long)t,
                      (long long)position, h, complaint);
      return;
    }
  }
}

/* Whether the importance that a probe tells is the one that was chosen by: not that of another
 * kernel's, where one covers the stage. The CPU device chooses by float64, of which it tells the
 * rounding. */
static bool tells_own(const nsai_trial_bench *bench) {
  return bench->data.device->driver &&
         !nsai_is_covered(&bench->plan.plan->choice, NSAI_STAGE_IMPORTANCE);
}

/* One probed row and KV head. Returns the distance from the cut by the reference's importance. */
static double judge_row(nsai_trial_bench *bench, int64_t token, int32_t head, const float *own,
                        const double *reference, nsai_trial_result *result) {
  const nsai_geometry *g = &bench->c->geometry;
  nsa_tensor index = nsai_trial_data_view(&bench->data, NSAI_TRIAL_INDEX, NSAI_TRIAL_HOST);
  const int32_t *row = nsai_trial_index_row(&index, token, head);
  int32_t sequence, exact[NSAI_MAX_SELECTED];
  int64_t position, candidates;
  nsai_trial_data_locate(bench->c, token, &sequence, &position);
  if (position < 0) return 0;
  candidates = position / g->select_block + 1;
  double *widened = malloc((size_t)candidates * sizeof *widened);
  if (!widened) return INFINITY;
  for (int64_t j = 0; j < candidates; j++) widened[j] = (double)own[j];
  nsai_reference_select_row(g, position, widened, exact);
  free(widened);
  if (tells_own(bench) && memcmp(exact, row, (size_t)g->select_count * sizeof *row))
    nsai_trial_fail(result,
                    "block_idx token %lld KV head %d is not the top-n of its own importance",
                    (long long)token, head);
  return nsai_trial_selection_distance(g, position, row, reference);
}

/* Importance and choice at the probed rows. */
static nsa_status judge_selection(nsai_trial_bench *bench, nsai_trial_truth *truth,
                                  nsai_trial_result *result) {
  const nsai_trial_data *d = &bench->data;
  const nsai_geometry *g = &bench->c->geometry;
  nsa_tensor rows = nsai_trial_data_view(d, NSAI_TRIAL_PROBE_ROWS, NSAI_TRIAL_HOST),
             own = nsai_trial_data_view(d, NSAI_TRIAL_PROBE, NSAI_TRIAL_HOST);
  int64_t blocks = d->select_blocks, per_row = g->kv_heads * blocks, swapped = 0;
  double error = 0, norm = 0, distance = 0;
  const double *want;
  NSAI_TRY(nsai_trial_truth_importance(truth, bench, &want));
  for (int64_t i = 0; i < d->probe_count; i++)
    for (int32_t h = 0; h < g->kv_heads; h++) {
      const double *reference = want + i * per_row + h * blocks;
      const float *got = (const float *)own.data + i * own.stride[0] + h * own.stride[1];
      for (int64_t j = 0; j < blocks; j++) {
        error += pow((double)got[j] - reference[j], 2);
        norm += reference[j] * reference[j];
      }
      int64_t token = ((const int32_t *)rows.data)[i];
      double far = judge_row(bench, token, h, got, reference, result);
      swapped += far > 0;
      distance = fmax(distance, far);
    }
  nsai_trial_record(result, "importance", norm > 0 ? sqrt(error / norm) : sqrt(error),
                    nsai_trial_tolerance_of(NSAI_TRIAL_STAGE, g->dtype).relative);
  nsai_trial_record(result, "cut", distance, d->device->driver ? NSAI_TRIAL_CUT_TOLERANCE : 0);
  nsai_trial_record(result, "swapped", (double)swapped, INFINITY);
  return NSA_OK;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* A slot's search for NaN and inf: the lowest bad row. */
typedef struct finite_search {
  nsa_tensor t;
  int lse; /* 1: -inf is fine */
  atomic_llong bad;
} finite_search;

static void search_row(void *user, int64_t row) {
  finite_search *s = user;
  int64_t heads = s->t.ndim == 3 ? s->t.shape[1] : 1, width = s->t.shape[s->t.ndim - 1];
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < width; i++) {
      int64_t at = row * s->t.stride[0] + (s->t.ndim == 3 ? h * s->t.stride[1] : 0) + i;
      float x = nsai_trial_load(&s->t, at);
      if (isfinite(x) || (s->lse && x == -INFINITY)) continue;
      long long lowest = atomic_load(&s->bad);
      while (row < lowest && !atomic_compare_exchange_weak(&s->bad, &lowest, row)) {}
      return;
    }
}

/* All written rows are finite, also those that are not compared. */
static void judge_finite(const nsai_trial_bench *bench, nsai_trial_result *result) {
  for (int slot = NSAI_TRIAL_O; slot < NSAI_TRIAL_INDEX; slot++) {
    finite_search s = { .t = nsai_trial_data_view(&bench->data, slot, NSAI_TRIAL_HOST),
                        .lse = slot >= NSAI_TRIAL_LSE };
    if (!s.t.data) continue;
    atomic_init(&s.bad, INT64_MAX);
    nsai_trial_parallel(bench->threads, bench->data.tokens, search_row, &s);
    if (atomic_load(&s.bad) != INT64_MAX)
      nsai_trial_fail(result, "%s token %lld is not finite", nsai_trial_slot_name(slot),
                      atomic_load(&s.bad));
  }
}

static void judge_stages(const nsai_trial_bench *bench, const nsai_reference_rows *rows,
                         nsai_trial_result *result) {
  char name[24];
  for (int b = 0; b < NSA_BRANCHES; b++) {
    nsa_tensor lse = nsai_trial_data_view(&bench->data, NSAI_TRIAL_LSE + b, NSAI_TRIAL_HOST);
    nsa_tensor o = nsai_trial_data_view(&bench->data, NSAI_TRIAL_O_BRANCH + b, NSAI_TRIAL_HOST);
    if (!lse.data) continue;
    snprintf(name, sizeof name, "o_branch[%d]", b);
    nsai_trial_comparison x = {
      name, bench->c, NSAI_TRIAL_STAGE, &o, rows, rows->o_branch[b], NULL
    };
    nsai_trial_compare_rows(&x, result);
    snprintf(name, sizeof name, "lse[%d]", b);
    nsai_trial_compare_lse(name, &lse, rows, rows->lse[b], result);
  }
}

static nsa_status judge_forward(nsai_trial_bench *bench, nsai_trial_truth *truth,
                                nsai_trial_result *result) {
  const nsai_reference_rows *stage, *whole;
  nsa_tensor o = nsai_trial_data_view(&bench->data, NSAI_TRIAL_O, NSAI_TRIAL_HOST);
  judge_finite(bench, result);
  if (nsai_trial_data_has(&bench->data, NSAI_TRIAL_K_CMP))
    NSAI_TRY(judge_compressed(bench, truth, result));
  if (nsai_trial_data_has(&bench->data, NSAI_TRIAL_INDEX)) judge_form(bench, result);
  /* Indices out of range would lead the reference out of its tensors. */
  if (result->outcome == NSAI_TRIAL_FAILED || !bench->token_count) return NSA_OK;
  if (nsai_trial_data_has(&bench->data, NSAI_TRIAL_PROBE))
    NSAI_TRY(judge_selection(bench, truth, result));
  NSAI_TRY(nsai_trial_truth_stage(truth, bench, &stage));
  judge_stages(bench, stage, result);
  NSAI_TRY(nsai_trial_truth_whole(truth, bench, &whole));
  nsai_trial_comparison x = { "o", bench->c, NSAI_TRIAL_WHOLE, &o, whole, whole->o, stage->o };
  nsai_trial_compare_rows(&x, result);
  return NSA_OK;
}

static nsa_status judge_dense(nsai_trial_bench *bench, nsai_trial_truth *truth,
                              nsai_trial_result *result) {
  const nsai_reference_rows *rows;
  nsa_tensor o = nsai_trial_data_view(&bench->data, NSAI_TRIAL_O, NSAI_TRIAL_HOST),
             lse = nsai_trial_data_view(&bench->data, NSAI_TRIAL_LSE, NSAI_TRIAL_HOST);
  judge_finite(bench, result);
  NSAI_TRY(nsai_trial_truth_dense(truth, bench, &rows));
  nsai_trial_comparison x = { "o", bench->c, NSAI_TRIAL_STAGE, &o, rows, rows->o, NULL };
  nsai_trial_compare_rows(&x, result);
  nsai_trial_compare_lse("lse", &lse, rows, rows->lse[0], result);
  return NSA_OK;
}

/* ---- with a truth or without ----------------------------------------------------------------- */

static nsa_status
judge(nsa_status (*fn)(nsai_trial_bench *, nsai_trial_truth *, nsai_trial_result *),
      nsai_trial_bench *bench, nsai_trial_truth *truth, nsai_trial_result *result) {
  nsai_trial_truth once = { .once = 1 };
  if (!truth) truth = &once;
  nsai_trial_truth_look(truth, bench);
  nsa_status status = fn(bench, truth, result);
  nsai_trial_truth_fini(&once);
  return status;
}

nsa_status nsai_trial_judge_forward(nsai_trial_bench *bench, nsai_trial_truth *truth,
                                    nsai_trial_result *result) {
  return judge(judge_forward, bench, truth, result);
}

nsa_status nsai_trial_judge_compressed(nsai_trial_bench *bench, nsai_trial_truth *truth,
                                       nsai_trial_result *result) {
  return judge(judge_compressed, bench, truth, result);
}

nsa_status nsai_trial_judge_dense(nsai_trial_bench *bench, nsai_trial_truth *truth,
                                  nsai_trial_result *result) {
  return judge(judge_dense, bench, truth, result);
}
