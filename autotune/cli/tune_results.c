/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "cli/tune_results.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- events ---- */

static const char *keep(nsai_tune_results *results, const char *text) {
  if (!text) text = "";
  const char *copy = nsai_arena_copy(&results->strings, text, strlen(text));
  return copy ? copy : "";
}

void nsai_tune_results_add(nsai_tune_results *results, const nsa_tune_event *event) {
  if (results->count == results->capacity) {
    size_t capacity = results->capacity ? 2 * results->capacity : 64;
    nsa_tune_event *events = realloc(results->events, capacity * sizeof *events);
    if (!events) {
      results->failed = true;
      return;
    }
    results->events = events;
    results->capacity = capacity;
  }
  nsa_tune_event *copy = &results->events[results->count++];
  *copy = *event;
  copy->problem = keep(results, event->problem);
  copy->stage = keep(results, event->stage);
  copy->candidate = keep(results, event->candidate);
  copy->note = keep(results, event->note);
  if (results->strings.failed) results->failed = true;
}

void nsai_tune_results_fini(nsai_tune_results *results) {
  nsai_arena_fini(&results->strings);
  free(results->events);
  *results = (nsai_tune_results){ 0 };
}

bool nsai_tune_next(const nsai_tune_results *results, nsai_tune_span *span) {
  if (!results->count) return false;
  const nsa_tune_event *end = results->events + results->count;
  const nsa_tune_event *first = span->events ? span->events + span->count : results->events;
  while (first < end && first->kind != NSA_TUNE_PROBLEM) first++;
  const nsa_tune_event *next = first + (first < end);
  while (next < end && next->kind != NSA_TUNE_PROBLEM) next++;
  *span = (nsai_tune_span){ first, (size_t)(next - first) };
  return span->count > 0;
}

const nsa_tune_event *nsai_tune_find(const nsai_tune_span *span, int32_t kind, const char *stage,
                                     const char *candidate) {
  for (size_t i = span->count; i-- > 0;) {
    const nsa_tune_event *e = &span->events[i];
    if (e->kind == kind && (!stage || !strcmp(stage, e->stage)) &&
        (!candidate || !strcmp(candidate, e->candidate)))
      return e;
  }
  return NULL;
}

size_t nsai_tune_count(const nsai_tune_span *span, int32_t kind) {
  size_t count = 0;
  for (size_t i = 0; i < span->count; i++) count += span->events[i].kind == kind;
  return count;
}

double nsai_tune_default_ms(const nsa_tune_event *chosen) {
  return chosen->gain < 1 ? chosen->ms / (1 - chosen->gain) : (double)NAN;
}

/* ---- keys ---- */

/* Whether the part of a key is a size: "tok", "kv", "len" or "seq", then only digits. */
static bool is_size(const char *part, size_t size) {
  static const char *const names[] = { "tok", "kv", "len", "seq" };
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    size_t at = strlen(names[i]);
    if (size <= at || strncmp(part, names[i], at)) continue;
    while (at < size && isdigit((unsigned char)part[at])) at++;
    if (at == size) return true;
  }
  return false;
}

/* Skips sizes and returns the next other part; 0 at the end. */
static size_t next_part(const char **key) {
  for (;;) {
    size_t size = strcspn(*key, ":");
    if (size && !is_size(*key, size)) return size;
    if (!(*key)[size]) return 0;
    *key += size + 1;
  }
}

/* Orders two keys without their sizes. */
static int compare_series(const char *a, const char *b) {
  for (;;) {
    size_t size = next_part(&a), other = next_part(&b);
    if (!size || !other) return (size > 0) - (other > 0);
    int order = strncmp(a, b, size < other ? size : other);
    if (order) return order;
    if (size != other) return size < other ? -1 : 1;
    a += size;
    b += other;
  }
}

bool nsai_tune_same_series(const char *a, const char *b) { return !compare_series(a, b); }

const char *nsai_tune_inputs(const char *problem, char out[NSAI_TUNE_INPUTS_BYTES]) {
  const char *part = strstr(problem, ":ov=");
  if (part)
    snprintf(out, NSAI_TUNE_INPUTS_BYTES, "%.*s", (int)strcspn(part + 1, ":"), part + 1);
  else
    snprintf(out, NSAI_TUNE_INPUTS_BYTES, "any");
  return out;
}

/* ---- order ---- */

