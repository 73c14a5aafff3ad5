/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/compare.h"

#include "base/math.h"
#include "verify/inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rounding a result once to bf16 causes a relative error of 2^-9 / sqrt(3) * 1.4 = 1.6e-3 in the
 * norm; to fp16, an eighth of that. A stage also rounds P before P V (an error of the same size,
 * averaged over keys). The complete forward adds the rounding of the compressed keys and values. */
static const nsai_verify_tolerance tolerances[NSAI_VERIFY_MEASURES][2] = {
  [NSAI_VERIFY_STAGE] = { { 4e-3, 1e-3 }, { 1e-3, 2.5e-4 } },
  [NSAI_VERIFY_WHOLE] = { { 6e-3, 1.5e-3 }, { 1.5e-3, 4e-4 } },
  [NSAI_VERIFY_GRADIENT] = { { 8e-3, 0 }, { 2e-3, 0 } }, /* P, dS and the result are rounded */
};

nsai_verify_tolerance nsai_verify_tolerance_of(nsai_verify_measure measure, int32_t dtype) {
  return tolerances[measure][dtype == NSA_F16];
}

/* ---- sums per group -------------------------------------------------------------------------- */

/* One (sequence, head): sums of squares. */
typedef struct group {
  double error, plain, norm;
  double worst; /* largest |got - want| and where */
  double got, want;
  int64_t token;
  int32_t dim;
} group;

typedef struct sums {
  double error, magnitude; /* of absolute values */
  int64_t count;
} sums;

/* Adds one element; returns 0 when one is finite and the other is not. */
static int add(group *g, sums *s, double got, double want, int64_t token, int32_t dim) {
  if (!isfinite(got) || !isfinite(want)) return (isnan(got) && isnan(want)) || got == want;
  double error = fabs(got - want);
  g->error += error * error;
  g->norm += want * want;
  if (error >= g->worst) {
    g->worst = error;
    g->got = got;
    g->want = want;
    g->token = token;
    g->dim = dim;
  }
  s->error += error;
  s->magnitude += fabs(want);
  s->count++;
  return 1;
}

static double ratio(double error, double norm) {
  return norm > 0 ? sqrt(error / norm) : error > 0 ? INFINITY : 0;
}

/* Records the worst of `count` groups, `heads` per sequence. */
static void verify_groups(const char *name, nsai_verify_tolerance tolerance, const group *groups,
                          int64_t count, int32_t heads, nsai_verify_result *result) {
  double worst = -1, worst_limit = tolerance.relative, worst_error = 0;
  int64_t at = 0;
  for (int64_t i = 0; i < count; i++) {
    double error = ratio(groups[i].error, groups[i].norm);
    double limit = fmax(tolerance.relative, 2 * ratio(groups[i].plain, groups[i].norm));
    if (groups[i].norm == 0 && groups[i].error == 0) limit = tolerance.relative;
    if (error / limit > worst) {
      worst = error / limit;
      worst_error = error;
      worst_limit = limit;
      at = i;
    }
  }
  nsai_verify_add_figure(result, name, worst_error, worst_limit);
  if (!(worst_error <= worst_limit))
    nsai_verify_fail(result,
                     "%s sequence %d head %d: worst at token %lld dim %d: got %.9g, want %.9g",
                     name, (int)(at / heads), (int)(at % heads), (long long)groups[at].token,
                     groups[at].dim, groups[at].got, groups[at].want);
}

/* The mean error, absolute at unit variance. Outputs over few keys are as large as the values,
 * and there the rounding on storage is relative; hence the second term. */
static void verify_mean(const char *name, nsai_verify_tolerance tolerance, const sums *s,
                        nsai_verify_result *result) {
  char label[24];
  if (!s->count) return;
  double mean = s->error / (double)s->count, magnitude = s->magnitude / (double)s->count;
  snprintf(label, sizeof label, "%.18s.mean", name);
  nsai_verify_add_figure(result, label, mean,
                         fmax(tolerance.mean_abs, tolerance.relative * magnitude));
}

