/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Attention of one (token, KV group): scores over a list of key ranges, softmax, values. The
 * scores of all keys are kept (keys x lanes doubles per thread), so that the maximum is exact
 * and no rescaling is needed. The importance needs all scores anyway.
 */
#include "reference/internal.h"
#include "reference/tensor.h"

#include "base/math.h"

#include <float.h>
#include <math.h>
#include <string.h>

void nsai_ref_load_query(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int64_t token,
                         int64_t group) {
  const nsai_model *g = problem->model;
  const nsa_tensor *q = &problem->io->q;
  int64_t heads = g->heads / g->kv_heads, dim = g->head_dim_qk;
  for (int64_t h = 0; h < heads; h++) {
    int64_t at = nsai_ref_offset2(q, token, group * heads + h);
    problem->ops->widen(q->dtype, nsai_ref_at(q, at), dim, scratch->tile);
    for (int64_t e = 0; e < dim; e++)
      scratch->q[e * problem->lanes + h] = scratch->tile[e] * problem->scale;
  }
}

const double *nsai_ref_widen_rows(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                                  const nsai_ref_keys *keys, const nsa_tensor *source, int64_t dim,
                                  nsai_ref_range rows) {
  for (int64_t i = rows.begin; i < rows.end; i++) {
    int64_t at = nsai_ref_token_at(problem, source, keys->pair, keys->sequence, i, keys->head);
    nsai_ref_widen_scaled(problem, source, at, keys->head, dim,
                          scratch->tile + (i - rows.begin) * dim);
  }
  nsai_ref_count_reads(problem, &(nsai_ref_reads){ .source = source,
                                                   .is_k = source == keys->k,
                                                   .branch = keys->branch,
                                                   .sequence = keys->sequence,
                                                   .head = keys->head,
                                                   .rows = rows.end - rows.begin,
                                                   .dim = dim });
  return scratch->tile;
}

bool nsai_ref_next_tile(const nsai_ref_range *range, int64_t *begin, nsai_ref_range *tile) {
  if (*begin >= range->end) return false;
  tile->begin = *begin;
  tile->end = range->end - *begin < NSAI_REF_TILE ? range->end : *begin + NSAI_REF_TILE;
  *begin = tile->end;
  return true;
}

/* Cuts doubles to the 24 bits of a float32's significand, as tensor cores cut their sums. */
static void cut_to_float(int64_t count, double *x) {
  const uint64_t kept = ~(uint64_t)0 << (DBL_MANT_DIG - FLT_MANT_DIG);
  for (int64_t i = 0; i < count; i++) {
    uint64_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    bits &= kept;
    memcpy(&x[i], &bits, sizeof bits);
  }
}

void nsai_ref_dots(const nsai_ref_problem *problem, int64_t count, int64_t dim, const double *rows,
                   const double *x, double *out) {
  int64_t lanes = problem->lanes, step = problem->stored.dtype ? 16 : dim;
  memset(out, 0, (size_t)(count * lanes) * sizeof *out);
  for (int64_t column = 0; column < dim; column += step) {
    problem->ops->multiply(&(nsai_ref_product){ .m = count,
                                                .k = nsai_smaller(step, dim - column),
                                                .n = lanes,
                                                .a = rows + column,
                                                .a_row = dim,
                                                .a_column = 1,
                                                .b = x + column * lanes,
                                                .b_row = lanes,
                                                .c = out,
                                                .c_row = lanes });
    if (problem->stored.dtype) cut_to_float(count * lanes, out);
  }
}

int64_t nsai_ref_scores(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                        const nsai_ref_keys *keys, int64_t range_count) {
  int64_t dim = problem->model->head_dim_qk, lanes = problem->lanes, total = 0;
  for (int64_t r = 0; r < range_count; r++) {
    nsai_ref_range tile;
    for (int64_t begin = scratch->ranges[r].begin;
         nsai_ref_next_tile(&scratch->ranges[r], &begin, &tile);) {
      int64_t count = tile.end - tile.begin;
      nsai_ref_dots(problem, count, dim,
                    keys->k64 ? keys->k64 + tile.begin * dim
                              : nsai_ref_widen_rows(problem, scratch, keys, keys->k, dim, tile),
                    scratch->q, scratch->scores + total * lanes);
      total += count;
    }
  }
  return total;
}

int64_t nsai_ref_probabilities(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                               const nsai_ref_keys *keys, int64_t range_count, double *lse) {
  int64_t heads = problem->model->heads / problem->model->kv_heads, lanes = problem->lanes;
  int64_t total = nsai_ref_scores(problem, scratch, keys, range_count);
  double *max = lse, *sum = scratch->inverse;
  for (int64_t h = 0; h < heads; h++) {
    max[h] = -INFINITY;
    sum[h] = 0;
  }
  for (int64_t i = 0; i < total; i++)
    for (int64_t h = 0; h < heads; h++) {
      double score = scratch->scores[i * lanes + h];
      max[h] = score > max[h] ? score : max[h];
    }
  for (int64_t i = 0; i < total; i++)
    for (int64_t h = 0; h < heads; h++) {
      double *score = &scratch->scores[i * lanes + h];
      *score = exp(*score - max[h]);
      sum[h] += *score;
    }
  if (total == 0) return 0;
  for (int64_t h = 0; h < heads; h++) {
    lse[h] = max[h] + log(sum[h]);
    scratch->inverse[h] = 1.0 / sum[h];
  }
  return total;
}

