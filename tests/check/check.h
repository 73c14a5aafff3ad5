/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The checks themselves. Each takes a case and fills a result; a status that is not NSA_OK says
 * that something could not be tried at all.
 */
#ifndef CHK_CHECK_H
#define CHK_CHECK_H

#include "data.h"
#include "result.h"
#include "session.h"

/* One case made ready: its tensors, its plan, and a workspace. */
typedef struct chk_bench {
  chk_session *session;
  const chk_case *c;
  chk_data data;
  chk_plan plan;
  int64_t *tokens; /* rows that are compared with the reference */
  int64_t token_count;
} chk_bench;

nsa_status chk_bench_create(chk_session *session, const chk_case *c, chk_bench *bench);
void chk_bench_destroy(chk_bench *bench);

/* Poisons the outputs, runs the case's call on the device's stream, waits, fetches. */
nsa_status chk_bench_run(chk_bench *bench);

/* Enqueues the case's call: nsa_forward, nsa_dense, nsa_compress or nsa_select. `stream` NULL: the
 * device's. */
nsa_status chk_bench_enqueue(const chk_bench *bench, uint32_t branches, nsa_stream stream);

/* Runs one case of any kind. */
void chk_check(chk_session *session, const chk_case *c, chk_result *result);

/* By kind. */
nsa_status chk_check_forward(chk_bench *bench, chk_result *result);
nsa_status chk_check_compress(chk_bench *bench, chk_result *result);
nsa_status chk_check_select(chk_bench *bench, chk_result *result);
nsa_status chk_check_dense(chk_bench *bench, chk_result *result);
nsa_status chk_check_property(chk_bench *bench, chk_result *result);
nsa_status chk_check_needle(chk_bench *bench, chk_result *result);

/* Runs `bench` and reports damaged memory as a failure. */
nsa_status chk_run_intact(chk_bench *bench, chk_result *result);

/* The plain comparison of a forward that has run, against the reference; used by the self-test too.
 */
nsa_status chk_judge_forward(chk_bench *bench, chk_result *result);

/* Spoils results on purpose and demands that each kind of damage is reported. Returns the number of
 * kinds that went unnoticed. */
int chk_self_test(chk_session *session, FILE *out);

#endif /* CHK_CHECK_H */
