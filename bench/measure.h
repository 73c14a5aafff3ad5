/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Times of the whole forward, of each branch alone, of phi, and of dense attention beside them,
 * through the calls that nsacheck checks. time_launch.h says what a time is.
 */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include "plans.h"
#include "results.h"

typedef struct bench_rig {
  chk_plans *plans;
  void *flush; /* device memory that empties L2; NULL on the CPU device */
} bench_rig;

nsa_status bench_rig_create(chk_plans *plans, bench_rig *rig);
void bench_rig_destroy(bench_rig *rig);

/* Times those parts of p->c that `parts` has as bits (1 << BENCH_FORWARD | ...) and that its model
 * has. dense_gemm gets a note instead where it cannot be timed or would take too long; any other failure is
 * an error, and parts timed before it are kept. Compiles on first use; waits. */
nsa_status bench_measure(bench_rig *rig, uint32_t parts, bench_problem *p);

#endif /* BENCH_MEASURE_H */