void nsai_ref_values(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                     const nsai_ref_keys *keys, int64_t range_count, double *out) {
  int64_t heads = problem->model->heads / problem->model->kv_heads, lanes = problem->lanes;
  int64_t dim = problem->model->head_dim_v, total = 0;
  memset(out, 0, (size_t)(dim * lanes) * sizeof *out);
  for (int64_t r = 0; r < range_count; r++) {
    nsai_ref_range tile;
    for (int64_t begin = scratch->ranges[r].begin;
         nsai_ref_next_tile(&scratch->ranges[r], &begin, &tile);) {
      int64_t count = tile.end - tile.begin;
      problem->ops->multiply(&(nsai_ref_product){
          .m = dim,
          .k = count,
          .n = lanes,
          .a = keys->v64 ? keys->v64 + tile.begin * dim
                         : nsai_ref_widen_rows(problem, scratch, keys, keys->v, dim, tile),
          .a_row = 1,
          .a_column = dim,
          .b = scratch->scores + total * lanes,
          .b_row = lanes,
          .c = out,
          .c_row = lanes });
      total += count;
    }
  }
  if (total == 0) return;
  for (int64_t e = 0; e < dim; e++)
    for (int64_t h = 0; h < heads; h++) out[e * lanes + h] *= scratch->inverse[h];
}

/* The result of a branch that is off, or of a row without keys. */
static void clear(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int branch) {
  int64_t size = problem->model->head_dim_v * problem->lanes;
  memset(scratch->out[branch], 0, (size_t)size * sizeof(double));
  for (int64_t h = 0; h < problem->lanes; h++) scratch->lse[branch][h] = -INFINITY;
}

/* Softmax attention over the raw tokens of scratch->ranges. */
static void attend_tokens(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int branch,
                          nsai_ref_position position, int64_t group, int64_t range_count) {
  const nsa_kv *kv = &problem->io->kv;
  int pair = problem->model->per_branch ? branch : 0;
  nsai_ref_keys keys = { .k = &kv->k[pair],
                         .v = &kv->v[pair],
                         .branch = branch,
                         .pair = pair,
                         .sequence = position.sequence,
                         .head = group };
  nsai_ref_probabilities(problem, scratch, &keys, range_count, scratch->lse[branch]);
  nsai_ref_values(problem, scratch, &keys, range_count, scratch->out[branch]);
}

/* The compressed branch, and the choice of blocks. */
static void attend_compressed(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                              int64_t token, nsai_ref_position position, int64_t group) {
  const nsai_model *g = problem->model;
  /* Where every candidate is chosen, nothing ranks them. */
  const bool ranks = problem->select && position.t / g->select_block + 1 > g->select_count;
  if (ranks && g->by == NSAI_BY_INDEX)
    nsai_ref_index_rank(problem, scratch, token, position, group);
  else if (problem->run[NSA_CMP] || ranks)
    nsai_ref_rank(problem, scratch, position, group, ranks);
  if (problem->run[NSA_CMP]) {
    const nsai_ref_keys keys = nsai_ref_compressed_keys(problem, position.sequence, group);
    nsai_ref_values(problem, scratch, &keys, 1, scratch->out[NSA_CMP]);
  } else {
    clear(problem, scratch, NSA_CMP);
  }
  if (problem->select) nsai_reference_select_row(g, position.t, scratch->importance, scratch->idx);
}

void nsai_ref_attend(const nsai_ref_problem *problem, nsai_ref_scratch *scratch, int64_t token,
                     nsai_ref_position position, int64_t group) {
  int64_t t = position.t, window = problem->model->window;
  if (t < 0) {
    for (int b = 0; b < NSA_BRANCHES; b++) clear(problem, scratch, b);
    if (problem->select)
      nsai_reference_select_row(problem->model, t, scratch->importance, scratch->idx);
    return;
  }
  nsai_ref_load_query(problem, scratch, token, group);
  if (problem->run[NSA_CMP] || problem->select)
    attend_compressed(problem, scratch, token, position, group);
  else
    clear(problem, scratch, NSA_CMP);
  if (problem->run[NSA_SEL]) {
    int64_t count = nsai_ref_selected_ranges(problem, scratch, token, t, group);
    attend_tokens(problem, scratch, NSA_SEL, position, group, count);
  } else {
    clear(problem, scratch, NSA_SEL);
  }
  if (problem->run[NSA_WIN]) {
    scratch->ranges[0] = (nsai_ref_range){ t < window ? 0 : t - window + 1, t + 1 };
    attend_tokens(problem, scratch, NSA_WIN, position, group, 1);
  } else {
    clear(problem, scratch, NSA_WIN);
  }
}

void nsai_ref_attend_dense(const nsai_ref_problem *problem, nsai_ref_scratch *scratch,
                           int64_t token, nsai_ref_position position, int64_t group) {
  if (position.t < 0) {
    clear(problem, scratch, 0);
    return;
  }
  nsai_ref_load_query(problem, scratch, token, group);
  scratch->ranges[0] = (nsai_ref_range){ 0, position.t + 1 };
  attend_tokens(problem, scratch, 0, position, group, 1);
}
