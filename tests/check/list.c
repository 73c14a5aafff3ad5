/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 */
#include "list.h"

#include "cases.h"

#include <fnmatch.h>
#include <stdlib.h>

void chk_list_text(const chk_list *list, int64_t i, char *text, size_t size) {
  if (i < list->count)
    nsai_verify_case_print(&list->cases[i], text, size);
  else
    chk_cache_case_print(&list->cache[i - list->count], text, size);
}

int chk_list_add(chk_list *list, const nsai_verify_case *c, const char *filter) {
  char text[CHK_PROBLEM_TEXT];
  nsai_verify_case_print(c, text, sizeof text);
  if (filter && fnmatch(filter, text, 0)) return 0;
  nsai_verify_case *grown = realloc(list->cases, (size_t)(list->count + 1) * sizeof *grown);
  if (!grown) return -1;
  list->cases = grown;
  list->cases[list->count++] = *c;
  return 0;
}

int chk_list_add_cache(chk_list *list, const chk_cache_case *c, const char *filter) {
  char text[CHK_PROBLEM_TEXT];
  chk_cache_case_print(c, text, sizeof text);
  if (filter && fnmatch(filter, text, 0)) return 0;
  chk_cache_case *grown = realloc(list->cache, (size_t)(list->cache_count + 1) * sizeof *grown);
  if (!grown) return -1;
  list->cache = grown;
  list->cache[list->cache_count++] = *c;
  return 0;
}

void chk_list_fini(chk_list *list) {
  free(list->cases);
  free(list->cache);
}

static bool is_asked_for(const chk_arguments *a, const nsai_verify_case *c) {
  return a->areas &
         (c->kind == NSAI_VERIFY_BACKWARD || c->kind == NSAI_VERIFY_INDEX_KL ? CHK_BACKWARD
                                                                             : CHK_FORWARD);
}

static int add_problem(const chk_arguments *a, chk_list *list) {
  char error[256];
  chk_cache_case cached;
  nsai_verify_case c;
  const bool is_cached = chk_cache_case_is(a->problem);
  if (is_cached ? chk_cache_case_parse(a->problem, &cached, error, sizeof error)
                : nsai_verify_case_parse(a->problem, &c, error, sizeof error)) {
    fprintf(stderr, "nsacheck: %s: %s\n", a->problem, error);
    return -1;
  }
  if (is_cached) cached.given = a->cache.given;
  return is_cached ? chk_list_add_cache(list, &cached, a->filter)
                   : chk_list_add(list, &c, a->filter);
}

static int add_forced(const chk_arguments *a, chk_list *list, nsai_verify_case *c) {
  c->force = a->force;
  return chk_list_add(list, c, a->filter);
}

#define COUNT_OF_MODEL                                                                             \
  20 /* random problems of one model: enough to make its kernels worth compiling */

static bool of_one_model(const chk_arguments *a) { return a->model || a->cache.given; }

static int add_fixed(const chk_arguments *a, chk_list *list) {
  nsai_verify_case c;
  for (const char *const *text = a->brief ? chk_short_cases : chk_fixed_cases; *text; text++) {
    char error[256];
    if (nsai_verify_case_parse(*text, &c, error, sizeof error)) {
      fprintf(stderr, "nsacheck: %s: %s\n", *text, error);
      return -1;
    }
    if (is_asked_for(a, &c) && add_forced(a, list, &c)) return -1;
  }
  return 0;
}

/* Adds the fixed problems of the requested areas, then random ones in the order of the seed; of a
 * given model only random ones. */
static int add_plans(const chk_arguments *a, chk_list *list) {
  int64_t count = a->count;
  nsai_verify_case c;
  if (!(a->areas & (CHK_FORWARD | CHK_BACKWARD))) return 0;
  if (count < 0 && of_one_model(a)) count = COUNT_OF_MODEL;
  if (count < 0) count = a->brief ? 0 : a->plans.device == NSAI_VERIFY_DEVICE_CPU ? 40 : 300;
  if (!of_one_model(a) && add_fixed(a, list)) return -1;
  for (int64_t i = 0, found = 0; found < count; i++) {
    if (a->model)
      chk_case_random_of(a->model, a->seed, i, &c);
    else if (a->cache.given)
      chk_case_random_given(a->cache.given, a->seed, i, &c);
    else
      chk_case_random(a->seed, i, &c);
    if (!is_asked_for(a, &c)) continue;
    if (add_forced(a, list, &c)) return -1;
    found++;
  }
  return 0;
}

/* Adds one scenario for each seed, starting with that of the arguments. */
static int add_scenarios(const chk_arguments *a, chk_list *list) {
  chk_cache_case c = a->cache;
  int64_t count = a->count;
  if (!(a->areas & CHK_CACHE)) return 0;
  c.model = a->model;
  if (count < 0 && of_one_model(a)) count = COUNT_OF_MODEL;
  if (count < 0) count = a->brief ? 5 : a->plans.device == NSAI_VERIFY_DEVICE_CPU ? 12 : 60;
  if (a->cache.kind == CHK_CACHE_SOAK) count = 1;
  for (int64_t i = 0; i < count; i++) {
    c.seed = a->seed + (uint64_t)i;
    c.kind = a->cache.kind == CHK_CACHE_KINDS ? chk_cache_case_kind(&c) : a->cache.kind;
    if (chk_list_add_cache(list, &c, a->filter)) return -1;
  }
  return 0;
}

int chk_list_make(const chk_arguments *a, chk_list *list) {
  if (a->problem) return add_problem(a, list);
  return add_plans(a, list) || add_scenarios(a, list) ? -1 : 0;
}