void nsai_verify_compare_rows(const nsai_verify_comparison *x, nsai_verify_result *result) {
  const nsa_tensor *t = x->got;
  int32_t heads = x->c->model.heads, width = (int32_t)t->shape[2];
  int64_t count = (int64_t)x->c->num_seqs * heads, token_end = 0;
  nsai_verify_tolerance tolerance = nsai_verify_tolerance_of(x->measure, x->c->model.dtype);
  group *groups = calloc((size_t)count, sizeof *groups);
  sums s = { 0 };
  int32_t sequence = -1;
  if (!groups) {
    nsai_verify_fail(result, "out of memory");
    return;
  }
  for (int64_t r = 0; r < x->rows->count; r++) {
    int64_t token = x->rows->token[r];
    while (token >= token_end) token_end += x->c->q_len[++sequence];
    group *g = &groups[sequence * heads + x->rows->head[r]];
    int64_t offset = token * t->stride[0] + x->rows->head[r] * t->stride[1];
    for (int32_t i = 0; i < width; i++) {
      double got = (double)nsai_verify_load(t, offset + i), want = x->want[r * width + i];
      if (!add(g, &s, got, want, token, i)) {
        nsai_verify_fail(result, "%s token %lld head %d dim %d: got %.9g, want %.9g", x->name,
                         (long long)token, x->rows->head[r], i, got, want);
        goto done;
      }
      if (x->plain) g->plain += pow(x->plain[r * width + i] - want, 2);
    }
  }
  verify_groups(x->name, tolerance, groups, count, heads, result);
  verify_mean(x->name, tolerance, &s, result);
done:
  free(groups);
}

void nsai_verify_compare_tensors(const char *name, nsai_verify_tolerance tolerance,
                                 const nsa_tensor *got, const nsa_tensor *want,
                                 nsai_verify_result *result) {
  int32_t heads = (int32_t)got->shape[1];
  group *groups = calloc((size_t)heads, sizeof *groups);
  sums s = { 0 };
  if (!groups) {
    nsai_verify_fail(result, "out of memory");
    return;
  }
  for (int64_t row = 0; row < got->shape[0]; row++)
    for (int32_t h = 0; h < heads; h++)
      for (int32_t i = 0; i < got->shape[2]; i++) {
        double a = nsai_verify_at(got, row, h, i), b = nsai_verify_at(want, row, h, i);
        if (add(&groups[h], &s, a, b, row, i)) continue;
        nsai_verify_fail(result, "%s row %lld head %d dim %d: got %.9g, want %.9g", name,
                         (long long)row, h, i, a, b);
        goto done;
      }
  verify_groups(name, tolerance, groups, heads, heads, result);
  verify_mean(name, tolerance, &s, result);
done:
  free(groups);
}

void nsai_verify_compare_lse(const char *name, const nsa_tensor *got,
                             const nsai_reference_rows *rows, const double *want,
                             nsai_verify_result *result) {
  double worst = 0;
  int64_t at = 0;
  for (int64_t r = 0; r < rows->count; r++) {
    double x = (double)((const float *)got->data)[rows->token[r] * got->stride[0] + rows->head[r]];
    double error = x == want[r] ? 0 : fabs(x - want[r]) / fmax(1, fabs(want[r]));
    if (!isfinite(error)) error = INFINITY; /* NaN, or one of them is inf */
    if (error > worst) worst = error, at = r;
  }
  nsai_verify_add_figure(result, name, worst, NSAI_VERIFY_LSE_TOLERANCE);
  if (worst > NSAI_VERIFY_LSE_TOLERANCE)
    nsai_verify_fail(
        result, "%s token %lld head %d: got %.9g, want %.9g", name, (long long)rows->token[at],
        rows->head[at],
        (double)((const float *)got->data)[rows->token[at] * got->stride[0] + rows->head[at]],
        want[at]);
}

/* The sum of squares of a head's error in plain computation `draw`. A draw rounds at random, which has
 * twice the variance of rounding to nearest. */
static double plain_error(const nsai_verify_gradient *x, int64_t h, int draw) {
  double sum = 0;
  for (int64_t r = x->begin; r < x->begin + x->rows; r++)
    for (int32_t i = 0; i < x->want->shape[2]; i++) {
      double error = nsai_verify_at(x->plain[draw], r, h, i) - nsai_verify_at(x->want, r, h, i);
      sum += error * error;
    }
  return draw ? sum / 2 : sum;
}

/* Sums one head. Returns 0 and stores the position in `g` where `got` is not finite. */
static int add_gradient(const nsai_verify_gradient *x, int64_t h, group *g) {
  sums unused = { 0 };
  *g = (group){ .worst = -1 };
  for (int64_t r = x->begin; r < x->begin + x->rows; r++)
    for (int32_t i = 0; i < x->want->shape[2]; i++) {
      double got = nsai_verify_at(x->got, r, h, i), want = nsai_verify_at(x->want, r, h, i);
      if (!isfinite(got) || !add(g, &unused, got, want, r, i)) {
        *g = (group){ .got = got, .want = want, .token = r, .dim = i };
        return 0;
      }
    }
  for (int draw = 0; x->plain[draw]; draw++) g->plain = fmax(g->plain, plain_error(x, h, draw));
  return 1;
}

