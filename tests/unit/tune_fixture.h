/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the tests of nsa_tune share: contexts on the fake GPU whose tuning results are kept, and
 * a dense attention that computes on the host and takes the time that a test sets.
 */
#ifndef TEST_TUNE_FIXTURE_H
#define TEST_TUNE_FIXTURE_H

#include "cli/tune_results.h"
#include "machine.h"
#include "model/stage.h"

#include <nsa/tune.h>

typedef struct tuning {
  char dir[64];
  nsa_ctx *ctx;
  nsai_tune_results results; /* of the last tuning */
  int steps, cancel_at;      /* number of progress calls; the call that cancels */
  const char *cancel_what;   /* count only the calls with this text; NULL: all */
  int64_t done;
  bool reenter;                  /* tune from another thread, once */
  bool second_plan, keep_second; /* make a plan in another thread, once; keep that plan */
  nsa_plan *second;
  bool by_record; /* whether a record decided the last planned kernel */
  int warnings;
} tuning;

/* cmocka setup function of each test. */
int tuning_begin(void **state);
#define TEST(name) cmocka_unit_test_setup(name, tuning_begin)

/* Makes a context on the fake GPU with additional YAML, in a folder that outlives it. */
void tuning_enter(tuning *w, const char *more);
/* Destroys it and checks that nothing is left on the fake GPU. */
void tuning_leave(tuning *w);

/* nsa_tune with the fixture's callbacks. */
nsa_status tuning_tune(tuning *w, const nsa_tune_options *options, const nsa_problem *problems,
                       size_t count);
/* The same of one problem at level quick, which must end with `status` and an error that contains
 * `text`, if that is given. */
void tuning_expect(tuning *w, const nsa_problem *p, nsa_status status, const char *text);
/* Must succeed and launch nothing. */
void tuning_dry_run(tuning *w, int32_t level, const nsa_problem *problems, size_t count);

/* The number of threads of a stage's first kernel in a plan; w->by_record. */
int32_t tuning_planned_threads(tuning *w, const nsa_problem *p, nsai_stage stage);

/* Whether the run that is timed is a complete call, in place of its stages one by one. */
extern bool tuning_whole_call;

/* Checks that no stage of a plan of the problem follows a record. */
void tuning_expect_nothing_chosen(tuning *w, const nsa_problem *p);

/* Finds an event of the first problem of the last tuning: of a candidate, or of a stage. */
const nsa_tune_event *tuning_find(const tuning *w, int32_t kind, const char *candidate);
const nsa_tune_event *tuning_find_stage(const tuning *w, int32_t kind, const char *stage);
size_t tuning_count(const tuning *w, int32_t kind);

/* ---- a dense kernel ---- */

extern bool dense_wrong_of_64; /* CTAs of 64 threads compute nothing */
extern double dense_ms_of_64;  /* their time in ms; others take 10 ms */
extern double dense_slowdown;  /* factor of all times from the final on */

/* tuning_enter with a dense kernel that computes. */
void dense_enter(tuning *w, const char *more);
/* Tunes dense attention of 1024 tokens, which must be completed. */
void dense_tune(tuning *w, int32_t level, int32_t fresh);

/* The number of threads of the dense kernel of a plan; w->by_record. */
int32_t dense_planned_threads(tuning *w);

#endif /* TEST_TUNE_FIXTURE_H */
