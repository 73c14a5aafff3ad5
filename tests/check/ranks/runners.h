/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Runs problems and faults on ranks that are threads (loopback) or processes with a GPU each
 * (NCCL).
 */
#ifndef CHK_RANKS_RUNNERS_H
#define CHK_RANKS_RUNNERS_H

#include "ranks/fault.h"

typedef struct chk_runner {
  chk_plans_options plans; /* of NCCL: `device` is the ordinal of rank 0 */
  chk_rank_options rank;
  /* Called for each result, on rank 0 */
  void (*report)(void *user, int64_t number, const char *text, const nsai_verify_result *result);
  void *user;
} chk_runner;

/* Runs problems; `passed`, `failed`, `skipped` are counted in `outcomes`. NSA_E_NO_DRIVER,
 * NSA_E_NO_DEVICE: there are too few GPUs. */
nsa_status chk_run_threads(const chk_runner *runner, const chk_ranks_problem *problems,
                           int64_t count, long long outcomes[3]);
nsa_status chk_run_processes(const chk_runner *runner, const chk_ranks_problem *problems,
                             int64_t count, long long outcomes[3]);

/* A fault on ranks that run the problem. */
nsa_status chk_fault_threads(const chk_runner *runner, const chk_ranks_problem *p,
                             const chk_fault *fault, nsai_verify_result *result);
nsa_status chk_fault_processes(const chk_runner *runner, const chk_ranks_problem *p,
                               const chk_fault *fault, nsai_verify_result *result);

#endif /* CHK_RANKS_RUNNERS_H */
