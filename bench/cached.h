/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Shared by the commands that time calls over a KV cache: decode and prefill.
 */
#ifndef BENCH_CACHED_H
#define BENCH_CACHED_H

#include "verify/case.h"

#include <stdio.h>

/* Most values of a list of sizes on the command line, as in --contexts 4096,65536. */
#define BENCH_SIZES 16

/* What the cache is stored in: raw K and V, and compressed entries; NSA_E4M3, or NSA_NONE: the model's
 * dtype. Zeros count as NSA_NONE. */
typedef struct bench_cached_dtypes {
  int32_t kv, cmp;
} bench_cached_dtypes;

/* "model", "e4m3": of one of them. */
const char *bench_cached_dtype_name(int32_t dtype);

/* Of options of the command line: NSA_E4M3 or NSA_NONE; an nsai_verify_fill. They end the program when the
 * word is none. */
struct argp_state;
int32_t bench_cached_dtype_parse(const char *option, const char *value, struct argp_state *state);
int bench_cached_fill_parse(const char *value, struct argp_state *state);

/* Sets the dtypes of a problem. */
void bench_cached_set(const bench_cached_dtypes *dtypes, nsa_problem *problem);

/* Writes ", raw K and V in e4m3" and the like; nothing for a cache in the model's dtype. */
void bench_cached_describe(const bench_cached_dtypes *dtypes, FILE *out);

/* NSA_E_ARG for a model that the command cannot time. */
nsa_status bench_cached_check(const char *command, const nsai_model *model);

#endif /* BENCH_CACHED_H */
