/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Gradients of the attention of one (token, KV group): recomputes the probabilities of the
 * forward, then evaluates for each branch the formulas of include/nsa/backward.h as products
 * over tiles of keys.
 */
#include "reference/backward.h"

#include <math.h>
#include <string.h>

/* One branch of one (token, KV group). */
typedef struct branch_back {
  int branch;
  int64_t token, first_head;
  const nsai_ref_back *back;
  nsai_ref_scratch *scratch;
  nsai_ref_back_scratch *own;
  nsai_ref_keys keys;
  int64_t range_count;
  double *d_k, *d_v; /* rows of the sequence and KV head; NULL: not needed */
} branch_back;

static int64_t heads_of(const nsai_ref_problem *problem) {
  return problem->model->heads / problem->model->kv_heads;
}

/* Loads the group's d_o unchanged, and q by heads. */
static void load_rows(const nsai_ref_back *back, const nsai_ref_scratch *scratch,
                      nsai_ref_back_scratch *own, int64_t token, int64_t group) {
  const nsai_ref_problem *problem = back->problem;
  const nsai_model *g = problem->model;
  const nsa_tensor *d_o = &back->grads->d_o;
  int64_t row_k = nsai_ref_lanes(g->head_dim_qk), row_v = nsai_ref_lanes(g->head_dim_v);
  for (int64_t h = 0; h < heads_of(problem); h++) {
    int64_t at = nsai_ref_offset2(d_o, token, group * heads_of(problem) + h);
    problem->ops->widen(d_o->dtype, nsai_ref_at(d_o, at), g->head_dim_v, own->d_o + h * row_v);
    for (int64_t e = 0; e < g->head_dim_qk; e++)
      own->q[h * row_k + e] = scratch->q[e * problem->lanes + h];
  }
}

/* K or V of a tile in float64. */
static const double *tile_of(const branch_back *b, bool values, nsai_ref_range tile) {
  const nsai_ref_problem *problem = b->back->problem;
  int64_t dim = values ? problem->model->head_dim_v : problem->model->head_dim_qk;
  const double *wide = values ? b->keys.v64 : b->keys.k64;
  if (wide) return wide + tile.begin * dim;
  return nsai_ref_widen_rows(problem, b->scratch, &b->keys, values ? b->keys.v : b->keys.k, dim,
                             tile);
}

/* d_scores [keys, lanes] = V . gated, one tile. */
static void tile_d_probabilities(const branch_back *b, nsai_ref_range tile, int64_t first) {
  const nsai_ref_problem *problem = b->back->problem;
  nsai_ref_dots(problem, tile.end - tile.begin, problem->model->head_dim_v, tile_of(b, true, tile),
                b->own->gated_lanes, b->own->d_scores + first * problem->lanes);
}

/* d_q [Dk, lanes] += K^T . d_scores, one tile. */
static void tile_d_q(const branch_back *b, nsai_ref_range tile, int64_t first) {
  const nsai_ref_problem *problem = b->back->problem;
  int64_t dim = problem->model->head_dim_qk;
  problem->ops->multiply(&(nsai_ref_product){ .m = dim,
                                              .k = tile.end - tile.begin,
                                              .n = problem->lanes,
                                              .a = tile_of(b, false, tile),
                                              .a_row = 1,
                                              .a_column = dim,
                                              .b = b->own->d_scores + first * problem->lanes,
                                              .b_row = problem->lanes,
                                              .c = b->own->d_q,
                                              .c_row = problem->lanes });
}

/* sums [keys, dim] += lanes [keys, G] . rows [G, dim], one tile: d_k and d_v. */
static void tile_add(const branch_back *b, nsai_ref_range tile, const double *lanes,
                     const double *rows, int64_t dim, double *sums) {
  const nsai_ref_problem *problem = b->back->problem;
  int64_t row = nsai_ref_lanes(dim);
  problem->ops->multiply(&(nsai_ref_product){ .m = tile.end - tile.begin,
                                              .k = heads_of(problem),
                                              .n = row,
                                              .a = lanes,
                                              .a_row = problem->lanes,
                                              .a_column = 1,
                                              .b = rows,
                                              .b_row = row,
                                              .c = sums + tile.begin * row,
                                              .c_row = row });
}

