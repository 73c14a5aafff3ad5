/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "verify/rows.h"

#include "base/error.h"
#include "base/math.h"
#include "verify/parallel.h"

#include <stdlib.h>
#include <string.h>

/* Multiply-adds that the reference may spend on a case: a few seconds of one core. */
#define BUDGET 1e9
/* per case; with all heads this gives more than 256 rows for 11 heads and up */
#define LEAST_TOKENS 24
#define LEAST_ROWS 256 /* the minimum at 8k tokens and more */
#define EDGES 10

static double cost_of_token(const nsai_model *g, int64_t kv_len) {
  double selected = (double)g->select_block * g->select_count;
  double keys = (double)kv_len / g->stride * 2 +
                (selected < (double)kv_len ? selected : (double)kv_len) +
                (g->window < kv_len ? g->window : (double)kv_len);
  return keys * g->heads * (g->head_dim_qk + g->head_dim_v);
}

double nsai_verify_case_cost(const nsai_verify_case *c) {
  double cost = 0;
  for (int32_t s = 0; s < c->num_seqs; s++)
    cost += (double)c->q_len[s] * cost_of_token(&c->model, c->kv_len[s]);
  return cost;
}

static int ascending(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Appends the edge rows of one sequence; `first` is its first token row. */
static int64_t add_edges(const nsai_verify_case *c, int32_t s, int64_t first, int64_t *out) {
  const nsai_model *g = &c->model;
  const int64_t positions[EDGES] = { g->block - 2,
                                     g->block - 1,
                                     g->block,
                                     g->select_block - 1,
                                     g->select_block,
                                     g->window,
                                     g->stride + g->block - 1,
                                     (int64_t)g->select_block * g->select_count,
                                     c->kv_len[s] / g->select_block * g->select_block - 1,
                                     0 };
  int64_t count = 0, shift = c->q_len[s] - c->kv_len[s];
  if (!c->q_len[s]) return 0;
  out[count++] = first;
  out[count++] = first + c->q_len[s] - 1;
  for (int i = 0; i < EDGES; i++) {
    int64_t row = positions[i] + shift;
    if (row >= 0 && row < c->q_len[s]) out[count++] = first + row;
  }
  return count;
}

int64_t nsai_verify_sample_tokens(const nsai_verify_case *c, int64_t **out) {
  int64_t tokens = nsai_verify_total(c->q_len, c->num_seqs), longest = 1, count = 0, first = 0;
  for (int32_t s = 0; s < c->num_seqs; s++)
    if (c->kv_len[s] > longest) longest = c->kv_len[s];
  int64_t least = nsai_ceil_div(LEAST_ROWS, c->model.heads);
  if (least < LEAST_TOKENS) least = LEAST_TOKENS;
  int64_t wanted = (int64_t)(BUDGET / cost_of_token(&c->model, longest));
  if (wanted < least) wanted = least;
  if (wanted > tokens) wanted = tokens;
  *out = NULL;
  if (!tokens) return 0;
  int64_t *list = malloc((size_t)(wanted + NSAI_VERIFY_MAX_SEQS * (EDGES + 2)) * sizeof *list);
  if (!list) return 0;
  if (wanted == tokens) {
    for (; count < tokens; count++) list[count] = count;
    *out = list;
    return count;
  }
  for (int32_t s = 0; s < c->num_seqs; first += c->q_len[s++])
    count += add_edges(c, s, first, list + count);
  nsai_verify_random random = { nsai_verify_key(c->seed, 77), 0 };
  while (count < wanted) list[count++] = nsai_verify_pick(&random, 0, tokens - 1);
  qsort(list, (size_t)count, sizeof *list, ascending);
  int64_t kept = 1;
  for (int64_t i = 1; i < count; i++)
    if (list[i] != list[kept - 1]) list[kept++] = list[i];
  *out = list;
  return kept;
}

nsa_status nsai_verify_rows_create(const nsai_verify_case *c, const int64_t *tokens, int64_t count,
                                   uint32_t outputs, nsai_reference_rows *rows) {
  int32_t heads = c->model.heads;
  size_t n = (size_t)(count * heads), width = (size_t)c->model.head_dim_v;
  int64_t *token = malloc((n + 1) * sizeof *token);
  int32_t *head = malloc((n + 1) * sizeof *head);
  int complete = token && head;
  *rows = (nsai_reference_rows){ .count = (int64_t)n, .token = token, .head = head };
  if (outputs & 1) complete &= (rows->o = malloc((n * width + 1) * sizeof(double))) != NULL;
  for (int b = 0; b < NSA_BRANCHES; b++) {
    if (!(outputs >> (b + 1) & 1)) continue;
    complete &= (rows->o_branch[b] = malloc((n * width + 1) * sizeof(double))) != NULL;
    complete &= (rows->lse[b] = malloc((n + 1) * sizeof(double))) != NULL;
  }
  if (!complete) {
    nsai_verify_rows_destroy(rows);
    return nsai_fail_nomem("reference rows", n * width * sizeof(double));
  }
  for (size_t i = 0; i < n; i++) {
    token[i] = tokens[i / (size_t)heads];
    head[i] = (int32_t)(i % (size_t)heads);
  }
  return NSA_OK;
}

void nsai_verify_rows_destroy(nsai_reference_rows *rows) {
  free((void *)(uintptr_t)rows->token);
  free((void *)(uintptr_t)rows->head);
  free(rows->o);
  for (int b = 0; b < NSA_BRANCHES; b++) {
    free(rows->o_branch[b]);
    free(rows->lse[b]);
  }
  *rows = (nsai_reference_rows){ 0 };
}
