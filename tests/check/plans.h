/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Contexts and plans of a whole run of nsacheck: made once for each geometry and problem, kept to
 * the end, and made ahead in parallel threads, since plans compile kernels.
 */
#ifndef CHK_PLANS_H
#define CHK_PLANS_H

#include "verify/trial_run.h"

#define CHK_MAX_THREADS 1024 /* that a command line may ask for */

typedef struct chk_plans_options {
  int32_t device;               /* ordinal, NSAI_VERIFY_DEVICE_AUTO, NSAI_VERIFY_DEVICE_CPU */
  const char *config;           /* a YAML file below the case's own text; NULL: none */
  const char *const *overrides; /* "variants.force.select=...", NULL-terminated; NULL: none */
  const char *cache_dir;        /* NULL: kernels stay in memory */
  int threads;                  /* of the reference, and of plan creation */
} chk_plans_options;

typedef struct chk_plans chk_plans;

/* NSA_E_NO_DRIVER and NSA_E_NO_DEVICE mean that there is nothing to check. */
nsa_status chk_plans_create(const chk_plans_options *options, chk_plans **out);
void chk_plans_destroy(chk_plans *plans);

const nsai_verify_device *chk_plans_device(const chk_plans *plans);
const chk_plans_options *chk_plans_opts(const chk_plans *plans);

/* The plan of a case: `op` NSA_OP_*. Waits when another thread is just making it. The plans own
 * it. Thread-safe. */
nsa_status chk_plans_get(chk_plans *plans, const nsai_verify_case *c, int32_t op,
                         nsai_trial_plan *out);

/* Makes the plans of `count` cases in background threads, in order; returns at once. At most once.
 * Failures show when the plan is asked for. */
void chk_plans_prefetch(chk_plans *plans, const nsai_verify_case *cases, int64_t count);

/* The operation a case's main plan needs. */
int32_t chk_case_op(const nsai_verify_case *c);

/* "cpu", "auto" or the ordinal, as the configuration has it. */
void chk_device_print(int32_t device, char *text, size_t size);

/* The configuration of a case on a device; the caller frees it. NULL when memory is out. */
char *chk_case_yaml(const nsai_verify_case *c, int32_t device, const char *cache_dir);

/* The same on the device of the plans. */
char *chk_plans_yaml(const chk_plans *plans, const nsai_verify_case *c);

/* The problem of a case with its capacities. */
nsa_problem chk_case_problem(const nsai_verify_case *c, int32_t op);

#endif /* CHK_PLANS_H */
