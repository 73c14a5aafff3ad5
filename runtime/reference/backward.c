/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The backward pass: gates, attention, the gates' own gradients, phi, and finally the raw K and
 * V. Everything is allocated before the first output is written.
 */
#include "reference/backward.h"
#include "base/math.h"

#include <stdlib.h>

void nsai_ref_grad_rows(const nsai_ref_back *back, const nsa_tensor *x, int64_t at, int64_t rows,
                        const double *values, int64_t row) {
  if (!x->data) return;
  int64_t step = rows > 1 ? x->stride[x->ndim - 2] : 0, columns = x->shape[x->ndim - 1];
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++)
      nsai_ref_grad(back, x, at + r * step + c, values[r * row + c]);
}

/* ---- memory ---- */

static int64_t lay_out(const nsai_ref_problem *problem, int64_t keys, double *memory,
                       nsai_ref_back_scratch *own) {
  const nsai_model *g = problem->model;
  int64_t heads = g->heads / g->kv_heads, lanes = problem->lanes, used = 0;
  int64_t row_k = nsai_ref_lanes(g->head_dim_qk), row_v = nsai_ref_lanes(g->head_dim_v);
  own->q = nsai_ref_take(memory, &used, heads * row_k);
  own->d_o = nsai_ref_take(memory, &used, heads * row_v);
  own->gated = nsai_ref_take(memory, &used, heads * row_v);
  own->gated_lanes = nsai_ref_take(memory, &used, g->head_dim_v * lanes);
  own->d_scores = nsai_ref_take(memory, &used, keys * lanes);
  own->d_q = nsai_ref_take(memory, &used, g->head_dim_qk * lanes);
  return used;
}

static nsa_status take_sum(double **out, int64_t count) {
  *out = nsai_ref_doubles(count);
  return *out ? NSA_OK : nsai_fail_nomem("gradients in float64", (size_t)count * sizeof(double));
}

/* The sums over K (side 0) or V (side 1) that an output needs. */
static nsa_status take_side(nsai_ref_back *back, int side) {
  const nsai_ref_problem *problem = back->problem;
  const nsai_model *g = problem->model;
  const nsa_tensor *wanted = side ? back->grads->d_kv.v : back->grads->d_kv.k;
  double **sums = side ? back->d_v : back->d_k;
  int64_t row = nsai_ref_lanes(side ? g->head_dim_v : g->head_dim_qk) * g->kv_heads;
  for (int pair = 0; pair < NSA_BRANCHES; pair++)
    if (wanted[pair].data) NSAI_TRY(take_sum(&sums[pair], row * nsai_ref_sum_rows(problem, pair)));
  if (!nsai_ref_phi_needs(back, side)) return NSA_OK;
  return take_sum(&sums[NSAI_REF_CMP_SUM], row * nsai_ref_sum_rows(problem, NSAI_REF_CMP_SUM));
}

static nsa_status take_scratch(nsai_ref_back *back, int workers) {
  const nsai_ref_problem *problem = back->problem;
  int64_t keys = nsai_ref_most_keys(problem);
  nsai_ref_back_scratch sizes;
  int64_t size = lay_out(problem, keys, NULL, &sizes);
  NSAI_TRY(nsai_ref_scratch_create(problem, keys, workers, &back->scratch));
  back->own = calloc((size_t)workers, sizeof *back->own);
  if (!back->own) return nsai_fail_nomem("threads", (size_t)workers * sizeof *back->own);
  NSAI_TRY(take_sum(&back->memory, size * workers));
  for (int i = 0; i < workers; i++) lay_out(problem, keys, back->memory + size * i, &back->own[i]);
  return NSA_OK;
}

static nsa_status take_all(nsai_ref_back *back, int workers) {
  nsai_ref_problem *problem = back->problem;
  const nsai_ref_sequences *sequences = &problem->sequences;
  int64_t gates = sequences->q[sequences->count] * nsai_ref_gate_row(problem->model);
  NSAI_TRY(take_sum(&back->gates, gates));
  NSAI_TRY(take_sum(&back->d_gates, gates));
  for (int side = 0; side < 2; side++) NSAI_TRY(take_side(back, side));
  NSAI_TRY(nsai_ref_phi_back_prepare(back));
  NSAI_TRY(nsai_ref_gate_back_prepare(back));
  return take_scratch(back, workers);
}

static void release(nsai_ref_back *back) {
  nsai_ref_scratch_destroy(back->scratch);
  free(back->own);
  free(back->memory);
  free(back->gates);
  free(back->d_gates);
  free(back->phi);
  free(back->gate);
  for (int i = 0; i < NSAI_REF_SUMS; i++) {
    free(back->d_k[i]);
    free(back->d_v[i]);
  }
  nsai_ref_problem_fini(back->problem);
}

