/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the tests of nsa_tune share: contexts on the fake GPU whose tunings are kept, and a dense
 * attention that computes on the host and takes the time that a test says.
 */
#ifndef TEST_TUNE_FIXTURE_H
#define TEST_TUNE_FIXTURE_H

#include "cli/tune_results.h"
#include "machine.h"

#include <nsa/tune.h>

typedef struct world {
  char dir[64];
  nsa_ctx *ctx;
  nsai_tune_results results; /* of the last tuning */
  int steps, cancel_at;      /* calls of progress */
  const char *cancel_what;   /* only those are counted; NULL: all */
  int64_t done;
  bool reenter;                  /* tune from another thread, once */
  bool plan_beside, keep_beside; /* make a plan in another thread, once; and keep it */
  nsa_plan *beside;
  int warnings;
} world;

/* For each test's start. */
int world_begin(void **state);
#define TEST(name) cmocka_unit_test_setup(name, world_begin)

/* A context on the fake GPU with more YAML, in a folder that lives longer than it. */
void world_enter(world *w, const char *more);
/* Destroys it, and holds that nothing is left on the fake GPU. */
void world_leave(world *w);

/* nsa_tune with the world's callbacks. */
nsa_status world_tune(world *w, const nsa_tune_options *options, const nsa_problem *problems,
                      size_t count);
/* Succeeds and launches nothing. */
void world_dry_run(world *w, int32_t level, const nsa_problem *problems, size_t count);

/* No stage of a plan of the problem follows a record. */
void world_expect_nothing_chosen(world *w, const nsa_problem *p);

/* Of the first problem of the last tuning. */
const nsa_tune_event *world_find(const world *w, int32_t kind, const char *candidate);
size_t world_count(const world *w, int32_t kind);

/* ---- a dense kernel ---- */

extern bool dense_wrong_of_64; /* blocks of 64 threads compute nothing */
extern double dense_ms_of_64;  /* how long they take; others take 10 ms */
extern double dense_slowdown;  /* from the final on, all take so many times as long */

/* world_enter with a dense kernel that computes. */
void dense_enter(world *w, const char *more);
/* Tunes dense attention of 1024 tokens; it must come to its end. */
void dense_tune(world *w, int32_t level, int32_t fresh);

/* How many threads the dense kernel of a plan has, and whether a record says so. */
int32_t dense_planned_threads(const world *w, bool *by_record);

#endif /* TEST_TUNE_FIXTURE_H */
