/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The error that rounding dS to the model's dtype causes in d_q. Every implementation that
 * multiplies dS on tensor cores has it. dS sums to 0 over a row's keys, so the component that
 * the keys share cancels in d_q, but the rounding errors of its terms do not. In a short
 * sequence nothing averages them out; long sequences are not treated here.
 */
#include "verify/backward.h"

#include "verify/inputs.h"
#include "verify/parallel.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Of one sequence. More take seconds, and average the errors out. */
#define MOST_PRODUCTS 2e8

typedef struct score_error {
  const nsai_trial_run *trial;
  const nsa_io *io; /* with compressed keys as they are stored */
  const nsa_tensor *d_o;
  nsa_tensor *d_q; /* receives the error by addition */
  double scale;
  uint32_t branches;
  atomic_bool *no_memory;
  int64_t token, head, position;       /* the current row */
  int64_t kv_begin, kv_len, block_row; /* of the current row's sequence */
  uint8_t *chosen;                     /* [kv_len]: 1 if the selected branch reads the key */
  double *score, *d_value;             /* [kv_len]: scores and dP of each key; then P and dS */
  double *gates;                       /* [Hq * 3] of the token */
} score_error;

static double rounded(double x, int32_t dtype) {
  uint16_t bits;
  nsa_tensor t = { .data = &bits, .dtype = dtype };
  nsai_verify_store(&t, 0, (float)x);
  return (double)nsai_verify_load(&t, 0);
}

static double activate(nsai_activation activation, double x) {
  if (activation == NSAI_ACT_RELU) return x > 0 ? x : 0;
  return activation == NSAI_ACT_SILU ? x / (1 + exp(-x)) : x / 2 * (1 + erf(x / sqrt(2)));
}

/* y [w's columns] = x w + b. */
static void layer(const double *x, const nsa_tensor *w, const nsa_tensor *b, double *y) {
  for (int64_t c = 0; c < w->shape[1]; c++) {
    y[c] = b->data ? (double)nsai_verify_load(b, c) : 0;
    for (int64_t r = 0; r < w->shape[0]; r++)
      y[c] += x[r] * (double)nsai_verify_load(w, r * w->stride[0] + c);
  }
}

/* Computes the gates of a token; 0: out of memory. */
static int find_gates(score_error *e) {
  const nsai_model *g = &e->trial->c->model;
  const nsa_gate *gate = &e->io->gate;
  int64_t count = (int64_t)g->heads * NSA_BRANCHES;
  if (g->gate == NSAI_GATE_MLP) {
    double *x = calloc((size_t)(g->gate_channels + g->gate_hidden) + 1, sizeof *x);
    if (!x) return 0;
    double *hidden = x + g->gate_channels;
    for (int32_t c = 0; c < g->gate_channels; c++)
      x[c] = (double)nsai_verify_load(&gate->x, e->token * gate->x.stride[0] + c);
    if (g->gate_hidden) layer(x, &gate->w1, &gate->b1, hidden);
    for (int32_t i = 0; i < g->gate_hidden; i++)
      hidden[i] = activate(g->gate_activation, hidden[i]);
    layer(g->gate_hidden ? hidden : x, &gate->w2, &gate->b2, e->gates);
    free(x);
  }
  for (int64_t i = 0; i < count; i++) {
    if (g->gate != NSAI_GATE_MLP)
      e->gates[i] = nsai_verify_at(&gate->value, e->token, i / NSA_BRANCHES, i % NSA_BRANCHES);
    if (g->gate != NSAI_GATE_WEIGHTS) e->gates[i] = 1 / (1 + exp(-e->gates[i]));
  }
  return 1;
}

/* Marks the keys of the selected branch, for every kind of list. */
static void choose(score_error *e, int64_t kv_head) {
  const nsai_model *g = &e->trial->c->model;
  bool ranges = e->trial->c->selection == NSA_SELECT_RANGES;
  const nsa_tensor *t = ranges ? &e->io->ranges : &e->io->block_idx;
  bool each = t->ndim == (ranges ? 4 : 3);
  const int32_t *list =
      (const int32_t *)t->data + e->token * t->stride[0] + (each ? kv_head * t->stride[1] : 0);
  memset(e->chosen, 0, (size_t)e->kv_len);
  for (int32_t i = 0; i < g->select_count; i++) {
    const int32_t *entry = list + (ranges ? i * t->stride[each ? 2 : 1] : i);
    int64_t begin = ranges ? entry[0] : (int64_t)entry[0] * g->select_block;
    int64_t end = ranges ? entry[1] : begin + g->select_block;
    if (!ranges && entry[0] < 0) continue;
    if (begin < 0) begin = 0;
    for (int64_t p = begin; p < end && p <= e->position; p++) e->chosen[p] = 1;
  }
}

static bool sees(const score_error *e, int branch, int64_t key) {
  const nsai_model *g = &e->trial->c->model;
  if (branch == NSA_CMP) return key * g->stride + g->block - 1 <= e->position;
  if (branch == NSA_WIN) return key <= e->position && key > e->position - g->window;
  return e->chosen[key];
}

