/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The checks of the KV cache: nsa_kv_append, nsa_decode and nsa_prefill on a GPU, compared with
 * the CPU device.
 */
#ifndef CHK_CACHE_RUN_CASE_H
#define CHK_CACHE_RUN_CASE_H

#include "../plans.h"
#include "options.h"
#include "verify/result.h"

/* Runs one case. A problem that the library refuses is a skip. */
void chk_cache_check(const chk_plans *plans, const chk_cache_case *c, nsai_verify_result *result);

/* Injects every kind of damage into the first scenario that allows it, and requires that it is
 * reported. `longest`: of the scenarios. Returns the number of failures. */
int chk_cache_self_test(const chk_plans *plans, int32_t longest, FILE *out);

#endif /* CHK_CACHE_RUN_CASE_H */