/* dP of all keys. */
static void d_probabilities(const branch_back *b) {
  int64_t first = 0;
  for (int64_t r = 0; r < b->range_count; r++) {
    nsai_ref_range tile, *range = &b->scratch->ranges[r];
    for (int64_t begin = range->begin; nsai_ref_next_tile(range, &begin, &tile);) {
      tile_d_probabilities(b, tile, first);
      first += tile.end - tile.begin;
    }
  }
}

/* Adds the contributions of P and dS of all keys to d_q, d_k and d_v. */
static void add_products(const branch_back *b) {
  const nsai_model *g = b->back->problem->model;
  int64_t first = 0, lanes = b->back->problem->lanes;
  for (int64_t r = 0; r < b->range_count; r++) {
    nsai_ref_range tile, *range = &b->scratch->ranges[r];
    for (int64_t begin = range->begin; nsai_ref_next_tile(range, &begin, &tile);) {
      if (b->back->grads->d_q.data) tile_d_q(b, tile, first);
      if (b->d_k)
        tile_add(b, tile, b->own->d_scores + first * lanes, b->own->q, g->head_dim_qk, b->d_k);
      if (b->d_v)
        tile_add(b, tile, b->scratch->scores + first * lanes, b->own->gated, g->head_dim_v, b->d_v);
      first += tile.end - tile.begin;
    }
  }
}

/* The gate's gradient of head h, and gate * d_o in both layouts. */
static double gate_head(const branch_back *b, int64_t h, double gate, const double *out) {
  const nsai_ref_problem *problem = b->back->problem;
  int64_t row = nsai_ref_lanes(problem->model->head_dim_v);
  const double *d_o = b->own->d_o + h * row;
  double sum = 0;
  for (int64_t e = 0; e < problem->model->head_dim_v; e++) {
    sum += d_o[e] * out[e * problem->lanes + h];
    b->own->gated[h * row + e] = b->own->gated_lanes[e * problem->lanes + h] = gate * d_o[e];
  }
  return sum;
}

/* Rounds P' = g P and dS [lanes] of a key, as operands of products are stored. */
static void round_row(const branch_back *b, const double *gates, double *p, double *d) {
  const nsai_ref_problem *problem = b->back->problem;
  for (int64_t h = 0; h < heads_of(problem); h++) p[h] *= gates[h * NSA_BRANCHES];
  nsai_ref_round(problem->stored, heads_of(problem), p);
  nsai_ref_round(problem->stored, heads_of(problem), d);
  for (int64_t h = 0; h < heads_of(problem); h++)
    if (p[h] != 0) p[h] /= gates[h * NSA_BRANCHES]; /* d_o has the gate in it */
}

/* stored: outputs that the forward has saved, where there are any, replace what is computed here. */
static void load_saved(const branch_back *b, double *out) {
  const nsai_ref_problem *problem = b->back->problem;
  const nsa_tensor *o = &problem->io->o_branch[b->branch], *lse = &problem->io->lse[b->branch];
  int64_t lanes = problem->lanes;
  for (int64_t h = 0; h < heads_of(problem); h++) {
    int64_t at = nsai_ref_offset2(o, b->token, b->first_head + h);
    for (int64_t e = 0; e < problem->model->head_dim_v && o->data; e++)
      out[e * lanes + h] = nsai_ref_load(o, at + e);
    if (!lse->data) continue;
    double saved = nsai_ref_load(lse, nsai_ref_offset2(lse, b->token, b->first_head + h));
    b->scratch->inverse[h] *= exp(b->scratch->lse[b->branch][h] - saved);
  }
}

/* One branch; `gates` and `d_gates` point to the values of the group's first head for it. */
static void run_branch(const branch_back *b, const double *gates, double *d_gates) {
  const nsai_ref_problem *problem = b->back->problem;
  nsai_ref_scratch *scratch = b->scratch;
  double *out = scratch->out[b->branch], delta[NSAI_MAX_GROUP];
  int64_t lanes = problem->lanes, heads = heads_of(problem);
  int64_t total =
      nsai_ref_probabilities(problem, scratch, &b->keys, b->range_count, scratch->lse[b->branch]);
  if (!total) return;
  nsai_ref_values(problem, scratch, &b->keys, b->range_count, out);
  if (problem->stored.dtype) load_saved(b, out);
  for (int64_t h = 0; h < heads; h++) {
    double d_gate = gate_head(b, h, gates[h * NSA_BRANCHES], out);
    d_gates[h * NSA_BRANCHES] = d_gate;
    delta[h] = gates[h * NSA_BRANCHES] * d_gate;
  }
  d_probabilities(b);
  for (int64_t i = 0; i < total; i++) {
    double *p = scratch->scores + i * lanes, *d = b->own->d_scores + i * lanes;
    for (int64_t h = 0; h < heads; h++) {
      p[h] *= scratch->inverse[h];
      d[h] = p[h] * (d[h] - delta[h]);
    }
    if (problem->stored.dtype) round_row(b, gates, p, d);
  }
  add_products(b);
}