/* The number in ":seq64"; 0: one sequence. */
static long sequences(const char *problem) {
  const char *part = strstr(problem, ":seq");
  return part ? strtol(part + strlen(":seq"), NULL, 10) : 0;
}

static int compare_spans(const void *a, const void *b) {
  const nsa_tune_event *x = ((const nsai_tune_span *)a)->events;
  const nsa_tune_event *y = ((const nsai_tune_span *)b)->events;
  int order = compare_series(x->problem, y->problem);
  if (!order) order = (x->tokens > y->tokens) - (x->tokens < y->tokens);
  if (order) return order;
  long more = sequences(x->problem), than = sequences(y->problem);
  return (more > than) - (more < than);
}

void nsai_tune_results_sort(nsai_tune_results *results) {
  nsai_tune_span span = { 0 };
  size_t problems = 0, count = 0;
  while (nsai_tune_next(results, &span)) problems++;
  if (!problems) return;
  nsai_tune_span *spans = malloc(problems * sizeof *spans);
  nsa_tune_event *events = malloc(results->count * sizeof *events);
  if (!spans || !events) {
    results->failed = true;
    free(spans);
    free(events);
    return;
  }
  span = (nsai_tune_span){ 0 };
  for (size_t i = 0; nsai_tune_next(results, &span); i++) spans[i] = span;
  qsort(spans, problems, sizeof *spans, compare_spans);
  for (size_t i = 0; i < problems; count += spans[i++].count)
    memcpy(events + count, spans[i].events, spans[i].count * sizeof *events);
  free(results->events);
  free(spans);
  results->events = events;
  results->capacity = results->count;
  results->count = count;
}

/* ---- sparse against dense ---- */

static int compare_points(const void *a, const void *b) {
  const nsai_tune_point *x = a, *y = b;
  int order = compare_series(x->problem, y->problem);
  return order ? order : (x->tokens > y->tokens) - (x->tokens < y->tokens);
}

/* False: a time is missing. */
static bool make_point(const nsai_tune_span *span, nsai_tune_point *out) {
  const nsa_tune_event *forward = nsai_tune_find(span, NSA_TUNE_BASELINE, NULL, "forward");
  const nsa_tune_event *dense = nsai_tune_find(span, NSA_TUNE_BASELINE, NULL, "dense");
  const nsa_tune_event *unfused = nsai_tune_find(span, NSA_TUNE_BASELINE, NULL, "dense_gemm");
  if (!dense || (unfused && unfused->ms < dense->ms)) dense = unfused;
  if (!forward || !dense || !(forward->ms > 0) || !(dense->ms > 0)) return false;
  *out = (nsai_tune_point){ .problem = span->events[0].problem,
                            .tokens = span->events[0].tokens,
                            .forward_ms = forward->ms,
                            .dense_ms = dense->ms,
                            .dense = dense->candidate };
  return true;
}

nsa_status nsai_tune_points(const nsai_tune_results *results, nsai_tune_point **points,
                            size_t *count) {
  nsai_tune_span span = { 0 };
  size_t problems = 0;
  *count = 0;
  *points = NULL;
  while (nsai_tune_next(results, &span)) problems++;
  if (!problems) return NSA_OK;
  *points = malloc(problems * sizeof **points);
  if (!*points)
    return nsai_fail_nomem("the times of sparse and dense attention", problems * sizeof **points);
  span = (nsai_tune_span){ 0 };
  while (nsai_tune_next(results, &span)) *count += make_point(&span, &(*points)[*count]);
  qsort(*points, *count, sizeof **points, compare_points);
  return NSA_OK;
}

size_t nsai_tune_series(const nsai_tune_point *points, size_t count) {
  size_t same = 0;
  while (same < count && nsai_tune_same_series(points[0].problem, points[same].problem)) same++;
  return same;
}

/* Positive where the forward is faster. */
static double advantage(const nsai_tune_point *p) { return log(p->dense_ms / p->forward_ms); }

double nsai_tune_crossover(const nsai_tune_point *points, size_t count) {
  if (!count || advantage(&points[count - 1]) <= 0) return (double)INFINITY;
  for (size_t i = count - 1; i-- > 0;) {
    double low = advantage(&points[i]), high = advantage(&points[i + 1]);
    if (low > 0) continue;
    double from = log((double)points[i].tokens), to = log((double)points[i + 1].tokens);
    return exp(from + (to - from) * -low / (high - low));
  }
  return 0;
}