void nsai_verify_compare_gradient(const nsai_verify_gradient *x, nsai_verify_result *result) {
  double least = x->floor * x->floor * (double)(x->rows * x->want->shape[2]);
  for (int64_t h = 0; h < x->want->shape[1]; h++) {
    group g;
    int finite = add_gradient(x, h, &g);
    double norm = fmax(g.norm, least),
           limit = fmax(x->tolerance.relative, 2 * ratio(g.plain, norm));
    double error = finite ? ratio(g.error, norm) : INFINITY;
    /* Recorded as a fraction of the error allowed here. */
    nsai_verify_add_figure(result, x->name, error / limit * x->tolerance.relative,
                           x->tolerance.relative);
    if (!(error <= limit))
      nsai_verify_fail(
          result,
          "%s head %lld rows %lld..: off by %.3g, the plain computation by %.3g; worst "
          "row %lld column %d: got %g, want %g",
          x->name, (long long)h, (long long)x->begin, error, ratio(g.plain, norm),
          (long long)g.token, g.dim, g.got, g.want);
  }
}

/* ---- selection ------------------------------------------------------------------------------- */

static int contains(const int32_t *row, int32_t n, int32_t block) {
  for (int32_t i = 0; i < n && row[i] >= 0; i++)
    if (row[i] == block) return 1;
  return 0;
}

const char *nsai_verify_selection_malformed(const nsai_model *g, int64_t t, const int32_t *row) {
  int64_t candidates = t < 0 ? 0 : t / g->select_block + 1;
  int64_t expected = nsai_smaller(candidates, g->select_count);
  for (int32_t i = 0; i < g->select_count; i++) {
    if (i >= expected) {
      if (row[i] != -1) return "more blocks than there are candidates, or no -1 behind them";
      continue;
    }
    if (row[i] < 0) return "fewer blocks than the rule takes";
    if (row[i] >= candidates) return "a block after the current one";
    if (i && row[i] <= row[i - 1]) return "not ascending";
  }
  for (int64_t j = 0; j < candidates; j++)
    if ((j < g->select_init || j >= candidates - g->select_local) &&
        !contains(row, g->select_count, (int32_t)j))
      return "a forced block is missing";
  return NULL;
}

/* fp32 flushes probabilities below 2^-126 (1e-38) to zero, while float64 still distinguishes
 * them. Differences this small are ignored. */
#define NEGLIGIBLE 1e-30

static double from_cut(double importance, double cut, double scale) {
  double distance = fabs(importance - cut);
  return distance < NEGLIGIBLE ? 0 : distance / fmax(scale, fmax(importance, cut));
}

/* What distances of index scores are relative to; 0: to the importance, which is no less than 0. */
static double scale_of(const nsai_model *g, int64_t t, const double *importance) {
  double scale = 0;
  for (int64_t j = 0; g->by == NSAI_BY_INDEX && j <= t / g->select_block; j++)
    scale = fmax(scale, fabs(importance[j]));
  return scale;
}

double nsai_verify_selection_distance(const nsai_model *g, int64_t t, const int32_t *row,
                                      const double *importance) {
  int32_t want[NSAI_MAX_SELECTED], n = g->select_count;
  double cut = INFINITY, distance = 0;
  nsai_reference_select_row(g, t, importance, want);
  if (!memcmp(want, row, (size_t)n * sizeof *row)) return 0;
  const double scale = scale_of(g, t, importance);
  for (int32_t i = 0; i < n && want[i] >= 0; i++) {
    int forced = want[i] < g->select_init || want[i] > t / g->select_block - g->select_local;
    if (!forced && importance[want[i]] < cut) cut = importance[want[i]];
  }
  for (int32_t i = 0; i < n; i++) {
    if (want[i] >= 0 && !contains(row, n, want[i]))
      distance = fmax(distance, from_cut(importance[want[i]], cut, scale));
    if (row[i] >= 0 && !contains(want, n, row[i]))
      distance = fmax(distance, from_cut(importance[row[i]], cut, scale));
  }
  return distance;
}
