/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Contexts and plans of a run of nsacheck. Each is made once per model and problem and kept to
 * the end. Parallel threads make them in advance, since plans compile kernels.
 */
#ifndef CHK_PLANS_H
#define CHK_PLANS_H

#include "verify/trial_run.h"

#define CHK_MAX_THREADS 1024 /* most that a command line may ask for */

typedef struct chk_plans_options {
  int32_t device;               /* ordinal, NSAI_VERIFY_DEVICE_AUTO, NSAI_VERIFY_DEVICE_CPU */
  const char *config;           /* a YAML file that the case's own text overrides; NULL: none */
  const char *const *overrides; /* "variants.force.select=...", NULL-terminated; NULL: none */
  const char *cache_dir;        /* NULL: kernels are kept in memory only */
  int threads;                  /* for the reference and for creating plans */
} chk_plans_options;

typedef struct chk_plans chk_plans;

/* NSA_E_NO_DRIVER and NSA_E_NO_DEVICE mean that there is no device to check. */
nsa_status chk_plans_create(const chk_plans_options *options, chk_plans **out);
void chk_plans_destroy(chk_plans *plans);

const nsai_verify_device *chk_plans_device(const chk_plans *plans);
const chk_plans_options *chk_plans_opts(const chk_plans *plans);

/* The plan of a case; `op` is NSA_OP_*. Waits while another thread makes it. The plans own it.
 * Thread-safe. */
nsa_status chk_plans_get(chk_plans *plans, const nsai_verify_case *c, int32_t op,
                         nsai_trial_plan *out);

/* The same for a problem that the case alone does not determine. */
nsa_status chk_plans_get_problem(chk_plans *plans, const nsai_verify_case *c,
                                 const nsa_problem *problem, nsai_trial_plan *out);

/* Makes the plans of `count` cases in background threads, in order; returns at once. May be
 * called once. Failures are reported when the plan is requested. */
void chk_plans_prefetch(chk_plans *plans, const nsai_verify_case *cases, int64_t count);

/* The operation a case's main plan needs. */
int32_t chk_case_op(const nsai_verify_case *c);

/* "cpu", "auto" or the ordinal, as written in a configuration. */
void chk_device_print(int32_t device, char *text, size_t size);

/* Writes a configuration: the model, and `runtime`, whose section may be continued. cache_dir
 * NULL: kernels are kept in memory. */
void chk_write_config(FILE *out, const nsai_model *model, int32_t device, const char *cache_dir);

/* The configuration of a case on a device; the caller frees it. NULL when memory is exhausted. */
char *chk_case_yaml(const nsai_verify_case *c, int32_t device, const char *cache_dir);

/* The same on the device of the plans. */
char *chk_plans_yaml(const chk_plans *plans, const nsai_verify_case *c);

/* The problem of a case with its capacities. */
nsa_problem chk_case_problem(const nsai_verify_case *c, int32_t op);

#endif /* CHK_PLANS_H */
