/* SPDX-FileCopyrightText: 2026 the libnsa authors
 * SPDX-License-Identifier: MIT
 *
 * Verifies a plan of nsa_decode or nsa_prefill over a cache against the float64 reference:
 * selected blocks by the reference's importance, outputs on the plan's own blocks. Sequences are
 * ragged, and one is padded. Pages are scattered. Memory that nobody wrote holds NaN. Outputs
 * and the workspace lie between guard bands. Compressed entries are computed from the keys if
 * phi is mean, else arbitrary numbers: they are inputs.
 *
 * One setup can verify many plans: the reference runs again only for blocks that differ from its
 * own. Not thread-safe.
 */
#ifndef NSAI_VERIFY_CACHE_H
#define NSAI_VERIFY_CACHE_H

#include "plan/problem.h"
#include "verify/case.h"
#include "verify/device.h"
#include "verify/result.h"
#include "verify/trial_run.h"

#define NSAI_VERIFY_CACHE_SEQS 64

typedef struct nsai_verify_cache_case {
  /* Of NSA_OP_DECODE or NSA_OP_PREFILL: its model, page_size, max_q_len, kv_dtype and cmp_dtype. */
  nsai_problem problem;
  nsai_verify_fill fill;
  uint64_t seed;
  int32_t seqs; /* 1 to NSAI_VERIFY_CACHE_SEQS */
  /* tokens of each sequence, including the new ones; 0: padded */
  int32_t len[NSAI_VERIFY_CACHE_SEQS];
  int32_t q_len[NSAI_VERIFY_CACHE_SEQS]; /* new tokens; equal for all sequences of a decode step */
} nsai_verify_cache_case;

typedef enum nsai_verify_cache_slot {
  NSAI_VERIFY_CACHE_Q,
  NSAI_VERIFY_CACHE_INDEX_Q,
  NSAI_VERIFY_CACHE_GATE, /* the value, or the input x of the MLP */
  NSAI_VERIFY_CACHE_GATE_W1,
  NSAI_VERIFY_CACHE_GATE_W2,
  NSAI_VERIFY_CACHE_K,
  NSAI_VERIFY_CACHE_V = NSAI_VERIFY_CACHE_K + NSA_BRANCHES,
  NSAI_VERIFY_CACHE_K_IDX = NSAI_VERIFY_CACHE_V + NSA_BRANCHES,
  NSAI_VERIFY_CACHE_K_CMP,
  NSAI_VERIFY_CACHE_V_CMP,
  NSAI_VERIFY_CACHE_K_NORM,
  NSAI_VERIFY_CACHE_TABLE,
  NSAI_VERIFY_CACHE_LEN,
  NSAI_VERIFY_CACHE_CU_Q,
  NSAI_VERIFY_CACHE_FIRST_OUTPUT,
  NSAI_VERIFY_CACHE_O = NSAI_VERIFY_CACHE_FIRST_OUTPUT,
  NSAI_VERIFY_CACHE_LSE,
  NSAI_VERIFY_CACHE_IDX = NSAI_VERIFY_CACHE_LSE + NSA_BRANCHES,
  NSAI_VERIFY_CACHE_SLOTS
} nsai_verify_cache_slot;

typedef struct nsai_verify_cache_setup {
  const nsai_verify_device *device;
  nsai_verify_cache_case c;
  int threads;
  int64_t tokens, blocks; /* rows of q; selection blocks of the longest sequence */
  nsa_tensor view[NSAI_VERIFY_CACHE_SLOTS]; /* data NULL; ndim 0: absent */
  nsai_verify_buffer buffer[NSAI_VERIFY_CACHE_SLOTS];
  /* The reference's results, f32 and contiguous, on the blocks `on`: at first the reference's
   * own. */
  nsa_tensor want_o, want_lse[NSA_BRANCHES], importance, topn, on;
} nsai_verify_cache_setup;

/* Makes and uploads the tensors and computes the reference. NSA_E_NOMEM, or the driver's error.
 * The setup must be destroyed in any case. */
nsa_status nsai_verify_cache_setup_create(const nsai_verify_device *device,
                                          const nsai_verify_cache_case *c, int threads,
                                          nsai_verify_cache_setup *out);
void nsai_verify_cache_setup_destroy(nsai_verify_cache_setup *setup);

/* Runs the plan and verifies its results. Wrong results are failures in `result`; a status means
 * that the run failed or that nothing could be verified. */
nsa_status nsai_verify_cache_check(nsai_verify_cache_setup *setup, const nsai_trial_plan *plan,
                                   nsai_verify_result *result);

#endif /* NSAI_VERIFY_CACHE_H */
