/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Compiles a sample of the tuner's candidates, to test whether their kernels compile.
 */
#ifndef NSAI_CLI_SAMPLE_H
#define NSAI_CLI_SAMPLE_H

#include "cli/cli.h"
#include "plan/context.h"

typedef struct nsai_sample {
  /* candidates of each stage: legal, with tiles that fit and a finite cost estimate */
  int32_t count;
  uint64_t seed; /* the same seed, architecture and problem give the same candidates */
  nsai_cli_progress *progress;
  /* out, totals: candidates; those that spill registers, which the tuner would drop */
  int32_t taken, refused;
} nsai_sample;

/* Compiles a sample for one problem into the context's cache. Names on stderr the candidates
 * that are refused or do not compile. NSA_E_COMPILE: some do not compile; NSA_E_CANCELLED. Other
 * errors end it. */
nsa_status nsai_sample_compile(nsa_ctx *ctx, const nsa_problem *problem, nsai_sample *sample);

#endif /* NSAI_CLI_SAMPLE_H */
