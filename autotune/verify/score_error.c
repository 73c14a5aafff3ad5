/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The error that rounding dS to the model's dtype causes in d_q. Every implementation that
 * multiplies dS on tensor cores has it. dS sums to 0 over a row's keys, so the component that
 * the keys share cancels in d_q, but the rounding errors of its terms do not. In a short
 * sequence nothing averages them out; long sequences are not treated here.
 *
 * The errors of a row add up by chance, and implementations round different terms: dS of each branch,
 * or the sum of window and selected branch where these share K, whose steps are coarser. Errors that
 * cancel in one may add up in another. So a row's error has the direction that rounding each branch
 * gives it, and at least the size that either way is expected to give it: a number between two
 * neighbours of the dtype that lie u apart is off by u^2 / 12 in the mean square.
 *
 * Where one key has all the weight, dS and d_q are 0 but for the last bits of dP, a sum in float32.
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

/* What float32 loses of a sum of products, relative to the sum of their magnitudes. */
#define SUM_ERROR 0x1p-23

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
  double *joined;                      /* [kv_len]: dS of window and selected branch */
  double error[NSAI_MAX_HEAD_DIM];     /* of the row */
  double apart, together; /* mean squares of its norm: each branch rounded, or their sum */
} score_error;

static double rounded(double x, int32_t dtype) {
  uint16_t bits;
  nsa_tensor t = { .data = &bits, .dtype = dtype };
  nsai_verify_store(&t, 0, (float)x);
  return (double)nsai_verify_load(&t, 0);
}

/* The distance between neighbours of the dtype at x. */
static double spacing(double x, int32_t dtype) {
  int exponent; /* x = m 2^exponent with m in [0.5, 1) */
  if (x == 0) return 0;
  frexp(x, &exponent);
  if (dtype == NSA_BF16) return ldexp(1, exponent - 8); /* 8 bits of significand */
  return dtype == NSA_F16 ? ldexp(1, exponent < -13 ? -24 : exponent - 11) : 0;
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

/* What rounding dS of one key, and an error of dS of `bits`, add to d_q: the mean square of the
 * norm. */
static double mean_square(const score_error *e, double d_score, double bits, const nsa_tensor *k,
                          int64_t row) {
  const nsai_model *g = &e->trial->c->model;
  int64_t kv_head = e->head / (g->heads / g->kv_heads);
  double step = e->scale * spacing(d_score, g->dtype), squares = 0;
  for (int32_t c = 0; c < g->head_dim_qk; c++) {
    double key = nsai_verify_at(k, row, kv_head, c);
    squares += key * key;
  }
  return (step * step / 12 + e->scale * e->scale * bits * bits) * squares;
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
  double most = -INFINITY, sum = 0, inner = 0, largest = 0;
  for (int64_t i = 0; i < keys; i++) {
    e->score[i] = -INFINITY;
    if (!sees(e, branch, i)) continue;
    double score = 0, d_value = 0, size = 0;
    for (int32_t c = 0; c < g->head_dim_qk; c++)
      score += nsai_verify_at(&e->io->q, e->token, e->head, c) *
               nsai_verify_at(k, first + i, kv_head, c);
    for (int32_t c = 0; c < g->head_dim_v; c++) {
      double term =
          nsai_verify_at(e->d_o, e->token, e->head, c) * nsai_verify_at(v, first + i, kv_head, c);
      d_value += term;
      size += fabs(term);
    }
    largest = fmax(largest, size);
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
    double weight = e->gates[e->head * NSA_BRANCHES + branch] * e->score[i] / sum;
    double d_score = weight * (e->d_value[i] - inner / sum), bits = weight * SUM_ERROR * largest;
    double error = e->scale * (rounded(d_score, g->dtype) - d_score);
    double square = mean_square(e, d_score, bits, k, first + i);
    for (int32_t c = 0; c < g->head_dim_qk; c++)
      e->error[c] += error * nsai_verify_at(k, first + i, kv_head, c);
    e->apart += square;
    if (compressed || g->per_branch) {
      e->together += square;
    } else {
      e->joined[i] += d_score;
      e->together += mean_square(e, 0, bits, k, first + i);
    }
  }
}

/* Adds the error of the row over all branches. */
static void add_row(score_error *e) {
  const nsai_model *g = &e->trial->c->model;
  float *to = (float *)e->d_q->data + e->token * e->d_q->stride[0] + e->head * e->d_q->stride[1];
  double squares = 0;
  for (int64_t i = 0; i < e->kv_len; i++) e->joined[i] = 0;
  for (int32_t c = 0; c < g->head_dim_qk; c++) e->error[c] = 0;
  e->apart = e->together = 0;
  if (e->branches >> NSA_SEL & 1) choose(e, e->head / (g->heads / g->kv_heads));
  for (int branch = 0; branch < NSA_BRANCHES; branch++)
    if (e->branches >> branch & 1) add_branch(e, branch);
  for (int64_t i = 0; i < e->kv_len; i++)
    if (e->joined[i] != 0)
      e->together += mean_square(e, e->joined[i], 0, &e->io->kv.k[0], e->kv_begin + i);
  for (int32_t c = 0; c < g->head_dim_qk; c++) squares += e->error[c] * e->error[c];
  double least = fmax(e->apart, e->together);
  double factor = squares > 0 ? fmax(1, sqrt(least / squares)) : 1;
  if (squares == 0) e->error[0] = sqrt(least); /* norms are compared: any direction will do */
  for (int32_t c = 0; c < g->head_dim_qk; c++) to[c] += (float)(factor * e->error[c]);
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
      malloc((3 * keys + (size_t)e.trial->c->model.heads * NSA_BRANCHES) * sizeof *memory);
  e.chosen = malloc(keys);
  if (memory && e.chosen) {
    e.score = memory;
    e.d_value = e.score + keys;
    e.joined = e.d_value + keys;
    e.gates = e.joined + keys;
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
