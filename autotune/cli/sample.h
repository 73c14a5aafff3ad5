/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * A sample of what the tuner may look at, compiled: whether the spaces hold kernels that compile.
 */
#ifndef NSAI_CLI_SAMPLE_H
#define NSAI_CLI_SAMPLE_H

#include "cli/cli.h"
#include "plan/context.h"

typedef struct nsai_sample {
  int32_t count; /* candidates of each stage: legal, with tiles that fit and a finite guess */
  uint64_t seed; /* the same seed, architecture and problem: the same candidates */
  nsai_cli_progress *progress;
  int32_t taken, refused; /* out, summed up: candidates; those that spill, which a tuning drops */
} nsai_sample;

/* Compiles a sample for one problem into the context's cache. Those that are refused or do not
 * compile are named on stderr. NSA_E_COMPILE: some do not compile; NSA_E_CANCELLED; others end it. */
nsa_status nsai_sample_compile(nsa_ctx *ctx, const nsa_problem *problem, nsai_sample *sample);

#endif /* NSAI_CLI_SAMPLE_H */