/* Fills keys, ranges and sums of a branch. */
static void open_branch(branch_back *b, nsai_ref_position position, int64_t group) {
  const nsai_ref_problem *problem = b->back->problem;
  const nsai_model *g = problem->model;
  const nsai_ref_sequences *sequences = &problem->sequences;
  int64_t s = position.sequence, t = position.t;
  int branch = b->branch;
  int pair = g->per_branch ? branch : 0, sum = branch == NSA_CMP ? NSAI_REF_CMP_SUM : pair;
  int64_t start = branch == NSA_CMP ? sequences->blocks[s] : sequences->kv[s];
  int64_t row = group * nsai_ref_sum_rows(problem, sum) + start;
  b->range_count = 1;
  if (branch == NSA_CMP) {
    b->keys = nsai_ref_compressed_keys(problem, s, group);
    b->scratch->ranges[0] = (nsai_ref_range){ 0, nsai_ref_visible_blocks(problem, position) };
  } else {
    b->keys = (nsai_ref_keys){ .k = &problem->io->kv.k[pair],
                               .v = &problem->io->kv.v[pair],
                               .pair = pair,
                               .sequence = s,
                               .head = group };
    b->scratch->ranges[0] = (nsai_ref_range){ t < g->window ? 0 : t - g->window + 1, t + 1 };
  }
  if (branch == NSA_SEL)
    b->range_count = nsai_ref_selected_ranges(problem, b->scratch, b->token, t, group);
  b->d_k = b->back->d_k[sum];
  b->d_v = b->back->d_v[sum];
  if (b->d_k) b->d_k += row * nsai_ref_lanes(g->head_dim_qk);
  if (b->d_v) b->d_v += row * nsai_ref_lanes(g->head_dim_v);
}

static void store_d_q(const nsai_ref_back *back, const nsai_ref_back_scratch *own, int64_t token,
                      int64_t group) {
  const nsai_ref_problem *problem = back->problem;
  const nsa_tensor *d_q = &back->grads->d_q;
  if (!d_q->data) return;
  for (int64_t h = 0; h < heads_of(problem); h++) {
    int64_t at = nsai_ref_offset2(d_q, token, group * heads_of(problem) + h);
    for (int64_t e = 0; e < problem->model->head_dim_qk; e++)
      nsai_ref_grad(back, d_q, at + e, problem->scale * own->d_q[e * problem->lanes + h]);
  }
}

void nsai_ref_attend_back(const nsai_ref_back *back, int worker, int64_t token, int64_t group) {
  const nsai_ref_problem *problem = back->problem;
  nsai_ref_scratch *scratch = &back->scratch[worker];
  nsai_ref_back_scratch *own = &back->own[worker];
  nsai_ref_position position = nsai_ref_sequences_find(&problem->sequences, token);
  int64_t gate =
      token * nsai_ref_gate_row(problem->model) + group * heads_of(problem) * NSA_BRANCHES;
  int64_t size = problem->model->head_dim_qk * problem->lanes;
  memset(own->d_q, 0, (size_t)size * sizeof *own->d_q);
  if (position.t >= 0) {
    nsai_ref_load_query(problem, scratch, token, group);
    load_rows(back, scratch, own, token, group);
    for (int branch = 0; branch < NSA_BRANCHES; branch++) {
      branch_back b = { .branch = branch,
                        .token = token,
                        .first_head = group * heads_of(problem),
                        .back = back,
                        .scratch = scratch,
                        .own = own };
      if (!problem->run[branch]) continue;
      open_branch(&b, position, group);
      run_branch(&b, back->gates + gate + branch, back->d_gates + gate + branch);
    }
  }
  store_d_q(back, own, token, group);
}
