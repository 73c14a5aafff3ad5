/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * What the float64 reference says about a bench's compared rows. The reference is slow beside any
 * kernel, so a truth keeps its answers: many plans of one case, run on one bench, mostly store the
 * same compressed blocks and choose the same blocks, and then share one computation.
 *
 * An answer is used again only while everything that it was computed from has the same bytes, which
 * 128-bit digests tell (copies would double the memory of a long case):
 *
 *   part        inputs, case, rows   stored k_cmp, v_cmp   chosen blocks of the compared rows
 *   compressed  yes
 *   importance  yes                  yes
 *   stage       yes                  yes                   yes
 *   whole       yes                                        yes
 *   dense       yes
 *
 *   nsai_verify_expected truth = { 0 };
 *   for (each plan) {
 *     nsai_trial_run_use(&bench, plan), nsai_trial_run_intact(&bench, &result);
 *     nsai_verify_forward(&bench, &truth, &result);
 *   }
 *   nsai_verify_expected_fini(&truth);
 *
 * Not thread-safe; the reference itself uses bench->threads. Only forward.c calls more than
 * nsai_verify_expected_fini. Every function gives NSA_OK or NSA_E_NOMEM; answers are the truth's, valid until
 * the next call with it.
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
  NSAI_VERIFY_EXPECTED_WHOLE, /* dense attention's answer too: a case has one or the other */
  NSAI_VERIFY_EXPECTED_PARTS
} nsai_verify_expected_part;

/* Zero is empty. */
typedef struct nsai_verify_expected {
  int once;         /* 1: serves one judgement, which saves the digests */
  int64_t computed; /* parts, all in all: for tests */
  char inputs[NSAI_DIGEST_CHARS], blocks[NSAI_DIGEST_CHARS], chosen[NSAI_DIGEST_CHARS];
  struct {
    int made;
    char from[4 * NSAI_DIGEST_CHARS]; /* digests, and which outputs were wanted */
  } part[NSAI_VERIFY_EXPECTED_PARTS];
  nsa_tensor compressed[2]; /* k, v: f32 [blocks, Hkv, D] */
  double *importance;       /* [probes, Hkv, selection blocks] */
  nsai_reference_rows stage, whole;
} nsai_verify_expected;

/* Frees the answers; `truth` is empty then. */
void nsai_verify_expected_fini(nsai_verify_expected *expected);

/* Looks at what the bench holds now, inputs and fetched outputs: before the questions below. */
void nsai_verify_expected_update(nsai_verify_expected *expected, const nsai_trial_run *trial);

/* k_cmp and v_cmp by phi of the inputs, rounded to f32: out[0], out[1]. */
nsa_status nsai_verify_expected_compressed(nsai_verify_expected *expected,
                                           const nsai_trial_run *trial, const nsa_tensor **out);

/* The importance of the probed rows on the library's own compressed keys, [probes, Hkv, blocks]. */
nsa_status nsai_verify_expected_importance(nsai_verify_expected *expected,
                                           const nsai_trial_run *trial, const double **out);

/* The compared rows from the library's own compressed blocks and chosen blocks: o, and o_branch and
 * lse of the branches whose lse the bench has. */
nsa_status nsai_verify_expected_stage(nsai_verify_expected *expected, const nsai_trial_run *trial,
                                      const nsai_reference_rows **out);

/* o of the compared rows from the raw inputs, by the library's chosen blocks. */
nsa_status nsai_verify_expected_whole(nsai_verify_expected *expected, const nsai_trial_run *trial,
                                      const nsai_reference_rows **out);

/* o and lse[0] of the compared rows by dense attention. */
nsa_status nsai_verify_expected_dense(nsai_verify_expected *expected, const nsai_trial_run *trial,
                                      const nsai_reference_rows **out);

#endif /* NSAI_VERIFY_EXPECTED_H */
