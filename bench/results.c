/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "results.h"

#include <stdlib.h>
#include <string.h>

const char *const bench_part_names[BENCH_PARTS] = {
  [BENCH_COMPRESS] = "compress",
  [BENCH_FORWARD] = "forward",
  [BENCH_COMPRESSED] = "compressed",
  [BENCH_SELECTED] = "selected",
  [BENCH_WINDOW] = "window",
  [BENCH_DENSE] = "dense",
  [BENCH_DENSE_GEMM] = "dense_gemm",
  [BENCH_BACKWARD] = "backward",
  [BENCH_BACKWARD_SAVED] = "back_saved",
  [BENCH_FORWARD_SAVED] = "fwd_saved",
  [BENCH_INDEX_KL] = "index_kl",
  [BENCH_INDEX_KL_ALL] = "kl_warm_up",
};

nsa_status bench_results_add(bench_results *results, const nsai_verify_case *c,
                             bench_problem **out) {
  size_t size = (size_t)(results->count + 1) * sizeof *results->problem;
  bench_problem *grown = realloc(results->problem, size);
  if (!grown) return nsai_fail_nomem("a list of results", size);
  results->problem = grown;
  *out = &grown[results->count++];
  memset(*out, 0, sizeof **out);
  (*out)->c = *c;
  return NSA_OK;
}

void bench_results_free(bench_results *results) {
  free(results->problem);
  *results = (bench_results){ 0 };
}

double bench_ms(const bench_problem *p, bench_part part) { return p->part[part].burst_ms; }

double bench_baseline_ms(const bench_problem *p) {
  double dense = bench_ms(p, BENCH_DENSE), gemm = bench_ms(p, BENCH_DENSE_GEMM);
  if (dense <= 0 || (gemm > 0 && gemm < dense)) return gemm;
  return dense;
}

double bench_ratio(const bench_problem *p, double ms, bench_part part) {
  if (part == BENCH_COMPRESS || ms <= 0 || bench_ms(p, part) <= 0) return 0;
  return ms / bench_ms(p, part);
}

int64_t bench_tokens(const bench_problem *p) {
  return nsai_verify_total(p->c.q_len, p->c.num_seqs);
}

const char *bench_fill_name(const bench_problem *p) { return nsai_verify_fill_name(p->c.fill); }

bench_part bench_lead(const bench_problem *p) {
  static const bench_part order[] = { BENCH_FORWARD, BENCH_WINDOW, BENCH_COMPRESSED };
  for (size_t i = 0; i < sizeof order / sizeof *order; i++)
    if (bench_ms(p, order[i]) > 0) return order[i];
  return BENCH_PARTS;
}

int bench_same_model(const nsai_verify_case *a, const nsai_verify_case *b) {
  char text[2][NSAI_VERIFY_CASE_TEXT];
  nsai_verify_case pair[2] = { *a, *b };
  for (int i = 0; i < 2; i++) {
    pair[i].num_seqs = 1;
    pair[i].q_len[0] = pair[i].kv_len[0] = 1;
    pair[i].fill = NSAI_VERIFY_FILL_RANDOM;
    pair[i].overlap = 0;
    nsai_verify_case_print(&pair[i], text[i], sizeof text[i]);
  }
  return !strcmp(text[0], text[1]);
}

/* ---- crossovers ------------------------------------------------------------------------------ */

static int same_series(const bench_problem *a, const bench_problem *b) {
  return a->c.fill == b->c.fill && bench_lead(a) == bench_lead(b) && bench_same_model(&a->c, &b->c);
}

static int by_tokens(const void *a, const void *b) {
  const bench_point *x = a, *y = b;
  return (x->tokens > y->tokens) - (x->tokens < y->tokens);
}

/* Fills `s` from the problems with the model of `first`; `points` has room for all problems. */
static void find_crossover(const bench_results *results, const bench_problem *first,
                           bench_point *points, bench_series *s) {
  *s = (bench_series){ .first = first, .part = bench_lead(first) };
  for (int64_t i = 0; i < results->count; i++) {
    const bench_problem *p = &results->problem[i];
    if (!same_series(first, p) || bench_ms(p, BENCH_DENSE) <= 0) continue;
    points[s->lengths++] =
        (bench_point){ (double)bench_tokens(p), bench_ms(p, s->part), bench_ms(p, BENCH_DENSE) };
  }
  qsort(points, (size_t)s->lengths, sizeof *points, by_tokens);
  if (s->lengths) s->crossing = bench_crossover(points, s->lengths, &s->tokens);
}

nsa_status bench_crossovers(const bench_results *results, bench_series **out, int64_t *count) {
  size_t room = (size_t)results->count + 1;
  bench_point *points = malloc(room * sizeof *points);
  *count = 0;
  *out = malloc(room * sizeof **out);
  if (!points || !*out) {
    free(points);
    free(*out);
    *out = NULL;
    return nsai_fail_nomem("crossovers", room * sizeof **out);
  }
  for (int64_t i = 0; i < results->count; i++) {
    const bench_problem *p = &results->problem[i];
    int64_t before = 0;
    while (before < i && !same_series(&results->problem[before], p)) before++;
    if (before < i || bench_lead(p) == BENCH_PARTS) continue;
    find_crossover(results, p, points, &(*out)[*count]);
    if ((*out)[*count].lengths > 1) (*count)++;
  }
  free(points);
  return NSA_OK;
}
