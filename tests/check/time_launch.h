/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * How one call is timed.
 *
 * A power-capped GPU gives two figures: `burst` is the median of launches that each follow a
 * pause and an L2 flush; `sustained` is the median of the last third of 0.3 s of back-to-back
 * launches.
 */
#ifndef CHK_TIME_LAUNCH_H
#define CHK_TIME_LAUNCH_H

#include "check.h"

typedef struct chk_times {
  double burst_ms, sustained_ms;
} chk_times;

/* The median; sorts the values. */
double chk_median(double *values, int64_t count);

/* Sleeps until the clocks of a GPU have recovered from a power cap. */
void chk_pause(const nsai_verify_device *device);

/* Times the trial run's call with exec.branches = branches. `flush` is device memory of
 * NSAI_VERIFY_FLUSH_BYTES; NULL: no L2 to flush. CHK_LEAST_TIMED is the smallest number of
 * launches that this takes. */
nsa_status chk_time_launch(const nsai_trial_run *trial, uint32_t branches, void *flush,
                           chk_times *times);

#define CHK_LEAST_TIMED 17 /* 1 to warm up, 7 bursts, 9 back to back */
/* Milliseconds of nsa_plan_create for a case, in fresh contexts: with an empty cache folder,
 * then with the folder that the first one filled. */
nsa_status chk_time_plan(const chk_plans *plans, const nsai_verify_case *c, double *cold_ms,
                         double *warm_ms);

#endif /* CHK_TIME_LAUNCH_H */
