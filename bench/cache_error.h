/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What a cache in e4m3 costs in accuracy: the same prompt goes into a cache in the model's dtype and
 * into one in e4m3 with scales of 1, and the same queries attend over both, by nsa_decode.
 */
#ifndef BENCH_CACHE_ERROR_H
#define BENCH_CACHE_ERROR_H

#include "cached.h"
#include "plans.h"

typedef struct bench_cache_error_request {
  const nsai_verify_case *c; /* the model, and the seed of its inputs */
  int64_t context;           /* tokens of the prompt */
  int32_t page_size;         /* P; NSA_NONE: pages of 64 all the same, which the queries share */
  bench_cached_dtypes dtypes;
} bench_cache_error_request;

/* Writes a table to `out`, a row for each kind of inputs: random and correlated ones, and random ones
 * with four channels of K at a constant of 10 standard deviations. Relative root mean square errors
 * in percent, against the cache in the model's dtype: of o on that cache's own selection, of the
 * compressed branch, and of o with the selection that the codes lead to; of the freely selected
 * blocks, the share that changed; and the share of importance that this loses.
 *
 * NSA_E_UNSUPPORTED where no kernel serves the codes; NSA_E_NOMEM, NSA_E_CUDA. */
nsa_status bench_cache_error(chk_plans *plans, const bench_cache_error_request *request, FILE *out);

/* The same over the longest of `contexts`, at most 65536 tokens: longer prompts only take longer. Without
 * codes it writes nothing. Sets request->context. */
nsa_status bench_cache_error_longest(chk_plans *plans, bench_cache_error_request *request,
                                     const int64_t *contexts, int count, FILE *out);

#endif /* BENCH_CACHE_ERROR_H */
