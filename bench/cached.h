/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Shared by the commands that time calls over a KV cache: decode and prefill.
 */
#ifndef BENCH_CACHED_H
#define BENCH_CACHED_H

#include "verify/case.h"

/* Most values of a list of sizes on the command line, as in --contexts 4096,65536. */
#define BENCH_SIZES 16

/* NSA_E_ARG for a model that the command cannot time. */
nsa_status bench_cached_check(const char *command, const nsai_model *model);

#endif /* BENCH_CACHED_H */