/* ---- passes ---- */

static int64_t tokens_of(const nsai_ref_back *back) {
  const nsai_ref_sequences *sequences = &back->problem->sequences;
  return sequences->q[sequences->count];
}

static int64_t slabs_of(const nsai_ref_back *back) {
  return (tokens_of(back) + NSAI_REF_SLAB - 1) / NSAI_REF_SLAB;
}

/* The gates of a slab of tokens, as in the forward. */
static void run_gates(void *context, int worker, int64_t item) {
  const nsai_ref_back *back = context;
  nsai_ref_scratch *scratch = &back->scratch[worker];
  int64_t tokens[NSAI_REF_SLAB] = { 0 }, begin = item * NSAI_REF_SLAB, count = 0;
  int64_t row = nsai_ref_gate_row(back->problem->model);
  for (; count < NSAI_REF_SLAB && begin + count < tokens_of(back); count++)
    tokens[count] = begin + count;
  nsai_ref_gates(back->problem, scratch, count, tokens);
  for (int64_t i = 0; i < count * row; i++) back->gates[begin * row + i] = scratch->gates[i];
}

/* One KV head of a sequence: no other worker adds to its rows of the sums. */
static void run_attention(void *context, int worker, int64_t item) {
  const nsai_ref_back *back = context;
  const nsai_ref_problem *problem = back->problem;
  int64_t s = item / problem->model->kv_heads, group = item % problem->model->kv_heads;
  for (int64_t token = problem->sequences.q[s]; token < problem->sequences.q[s + 1]; token++)
    nsai_ref_attend_back(back, worker, token, group);
}

static void store_side(const nsai_ref_back *back, int side) {
  const nsai_ref_problem *problem = back->problem;
  const nsai_model *g = problem->model;
  int64_t dim = side ? g->head_dim_v : g->head_dim_qk, row = nsai_ref_lanes(dim);
  for (int pair = 0; pair < NSA_BRANCHES; pair++) {
    const nsa_tensor *out = side ? &back->grads->d_kv.v[pair] : &back->grads->d_kv.k[pair];
    const double *sums = side ? back->d_v[pair] : back->d_k[pair];
    int64_t rows = nsai_ref_sum_rows(problem, pair);
    for (int64_t i = 0; i < rows * g->kv_heads && out->data; i++)
      nsai_ref_grad_rows(back, out, nsai_ref_offset2(out, i % rows, i / rows), 1, sums + i * row,
                         row);
  }
}

static nsa_status execute(nsai_ref_back *back) {
  nsai_ref_problem *problem = back->problem;
  int64_t items = problem->sequences.count * problem->model->kv_heads, slabs = slabs_of(back);
  int workers = nsai_ref_worker_count(problem->threads, nsai_larger(items, slabs));
  if (problem->run[NSA_CMP]) NSAI_TRY(nsai_ref_compress(problem, true));
  NSAI_TRY(take_all(back, workers));
  nsai_ref_parallel(workers, slabs, run_gates, back);
  nsai_ref_parallel(workers, items, run_attention, back);
  nsai_ref_gate_back(back);
  nsai_ref_phi_back(back);
  for (int side = 0; side < 2; side++) store_side(back, side);
  return NSA_OK;
}

static nsa_status backward(const nsai_model *model, int32_t selection, uint32_t branches,
                           const nsa_batch *batch, const nsa_io *io, const nsa_grads *grads,
                           int threads, nsai_ref_rounding stored) {
  nsai_ref_problem problem = { .stored = stored };
  nsai_ref_back back = { .problem = &problem, .grads = grads };
  nsa_status status;
  NSAI_TRY_TO(done, nsai_ref_problem_init(&problem, model, batch, io, threads));
  /* What the forward chose is given now. */
  problem.selection = selection == NSA_SELECT_TOPN ? NSA_SELECT_BLOCKS : selection;
  problem.gated = true;
  nsai_ref_problem_run(&problem, branches);
  NSAI_TRY_TO(done, execute(&back));
done:
  release(&back);
  return status;
}

nsa_status nsai_reference_backward(const nsai_model *model, int32_t selection, uint32_t branches,
                                   const nsa_batch *batch, const nsa_io *io, const nsa_grads *grads,
                                   int threads) {
  return backward(model, selection, branches, batch, io, grads, threads, (nsai_ref_rounding){ 0 });
}

nsa_status nsai_reference_backward_stored(const nsai_model *model, int32_t selection,
                                          uint32_t branches, const nsa_batch *batch,
                                          const nsa_io *io, const nsa_grads *grads, uint32_t draw,
                                          int threads) {
  return backward(model, selection, branches, batch, io, grads, threads,
                  (nsai_ref_rounding){ .dtype = model->dtype, .draw = draw });
}
