/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The command line of nsacheck.
 */
#ifndef CHK_ARGUMENTS_H
#define CHK_ARGUMENTS_H

#include "cache/options.h"
#include "plans.h"

/* The areas that are checked, as bits. */
enum { CHK_FORWARD = 1, CHK_BACKWARD = 2, CHK_CACHE = 4 };

#define CHK_MOST_OVERRIDES 32

typedef struct chk_arguments {
  uint32_t areas;
  chk_plans_options plans;
  const char *overrides[CHK_MOST_OVERRIDES + 1];
  int override_count;
  const char *filter, *problem;
  uint64_t seed;
  uint64_t model;   /* seed of the model of all random problems; 0: another, or one for each */
  nsai_model given; /* their model, where a configuration was given; 0 heads: none */
  int64_t count;    /* number of random problems of each area; -1: the default */
  double time_limit;
  bool list, json, tap, stop_on_failure, self_test, brief, rows;
  const nsai_variant *force;
  bool of_cache;        /* an option was given that only cases of the cache have */
  chk_cache_case cache; /* initial values of every case of the cache; kind CHK_CACHE_KINDS: any */
  char repeat[512];     /* the options that a reproduction needs in addition to the problem */
} chk_arguments;

/* Reads the command line; ends the program with status 2 if it is invalid. */
void chk_arguments_read(int argc, char **argv, chk_arguments *out);

#endif /* CHK_ARGUMENTS_H */
