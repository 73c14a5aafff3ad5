/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * One case made ready to run: its tensors inside red zones, a plan, a workspace, and the rows that
 * will be compared. What a plan computes is judge.h's matter. Not thread-safe.
 */
#ifndef CHK_BENCH_H
#define CHK_BENCH_H

#include "trial/data.h"
#include "trial/result.h"

/* A plan with its context. Both stay their maker's: here nothing destroys them. */
typedef struct chk_plan {
  nsa_ctx *ctx;
  nsa_plan *plan;
  nsa_caps caps;
} chk_plan;

/* Rows whose importance a forward plan can be asked for: its problem's max_probe_rows at most. */
#define CHK_MAX_PROBES 64

typedef struct chk_bench {
  const chk_case *c; /* the caller's */
  chk_data data;
  chk_plan plan;
  int64_t *tokens; /* rows that are compared with the reference, ascending */
  int64_t token_count;
  int threads;                 /* of the generator and of the reference; 1 and up */
  struct chk_session *session; /* of nsacheck, for checks that make a second bench; else NULL */
} chk_bench;

/* Samples the rows, makes, fills and uploads the tensors, takes a workspace; returns when the
 * device has it all. `c` and `device` must outlive the bench, `plan` is copied. On failure
 * chk_bench_destroy still has to be called.
 *
 * NSA_E_NOMEM, or what the driver says. */
nsa_status chk_bench_prepare(const chk_device *device, const chk_case *c, const chk_plan *plan,
                             int threads, chk_bench *bench);
void chk_bench_destroy(chk_bench *bench);

/* Puts another plan of the same case (same problem, same model) in. The workspace becomes exactly
 * what this plan asks for, grown where needed, its red zone right behind, and all NaN: what the
 * plan before left there cannot pass for this one's. No run may be under way. NSA_E_NOMEM, or what
 * the driver says; the bench then needs another successful call before it runs again. */
nsa_status chk_bench_use(chk_bench *bench, const chk_plan *plan);

/* Enqueues the case's call: nsa_forward, nsa_dense, nsa_compress or nsa_select. `branches` as
 * nsa_exec has it, 0: all. `stream` NULL: the device's. Returns the call's status. */
nsa_status chk_bench_enqueue(const chk_bench *bench, uint32_t branches, nsa_stream stream);

/* Poisons the outputs, runs the case's call on the device's stream, waits, fetches the outputs. */
nsa_status chk_bench_run(chk_bench *bench);

/* The same, and memory that changed though nobody may write there is a failure in `result`. */
nsa_status chk_run_intact(chk_bench *bench, chk_result *result);

#endif /* CHK_BENCH_H */
