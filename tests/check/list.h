/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The problems of a run of nsacheck.
 */
#ifndef CHK_LIST_H
#define CHK_LIST_H

#include "arguments.h"

/* First the problems of plans.h, then those of the cache. */
typedef struct chk_list {
  nsai_verify_case *cases;
  int64_t count;
  chk_cache_case *cache;
  int64_t cache_count;
} chk_list;

#define CHK_PROBLEM_TEXT NSAI_VERIFY_CASE_TEXT

/* The text of problem `i`. */
void chk_list_text(const chk_list *list, int64_t i, char *text, size_t size);

/* Adds a problem unless the filter excludes it. Returns 0, or -1 when memory is exhausted. */
int chk_list_add(chk_list *list, const nsai_verify_case *c, const char *filter);
int chk_list_add_cache(chk_list *list, const chk_cache_case *c, const char *filter);

/* Makes the list that the arguments ask for. Returns 0, or -1 with a sentence on stderr. */
int chk_list_make(const chk_arguments *a, chk_list *list);
void chk_list_fini(chk_list *list);

/* rows.c: for each row of the variant table, the first problems that run it when it is forced:
 * on the GPU of `a` or, with a->list, on any architecture. -1 with a sentence on stderr: a row
 * has none. */
int chk_list_make_rows(const chk_arguments *a, chk_list *list);

#endif /* CHK_LIST_H */
