/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A decode over a cache whose raw pages lie on several ranks, in two passes. The first computes every
 * branch, of the selected one over this rank's blocks alone, and keeps the results. Then the ranks
 * exchange partial results of the selected branch, and the second pass adds them up, in the order of
 * ranks:
 *
 *   a partial result of a head   o [Dv], m, s     sum_i e^(x_i - m) v_i, a reference, sum_i e^(x_i - m)
 *   of all                       M = max m_r,  S = sum_r e^(m_r - M) s_r,
 *                                o = sum_r e^(m_r - M) o_r / S,  lse = M + log S
 *
 * in float32, and m is the rounded log-sum-exp, so that s is near 1. Without keys m is -inf, s is 0.
 */
#include "reference/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define KEPT 2 /* branches whose results are kept */
static const int kept_branches[KEPT] = { NSA_CMP, NSA_WIN };

/* Floats of a head's partial result. */
static int64_t partial_size(const nsai_ref_problem *problem) {
  return problem->model->head_dim_v + 2;
}

/* Doubles of a branch's results of one token and KV group: those of a scratch. */
static int64_t kept_size(const nsai_ref_problem *problem) {
  return (problem->model->head_dim_v + 1) * problem->lanes;
}

static int64_t rank_size(const nsai_ref_problem *problem, const nsai_ref_partials *partials) {
  return partials->tokens * problem->model->heads * partial_size(problem);
}

nsa_status nsai_ref_partials_init(nsai_ref_partials *partials, const nsai_ref_problem *problem) {
  const nsai_reference_ranks *ranks = problem->cache->ranks;
  *partials = (nsai_ref_partials){ .tokens = problem->io->q.shape[0] };
  const int64_t size = rank_size(problem, partials);
  const int64_t kept = partials->tokens * problem->model->kv_heads * KEPT * kept_size(problem);
  const size_t bytes = (size_t)(size * ranks->count) * sizeof(float);
  partials->kept = nsai_ref_doubles(kept);
  partials->all = calloc(1, bytes + 1); /* rows of no sequence stay zero */
  if (partials->kept && partials->all) {
    partials->own = partials->all + size * ranks->rank;
    return NSA_OK;
  }
  return nsai_fail_nomem("partial results of a decode over ranks",
                         bytes + (size_t)kept * sizeof(double));
}

void nsai_ref_partials_fini(nsai_ref_partials *partials) {
  free(partials->kept);
  free(partials->all);
}

static double *kept_at(const nsai_ref_partials *partials, const nsai_ref_problem *problem,
                       int64_t token, int64_t group) {
  return partials->kept + (token * problem->model->kv_heads + group) * KEPT * kept_size(problem);
}

/* This rank's part of a head. */
static float *partial_at(const nsai_ref_problem *problem, float *partials, int64_t token,
                         int64_t head) {
  return partials + (token * problem->model->heads + head) * partial_size(problem);
}

static void store_partial(const nsai_ref_problem *problem, const nsai_ref_scratch *scratch,
                          int64_t lane, float *out) {
  const int64_t dim = problem->model->head_dim_v;
  const double lse = scratch->lse[NSA_SEL][lane];
  const float reference = (float)lse;
  const double sum = lse == -INFINITY ? 0 : exp(lse - (double)reference);
  for (int64_t e = 0; e < dim; e++)
    out[e] = (float)(scratch->out[NSA_SEL][e * problem->lanes + lane] * sum);
  out[dim] = reference;
  out[dim + 1] = (float)sum;
}

void nsai_ref_partials_store(const nsai_ref_partials *partials, const nsai_ref_problem *problem,
                             const nsai_ref_scratch *scratch, int64_t token, int64_t group) {
  const int64_t heads = problem->model->heads / problem->model->kv_heads, lanes = problem->lanes;
  const int64_t values = problem->model->head_dim_v * lanes;
  double *kept = kept_at(partials, problem, token, group);
  for (int i = 0; i < KEPT; i++, kept += kept_size(problem)) {
    memcpy(kept, scratch->out[kept_branches[i]], (size_t)values * sizeof(double));
    memcpy(kept + values, scratch->lse[kept_branches[i]], (size_t)lanes * sizeof(double));
  }
  for (int64_t h = 0; h < heads; h++)
    store_partial(problem, scratch, h,
                  partial_at(problem, partials->own, token, group * heads + h));
}

nsa_status nsai_ref_partials_gather(const nsai_ref_partials *partials,
                                    const nsai_ref_problem *problem) {
  const nsai_reference_ranks *ranks = problem->cache->ranks;
  const uint64_t bytes = (uint64_t)rank_size(problem, partials) * sizeof(float);
  return bytes ? ranks->gather(ranks->user, partials->own, partials->all, bytes) : NSA_OK;
}

/* Adds up all ranks' parts of a head into a lane of the scratch. */
static void merge_head(const nsai_ref_partials *partials, const nsai_ref_problem *problem,
                       nsai_ref_scratch *scratch, int64_t token, int64_t head, int64_t lane) {
  const int64_t dim = problem->model->head_dim_v, lanes = problem->lanes;
  const int32_t count = problem->cache->ranks->count;
  double *out = scratch->out[NSA_SEL] + lane, most = -INFINITY, sum = 0;
  const float *part = partial_at(problem, partials->all, token, head);
  const int64_t step = rank_size(problem, partials);
  for (int32_t r = 0; r < count; r++)
    if (part[r * step + dim] > most) most = part[r * step + dim];
  for (int64_t e = 0; e < dim; e++) out[e * lanes] = 0;
  for (int32_t r = 0; r < count; r++, part += step) {
    if (part[dim + 1] == 0) continue; /* no keys; a sum that is NaN counts */
    const double weight = exp((double)part[dim] - most);
    sum += weight * part[dim + 1];
    for (int64_t e = 0; e < dim; e++) out[e * lanes] += weight * part[e];
  }
  scratch->lse[NSA_SEL][lane] = sum == 0 ? -INFINITY : most + log(sum);
  for (int64_t e = 0; sum != 0 && e < dim; e++) out[e * lanes] /= sum;
}

void nsai_ref_partials_load(const nsai_ref_partials *partials, const nsai_ref_problem *problem,
                            nsai_ref_scratch *scratch, int64_t token, int64_t group) {
  const int64_t heads = problem->model->heads / problem->model->kv_heads, lanes = problem->lanes;
  const int64_t values = problem->model->head_dim_v * lanes;
  const double *kept = kept_at(partials, problem, token, group);
  for (int i = 0; i < KEPT; i++, kept += kept_size(problem)) {
    memcpy(scratch->out[kept_branches[i]], kept, (size_t)values * sizeof(double));
    memcpy(scratch->lse[kept_branches[i]], kept + values, (size_t)lanes * sizeof(double));
  }
  for (int64_t h = 0; h < heads; h++)
    merge_head(partials, problem, scratch, token, group * heads + h, h);
}
