/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Times the complete forward, each branch alone, phi, dense attention, and what trains, through the calls
 * that nsacheck verifies. time_launch.h defines how a call is timed.
 */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include "plans.h"
#include "results.h"

typedef struct bench_rig {
  chk_plans *plans;
  void *flush; /* device memory that is written to empty the L2; NULL on the CPU device */
} bench_rig;

nsa_status bench_rig_create(chk_plans *plans, bench_rig *rig);
void bench_rig_destroy(bench_rig *rig);

/* NSA_E_UNSUPPORTED where the device is the CPU device, and the forward would take it too long. */
nsa_status bench_check_cost(const chk_plans *plans, const nsai_verify_case *c);

/* Times the parts of p->c that `parts` has as bits (1 << BENCH_FORWARD | ...) and that its model
 * has. dense_gemm gets a note if it cannot be timed or would take too long. Any other failure is
 * an error; times measured before it are kept. Compiles on first use; waits for the device. */
nsa_status bench_measure(bench_rig *rig, uint32_t parts, bench_problem *p);

/* Number of (query, key) pairs per head in a branch; NSA_BRANCHES is dense attention. */
double bench_pairs(const nsai_verify_case *c, int branch);

/* Times the trial run's call as a part; flops and bytes are its useful work. */
nsa_status bench_time_part(const bench_rig *rig, const nsai_trial_run *trial, uint32_t branches,
                           double flops, double bytes, bench_time *time);

#endif /* BENCH_MEASURE_H */