/* Adds the error of one branch of the row. */
static void add_branch(score_error *e, int branch) {
  const nsai_model *g = &e->trial->c->model;
  int64_t kv_head = e->head / (g->heads / g->kv_heads);
  int pair = g->per_branch ? branch : 0;
  bool compressed = branch == NSA_CMP;
  const nsa_tensor *k = compressed ? &e->io->kv.k_cmp : &e->io->kv.k[pair];
  const nsa_tensor *v = compressed ? &e->io->kv.v_cmp : &e->io->kv.v[pair];
  int64_t first = compressed ? e->block_row : e->kv_begin;
  int64_t keys = compressed ? nsai_block_count(g, e->kv_len) : e->kv_len;
  double most = -INFINITY, sum = 0, inner = 0;
  for (int64_t i = 0; i < keys; i++) {
    e->score[i] = -INFINITY;
    if (!sees(e, branch, i)) continue;
    double score = 0, d_value = 0;
    for (int32_t c = 0; c < g->head_dim_qk; c++)
      score += nsai_verify_at(&e->io->q, e->token, e->head, c) *
               nsai_verify_at(k, first + i, kv_head, c);
    for (int32_t c = 0; c < g->head_dim_v; c++)
      d_value +=
          nsai_verify_at(e->d_o, e->token, e->head, c) * nsai_verify_at(v, first + i, kv_head, c);
    e->score[i] = score * e->scale;
    e->d_value[i] = d_value;
    most = fmax(most, e->score[i]);
  }
  for (int64_t i = 0; i < keys; i++) {
    if (e->score[i] == -INFINITY) continue;
    e->score[i] = exp(e->score[i] - most);
    sum += e->score[i];
    inner += e->score[i] * e->d_value[i];
  }
  for (int64_t i = 0; i < keys; i++) {
    if (e->score[i] == -INFINITY) continue;
    double d_score = e->gates[e->head * NSA_BRANCHES + branch] * e->score[i] / sum *
                     (e->d_value[i] - inner / sum);
    double error = e->scale * (rounded(d_score, g->dtype) - d_score);
    float *to = (float *)e->d_q->data + e->token * e->d_q->stride[0] + e->head * e->d_q->stride[1];
    for (int32_t c = 0; c < g->head_dim_qk; c++)
      to[c] += (float)(error * nsai_verify_at(k, first + i, kv_head, c));
  }
}

/* Adds the error of the row over all branches. */
static void add_row(score_error *e) {
  const nsai_model *g = &e->trial->c->model;
  if (e->branches >> NSA_SEL & 1) choose(e, e->head / (g->heads / g->kv_heads));
  for (int branch = 0; branch < NSA_BRANCHES; branch++)
    if (e->branches >> branch & 1) add_branch(e, branch);
}

/* Adds the rows of a token of the sequence that `user`, a score_error, describes. */
static void add_token(void *user, int64_t index) {
  const score_error *sequence = user;
  score_error e = *sequence;
  size_t keys = (size_t)e.kv_len + 1;
  e.token += index;
  e.position += index;
  if (e.position < 0) return;
  double *memory =
      malloc((2 * keys + (size_t)e.trial->c->model.heads * NSA_BRANCHES) * sizeof *memory);
  e.chosen = malloc(keys);
  if (memory && e.chosen) {
    e.score = memory;
    e.d_value = e.score + keys;
    e.gates = e.d_value + keys;
  }
  if (memory && e.chosen && find_gates(&e))
    for (e.head = 0; e.head < e.trial->c->model.heads; e.head++) add_row(&e);
  else
    atomic_store(e.no_memory, true);
  free(memory);
  free(e.chosen);
}

nsa_status nsai_verify_add_score_error(const nsai_trial_run *trial, const nsa_io *io,
                                       const nsa_tensor *d_o, nsa_tensor *d_q) {
  const nsai_verify_case *c = trial->c;
  const nsai_model *g = &c->model;
  atomic_bool no_memory = false;
  score_error e = { .trial = trial,
                    .io = io,
                    .d_o = d_o,
                    .d_q = d_q,
                    .branches = nsai_verify_branches(c),
                    .no_memory = &no_memory };
  int64_t token = 0;
  if (!d_q->data) return NSA_OK;
  e.scale = io->softmax_scale > 0 ? (double)io->softmax_scale : 1 / sqrt((double)g->head_dim_qk);
  for (int32_t s = 0; s < c->num_seqs; s++) {
    double rows = (double)c->q_len[s] * g->heads, width = g->head_dim_qk + g->head_dim_v;
    e.token = token;
    e.position = c->kv_len[s] - c->q_len[s];
    e.kv_len = c->kv_len[s];
    if (rows * (double)e.kv_len * width <= MOST_PRODUCTS)
      nsai_verify_parallel(trial->threads, c->q_len[s], add_token, &e);
    token += c->q_len[s];
    e.kv_begin += c->kv_len[s];
    e.block_row += nsai_block_count(g, c->kv_len[s]);
  }
  return no_memory ? nsai_fail_nomem("the scores of a row", sizeof(double)) : NSA_OK;
}
