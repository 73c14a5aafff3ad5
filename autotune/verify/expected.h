/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * The float64 reference's results for the compared rows of a trial run. The reference is much
 * slower than any kernel, so its results are kept: most plans of one case store the same
 * compressed blocks and select the same blocks, and then share one computation.
 *
 * A result is reused only while everything it was computed from has the same bytes. This is
 * decided by 128-bit digests, since copies would double the memory of a long case:
 *
 *   part        inputs, case, rows   stored k_cmp, v_cmp   selected blocks of the compared rows
 *   compressed  yes
 *   importance  yes                  yes
 *   stage       yes                  yes                   yes
 *   whole       yes                                        yes
 *   dense       yes
 *
 *   nsai_verify_expected expected = { 0 };
 *   for (each plan) {
 *     nsai_trial_run_use(&trial, plan), nsai_trial_run_intact(&trial, &result);
 *     nsai_verify_forward(&trial, &expected, &result);
 *   }
 *   nsai_verify_expected_fini(&expected);
 *
 * Not thread-safe; the reference itself uses trial->threads. Only forward.c calls other
 * functions than nsai_verify_expected_fini. Every function returns NSA_OK or NSA_E_NOMEM.
 * Results belong to the struct and are valid until the next call with it.
 */
#ifndef NSAI_VERIFY_EXPECTED_H
#define NSAI_VERIFY_EXPECTED_H

#include "base/digest.h"
#include "reference/reference.h"
#include "verify/trial_run.h"

typedef enum nsai_verify_expected_part {
  NSAI_VERIFY_EXPECTED_COMPRESSED,
  NSAI_VERIFY_EXPECTED_IMPORTANCE,
  NSAI_VERIFY_EXPECTED_STAGE,
  NSAI_VERIFY_EXPECTED_WHOLE, /* also for dense attention: a case has only one of them */
  NSAI_VERIFY_EXPECTED_PARTS
} nsai_verify_expected_part;

/* Zero is empty. */
typedef struct nsai_verify_expected {
  int once;         /* 1: used for a single verification, which needs no digests */
  int64_t computed; /* number of parts computed so far: for tests */
  char inputs[NSAI_DIGEST_CHARS], blocks[NSAI_DIGEST_CHARS], chosen[NSAI_DIGEST_CHARS];
  struct {
    int made;
    char from[4 * NSAI_DIGEST_CHARS]; /* digests, and which outputs were requested */
  } part[NSAI_VERIFY_EXPECTED_PARTS];
  nsa_tensor compressed[2]; /* k, v: f32 [blocks, Hkv, D] */
  double *importance;       /* [probes, Hkv, selection blocks] */
  nsai_reference_rows stage, whole;
} nsai_verify_expected;

/* Frees the results; `expected` is then empty. */
void nsai_verify_expected_fini(nsai_verify_expected *expected);

/* Records the current inputs and fetched outputs of the trial run. Call it before the functions
 * below. */
void nsai_verify_expected_update(nsai_verify_expected *expected, const nsai_trial_run *trial);

/* k_cmp and v_cmp by phi of the inputs, rounded to f32: out[0], out[1]. */
nsa_status nsai_verify_expected_compressed(nsai_verify_expected *expected,
                                           const nsai_trial_run *trial, const nsa_tensor **out);

/* The importance of the probed rows on the library's own compressed keys, [probes, Hkv, blocks]. */
nsa_status nsai_verify_expected_importance(nsai_verify_expected *expected,
                                           const nsai_trial_run *trial, const double **out);

/* The compared rows, computed from the library's own compressed and selected blocks: o, and
 * o_branch and lse of the branches whose lse the trial run has. */
nsa_status nsai_verify_expected_stage(nsai_verify_expected *expected, const nsai_trial_run *trial,
                                      const nsai_reference_rows **out);

/* o of the compared rows, computed from the raw inputs and the library's selected blocks. */
nsa_status nsai_verify_expected_whole(nsai_verify_expected *expected, const nsai_trial_run *trial,
                                      const nsai_reference_rows **out);

/* o and lse[0] of the compared rows by dense attention. */
nsa_status nsai_verify_expected_dense(nsai_verify_expected *expected, const nsai_trial_run *trial,
                                      const nsai_reference_rows **out);

#endif /* NSAI_VERIFY_EXPECTED_H */
